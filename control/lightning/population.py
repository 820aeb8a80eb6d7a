"""The LightningModule of a search for a proxy: an epoch is a generation of the population."""

import time
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from control.cli.settings import Settings
from control.evolution.archive import Archive
from control.evolution.cluster import Workers, make_workers
from control.evolution.inner_loop import Outcome
from control.evolution.objective import objective
from control.evolution.strategies import make_strategy
from control.lightning.evolution import Evolution
from control.lightning.module import RunModule
from control.loops.build import check_spaces
from envs.make import Stages, stages_of
from models.proxies.search import SearchConfig
from models.registry import agent_class
from models.settings import SettingError
from models.streams import Streams, derive_seed


class PopulationModule(RunModule):
    """Trains fresh agents on every member of the population and tests them on the real environment.

    `training_step` does the inner loops of a generation, those of the mean among them where its fitness is due;
    `validation_step` turns the tests into ``fitness [P]``; the callback `Evolution`, which `callbacks` gives, moves the
    mean. Any Lightning trainer will do that validates after every epoch. The one parameter is the mean, ``[1, D]``.
    """

    unit, steps_on = "generation", "synthetic"

    def __init__(self, settings: Settings, workers: Workers, stages: Stages):
        super().__init__(settings, [settings.run.seed])
        self.config: SearchConfig = settings.proxy
        self.workers, self.stages = workers, stages
        self.mean = nn.Parameter(torch.zeros(1, stages.parameters.size), requires_grad=False)
        self.start_from(self.mean[0])
        self.archive, self.solved = Archive(self.config.keep_best), False
        self.population = self.fitness = torch.zeros(0)
        self.mean_fitness: float | None = None
        self.outcome: Outcome | None = None
        self.real_steps = 0

    # -- the run's side ---------------------------------------------------------------------------------------------

    @property
    def epochs(self) -> int:
        return self.config.generations

    def is_over(self) -> bool:
        return self.epoch >= self.epochs or self.config.quit_when_solved and self.solved

    @property
    def target(self) -> float | None:
        return None  # the callback's business: it must end the run before the update

    def callbacks(self) -> list[pl.Callback]:
        return [Evolution()]

    def configure_callbacks(self) -> list[pl.Callback]:
        """For a trainer that was not given `callbacks`."""
        given = {type(callback) for callback in self.trainer.callbacks}  # type: ignore[attr-defined]  # its type lacks it
        return [callback for callback in self.callbacks() if type(callback) not in given]

    def score(self) -> float | None:
        return self.mean_fitness

    def headline(self) -> str:
        best = f", mean {self.archive.entries[0][0]:.0f}" if self.archive.entries else ""
        return f"fitness {self.fitness.mean():.0f}{best}"

    def report(self) -> list[str] | None:
        parts = [f"fitness {self.fitness.mean():7.1f}", f"best {self.fitness.max():7.1f}"]
        if self.mean_fitness is not None:
            parts.append(f"mean {self.mean_fitness:7.1f}")
        return [
            *parts,
            f"{int(self.env_steps.sum()) / 1e6:.2f} M synthetic",
            f"{self.real_steps / 1e6:.2f} M real steps",
        ]

    # -- the search ---------------------------------------------------------------------------------------------------

    def start_from(self, mean: Tensor) -> None:
        self.strategy = make_strategy(self.config, mean)

    def take_mean(self) -> None:
        self.mean.data = self.strategy.mean[None].clone()

    def first_mean(self) -> Tensor:
        """The proxy the search starts from, ``[D]``: of ``initial_draws`` the one whose perturbed copies have the best
        fitness. Of random bandits, more than half are flat: no perturbation tells better from worse."""
        config, seed, parameters = self.config, self.settings.run.seed, self.stages.parameters
        draws, members = config.initial_draws, config.initial_members
        first = parameters.initial(Streams([derive_seed(seed, f"initial stand-in {i}") for i in range(draws)]))
        if draws == 1:
            return first[0]
        noise = Streams([derive_seed(seed, f"initial perturbation {i}") for i in range(draws)])
        copies = first.unsqueeze(1) + config.noise_std * noise.normal(members, parameters.size)
        outcome = self.train_fresh(copies.flatten(0, 1), [derive_seed(seed, "initial agent")] * draws * members)
        fitness = objective(outcome, config).view(draws, members).mean(1).nan_to_num(-torch.inf)
        return first[int(fitness.argmax())]

    def train_fresh(self, proxies: Tensor, seeds: list[int]) -> Outcome:
        """Fresh agents of ``seeds [N]`` on ``proxies [N, D]``, their steps counted as the search's."""
        outcome = self.workers.run(proxies, seeds)
        self.env_steps = self.env_steps + int(outcome.steps.sum())
        self.real_steps += outcome.test_steps
        return outcome

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.epoch = self.current_epoch + 1
        config = self.config
        proxies = self.population.repeat_interleave(config.agents_per_proxy, 0)
        seeds = self._agent_seeds(len(self.population))
        if (self.epoch - 1) % config.center_every == 0 or self.epoch == self.epochs:
            proxies = torch.cat([proxies, self.mean.detach().expand(config.center_agents, -1)])
            seeds = seeds + self.seeds_of(f"centre of generation {self.epoch}", config.center_agents)
        started = time.perf_counter()
        self.outcome = self.train_fresh(proxies, seeds)
        self.row = {
            "time/generation": torch.tensor([time.perf_counter() - started]),
            "time/train": torch.tensor([self.outcome.train_seconds]),
            "time/test": torch.tensor([self.outcome.test_seconds]),
        }

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if self.outcome is None:
            return  # a trainer that tries a validation before the first epoch
        each, count = self.config.agents_per_proxy, len(self.population)
        fitness = objective(self.outcome, self.config)
        self.fitness = fitness[: count * each].view(count, each).mean(1)
        of_mean = fitness[count * each :]
        self.mean_fitness = float(of_mean.nanmean()) if len(of_mean) else None
        sound = self.fitness[self.fitness.isfinite()]
        if not len(sound):
            sound = torch.tensor([torch.nan])
        self.row |= {
            "es/fitness_mean": sound.mean()[None], "es/fitness_best": sound.max()[None],
            "es/fitness_worst": sound.min()[None], "es/fitness_std": sound.std(correction=0)[None],
            "es/real_steps": torch.tensor([float(self.real_steps)]),
            "es/synthetic_steps": self.env_steps.float(),
            "es/steps_per_agent": self.outcome.steps.float().mean()[None],
            "es/episode_length": (self.outcome.steps.sum() / self.outcome.episodes.sum().clamp(min=1))[None],
        }  # fmt: skip
        if self.mean_fitness is not None:
            self.row["es/center_return"] = of_mean.nanmean()[None]
            if self.config.solved_reward is not None:
                self.row["es/center_solved"] = (of_mean >= self.config.solved_reward).float().mean()[None]

    def seeds_of(self, name: str, count: int) -> list[int]:
        """Seeds of ``count`` fresh agents; different names give agents that share nothing."""
        return [derive_seed(self.settings.run.seed, f"{name}, agent {i}") for i in range(count)]

    def _agent_seeds(self, proxies: int) -> list[int]:
        each, name = self.config.agents_per_proxy, f"generation {self.epoch}"
        if self.config.common_random_numbers:
            return self.seeds_of(name, each) * proxies
        return self.seeds_of(name, each * proxies)

    def histograms(self) -> dict[str, Tensor]:
        """The mean's parameters by network, for TensorBoard."""
        if not self.mean.isfinite().all():
            return {}
        split = self.stages.parameters.split(self.mean.detach())
        return {f"parameters/{name}": part[0] for name, part in split.items()}

    # -- whole runs ---------------------------------------------------------------------------------------------

    def training_state(self) -> dict[str, Any]:
        search = {
            "strategy": self.strategy.state_dict(), "archive": self.archive.state_dict(), "solved": self.solved,
        }  # fmt: skip
        return {"real_steps": self.real_steps, "evolution": search}

    def load_training_state(self, state: dict[str, Any]) -> None:
        self.real_steps, search = state["real_steps"], state["evolution"]
        self.strategy.load_state_dict(search["strategy"])
        self.archive.load_state_dict(search["archive"])
        self.solved = search["solved"]

    def close(self) -> None:
        self.workers.close()


def build(settings: Settings) -> PopulationModule:
    """The module of a search. Raises SettingError where agent and environment do not fit."""
    run = settings.run
    every = run.checkpoint_every if "checkpoint_every" in settings.given else 1  # a generation is worth keeping
    if run.target_return is not None:  # a resumed run may have got another one
        settings = settings.replace(solved_reward=run.target_return, quit_when_solved=True)
    settings = settings.replace(epochs=settings.proxy.generations, eval_every=1, checkpoint_every=every)
    if run.num_seeds > 1:
        raise SettingError(f"num_seeds is {run.num_seeds}; allowed with {run.implementation}: 1 (see bash_train.sh)")
    stages = stages_of(settings.proxy, run.gamename)
    check_spaces(run, agent_class(run.agent), stages.spaces, run.agent)
    workers = make_workers(settings.proxy, run.agent, settings.agent, run.gamename, run.num_workers, run.ray_address)
    return PopulationModule(settings, workers, stages)
