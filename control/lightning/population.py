"""The LightningModule of a search for a proxy, and the callback that moves its mean: an epoch is a generation."""

import dataclasses
import functools
import math
import time
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from control.cli.colour import note
from control.cli.settings import Settings
from control.evolution.cluster import Workers, make_workers
from control.evolution.generations import as_met, entered, first_mean, judged
from control.evolution.inner_loop import InnerLoop, Outcome, by_kind, fresh_seeds
from control.evolution.objectives import objective
from control.evolution.strategies import STRATEGIES, Archive, Strategy
from control.evolution.teachers import check_teacher, is_teacher
from control.films.recording import film_seconds
from control.lightning.module import RunModule
from control.loops.build import check_spaces, in_spaces
from control.reports.tags import BEST_FITNESS, FITNESS, MEAN_RETURN, SPEED
from envs.make import Stages, stages_of
from models.proxies.files import first_parameters
from models.proxies.search import HAS_NUMBA, SearchConfig
from models.registry import agent_class, named_agents
from models.settings import SettingError, UserError
from models.state import like
from models.streams import Streams, derive_seed
from understudy.kinds import KINDS

_FLAT = 20  # generations in a row without any difference in fitness after which a search ends
_AGAIN = 5  # of them after which it starts elsewhere


class PopulationModule(RunModule):
    """Trains fresh agents on every member of the population and tests them on the real environment (`training_step`);
    the tests are the population's fitness (`validation_step`), by which the callback `Evolution` moves the mean.

    A generation's perturbations and agents follow from the run's seed and its number alone, so nothing of a generation
    under way needs to be kept. The one parameter is the mean, ``[1, D]``.
    """

    unit = "generation"

    def __init__(self, settings: Settings, workers: Workers, stages: Stages):
        super().__init__(settings, [settings.run.seed])
        self.config: SearchConfig = settings.proxy
        # Agents of reward networks step the real environment, which pays them another reward.
        self.steps_on = "training" if KINDS[settings.proxy.proxy].used_by else "synthetic"
        self.workers, self.stages = workers, stages
        self.mean = nn.Parameter(torch.zeros(1, stages.parameters.size), requires_grad=False)
        self.archive = Archive(self.config.keep_best)
        self.reached = -math.inf  # return of the latest mean that was scored in tests of full length
        self.noise = self.population = torch.zeros(0)  # of the generation: [rows, D], [P, D]
        self.fitness = self.ranked = torch.zeros(0)  # [P], and the values [P] for the strategy
        self.mean_fitness: float | None = None  # fitness of the mean, in generations that evaluate it
        self.outcome: Outcome | None = None
        self.real_steps = 0
        self.flat = 0  # consecutive generations in which all proxies had the same fitness, below solved_reward
        self.told = False  # that a generation had one fitness
        self.widened = 0  # times that noise_std was doubled since all proxies had the same fitness
        self.strategy = self.strategy_from(stages.known(self.mean[0]), 1)
        self.agents = named_agents(settings.run.agent)
        self.kinds = len(self.agents)
        self.of_each: dict[str, float] = {}  # the return of each kind of agent on the latest mean that was scored

    def has_solved(self) -> bool:
        """Whether a mean ends the search."""
        solved = self.config.solved_reward
        return self.config.quit_when_solved and solved is not None and self.reached >= solved

    def is_over(self) -> bool:
        return super().is_over() or self.has_solved()

    def score(self) -> float | None:
        return self.mean_fitness

    def headline(self) -> str:
        best = [f"mean {self.archive.entries[0][0]:.0f}"] if self.archive.entries else []
        return ", ".join([*(f"fitness {mean:.0f}" for tag, mean in self.means().items() if tag == FITNESS), *best])

    def report(self) -> list[str] | None:
        tests = "test" if self.steps_on == "training" else "real"
        steps = (f"{int(self.env_steps.sum()):,} {self.steps_on}", f"{self.real_steps:,} {tests} steps")
        shown = {"fitness": FITNESS, "best": BEST_FITNESS, "mean": MEAN_RETURN}
        means = self.means()
        scores = [f"{name} {means[tag]:7.1f}" for name, tag in shown.items() if tag in means]
        failed = int((~self.fitness.isfinite()).sum())
        diverged = [f"{failed} of {len(self.fitness)} diverged"] if failed else []
        each = [f"mean of {kind} {score:.1f}" for kind, score in self.of_each.items() if MEAN_RETURN in means]
        return [*scores, *each, *diverged, *steps]

    def histograms(self) -> dict[str, Tensor]:
        """The mean's parameters by network, for TensorBoard."""
        split = self.stages.parameters.split(self.mean.detach())
        return {f"weights/{name}": part[0] for name, part in split.items()}

    def seconds_of(self, agents: int) -> float:
        """Estimated seconds to train and test fresh agents after the search, by the last generation's speed."""
        if self.outcome is None:
            return 0.0
        own = (self.outcome.train_seconds + self.outcome.test_seconds) / len(self.outcome.returns)
        return own * agents * self.config.steps_in_use / self.config.inner_steps

    def seconds_after(self) -> float:
        """The re-evaluation of the best means, the winner's held-out evaluation, and its film."""
        means = len(self.archive.entries) + (not self.has_solved())
        run, played = self.settings.run, self.outcome
        own = self.seconds_of(means * self.config.retest_agents + self.config.report_agents + run.record)
        return own + film_seconds(run, None if played is None else played.test_steps / played.returns.numel())

    def close(self) -> None:
        self.workers.close()

    val_dataloader = test_dataloader = RunModule.train_dataloader

    def forward(self, *args: Any, **more: Any) -> Any:
        """Raise UserError, because proxies have no actions."""
        called = KINDS[self.settings.proxy.proxy].called
        raise UserError(
            f"{self.settings.run.implementation} learns a {called}, which has no actions; --eval_agent with "
            "the folder of a search trains agents on it and tests them"
        )

    test_step = predict_step = forward

    def configure_callbacks(self) -> list[pl.Callback]:
        return [Evolution()]

    def strategy_from(self, mean: Tensor, generation: int) -> Strategy:
        """The strategy of a generation's phase at its start, from the searched part of a mean, ``[K]``."""
        config = self.config.at(generation)
        config = dataclasses.replace(config, noise_std=config.noise_std * 2**self.widened)
        return STRATEGIES[config.strategy](config, mean)

    def completed(self, known: Tensor) -> Tensor:
        """Parameters ``[..., D]`` with the searched part ``known [..., K]`` and the mean's other parameters."""
        return self.stages.completed(known, self.mean.detach()[0])

    def first_mean(self) -> Tensor:
        """The proxy the search starts from, ``[D]``."""
        run, by_target = self.settings.run, self.config.scored_by == "target"
        train = functools.partial(self._train_fresh, by_target=by_target)
        return first_mean(self.config, self.stages, run.gamename, run.seed, self.kinds, train, self.spend)

    def as_met(self, mean: Tensor, generation: int) -> Tensor:
        """The ``mean [D]`` before a generation, with initial states from its target policy (`generations.as_met`)."""
        run = self.settings.run
        return as_met(mean, self.stages, run.gamename, run.seed, generation, self.spend)

    def spend(self, steps: int) -> None:
        """Count steps in the real environment."""
        self.real_steps += steps

    def _train_fresh(self, proxies: Tensor, seeds: list[int], **changes: Any) -> Outcome:
        """Train fresh agents of ``seeds [N]`` on ``proxies [N, D]`` and add their steps to the search's. Their tests
        have the limit of the current generation (before the first one, of the first)."""
        limit = self.config.at(max(self.epoch, 1)).test_limit
        outcome = self.workers.run(proxies, seeds, watch=self.watch, test_limit=limit, **changes)
        self.env_steps = self.env_steps + int(outcome.steps.sum())
        self.spend(outcome.test_steps)
        return outcome

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.epoch = self.current_epoch + 1
        config = self.config.at(self.epoch)
        due = (self.epoch - 1) % config.eval_every == 0 or self.epoch == self.epochs
        if due:
            self.mean.data = self.as_met(self.mean.detach()[0], self.epoch)[None]
        mean = self.mean.detach()[0] if due else None
        who = (config, self.settings.run.seed, self.kinds, self.epoch, f"generation {self.epoch}")
        proxies, seeds = entered(self.population, mean, *who)
        started = time.perf_counter()
        phase = {} if config.inner_steps == self.config.inner_steps else {"inner_steps": config.inner_steps}
        self.outcome = self._train_fresh(proxies, seeds, by_target=config.scored_by == "target", **phase)
        seconds = time.perf_counter() - started
        self.row = {
            SPEED: self.outcome.steps.sum()[None] / seconds,
            "time/generation": torch.tensor([seconds]),
            "time/train": torch.tensor([self.outcome.train_seconds]),
            "time/test": torch.tensor([self.outcome.test_seconds]),
        }

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Compute the fitness of the population and, if it is due, of the mean."""
        outcome = self.outcome
        if outcome is None:
            return  # a trainer that tries a validation before the first epoch
        config = self.config.at(self.epoch)
        self.fitness, self.ranked, of_mean = judged(objective(outcome, config), config)
        returned = outcome.scores[len(outcome.scores) - len(of_mean) :]
        sound = self.fitness[self.fitness.isfinite()]
        if not len(sound):
            sound = torch.tensor([torch.nan])
        numbers = {
            FITNESS: sound.mean(), BEST_FITNESS: sound.max(), "search/fitness_worst": sound.min(),
            "search/fitness_std": sound.std(correction=0), "search/real_steps": torch.tensor(float(self.real_steps)),
            "search/synthetic_steps": self.env_steps[0].float(), "search/steps_per_agent": outcome.steps.float().mean(),
            "search/episode_length": outcome.steps.sum() / outcome.episodes.sum().clamp(min=1),
        }  # fmt: skip
        self.mean_fitness = None
        if len(of_mean):
            numbers["search/center_return"] = returned.nanmean()
            self.mean_fitness = float(of_mean.nanmean())
            self.of_each = by_kind(self.agents, range(len(returned)), returned) if self.kinds > 1 else {}
            full = self.plays_out()
            if full and config.solved_reward is not None:
                numbers["search/center_solved"] = (returned >= config.solved_reward).float().mean()
            self.reached = max(-math.inf, float(returned.nanmean())) if full else -math.inf  # NaN is no return
        self.row |= {tag: value[None] for tag, value in numbers.items()}

    def plays_out(self) -> bool:
        """Whether tests of this generation have the final limit. Before, returns cannot be compared with
        solved_reward."""
        return self.config.at(self.epoch).test_limit == self.config.test_limit

    def keep_mean(self) -> None:
        """Remember the mean that was scored, if it was, and forget those whose tests had another limit."""
        if self.mean_fitness is None:
            return
        limit, entries = self.config.at(self.epoch).test_limit, self.archive.entries
        alike = [entry for entry in entries if self.config.at(entry[1]).test_limit == limit]
        if len(alike) < len(entries):
            self.archive.entries, self.best = alike, -math.inf
        self.archive.offer(self.mean_fitness, self.epoch, self.completed(self.strategy.mean))

    def has_slope(self) -> bool:
        """Whether fitness differs between proxies, or all are solved. Raises UserError after many flat generations."""
        solved, sound = self.config.solved_reward, self.fitness[self.fitness.isfinite()]
        level = len(sound) > 1 and bool((sound == sound[0]).all())
        assert self.outcome is not None
        # Agents may solve the task on all proxies although none reaches the rest of the objective.
        reached = min(float(self.outcome.scores.nanmean()), float(self.fitness.nanmean()))
        unsolved = solved is None or not self.plays_out() or reached < solved
        self.flat = self.flat + 1 if level and unsolved else 0
        if self.flat == _FLAT:
            raise UserError(
                f"for {_FLAT} generations all proxies have had the same fitness (the last time {float(sound[0]):.4g}), "
                "so there is nothing to climb and the search stops; metrics and checkpoint are kept: another start "
                "(start_from), a larger inner_steps, noise_std or test_limit may help"
            )
        if self.flat == 1 and not self.told:
            self.told = True
            note(
                f"all proxies of generation {self.epoch} have the same fitness ({float(sound[0]):.4g}), so there is "
                f"nothing to climb; after {_AGAIN} such generations in a row the search starts elsewhere; a larger "
                "inner_steps or test_limit may help"
            )
        return self.flat == 0

    def start_elsewhere(self) -> None:
        """Restart after a flat generation: with twice the noise and, without ``start_from``, another initial mean."""
        self.widened += 1
        mean = self.strategy.mean
        if self.config.start_from is None:
            streams = Streams([derive_seed(self.settings.run.seed, f"another start in generation {self.epoch}")])
            mean = self.stages.known(self.stages.initial(streams)[0])
        self.strategy = self.strategy_from(mean, self.epoch)
        noise = float(torch.as_tensor(self.strategy.noise_std).mean())
        where = "its mean" if self.config.start_from is not None else "a new one"
        note(
            f"for {self.flat} generations all proxies have had the same fitness (the last time "
            f"{float(self.fitness.nan_to_num().max()):.4g}), so there is nothing to climb: the search starts from "
            f"{where} with noise_std {noise:.3g}; a larger inner_steps or test_limit may help"
        )

    def seeds_of(self, name: str, count: int) -> list[int]:
        """Seeds of ``count`` fresh agents, of all kinds in turn; different names give agents that share nothing."""
        return fresh_seeds(self.settings.run.seed, name, count, self.kinds)

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        if self.has_solved():
            self.trainer.should_stop = True

    def own_state(self) -> dict[str, Any]:
        archive = {"entries": [list(entry) for entry in self.archive.entries]}
        search = {"strategy": self.strategy.state_dict(), "archive": archive}
        search |= {name: getattr(self, name) for name in ("reached", "flat", "widened")}
        return super().own_state() | {"real_steps": self.real_steps, "evolution": search}

    def take_state(self, state: dict[str, Any]) -> None:
        super().take_state(state)
        search = state["evolution"]
        self.real_steps = like(self.real_steps, state["real_steps"], "real_steps")
        reached = search.get("reached", math.inf if search.get("solved") else -math.inf)  # older runs say but whether
        self.reached, self.flat = like((self.reached, self.flat), (reached, search["flat"]), "search")
        self.widened = like(self.widened, search.get("widened", 0), "search")
        self.strategy = self.strategy_from(self.stages.known(self.mean[0]), self.epoch)
        self.strategy.load_state_dict(search["strategy"])
        self.archive.load(search["archive"]["entries"], self.mean[0])


class Evolution(pl.Callback):
    """The outer loop: asks the strategy for a population before every generation, and moves the mean by the fitness
    that its evaluation leaves behind. It holds nothing; all of it is the module's.

    With ``quit_when_solved`` the first mean that solves is not moved, as published.
    """

    # Lightning's callbacks serve any module; this one serves a `PopulationModule`, hence the ignores.

    def on_train_start(self, trainer: pl.Trainer, module: PopulationModule) -> None:  # type: ignore[override]
        if module.epoch == 0:
            module.mean.data = module.first_mean()[None].clone()
            module.strategy = module.strategy_from(module.stages.known(module.mean[0]), 1)
        module.mean.data = module.completed(module.strategy.mean)[None].clone()

    def on_train_epoch_start(self, trainer: pl.Trainer, module: PopulationModule) -> None:  # type: ignore[override]
        if trainer.current_epoch == module.config.second_phase:  # fitness is another one from here on
            module.strategy = module.strategy_from(module.strategy.mean, trainer.current_epoch + 1)
            module.archive.entries.clear()
            module.flat = 0
        streams = Streams.named(module.seeds, f"perturbations of generation {trainer.current_epoch + 1}")
        module.noise = streams.normal(module.strategy.rows, len(module.strategy.mean))[0]
        module.population = module.completed(module.strategy.ask(module.noise))

    def on_validation_end(self, trainer: pl.Trainer, module: PopulationModule) -> None:  # type: ignore[override]
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        module.keep_mean()
        if module.has_solved():
            return
        if not module.has_slope() and module.flat % _AGAIN == 0:
            module.start_elsewhere()
        else:
            told = module.strategy.tell(module.noise, module.ranked, module.mean_fitness)
            module.row |= {f"search/{name}": torch.tensor([value]) for name, value in told.items()}
        module.mean.data = module.completed(module.strategy.mean)[None].clone()
        if not module.mean.isfinite().all():
            raise UserError(
                f"the mean is no longer finite (generation {module.epoch}), so the search stops; the checkpoint of "
                "the generation before is kept: a smaller step_size or noise_std may help"
            )


def build(settings: Settings, kind: type[PopulationModule] = PopulationModule) -> PopulationModule:
    """Build the module of a search, or of another ``kind``. Raises SettingError if agent and environment do not fit."""
    run = settings.run
    every = run.checkpoint_every if "checkpoint_every" in settings.given else 1  # a generation is worth keeping
    settings = settings.replace(checkpoint_every=every)
    if run.num_seeds > 1:
        raise SettingError(f"num_seeds is {run.num_seeds}; allowed with {run.implementation}: 1 (see bash_train.sh)")
    stages = stages_of(settings.proxy, run.gamename)
    for name in named_agents(run.agent):
        check_spaces(run, agent_class(name), stages.spaces, name)
    settings = in_spaces(settings, stages.spaces, stages.idle())
    kinds, search = len(named_agents(run.agent)), settings.proxy
    in_turn = search.common_random_numbers and search.agents_take_turns == "seeds"
    for name in ("agents_per_proxy", "second_agents"):  # else the first kinds would decide alone
        if in_turn and (getattr(search, name) or kinds) % kinds:
            line = f"{name} is {getattr(search, name)}, but agent is {run.agent!r}; allowed: a multiple of {kinds}"
            raise SettingError(line, name)
    if (start := search.start_from) is None:  # before anything is written
        stages.check_start()
    elif is_teacher(start):
        check_teacher(start, stages, run.gamename)
    elif getattr(search, "preset", "") == "clone":
        line = f"start_from is {start!r}, which is no policy; allowed with preset clone"
        raise SettingError(f"{line}: an agent's run or checkpoint, or module:function", "start_from")
    else:
        first_parameters(start, search, stages.spaces, run.gamename)

    settings = settings.replace(compiled=_compiled(settings))
    job = (settings.proxy, run.agent, settings.agent, run.gamename)
    workers = make_workers(*job, run.num_workers, run.ray_address, run.num_threads)
    return kind(settings, workers, stages)


def _compiled(settings: Settings) -> bool:
    """Whether the agents of a search train in machine code. Raises SettingError if that was asked for in vain."""
    run, asked = settings.run, "compiled" in settings.given and settings.proxy.compiled
    if not HAS_NUMBA:
        if settings.proxy.compiled:  # asked for, or by a run that began so
            raise SettingError("compiled is true, but Numba is not installed (extra fast); allowed: false", "compiled")
        note("searches are several times as fast with Numba: pip install -c constraints.txt -e '.[train,fast]'")
        return False
    able = InnerLoop(settings.proxy, run.agent, settings.agent, run.gamename).runs_compiled()
    if asked and not able:
        line = f"compiled is true, but {run.agent} with these settings has no machine code; allowed: false"
        raise SettingError(line, "compiled")
    if able:
        from models.machine import cache_folder

        if not any(cache_folder().rglob("*.nbi")):
            note("machine code is compiled, which takes a minute or two and happens once")
    return able
