"""The LightningModule that wraps any agent: one epoch is `learn`, then a set of whole episodes side by side."""

import math
import time
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from control.checkpoints import FORMAT, OURS
from control.rollout import Actor, Episodes, RandomActor, rollout
from control.run_config import Settings, as_dict
from envs.base import Environment, EnvironmentFault
from models.agents import agent_class
from models.settings import UserError
from models.spaces import Discrete
from models.streams import Streams
from models.trajectory import Trajectory

_STUCK_EPOCHS, _STUCK_WITHIN = 10, 0.005


class AgentModule(pl.LightningModule):
    """Trains M members (seeds ``seed, seed + 1, ...``) of one agent in one environment.

    The module owns the loop and the whole state a resumed run needs. A Lightning epoch has one batch; its training
    step does the epoch's gradient steps (the agent's own optimisers, handed to Lightning for checkpoints) and its
    rollouts, so that Lightning's cost is paid once an epoch. ``row`` collects what the epoch measured, ``{tag:
    [M]}``, for whoever logs it.
    """

    def __init__(self, settings: Settings, environment: Environment):
        super().__init__()
        self.automatic_optimization = False
        run = settings.run
        self.settings, self.environment = settings, environment
        self.seeds = [run.seed + member for member in range(run.num_seeds)]
        self.agent = agent_class(run.implementation)(settings.agent, environment.spaces, self.seeds)
        self.rollout_streams = Streams.named(self.seeds, "rollout")
        self.evaluation_streams = Streams.named(self.seeds, "evaluation")
        self.env_steps = torch.zeros(len(self.seeds), dtype=torch.int64)
        self.gradient_steps = 0
        self.epoch = 0  # of the row being collected; survives a resume as Lightning's own counter does
        self.best = -math.inf
        self.row: dict[str, Tensor] = {}
        self.commanded: list[tuple[Tensor, Tensor]] = []  # (commanded, obtained) returns since the last evaluation
        self.keep_memory = True
        self._stuck = 0
        self._warned: set[str] = set()

    # -- Lightning's hooks ------------------------------------------------------------------------------------

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return self.agent.optimizers

    def train_dataloader(self) -> DataLoader:
        return DataLoader([0])  # type: ignore[arg-type]  # a list is a dataset

    val_dataloader = train_dataloader

    def on_train_start(self) -> None:
        if self.epoch == 0:
            self._warm_up()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        start = time.perf_counter()
        self.epoch = self.current_epoch + 1
        losses = self.agent.learn()
        self.gradient_steps += self.settings.agent.num_grad_steps
        learned = time.perf_counter()
        actor = self._explorer(self.settings.agent.training_rollouts_per_worker)
        trajectory = self._rollout(actor, self.settings.agent.training_rollouts_per_worker)
        rolled = time.perf_counter()
        self.row = {f"train/{name}": value for name, value in losses.items()} | self._describe(trajectory)
        self.row |= {f"command/{name}": value for name, value in self.agent.commands_now().items()}
        self._remember_commands(actor, trajectory)
        fresh = self.agent.observe(trajectory, validate=True)
        self.row |= {f"train/{name}": value for name, value in fresh.items()}
        self._time("rollout", rolled - learned)
        self._time("update", learned - start + time.perf_counter() - rolled)
        self._warn(losses["policy_loss"])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        start = time.perf_counter()
        for name, sample in (("greedy", False), ("sampled", True)):
            self.row[f"eval/return_{name}"] = self.evaluate(self.settings.run.eval_episodes, sample).returns.mean(1)
        self._time("eval", time.perf_counter() - start)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[OURS] = {
            "format": FORMAT,
            "settings": as_dict(self.settings),
            "seeds": self.seeds,
            "epoch": self.epoch,
            "env_steps": self.env_steps,
            "gradient_steps": self.gradient_steps,
            "best": self.best,
            "rollout_streams": self.rollout_streams.get_state(),
            "evaluation_streams": self.evaluation_streams.get_state(),
            "commanded": self.commanded,
            "stuck": self._stuck,
            "agent": self.agent.resume_state() if self.keep_memory else None,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        ours = checkpoint[OURS]
        self.epoch, self.gradient_steps, self.best = ours["epoch"], ours["gradient_steps"], ours["best"]
        self.env_steps = ours["env_steps"]
        self.rollout_streams.set_state(ours["rollout_streams"])
        self.evaluation_streams.set_state(ours["evaluation_streams"])
        self.commanded, self._stuck = list(ours["commanded"]), ours["stuck"]
        self.agent.load_resume_state(ours["agent"])

    # -- episodes ---------------------------------------------------------------------------------------------

    def evaluate(self, episodes: int, sample: bool) -> Episodes:
        """`episodes` episodes a member under the evaluation command, `sample` or greedy; nothing is remembered of
        them."""
        parts = []
        for count in _rounds(episodes, self.environment.envs):
            streams = self.evaluation_streams
            actor = self.agent.begin(count, streams.fork(), sample=sample, evaluate=True, command=self.settings.command)
            parts.append(rollout(actor, self.environment, streams.episode_seeds(count), keep=False))
        return Episodes(torch.cat([p.returns for p in parts], 1), torch.cat([p.lengths for p in parts], 1))

    def _warm_up(self) -> None:
        for count in _rounds(self.settings.agent.num_rand_action_rollouts, self.environment.envs):
            actor = RandomActor(self.environment.spaces, count, self.rollout_streams.fork())
            self.agent.observe(self._rollout(actor, count))

    def _explorer(self, count: int) -> Actor:
        streams = self.rollout_streams.fork()
        if self.epoch <= self.settings.agent.random_action_epochs:
            return RandomActor(self.environment.spaces, count, streams)
        return self.agent.begin(count, streams, sample=True, command=self.settings.command)

    def _rollout(self, actor: Actor, count: int) -> Trajectory:
        trajectory = rollout(actor, self.environment, self.rollout_streams.episode_seeds(count))
        assert isinstance(trajectory, Trajectory)
        if not torch.isfinite(trajectory.returns).all():
            name = self.settings.run.gamename
            raise EnvironmentFault(f"environment {name}: the rewards of an episode add up to more than a float holds")
        self.env_steps = self.env_steps + trajectory.lengths.sum(1)
        return trajectory

    # -- what is measured -------------------------------------------------------------------------------------

    def _describe(self, trajectory: Trajectory) -> dict[str, Tensor]:
        returns = trajectory.returns
        return {
            "rollout/return_mean": returns.mean(1),
            "rollout/return_std": returns.std(1, correction=0),
            "rollout/return_max": returns.amax(1),
            "rollout/return_min": returns.amin(1),
            "rollout/length": trajectory.lengths.float().mean(1),
        }

    def _remember_commands(self, actor: Actor, trajectory: Trajectory) -> None:
        commanded = getattr(actor, "commanded_returns", None)
        if commanded is not None:
            self.commanded.append((commanded, trajectory.returns))

    def _time(self, name: str, seconds: float) -> None:
        self.row[f"time/{name}"] = torch.full((len(self.seeds),), seconds)

    def _warn(self, policy_loss: Tensor) -> None:
        """Say once what a person would otherwise find out hours later: dead policies and NaN weights."""
        for seed, loss in zip(self.seeds, policy_loss.tolist(), strict=True):
            if not math.isfinite(loss):
                self._warn_once(
                    f"seed {seed}: the policy loss is {loss} since epoch {self.epoch}; a smaller lr or scale may help"
                )
        actions = self.environment.spaces.actions
        if isinstance(actions, Discrete):
            uniform = math.log(actions.n)
            dead = (policy_loss - uniform).abs().amin() < _STUCK_WITHIN
            self._stuck = self._stuck + 1 if dead else 0
            if self._stuck == _STUCK_EPOCHS:
                self._warn_once(
                    f"the policy loss has sat at ln({actions.n}) = {uniform:.3f} for {_STUCK_EPOCHS} epochs: "
                    "the policy is uniform and "
                    "not learning; look at the command scales (reward_scale, horizon_scale) and lr"
                )
        sound = torch.ones(len(self.seeds), dtype=torch.bool)
        for weights in self.agent.parameters():
            sound &= torch.isfinite(weights.detach().sum(1))
        for seed, fine in zip(self.seeds, sound.tolist(), strict=True):
            if not fine:
                self._warn_once(f"seed {seed}: weights are no longer finite (epoch {self.epoch}); it cannot recover")
        if not sound.any():
            raise UserError(
                f"the weights are no longer finite (epoch {self.epoch}), so training stops; earlier checkpoints are "
                "kept: a smaller lr or command scale may help"
            )

    def _warn_once(self, text: str) -> None:
        key = text.split(" (")[0].split(" since")[0]
        if key not in self._warned:
            self._warned.add(key)
            print(f"warning: {text}", flush=True)


def _rounds(episodes: int, envs: int) -> list[int]:
    """`episodes` in rounds of at most `envs`."""
    return [min(envs, episodes - done) for done in range(0, episodes, envs)]
