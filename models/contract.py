"""What an agent is to the loops that train and play it (control/loops/). No agent needs to be read to write another.

Every tensor leads with the member axis M: a member is one independent learner, with a seed of its own. E is the number
of environments a member has, O the shape of an observation, A the size of a continuous action (discrete actions have
no such axis). A family's ``agent.py`` has one class ``Agent`` that derives from one of three:

| base | trained by | must have, beside ``action_kinds`` and ``begin`` |
|---|---|---|
| `EpisodeAgent` | control/loops/episodes.py, between whole episodes | ``observe``, ``learn``, ``main_loss`` |
| `StepAgent` | control/loops/steps.py, after every step | ``act``, ``observe``, ``learn``, ``learning`` |
| `InnerAgent` | the same, also on proxies | all of the above, and ``online``, ``with_weights``, ``select`` |

It is made by ``Agent(config, spaces, seeds)``: the family's ``Config``, what the environment shows and takes, and M
seeds. What member m computes depends on ``seeds[m]`` and its own experience alone, to the bit and whatever M is
(docs/design.md lists the traps). `models.registry.agent_class` raises TypeError for a class that lacks something.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams, random_actions
from models.trajectory import Trajectory

Command = Mapping[str, float]
"""What an agent is told to aim for, by name, such as ``{"return": 250.0}``."""


class Policy(Protocol):
    """Chooses the actions of E episodes of each of M ``members``, which all begin at its first `act`. It is asked for
    all E until the last has ended; what it chooses in an episode that has ended is ignored."""

    members: int

    def act(self, obs: Tensor) -> Tensor:
        """Actions ``[M, E]`` int64 or ``[M, E, A]`` float32 for ``obs [M, E, *O]``."""

    def moves(self) -> Tensor | None:
        """Its actions ``[M, S]`` in each of S cells, where they depend on the cell alone; None for any other."""
        return None

    def told(self) -> Mapping[str, Tensor]:
        """What each episode was last asked for by the names that users know, ``[M, E]`` each in raw units; empty where
        the policy follows no command."""
        return {}

    def advance(self, reward: Tensor) -> None:
        """Take in what the last action brought, ``[M, E]``; nothing for a policy without memory."""
        return None


class RandomPolicy(Policy):
    """Uniform actions, each member from its own stream."""

    def __init__(self, spaces: Spaces, envs: int, streams: Streams):
        self.actions, self.envs, self.streams, self.members = spaces.actions, envs, streams, len(streams)

    def act(self, obs: Tensor) -> Tensor:
        return random_actions(self.actions, self.streams, self.envs)


class Agent(nn.Module):
    """The base of all agents. Weights that learn are parameters ``[M, ...]`` (``requires_grad=False`` where no gradient
    is taken), other tensors buffers ``[M, ...]``; `state_dict` holds both."""

    action_kinds: ClassVar[tuple[type[Discrete] | type[Continuous], ...]]
    takes_images: ClassVar[bool] = False  # else observations must be vectors, O = (n,)
    takes_cells_only: ClassVar[bool] = False  # whether they must be one-hot (`models.spaces.Spaces.one_hot`)
    advice: ClassVar[str] = "a smaller lr may help"  # said when weights or losses are no longer finite
    optimizers: Sequence[torch.optim.Optimizer] = ()  # those that Lightning is to save; others are in `training_state`
    device = torch.device("cpu")  # where observations are expected and actions come from
    seeds: list[int]
    config: Any
    spaces: Spaces

    @property
    def members(self) -> int:
        return len(self.seeds)

    def begin(
        self, envs: int, streams: Streams, *, sample: bool, evaluate: bool = False, command: Command | None = None
    ) -> Policy:
        """A policy for E = ``envs`` episodes a member with the weights of now.

        ``sample`` draws actions, which an agent that learns between steps does in `StepAgent.act` alone; else the
        policy is greedy. ``evaluate`` says that nothing will be learned from the episodes. ``command`` replaces parts
        of what the agent tells itself to do; only agents with commands are given one. All randomness comes from
        ``streams``, one a member.
        """
        raise NotImplementedError

    def commands_now(self) -> dict[str, Tensor]:
        """The mean of the present command by name, ``[M]`` each in raw units; empty where the agent follows none."""
        return {}

    def status(self) -> dict[str, Tensor]:
        """What training goes by at the moment, ``{tag: [M]}``: the learning rate of the policy, or of the values where
        these act; the steps in a replay buffer."""
        rates = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        return (
            {"train/learning_rate": torch.full((self.members,), float(rates[0]), dtype=torch.float64)} if rates else {}
        )

    def training_state(self) -> dict[str, Any]:
        """What training goes on from beside weights and ``optimizers``, as plain values and tensors."""
        return {}

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Take up what `training_state` gave."""


