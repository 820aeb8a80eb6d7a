"""The LightningModule that wraps a population of synthetic environments: an epoch is a generation."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from control.cli.settings import Settings
from control.evolution.cluster import make_workers
from control.evolution.inner_loop import Outcome
from control.evolution.workers import Workers
from control.lightning.evolution import Evolution
from control.lightning.module import RunModule, check_actions, spaces_of
from models.proxies.synthetic.networks import Networks
from models.registry import agent_class
from models.settings import SettingError
from models.streams import Streams, derive_seed


class ProxyModule(RunModule):
    """Trains fresh agents on every member of the population and tests them on the real environment.

    `training_step` does the inner loops of a generation, those of the unperturbed centre among them where its score
    is due; `validation_step` turns the tests into ``fitness [P]``; the `Evolution` callback does the rest. The one
    parameter is the centre, ``[1, D]``.
    """

    can_play = False
    unit, steps_on = "generation", "synthetic"

    def __init__(self, settings: Settings, workers: Workers, networks: Networks):
        super().__init__(settings, [settings.run.seed])
        self.config, self.workers, self.networks = settings.proxy, workers, networks
        self.centre = nn.Parameter(torch.zeros(1, networks.size), requires_grad=False)
        self.evolution = Evolution(self.config, settings.run.seed, self.centre[0])
        self.candidates = torch.zeros(0)
        self.outcome: Outcome | None = None
        self.fitness = torch.zeros(0)
        self.centre_score: float | None = None
        self.real_steps = 0

    # -- the run's side ---------------------------------------------------------------------------------------------

    @property
    def epochs(self) -> int:
        return self.config.generations

    def is_over(self) -> bool:
        solved = self.config.quit_when_solved and self.evolution.solved
        return solved or self.epoch >= self.epochs

    @property
    def target(self) -> float | None:
        return None  # the callback's business: it must end the run before the update

    def callbacks(self) -> list[pl.Callback]:
        return [self.evolution]

    def score(self) -> float | None:
        return self.centre_score

    def headline(self) -> str:
        best = f", centre {self.evolution.archive.entries[0][0]:.0f}" if self.evolution.archive.entries else ""
        return f"fitness {self.fitness.mean():.0f}{best}"

    def report(self) -> list[str] | None:
        parts = [f"fitness {self.fitness.mean():7.1f}", f"best {self.fitness.max():7.1f}"]
        if self.centre_score is not None:
            parts.append(f"centre {self.centre_score:7.1f}")
        return [
            *parts,
            f"{int(self.env_steps.sum()) / 1e6:.2f} M synthetic",
            f"{self.real_steps / 1e6:.2f} M real steps",
        ]

    # -- a generation -------------------------------------------------------------------------------------------------

    def first_centre(self) -> Tensor:
        """The stand-in the search starts from, ``[D]``: of ``initial_draws`` the one whose perturbed copies train the
        best agents. Of random bandits, more than half are flat: no perturbation tells better from worse."""
        config, seed = self.config, self.settings.run.seed
        draws, members = config.initial_draws, config.initial_members
        first = self.networks.initial(Streams([derive_seed(seed, f"initial stand-in {i}") for i in range(draws)]))
        if draws == 1:
            return first[0]
        noise = Streams([derive_seed(seed, f"initial perturbation {i}") for i in range(draws)])
        copies = first.unsqueeze(1) + config.noise_std * noise.normal(members, self.networks.size)
        outcome = self.workers.run(copies.flatten(0, 1), [derive_seed(seed, "initial agent")] * draws * members)
        self._count(outcome)
        scores = outcome.scores.view(draws, members).mean(1).nan_to_num(-torch.inf)
        return first[int(scores.argmax())]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.epoch = self.current_epoch + 1
        config = self.config
        each, centre = config.agents_per_proxy, self.centre.detach()
        proxies = self.candidates.repeat_interleave(each, 0)
        seeds = self._agent_seeds(len(self.candidates))
        if self._centre_is_due():
            proxies = torch.cat([proxies, centre.expand(config.center_agents, -1)])
            seeds = seeds + self.seeds_of(f"centre of generation {self.epoch}", config.center_agents)
        started = time.perf_counter()
        self.outcome = self.workers.run(proxies, seeds)
        self._count(self.outcome)
        self.row = {
            "time/generation": torch.tensor([time.perf_counter() - started]),
            "time/train": torch.tensor([self.outcome.train_seconds]),
            "time/test": torch.tensor([self.outcome.test_seconds]),
        }

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        assert self.outcome is not None
        each, count = self.config.agents_per_proxy, len(self.candidates)
        scores = self.outcome.scores
        self.fitness = scores[: count * each].view(count, each).mean(1)
        of_centre = scores[count * each :]
        self.centre_score = float(of_centre.nanmean()) if len(of_centre) else None
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
        if self.centre_score is not None:
            self.row["es/center_return"] = of_centre.nanmean()[None]
            if self.config.solved_reward is not None:
                self.row["es/center_solved"] = (of_centre >= self.config.solved_reward).float().mean()[None]

    def seeds_of(self, name: str, count: int) -> list[int]:
        """Seeds of ``count`` fresh agents; different names give agents that share nothing."""
        return [derive_seed(self.settings.run.seed, f"{name}, agent {i}") for i in range(count)]

    def _agent_seeds(self, proxies: int) -> list[int]:
        each, name = self.config.agents_per_proxy, f"generation {self.epoch}"
        if self.config.common_random_numbers:
            return self.seeds_of(name, each) * proxies
        return self.seeds_of(name, each * proxies)

    def _centre_is_due(self) -> bool:
        every = self.config.center_every
        return (self.epoch - 1) % every == 0 or self.epoch == self.epochs

    def _count(self, outcome: Outcome) -> None:
        self.env_steps = self.env_steps + int(outcome.steps.sum())
        self.real_steps += outcome.test_steps

    def histograms(self) -> dict[str, Tensor]:
        """The centre's parameters by network, for TensorBoard."""
        if not self.centre.isfinite().all():
            return {}
        return {f"parameters/{name}": part[0] for name, part in self.networks.split(self.centre.detach()).items()}

    # -- whole runs ---------------------------------------------------------------------------------------------

    def own_state(self) -> dict[str, Any]:
        return {"real_steps": self.real_steps, "evolution": self.evolution.resume_state()}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.real_steps = state["real_steps"]
        self.evolution.load_resume_state(state["evolution"])

    def finish(self, folder: Path) -> Iterator[tuple[str, object]]:
        from control.commands.choose_proxy import conclude

        yield from conclude(self, folder)

    def next_commands(self, folder: Path) -> list[str]:
        proxy = folder / "proxy.safetensors"
        if not proxy.exists():
            return []
        agent = self.settings.run.agent
        return [
            f"trainer.py --eval_agent {proxy} --agent {agent} --num_agents 10",
            f"trainer.py --eval_agent {proxy} --agent {agent} --num_agents 10 --vary_hp",
        ]

    def close(self) -> None:
        self.workers.close()


def build(settings: Settings) -> ProxyModule:
    """The module of a search. Raises SettingError where agent and environment do not fit."""
    run = settings.run
    every = run.checkpoint_every if "checkpoint_every" in settings.given else 1  # a generation is worth keeping
    if run.target_return is not None:  # a resumed run may have got another one
        settings = settings.replace(solved_reward=run.target_return, quit_when_solved=True)
    settings = settings.replace(epochs=settings.proxy.generations, eval_every=1, checkpoint_every=every)
    spaces = spaces_of(run.gamename)
    check_actions(run, spaces, agent_class(run.agent), name=run.agent)
    if spaces.is_image:
        raise SettingError(f"gamename is {run.gamename!r}, which shows images; allowed: vectors of observations")
    if run.num_seeds > 1:
        raise SettingError(f"num_seeds is {run.num_seeds}; allowed with {run.implementation}: 1 (see bash_train.sh)")
    workers = make_workers(settings.proxy, run.agent, settings.agent, run.gamename, run.num_workers, run.ray_address)
    return ProxyModule(settings, workers, Networks(settings.proxy, spaces))
