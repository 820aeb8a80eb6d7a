"""The base class of both loops of a run: members, counters, evaluation, and warnings about diverged members.

M is the number of members, the run's seeds: each is an independent agent, and all are trained together. E is the number
of environments of each member, O the shape of an observation, A the size of a continuous action.
"""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from control.cli.colour import warning
from control.cli.progress import Watch
from control.cli.settings import Settings
from control.loops.rollout import Episodes, play_episodes, rollout
from envs.base import Environment, EnvironmentFault
from models.contract import Agent, Policy
from models.settings import SettingError, UserError
from models.state import Stateful
from models.streams import Streams
from models.trajectory import Trajectory


class Loop(Stateful, ABC):
    """Trains the M members of a run, one for each of ``seeds [M]``, epoch by epoch, and evaluates them.

    The members are rows of the tensors of ``agents``; most loops have one agent. ``env_steps [M]`` and
    ``gradient_steps`` count from the start of the run.
    """

    agents: list[Agent]
    evaluation_modes: tuple[str, ...]  # some of "greedy" and "sampled"
    eval_envs: int  # environments per member in an evaluation
    # Indices [M] that put the members of all agents, one agent after another, into the order of ``seeds``.
    member_order: slice | Tensor = slice(None)
    saved: ClassVar[tuple[str, ...]] = ("epochs", "env_steps", "gradient_steps")
    loss_tag: str  # tag of the loss in the progress line
    score_tag = "eval/return_greedy"  # tag of the score that selects the best checkpoint
    score_name = "mean greedy return"  # the score in words
    steps_kind = "environment"  # the kind of steps that `env_steps` counts, as the summary of a run names it
    compiled = False  # whether agents train in machine code
    continuing = False  # whether the environment has no episodes
    target: float | None = None  # score that ends the run, if the agent's settings define one
    watch: Watch | None = None  # called with the finished fraction of the epoch during a long epoch
    actions: dict[str, Tensor] = {}  # the first member's actions in the latest evaluation, by mode, [N] or [N, A]
    trajectories: list[Trajectory] | None = None  # collects the episodes of evaluations
    varies = False  # whether some member had different greedy returns in the latest evaluation

    def __init__(self, settings: Settings):
        run, self.settings = settings.run, settings
        self.seeds = list(range(run.seed, run.seed + run.num_seeds))
        self.game, self.eval_episodes = run.gamename, settings.schedule.eval_episodes
        self.epochs = 0  # number of epochs that have begun
        self.env_steps = torch.zeros(run.num_seeds, dtype=torch.int64)
        self.gradient_steps = 0
        self.evaluation_streams = Streams.from_name(self.seeds, "evaluation")
        self.finite_members = torch.ones(run.num_seeds, dtype=torch.bool)  # whether a member's weights are finite
        self._warned: set[str] = set()

    @abstractmethod
    def warm_up(self) -> None:
        """Do the work that precedes the first epoch of a run."""

    def compile_ahead(self) -> None:  # noqa: B027  # most loops have nothing to compile
        """Compile the functions that training needs, before it begins."""

    @abstractmethod
    def epoch(self) -> dict[str, Tensor]:
        """Train for one epoch and return its measurements, ``{tag: [M]}``. Raises UserError if all members diverged."""

    @abstractmethod
    def _play_round(self, count: int, sample: bool, record_actions: bool) -> Episodes:
        """Play ``count`` evaluation episodes of every member in parallel, at most ``eval_envs``. Actions are greedy or,
        with ``sample``, sampled. With ``record_actions``, the result has the first member's actions."""

    @abstractmethod
    def policy(self, streams: Streams, sample: bool = False, envs: int = 1) -> Policy:
        """Return a policy of the first of ``agents``, whose first member is the run's first member. It plays ``envs``
        parallel episodes of each member, with sampled actions if ``sample`` and the agent has any. ``streams`` has the
        random numbers of each of the run's members."""

    @abstractmethod
    def close(self) -> None:
        """Close the environments."""

    def state_dict(self, resumable: bool = True) -> dict[str, Any]:
        """Return the state that a resumed run needs in addition to weights and optimisers: the attributes in ``saved``
        and the states of all random streams. Subclasses add the agents' training state if ``resumable``."""
        return super().state_dict() | {name: streams.get_state() for name, streams in self._streams_by_name().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict` with ``resumable``. Raises StateError if it does not fit this loop."""
        super().load_state_dict(state)
        for name, streams in self._streams_by_name().items():
            streams.set_state(state[name])

    def _streams_by_name(self) -> dict[str, Streams]:
        """Return the random streams of this loop: its attributes that are `Streams`."""
        return {name: attribute for name, attribute in vars(self).items() if isinstance(attribute, Streams)}

    def evaluate(self, episodes: int, sample: bool = False, record_actions: bool = False) -> Episodes:
        """Play ``episodes`` episodes of every member, with greedy or sampled actions (``sample``). No agent learns from
        them. If ``record_actions``, the result has the first member's actions."""
        round_sizes = rounds(episodes, self.eval_envs)
        return Episodes.concatenate([self._play_round(size, sample, record_actions) for size in round_sizes])

    def _play_policy(self, policy: Policy, environment: Environment, seeds: Tensor, record_actions: bool) -> Episodes:
        """Play an evaluation episode of ``policy`` for each of ``seeds [M, E]``. If the attribute ``trajectories`` is a
        list, all steps of the episodes are appended to it, and the result has no separate actions."""
        if self.trajectories is None:
            return play_episodes(policy, environment, seeds, record_actions)
        trajectory = rollout(policy, environment, seeds)
        self.trajectories.append(trajectory)
        return Episodes(trajectory.returns, trajectory.lengths)

    def measure(self) -> dict[str, Tensor]:
        """Evaluate every member in ``eval_episodes`` episodes of each of the ``evaluation_modes``. Return ``{tag:
        [M]}``: the mean return in each mode, the mean length of greedy episodes and, in an environment without
        episodes, the mean reward of a greedy step. Also set ``actions`` and ``varies``."""
        episodes_by_mode: dict[str, Episodes] = {}
        row: dict[str, Tensor] = {}
        for mode in self.evaluation_modes:
            episodes = self.evaluate(self.eval_episodes, sample=(mode == "sampled"), record_actions=True)
            episodes_by_mode[mode] = episodes
            row[f"eval/return_{mode}"] = episodes.returns.mean(1)
            if episodes.actions is not None:
                self.actions = {**self.actions, mode: episodes.actions}
        greedy_episodes = episodes_by_mode["greedy"]
        self.varies = bool((greedy_episodes.returns != greedy_episodes.returns[:, :1]).any())
        row["eval/length_greedy"] = greedy_episodes.lengths.float().mean(1)
        if self.continuing:
            row["eval/reward_rate"] = (greedy_episodes.returns / greedy_episodes.lengths).mean(1)
        return row

    def second_score(self) -> Tensor:
        """Return the mean greedy returns ``[M]`` of a second evaluation, in as many episodes as `measure` plays, but
        from other seeds. It restores all random streams, so training and later evaluations do not depend on it."""
        with self.preserve_streams():
            name = f"second evaluation after epoch {self.epochs}"
            self.evaluation_streams.set_state(Streams.from_name(self.seeds, name).get_state())
            return self.evaluate(self.eval_episodes).returns.mean(1)

    @contextlib.contextmanager
    def preserve_streams(self) -> Iterator[None]:
        """Context manager that restores all random streams, so that evaluations in it have no effect afterwards."""
        saved_states = [(streams, streams.get_state()) for streams in self._streams_by_name().values()]
        try:
            yield
        finally:
            for streams, state in saved_states:
                streams.set_state(state)

    def has_reached_target(self) -> bool:
        """Return whether the score has reached ``target``, if the loop can compute it without an evaluation."""
        return False

    def _check_returns(self, is_finite: Tensor) -> None:
        """Raise EnvironmentFault if some returns are not finite, according to the mask ``is_finite``."""
        if not is_finite.all():
            text = "the rewards of an episode add up to nan or to more than a float holds; every reward must be finite"
            raise EnvironmentFault(f"environment {self.game}: {text}")

    def _check_members(self, losses: Tensor) -> None:
        """Warn about each member whose loss in ``losses [M]`` or whose weights are not finite. Set ``finite_members``,
        the mask ``[M]`` of members with finite weights. Raises UserError if no member has finite weights."""
        for seed, loss in zip(self.seeds, losses.tolist(), strict=True):
            if not math.isfinite(loss):
                self._warn(f"seed {seed}: the loss is {loss}", f" since epoch {self.epochs}; {self.agents[0].advice}")
        masks: list[Tensor] = []  # a mask [members] for each agent
        for agent in self.agents:
            is_finite = torch.ones(agent.members, dtype=torch.bool)
            for weights in agent.parameters():  # [members, ...] each
                sums = weights.detach().reshape(agent.members, -1).sum(1)  # not finite if one of the terms is not
                is_finite &= sums.isfinite().cpu()
            masks.append(is_finite)
        self.finite_members = torch.cat(masks)[self.member_order]
        for seed, has_finite_weights in zip(self.seeds, self.finite_members.tolist(), strict=True):
            if not has_finite_weights:
                self._warn(f"seed {seed}: weights are no longer finite", f" (epoch {self.epochs}); it cannot recover")
        if not self.finite_members.any():
            problem = f"the weights are no longer finite (epoch {self.epochs}), so training stops"
            raise UserError(f"{problem}; earlier checkpoints are kept: {self.agents[0].advice}")

    def _warn(self, text: str, details: str = "") -> None:
        """Print the warning ``text + details``, unless this loop has printed a warning with the same ``text``."""
        if text not in self._warned:
            self._warned.add(text)
            warning(text + details)


def as_observations(
    observations: ArrayLike | Tensor, shape: Sequence[int], device: torch.device | None = None
) -> Tensor:
    """Convert observations ``[B, *O]``, or a single observation ``[*O]``, to a tensor on ``device``. ``shape`` is O,
    such as ``(4,)``. Raises SettingError for another shape, and for values that are no numbers."""
    obs_shape = list(shape)
    try:
        array = observations if isinstance(observations, Tensor) else np.asarray(observations)
        obs = torch.as_tensor(array, device=device)
        num_batch_axes = obs.dim() - len(obs_shape)
        if num_batch_axes in (0, 1) and list(obs.shape[num_batch_axes:]) == obs_shape:
            return obs
        problem = f"have shape {list(obs.shape)}"
    except (TypeError, ValueError, RuntimeError):
        problem = f"are of type {type(observations).__name__}, which is no array of numbers"
    allowed = f"{obs_shape}, or [B, {', '.join(map(str, shape))}] for B of them"
    raise SettingError(f"observations {problem}; allowed: {allowed}")


def first_member_actions(policy: Policy, obs: Tensor) -> Tensor:
    """Return the first member's actions, ``[E]`` or ``[E, A]``, for ``obs [E, *O]`` of any dtype."""
    obs = obs if obs.dtype == torch.uint8 else obs.float()  # agents take images as bytes
    member_obs = obs.expand(policy.members, *obs.shape)  # [M, E, *O], the same for every member
    return policy.act(member_obs)[0]


def rounds(episodes: int, envs: int) -> list[int]:
    """Split ``episodes`` episodes into rounds of at most ``envs`` parallel episodes. Return the sizes of the rounds,
    such as ``[10, 10, 5]`` for 25 episodes in 10 environments."""
    return [min(envs, episodes - first) for first in range(0, episodes, envs)]
