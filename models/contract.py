"""The interface between agents and the loops that train and test them (control/loops/).

M is the number of members (independent learners, one per seed), E of environments of a member, O the shape of an
observation, A the size of a continuous action (discrete actions have no axis A). A family's ``agent.py`` has one class
``Agent`` that derives from one of three bases:

| base | trained by | must have, besides ``action_kinds`` and ``begin`` |
|---|---|---|
| `EpisodeAgent` | control/loops/episodes.py, between whole episodes | ``observe``, ``learn``, ``main_loss`` |
| `StepAgent` | control/loops/steps.py, after every step | ``act``, ``observe``, ``learn``, ``learning_members`` |
| `InnerAgent` | steps.py, on proxies | the same, ``flat_parameters``, and ``policy_actions`` for ``begin`` |

The loops call ``Agent(config, spaces, seeds)`` with the family's ``Config``, the environment's spaces, and M seeds. All
numbers of member m depend only on ``seeds[m]`` and its experience, and are the same to the bit for any other members.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from models import varied
from models.curiosity import build_curiosity
from models.spaces import Continuous, Discrete, Spaces
from models.state import Stateful
from models.streams import Streams, random_actions
from models.trajectory import Trajectory

Command = Mapping[str, float]
"""The goals that a command-conditioned agent pursues, by name, such as ``{"return": 250.0}``."""


class Policy(Protocol):
    """Chooses the actions in E episodes of each of M ``members`` (independent agents), which begin at the first call of
    `act`. Actions in finished episodes are ignored."""

    members: int

    def act(self, obs: Tensor) -> Tensor:
        """Return actions ``[M, E]`` int64 or ``[M, E, A]`` float32 for ``obs [M, E, *O]``."""

    def current_command(self) -> Mapping[str, Tensor]:
        """Return the current command of each episode, ``{name: [M, E]}`` in the units of `Command`; empty without."""
        return {}

    def advance(self, reward: Tensor) -> None:
        """Update a policy that depends on past rewards by the reward ``[M, E]`` of the last action."""
        return None


class RandomPolicy(Policy):
    """Policy of uniformly random actions in E = ``envs`` episodes. ``streams`` has a random generator per member."""

    def __init__(self, spaces: Spaces, envs: int, streams: Streams):
        self.action_space, self.envs, self.streams, self.members = spaces.actions, envs, streams, len(streams)

    def act(self, obs: Tensor) -> Tensor:
        return random_actions(self.action_space, self.streams, self.envs)


class GreedyNetwork(NamedTuple):
    """The network of one agent whose outputs determine its greedy actions, for an `understudy.policy` file."""

    layers: Sequence[tuple[Tensor, ...]]  # weight [out, in] and bias [out] of each layer, then of its gate, if any
    activations: list[str | float]  # activations of the hidden layers, as in `models.mlp.MLP.member_network`
    head: str  # how outputs become actions, a name in `understudy.policy.HEADS`
    moments: tuple[Tensor, Tensor] | None = None  # mean and scale [O] of observations, if these are normalised
    command: Mapping[str, Tensor] = {}  # name of a command -> parameters [7], `understudy.policy.COMMAND_ROWS`


class Agent(nn.Module, Stateful, ABC):
    """Base class of all agents. Trained weights are parameters ``[M, ...]``, without ``requires_grad`` if the agent
    does not use autograd. Other tensors that `state_dict` saves are buffers ``[M, ...]``."""

    action_kinds: ClassVar[tuple[type[Discrete] | type[Continuous], ...]]
    takes_images: ClassVar[bool] = False  # if False, observations must be vectors, O = (n,)
    takes_cells_only: ClassVar[bool] = False  # if True, observations must be one-hot (`models.spaces.Spaces.one_hot`)
    advice: ClassVar[str] = "a smaller lr may help"  # shown to the user when weights or losses are no longer finite
    optimizers: Sequence[torch.optim.Optimizer] = ()  # saved by Lightning; other optimizers are in `training_state`
    replay_buffer: Any = None  # replay buffer of steps (`models.replay.ReplayBuffer`), if there is one
    device = torch.device("cpu")  # device of observations and actions
    seeds: list[int]
    config: Any
    spaces: Spaces

    @property
    def members(self) -> int:
        return len(self.seeds)

    @abstractmethod
    def begin(
        self, envs: int, streams: Streams, *, sample: bool, evaluate: bool = False, command: Command | None = None
    ) -> Policy:
        """Return a policy with the current weights for E = ``envs`` whole episodes of each member. If ``sample``,
        actions are sampled by the random generators ``streams``, one for each member, otherwise they are greedy. (In
        training, a `StepAgent` acts by `StepAgent.act` instead.) If ``evaluate``, the agent will not learn from the
        episodes. ``command`` replaces goals that a command-conditioned agent would choose."""

    def greedy_network(self, member: int, command: Command) -> GreedyNetwork | None:
        """Return the network of the greedy policy of ``member``, None if a single network does not describe it.
        ``command`` is as in `begin`. Not called if observations are images."""
        return None

    def mean_commands(self) -> dict[str, Tensor]:
        """Return the mean of each member's current commands, ``{name: [M]}`` in the units of `Command`, if any."""
        return {}

    @property
    def command_names(self) -> list[str]:
        """The names that a `Command` for this agent may have."""
        return list(self.mean_commands())

    def status(self) -> dict[str, Tensor]:
        """Return numbers about the training for TensorBoard, ``{tag: [M]}``: the learning rate and, if there is a
        replay buffer, the number of steps in it."""
        status = {}
        if self.optimizers:
            rate = float(self.optimizers[0].param_groups[0]["lr"])
            status["train/learning_rate"] = torch.full((self.members,), rate, dtype=torch.float64)
        if self.replay_buffer is not None:
            status["train/buffer_size"] = torch.full((self.members,), self.replay_buffer.size)
        return status

    def training_state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs in addition to weights and ``optimizers``."""
        return Stateful.state_dict(self)

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `training_state`."""
        Stateful.load_state_dict(self, state)


