"""Q-learning from replay or from imagined rollouts, for M members in lock-step (Young et al. 2023)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from models.agents.model_generalisation.config import Config
from models.agents.model_generalisation.draws import Draws
from models.agents.model_generalisation.exploration import explore, noise
from models.agents.model_generalisation.imagination import Given, Latent, Numbers, Perfect, Simple, kept_of, part
from models.agents.model_generalisation.learning import imagined, replayed
from models.agents.model_generalisation.replay import Replay, StateReplay, row_bytes
from models.agents.model_generalisation.values import ActionValues
from models.compiling import compiled
from models.contract import Policy, StepAgent
from models.settings import SettingError
from models.spaces import Discrete, Spaces
from models.streams import Streams

CPU = torch.device("cpu")
_OF_ACTING = ("act", "see seen")  # numbers that are drawn once a tick, not for each update


class Agent(StepAgent):
    """``act / observe / learn``, one tick of all members after another, one environment a member.

    Experience replay learns from transitions that happened: ``r + gamma * max_a Q_target(s', a)``, nothing behind the
    end of an episode. With a model an update fits it to a batch of transitions, imagines rollouts from their
    observations by the exploring policy, and learns from every imagined step, weighted by the probability that its
    episode got there. Mean squared error, `DecayingAdam`, a copy to the target network every so many ticks.

    ``dynamics`` is the world itself, for the perfect model alone. Member m acts, remembers and learns by its own
    streams. An update has fixed shapes and asks the device for nothing, so that it can be captured as a graph.
    """

    action_kinds = (Discrete,)
    knows_dynamics = True
    advice = "smaller Q_alpha and model_alpha may help"  # against numbers that are no longer finite

    def __init__(
        self, config: Config, spaces: Spaces, seeds: Sequence[int], dynamics: Any = None, device: torch.device = CPU
    ):
        super().__init__()
        if spaces.is_image or not isinstance(spaces.actions, Discrete):
            raise SettingError("agents with models take vectors of observations and discrete actions")
        self.config, self.spaces, self.seeds, self.device = config, spaces, list(seeds), device
        self.acts_on_stale = config.acts_on_stale
        self.obs_size, self.actions = spaces.obs_shape[0], spaces.actions.n
        self.bits = _has_bits(config, spaces)
        self.starts = config.rollout_batch_size or config.batch_size
        self.model = self._model(dynamics)
        size = self.model.size if self.model else self.obs_size
        self.values = ActionValues(config, size, self.actions, seeds, device)
        self._improve = compiled(self._gradient, device) if config.compile else self._gradient
        self.memory = self._memory(dynamics)
        self.draws = Draws(seeds, self._wanted(), device)
        self.ticks = 0  # environment steps so far
        self.episodes = torch.zeros(len(seeds), dtype=torch.int64, device=device)  # finished
        self._sums: dict[str, Tensor] = {}
        self._updates = 0
        self._now: Numbers = {}
        self._of_updates = [name for name in self.draws.names if name not in _OF_ACTING]

    def _model(self, dynamics: Any) -> Any:
        config = self.config
        if config.model == "none":
            return None
        if config.model == "perfect":
            return Perfect(config, dynamics, self.obs_size, self.starts)
        given = Given(self.obs_size, self.actions, self.bits, self.starts, self.seeds, self.device)
        return Simple(config, given) if config.model == "simple" else Latent(config, given)

    def _memory(self, dynamics: Any) -> Replay | StateReplay:
        capacity, members = self.config.buffer_size, len(self.seeds)
        if self.config.model == "perfect":
            return StateReplay(capacity, members, *kept_of(dynamics), self.device)
        return Replay(capacity, members, self.obs_size, self.actions, self.bits, self.device)

    def _wanted(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Shapes of the random numbers of a tick by kind and name; those of the model are called ``<when> <what>``."""
        config = self.config
        updates, steps = config.updates_per_step, config.rollout_length
        kind, count = noise(config, self.actions)
        wanted: dict[str, dict[str, tuple[int, ...]]] = {"uniform": {"rows": (updates, config.batch_size)}}
        wanted.setdefault(kind, {})["act"] = (1, count)
        if self.model is None:
            return wanted
        wanted[kind]["imagined act"] = (updates, steps, self.starts, count)
        if self.starts_apart:
            wanted["uniform"]["starts"] = (updates, self.starts)
        leading = {"see": (), "fit": (updates,), "begin": (updates,), "step": (updates, steps)}
        wanted.setdefault(self.model.kind, {}).update(
            {
                f"{when} {what}": leading[when] + shape
                for when, shapes in self.model.wanted.items()
                for what, shape in shapes.items()
            }
        )
        return wanted

    @property
    def starts_apart(self) -> bool:
        """Whether rollouts start from rows of their own."""
        return self.config.rollout_batch_size is not None

    @staticmethod
    def needs_dynamics(config: Config) -> bool:
        """Whether it imagines in the world itself."""
        return config.model == "perfect"

    @staticmethod
    def memory_bytes(config: Config, spaces: Spaces, members: int, dynamics: Any) -> int:
        """What the replay memory takes when it is full."""
        if config.model == "perfect":
            columns = StateReplay.columns(*kept_of(dynamics))
        else:
            assert isinstance(spaces.actions, Discrete)
            columns = Replay.columns(spaces.obs_shape[0], spaces.actions.n, _has_bits(config, spaces))
        return members * config.buffer_size * row_bytes(columns)

    # -- acting -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Exploring actions ``[M, 1]`` for ``obs [M, 1, O]``; opens a tick."""
        self._now = self.draws.tick()
        self.ticks += 1
        seen = self._seen(obs, part(self._now, "see"))
        return explore(self.config, self.values(seen), self._now["act"])

    def begin(
        self, envs: int, streams: Streams, *, sample: bool = False, evaluate: bool = False,
        command: Mapping[str, float] | None = None,
    ) -> "Greedy":  # fmt: skip
        """Greedy play, on latents drawn from ``streams``; there is no ``command``."""
        return Greedy(self, streams)

    @torch.no_grad()
    def greedy(self, obs: Tensor, streams: Streams) -> Tensor:
        """``obs [M, E, O]`` -> the best actions ``[M, E]`` int64, of equal values the first. Latent models look at a
        draw of the encoder, as in training, by ``streams``."""
        noise = {}
        if isinstance(self.model, Latent):
            latents = self.model.latents
            draw = streams.normal if latents.normal else streams.uniform
            noise = {"seen": draw(obs.shape[1], latents.features).to(self.device)}
        return self.values(self._seen(obs, noise)).argmax(2)

    def _seen(self, obs: Tensor, noise: Numbers) -> Tensor:
        return self.model.see(obs, noise) if self.model else obs

    # -- remembering and learning ---------------------------------------------------------------------------------

    def visit(self, state: Tensor) -> None:
        """Remember the state ``[M, 1, K]`` that is about to be acted in, where imagination is the world itself."""
        if isinstance(self.memory, StateReplay):
            self.memory.remember(state[:, 0])

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        """Remember a step of every environment: ``[M, 1, ...]``; ``discount`` is 0 behind an end."""
        if isinstance(self.memory, Replay):
            step = (obs, action, next_obs, reward, discount != 0)
            self.memory.remember(*(each[:, 0] for each in step))
        self.episodes += done.sum(1)

    def learning(self) -> Tensor:
        """Who has seen enough to learn, ``[M]`` bool: everybody from `Config.first_update` on."""
        return torch.full((self.members,), self.ticks > self.config.first_update, device=self.device)

    @torch.no_grad()
    def learn(self) -> Tensor:
        """The updates this tick owes. Returns the loss of the values in the last one ``[M]``, NaN while waiting."""
        if self.ticks <= self.config.first_update:
            return torch.full((self.members,), torch.nan, device=self.device)
        if (self.ticks - 1) % self.config.target_update_frequency == 0:
            self.values.copy_to_target()
        for update in range(self.config.updates_per_step):
            losses = self.update({name: self._now[name][:, update] for name in self._of_updates})
            for name, loss in losses.items():
                self._sums[name] = self._sums[name] + loss if name in self._sums else loss
            self._updates += 1
        return losses["loss"]

    def update(self, drawn: Numbers) -> dict[str, Tensor]:
        """One update by the random numbers ``drawn`` for it; losses ``[M]`` by name."""
        batch = self.memory.batch(drawn["rows"])
        losses: dict[str, Tensor] = {}
        if self.model is not None:
            with torch.enable_grad():
                losses = self.model.fit(batch, part(drawn, "fit"))
            batch = self.memory.batch(drawn["starts"]) if self.starts_apart else batch
        loss, gradient = self._improve(batch, drawn)
        self.values.optimizer.update([gradient])
        # A captured graph writes its next results where these are.
        return losses | {"loss": loss.clone()}

    def _gradient(self, batch: Any, drawn: Numbers) -> tuple[Tensor, Tensor]:
        if self.model is None:
            return replayed(self.config, self.values, batch)
        return imagined(self.config, self.values, self.model, batch, drawn)

    # -- for whoever trains -----------------------------------------------------------------------------------------

    def measured(self) -> dict[str, Tensor]:
        """Means of the model's losses ``[M]`` since the last call, by tag."""
        means = {f"train/model_{name}": total / self._updates for name, total in self._sums.items() if name != "loss"}
        self._sums, self._updates = {}, 0
        return means

    def training_state(self) -> dict[str, Any]:
        """All that weights do not hold."""
        return {
            "optimizer": self.values.optimizer.state_dict(),
            "model": self.model.optimizer.state_dict() if isinstance(self.model, Simple | Latent) else None,
            "memory": self.memory.state(), "episodes": self.episodes, "ticks": self.ticks,
            "draws": self.draws.state(),
        }  # fmt: skip

    def load_training_state(self, state: dict[str, Any]) -> None:
        self.values.optimizer.load_state_dict(state["optimizer"])
        if isinstance(self.model, Simple | Latent):
            self.model.optimizer.load_state_dict(state["model"])
        self.memory.load_state(state["memory"])
        self.episodes, self.ticks = state["episodes"].to(self.device), state["ticks"]
        self.draws.load_state(state["draws"])


def _has_bits(config: Config, spaces: Spaces) -> bool:
    """Whether observations are remembered and predicted as bits. Raises SettingError where they cannot be."""
    if config.binary_obs and not spaces.binary:
        raise SettingError("binary_obs is True, but observations of this game are numbers; allowed: false, or null")
    bits = spaces.binary if config.binary_obs is None else config.binary_obs
    if config.bernoulli_logits and not bits:
        raise SettingError("bernoulli_logits is True, but observations are no bits; allowed: false, or null")
    if bits and config.learn_obs_variance:
        raise SettingError("learn_obs_variance is True, but observations are bits; allowed: with binary_obs false")
    return bits


class Greedy(Policy):
    """Greedy play of an agent, on latents drawn from ``streams``."""

    def __init__(self, agent: Agent, streams: Streams):
        self.agent, self.members, self.streams = agent, agent.members, streams

    def act(self, obs: Tensor) -> Tensor:
        return self.agent.greedy(obs, self.streams)
