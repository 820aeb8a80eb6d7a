"""The family's networks and optimiser, and its action values, which choose actions and learn from transitions."""

import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.agents.model_generalisation.config import Config
from models.layers import BLOCK, Truncated
from models.mlp import MlpNetwork
from models.optim import AdamW
from models.replay import Columns, ReplayBuffer
from models.settings import SettingError
from models.streams import Streams

Batch = dict[str, Tensor]
"""A minibatch of B transitions of each of M members: ``obs`` and ``next_obs [M, B, O]``, ``action [M, B]`` int64,
``reward`` and ``continues [M, B]`` float32. ``continues`` is 0 after termination, otherwise 1."""


class Transitions(ReplayBuffer):
    """A replay buffer of transitions. A bit takes one byte, so a transition with observations of O bits takes 2 O + 7
    bytes: two observations, 4 for the reward, 2 for the action, 1 for ``continues``."""

    def __init__(
        self, obs_size: int, num_actions: int, has_bits: bool, capacity: int, members: int, device: torch.device
    ):
        """If ``has_bits``, observations are ``obs_size`` bits, else as many numbers."""
        obs = ((obs_size,), torch.bool if has_bits else torch.float32)  # shape and dtype of a column
        action = ((), torch.int16 if num_actions <= 32_768 else torch.int64)  # int16 reaches up to 32,767
        number, flag = ((), torch.float32), ((), torch.bool)
        columns: Columns = {"obs": obs, "next_obs": obs, "reward": number, "action": action, "continues": flag}
        super().__init__(columns, capacity, members, device)

    def batch(self, uniform: Tensor) -> Batch:
        """Sample a minibatch of B transitions by the random numbers ``uniform [M, B]`` in [0, 1)."""
        rows = self.sample(uniform)
        batch = {name: rows[name].float().contiguous() for name in ("obs", "next_obs", "reward", "continues")}
        return batch | {"action": rows["action"].long()}


class States(ReplayBuffer):
    """A replay buffer of states of the environment ``dynamics`` (`envs.tensor.Dynamics`), from which imagined rollouts
    start. Integers are stored in two bytes. Seed and time, the first two columns of a state of `ChanceDynamics`, are
    not stored and are 0 in a batch: imagined steps get their random numbers as arguments."""

    def __init__(self, capacity: int, members: int, dynamics: Any, device: torch.device):
        if hasattr(dynamics, "advance"):  # `ChanceDynamics`
            state_size, self.dtype = dynamics.state_size, torch.int64
            self.num_skipped = 2  # the first columns, seed and time, are not stored
        else:
            example_state = dynamics.initial(torch.zeros(1, 1, dtype=torch.int64))[0, 0]
            state_size, self.dtype = len(example_state), example_state.dtype
            self.num_skipped = 0
        # int16 is enough: no integer in a state exceeds the environment's number of cells, which is at most 10,000.
        stored_dtype = self.dtype if self.dtype.is_floating_point else torch.int16
        columns = {"state": ((state_size - self.num_skipped,), stored_dtype)}
        super().__init__(columns, capacity, members, device)

    def visit(self, state: Tensor) -> None:
        """Insert one state of each member, ``[M, 1, K]``."""
        self.add(state=state[..., self.num_skipped :])

    def batch(self, uniform: Tensor) -> Tensor:
        """Sample states ``[M, B, K]`` by the random numbers ``uniform [M, B]`` in [0, 1)."""
        state = self.sample(uniform)["state"].to(self.dtype)
        return F.pad(state, (self.num_skipped, 0))


def make_network(config: Config, inputs: int, outputs: int, streams: Streams, device: torch.device) -> MlpNetwork:
    """Build a network ``[M, B, inputs] -> [M, B, outputs]``, whose initial weights are sampled by ``streams``."""
    sizes = (inputs, *config.hidden_sizes, outputs)
    # The parameters of each member are padded to a multiple of `BLOCK` numbers, because Adam's kernel rounds the last
    # elements of an array differently.
    return MlpNetwork(sizes, config.activation, streams, Truncated, BLOCK).to(device)


def make_optimizer(config: Config, params: Sequence[Tensor], lr: float) -> AdamW:
    """Build the optimiser of ``params``. torch multiplies its weight decay by the learning rate ``lr``; the setting
    ``weight_decay`` does not depend on ``lr``, and is therefore divided by it."""
    betas, decay = (config.adam_beta1, config.adam_beta2), config.weight_decay / lr
    return AdamW(params, lr, betas, config.adam_eps, weight_decay=decay, fused=True)


def one_hot(action: Tensor, num_actions: int) -> Tensor:
    """Convert ``action [M, B]`` int64 to one-hot ``[M, B, A]`` bool."""
    return action.unsqueeze(2) == torch.arange(num_actions, device=action.device)


class Update(NamedTuple):
    """Loss and gradient of an update of the action values, and the values and targets from which they follow."""

    loss: Tensor  # [M]
    gradient: Tensor  # [M, D]
    chosen_q: Tensor  # [M, B], values of the actions in the batch before the update
    td_target: Tensor  # [M, B]
    weight: Tensor | None  # [M, B]; None if all weights are equal