class EpisodeAgent(Agent):
    """Base class of agents that learn from whole episodes. ``config.schedule`` is a `models.family.EpisodeSchedule`."""

    budget: int | None = None  # steps of a member in the whole run, None without a limit; set by the loop
    main_loss: ClassVar[str]
    """Key of the loss in the result of `learn` that the progress line shows. It must be finite, but need not fall."""

    @abstractmethod
    def observe(self, trajectory: Trajectory, validate: bool = False) -> dict[str, Tensor]:
        """Store episodes and return statistics of them, ``{name: [M]}``. If ``validate``, the agent has not learned
        from these episodes yet, so it may also return validation losses."""

    @abstractmethod
    def learn(self) -> dict[str, Tensor]:
        """Make the gradient steps of one epoch. Return means over them, ``{name: [M]}``, including `main_loss`."""

    def has_collapsed(self, metrics: Mapping[str, Tensor]) -> tuple[Tensor, str]:
        """Return which members can no longer learn, ``[M]`` bool, judged by ``metrics``, the result of `learn`. Also
        return a message for the user that says why."""
        return torch.zeros(self.members, dtype=torch.bool), ""


class StepAgent(Agent):
    """Base class of agents that learn between the steps of their environments: the loop calls ``act``, ``observe`` and
    ``learn`` in turn. E is ``envs``, which must equal ``config.num_envs``.

    An agent may have a method ``values(obs [M, B, O])``, which returns the values of all A actions ``[M, B, A]``, or of
    its policy ``[M, B, 1]``. If ``knows_dynamics``, the constructor takes two more arguments: the environment's
    ``dynamics`` (`envs.tensor.ChanceDynamics`, or None if the environment is no tensor program) and ``device``.
    """

    main_loss: ClassVar[str] = "value_loss"  # name in metrics.csv of the loss that `learn` returns
    knows_dynamics: ClassVar[bool] = False
    acts_on_stale: bool = False  # whether the agent also acts on an episode's last observation, after its end
    envs: int = 1
    updates_per_step: int = 1  # gradient steps after each step, once a member learns; `updates` counts them
    learns_from_rollouts: ClassVar[bool] = False  # whether updates are many steps apart; `metrics` change only then
    budget: int = 1  # steps of a member in the whole run, on which schedules depend; set by the loop before them
    episodes: Tensor  # [M] int64, number of finished episodes

    @abstractmethod
    def act(self, obs: Tensor) -> Tensor:
        """Begin a step. Return exploring actions ``[M, E]`` or ``[M, E, A]`` for ``obs [M, E, *O]``."""

    def visit(self, state: Tensor) -> None:
        """Store the current state ``[M, E, K]`` of the environment's dynamics. Called only if ``knows_dynamics``."""

    @abstractmethod
    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        """Store a step: ``obs`` and ``next_obs [M, E, *O]``, ``action [M, E]`` or ``[M, E, A]``, all others ``[M, E]``.
        ``discount`` is 0 after termination, otherwise 1. ``done`` is True after termination or truncation."""

    @abstractmethod
    def learn(self) -> Tensor:
        """Make the gradient steps after this step. Return the loss ``[M]`` of the last one, NaN for members without."""

    @property
    def first_update(self) -> int:
        """The earliest step at which an update is possible, counted over all environments of a member."""
        return 1

    @abstractmethod
    def learning_members(self) -> Tensor:
        """Return which members have enough experience to learn, ``[M]`` bool. Once True, always True."""

    def updates(self, steps: int, learning_steps: Tensor) -> Tensor:
        """Return the number of gradient steps in the latest ``steps`` steps, ``[M]`` int64. ``learning_steps [M]`` is
        the number of these steps in which each member had enough experience to learn (`learning_members`)."""
        return learning_steps * self.updates_per_step

    def metrics(self) -> dict[str, Tensor]:
        """Return statistics since the last call, ``{tag: [M]}``. They are logged each epoch, with loss and return."""
        return {}

    @staticmethod
    def groups(config: Any, seeds: Sequence[int]) -> list[list[int]]:
        """Return groups of indices of ``seeds``. The members of a group are trained together, with their weights in one
        tensor, so their networks must have the same shapes."""
        return [list(range(len(seeds)))]

    @staticmethod
    def needs_dynamics(config: Any) -> bool:
        """Return whether the agent can learn only in environments that are tensor programs (`envs.tensor.Dynamics`)."""
        return False


