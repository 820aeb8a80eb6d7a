"""Loops of agents that learn between the steps of their environments. `StepLoop` trains members that share tensors,
`StepGroups` trains several groups of members.

M is the number of members (independent agents, one per seed), whose numbers are rows of the same tensors. E is the
number of environments of each. A block is the random numbers of `BLOCK` steps, which are sampled in one call.
"""

import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from control.cli.progress import Watch, watch_part
from control.cli.settings import Settings
from control.loops.loop import Loop
from control.loops.rollout import Episodes
from envs.base import Environment
from envs.make import make_environment
from envs.names import GAMES
from envs.tensor import TensorEnvironment
from models.contract import Policy, StepAgent
from models.registry import agent_class
from models.settings import SettingError
from models.state import check_like, require
from models.streams import Blocks, Streams

_LARGE_OBSERVATION = 100.0  # absolute value of a number in an observation from which a warning is printed
BLOCK = 128  # number of steps for which initial states are sampled at once
STATE_NAMES = ("steps", "obs", "agent_obs", "returns", "lengths", "seeds")  # attributes of `StepLoop` in its state


class EndedEpisodes(NamedTuple):
    """N episodes that ended: their ``members`` (in ascending order), ``returns``, ``lengths``, and the ``steps`` of the
    loop after which they ended, ``[N]`` each."""

    members: Tensor
    returns: Tensor
    lengths: Tensor
    steps: Tensor

    def select_members(self, mask: Tensor) -> "EndedEpisodes":
        """Return the episodes of the members in the ``mask [M]``."""
        is_selected = mask[self.members]  # [N]
        return EndedEpisodes(*(field[is_selected] for field in self))


class InitialStates(Blocks):
    """Samples seeds and initial states of episodes in blocks of ``BLOCK`` steps: a seed and a state for every step of
    every environment, used if an episode begins there. So a start does not depend on the lengths of other episodes."""

    def __init__(self, streams: Streams, environment: Environment, envs: int):
        super().__init__(streams)
        self.environment, self.envs = environment, envs

    def draw_block(self) -> dict[str, Tensor]:
        """Sample ``seeds [M, BLOCK, E]``, and compute the initial states ``starts [M, BLOCK, E, ...]``."""
        seeds = self.streams.episode_seeds(BLOCK, self.envs)
        starts_by_step = self.environment.prepare_resets(seeds.transpose(0, 1))  # [BLOCK, M, E, ...]
        return {"seeds": seeds, "starts": starts_by_step.transpose(0, 1)}


