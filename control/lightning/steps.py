"""The LightningModule of agents that learn between steps: an epoch is so many steps of every member."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from control.cli.settings import RunConfig, Settings
from control.lightning.module import RunModule, check_actions, check_command, finite, rounds, seeds_of, spaces_of
from control.loops.resources import available_memory
from control.loops.rollout import Episodes, rollout
from control.loops.steps import StepLoop
from control.reports.tags import GREEDY, REWARD_RATE, TRAINING
from envs.base import Environment, EnvironmentFault
from envs.make import make_environment
from envs.names import GAMES
from envs.tensor import TensorEnvironment
from models.contract import Policy, StepAgent
from models.registry import agent_class
from models.settings import SettingError
from models.spaces import Spaces
from models.streams import Streams


@dataclass
class Group:
    """Members that share one tensor program, and all that is theirs. ``at [m]`` is their place among the run's."""

    at: Tensor
    agent: StepAgent
    interaction: StepLoop
    evaluation: Environment
    all_learn: bool = False

    def epoch(self, ticks: int) -> dict[str, Tensor]:
        """Train for ``ticks``. ``loss``, ``return`` and ``length`` ``[m]`` are means of the epoch, NaN where there was
        nothing; ``updated [m]`` counts the ticks with updates, ``ended [m]`` the episodes that came to their end."""
        members, device = len(self.at), self.agent.device
        losses, waited = [], torch.zeros(members, dtype=torch.int64, device=device)
        counts, returns, lengths = torch.zeros(3, members, dtype=torch.float64, device=device)
        self.interaction.refresh()
        for _ in range(ticks):
            ended = self.interaction.step()
            losses.append(self.interaction.loss)
            if not self.all_learn:  # who learns never stops
                able = self.agent.learning()
                waited += ~able
                self.all_learn = bool(able.all())
            if ended is not None:
                counts.index_add_(0, ended.members, torch.ones_like(ended.returns, dtype=torch.float64))
                returns.index_add_(0, ended.members, ended.returns.double())
                lengths.index_add_(0, ended.members, ended.lengths.double())
        # Members lead and stay contiguous: a sum over the leading axis rounds by how many members there are.
        table = torch.stack(losses, 1).double()
        waiting = torch.arange(ticks, device=device) < waited.unsqueeze(1)
        updated = ticks - waited
        loss = table.masked_fill(waiting, 0.0).sum(1) / updated
        means = {"loss": loss, "return": returns / counts, "length": lengths / counts}
        means |= {"updated": updated, "ended": counts}
        return {name: value.cpu() for name, value in (means | self.agent.measured()).items()}

    def resume_state(self) -> dict[str, Any]:
        return {"agent": self.agent.training_state(), "interaction": self.interaction.resume_state()}

    def load_resume_state(self, state: dict[str, Any]) -> None:
        self.agent.load_training_state(state["agent"])
        self.interaction.load_resume_state(state["interaction"])


