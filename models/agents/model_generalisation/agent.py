"""Q-learning from replay or from imagined rollouts (Young et al. 2023), for M members in lock-step.

A member is an independent agent with one seed and one environment. A model predicts the steps of an environment. With a
model, action values learn from rollouts that the model imagines. A latent model first encodes an observation as latent
variables, which it samples. O is the number of numbers in an observation, A of actions.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from models.agents.model_generalisation import imagination
from models.agents.model_generalisation.config import Config
from models.agents.model_generalisation.values import (
    ActionValues,
    States,
    Transitions,
    Update,
    compile_function,
    exploration_noise,
    explore,
    replay_update,
)
from models.contract import AgentPolicy, Command, GreedyNetwork, StepAgent
from models.losses import categorical_entropy, explained_variance
from models.optim import norms
from models.settings import SettingError
from models.spaces import Discrete, Spaces
from models.streams import NoiseBlocks, Streams

CPU = torch.device("cpu")
# A block of noise has at most _MAX_STEPS steps, and at most _MAX_NUMBERS numbers per member if it has several steps.
_MAX_STEPS, _MAX_NUMBERS = 128, 1 << 16


class Agent(StepAgent):
    """Q-learning of M members with one environment each. All members take a step together: ``act / observe / learn``.

    Without a model (experience replay), values learn the TD target ``r + gamma * max_a Q_target(s', a)`` of recorded
    transitions, or r after termination. With a model, an update first fits the model to a batch of transitions. Then
    the exploring policy plays imagined rollouts from the observations of a batch. Values learn from every imagined
    step, weighted by the probability that the episode has lasted until this step. The loss is the mean squared error,
    and the optimiser is `AdamW`. Weights are copied to the target network every ``target_update_frequency`` steps.

    An update has fixed shapes and never waits for the device, so it can be captured as a graph.
    """

    saved = ("replay_buffer", "noise", "episodes", "steps")
    action_kinds = (Discrete,)
    knows_dynamics = True
    advice = "smaller lr and model_lr may help"

    def __init__(
        self, config: Config, spaces: Spaces, seeds: Sequence[int], dynamics: Any = None, device: torch.device = CPU
    ):
        super().__init__()
        self.config, self.spaces, self.seeds, self.device = config, spaces, list(seeds), device
        self.acts_on_stale, self.updates_per_step = config.acts_on_stale, config.updates_per_step
        self.obs_size, self.num_actions = spaces.obs_shape[0], spaces.action_size
        self.num_rollouts = config.rollout_batch_size or config.batch_size  # imagined rollouts per update
        members = len(self.seeds)
        has_bits = _has_bits(config, spaces)
        spec = imagination.ModelSpec(self.obs_size, self.num_actions, has_bits, self.num_rollouts, self.seeds, device)
        self.model: Any = imagination.Imagination(self.obs_size)  # replaces a model: `encode` returns the observations
        self.replay_buffer: Transitions | States
        if config.model == "perfect":
            self.model = imagination.PerfectModel(dynamics, self.obs_size, self.num_rollouts)
            self.replay_buffer = States(config.buffer_size, members, dynamics, device)
        else:
            if config.model != "none":
                model_class = imagination.SimpleModel if config.model == "simple" else imagination.LatentModel
                self.model = model_class(config, spec)
            sizes = (self.obs_size, self.num_actions, has_bits)
            self.replay_buffer = Transitions(*sizes, config.buffer_size, members, device)
        self.values = ActionValues(config, self.model.size, self.num_actions, seeds, device)
        optimizers = (self.values.optimizer, self.model.optimizer)
        self.optimizers = [optimizer for optimizer in optimizers if optimizer is not None]
        self._compute_update = compile_function(self._values_update, device) if config.compile else self._values_update
        self.noise = self._noise_blocks()
        self.steps = 0  # environment steps so far
        self.episodes = torch.zeros(members, dtype=torch.int64, device=device)  # number of finished episodes
        self.random_numbers: dict[str, Tensor] = {}  # {name: [M, ...]}, random numbers of the current step
        # For `metrics`, since its last call:
        self._loss_sums: dict[str, Tensor] = {}  # sums of losses [M] over updates
        self._acting_q: list[Tensor] = []  # action values [M, 1, A] of each step
        self._num_updates = 0
        self._latest_update: Update | None = None

    def _noise_blocks(self) -> NoiseBlocks:
        """Return the source of the random numbers of every step, by name. "rows" and "starts" choose rows of the replay
        buffer: for the batch, and for the starts of imagined rollouts. "act" and "imagined" choose actions: in the
        environment, and in imagined rollouts. Other names, such as "fit", are methods of the model that need them."""
        config = self.config
        # Sampler -> name -> shape without the axis of members: ``{Streams.uniform: {"rows": (1, 320)}, ...}``.
        draws: dict[Callable[..., Tensor], dict[str, tuple[int, ...]]] = defaultdict(dict)
        updates, rollout_steps = config.updates_per_step, config.rollout_length
        explore_sampler, count = exploration_noise(config, self.num_actions)
        draws[Streams.uniform]["rows"] = (updates, config.batch_size)
        draws[explore_sampler]["act"] = (1, count)  # 1 is the number of environments
        if config.model != "none":
            draws[explore_sampler]["imagined"] = (updates, rollout_steps, self.num_rollouts, count)
            if config.rollout_batch_size is not None:
                draws[Streams.uniform]["starts"] = (updates, self.num_rollouts)
        leading_axes = {"encode": (), "fit": (updates,), "begin": (updates,), "step": (updates, rollout_steps)}
        for name, shape in self.model.noise_shapes.items():
            draws[self.model.sample_noise][name] = (*leading_axes[name], *shape)
        numbers_per_step = sum(sum(map(prod, shapes.values())) for shapes in draws.values())
        # A block's length must not depend on the number of members, because random numbers depend on this length.
        steps = max(1, min(_MAX_STEPS, _MAX_NUMBERS // numbers_per_step))
        streams = Streams.from_name(self.seeds, "model generalisation")
        return NoiseBlocks(streams, list(draws.items()), steps, self.device)

    @staticmethod
    def needs_dynamics(config: Config) -> bool:
        return config.model == "perfect"  # the model is the environment itself

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        self.random_numbers = self.noise.next()
        self.steps += 1
        features = self.model.encode(obs, self.random_numbers.get("encode"))
        q = self.values(features)
        self._acting_q.append(q)  # `metrics` reads it
        return explore(self.config, q, self.random_numbers["act"])

    def visit(self, state: Tensor) -> None:
        """Store the environment's state ``[M, 1, K]``, if the model is the environment itself."""
        if isinstance(self.replay_buffer, States):
            self.replay_buffer.visit(state)

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        if isinstance(self.replay_buffer, Transitions):
            continues = discount != 0
            self.replay_buffer.add(obs=obs, next_obs=next_obs, reward=reward, action=action, continues=continues)
        self.episodes += done.sum(1)

    @property
    def first_update(self) -> int:
        """The earliest step with an update. (The setting of this name is the number of steps before it.)"""
        return self.config.first_update + 1

    def learning_members(self) -> Tensor:
        return torch.full((self.members,), self.steps > self.config.first_update, device=self.device)

    @torch.no_grad()
    def learn(self) -> Tensor:
        if self.steps <= self.config.first_update:
            return torch.full((self.members,), torch.nan, device=self.device)
        previous_steps = self.steps - 1  # number of steps before this step
        if previous_steps % self.config.target_update_frequency == 0:
            self.values.target_parameters.copy_(self.values.q_network.flat)
        for update in range(self.config.updates_per_step):
            losses = self.update(self.random_numbers_of_update(update))
            for name, loss in losses.items():
                self._loss_sums[name] = self._loss_sums.get(name, 0.0) + loss
            self._num_updates += 1
        return losses["loss"]

    def random_numbers_of_update(self, update: int) -> dict[str, Tensor]:
        """Return the random numbers of the update with index ``update`` in the current step, ``{name: [M, ...]}``."""
        names_of_step = ("act", "encode")  # the only names without an axis of updates
        return {name: values[:, update] for name, values in self.random_numbers.items() if name not in names_of_step}

    def update(self, random_numbers: dict[str, Tensor]) -> dict[str, Tensor]:
        """Fit the model to a batch, then update the action values. The random numbers "rows" select the batch. If there
        are "starts", these select another batch, in which imagined rollouts start. Return the losses of the model by
        name, and the ``loss`` of the action values, ``{name: [M]}``."""
        batch: Any = self.replay_buffer.batch(random_numbers["rows"])
        with torch.enable_grad():
            losses = self.model.fit(batch, random_numbers.get("fit"))
        if "starts" in random_numbers:
            batch = self.replay_buffer.batch(random_numbers["starts"])
        self._latest_update = self._compute_update(batch, random_numbers)
        self.values.q_network.flat.grad = self._latest_update.gradient
        self.values.optimizer.step()
        # A clone, because a captured graph overwrites its results in the next update.
        return losses | {"loss": self._latest_update.loss.clone()}

    def _values_update(self, batch: Any, random_numbers: dict[str, Tensor]) -> Update:
        """Compute an update of the action values, from the transitions of ``batch`` or imagined rollouts from there."""
        if self.config.model == "none":
            return replay_update(self.values, batch)
        return imagination.imagined_update(self.values, self.model, batch, random_numbers)

    def greedy_network(self, member: int, command: Command) -> GreedyNetwork | None:
        """Return the network of the action values or, with a latent model, the encoder followed by this network."""
        q_network = self.values.q_network
        layers, activations = q_network.mlp.member_network(q_network.flat, member)
        if isinstance(self.model, imagination.LatentModel):
            encoder, latents = self.model.encoder, self.model.latents
            first_layers, first_activations = encoder.mlp.member_network(encoder.flat, member)
            weight, bias = first_layers[-1]
            # Only outputs for the likeliest latent, which the activation ``latents.mode`` computes from them.
            first_layers[-1] = weight[: latents.size], bias[: latents.size]
            layers, activations = first_layers + layers, [*first_activations, latents.mode, *activations]
        return GreedyNetwork(layers, activations, "argmax")

    def begin(self, envs: int, streams: Streams, **_: Any) -> AgentPolicy:
        return AgentPolicy(self, self.values.q_network.flat.detach(), streams)

    def policy_actions(self, flat_parameters: Tensor, obs: Tensor, streams: Streams) -> Tensor:
        """Return the best actions ``[M, E]`` int64 for ``obs [M, E, O]``, with weights ``flat_parameters [M, D]`` of
        the action values; the first of equally good ones. Latent models sample latents by ``streams``."""
        noise = None
        if isinstance(self.model, imagination.LatentModel):
            noise = self.model.sample_noise(streams, obs.shape[1], self.model.latents.num_features).to(obs.device)
        features = self.model.encode(obs, noise)
        return self.values.q_network.activations(features, flat_parameters)[-1].argmax(2)

    def metrics(self) -> dict[str, Tensor]:
        """Return statistics since the last call, ``{tag: [M]}``: mean losses of the model (``model/<name>_loss``), the
        ``explained_variance`` and ``grad_norm`` of the latest update, and the mean best action value (``q_mean``) and
        ``entropy`` of the policy at the steps."""
        self._loss_sums.pop("loss", None)  # the loss of the action values, which `learn` has returned
        means = {f"model/{name}_loss": total / self._num_updates for name, total in self._loss_sums.items()}
        self._loss_sums, self._num_updates = {}, 0
        if self._latest_update is not None:
            update = self._latest_update
            means["train/explained_variance"] = explained_variance(update.chosen_q, update.td_target, update.weight)
            means["train/grad_norm"] = norms([update.gradient])
            self._latest_update = None
        if self._acting_q:
            q = torch.cat(self._acting_q, 1)  # [M, steps, A]
            self._acting_q.clear()
            means["train/q_mean"] = q.amax(2).mean(1)
            if self.config.exploration_strat == "softmax":
                means["train/entropy"] = categorical_entropy(q / self.config.softmax_temp).mean(1)
        return means


def _has_bits(config: Config, spaces: Spaces) -> bool:
    """Return whether observations are stored and predicted as bits. Raises SettingError if a setting requires bits but
    the observations are numbers, or requires numbers but they are bits."""
    if config.binary_obs and not spaces.binary:
        raise SettingError("binary_obs is True, but observations of this game are numbers; allowed: false, or null")
    has_bits = spaces.binary if config.binary_obs is None else config.binary_obs
    if config.bernoulli_logits and not has_bits:
        raise SettingError("bernoulli_logits is True, but observations are no bits; allowed: false, or null")
    if has_bits and config.learn_obs_variance:
        raise SettingError("learn_obs_variance is True, but observations are bits; allowed: with binary_obs false")
    return has_bits