class EpisodeAgent(Agent):
    """Learns from whole episodes. ``config.schedule`` is a `models.family.EpisodeSchedule`."""

    budget: int | None = None  # steps of a member that end the run, where its settings say so; set by the loop
    main_loss: ClassVar[str]
    """The number of `learn` that the progress line shows as loss and that must stay finite; it need not fall."""

    def observe(self, trajectory: Trajectory, validate: bool = False) -> dict[str, Tensor]:
        """Remember episodes. What is measured of them, ``{name: [M]}``. ``validate`` is True where nothing has been
        learned from these episodes yet, so losses on them may be reported as well."""
        raise NotImplementedError

    def learn(self) -> dict[str, Tensor]:
        """One epoch's gradient steps; means over them, ``{name: [M]}``, `main_loss` among the names."""
        raise NotImplementedError

    def has_collapsed(self, metrics: Mapping[str, Tensor]) -> tuple[Tensor, str]:
        """Which members ``[M]`` bool can learn no more, going by what `learn` gave, and what to tell the user."""
        return torch.zeros(self.members, dtype=torch.bool), ""


class StepAgent(Agent):
    """Learns between the steps of its environments: ``act, observe, learn`` in turn, E = ``envs``. ``config`` has
    ``num_envs``, which the agent's ``envs`` equals.

    It may have ``values(obs [M, B, O]) -> [M, B, A]``, the values of the A actions in units of reward, or
    ``[M, B, 1]``, that of its policy. The contract tests compare them with the true values of small problems.

    An agent that says ``knows_dynamics`` is made with two arguments more: ``dynamics``, the environment's own
    (`envs.tensor.ChanceDynamics`, or None where it is no tensor program), and ``device``.
    """

    main_loss: ClassVar[str] = "value_loss"  # what the loss of `learn` is called in an epoch's row
    knows_dynamics: ClassVar[bool] = False
    acts_on_stale: bool = False  # whether an episode's last observation is acted on once more after its end
    envs: int = 1
    updates_per_step: int = 1  # gradient steps that each step owes a member once it learns; they are counted
    budget: int = 1  # steps of a member in the whole run, for schedules; set by the loop before the first step
    episodes: Tensor  # [M] int64, finished ones

    def act(self, obs: Tensor) -> Tensor:
        """Exploring actions ``[M, E]`` for ``obs [M, E, *O]``; begins a step."""
        raise NotImplementedError

    def visit(self, state: Tensor) -> None:
        """Be told the state ``[M, E, K]`` of the dynamics that is about to be acted in, where it knows them."""

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        """Remember the step, ``[M, E, ...]``. ``discount`` is 0 where nothing comes after it (termination, not a time
        limit), ``done`` where the episode ended either way."""
        raise NotImplementedError

    def learn(self) -> Tensor:
        """The updates that this step owes; the loss of the last one ``[M]``, NaN for members that do not learn yet."""
        raise NotImplementedError

    @property
    def first_update(self) -> int:
        """The step of a member, counted over its environments, before which no update can come."""
        return 1

    def learning(self) -> Tensor:
        """Which members ``[M]`` bool have seen enough to learn; none ever goes back."""
        raise NotImplementedError

    def updates(self, steps: int, learned: Tensor) -> Tensor:
        """Gradient steps ``[M]`` int64 of the latest ``steps``, in ``learned [M]`` of which a member could learn."""
        return learned * self.updates_per_step

    def measured(self) -> dict[str, Tensor]:
        """What an epoch's row says beside loss and return, ``{tag: [M]}``, since the last call."""
        return {}

    @staticmethod
    def groups(config: Any, seeds: Sequence[int]) -> list[list[int]]:
        """Positions of ``seeds`` whose members can share a program (networks of one shape), position 0 first."""
        return [list(range(len(seeds)))]

    @staticmethod
    def needs_dynamics(config: Any) -> bool:
        """Whether it can learn only in environments whose states can be copied."""
        return False


class InnerAgent(StepAgent):
    """A `StepAgent` of which hundreds train at once on proxies, each leaving when it is done."""

    online: nn.Parameter  # [M, D], all weights that act

    def with_weights(self, online: Tensor) -> Policy:
        """Greedy play by ``online [M', D]``, of any number of members."""
        raise NotImplementedError

    def select(self, members: Tensor) -> None:
        """Go on with ``members`` (indices ``[M']`` int64) only."""
        raise NotImplementedError

    def discounts(self) -> Tensor:
        """The discount of later rewards that each member learns with, ``[M]``; a learned reward may need it."""
        return torch.full((self.members,), self.config.discount, device=self.device)
