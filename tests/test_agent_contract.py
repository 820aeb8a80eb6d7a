"""What every agent in models/agents/ must keep to. It gets these tests by being there."""

import pytest
import torch

from control.loops.rollout import rollout
from envs.make import make_environment
from envs.probes import PROBES
from helpers import CASES, VARIANTS, Loop, able, build, config_of, on_policy, same_numbers, tiny
from models.registry import agent_class
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams

SPACES = {
    "discrete": Spaces((3,), Discrete(4)),
    "two actions": Spaces((1,), Discrete(2), max_return=1.0),
    "continuous": Spaces((5,), Continuous((-1.0, 0.0), (1.0, 4.0))),
    "images": Spaces((2, 11, 9), Discrete(3), torch.uint8),
}
# A probe with one input and one step, episodes of unequal length, continuous actions, and the game that matters.
GAMES = ["probe-5", "cartpole", "pendulum", "lunarlander"]
PARTS = {*VARIANTS, "VPG", "EPG", "BPG"}  # the last three are CPG without its parts


def playable(*games: str) -> list[tuple[str, str]]:
    """Every case with those of ``games`` whose actions it can choose."""
    return [(case, game) for case in CASES for game in games if able(case, game)]


def observations(spaces: Spaces, *shape: int) -> torch.Tensor:
    if spaces.is_image:
        return torch.randint(256, (*shape, *spaces.obs_shape), dtype=torch.uint8)
    return torch.randn(*shape, *spaces.obs_shape)


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (case, kind)
        for case in CASES
        for kind in SPACES
        if isinstance(SPACES[kind].actions, agent_class(CASES[case][0]).action_kinds)
        and (kind != "images" or agent_class(CASES[case][0]).takes_images)
    ],
)
def test_actions_have_the_shape_and_range_of_the_space(case: str, kind: str) -> None:
    spaces = SPACES[kind]
    agent = build(case, spaces, [1, 2, 3])
    for sample in (True, False):
        actor = agent.begin(5, Streams([1, 2, 3]), sample=sample)
        for _ in range(3):
            action = actor.act(observations(spaces, 3, 5))
            assert action.shape == (3, 5, *spaces.action_shape) and action.dtype == spaces.action_dtype
            actor.advance(torch.ones(3, 5))
            if isinstance(spaces.actions, Discrete):
                assert action.min() >= 0 and action.max() < spaces.actions.n
            else:
                assert (action >= torch.tensor(spaces.actions.low)).all() and (
                    action <= torch.tensor(spaces.actions.high)
                ).all()


@pytest.mark.parametrize(("case", "game"), playable("probe-3", "pendulum"))
def test_learn_gives_one_finite_number_a_member(case: str, game: str) -> None:
    loop = Loop(case, game, [1, 2, 3])
    loop.warm_up(1)
    (policy,) = (name for name in loop.agent.state_dict() if name.endswith("policy.flat"))
    before = loop.agent.state_dict()[policy].clone()
    losses = loop.agent.learn()
    assert loop.agent.main_loss in losses
    for name, value in losses.items():
        assert value.shape == (3,) and value.isfinite().all() and not value.requires_grad, name
    assert (loop.agent.state_dict()[policy] != before).any(1).all()
    for optimizer in loop.agent.optimizers:
        assert isinstance(optimizer, torch.optim.Optimizer)


@pytest.mark.parametrize(
    ("case", "game"), [(case, game) for case, game in playable(*GAMES) if case not in PARTS or game in GAMES[:2]]
)
def test_a_member_alone_is_the_same_to_the_bit(case: str, game: str) -> None:
    """Three epochs of learning, acting and evaluating, though in company other episodes last longer."""
    seeds = [25, 26, 7]
    together = Loop(case, game, seeds)
    together.warm_up(1)
    history = [together.epoch() for _ in range(3)]
    evaluated = [together.evaluate(sample).returns for sample in (False, True)]
    for m in (0, 2):
        alone = Loop(case, game, seeds[m : m + 1])
        alone.warm_up(1)
        for numbers in history:
            same_numbers(alone.epoch(), {name: value[m : m + 1] for name, value in numbers.items()})
        for sample, returns in zip((False, True), evaluated, strict=True):
            assert torch.equal(alone.evaluate(sample).returns[0], returns[m])
    (weights,) = (value for name, value in history[-1].items() if name.endswith("policy.flat"))
    assert not torch.equal(weights[0], weights[1])


@pytest.mark.parametrize(
    ("case", "game", "what"),
    [
        (case, game, what)
        for case, game in playable("probe-5", "probe-truncated-continuous", "cartpole")
        for what in ("weights", "memory")
        if what == "weights" or not on_policy(CASES[case][0])
    ],
)
def test_a_broken_member_leaves_the_others_alone(case: str, game: str, what: str) -> None:
    loops = [Loop(case, game, [1, 2, 3]) for _ in range(2)]
    for loop in loops:
        loop.warm_up(1)
        loop.epoch()
    broken = loops[1].agent
    with torch.no_grad():
        if what == "weights":
            for weights in broken.parameters():
                weights[1] = float("nan")
        else:
            for values in broken.memory.fields.values():
                if values.is_floating_point():
                    values[1] = float("nan")
    for _ in range(2):
        sound, sick = (loop.epoch() for loop in loops)
        same_numbers(*({name: value[[0, 2]] for name, value in numbers.items()} for numbers in (sound, sick)))
        assert any(value[1].isnan().any() for value in sick.values())