class StepModule(RunModule):
    """Trains M members (seeds ``seed, seed + 1, ...``) of one agent that learns step by step, tick by tick.

    Members whose networks have different shapes (``vary_hp``) are several groups, trained one after another; what a
    member learns depends on neither. An epoch has ``steps_per_epoch`` steps of every member, rounded up to whole ticks
    of its ``num_envs`` environments; episodes go on from epoch to epoch. How long an epoch is and what an evaluation,
    the run's settings say unless the agent's have a ``schedule``.
    """

    evaluation_modes = ("greedy",)  # of evaluating

    def __init__(self, settings: Settings):
        run = settings.run
        super().__init__(settings, seeds_of(run))
        self.pace = settings.schedule
        self.ticks = -(-self.pace.steps_per_epoch // settings.agent.num_envs)
        self.device_of_members = torch.device("cuda" if run.accelerator == "gpu" else "cpu")
        chosen = agent_class(run.implementation).groups(settings.agent, self.seeds)
        self.groups = [self._group(positions, max(1, run.num_workers // len(chosen))) for positions in chosen]
        self.agents = nn.ModuleList([group.agent for group in self.groups])
        self.evaluation_streams = Streams.named(self.seeds, "evaluation")
        self.acting_streams = Streams.named(self.seeds, "latents of evaluations")
        self.advice = self.groups[0].agent.advice
        self.updates = torch.zeros(len(self.seeds), dtype=torch.int64)
        self.budget = self.epochs * self.ticks * settings.agent.num_envs

    def _group(self, positions: list[int], workers: int) -> Group:
        run, config = self.settings.run, self.settings.agent
        seeds = [self.seeds[m] for m in positions]

        def environment(envs: int, limit: int | None) -> Environment:
            return make_environment(
                run.gamename, len(seeds), envs, workers, time_limit=limit, device=self.device_of_members
            )

        endless = 0 if self.pace.endless else None
        training = environment(config.num_envs, run.time_limit or endless)
        which = agent_class(run.implementation)
        world = {"dynamics": _dynamics(training), "device": self.device_of_members} if which.knows_dynamics else {}
        if world:
            _check_world(run, config, which, training.spaces, len(self.seeds), world["dynamics"])
        agent = which(config, training.spaces, seeds, **world)
        interaction = StepLoop(agent, training, Streams.named(seeds, "episodes"))
        limits = [limit for limit in (self.pace.eval_steps, run.time_limit) if limit is not None]
        evaluation = environment(self.pace.eval_episodes, min(limits, default=None))
        return Group(torch.tensor(positions), agent, interaction, evaluation)

    # -- Lightning's hooks ------------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        super().on_train_start()
        for group in self.groups:
            group.agent.budget = self.budget
        wait = self.pace.first_update
        if wait >= self.budget:
            self._warn_once(
                f"nothing will be learned: the run has {self.budget} steps, the first update comes after {wait}"
            )

    def training_step(self, batch: Any, batch_idx: int) -> None:
        start = time.perf_counter()
        self.epoch = self.current_epoch + 1
        seen = self._gathered([group.epoch(self.ticks) for group in self.groups])
        if (seen["ended"].bool() & ~seen["return"].isfinite()).any():
            name = self.settings.run.gamename
            raise EnvironmentFault(f"environment {name}: the rewards of an episode add up to more than a float holds")
        self.env_steps = self.env_steps + self.ticks * self.settings.agent.num_envs
        self.updates = self.updates + seen["updated"] * self.settings.agent.updates_per_step
        self.gradient_steps = int(self.updates.max())
        self.row = {
            "train/loss": seen["loss"], TRAINING: seen["return"], "rollout/length": seen["length"],
            "gradient_steps": self.updates,
        } | {tag: values for tag, values in seen.items() if "/" in tag}  # fmt: skip
        self._time("train", time.perf_counter() - start)
        self._warn_of_loss("loss", seen["loss"], seen["updated"] > 0)
        sound = [{"sound": finite(group.agent.parameters(), len(group.at))} for group in self.groups]
        self._check_weights(self._gathered(sound)["sound"])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        start = time.perf_counter()
        played = self.evaluate(self.pace.eval_episodes)
        self.row[GREEDY] = played.returns.mean(1)
        if self.pace.continuing:
            self.row[REWARD_RATE] = (played.returns / played.lengths).mean(1)
        self._time("eval", time.perf_counter() - start)

    def _gathered(self, rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Rows ``[m, ...]`` of all groups as ``[M, ...]``, every member in its place."""
        gathered = {}
        for name in rows[0]:
            parts = torch.cat([row[name] for row in rows])
            gathered[name] = torch.empty_like(parts)
            gathered[name][torch.cat([group.at for group in self.groups])] = parts
        return gathered

    def evaluate(self, episodes: int, sample: bool = False) -> Episodes:
        """`episodes` greedy episodes a member; nothing is remembered of them. There is no other way to ``sample``."""
        assert not sample
        parts = []
        for count in rounds(episodes, self.groups[0].evaluation.envs):
            seeds, streams = self.evaluation_streams.episode_seeds(count), self.acting_streams.fork()
            played = []
            for group in self.groups:
                policy = group.agent.begin(count, streams.of(group.at), sample=False, evaluate=True)
                played.append(rollout(policy, group.evaluation, seeds[group.at], keep=False))
            parts.append(self._gathered([{"returns": each.returns, "lengths": each.lengths} for each in played]))
        return Episodes(torch.cat([p["returns"] for p in parts], 1), torch.cat([p["lengths"] for p in parts], 1))

    # -- the run's side -----------------------------------------------------------------------------------------

    def headline(self) -> str:
        return ", ".join(self._shown("return {:.0f}", TRAINING) + self._shown("loss {:.3g}", "train/loss"))

    def report(self) -> list[str] | None:
        if not self.has_something_to_say():
            return None
        greedy = ("reward rate {:.4f}", REWARD_RATE) if self.pace.continuing else ("greedy {:7.1f}", GREEDY)
        returns = self._shown("return {:7.1f}", TRAINING) + self._shown(*greedy)
        return [self.steps_text(), *returns, *self._shown("loss {:.3g}", "train/loss")]

    def _shown(self, text: str, tag: str) -> list[str]:
        """The mean of a tag over the members that have a number; nothing where none has."""
        mean = float(self.row[tag].double().nanmean()) if tag in self.row else float("nan")
        return [text.format(mean)] if mean == mean else []

    def policy(self, streams: Streams, sample: bool = False) -> Policy:
        group = self.groups[0]  # the first member is always in the first group
        return group.agent.begin(1, streams.of(group.at), sample=sample, evaluate=True)

    def close(self) -> None:
        for group in self.groups:
            group.interaction.environment.close()
            group.evaluation.close()

    def own_state(self) -> dict[str, Any]:
        return {
            "evaluation_streams": self.evaluation_streams.get_state(),
            "acting_streams": self.acting_streams.get_state(), "updates": self.updates, "budget": self.budget,
            "groups": [group.resume_state() for group in self.groups] if self.keep_memory else None,
        }  # fmt: skip

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.evaluation_streams.set_state(state["evaluation_streams"])
        self.acting_streams.set_state(state["acting_streams"])
        self.updates = state["updates"]
        self.budget = state["budget"]  # that of the beginning: exploration must not return when a run gets longer
        for group, saved in zip(self.groups, state["groups"], strict=True):
            group.load_resume_state(saved)


def _dynamics(environment: Environment) -> Any:
    """The world's own, on the device of its states; None where it is no tensor program."""
    return environment.on_device if isinstance(environment, TensorEnvironment) else None


def _check_world(run: RunConfig, config: Any, which: Any, spaces: Spaces, members: int, dynamics: Any) -> None:
    """SettingError where the agent must step copies of the world and cannot, or would remember more than there is
    room for."""
    if dynamics is None and which.needs_dynamics(config):
        able = ", ".join(game.name for game in GAMES.values() if game.dynamics)
        raise SettingError(
            f"gamename is {run.gamename!r}, whose states cannot be copied; allowed for {run.implementation}: {able}",
            "gamename",
        )
    needed, there = which.memory_bytes(config, spaces, members, dynamics), available_memory(run.accelerator)
    if there is not None and needed > there:
        most = int(config.buffer_size * there / needed)
        raise SettingError(
            f"buffer_size is {config.buffer_size}, which takes {needed / 1e9:.1f} GB with num_seeds {members} on "
            f"{run.gamename}, and {there / 1e9:.1f} GB are free; allowed here: at most {most}",
            "buffer_size",
        )


def build(settings: Settings) -> StepModule:
    """The module of a run with its environments; SettingError where agent and environment do not fit."""
    run = settings.run
    check_command(settings, ())
    spaces = spaces_of(run.gamename)
    check_actions(run, spaces, agent_class(run.implementation))
    if spaces.is_image:
        raise SettingError(
            f"gamename is {run.gamename!r}, which shows images; {run.implementation} takes vectors of observations"
        )
    return StepModule(settings)
