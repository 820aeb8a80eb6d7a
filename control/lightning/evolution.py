"""The outer loop: a Lightning callback that moves the centre of a population by the fitness of its members."""

import math
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from control.evolution.strategies import Strategy, make_strategy
from models.proxies.synthetic.config import Config
from models.settings import UserError
from models.streams import Streams

if TYPE_CHECKING:
    from control.lightning.population import ProxyModule


class Archive:
    """The best centres so far by the mean score of the fresh agents that judged them, best first.

    Such a score is a selected maximum: whoever uses a centre of the archive tests it anew.
    """

    def __init__(self, size: int):
        self.size = size
        self.entries: list[tuple[float, int, Tensor]] = []  # (score, generation, centre [D])

    def offer(self, score: float, generation: int, centre: Tensor) -> None:
        """Keep a centre if it is among the best; of equal ones the earlier. One whose agents all failed is none."""
        if not math.isfinite(score):
            return
        self.entries.append((score, generation, centre.clone()))
        self.entries.sort(key=lambda entry: -entry[0])  # stable
        del self.entries[self.size :]

    def state_dict(self) -> dict[str, Any]:
        return {"entries": [list(entry) for entry in self.entries]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.entries = [(score, generation, centre) for score, generation, centre in state["entries"]]


class Evolution(pl.Callback):
    """Asks before every epoch, tells after its validation; an epoch is a generation and validation is fitness.

    A generation's perturbations and agents follow from the seed of the run and its number alone, so nothing of a
    generation under way needs to be kept. With ``quit_when_solved`` the run ends *before* the update of the first
    centre whose fresh agents reach ``solved_reward``, as published.
    """

    def __init__(self, config: Config, seed: int, centre: Tensor):
        self.config, self.seed = config, seed
        self.archive = Archive(config.keep_best)
        self.solved = False
        self.start_from(centre)

    def start_from(self, centre: Tensor) -> None:
        """Begin the search at ``centre [D]``."""
        c = self.config
        self.strategy: Strategy = make_strategy(
            c.strategy, centre, population=c.population, noise_std=c.noise_std, step_size=c.step_size,
            score_transform=c.score_transform, mirrored=c.mirrored, weight_decay=c.weight_decay,
            nes_step_size=c.nes_step_size,
        )  # fmt: skip

    # Lightning's callbacks serve any module; these are a `ProxyModule`'s own and meet no other, hence the ignores.

    def on_train_start(self, trainer: pl.Trainer, module: "ProxyModule") -> None:  # type: ignore[override]
        if module.epoch == 0:
            self.start_from(module.first_centre())
        module.centre.data = self.strategy.centre[None].clone()

    def on_train_epoch_start(self, trainer: pl.Trainer, module: "ProxyModule") -> None:  # type: ignore[override]
        generation = trainer.current_epoch + 1
        streams = Streams.named([self.seed], f"perturbations of generation {generation}")
        module.candidates = self.strategy.ask(streams.normal(self.strategy.rows, self.strategy.centre.shape[0])[0])

    def on_train_epoch_end(self, trainer: pl.Trainer, module: "ProxyModule") -> None:  # type: ignore[override]
        score = module.centre_score
        if score is not None:
            self.archive.offer(score, module.epoch, self.strategy.centre)
            self.solved = self.config.solved_reward is not None and score >= self.config.solved_reward
        if self.solved and self.config.quit_when_solved:
            trainer.should_stop = True
            return
        told = self.strategy.tell(module.fitness, score)
        module.row |= {f"es/{name}": torch.tensor([value]) for name, value in told.items()}
        module.centre.data = self.strategy.centre[None].clone()
        if not self.strategy.centre.isfinite().all():
            raise UserError(
                f"the centre is no longer finite (generation {module.epoch}), so the search stops; the checkpoint of "
                "the generation before is kept: a smaller step_size or noise_std may help"
            )

    def resume_state(self) -> dict[str, Any]:
        return {
            "strategy": self.strategy.state_dict(), "archive": self.archive.state_dict(), "solved": self.solved,
        }  # fmt: skip

    def load_resume_state(self, state: dict[str, Any]) -> None:
        self.strategy.load_state_dict(state["strategy"])
        self.archive.load_state_dict(state["archive"])
        self.solved = state["solved"]
