"""The networks of synthetic environments for M members (independent agents), each with separate networks.

``flat [M, size]`` has all parameters of the networks of a member in one row. E is the number of environments of a
member, S the size of an observation, A the number of actions (or the size of a continuous action). An MDP has episodes
of several steps. In a bandit every step is an episode, so its state does not change.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from models.contract import Policy
from models.mlp import MLP, Layer
from models.proxies.fitting import make_mlp, named_layers
from models.proxies.synthetic.config import Config
from models.settings import SettingError
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams
from understudy.kinds import FORMS, environment_networks

_MAX_ACTION_SHARE = 0.8  # largest share of the rows of a table in which the same action is right


class Outcome(NamedTuple):
    """Result of a step of M members in E environments."""

    next_state: Tensor  # [M, E, S]
    reward: Tensor  # [M, E]
    done: Tensor  # [M, E], output of the done network


class Networks:
    """Architecture of the networks of a synthetic environment.

    An MDP has three networks, which map ``[action, state]`` to next state, reward and done. A discrete action is
    one-hot, and nothing is clipped. A bandit has either a reward network or a target network. The target network maps a
    state to an action, and the reward is higher the nearer the agent's action is to it (`understudy.kinds.FORMS`). If
    initial states are learned, there is also an initial-state network, whose input is normal noise.

    Source: Ferreira et al. 2022, section 3, and its public code; Liesen et al. 2024 for the bandit."""

    def __init__(self, config: Config, spaces: Spaces):
        self.config, self.spaces, self.state_size = config, spaces, spaces.obs_shape[0]
        self.actions = spaces.actions
        self.action_size = spaces.action_size
        bandit, size = config.proxy == "bandit", self.state_size
        networks = environment_networks(vars(config), size, self.action_size)
        self.mlps = {name: make_mlp(config, inputs, outputs) for name, (inputs, outputs) in networks.items()}
        self.has_target = "target" in networks
        has_table = bandit and config.first_states == "table"
        self.num_table_rows = 0  # rows of the table of initial states; 0 without a table
        if has_table:
            self.num_table_rows = config.table_size if config.pairs is None else config.pairs
        self.scales_obs = self.has_target and has_table and config.scale_obs  # whether agents train on scaled states
        self.has_cells = bandit and config.first_states == "cells"  # whether the initial state is a random cell
        self.latent_size, _ = networks.get("initial", (0, 0))  # inputs of the initial-state network; 0 without it
        self.num_searched = sum(mlp.size for mlp in self.mlps.values())  # number of parameters that a search changes
        self._fixed_shapes: dict[str, tuple[int, ...]] = {}  # shapes of the other parameters, `fixed_tensors`
        if self.has_target:
            self._fixed_shapes |= {"target.center": (size,), "target.spread": (size,)}
        if self.num_table_rows:
            self._fixed_shapes |= {"states.table": (self.num_table_rows, size)}
        self.size = self.num_searched + sum(math.prod(shape) for shape in self._fixed_shapes.values())

    def initial(self, streams: Streams) -> Tensor:
        """Sample initial parameters ``[M, size]``: the weights of the networks as the setting ``proxy_init`` says, then
        the `fixed_tensors`. The table of states is standard normal, the target's center 0 and its spread 1. The setting
        ``done_bias`` is added to the last bias of the done network."""
        weights = [mlp.initial(streams) for mlp in self.mlps.values()]
        if self.config.proxy_init == "normal":
            weights = []  # the samples above are not used, but they must advance the streams
            for mlp in self.mlps.values():
                for layer in mlp.dense:
                    weights.append(streams.normal(layer.outputs * layer.inputs) / layer.inputs**0.5)
                    weights.append(torch.zeros(len(streams), layer.outputs))
        fixed_parameters = torch.zeros(len(streams), self.size - self.num_searched)
        flat = torch.cat([*weights, fixed_parameters], 1)
        # `split`, `layers` and `fixed_tensors` return views, so writing to their results changes ``flat``.
        networks, fixed_tensors = self.split(flat), self.fixed_tensors(flat)
        if "done" in self.mlps:
            *_, (_, last_bias) = self.mlps["done"].layers(networks["done"])
            last_bias += self.config.done_bias
        if self.has_target:
            # A target has weights N(0, 1/inputs), zero biases, and a last layer of zeros.
            *hidden_layers, (last_weight, last_bias) = self.mlps["target"].layers(networks["target"])
            for weight, bias in hidden_layers:
                _, outputs, inputs = weight.shape
                weight.copy_(streams.normal(outputs, inputs) / inputs**0.5)
                bias.zero_()
            last_weight.zero_()
            last_bias.zero_()
            fixed_tensors["target.spread"].fill_(1.0)
        if self.num_table_rows:
            fixed_tensors["states.table"].copy_(streams.normal(self.num_table_rows, self.state_size))
        return flat

    def fill_table(self, flat: Tensor, states: Tensor, scaled: bool = True) -> Tensor:
        """Return a copy of the parameters ``flat [M, size]`` of a bandit, adapted to ``states [M, N, S]`` of the real
        environment. The first of them become its table of initial states, if it has one.

        A target standardises its inputs by a center and a spread. If ``scaled``, these become the mean and the standard
        deviation of the N states. Otherwise they do not change, so that the target's actions remain the same. But with
        the setting ``target_scale`` "widest", the spread is raised if the standard deviation is larger.
        """
        flat = flat.clone()
        fixed_tensors = self.fixed_tensors(flat)  # views, so writing to them changes ``flat``
        if self.num_table_rows:
            fixed_tensors["states.table"].copy_(states[:, : self.num_table_rows])
        if self.has_target and scaled:
            spread = states.std(1)
            fixed_tensors["target.center"].copy_(states.mean(1))
            fixed_tensors["target.spread"].copy_(spread.where(spread > 0, 1.0))  # a divisor, so not 0
        elif self.has_target and self.config.target_scale == "widest":
            fixed_tensors["target.spread"].copy_(fixed_tensors["target.spread"].maximum(states.std(1)))
        return flat

    def limit_most_common_action(self, flat: Tensor) -> Tensor:
        """Balance the table of initial states of a bandit with a target and discrete actions. If one action is right in
        more than `_MAX_ACTION_SHARE` of the rows, agents learn to choose it everywhere. So copies of other rows replace
        the rows that are too many. Return a copy of the parameters ``flat [1, size]`` with the new table."""
        flat = flat.clone()
        table = self.fixed_tensors(flat)["states.table"]  # [1, rows, S], a view, so writing to it changes ``flat``
        actions = self.with_weights(flat).act(table)[0]
        is_common = actions == actions.mode().values
        common_rows, other_rows = is_common.nonzero()[:, 0], (~is_common).nonzero()[:, 0]
        excess = max(0, len(common_rows) - int(_MAX_ACTION_SHARE * len(actions)))
        if len(other_rows):
            copied_rows = other_rows[torch.arange(excess) % len(other_rows)]
            table[0, common_rows[:excess]] = table[0, copied_rows]
        return flat

    def with_scaled_states(self, flat: Tensor) -> Tensor:
        """Return a copy of the parameters ``flat [M, size]`` of bandits in which agents observe standardised states
        (`scale_states`) and get the same rewards. The table is standardised, and the target's own scale is 1."""
        flat = flat.clone()
        fixed_tensors = self.fixed_tensors(flat)  # views, so writing to them changes ``flat``
        fixed_tensors["states.table"].copy_(scale_states(fixed_tensors["states.table"], fixed_tensors))
        fixed_tensors["target.center"].zero_()
        fixed_tensors["target.spread"].fill_(1.0)
        return flat

    def fixed_tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parameters of a bandit that a search does not change by name, as views of all parameters ``flat
        [M, size]``. With a target, these are the mean and the standard deviation of its inputs, "target.center" and
        "target.spread" ``[M, S]``. With a table of initial states, it is "states.table" ``[M, rows, S]``."""
        views, start = {}, self.num_searched
        for name, shape in self._fixed_shapes.items():
            end = start + math.prod(shape)
            views[name] = flat[:, start:end].unflatten(1, shape)
            start = end
        return views

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        sizes = [mlp.size for mlp in self.mlps.values()]
        return dict(zip(self.mlps, flat[:, : self.num_searched].split(sizes, 1), strict=True))

    def named_tensors(self, flat: Tensor) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for name, parameters in self.split(flat[None]).items():  # parameters of a single member, [1, size]
            tensors |= named_layers(name, self.mlps[name], parameters)
        return tensors | {name: view[0] for name, view in self.fixed_tensors(flat[None]).items()}

    def target(self, flat: Tensor) -> Policy:
        """Return the policy of M members in which member m takes the actions of its target network. Raises SettingError
        if the bandit has no target network."""
        if not self.has_target:
            line = f"scored_by is 'target', but reward_form is {self.config.reward_form!r}, which has none"
            raise SettingError(f"{line}; allowed: agents", "scored_by")
        return self.with_weights(flat)

    def with_weights(self, flat: Tensor) -> "Program":
        """Return the `Program` that computes steps with the parameters ``flat [M, size]``."""
        return Program(self, flat)


class Program(Policy):
    """Networks with their parameters, which compute steps of M synthetic environments. Bandits with a target are also a
    policy of M members: it takes the target's actions, which have the highest reward. With one hidden layer and no
    target, the networks of a step are joined to a wide network (`_fold`), so that a step takes two matrix products."""

    def __init__(self, networks: Networks, flat: Tensor):
        self.networks, self.flat, self.members = networks, flat, len(flat)
        self._action_indices = torch.arange(networks.action_size, device=flat.device)
        split_parameters = networks.split(flat)
        self._step_networks = [name for name in networks.mlps if name != "initial"]  # names of those that steps use
        self.layers = {name: mlp.layers(split_parameters[name]) for name, mlp in networks.mlps.items()}
        self.fixed_tensors = networks.fixed_tensors(flat)
        self.form = FORMS.get(networks.config.reward_form)  # difference of actions -> reward; None without a target
        self.bounds: tuple[Tensor, Tensor] | None = None  # middle and half-width [A] of the range of actions
        if isinstance(networks.actions, Continuous):
            low = torch.tensor(networks.actions.low, device=flat.device)
            high = torch.tensor(networks.actions.high, device=flat.device)
            self.bounds = (low + high) / 2, (high - low) / 2
        self.is_folded = networks.config.proxy_hidden_layer == 1 and not networks.has_target
        if self.is_folded:
            self._fold([self.layers[name] for name in self._step_networks])

    def _fold(self, networks: list[list[Layer]]) -> None:
        """Join networks to one wide network, whose outputs are the outputs of all. ``networks`` are the two layers of
        each: weights ``[M, out, in]`` and biases ``[M, out, 1]``. They have the same inputs and width."""
        first_layers = [first_layer for first_layer, _ in networks]
        last_layers = [last_layer for _, last_layer in networks]
        # The inputs are the same, so weights are joined along the outputs. The transposes make outputs the last axis in
        # the memory of the result.
        first_weight = torch.cat([weight.transpose(1, 2) for weight, _ in first_layers], 2).transpose(1, 2)
        first_bias = torch.cat([bias for _, bias in first_layers], 1)
        last_bias = torch.cat([bias for _, bias in last_layers], 1)
        _, num_hidden, num_inputs = first_weight.shape
        num_outputs, width = last_bias.shape[1], num_hidden // len(networks)
        blocks = []  # rows of a block-diagonal weight: zeros in the columns of the other networks' hidden units
        for i, (weight, _) in enumerate(last_layers):
            units_before, units_after = i * width, num_hidden - (i + 1) * width
            blocks.append(F.pad(weight, (units_before, units_after)))  # [M, out of this network, num_hidden]
        last_weight = torch.cat(blocks, 1)
        self._folded_layers: list[Layer] = [(first_weight, first_bias), (last_weight, last_bias)]
        mlp = self.networks.mlps[self._step_networks[0]]
        self._folded_mlp = MLP([num_inputs, num_hidden, num_outputs], mlp.activation, mlp.leak)

    @torch.no_grad()
    def step(self, state: Tensor, action: Tensor) -> Outcome:
        """Take a step from ``state [M, E, S]`` with ``action [M, E]`` int64 or ``[M, E, A]``. In a bandit, every
        episode has one step: the state does not change, and done is 1."""
        if self.networks.has_target:
            reward = self._target_reward(state, action)
            return Outcome(state, reward, torch.ones_like(reward))
        if isinstance(self.networks.actions, Discrete):
            action = (action.unsqueeze(-1) == self._action_indices).float()
        inputs = torch.cat([action, state], 2).transpose(1, 2)  # [M, in, E]
        if self.is_folded:  # all networks as one
            # `MLP.forward` returns the outputs of all layers; the last are the network's, [M, out, E].
            outputs = self._folded_mlp.forward(self._folded_layers, inputs)[-1]
        else:
            mlps, layers = self.networks.mlps, self.layers
            outputs = torch.cat([mlps[name].forward(layers[name], inputs)[-1] for name in self._step_networks], 1)
        if self.networks.config.proxy == "bandit":
            reward = outputs[:, 0]
            return Outcome(state, reward, torch.ones_like(reward))
        size = self.networks.state_size  # outputs are the next state, then reward and done
        return Outcome(outputs[:, :size].transpose(1, 2), outputs[:, size], outputs[:, size + 1])

    def _target_reward(self, state: Tensor, action: Tensor) -> Tensor:
        """Return rewards ``[M, E]``, which depend on the difference between the agent's ``action`` and the target
        network's action. Discrete actions become one-hot. Continuous actions are scaled to [-1, 1] and clipped."""
        assert self.form is not None
        outputs = self.target_outputs(state)  # [M, A, E]
        if self.bounds is None:
            target_action, taken_action = outputs.argmax(1, keepdim=True), action.unsqueeze(1)  # [M, 1, E]
            all_actions = self._action_indices.view(1, -1, 1)
            difference = (taken_action == all_actions).float() - (target_action == all_actions).float()
        else:
            middle, half = self.bounds
            scaled_action = ((action - middle) / half).clamp(-1, 1)
            difference = scaled_action.transpose(1, 2) - outputs.clamp(-1, 1)
        reward: Tensor = self.form(difference, 1)  # 1 is the axis of actions
        return reward

    @torch.no_grad()
    def target_outputs(self, state: Tensor) -> Tensor:
        """Return the target network's outputs ``[M, A, E]`` for ``state [M, E, S]``."""
        scaled_state = scale_states(state, self.fixed_tensors)
        return self.networks.mlps["target"].forward(self.layers["target"], scaled_state.transpose(1, 2))[-1]

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Return the actions with the highest reward in states ``obs [M, E, S]``: ``[M, E]`` int64 or ``[M, E, A]``."""
        outputs = self.target_outputs(obs)  # [M, A, E]
        if self.bounds is None:
            return outputs.argmax(1)
        middle, half = self.bounds
        scaled_action = outputs.nan_to_num(0.0).clamp(-1, 1)
        return middle + half * scaled_action.transpose(1, 2)

    def table_rows(self, rows: Tensor) -> Tensor:
        """Look up initial states ``[..., M, E, S]`` in the members' tables, by row numbers ``rows [..., M, E]``."""
        table = self.fixed_tensors["states.table"]  # [M, rows, S]
        members = torch.arange(len(table), device=table.device).unsqueeze(1)  # [M, 1]
        return table[members, rows]

    @torch.no_grad()
    def first_states(self, noise: Tensor) -> Tensor:
        """Return initial states ``[M, N, S]`` from normal ``noise [M, N, latent]``."""
        network, layers = self.networks.mlps["initial"], self.layers["initial"]
        outputs = network.forward(layers, noise.transpose(1, 2))[-1]  # [M, S, N]
        return outputs.transpose(1, 2)


def scale_states(states: Tensor, fixed_tensors: Mapping[str, Tensor]) -> Tensor:
    """Standardise ``states [M, N, S]`` as inputs of target networks, by their scale in `Networks.fixed_tensors`."""
    return (states - fixed_tensors["target.center"].unsqueeze(1)) / fixed_tensors["target.spread"].unsqueeze(1)


def unscale_states(scaled_states: Tensor, fixed_tensors: Mapping[str, Tensor]) -> Tensor:
    """Undo `scale_states`: return states ``[M, N, S]`` in the units of the real environment."""
    return fixed_tensors["target.center"].unsqueeze(1) + fixed_tensors["target.spread"].unsqueeze(1) * scaled_states


class ScaledPolicy(Policy):
    """A policy for unscaled observations, which scales them (`scale_states`) before ``policy`` receives them."""

    def __init__(self, policy: Policy, fixed_tensors: Mapping[str, Tensor]):
        self.policy, self.fixed_tensors, self.members = policy, fixed_tensors, policy.members

    def act(self, obs: Tensor) -> Tensor:
        return self.policy.act(scale_states(obs, self.fixed_tensors))
