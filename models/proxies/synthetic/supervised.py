"""A synthetic environment by supervised learning: its networks fitted to transitions of the real environment.

Source: the model-based baseline of Ferreira et al. 2022, "Learning Synthetic Environments and Reward Networks for
Reinforcement Learning", arXiv 2202.02790. Its public code feeds ``[state, action]`` to networks that later read
``[action, state]``, and does not train the end of an episode. Both are right here.

N is the number of transitions, S the size of an observation, A the number of actions (or the size of one).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.losses import transition_losses
from models.proxies.fitting import fit
from models.proxies.synthetic.networks import Networks
from models.spaces import Discrete
from models.streams import Streams

PARTS = ("state", "reward", "done")
PIECE = 50  # steps of a piece of an episode at most
ENDS_ABOVE = 0.5  # output of the done network; its logit is 0 there
_ACTIVATIONS: dict[str, Callable[[float], nn.Module]] = {
    "relu": lambda leak: nn.ReLU(),
    "leakyrelu": nn.LeakyReLU,
    "prelu": nn.LeakyReLU,
    "tanh": lambda leak: nn.Tanh(),
    "identity": lambda leak: nn.Identity(),
}
_WIDE = 0.5  # standard deviation of wide first states, as a share of the largest size met


@dataclass(frozen=True)
class Transitions:
    """``obs [N, S]``, ``action [N]`` int64 or ``[N, A]``, ``reward [N]``, ``next_obs [N, S]``, and ``ended [N]``, 1
    where the episode ended there, which a time limit is not. Rows of one episode follow one another."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    ended: Tensor

    def __len__(self) -> int:
        return len(self.obs)

    def __getitem__(self, rows: Tensor | slice) -> "Transitions":
        return Transitions(*(getattr(self, field.name)[rows] for field in fields(self)))

    def pieces(self) -> Tensor:
        """The first row of each piece, ``[K]``: an episode cut after every 50 steps."""
        begins = torch.ones(len(self), dtype=torch.bool)
        begins[1:] = (self.obs[1:] != self.next_obs[:-1]).any(1) | (self.ended[:-1] > 0)
        rows = torch.arange(len(self))
        age = rows - rows.where(begins, 0).cummax(0).values
        return (age % PIECE == 0).nonzero()[:, 0]

    def split(self, share: float, streams: Streams) -> tuple[Tensor, Tensor]:
        """Rows to learn from, and rows held out: all those of a ``share`` of the pieces, at least of one."""
        starts = self.pieces()
        held = streams.uniform(len(starts))[0].argsort()[: max(1, round(share * len(starts)))]
        piece = torch.bucketize(torch.arange(len(self)), starts, right=True) - 1
        out = torch.isin(piece, held)
        return (~out).nonzero()[:, 0], out.nonzero()[:, 0]


