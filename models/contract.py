"""The interface between agents and the loops that train and test them (control/loops/).

Every tensor leads with the member axis M: a member is one independent learner with one seed. E is the number
of environments of a member, O the shape of an observation, A the size of a continuous action (discrete actions have
no such axis). A family's ``agent.py`` has one class ``Agent`` that derives from one of three:

| base | trained by | must have, beside ``action_kinds`` and ``begin`` |
|---|---|---|
| `EpisodeAgent` | control/loops/episodes.py, between whole episodes | ``observe``, ``learn``, ``main_loss`` |
| `StepAgent` | control/loops/steps.py, after every step | ``act``, ``observe``, ``learn``, ``learning`` |
| `InnerAgent` | the same, also on proxies | all of the above, and ``online``, ``with_weights``, ``select`` |

The loops call ``Agent(config, spaces, seeds)`` with the family's ``Config``, the environment's spaces, and M seeds. The
numbers of member m depend only on ``seeds[m]`` and its experience: they are equal to the bit for any M (docs/design.md
lists the traps). `models.registry.agent_class` raises TypeError for a class that lacks something.
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
    """Chooses the actions in E episodes of each of M ``members``. All episodes begin at its first `act`. It acts in
    all E until the last one has ended; actions in episodes that have ended are ignored."""

    members: int

    def act(self, obs: Tensor) -> Tensor:
        """Actions ``[M, E]`` int64 or ``[M, E, A]`` float32 for ``obs [M, E, *O]``."""

    def moves(self) -> Tensor | None:
        """The actions ``[M, S]`` in each of S cells if they depend on the cell alone, else None."""
        return None

    def current_command(self) -> Mapping[str, Tensor]:
        """The current command of each episode by the users' names, ``[M, E]`` each in raw units. Empty if the policy
        follows no command."""
        return {}

    def advance(self, reward: Tensor) -> None:
        """Update the policy's memory, if it has one, by the reward ``[M, E]`` of the last action."""
        return None


class RandomPolicy(Policy):
    """Uniformly random actions, drawn from each member's stream."""

    def __init__(self, spaces: Spaces, envs: int, streams: Streams):
        self.actions, self.envs, self.streams, self.members = spaces.actions, envs, streams, len(streams)

    def act(self, obs: Tensor) -> Tensor:
        return random_actions(self.actions, self.streams, self.envs)


class Agent(nn.Module):
    """The base class of all agents. Trained weights are parameters ``[M, ...]`` (``requires_grad=False`` without
    autograd), other tensors are buffers ``[M, ...]``; `state_dict` holds both."""

    action_kinds: ClassVar[tuple[type[Discrete] | type[Continuous], ...]]
    takes_images: ClassVar[bool] = False  # else observations must be vectors, O = (n,)
    takes_cells_only: ClassVar[bool] = False  # whether they must be one-hot (`models.spaces.Spaces.one_hot`)
    advice: ClassVar[str] = "a smaller lr may help"  # said when weights or losses are no longer finite
    optimizers: Sequence[torch.optim.Optimizer] = ()  # those that Lightning is to save; others are in `training_state`
    device = torch.device("cpu")  # of observations and actions
    seeds: list[int]
    config: Any
    spaces: Spaces

    @property
    def members(self) -> int:
        return len(self.seeds)

    def begin(
        self, envs: int, streams: Streams, *, sample: bool, evaluate: bool = False, command: Command | None = None
    ) -> Policy:
        """A policy for E = ``envs`` episodes of each member, with the current weights.

        With ``sample`` actions are drawn, else they are greedy. (An agent that learns between steps draws actions only
        in `StepAgent.act`.) With ``evaluate`` the agent will not learn from the episodes. ``command`` overrides
        parts of the agent's command, if it follows one. All randomness comes from ``streams``, one for each member.
        """
        raise NotImplementedError

    def commands_now(self) -> dict[str, Tensor]:
        """The mean of the current command by name, ``[M]`` each in raw units. Empty if the agent follows none."""
        return {}

    def status(self) -> dict[str, Tensor]:
        """Current state of training, ``{tag: [M]}``: the learning rate (of the policy, or of values that act) and the
        number of steps in a replay buffer."""
        rates = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        return (
            {"train/learning_rate": torch.full((self.members,), float(rates[0]), dtype=torch.float64)} if rates else {}
        )

    def training_state(self) -> dict[str, Any]:
        """State that training needs to resume, beside weights and ``optimizers``, as plain values and tensors."""
        return {}

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `training_state`."""


class EpisodeAgent(Agent):
    """Learns from whole episodes. ``config.schedule`` is a `models.family.EpisodeSchedule`."""

    budget: int | None = None  # steps of a member after which the run ends, if its settings limit them; set by the loop
    main_loss: ClassVar[str]
    """The number of `learn` that the progress line shows as loss and that must stay finite; it need not fall."""

    def observe(self, trajectory: Trajectory, validate: bool = False) -> dict[str, Tensor]:
        """Store episodes. Returns statistics of them, ``{name: [M]}``. ``validate`` is True if the agent has not
        learned from these episodes yet, so that losses on them are validation losses."""
        raise NotImplementedError

    def learn(self) -> dict[str, Tensor]:
        """One epoch's gradient steps; means over them, ``{name: [M]}``, `main_loss` among the names."""
        raise NotImplementedError

    def has_collapsed(self, metrics: Mapping[str, Tensor]) -> tuple[Tensor, str]:
        """Whether members ``[M]`` can no longer learn, judged by the results of `learn`, and a message for the user."""
        return torch.zeros(self.members, dtype=torch.bool), ""


class StepAgent(Agent):
    """Learns between the steps of its environments: ``act, observe, learn`` in turn, E = ``envs``. ``config`` has
    ``num_envs``, which the agent's ``envs`` equals.

    It may have ``values(obs [M, B, O])``: the values of the A actions ``[M, B, A]``, or the value of its policy
    ``[M, B, 1]``, in units of reward. The contract tests compare them with the true values of small problems.

    With ``knows_dynamics`` the agent takes two more arguments: ``dynamics`` of the environment
    (`envs.tensor.ChanceDynamics`, or None if it is no tensor program) and ``device``.
    """

    main_loss: ClassVar[str] = "value_loss"  # name of the loss of `learn` in an epoch's row
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
        """Store the current state ``[M, E, K]`` of the dynamics, for agents that know them."""

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        """Store the step, ``[M, E, ...]``. ``discount`` is 0 after termination (but not at a time limit). ``done`` is
        True at both."""
        raise NotImplementedError

    def learn(self) -> Tensor:
        """The updates that this step owes; the loss of the last one ``[M]``, NaN for members that do not learn yet."""
        raise NotImplementedError

    @property
    def first_update(self) -> int:
        """The step of a member, counted over its environments, before which no update can come."""
        return 1

    def learning(self) -> Tensor:
        """Whether members ``[M]`` have enough experience to learn. Once True, it stays True."""
        raise NotImplementedError

    def updates(self, steps: int, learned: Tensor) -> Tensor:
        """Gradient steps ``[M]`` int64 of the latest ``steps``, in ``learned [M]`` of which a member could learn."""
        return learned * self.updates_per_step

    def metrics(self) -> dict[str, Tensor]:
        """Statistics since the last call, ``{tag: [M]}``, for an epoch's row beside loss and return."""
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