class InnerAgent(StepAgent):
    """Base class of `StepAgent`s that can train on proxies (learned environments or rewards), hundreds at once. With
    ``vary_hp``, each member has hyperparameters sampled from its seed. All members must be in one of the `groups`."""

    flat_parameters: nn.Parameter  # [M, D], all weights that actions depend on
    sample_config = staticmethod(varied.sample_config)

    def __init__(self, config: Any, spaces: Spaces, seeds: Sequence[int]):
        super().__init__()
        self.config, self.spaces, self.seeds = config, spaces, list(seeds)
        self.member_configs = [self.sample_config(config, seed) for seed in seeds]
        self.envs = config.num_envs
        self.curiosity: Any = build_curiosity(config, spaces, seeds)  # rewards for novelty, None without them
        self.random_numbers: dict[str, Tensor] = {}  # {name: [M, ...]}, random numbers of the current step
        self.episodes = torch.zeros(len(seeds), dtype=torch.int64)
        self.steps = 0  # number of steps so far in each environment

    @property
    def lr_factor(self) -> float:
        """Current factor on all learning rates, below 1 in an agent that lowers them during training."""
        return 1.0

    def lr_factor_at(self, steps: int) -> float:
        """Return the factor on all learning rates after ``steps`` steps in each environment. With the setting
        ``anneal_lr``, it falls linearly from 1 to 0 over the whole run."""
        return max(0.0, 1 - steps * self.envs / self.budget) if self.config.anneal_lr else 1.0

    @abstractmethod
    def policy_actions(self, flat_parameters: Tensor, obs: Tensor, streams: Streams | None) -> Tensor:
        """Return actions ``[M', E]`` or ``[M', E, A]`` for ``obs [M', E, O]`` by a policy with the weights
        ``flat_parameters [M', D]`` of any number M' of members. Actions are sampled by the random generators
        ``streams``, or greedy if it is None."""

    def with_weights(self, flat_parameters: Tensor) -> Policy:
        """Return the greedy policy of weights ``flat_parameters [M', D]``, for any number of members M'."""
        return AgentPolicy(self, flat_parameters)

    def begin(self, envs: int, streams: Streams, **_: Any) -> Policy:
        """Return the greedy policy of the current weights. No argument has an effect."""
        return self.with_weights(self.flat_parameters)

    def discounts(self) -> Tensor:
        """Return the discount factor of each member, ``[M]``. Learned rewards may depend on it."""
        return torch.full((self.members,), self.config.discount, device=self.device)

    def status(self) -> dict[str, Tensor]:
        rates = [self.lr_factor * member_config.lr for member_config in self.member_configs]
        return {"train/learning_rate": torch.tensor(rates, dtype=torch.float64)} | super().status()

    def count_steps(self, steps: int) -> None:
        """Update counters after compiled code has made ``steps`` steps in each environment."""
        self.steps += steps


class AgentPolicy(Policy):
    """The policy of an ``agent`` with the weights ``flat_parameters [M, D]``. Actions are sampled with the random
    generators ``streams``, or greedy if it is None."""

    def __init__(self, agent: Any, flat_parameters: Tensor, streams: Streams | None = None):
        self.agent, self.flat_parameters, self.streams = agent, flat_parameters, streams
        self.members = len(flat_parameters)

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        return self.agent.policy_actions(self.flat_parameters, obs, self.streams)  # type: ignore[no-any-return]