class StepLoop:
    """The training loop of an agent that learns between the steps of its environments: it repeats ``act, step, observe,
    learn`` for all M members of the agent. An environment restarts as soon as its episode ends. ``streams`` sample the
    seeds of the episodes."""

    def __init__(self, agent: StepAgent, environment: Environment, streams: Streams):
        self.agent, self.environment, self.streams = agent, environment, streams
        self.learner: Any = agent  # acts, observes and learns: the agent, or its machine code
        self.machine_code: Any = None  # `control.loops.compiled.MachineCode`, which makes the steps if it is set
        self.steps = 0
        self.obs: Tensor | None = None
        # Observations for the agent, if they differ from `obs`: some agents act once more after the end of an episode.
        self.agent_obs: Tensor | None = None
        shape, device = (agent.members, agent.envs), agent.device
        self.returns = torch.zeros(shape, device=device)
        self.lengths = torch.zeros(shape, dtype=torch.int64, device=device)
        self.seeds = torch.zeros(shape, dtype=torch.int64, device=streams.device)  # seeds of the current episodes
        self.loss = torch.full((agent.members,), torch.nan, device=device)
        self._all_learn = False  # whether all members have begun to make updates
        self._initial_states = InitialStates(streams, environment, agent.envs)

    def step(self) -> EndedEpisodes | None:
        """Make one step of every environment, and the updates of the agent that are due after it. Return the episodes
        that ended, or None."""
        agent, learner, environment = self.agent, self.learner, self.environment
        if self.obs is None:
            self.obs = self.start_episodes(None)
        obs = self.obs if self.agent_obs is None else self.agent_obs
        if agent.knows_dynamics and environment.state is not None:  # None if it is no tensor program
            agent.visit(environment.state)
        action = learner.act(obs)
        step = environment.step(action)
        done = step.terminated | step.truncated
        discount = step.discount  # the factor of the next value in a target; None: 0 after a termination, else 1
        if discount is None:
            discount = (~step.terminated).float()
        learner.observe(obs, action, step.obs, step.reward, discount, done)
        self.loss = learner.learn()
        self.returns = self.returns + step.reward
        self.lengths = self.lengths + 1
        self.obs = step.obs
        self.agent_obs = step.obs if agent.acts_on_stale else None
        self.steps += 1
        if not done.any():
            return None
        indices = done.view(-1).nonzero().view(-1)  # member * E + environment
        returns, lengths = self.returns.take(indices), self.lengths.take(indices)
        episodes = EndedEpisodes(indices // agent.envs, returns, lengths, torch.full_like(indices, self.steps))
        self.returns.masked_fill_(done, 0.0)
        self.lengths.masked_fill_(done, 0)
        self.obs = self.start_episodes(done)
        return episodes

    def epoch(self, steps: int, watch: Watch | None = None) -> dict[str, Tensor]:
        """Train for ``steps`` steps of every environment. Return tensors ``[M]`` by name:

        - ``loss``, ``return``, ``length``: means over the epoch, NaN without data
        - ``updated``: number of steps with updates; ``updates``: number of updates
        - ``finite``: whether the returns are finite
        - the agent's `metrics` and `status` by tag
        """
        if self.machine_code is not None:
            return self.machine_code.epoch(self, steps, watch)  # type: ignore[no-any-return]
        return self.epoch_by_steps(steps, watch)

    def epoch_by_steps(self, steps: int, watch: Watch | None = None) -> dict[str, Tensor]:
        """Train for an epoch step by step, without machine code. Return the same dictionary as `epoch`."""
        members, device = self.agent.members, self.agent.device
        losses = []
        waiting_steps = torch.zeros(members, dtype=torch.int64, device=device)  # steps before a member could learn
        # Of each member [M]: the number of finished episodes, and the sums of their returns and lengths.
        counts, returns, lengths = torch.zeros(3, members, dtype=torch.float64, device=device).unbind()
        self.agent_obs = None  # an epoch begins with current observations, even if ``acts_on_stale``
        for steps_done in range(steps):
            if watch is not None:
                watch(steps_done / steps)
            episodes = self.step()
            losses.append(self.loss)
            if not self._all_learn:  # a member that learns never stops learning
                learners = self.agent.learning_members()  # [M] bool
                waiting_steps += ~learners
                self._all_learn = bool(learners.all())
            if episodes is not None:
                counts.index_add_(0, episodes.members, torch.ones_like(episodes.returns, dtype=torch.float64))
                returns.index_add_(0, episodes.members, episodes.returns.double())
                lengths.index_add_(0, episodes.members, episodes.lengths.double())
        return self._results(torch.stack(losses, 1), waiting_steps, counts, returns, lengths)

    def _results(
        self, losses: Tensor, waiting_steps: Tensor, counts: Tensor, returns: Tensor, lengths: Tensor
    ) -> dict[str, Tensor]:
        """Compute the dictionary that `epoch` returns. ``losses [M, T]`` are the losses after each step. All other
        arguments are ``[M]``: the number of ``waiting_steps`` before a member could learn, the number of finished
        episodes (``counts``), and the sums of their ``returns`` and ``lengths``."""
        steps = losses.shape[1]
        is_before_learning = torch.arange(steps, device=losses.device) < waiting_steps.unsqueeze(1)  # [M, T]
        learning_steps = steps - waiting_steps
        # Steps are the contiguous axis, so that a sum adds in the same order, and rounds equally, for any M.
        loss_sums = losses.double().masked_fill(is_before_learning, 0.0).sum(1)
        results = {
            "loss": loss_sums / learning_steps,
            "return": returns / counts,
            "length": lengths / counts,
            "updated": learning_steps,
            "finite": returns.isfinite(),
            "updates": self.agent.updates(steps, learning_steps),
        }
        metrics = self.agent.metrics()
        if self.agent.learns_from_rollouts:  # their statistics do not change between updates: log each only once
            has_updates = results["updates"] > 0  # [M]
            metrics = {tag: values.where(has_updates, torch.nan) for tag, values in metrics.items()}
        results |= metrics
        results |= self.agent.status()
        return {name: value.cpu() for name, value in results.items()}

    def advance(self, count: int, running: Tensor, pause: bool) -> Iterator[EndedEpisodes]:
        """Make ``count`` steps, and yield the episodes that end in them. After each yield, the caller may set elements
        of ``running [M]`` to False, to end the training of these members. If none is left, there are no more steps.
        ``pause`` is an argument of `CompiledLoop.advance`, without effect if Python steps the environment."""
        if self.machine_code is not None:
            yield from self.machine_code.advance(self, count, running, pause)
        else:
            yield from self.advance_by_steps(count, running)

    def advance_by_steps(self, count: int, running: Tensor) -> Iterator[EndedEpisodes]:
        """Make the steps of `advance` in Python. Members that are not ``running [M]`` make them too."""
        for _ in range(count):
            if not running.any():
                return
            episodes = self.step()
            if episodes is not None:
                yield episodes

    def take_initial_states(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the seeds ``[M, T, E]`` and the initial states ``[M, T, E, ...]`` of episodes that may begin after
        each of the next T = ``count`` steps, for machine code."""
        seeds, states = [], []
        first_step, end_step = self.steps + 1, self.steps + 1 + count
        for block_start in range(first_step // BLOCK * BLOCK, end_step, BLOCK):
            block = self._initial_states_at(block_start).block  # tensors [M, BLOCK, E, ...]
            first_row = max(0, first_step - block_start)
            end_row = min(BLOCK, end_step - block_start)
            seeds.append(block["seeds"][:, first_row:end_row])
            states.append(block["starts"][:, first_row:end_row])
        return torch.cat(seeds, 1), torch.cat(states, 1)

    def prepare_random_numbers(self, steps: int) -> None:
        """Sample in advance the random numbers that follow the next ``steps`` steps. Called by a second thread while
        these steps are made. Do nothing if training ends with them."""
        agent: Any = self.agent
        first_step = self.steps + steps
        end_of_training = agent.budget // agent.envs
        if first_step < end_of_training:
            agent.noise.get_ready()
            last_step = min(first_step + BLOCK, end_of_training)
            if self._initial_states.number < last_step // BLOCK:  # another block will be needed
                self._initial_states.prepare()

    def start_episodes(self, mask: Tensor | None) -> Tensor:
        """Start an episode in the environments in ``mask [M, E]`` (None: in all). Return the observations of all
        environments, ``[M, E, *O]``."""
        starts = self._initial_states_at(self.steps).random_numbers_at(self.steps % BLOCK)  # `InitialStates.draw_block`
        seeds = starts["seeds"]
        self.seeds = seeds if mask is None else torch.where(mask.to(seeds.device), seeds, self.seeds)
        return self.environment.reset_prepared(starts["starts"], mask)

    def _initial_states_at(self, step: int) -> InitialStates:
        """Sample blocks of initial states until the current block contains ``step``, and return the sampler."""
        while self._initial_states.number < step // BLOCK:
            self._initial_states.next_block()
        return self._initial_states

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state of training, except the agent's weights: the attributes in `STATE_NAMES`, ``block``
        (number of the current block of initial states), ``streams`` (random state before this block), ``agent``
        (`Agent.training_state`) and ``environment`` (`Environment.snapshot`)."""
        return {
            **{name: getattr(self, name) for name in STATE_NAMES},
            "block": self._initial_states.number,
            "streams": self._initial_states.block_start,
            "agent": self.agent.training_state(),
            "environment": self.environment.snapshot(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict` in a new loop. Raises StateError if the state does not fit the loop."""
        self.agent.load_training_state(state["agent"])
        spaces = self.environment.spaces
        obs = torch.empty(*self.returns.shape, *spaces.obs_shape, dtype=spaces.obs_dtype)
        for name in STATE_NAMES:
            value, current_value = state[name], getattr(self, name)
            if name == "obs" or (name == "agent_obs" and value is not None):
                current_value = obs  # a new loop has None, with which the saved observations cannot be compared
            check_like(current_value, value, name)
            device = self.streams.device if name == "seeds" else self.agent.device
            setattr(self, name, value.to(device) if isinstance(value, Tensor) else value)
        # Move the streams to the saved block of random numbers. Its number is -1 before the first block.
        block, last_block = state["block"], self.steps // BLOCK
        require(block in range(-1, last_block + 1), "a block of initial states", f"is {block}", f"-1 to {last_block}")
        self._initial_states.seek(state["streams"], block)
        self.environment.restore(state["environment"])


class Group(StepLoop):
    """The `StepLoop` of the ``members`` of a run (their indices) whose networks have one shape, so that they can share
    tensors. ``num_workers`` is the number of processes that step an environment. Raises SettingError if the agent needs
    the environment as a tensor program (`TensorEnvironment`), and it is none."""

    def __init__(self, settings: Settings, members: Sequence[int], num_workers: int):
        run, config, schedule = settings.run, settings.agent, settings.schedule
        agent_type = agent_class(run.implementation)
        device = torch.device("cuda" if run.accelerator == "gpu" else "cpu")
        self.members = torch.tensor(members)
        seeds = [run.seed + member for member in members]
        open_environment = partial(make_environment, run.gamename, len(members), num_workers=num_workers, device=device)
        # 0 is no limit, and None is the game's limit.
        training_limit = 0 if run.time_limit is None and schedule.endless else run.time_limit
        environment = open_environment(config.num_envs, time_limit=training_limit)
        dynamics = environment.device_dynamics if isinstance(environment, TensorEnvironment) else None
        if dynamics is None and agent_type.needs_dynamics(config):
            supported = ", ".join(entry.name for entry in GAMES.values() if entry.dynamics)
            line = f"gamename is {run.gamename!r}, whose states cannot be copied"
            raise SettingError(f"{line}; allowed for {run.implementation}: {supported}", "gamename")
        options = {"dynamics": dynamics, "device": device} if agent_type.knows_dynamics else {}
        agent = agent_type(config, environment.spaces, seeds, **options)
        super().__init__(agent, environment, Streams.from_name(seeds, "episodes"))
        eval_limits = [limit for limit in (schedule.eval_steps, run.time_limit) if limit is not None]
        eval_limit = min(eval_limits, default=None)  # None: the environment's limit
        self.evaluation = open_environment(schedule.eval_episodes, time_limit=eval_limit)  # environment of evaluations


class StepGroups(Loop):
    """`Loop` of members that learn step by step.

    If networks have different shapes (``vary_hp``), members form several groups, which are trained one after another.
    Groups do not affect results. An epoch has ``steps_per_epoch`` steps of every member, rounded up to whole steps of
    its E environments. Episodes continue from epoch to epoch. ``budget`` is the number of steps of a member in the run.
    """

    evaluation_modes = ("greedy",)
    # The budget is saved, because exploration must not start again when a resumed run gets longer.
    saved = (*Loop.saved, "updates", "budget")

    def __init__(self, settings: Settings):
        super().__init__(settings)
        run, schedule = settings.run, settings.schedule
        members_by_group = agent_class(run.implementation).groups(settings.agent, self.seeds)  # indices in `seeds`
        num_workers = max(1, run.num_workers // len(members_by_group))
        self.groups = groups = [Group(settings, members, num_workers) for members in members_by_group]
        self.agents = [group.agent for group in groups]
        self.envs, self.eval_envs = groups[0].agent.envs, groups[0].evaluation.envs
        self.continuing = schedule.continuing
        self.loss_tag = f"train/{groups[0].agent.main_loss}"
        # Puts the concatenated results of the groups into the order of the run's members.
        self.member_order = torch.cat([group.members for group in groups]).argsort()
        self.steps = math.ceil(schedule.steps_per_epoch / self.envs)  # steps of each environment per epoch
        assert settings.epochs is not None  # because an epoch has a fixed number of steps
        self.budget = settings.epochs * self.steps * self.envs  # steps of a member in all its environments
        self.updates = torch.zeros(len(self.seeds), dtype=torch.int64)
        self.acting_streams = Streams.from_name(self.seeds, "latents of evaluations")  # random numbers of policies

    def warm_up(self) -> None:
        """Warn if the run ends before the first update."""
        first = self.groups[0].agent.first_update
        if first > self.budget:
            line = f"the run has {self.budget:,} steps a seed, and the first update comes with step {first:,}"
            self._warn(f"nothing will be learned: {line}")

    def compile_ahead(self) -> None:
        for group in self.groups:
            if group.machine_code is not None:
                group.machine_code.compile_ahead(group, group.evaluation)

    def epoch(self) -> dict[str, Tensor]:
        """Train the groups one after another, ``steps`` steps of every environment. See `Loop.epoch`."""
        start = time.perf_counter()
        self.epochs += 1
        results = []
        fraction = 1 / len(self.groups)  # share of each group in the epoch's progress
        for i, group in enumerate(self.groups):
            group.agent.budget = self.budget  # schedules of the agent depend on it
            results.append(group.epoch(self.steps, watch_part(self.watch, i * fraction, fraction)))
        metrics = {name: torch.cat([result[name] for result in results])[self.member_order] for name in results[0]}
        self._check_returns(metrics["finite"])
        self._check_scale()
        self.env_steps = self.env_steps + self.steps * self.envs
        self.updates = self.updates + metrics["updates"]
        self.gradient_steps = int(self.updates.max())
        seconds = torch.full((len(self.seeds),), time.perf_counter() - start)
        has_learned = metrics["updated"] > 0
        self._check_members(metrics["loss"].where(has_learned, 0.0))  # before the first update, the loss is NaN
        row = {
            self.loss_tag: metrics["loss"].where(metrics["updates"] > 0, torch.nan),
            "rollout/return_mean": metrics["return"],
            "rollout/length_mean": metrics["length"],
            "train/gradient_steps": self.updates,
        }
        row |= {tag: values for tag, values in metrics.items() if "/" in tag}  # the agents' metrics and status
        return row | {"time/train": seconds}

    def _check_scale(self) -> None:
        """Warn if observations are much larger than 1, because networks learn slowly from them. Images, cells and
        observations that the agent normalises are not checked, and only the last observations of an epoch are."""
        agent, obs = self.groups[0].agent, self.groups[0].obs
        is_scaled = agent.spaces.is_image or agent.spaces.one_hot or getattr(agent.config, "normalize_obs", False)
        largest = 0.0 if obs is None or is_scaled else float(obs.abs().max())
        if largest > _LARGE_OBSERVATION:
            advice = "--normalize_obs and --normalize_reward"
            if not hasattr(agent.config, "normalize_obs"):
                advice = "a wrapper around the environment, such as gymnasium.wrappers.RescaleObservation"
            self._warn("networks learn slowly from large observations", f", here {largest:,.4g}; try {advice}")

    def _play_round(self, count: int, sample: bool, record_actions: bool) -> Episodes:
        """Play greedy episodes of every group, in machine code if possible. See `Loop._play_round`."""
        assert not sample  # "sampled" is not among the `evaluation_modes`
        seeds = self.evaluation_streams.episode_seeds(count)  # [M, count]
        streams = self.acting_streams.fork()
        group_episodes: list[Episodes] = []
        for group in self.groups:
            members = group.members
            policy = group.agent.begin(count, streams.subset(members), sample=False, evaluate=True)
            episodes = None
            if group.machine_code is not None and self.trajectories is None:  # machine code keeps no trajectories
                episodes = group.machine_code.play(policy, group.evaluation, seeds[members], record_actions)
            if episodes is None:
                episodes = self._play_policy(policy, group.evaluation, seeds[members], record_actions)
            group_episodes.append(episodes)
        returns = torch.cat([episodes.returns for episodes in group_episodes])[self.member_order]
        lengths = torch.cat([episodes.lengths for episodes in group_episodes])[self.member_order]
        return Episodes(returns, lengths, group_episodes[0].actions)  # the first group has the first member

    def policy(self, streams: Streams, sample: bool = False, envs: int = 1) -> Policy:
        first = self.groups[0]  # contains the run's first member
        return first.agent.begin(envs, streams.subset(first.members), sample=sample, evaluate=True)

    def state_dict(self, resumable: bool = True) -> dict[str, Any]:
        """Add the states of the groups as ``groups`` to `Loop.state_dict`, None without ``resumable``."""
        groups = [group.state_dict() for group in self.groups] if resumable else None
        return {**super().state_dict(), "groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict` with ``resumable``, including its ``budget``. Warn if the run is now longer, but its
        learning rate is annealed to 0 by the former end."""
        new_budget = self.budget
        super().load_state_dict(state)
        if new_budget > self.budget and getattr(self.groups[0].agent.config, "anneal_lr", False):
            self._warn(f"steps after {self.budget:,} learn nothing: anneal_lr has lowered the learning rate to 0")
        for group, group_state in zip(self.groups, state["groups"], strict=True):
            group.load_state_dict(group_state)
            steps = {group.steps, group.agent.steps}
            require(steps == {self.epochs * self.steps}, "steps", f"are {steps}", f"those of {self.epochs} epochs")

    def close(self) -> None:
        for group in self.groups:
            group.environment.close()
            group.evaluation.close()
