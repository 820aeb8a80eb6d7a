"""The loop of agents that learn from whole episodes: an epoch is gradient steps and parallel episodes.

M is the number of members (independent agents, one per seed), E the number of parallel episodes of each.
"""

import math
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from control.cli.settings import Settings
from control.loops.loop import Loop, rounds
from control.loops.recordings import Recording
from control.loops.rollout import Episodes, rollout
from control.loops.stopping import RunningWindow
from envs.make import make_environment
from models.contract import EpisodeAgent, Policy, RandomPolicy
from models.family import EpisodeSchedule
from models.registry import agent_class
from models.streams import Streams
from models.trajectory import Trajectory

_STUCK_EPOCHS = 10  # number of epochs in a row with a collapsed member after which there is a warning


class EpisodeLoop(Loop):
    """`Loop` of an agent that learns from whole episodes. Its ``schedule`` defines an epoch."""

    evaluation_modes = ("greedy", "sampled")
    saved = (*Loop.saved, "stuck", "best_mean", "recent")

    def __init__(self, settings: Settings):
        super().__init__(settings)
        run, schedule = settings.run, settings.agent.schedule
        self.schedule: EpisodeSchedule = schedule
        self.command = settings.command  # overrides parts of the agent's command (the goals that it pursues, if any)
        open_environment = partial(
            make_environment, run.gamename, run.num_seeds, num_workers=run.num_workers, time_limit=run.time_limit
        )
        self.environment = open_environment(max(1, schedule.episodes))  # with 0 episodes, only its spaces are used
        self.agent: EpisodeAgent = agent_class(run.implementation)(settings.agent, self.environment.spaces, self.seeds)
        self.agent.budget = settings.total_steps  # None if the run has no limit of steps
        self.agents = [self.agent]
        # Evaluation has a separate environment if it needs more rows, because unused rows would cost time in training.
        needs_more_rows = run.eval_episodes > schedule.episodes
        self.evaluation = open_environment(run.eval_episodes) if needs_more_rows else self.environment
        self.eval_envs = self.evaluation.envs
        self.streams = Streams.from_name(self.seeds, "rollout")
        self.loss_tag = f"train/{self.agent.main_loss}"
        if not schedule.episodes:
            self.steps_kind = "recorded"
        if schedule.running_mean:
            self.score_tag, self.target = "rollout/return_running_mean", schedule.target
            self.score_name = f"mean return of the last {schedule.running_mean} episodes"
        # Latest training returns. Without a running mean they are not used, so the window has the smallest size.
        self.recent = RunningWindow(len(self.seeds), schedule.running_mean or 1)
        self.best_mean = torch.full((len(self.seeds),), -math.inf, dtype=torch.float64)
        self.stuck = 0  # number of latest epochs in a row with a collapsed member

    def warm_up(self) -> None:
        """Fill the agent's memory before the first epoch: with the recorded episodes of ``schedule.dataset``, if it is
        set, or with ``schedule.warm_up`` episodes of random play."""
        if self.schedule.dataset is not None:
            recording = Recording(self.schedule.dataset, self.game, self.environment.spaces)
            for trajectory in recording.trajectories(len(self.seeds)):
                self.agent.observe(trajectory)
        for count in rounds(self.schedule.warm_up, self.environment.envs):
            policy = RandomPolicy(self.environment.spaces, count, self.streams.fork())
            self.agent.observe(self._play(policy, count))

    def epoch(self) -> dict[str, Tensor]:
        """Make the gradient steps of an epoch, then play its episodes; on-policy agents play first (`Loop.epoch`)."""
        start = time.perf_counter()
        self.epochs += 1
        row: dict[str, Tensor] = {}
        if not self.schedule.on_policy:
            row |= self._learn()
        rollout_start = time.perf_counter()
        row |= self._explore()
        rollout_seconds = time.perf_counter() - rollout_start
        if self.schedule.on_policy:
            row |= self._learn()
        row |= self.agent.status()
        row["time/rollout"] = torch.full((len(self.seeds),), rollout_seconds)
        row["time/update"] = torch.full((len(self.seeds),), time.perf_counter() - start - rollout_seconds)
        return row

    def _learn(self) -> dict[str, Tensor]:
        """Make the epoch's gradient steps, and return their metrics, ``{tag: [M]}``. Warn about diverged members, and
        about members whose policy has collapsed (`EpisodeAgent.has_collapsed`) for `_STUCK_EPOCHS` epochs."""
        metrics = self.agent.learn()
        self.gradient_steps += self.schedule.gradient_steps
        self._check_members(metrics[self.agent.main_loss])
        collapsed_members, text = self.agent.has_collapsed(metrics)  # [M] bool, and a text for the warning
        self.stuck = self.stuck + 1 if collapsed_members.any() else 0
        if self.stuck == _STUCK_EPOCHS:
            self._warn(f"for {_STUCK_EPOCHS} epochs {text}")
        return {f"train/{name}": numbers for name, numbers in metrics.items()}

    def _explore(self) -> dict[str, Tensor]:
        """Play the epoch's training episodes, let the agent store them, and return their statistics, ``{tag: [M]}``.
        An agent that learns from recorded episodes plays none; then count the steps in the epoch's minibatches."""
        # Means of the commands in the next episodes. A command is a goal that some agents pursue, such as a return.
        commands = {f"rollout/command_{name}": numbers for name, numbers in self.agent.mean_commands().items()}
        if not self.schedule.episodes:
            self.env_steps = self.env_steps + self.schedule.minibatch_steps
            return commands
        count, streams = self.schedule.episodes, self.streams.fork()
        if self.epochs <= self.schedule.random_epochs:
            policy: Policy = RandomPolicy(self.environment.spaces, count, streams)
        else:
            policy = self.agent.begin(count, streams, sample=True, command=self.command)
        trajectory = self._play(policy, count)
        row: dict[str, Tensor] = {}
        if self.schedule.running_mean:
            members = torch.arange(len(self.seeds))
            self.recent.add(members.repeat_interleave(count), trajectory.returns.flatten())
            mean = self.recent.mean(members, self.schedule.running_mean)
            self.best_mean = torch.maximum(self.best_mean, mean)
            row = {"rollout/return_running_mean": mean, "rollout/return_running_best": self.best_mean}
        row |= {
            "rollout/return_mean": trajectory.returns.mean(1),
            "rollout/return_std": trajectory.returns.std(1, correction=0),
            "rollout/return_max": trajectory.returns.amax(1),
            "rollout/return_min": trajectory.returns.amin(1),
            "rollout/length_mean": trajectory.lengths.float().mean(1),
        }
        validation = self.agent.observe(trajectory, validate=True)
        return row | commands | {f"train/{name}": numbers for name, numbers in validation.items()}

    def _play(self, policy: Policy, count: int) -> Trajectory:
        """Play ``count`` training episodes of every member with ``policy``, check their returns, and count steps."""
        trajectory = rollout(policy, self.environment, self.streams.episode_seeds(count))
        self._check_returns(trajectory.returns.isfinite())
        self.env_steps = self.env_steps + trajectory.lengths.sum(1)
        return trajectory

    def has_reached_target(self) -> bool:
        """Return whether the mean return of the latest training episodes has reached the ``target``."""
        if self.target is None or self.epochs == 0:
            return False
        assert self.schedule.running_mean is not None  # only then there is a target
        means = self.recent.mean(torch.arange(len(self.seeds)), self.schedule.running_mean)  # [M]
        return float(means.mean()) >= self.target

    def _play_round(self, count: int, sample: bool, record_actions: bool) -> Episodes:
        """Play ``count`` evaluation episodes of every member. See `Loop._play_round`."""
        streams = self.evaluation_streams
        policy = self.policy(streams.fork(), sample, count)
        return self._play_policy(policy, self.evaluation, streams.episode_seeds(count), record_actions)

    def policy(self, streams: Streams, sample: bool = False, envs: int = 1) -> Policy:
        return self.agent.begin(envs, streams, sample=sample, evaluate=True, command=self.command)

    def state_dict(self, resumable: bool = True) -> dict[str, Any]:
        """Add the agent's training state as ``agent`` to `Loop.state_dict`, None without ``resumable``."""
        agent = self.agent.training_state() if resumable else None
        return super().state_dict() | {"agent": agent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.agent.load_training_state(state["agent"])

    def close(self) -> None:
        self.environment.close()
        if self.evaluation is not self.environment:
            self.evaluation.close()
