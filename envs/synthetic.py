"""A population of synthetic environments as one environment, in which each member has separate networks.

M is the number of members (independent agents), E of environments of each, S of numbers in an observation, A of actions
(or of numbers in a continuous action). ``flat [M, D]`` are the parameters of M synthetic environments: the weights of
all networks and the table of initial states. `models.proxies.synthetic.networks` describes them.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from envs import seeded
from envs.base import Environment
from envs.make import ProxyFactory as BaseFactory
from envs.make import make_environment
from envs.tensor import Dynamics, TensorEnvironment, Transition
from models.proxies.contract import Trainee
from models.proxies.fitting import fit
from models.proxies.synthetic.config import Config
from models.proxies.synthetic.networks import Networks, Program, ScaledPolicy, scale_states, unscale_states
from models.settings import SettingError
from models.spaces import Discrete, Spaces
from models.streams import Streams, lockstep_streams
from understudy.kinds import FORMS
from understudy.program import ENDS_ABOVE

_MIN_SCALING_OBS = 2048  # smallest number of observations by which the inputs of a target are scaled
_DAGGER_UPDATES = 1000  # number of updates of a clone before it visits states

Starts = Callable[[Tensor], Tensor]
"""A function from seeds ``[..., M, E]`` to initial observations ``[..., M, E, S]`` of the real environment."""


class SyntheticDynamics(Dynamics):
    """Dynamics that learned networks compute. The observation is the state ``[M, E, S]``. If the real environment has
    one-hot observations, it is one-hot too, with the 1 at the largest number of the state, as published.

    Episodes terminate if the output d of the done network is above `ENDS_ABOVE`. With ``raw_done`` the discount of an
    MDP is 1 - d, as published. Otherwise it is 0 at termination and 1 before. Nothing is clipped."""

    def __init__(self, program: Program, spaces: Spaces, starts: Starts, scale: Mapping[str, Tensor] | None = None):
        """``program`` computes the steps. ``spaces`` are the real environment's, and ``starts`` returns its initial
        states. If the states of this environment are standardised, agents need standardised observations on the real
        environment too. ``scale`` then has the tensors for this, "target.center" and "target.spread"."""
        self.program, self.starts, self.scale = program, starts, scale
        config = program.networks.config
        self.bandit, self.raw_done = config.proxy == "bandit", config.raw_done
        # Learned rewards have neither the limit of the real returns nor two values only.
        limit = 1 if self.bandit else (config.max_steps or spaces.max_episode_steps)  # a bandit ends after one step
        self.spaces = replace(spaces, max_episode_steps=limit, max_return=None, binary=False)

    def initial(self, seeds: Tensor) -> Tensor:
        """Return rows of the table, random cells, states of the real environment, or outputs of a network."""
        networks = self.program.networks
        if networks.num_table_rows:
            return self.program.table_rows(seeded.integers(seeds, networks.num_table_rows))
        if networks.has_cells:
            num_cells = networks.state_size
            return torch.eye(num_cells)[seeded.integers(seeds, num_cells)]
        if not networks.latent_size:
            return self.starts(seeds)
        # The network takes noise [M, N, latent], so the other axes of seeds are flattened into N.
        member_seeds = seeds.movedim(-2, 0)  # [M, ..., E]
        noise = seeded.normal(member_seeds.flatten(1), networks.latent_size).float()
        states = self.program.first_states(noise)  # [M, N, S]
        return states.reshape(*member_seeds.shape, -1).movedim(0, -3)  # [M, ..., E, S] -> [..., M, E, S]

    def observe(self, state: Tensor) -> Tensor:
        if not self.spaces.one_hot:
            return state
        return torch.zeros_like(state).scatter_(-1, state.argmax(-1, keepdim=True), 1.0)

    def step(self, state: Tensor, actions: Tensor) -> Transition:
        out = self.program.step(state, actions)
        discount = 1 - out.done if self.raw_done and not self.bandit else None
        return Transition(out.next_state, out.reward, out.done > ENDS_ABOVE, discount)

    def adapt_policy(self, policy: Any) -> Any:
        return policy if self.scale is None else ScaledPolicy(policy, self.scale)


class ProxyFactory(BaseFactory):
    """Makes synthetic environments in which agents train."""

    parameters: Networks

    def __init__(self, config: Config, game: str):
        super().__init__(config, game)
        self.parameters = Networks(config, self.spaces)
        self._clones_values = config.clone_of == "values"
        self._starts: Starts | None = None  # see `starts`

    def initial(self, streams: Streams) -> Tensor:
        """Return random initial parameters ``[M, D]``. If the range of observations is known, the table of initial
        states is filled with observations spread over this range, by which a target's inputs are also standardised."""
        networks = self.parameters
        flat = networks.initial(streams)
        if not (networks.num_table_rows or networks.has_target):
            return flat
        self.check_start()
        states = sample_observations(self.game, streams, self.num_scaling_obs)
        return flat if states is None else networks.fill_table(flat, states)

    @property
    def num_scaling_obs(self) -> int:
        """Number of observations by which a target's inputs are standardised. The first of them fill the table."""
        return max(self.parameters.num_table_rows, _MIN_SCALING_OBS)

    @functools.cached_property
    def lacks_table_range(self) -> bool:
        """Whether there is a table of initial states, but the range of observations, to fill it, is unknown."""
        return bool(self.parameters.num_table_rows) and sample_observations(self.game, Streams([0]), 1) is None

    def check_start(self) -> None:
        """Raise SettingError if initial states are cells, but observations are not one-hot, or if the table of initial
        states cannot be filled: the range of observations is unknown, and no target network can visit states."""
        if self.parameters.has_cells and not self.spaces.one_hot:
            line = f"first_states is 'cells', but observations of {self.game} are no cells"
            raise SettingError(f"{line}; allowed: latent, table", "first_states")
        if self.lacks_table_range and not self.parameters.has_target:
            line = f"first_states is 'table', but nothing is known of how far the observations of {self.game} go"
            raise SettingError(f"{line}; allowed: latent, or a reward_form with a target", "first_states")

    def ineffective(self) -> dict[str, str]:
        """Return the settings about visited states, ``{name: reason}``, unless such states fill the table of initial
        states because the range of observations is unknown."""
        if self.lacks_table_range:
            return {}
        return dict.fromkeys(("table_episodes", "target_scale"), "all that it can show is known, and in the table")

    def with_visited_states(self, flat: Tensor, get_obs: Callable[..., Tensor], scaled: bool) -> Tensor:
        """Fill the table of initial states with states that the target's policy visits on the real environment, if the
        range of observations is unknown. `envs.make.ProxyFactory.with_visited_states` describes the arguments."""
        networks = self.parameters
        if not (self.lacks_table_range and networks.has_target):
            return flat
        if networks.config.pairs and not scaled:  # the search itself changes the table, after a first filling
            return flat
        states = get_obs(self._target_policy(flat[None]), self.num_scaling_obs, networks.config.table_episodes)
        return networks.fill_table(flat[None], states[None], scaled)[0]

    def searched_part(self, flat: Tensor) -> Tensor:
        """Return the numbers ``[K]`` that a search changes in the parameters ``flat [D]``: the weights of the networks.
        With the setting ``pairs``, they are pairs of state and action instead, one for each row of the table of initial
        states: the standardised state ``[S]``, followed by the target's output ``[A]`` for it."""
        networks = self.parameters
        if networks.config.pairs is None:
            return flat[: networks.num_searched]
        fixed_tensors = networks.fixed_tensors(flat[None])
        states = fixed_tensors["states.table"]  # [1, rows, S]
        target_actions = networks.with_weights(flat[None]).target_outputs(states).transpose(1, 2)  # [1, rows, A]
        return torch.cat([scale_states(states, fixed_tensors), target_actions], 2).flatten()

    def with_searched_part(self, part: Tensor, template: Tensor) -> Tensor:
        """Return all parameters ``[..., D]`` of proxies from ``part [..., K]``, as `searched_part` returns it. Weights
        are followed by the fixed parameters of ``template [D]``. On pairs of state and action, targets are trained
        (`train_on_pairs`), all from the same initial weights."""
        networks = self.parameters
        leading_shape = part.shape[:-1]
        if networks.config.pairs is None:
            fixed_parameters = template[networks.num_searched :].expand(*leading_shape, -1)
            return torch.cat([part, fixed_parameters], -1)
        pairs = part.reshape(-1, part.shape[-1])
        same_streams = lockstep_streams([0] * len(pairs), "first weights")
        return self.train_on_pairs(pairs, template, same_streams).view(*leading_shape, -1)

    def train_on_pairs(self, pairs: Tensor, template: Tensor, streams: Streams) -> Tensor:
        """Train a target network for each of M members on its pairs of state and action, ``pairs [M, K]``, ordered as
        in `searched_part`. The states also become the table of initial states. ``streams`` sample the initial weights,
        and the scale of the target's inputs is copied from another proxy, ``template [D]``. Return all parameters ``[M,
        D]``."""
        networks = self.parameters
        rows = pairs.unflatten(1, (networks.num_table_rows, -1))  # [M, rows, S + A]
        states, target_actions = rows.split([networks.state_size, networks.action_size], 2)
        if not isinstance(self.spaces.actions, Discrete):
            target_actions = target_actions.clamp(-1, 1)
        flat = networks.initial(streams)
        flat[:, networks.num_searched :] = template[networks.num_searched :]
        # ``fixed_tensors`` (table, center and spread) and ``target`` are views of ``flat``, which changes with them.
        fixed_tensors, target = networks.fixed_tensors(flat), networks.split(flat)["target"]
        fixed_tensors["states.table"].copy_(unscale_states(states, fixed_tensors))
        # A table has few rows, so all of them are one batch, and few updates are enough.
        fitted_weights = fit(
            networks.mlps["target"], target, states, target_actions, updates=300, lr=1e-2, batch_size=None
        )
        target.copy_(fitted_weights)
        return flat

    def check_policy(self, source: str) -> bool:
        networks, discrete = self.parameters, isinstance(self.spaces.actions, Discrete)
        if not (networks.num_table_rows or networks.has_cells):
            line = f"start_from is {source!r}, a policy; allowed with it: proxy bandit and first_states table or cells"
            raise SettingError(line, "start_from")
        if self.spaces.one_hot and not networks.has_cells:
            line = f"first_states is 'table', but observations of {self.game} are cells"
            raise SettingError(f"{line}; allowed with a policy: cells", "first_states")
        if self._clones_values and (networks.has_target or not discrete):
            raise SettingError("clone_of is 'values'; allowed: with reward_form free and discrete actions", "clone_of")
        if not networks.has_target and not self._clones_values:
            line = f"reward_form is 'free', but clone_of is {networks.config.clone_of!r}"
            raise SettingError(f"{line}; allowed: {', '.join(FORMS)}", "reward_form")
        return self._clones_values

    def clone_policy(self, policy: Callable[[Tensor], Tensor], episodes: Any, streams: Streams) -> Tensor:
        """Return parameters ``[1, D]`` of a clone of ``policy``, a function from observations ``[N, S]`` to actions or
        action values. The clone is a bandit whose reward is highest for these actions, or equals these action values.

        ``episodes.states(count, limit, clone)`` returns observations ``[count, S]`` from episodes of the policy or,
        unless it is None, of ``clone``. The clone is fitted in states from episodes of the policy. Then states from
        episodes of the clone are added, and it is fitted again, ``dagger_rounds`` times (DAgger, Ross et al. 2011).
        Only a clone with a target network can play. If initial states are cells, the clone is fitted in all cells."""
        networks, config = self.parameters, self.parameters.config
        flat = networks.initial(streams)
        if networks.has_cells:
            return self._fit_to_policy(flat, policy, torch.eye(networks.state_size))
        states = episodes.states(self.num_scaling_obs, config.table_episodes)  # [N, S]
        dagger_rounds = config.dagger_rounds if networks.has_target else 0
        for _ in range(dagger_rounds):
            flat = self._fit_to_policy(flat, policy, states, _DAGGER_UPDATES)
            act = self._target_policy(flat)
            new_states = episodes.states(self.num_scaling_obs // 2, config.table_episodes, act)
            states = torch.cat([states, new_states])
            # The first of the states become the table of initial states, so old and new states are mixed.
            states = states[streams.uniform(len(states))[0].argsort()]
        flat = self._fit_to_policy(flat, policy, states)
        if networks.has_target and isinstance(self.spaces.actions, Discrete):
            flat = networks.limit_most_common_action(flat)
        return flat

    def _target_policy(self, flat: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the policy of the target network in the proxy ``flat [1, D]``: observations ``[N, S]`` -> actions."""
        target = self.parameters.target(flat)
        return lambda obs: target.act(obs[None])[0]

    def _fit_to_policy(
        self, flat: Tensor, policy: Callable[[Tensor], Tensor], states: Tensor, updates: int | None = None
    ) -> Tensor:
        """Make the proxy with the parameters ``flat [1, D]`` imitate the policy in ``states [N, S]``. Its target
        network is fitted to the policy's actions or, without a target, its reward network to the policy's action
        values, in ``updates`` updates (None: the default of `fit`). The first states become the table of initial
        states. Return the new parameters."""
        networks, config = self.parameters, self.parameters.config
        flat = networks.fill_table(flat, states[None])
        outputs = self._clone_outputs(policy(states))  # [N, A]
        if networks.has_target:
            name = "target"
            inputs = scale_states(states[None], networks.fixed_tensors(flat))[0]
        else:  # one row per observation and action, ordered by observation
            name = "reward"
            one_hot_actions = torch.eye(networks.action_size)
            repeated_actions = one_hot_actions.repeat(len(states), 1)
            repeated_states = states.repeat_interleave(networks.action_size, 0)
            inputs = torch.cat([repeated_actions, repeated_states], 1)
            outputs = outputs.flatten()[:, None]
        # Outputs for discrete actions are fitted as logits. With the setting ``pairs``, they are fitted as one-hot
        # vectors, because a search then uses them as the actions of pairs.
        has_logits = networks.has_target and isinstance(self.spaces.actions, Discrete) and config.pairs is None
        weights = networks.split(flat)[name]  # a view, so that ``flat`` changes with it
        fitted_weights = fit(
            networks.mlps[name], weights, inputs[None], outputs[None], cross_entropy=has_logits, updates=updates
        )
        weights.copy_(fitted_weights)
        return flat

    def _clone_outputs(self, results: Tensor) -> Tensor:
        """Convert the ``results`` of a policy in N states to outputs ``[N, A]`` of a network: action values ``[N, A]``
        are standardised, discrete actions ``[N]`` become one-hot, continuous actions ``[N, A]`` are scaled to [-1,
        1]."""
        actions = self.spaces.actions
        if self._clones_values:
            return (results - results.mean()) / results.std()
        if isinstance(actions, Discrete):
            return torch.eye(actions.n)[results]
        low, high = torch.tensor(actions.low), torch.tensor(actions.high)
        return (2 * (results - low) / (high - low) - 1).clamp(-1, 1)

    def starts(self, seeds: Tensor) -> Tensor:
        """Return initial observations ``[..., M, E, S]`` of the real environment for ``seeds [..., M, E]``. The first
        call opens this environment for a short time. Proxies that have initial states never call this method."""
        if self._starts is None:
            with contextlib.closing(make_environment(self.game, members=1, envs=8)) as real:
                self._starts = starts_of(real)
        return self._starts(seeds)

    @torch.no_grad()
    def forward(self, flat: Tensor, states: Any, actions: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Compute a step in the synthetic environment ``flat [1, D]``, from B ``states [B, S]`` with ``actions [B]`` or
        ``[B, A]``. Return next states ``[B, S]``, rewards ``[B]`` and terminations ``[B]`` bool."""
        batch_states, batch_actions = torch.as_tensor(states)[None].float(), torch.as_tensor(actions)[None]
        outcome = self.parameters.with_weights(flat).step(batch_states, batch_actions)
        return outcome.next_state[0], outcome.reward[0], outcome.done[0] > ENDS_ABOVE

    def initial_states(self, flat: Tensor, seeds: Sequence[int]) -> Tensor:
        """Return initial states ``[B, S]`` of the proxy with the parameters ``flat [1, D]``, for B ``seeds``."""
        dynamics = SyntheticDynamics(self.parameters.with_weights(flat), self.spaces, self.starts)
        return dynamics.initial(torch.tensor([list(seeds)]))[0]

    def environment(self, flat: Tensor, agent: Trainee) -> TensorEnvironment:
        scale = None
        if self.parameters.scales_obs:  # ``scale`` adapts the policies that train here to real observations
            scale, flat = self.parameters.fixed_tensors(flat), self.parameters.with_scaled_states(flat)
        dynamics = SyntheticDynamics(self.parameters.with_weights(flat), self.spaces, self.starts, scale)
        return TensorEnvironment(dynamics, agent.members, agent.envs)


def sample_observations(game: str, streams: Streams, count: int) -> Tensor | None:
    """Sample observations ``[M, count, S]`` that are spread over the range of observations, from M random streams.
    Return None if the range is unknown."""
    real: Any
    with contextlib.closing(make_environment(game, 1, 1)) as real:
        return real.sample_observations(streams, count)


def starts_of(environment: Environment, draws: int = 4096) -> Starts:
    """Return a function from seeds ``[..., M, E]`` to initial observations ``[..., M, E, S]`` of a real environment, so
    that it need not be reset for each of them. A tensor program computes them. For other environments, this call
    collects at least ``draws`` initial observations by resets, and the function selects one of them by each seed."""
    if isinstance(environment, TensorEnvironment):
        dynamics = environment.dynamics
        return lambda seeds: dynamics.observe(dynamics.initial(seeds))
    shape = environment.members, environment.envs
    num_resets = math.ceil(draws / math.prod(shape))
    reset_seeds = torch.arange(num_resets * math.prod(shape)).view(num_resets, *shape)
    observations = torch.cat([environment.reset(seeds).flatten(0, 1) for seeds in reset_seeds])
    return lambda seeds: observations[seeded.integers(seeds, len(observations))]
