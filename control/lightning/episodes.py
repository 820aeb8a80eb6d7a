"""The LightningModule of agents that learn from whole episodes: an epoch is `learn` and episodes side by side."""

import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from control.cli.settings import Settings
from control.lightning.module import RunModule, check_actions, check_command, finite, rounds, seeds_of
from control.loops.rollout import Episodes, rollout
from control.loops.stopping import Recent
from control.reports.tags import GREEDY, RUNNING_MEAN, SAMPLED, TRAINING
from envs.base import Environment, EnvironmentFault
from envs.make import make_environment
from models.contract import EpisodeAgent, Policy, RandomPolicy
from models.registry import agent_class
from models.streams import Streams
from models.trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STUCK_EPOCHS = 10


class AgentModule(RunModule):
    """Trains M members (seeds ``seed, seed + 1, ...``) of one agent in one environment.

    Its training step does the epoch's gradient steps (the agent's own optimisers, handed to Lightning for
    checkpoints) and its rollouts.
    """

    evaluation_modes = ("greedy", "sampled")  # of evaluating

    def __init__(self, settings: Settings, environment: Environment, evaluation: Environment | None = None):
        run = settings.run
        super().__init__(settings, seeds_of(run))
        self.environment, self.evaluation = environment, evaluation or environment
        self.agent: EpisodeAgent = agent_class(run.implementation)(settings.agent, environment.spaces, self.seeds)
        self.rollout_streams = Streams.named(self.seeds, "rollout")
        self.evaluation_streams = Streams.named(self.seeds, "evaluation")
        self.advice = self.agent.advice
        self.schedule = settings.agent.schedule
        self.recent = Recent(len(self.seeds), self.schedule.running_mean or 1)  # training returns
        self.best_mean = torch.full((len(self.seeds),), -math.inf, dtype=torch.float64)
        self.commanded: list[tuple[Tensor, Tensor]] = []  # (commanded, obtained) returns since the last evaluation
        self._stuck = 0

    # -- Lightning's hooks ------------------------------------------------------------------------------------

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return list(self.agent.optimizers)

    def on_train_start(self) -> None:
        super().on_train_start()
        if self.epoch == 0:
            self._warm_up()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        start = time.perf_counter()
        self.epoch = self.current_epoch + 1
        self.row = {}
        if self.schedule.on_policy:
            rolling = self._play()
            self._learn()
        else:
            self._learn()
            rolling = self._play()
        self._time("rollout", rolling)
        self._time("update", time.perf_counter() - start - rolling)

    def _learn(self) -> None:
        metrics = self.agent.learn()
        self.row |= {f"train/{name}": value for name, value in metrics.items()}
        self._warn(metrics)
        self.gradient_steps += self.schedule.gradient_steps

    def _play(self) -> float:
        """The epoch's episodes; the seconds they took."""
        start = time.perf_counter()
        policy = self._explorer(self.schedule.episodes)
        trajectory = self._rollout(policy, self.schedule.episodes)
        seconds = time.perf_counter() - start
        self.row |= self._describe(trajectory)
        self.row |= {f"command/{name}": value for name, value in self.agent.commands_now().items()}
        self._remember_commands(policy, trajectory)
        fresh = self.agent.observe(trajectory, validate=True)
        self.row |= {f"train/{name}": value for name, value in fresh.items()}
        return seconds

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        start = time.perf_counter()
        for name, sample in (("greedy", False), ("sampled", True)):
            self.row[f"eval/return_{name}"] = self.evaluate(self.settings.run.eval_episodes, sample).returns.mean(1)
        self._time("eval", time.perf_counter() - start)

    # -- the run's side -----------------------------------------------------------------------------------------

    @property
    def loss_tag(self) -> str:
        return f"train/{self.agent.main_loss}"

    def is_evaluated(self) -> bool:
        return GREEDY in self.row

    def is_over(self) -> bool:
        return super().is_over() or self._has_reached_target()

    def _has_reached_target(self) -> bool:
        """Known from the latest returns alone, also to a run that has just been loaded."""
        target, length = self.schedule.target, self.schedule.running_mean
        if target is None or length is None or not self.epoch:
            return False
        return float(self.recent.mean(torch.arange(len(self.seeds)), 0, length).mean()) >= target

    @property
    def target(self) -> float | None:
        return self.schedule.target if self.schedule.running_mean else super().target

    @property
    def score_name(self) -> str:
        length = self.schedule.running_mean
        if not length:
            return super().score_name
        return f"mean return of the last {min(length, int(self.recent.counts.min()))} episodes"

    def score(self) -> float | None:
        return self._mean(RUNNING_MEAN) if self.schedule.running_mean else super().score()

    def headline(self) -> str:
        return f"return {self._mean(self._return_tag):.0f}, loss {self._mean(self.loss_tag):.3f}"

    @property
    def _return_tag(self) -> str:
        return RUNNING_MEAN if self.schedule.running_mean else TRAINING

    def report(self) -> list[str] | None:
        if not self.has_something_to_say():
            return None
        parts = [self.steps_text(), f"return {self._mean(self._return_tag):7.1f}"]
        if GREEDY in self.row:
            parts.append(f"greedy {self._mean(GREEDY):7.1f}")
            parts.append(f"sampled {self._mean(SAMPLED):7.1f}")
        return [*parts, f"loss {self._mean(self.loss_tag):.3f}"]

    def figures(self) -> dict[str, list["Figure"]]:
        """What the exploration episodes since the last evaluation were asked for and got."""
        if GREEDY not in self.row or not self.commanded:
            return {}
        commanded, obtained = (torch.cat(part, dim=1).numpy() for part in zip(*self.commanded, strict=True))
        self.commanded = []
        figures = [_command_scatter(*pair) for pair in zip(commanded, obtained, strict=True)]
        return {"command/obtained_vs_commanded": figures}

    def policy(self, streams: Streams, sample: bool = False) -> Policy:
        return self.agent.begin(1, streams, sample=sample, evaluate=True, command=self.settings.command)

    def close(self) -> None:
        self.environment.close()
        if self.evaluation is not self.environment:
            self.evaluation.close()

    def own_state(self) -> dict[str, Any]:
        return {
            "rollout_streams": self.rollout_streams.get_state(),
            "evaluation_streams": self.evaluation_streams.get_state(),
            "commanded": self.commanded,
            "stuck": self._stuck,
            "recent": self.recent.state_dict(),
            "best_mean": self.best_mean,
            "agent": self.agent.training_state() if self.keep_memory else None,
        }

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.rollout_streams.set_state(state["rollout_streams"])
        self.evaluation_streams.set_state(state["evaluation_streams"])
        self.commanded, self._stuck = list(state["commanded"]), state["stuck"]
        if "recent" in state:
            self.recent.load_state_dict(state["recent"])
            self.best_mean = state["best_mean"]
        self.agent.load_training_state(state["agent"])

    # -- episodes ---------------------------------------------------------------------------------------------

    def evaluate(self, episodes: int, sample: bool) -> Episodes:
        """`episodes` episodes a member under the evaluation command, `sample` or greedy; nothing is remembered of
        them."""
        parts = []
        for count in rounds(episodes, self.evaluation.envs):
            streams = self.evaluation_streams
            policy = self.agent.begin(
                count, streams.fork(), sample=sample, evaluate=True, command=self.settings.command
            )
            parts.append(rollout(policy, self.evaluation, streams.episode_seeds(count), keep=False))
        return Episodes(torch.cat([p.returns for p in parts], 1), torch.cat([p.lengths for p in parts], 1))

    def _warm_up(self) -> None:
        for count in rounds(self.schedule.warm_up, self.environment.envs):
            policy = RandomPolicy(self.environment.spaces, count, self.rollout_streams.fork())
            self.agent.observe(self._rollout(policy, count))

    def _explorer(self, count: int) -> Policy:
        streams = self.rollout_streams.fork()
        if self.epoch <= self.schedule.random_epochs:
            return RandomPolicy(self.environment.spaces, count, streams)
        return self.agent.begin(count, streams, sample=True, command=self.settings.command)

    def _rollout(self, policy: Policy, count: int) -> Trajectory:
        trajectory = rollout(policy, self.environment, self.rollout_streams.episode_seeds(count))
        assert isinstance(trajectory, Trajectory)
        if not torch.isfinite(trajectory.returns).all():
            name = self.settings.run.gamename
            raise EnvironmentFault(f"environment {name}: the rewards of an episode add up to more than a float holds")
        self.env_steps = self.env_steps + trajectory.lengths.sum(1)
        return trajectory

    # -- what is measured -------------------------------------------------------------------------------------

    def _describe(self, trajectory: Trajectory) -> dict[str, Tensor]:
        returns = trajectory.returns
        return self._running_mean(returns) | {
            TRAINING: returns.mean(1),
            "rollout/return_std": returns.std(1, correction=0),
            "rollout/return_max": returns.amax(1),
            "rollout/return_min": returns.amin(1),
            "rollout/length": trajectory.lengths.float().mean(1),
        }

    def _running_mean(self, returns: Tensor) -> dict[str, Tensor]:
        """Mean over the latest episodes, those of ``returns [M, E]`` among them, and the best such mean so far."""
        if not self.schedule.running_mean:
            return {}
        members = torch.arange(len(self.seeds))
        self.recent.add(members.repeat_interleave(returns.shape[1]), returns.flatten())
        mean = self.recent.mean(members, 0, self.schedule.running_mean)
        self.best_mean = torch.maximum(self.best_mean, mean)
        return {RUNNING_MEAN: mean, "train/best_mean_reward": self.best_mean}

    def _remember_commands(self, policy: Policy, trajectory: Trajectory) -> None:
        if policy.commanded_returns is not None:
            self.commanded.append((policy.commanded_returns, trajectory.returns))

    def _mean(self, tag: str) -> float:
        return float(self.row[tag].mean())

    def _warn(self, metrics: dict[str, Tensor]) -> None:
        """Say once what a person would otherwise find out hours later: dead policies and NaN weights."""
        self._warn_of_loss("policy loss", metrics[self.agent.main_loss])
        collapsed, text = self.agent.has_collapsed(metrics)
        self._stuck = self._stuck + 1 if collapsed.any() else 0
        if self._stuck == _STUCK_EPOCHS:
            self._warn_once(f"for {_STUCK_EPOCHS} epochs {text}")
        self._check_weights(finite(self.agent.parameters(), len(self.seeds)))