@pytest.mark.parametrize(("case", "game"), playable("probe-truncated", "pendulum"))
def test_goes_on_from_its_state_as_if_nothing_had_been(case: str, game: str, tmp_path) -> None:
    one = Loop(case, game, [1, 2])
    one.warm_up()
    one.epoch()
    state = {
        "weights": one.agent.state_dict(), "rest": one.agent.training_state(), "streams": one.streams.get_state(),
        "optimizers": [optimizer.state_dict() for optimizer in one.agent.optimizers],
    }  # fmt: skip
    torch.save(state, tmp_path / "state")
    state = torch.load(tmp_path / "state", weights_only=True)
    other = Loop(case, game, [8, 9])
    other.agent.load_state_dict(state["weights"])
    other.agent.load_training_state(state["rest"])
    for optimizer, saved in zip(other.agent.optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    other.streams.set_state(state["streams"])
    for _ in range(3):
        same_numbers(one.epoch(), other.epoch())


# -- the probes ------------------------------------------------------------------------------------------------------

# In probes 1 to 3 no action is better than another: they are for value functions (below).
ACTED = [name for name, probe in PROBES.items() if probe.best_return - probe.random_return > 0.1]
LEARNING = {
    "lr": 5e-3, "batch_size": 64, "num_grad_steps": 30, "last_few": 30, "random_action_epochs": 0, "buffer_size": 600,
    "value_hidden_sizes": (16, 16),
}  # fmt: skip
# One gradient step an epoch, from these episodes alone.
LEARNING_ON_POLICY = {
    "lr": 3e-2, "value_lr": 3e-2, "batch_size": 30, "max_episodes": 6000, "value_hidden_sizes": (16, 16),
}  # fmt: skip


def trained(case: str, game: str, epochs: int, **changes) -> Loop:
    hidden = (16,) * len(tiny(case).hidden_sizes)
    learning = LEARNING_ON_POLICY if on_policy(CASES[case][0]) else LEARNING
    config = config_of(case, game, **(learning | {"hidden_sizes": hidden} | changes))
    loop = Loop(case, game, [1, 2], config, envs=30)
    loop.warm_up(2)
    for _ in range(epochs * (3 if config.schedule.on_policy else 1)):
        loop.epoch()
    return loop


@pytest.mark.parametrize(
    ("case", "game"), [(case, game) for case, game in playable(*ACTED) if case not in VARIANTS or "probe-5" in game]
)
def test_learns_the_probe(case: str, game: str) -> None:
    probe = PROBES[game]
    loop = trained(case, game, 20)
    greedy = loop.evaluate().returns.mean(1)
    needed = probe.best_return - 0.1 * (probe.best_return - probe.random_return)
    assert (greedy > needed).all(), f"greedy {greedy.tolist()}, needed {needed:.2f} of {probe.best_return}"


@pytest.mark.parametrize("game", ["probe-1", "probe-2", "probe-3", "probe-4"])
@pytest.mark.parametrize("case", [case for case in CASES if CASES[case][0] in ("RCP-A", "AAC")])
def test_values_are_the_true_ones(case: str, game: str) -> None:
    own = {} if case.startswith("AAC") else {"value_lr": 1e-2, "val_func_update_interval": 1}
    loop = trained(case, game, 12 if own else 40, **own)
    environment = make_environment(game, 2, 30)
    with torch.no_grad():
        for age in range(PROBES[game].length):
            obs = environment.reset(torch.arange(60).view(2, 30))
            for _ in range(age):
                obs = environment.step(torch.zeros(2, 30, dtype=torch.int64)).obs
            value = values(loop.agent, obs)
            true = PROBES[game].value(obs[..., 0], loop.agent.config.discount)
            if game == "probe-4":  # what was acted by: mostly, not always, the right action
                assert ((value > 0.5) & (value < 1.05)).all()
            else:
                torch.testing.assert_close(value, true, rtol=0, atol=0.05)


def values(agent, obs: torch.Tensor) -> torch.Tensor:
    """``[M, B]`` in units of reward."""
    if agent.config.schedule.on_policy:
        return agent.network.values(obs) / agent.config.reward_scale
    return agent._value(obs) * agent._value_scale().unsqueeze(1)


def test_a_rollout_goes_by_the_agents_own_actions() -> None:
    """The probe pays what the greedy action is worth, so that evaluation and acting cannot disagree."""
    loop = trained("UDRL", "probe-5", 20)
    actor = loop.agent.begin(30, Streams([1, 2]), sample=False, evaluate=True)
    trajectory = rollout(actor, loop.environment, torch.arange(60).view(2, 30))
    right = (trajectory.action[0] == (trajectory.obs[0, ..., 0] > 0)).float()
    assert torch.equal(trajectory.returns, right)
