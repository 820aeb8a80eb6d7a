"""rejax's agents on gymnax's environments, one compiled program for all members, without evaluation."""

from collections.abc import Callable
from typing import Any

import jax
import rejax
from flax import linen as nn
from jax import numpy as jnp
from rejax.evaluate import evaluate
from rejax.networks import DeterministicPolicy, DiscreteQNetwork, EpsilonGreedyPolicy, QNetwork
from training import FIRST, GOALS, Case, main

PACKAGES = ("rejax", "gymnax", "jax", "flax")


def _algorithm(case: Case) -> Any:
    """Return the algorithm, which trains for a unit of steps."""
    values: dict[str, Any] = {"env": case.game, "total_timesteps": case.unit, "eval_freq": case.unit}
    values["skip_initial_evaluation"] = True
    if case.agent in ("PPO", "A2C"):  # A2C: PPO with one pass and one batch, which clips nothing
        values |= {"num_envs": case.envs, "num_steps": case.rollout, "num_epochs": case.passes}
        network = {"activation": "tanh", "hidden_layer_sizes": case.hidden}
        algorithm = rejax.PPO.create(**values, num_minibatches=case.minibatches, agent_kwargs=network)
    else:
        # More than one transition to fill the buffer would be steps without an update.
        values |= {"batch_size": case.batch, "fill_buffer": 1, "buffer_size": case.buffer, "polyak": 0.99}
        algorithm = _off_policy(case, values)
    return algorithm.replace(eval_callback=lambda *_: ())


def _off_policy(case: Case, values: dict[str, Any]) -> Any:
    """Return DQN, TD3 or SAC with the networks of the case; rejax's DQN and TD3 have two layers of 64 built in."""
    network = {"hidden_layer_sizes": case.hidden, "activation": nn.relu}
    if case.agent == "SAC":
        return rejax.SAC.create(**values, hidden_layer_sizes=case.hidden)
    if case.agent == "DDQN":
        algorithm = rejax.DQN.create(**values, ddqn=True)
        num_actions = algorithm.env.action_space(algorithm.env_params).n
        return algorithm.replace(agent=EpsilonGreedyPolicy(DiscreteQNetwork)(action_dim=num_actions, **network))
    assert case.agent == "TD3", case
    algorithm = rejax.TD3.create(**values)
    space = algorithm.env.action_space(algorithm.env_params)
    actor = DeterministicPolicy(space.shape[0], (space.low, space.high), **network)
    return algorithm.replace(actor=actor, critic=QNetwork(**network))


def _is_shared(path: Any, leaf: Any) -> bool:
    """Return whether a leaf of the state of all members, ``[M, ...]``, is a counter that is equal for all of them. Such
    counters must have no member axis: JAX would compute both branches of every condition on them."""
    return path[0].name != "env_state" and leaf.ndim == 1 and leaf.dtype in (jnp.int32, jnp.bool_)


def trainer_of(case: Case) -> Callable[[int], int]:
    """Return the function that `training.serve` times. It trains for a number of units and returns the steps."""
    algorithm, key = _algorithm(case), jax.random.PRNGKey(0)

    def train_unit(state: Any) -> Any:
        return algorithm.train(train_state=state)[0]

    if case.members == 1:
        state, compiled = jax.jit(algorithm.init_state)(key), jax.jit(train_unit, donate_argnums=0)
    else:
        state = jax.jit(jax.vmap(algorithm.init_state))(jax.random.split(key, case.members))
        with_path = jax.tree_util.tree_map_with_path
        axes = with_path(lambda path, leaf: None if _is_shared(path, leaf) else 0, state)
        state = with_path(lambda path, leaf: leaf[0] if _is_shared(path, leaf) else leaf, state)
        compiled = jax.jit(jax.vmap(train_unit, in_axes=(axes,), out_axes=axes), donate_argnums=0)

    def train(units: int) -> int:
        nonlocal state
        for _ in range(units):
            state = compiled(state)
        jax.block_until_ready(state)
        return units * case.unit * case.members

    return train


def first_result(game: str, seed: int) -> int:
    """Train PPO until a greedy evaluation reaches the return in `GOALS`. Return the steps that it took."""
    size = FIRST[game]

    def greedy(algorithm: Any, state: Any, key: Any) -> Any:
        def act(obs: Any, _: Any) -> Any:
            logits = algorithm.actor.apply(state.actor_ts.params, obs[None], method="_action_dist").logits
            return jnp.argmax(logits[0])

        most = algorithm.env_params.max_steps_in_episode
        return evaluate(act, key, algorithm.env, algorithm.env_params, size.eval_episodes, most)[1].mean()

    algorithm = rejax.PPO.create(
        env=game, num_envs=size.envs, num_steps=size.rollout, num_epochs=size.passes, learning_rate=size.lr,
        num_minibatches=size.envs * size.rollout // size.batch, gamma=size.discount, gae_lambda=size.gae_lambda,
        ent_coef=0.0, max_grad_norm=0.5, agent_kwargs={"activation": "tanh", "hidden_layer_sizes": size.hidden},
        total_timesteps=size.eval_steps, eval_freq=size.eval_steps, skip_initial_evaluation=True,
    ).replace(eval_callback=greedy)  # fmt: skip
    state = jax.jit(algorithm.init_state)(jax.random.PRNGKey(seed))
    # A training of 2,560 steps with its evaluation is the compiled program, so that Python can stop at the goal.
    part = jax.jit(lambda state: algorithm.train(train_state=state))
    for steps in range(size.eval_steps, size.most_steps + 1, size.eval_steps):
        state, returns = part(state)
        if float(returns[-1]) >= GOALS[game]:
            return steps
    raise SystemExit(f"{GOALS[game]} was not reached in {size.most_steps} steps")


if __name__ == "__main__":
    main(trainer_of, first_result, PACKAGES)