class ActionValues(nn.Module):
    """Action values of M members, ``[M, B, F] -> [M, B, A]``, with their target network and optimiser."""

    def __init__(self, config: Config, inputs: int, num_actions: int, seeds: Sequence[int], device: torch.device):
        super().__init__()
        self.config, self.num_actions = config, num_actions
        streams = Streams.from_name(seeds, "weights of values")
        self.q_network = make_network(config, inputs, num_actions, streams, device)
        self.target_parameters = nn.Parameter(self.q_network.flat.detach().clone(), requires_grad=False)
        self.optimizer = make_optimizer(config, [self.q_network.flat], config.lr)

    def forward(self, features: Tensor) -> Tensor:
        """Return the online network's action values, ``features [M, B, F] -> [M, B, A]``."""
        return self.q_network(features)

    def bootstrap_value(self, features: Tensor) -> Tensor:
        """Return the values of next states, ``features [M, B, F] -> [M, B]``: the target network's value of its best
        action or, with ``double_DQN``, of the online network's best action. Without ``use_target``, the online network
        takes the place of the target network."""
        parameters = self.target_parameters if self.config.use_target else None  # None: the online network's
        target_q = self.q_network.activations(features, parameters)[-1]  # the last activations are the outputs
        if not self.config.double_DQN:
            return target_q.amax(2)
        best_action = self(features).argmax(2, keepdim=True)
        return target_q.gather(2, best_action).squeeze(2)

    def td_update(
        self, td_target: Tensor, features: Tensor, activations: list[Tensor], action: Tensor, weight: Tensor | None
    ) -> Update:
        """Compute the loss ``sum(weight (Q(features)[action] - td_target)^2) / B`` and its gradient. ``td_target``,
        ``action`` and ``weight`` (None: 1) are ``[M, B]``. ``activations`` of all layers are the result of
        ``q_network.activations`` for ``features [M, B, F]``."""
        action_mask = one_hot(action, self.num_actions).float()
        chosen_q = (activations[-1] * action_mask).sum(2)  # the last activations are the action values [M, B, A]
        error = chosen_q - td_target
        weighted_error = error if weight is None else error * weight
        error_gradient = weighted_error * (2 / action.shape[1])  # d loss / d chosen_q
        q_gradient = action_mask * error_gradient.unsqueeze(2)
        network = self.q_network
        gradient, _ = network.mlp.backward(network.layers(), features, activations, q_gradient)
        return Update((weighted_error * error).mean(1), gradient, chosen_q, td_target, weight)


def exploration_noise(config: Config, num_actions: int) -> tuple[Callable[..., Tensor], int]:
    """Return how to sample the random numbers for `explore`: a method of `Streams`, and their number per action."""
    if config.exploration_strat == "softmax":
        return Streams.gumbel, num_actions
    return Streams.uniform, 2  # the first decides whether to explore, the second chooses the action


def explore(config: Config, q: Tensor, random_numbers: Tensor) -> Tensor:
    """Sample actions ``[M, B]`` int64 for action values ``q [M, B, A]``, by the ``random_numbers [M, B, count]`` that
    `exploration_noise` describes.

    softmax: ``argmax(q + temperature * Gumbel)``, a sample from softmax(q / temperature) (Maddison et al. 2014).
    epsilon_greedy: the best action with probability 1 - epsilon, otherwise a uniformly random action.
    """
    if config.exploration_strat == "softmax":
        return torch.add(q, random_numbers, alpha=config.softmax_temp).argmax(2)
    explore_uniform, action_uniform = random_numbers.unbind(-1)
    num_actions = q.shape[2]
    # The largest action is a bound in case the product is rounded up.
    random_action = (action_uniform * num_actions).to(torch.int64).clamp_(max=num_actions - 1)
    return torch.where(explore_uniform < config.epsilon, random_action, q.argmax(2))


def replay_update(values: ActionValues, batch: Batch) -> Update:
    """Compute an update of the action values by experience replay, towards ``r + gamma * Q_target(s', best)``, or r
    after termination. The function changes nothing and has fixed shapes, so that it can be compiled."""
    obs, next_q = batch["obs"], values.bootstrap_value(batch["next_obs"])
    # reward + discount * continues * next_q
    td_target = torch.addcmul(batch["reward"], batch["continues"], next_q, value=values.config.discount)
    return values.td_update(td_target, obs, values.q_network.activations(obs), batch["action"], weight=None)


def compile_function(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return a compiled version of ``function``, for arguments of fixed shapes. Its first call takes half a minute, and
    results are rounded differently. On a GPU, it is a graph. Raises SettingError on a CPU without a C++ compiler."""
    has_compiler = os.environ.get("CXX") or any(map(shutil.which, ("g++", "clang++", "c++")))
    if device.type == "cpu" and not has_compiler:
        line = "compile is True, but no C++ compiler is on the PATH; allowed here: false"
        raise SettingError(f"{line} (Debian and Ubuntu: apt-get install g++)", "compile")
    mode = "default" if device.type == "cpu" else "reduce-overhead"
    return torch.compile(function, fullgraph=True, dynamic=False, mode=mode)
