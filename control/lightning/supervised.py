"""The LightningModule that fits a synthetic environment to transitions of the real environment, without a search."""

import dataclasses
import math
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from control.cli.settings import Settings
from control.evolution.cluster import Workers
from control.evolution.inner_loop import InnerLoop, fresh_seeds
from control.evolution.strategies import Archive
from control.lightning.proxy_module import SyntheticEnvironmentModule
from control.reports.tags import HELD_OUT, LEARNING_RATE, MODEL_LOSSES, SPEED
from envs.make import ProxyFactory
from models.off_policy import OffPolicyAgent, TwinCriticAgent
from models.proxies.supervised import PARTS, Fit, Transitions
from models.settings import SettingError
from models.spaces import Discrete
from models.streams import Streams, derive_seed

# Number of recorded agents. With more agents, each would learn less, and reach the goal of Acrobot less often.
_NUM_AGENTS = 2
_HELD_OUT_FRACTION = 0.1  # fraction of the transitions that measure the error
_MOST_HELD_OUT = 20_000  # maximum number of held-out transitions


class SupervisedModule(SyntheticEnvironmentModule):
    """The LightningModule of a synthetic environment whose networks are fitted to transitions of the real environment
    (`Fit`), not evolved.

    ``fit_updates`` updates are divided equally between ``generations`` epochs. ``mean`` has the weights of each network
    with its lowest held-out loss so far. Transitions depend only on the seed, so a resumed run records them again.
    """

    unit = "epoch"
    evolves = False
    networks: Any
    lowest: Tensor  # lowest held-out loss of each network so far, in the order of `PARTS`

    def __init__(self, settings: Settings, workers: Workers, factory: ProxyFactory):
        super().__init__(settings, workers, factory)
        self.steps_kind = "replayed"
        self.legend = "losses on held-out transitions; missed, false: shares of ends; rollout: error after many steps"
        self.networks = factory.parameters
        self.best_means = Archive(self.config.keep_best)
        initial = factory.initial(Streams([derive_seed(settings.run.seed, "initial stand-in 0")]))
        self.mean.data = initial.clone()
        self.weights = nn.Parameter(initial)  # [1, D], in the standardised units of `Fit`; the mean is in raw units
        self.register_buffer("lowest", torch.full((len(PARTS),), math.inf))
        self.optimizer = torch.optim.Adam([self.weights], fused=True)
        self.updates = math.ceil(settings.proxy.fit_updates / settings.proxy.generations)  # number in an epoch
        self.errors: dict[str, float] = {}  # the mean's errors on held-out transitions

    @property
    def archive(self) -> Archive:
        return self.best_means

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [*super().configure_optimizers(), self.optimizer]

    def on_train_start(self) -> None:
        """Record the transitions, divide them into ``learned`` and ``held_out`` ones, and prepare the ``fit``."""
        super().on_train_start()
        run = self.settings.run
        loop = InnerLoop(self.config, run.agent, self.settings.agent, run.gamename, run.num_threads)
        transitions = record_transitions(loop, run.seed)
        self.real_steps = len(transitions.obs)
        fraction = min(_HELD_OUT_FRACTION, _MOST_HELD_OUT / self.real_steps)
        self.learned, self.held_out = transitions.split(fraction, Streams.from_name([run.seed], "held-out transitions"))
        self.fit = Fit(self.networks, self.learned)

    def train_epoch(self) -> None:
        """Make the updates of an epoch, and set ``row`` to the mean loss of each network."""
        start = time.perf_counter()
        self.epoch = self.current_epoch + 1
        config = self.settings.proxy
        # The schedule has a rate for every update, and a last rate after all updates. A resumed run continues it.
        num_rates = self.updates * config.generations + 1
        schedule = OneCycleLR(self.optimizer, config.fit_lr, num_rates, last_epoch=self.gradient_steps - 1)
        generator = torch.Generator().manual_seed(derive_seed(self.settings.run.seed, f"batches of epoch {self.epoch}"))
        sums = torch.zeros(len(PARTS))
        for _ in range(self.updates):
            batch_indices = torch.randint(len(self.learned.obs), (config.fit_batch,), generator=generator)
            losses, gradient = self.fit.losses(self.weights.detach(), self.learned.select(batch_indices))
            self.weights.grad = gradient
            self.optimizer.step()
            schedule.step()
            sums += losses
        self.gradient_steps += self.updates
        self.env_steps = self.env_steps + self.updates * config.fit_batch
        rate = self.updates * config.fit_batch / (time.perf_counter() - start)
        mean_losses = sums / self.updates
        self.row = dict(zip(MODEL_LOSSES, mean_losses.split(1), strict=True))  # [1] each
        self.row |= {SPEED: torch.tensor([rate]), LEARNING_RATE: torch.tensor(schedule.get_last_lr())}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Measure the losses on held-out transitions. Copy the weights of each network whose loss is its lowest so far
        into the mean. Set ``errors`` and ``mean_fitness`` (minus the sum of the lowest losses), and offer the mean to
        the archive."""
        if self.trainer.sanity_checking:
            return
        mean = self.mean.detach()
        new_weights = self.fit.convert_to_raw_units(self.weights.detach())
        new_errors = self.fit.errors(new_weights, self.held_out)
        # The loss of each network, in the order of `PARTS`.
        losses = torch.tensor([new_errors[tag.removeprefix("model/")] for tag in MODEL_LOSSES])
        # Name of a network -> view of its weights. A copy into a view in ``mean_networks`` changes the mean.
        mean_networks, new_networks = self.networks.split(mean), self.networks.split(new_weights)
        for name, is_lowest in zip(PARTS, losses < self.lowest, strict=True):
            if is_lowest:
                mean_networks[name].copy_(new_networks[name])
        self.lowest.copy_(losses.minimum(self.lowest))
        self.errors = self.fit.errors(mean, self.held_out)
        self.row |= {f"{HELD_OUT}_{name}": torch.tensor([error]) for name, error in self.errors.items()}
        if self.epoch == self.epochs:  # only the last epoch changes the initial states
            self.fit.fit_initial_states(mean, Streams.from_name([self.settings.run.seed], "wide first states"))
        self.mean_fitness = -float(self.lowest.sum())
        self.archive.offer(self.mean_fitness, self.epoch, mean[0].clone())

    def columns(self) -> dict[str, str]:
        names = {"state": "obs_loss", "reward": "reward_loss", "end": "termination_loss"}  # heading -> name of an error
        names |= {"missed": "ends_missed", "false": "ends_false", "rollout": "rollout_error"}
        return {heading: f"{self.errors[name]:.2g}" for heading, name in names.items()}

    def fitted_to(self) -> dict[str, Any]:
        """Describe the fit: number (``transitions``) and source (``transitions_from``) of the transitions, number of
        updates (``gradient_steps``), and errors on held-out transitions (``held_out``)."""
        source = {name: getattr(self.settings.proxy, name) for name in ("transitions", "transitions_from")}
        return source | {"gradient_steps": self.gradient_steps, "held_out": self.errors}

    def run_state(self) -> dict[str, Any]:
        return super().run_state() | {"errors": self.errors, "archive": self.archive.state_dict()}

    def load_run_state(self, state: dict[str, Any]) -> None:
        super().load_run_state(state)
        self.errors = dict(state["errors"])
        self.archive.load_state_dict(state["archive"])


def record_transitions(loop: InnerLoop, seed: int) -> Transitions:
    """Record ``loop.config.transitions`` transitions of the real environment: of two agents of the first algorithm of
    ``loop``, which learn there or, if ``transitions_from`` is "random", act at random. ``seed`` determines the agents.
    Raises SettingError for an algorithm without a replay buffer."""
    loop = loop.for_implementation(loop.implementations[0])  # a copy, because its settings are changed below
    if not issubclass(loop.agent_class, OffPolicyAgent):
        problem = f"agent is {loop.implementations[0]!r}, which keeps no transitions in a replay buffer"
        raise SettingError(f"{problem}; allowed with preset supervised: agents such as DDQN, TD3 or SAC", "agent")
    config: Any = loop.config
    steps = math.ceil(config.transitions / _NUM_AGENTS)  # number of steps of each agent
    # Each agent makes exactly ``steps`` steps, without tests in between.
    limits: dict[str, Any] = {"inner_rule": "budget", "train_episodes": None, "test_every": None, "inner_steps": steps}
    loop.config = dataclasses.replace(config, **limits)
    # The replay buffer holds all steps.
    changes = {"buffer_size": max(loop.agent_config.buffer_size, steps + loop.agent_config.num_envs)}
    if config.transitions_from == "random":
        # An agent acts at random until it has played ``init_episodes`` episodes.
        changes["init_episodes"] = 10**9
    loop.agent_config = dataclasses.replace(loop.agent_config, **changes)
    seeds = fresh_seeds(seed, "transitions", _NUM_AGENTS)
    transitions: list[Transitions] = []
    for group in loop.agent_class.groups(loop.agent_config, seeds):  # indices of agents that one program can train
        step_loop = loop.begin(proxies=None, seeds=[seeds[i] for i in group])  # None: on the real environment
        loop.train_to_end(step_loop)
        transitions.append(_replayed_transitions(step_loop.agent))
    fields = [torch.cat(tensors) for tensors in zip(*transitions, strict=True)]
    return Transitions(*fields).select(torch.arange(config.transitions))  # without the surplus of rounding up


def _replayed_transitions(agent: Any) -> Transitions:
    """Return the transitions in the replay buffer of ``agent``, which has M members, E environments of each, and T
    steps of each environment. Their shape is ``[M E T, ...]``, so that the steps of an episode are adjacent."""
    buffer = agent.replay_buffer.rows()  # {name: [T E, M, ...]}
    is_discrete = isinstance(agent.spaces.actions, Discrete)
    if isinstance(agent, TwinCriticAgent):  # actions are vectors: one-hot if discrete, else scaled to [-1, 1]
        vector = buffer["action"]
        buffer["action"] = vector.argmax(-1) if is_discrete else agent.centre + agent.half_range * vector
    elif is_discrete:
        buffer["action"] = buffer["action"].long()
    buffer["terminated"] = (buffer["discount"] == 0).float()
    fields: list[Tensor] = []
    for name in Transitions._fields:
        by_step = buffer[name].unflatten(0, (-1, agent.envs))  # [T, E, M, ...]
        fields.append(by_step.transpose(0, 2).flatten(0, 2))  # [M E T, ...]
    return Transitions(*fields)
