"""The LightningModule of a synthetic environment that is fitted to transitions of the real one, without a search."""

import math
import time
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

from control.cli.settings import Settings
from control.evolution.cluster import Workers
from control.evolution.inner_loop import InnerLoop
from control.evolution.teachers import is_teacher, teacher
from control.evolution.transitions import check_agents, recorded
from control.lightning.proxy import ProxyModule
from control.reports.tags import HELD_OUT, LEARNING_RATE, MODEL_LOSSES, SPEED
from envs.make import Stages
from models.proxies.synthetic.supervised import PARTS, Fit
from models.registry import named_agents
from models.settings import SettingError
from models.streams import Streams, derive_seed

_HELD_OUT = 0.1  # share of the transitions


class SupervisedModule(ProxyModule):
    """Fits the networks of state, reward and end to transitions, of which a tenth is held out (`Fit`). An epoch is a
    twentieth of the updates; after each, every network keeps the parameters with the lowest held-out loss so far.

    Transitions follow from the seed, so a run that goes on records them again, and a checkpoint has none. Parameters
    are those of the fit; ``proxy [1, D]`` is the synthetic environment that they make.
    """

    steps_on = "replayed"
    networks: Any
    proxy: Tensor
    lowest: Tensor  # held-out loss of each network

    def __init__(self, settings: Settings, workers: Workers, stages: Stages):
        super().__init__(settings, workers, stages)
        initial = stages.initial(Streams([derive_seed(settings.run.seed, "initial stand-in 0")]))
        self.register_buffer("proxy", initial.clone())
        self.register_buffer("lowest", torch.full((len(PARTS),), math.inf))
        self.networks = stages.parameters
        self.fitted = Fit(self.networks, initial)
        self.optimizer = torch.optim.Adam(self.fitted.parameters(), lr=settings.proxy.fit_lr, fused=True)
        self.updates = -(-settings.proxy.fit_updates // settings.epochs)  # of an epoch
        self.errors: dict[str, float] = {}  # of `proxy` on held-out transitions

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.optimizer]

    def on_train_start(self) -> None:
        super().on_train_start()
        run = self.settings.run
        loop = InnerLoop(self.config, run.agent, self.settings.agent, run.gamename, run.num_threads)
        transitions = recorded(loop, run.seed)
        self.real_steps = len(transitions)
        streams = Streams.named([run.seed], "held-out transitions")
        learned, held_out = transitions.split(_HELD_OUT, streams)
        self.learned, self.held_out = transitions[learned], transitions[held_out]
        self.fitted.scale_to(self.learned)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.epoch, started = self.current_epoch + 1, time.perf_counter()
        config, total = self.settings.proxy, self.updates * self.settings.epochs
        schedule = OneCycleLR(self.optimizer, config.fit_lr, total + 1, last_epoch=self.gradient_steps - 1)
        generator = torch.Generator().manual_seed(derive_seed(self.settings.run.seed, f"batches of epoch {self.epoch}"))
        sums = torch.zeros(len(PARTS))
        for _ in range(self.updates):
            rows = torch.randint(len(self.learned), (config.fit_batch,), generator=generator)
            losses = torch.stack(self.fitted.losses(self.learned[rows]))
            self.optimizer.zero_grad()
            losses.sum().backward()
            self.optimizer.step()
            schedule.step()
            sums += losses.detach()
        self.gradient_steps += self.updates
        self.env_steps = self.env_steps + self.updates * config.fit_batch
        rate = self.updates * config.fit_batch / (time.perf_counter() - started)
        self.row = dict(zip(MODEL_LOSSES, (sums / self.updates).split(1), strict=True))
        self.row |= {SPEED: torch.tensor([rate]), LEARNING_RATE: torch.tensor(schedule.get_last_lr())}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if self.trainer.sanity_checking:
            return
        networks, now = self.networks, self.fitted.folded()
        losses = list(self.fitted.errors(now, self.held_out).values())[: len(PARTS)]
        for i, name in enumerate(PARTS):
            if losses[i] < self.lowest[i]:
                self.lowest[i] = losses[i]
                networks.split(self.proxy)[name].copy_(networks.split(now)[name])
        self.errors = self.fitted.errors(self.proxy, self.held_out)
        self.row |= {f"{HELD_OUT}_{name}": torch.tensor([error]) for name, error in self.errors.items()}
        if self.epoch == self.epochs:
            starts = Streams.named([self.settings.run.seed], "wide first states")
            self.proxy.copy_(self.fitted.with_starts(self.proxy, starts))

    def score(self) -> float | None:
        return -float(self.lowest.sum()) if self.errors else None

    def headline(self) -> str:
        return f"held-out loss {float(self.lowest.sum()):.3g}"

    def report(self) -> list[str] | None:
        error = self.errors
        losses = zip(("state", "reward", "end"), error.values(), strict=False)
        parts = [f"{name} {loss:.2g}" for name, loss in losses]
        ends = f"ends missed {100 * error['ends_missed']:.1f} %, false {100 * error['ends_false']:.2f} %"
        return ["held-out:", *parts, ends, f"rollout {error['rollout_error']:.2g}"]

    def histograms(self) -> dict[str, Tensor]:
        """The networks' parameters, for TensorBoard."""
        split = self.stages.parameters.split(self.proxy)
        return {f"weights/{name}": part[0] for name, part in split.items()}

    def provenance(self) -> dict[str, Any]:
        """What the synthetic environment was fitted to, and how far it is from what was held out."""
        config = self.settings.proxy
        return {
            "transitions": self.real_steps, "transitions_from": config.transitions_from,
            "gradient_steps": self.gradient_steps, "held_out": self.errors,
        }  # fmt: skip

    def own_state(self) -> dict[str, Any]:
        return super().own_state() | {"errors": self.errors}

    def take_state(self, state: dict[str, Any]) -> None:
        super().take_state(state)
        self.errors = dict(state["errors"])


def check(settings: Settings, stages: Stages) -> None:
    """Raises SettingError where nothing can be fitted as the settings say, before anything is recorded."""
    run, config = settings.run, settings.proxy
    if run.total_steps is not None:
        raise SettingError("total_steps has no effect with preset supervised; did you mean '--fit_updates'?")
    if config.transitions_from == "agents":
        check_agents(named_agents(run.agent)[0])
    if config.transitions_from == "policy":
        if not is_teacher(config.start_from):
            line = f"start_from is {config.start_from!r}, which is no policy; allowed with preset supervised"
            raise SettingError(f"{line}: an agent's run or checkpoint, or module:function", "start_from")
        teacher(config.start_from, run.gamename, stages.spaces)