class Fit(nn.Module):
    """The three networks of a synthetic MDP, from the parameters ``flat [1, D]``; `scale_to` comes before all else.

    Within the fit all inputs and targets have mean 0 and variance 1; `folded` puts these scales into the first and the
    last layers. A target that never varies is a constant: its scale is 0.
    """

    def __init__(self, networks: Networks, flat: Tensor):
        super().__init__()
        self.networks, self.flat = networks, flat
        self.parts: Any = nn.ModuleDict({name: self._sequential(name) for name in PARTS})

    def scale_to(self, transitions: Transitions) -> None:
        """Take the scales of inputs and targets from ``transitions``."""
        self.largest, inputs = transitions.obs.abs().amax(0), self.inputs(transitions)
        self.center, spread = inputs.mean(0), _spread(inputs)
        self.spread = spread.where(spread > 0, 1.0)
        ended = transitions.ended
        varied = bool(ended.min() < ended.max())
        # Center and scale of each network's output. Of ends it is the logit that is learned.
        self.targets = {
            "state": (transitions.next_obs.mean(0), _spread(transitions.next_obs)),
            "reward": (transitions.reward.mean()[None], _spread(transitions.reward[:, None])),
            "done": (torch.full((1,), ENDS_ABOVE) if varied else ended[:1], torch.full((1,), float(varied))),
        }

    def _sequential(self, name: str) -> nn.Sequential:
        part, config = self.networks.parts[name], self.networks.config
        modules: list[nn.Module] = []
        for layer in part.dense:
            modules += [nn.Linear(layer.inputs, layer.outputs), _ACTIVATIONS[config.proxy_activation_fn](part.leak)]
        found: Any = nn.Sequential(*modules[:-1])
        with torch.no_grad():
            for own, (weight, bias) in zip(found[::2], part.layers(self.networks.split(self.flat)[name]), strict=True):
                own.weight.copy_(weight[0])
                own.bias.copy_(bias[0, :, 0])
        return found

    def inputs(self, rows: Transitions) -> Tensor:
        """What the networks read, ``[N, A + S]``: the action, one-hot where discrete, then the state."""
        discrete = isinstance(self.networks.actions, Discrete)
        action = F.one_hot(rows.action, self.networks.action_size) if discrete else rows.action
        return torch.cat([action.float(), rows.obs], 1)

    def losses(self, rows: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        """Losses of state, reward and end (`transition_losses`)."""
        x = (self.inputs(rows) - self.center) / self.spread
        state, reward, done = (self.parts[name](x) for name in PARTS)
        return transition_losses(state, reward, done, *self.standardised(rows))

    def standardised(self, rows: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        """Targets: next states ``[N, S]`` and rewards ``[N, 1]`` in standard deviations, ends ``[N, 1]``."""
        state, reward = self.scaled("state", rows.next_obs), self.scaled("reward", rows.reward[:, None])
        return state, reward, rows.ended[:, None]

    def scaled(self, name: str, values: Tensor) -> Tensor:
        """Outputs of a network in standard deviations; as they are where they never vary."""
        center, spread = self.targets[name]
        return (values - center) / spread.where(spread > 0, 1.0)

    @torch.no_grad()
    def folded(self) -> Tensor:
        """Parameters ``[1, D]`` that take states and give states, rewards and ends as they are. A logit of 0 is an
        output of 0.5, above which episodes end."""
        flat = self.flat.clone()
        for name, own in self.networks.split(flat).items():
            if name not in PARTS:
                continue
            layers, (center, spread) = self.networks.parts[name].layers(own), self.targets[name]
            for (weight, bias), linear in zip(layers, self.parts[name][::2], strict=True):
                weight.copy_(linear.weight)
                bias.copy_(linear.bias[:, None])
            weight, bias = layers[0]
            weight.div_(self.spread)
            bias.sub_(weight @ self.center[:, None])
            weight, bias = layers[-1]
            weight.mul_(spread[:, None])
            bias.mul_(spread[:, None]).add_(center[:, None])
        return flat

    def with_starts(self, flat: Tensor, streams: Streams) -> Tensor:
        """``flat [1, D]`` whose initial-state network, where there is one, gives wide first states: normal ones around
        0, with half the largest size met as standard deviation of each number."""
        if "initial" not in self.networks.parts:
            return flat
        flat = flat.clone()
        own, noise = self.networks.split(flat)["initial"], streams.normal(4096, self.networks.latent)
        own.copy_(fit(self.networks.parts["initial"], own, noise, noise * self.largest * _WIDE))
        return flat

    @torch.no_grad()
    def errors(self, flat: Tensor, rows: Transitions) -> dict[str, float]:
        """How far the synthetic environment ``flat [1, D]`` (`folded`) is from ``rows``, by name.

        ``obs_loss``, ``reward_loss`` and ``termination_loss`` as `transition_losses`; ``ends_missed`` and
        ``ends_false`` are shares of the ends and of the other steps. For ``rollout_error`` it starts where a piece of
        an episode does and goes on by itself with the recorded actions: the root mean square, over the numbers of the
        state in standard deviations, at the last step; the median over pieces. ``rollout_ends`` is the share of these
        pieces that it ends elsewhere. NaN where there is nothing to measure.
        """
        program = self.networks.program(flat)
        out = program.step(rows.obs[None], rows.action[None])
        state, reward = self.scaled("state", out.next_state[0]), self.scaled("reward", out.reward.T)
        losses = transition_losses(state, reward, out.done.T - ENDS_ABOVE, *self.standardised(rows))
        named = dict(zip(("obs_loss", "reward_loss", "termination_loss"), map(float, losses), strict=True))
        said, ended = out.done[0] > ENDS_ABOVE, rows.ended > 0
        named |= {"ends_missed": float((~said[ended]).float().mean()), "ends_false": float(said[~ended].float().mean())}
        starts = rows.pieces()
        lengths = torch.cat([starts[1:], torch.tensor([len(rows)])]) - starts
        state, wrong = rows.obs[starts], torch.zeros(len(starts), dtype=torch.bool)
        error = torch.zeros(len(starts))
        for step in range(PIECE):
            at, running = rows[(starts + step).clamp(max=len(rows) - 1)], step < lengths
            out = program.step(state[None], at.action[None])
            state = out.next_state[0]
            off = (self.scaled("state", state) - self.scaled("state", at.next_obs)).square().mean(1).sqrt()
            error = off.nan_to_num(torch.inf).where(running, error)
            wrong |= running & ((out.done[0] > ENDS_ABOVE) != (at.ended > 0))
        return named | {"rollout_error": float(error.median()), "rollout_ends": float(wrong.float().mean())}


def _spread(values: Tensor) -> Tensor:
    """Standard deviations ``[S]`` of ``values [N, S]``, 0 where all are equal."""
    return values.std(0, correction=0).where(values.amax(0) > values.amin(0), 0.0)