def build(settings: Settings) -> AgentModule:
    """The module of a run with its environments; SettingError where agent and environment do not fit."""
    run, episodes = settings.run, settings.agent.schedule.episodes

    def of_rows(rows: int) -> Environment:
        return make_environment(run.gamename, run.num_seeds, rows, run.num_workers, time_limit=run.time_limit)

    environment = of_rows(episodes)
    check_actions(run, environment.spaces, agent_class(run.implementation), environment.close)
    # Rows that only evaluation has would be looked at in every step of training.
    module = AgentModule(settings, environment, of_rows(run.eval_episodes) if run.eval_episodes > episodes else None)
    check_command(settings, module.agent.commands_now(), module.close)
    return module


def _command_scatter(commanded: np.ndarray, obtained: np.ndarray) -> "Figure":
    """Obtained over commanded returns ``[N]``, with the diagonal an obedient agent keeps to."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4), dpi=80, layout="constrained")
    axis = figure.subplots()
    low, high = min(commanded.min(), obtained.min()), max(commanded.max(), obtained.max())
    axis.plot([low, high], [low, high], color="0.7", linewidth=1)
    axis.scatter(commanded, obtained, s=8, alpha=0.5)
    axis.set_xlabel("commanded return")
    axis.set_ylabel("obtained return")
    return figure
