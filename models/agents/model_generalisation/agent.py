"""Q-learning from replay or from imagined rollouts, for M members in lock-step (Young et al. 2023)."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from models.agents.model_generalisation.config import Config
from models.agents.model_generalisation.experience import States, Transitions
from models.agents.model_generalisation.imagination import Imagination, Latent, ModelSpec, Perfect, Simple, imagined
from models.agents.model_generalisation.values import (
    ActionValues,
    Update,
    compiled,
    exploration_noise,
    explore,
    replayed,
)
from models.contract import Policy, StepAgent
from models.losses import entropy, explained_variance
from models.optim import norms
from models.settings import SettingError
from models.spaces import Discrete, Spaces
from models.state import check_like
from models.streams import NoiseBlocks, Streams

CPU = torch.device("cpu")
_BLOCK, _NUMBERS = 128, 1 << 16  # largest number of steps in a block of noise; about the numbers per member in it


class Agent(StepAgent):
    """Q-learning of M members, one environment each. All members take a step together: ``act / observe / learn``.

    Without a model (experience replay), values learn the TD target ``r + gamma * max_a Q_target(s', a)`` of recorded
    transitions, r alone after termination. With a model, an update first fits it to a batch of transitions. Then it
    imagines rollouts from a batch's observations by the exploring policy. Values learn from every imagined step,
    weighted by the probability that its episode lasted until then. The loss is the mean squared error, the optimiser
    `AdamW`; weights are copied to the target network every ``target_update_frequency`` steps.

    ``dynamics`` is the environment itself, used by the perfect model only. Each member has separate random streams. An
    update has fixed shapes and never waits for the device, so it can be captured as a graph.
    """

    action_kinds = (Discrete,)
    knows_dynamics = True
    advice = "smaller lr and model_lr may help"

    def __init__(
        self, config: Config, spaces: Spaces, seeds: Sequence[int], dynamics: Any = None, device: torch.device = CPU
    ):
        super().__init__()
        assert isinstance(spaces.actions, Discrete)
        self.config, self.spaces, self.seeds, self.device = config, spaces, list(seeds), device
        self.acts_on_stale, self.updates_per_step = config.acts_on_stale, config.updates_per_step
        self.obs_size, self.actions = spaces.obs_shape[0], spaces.actions.n
        self.starts = config.rollout_batch_size or config.batch_size
        bits, members = _has_bits(config, spaces), len(self.seeds)
        spec = ModelSpec(self.obs_size, self.actions, bits, self.starts, self.seeds, device)
        self.model: Any = Imagination(self.obs_size)
        self.replay_buffer: Transitions | States
        if config.model == "perfect":
            self.model = Perfect(dynamics, self.obs_size, self.starts)
            self.replay_buffer = States(config.buffer_size, members, dynamics, device)
        else:
            if config.model != "none":
                self.model = Simple(config, spec) if config.model == "simple" else Latent(config, spec)
            columns = Transitions.layout(self.obs_size, self.actions, bits)
            self.replay_buffer = Transitions(columns, config.buffer_size, members, device)
        self.values = ActionValues(config, self.model.size, self.actions, seeds, device)
        self._optimizers = [opt for opt in (self.values.optimizer, self.model.optimizer) if opt is not None]
        self._improve = compiled(self._gradient, device) if config.compile else self._gradient
        self.noise = self._noise()
        self.steps = 0  # environment steps so far
        self.episodes = torch.zeros(members, dtype=torch.int64, device=device)  # finished
        self._sums: dict[str, Tensor] = {}
        self._acting_q: list[Tensor] = []  # values [M, 1, A] of the latest steps
        self._updates = 0
        self._latest: Update | None = None  # None if there was none since the last call of `metrics`
        self.random_numbers: dict[str, Tensor] = {}  # random numbers of the current step

    def _noise(self) -> NoiseBlocks:
        """Return the random numbers of every step, by name. ``rows`` and ``starts`` sample from the replay buffer,
        ``act`` and ``imagined`` are for exploration. Other names are the model's methods that need them. All but
        ``act`` and ``encode`` have a leading axis of the step's updates."""
        config, updates = self.config, (self.config.updates_per_step,)
        rollout = (*updates, config.rollout_length)
        draw, count = exploration_noise(config, self.actions)
        draw_shapes: dict[Callable[..., Tensor], dict[str, tuple[int, ...]]] = {Streams.uniform: {}}
        draw_shapes[Streams.uniform]["rows"] = (*updates, config.batch_size)
        draw_shapes.setdefault(draw, {})["act"] = (1, count)
        if config.model != "none":
            draw_shapes[draw]["imagined"] = (*rollout, self.starts, count)
            if config.rollout_batch_size is not None:
                draw_shapes[Streams.uniform]["starts"] = (*updates, self.starts)
        leading = {"encode": (), "fit": updates, "begin": updates, "step": rollout}
        model_shapes = {name: (*leading[name], *shape) for name, shape in self.model.noise.items()}
        draw_shapes.setdefault(self.model.draw, {}).update(model_shapes)
        random_numbers = sum(prod(shape) for shapes in draw_shapes.values() for shape in shapes.values())
        # Depends on shapes only, so that a member's numbers do not depend on the number of members.
        steps = max(1, min(_BLOCK, _NUMBERS // random_numbers))
        return NoiseBlocks(
            Streams.from_name(self.seeds, "model generalisation"), list(draw_shapes.items()), steps, self.device
        )

    @staticmethod
    def needs_dynamics(config: Config) -> bool:
        return config.model == "perfect"

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        self.random_numbers = self.noise.next()
        self.steps += 1
        features = self.model.encode(obs, self.random_numbers.get("encode"))
        values = self.values(features)
        self._acting_q.append(values)
        return explore(self.config, values, self.random_numbers["act"])

    def begin(self, envs: int, streams: Streams, **_: Any) -> "Greedy":
        """Return the greedy policy. A latent model samples latents from ``streams``."""
        return Greedy(self, streams)

    def visit(self, state: Tensor) -> None:
        if isinstance(self.replay_buffer, States):
            self.replay_buffer.visit(state)

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        if isinstance(self.replay_buffer, Transitions):
            self.replay_buffer.observe(obs, action, next_obs, reward, discount != 0)
        self.episodes += done.sum(1)

    @property
    def first_update(self) -> int:
        return self.config.first_update + 1

    def learning(self) -> Tensor:
        return torch.full((self.members,), self.steps > self.config.first_update, device=self.device)

    @torch.no_grad()
    def learn(self) -> Tensor:
        if self.steps <= self.config.first_update:
            return torch.full((self.members,), torch.nan, device=self.device)
        if (self.steps - 1) % self.config.target_update_frequency == 0:
            self.values.target_parameters.copy_(self.values.q_network.flat)
        for update in range(self.config.updates_per_step):
            losses = self.update(self.numbers_of_update(update))
            for name, loss in losses.items():
                self._sums[name] = self._sums[name] + loss if name in self._sums else loss
            self._updates += 1
        return losses["loss"]

    def numbers_of_update(self, update: int) -> dict[str, Tensor]:
        """Return the random numbers of one update of the current step."""
        return {name: part[:, update] for name, part in self.random_numbers.items() if name not in ("act", "encode")}

    def update(self, random_numbers: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update the model, then the values, with the ``random_numbers`` of `numbers_of_update`. Return losses ``[M]``
        by name."""
        batch: Any = self.replay_buffer.batch(random_numbers["rows"])
        with torch.enable_grad():
            losses = self.model.fit(batch, random_numbers.get("fit"))
        if "starts" in random_numbers:
            batch = self.replay_buffer.batch(random_numbers["starts"])
        self._latest = self._improve(batch, random_numbers)
        self.values.optimizer.update([self._latest.gradient])
        # A captured graph overwrites these tensors in its next replay.
        return losses | {"loss": self._latest.loss.clone()}

    def _gradient(self, batch: Any, random_numbers: dict[str, Tensor]) -> Update:
        if self.config.model == "none":
            return replayed(self.values, batch)
        return imagined(self.values, self.model, batch, random_numbers)

    def metrics(self) -> dict[str, Tensor]:
        """Return means ``[M]`` since the last call by tag: the model's losses, the values and entropy of exploration.
        Explained variance and gradient norm are the latest update's."""
        means = {f"model/{name}_loss": total / self._updates for name, total in self._sums.items() if name != "loss"}
        self._sums, self._updates = {}, 0
        if self._latest is not None:
            means["train/explained_variance"] = explained_variance(*self._latest[2:])
            means["train/grad_norm"] = norms([self._latest.gradient])
            self._latest = None
        if self._acting_q:
            values = torch.cat(self._acting_q, 1)
            self._acting_q.clear()
            means["train/q_mean"] = values.amax(2).mean(1)
            if self.config.exploration_strat == "softmax":
                means["train/entropy"] = entropy(values / self.config.softmax_temp)
        return means

    def status(self) -> dict[str, Tensor]:
        rate = torch.full((self.members,), self.values.optimizer.lr, dtype=torch.float64)
        buffer_sizes = torch.full((self.members,), self.replay_buffer.size)
        return {"train/learning_rate": rate, "train/buffer_size": buffer_sizes}

    def training_state(self) -> dict[str, Any]:
        return {
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "replay": self.replay_buffer.state_dict(),
            "noise": self.noise.state_dict(),
            "episodes": self.episodes,
            "steps": self.steps,
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.replay_buffer.load_state_dict(state["replay"])
        self.noise.load_state_dict(state["noise"])
        self.episodes = check_like(self.episodes, state["episodes"], "episodes").to(self.device)
        self.steps = check_like(self.steps, state["steps"], "steps")


def _has_bits(config: Config, spaces: Spaces) -> bool:
    """Return whether observations are stored and predicted as bits. Raises SettingError if settings require bits and
    observations are none, or require numbers and they are bits."""
    if config.binary_obs and not spaces.binary:
        raise SettingError("binary_obs is True, but observations of this game are numbers; allowed: false, or null")
    bits = spaces.binary if config.binary_obs is None else config.binary_obs
    if config.bernoulli_logits and not bits:
        raise SettingError("bernoulli_logits is True, but observations are no bits; allowed: false, or null")
    if bits and config.learn_obs_variance:
        raise SettingError("learn_obs_variance is True, but observations are bits; allowed: with binary_obs false")
    return bits


class Greedy(Policy):
    """The greedy policy of an agent. Latent models sample from the encoder, as in training, with ``streams``."""

    def __init__(self, agent: Agent, streams: Streams):
        self.agent, self.members, self.streams = agent, agent.members, streams

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        model, noise = self.agent.model, None
        if "encode" in model.noise:
            noise = model.draw(self.streams, obs.shape[1], model.latents.features).to(obs.device)
        return self.agent.values(model.encode(obs, noise)).argmax(2)
