"""A synthetic environment by supervised learning: its networks fitted to transitions of the real environment.

Source: the model-based baseline of Ferreira et al. 2022, arXiv 2202.02790. Two errors of its public code are corrected
here: it feeds ``[state, action]`` to networks that later read ``[action, state]``, and it does not train the end of an
episode.

N is the number of transitions, S the size of an observation, A the number of actions (or the size of one).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from models.losses import transition_losses
from models.proxies.fitting import fit
from models.proxies.synthetic.networks import Networks
from models.spaces import Discrete
from models.streams import Streams

PARTS = ("state", "reward", "done")
PIECE = 50  # largest number of steps in a piece of an episode
ENDS_ABOVE = 0.5  # the done network's output above which an episode ends; a logit of 0 in the fit
_WIDE = 0.5  # standard deviation of wide initial states, as a share of the largest absolute value in the data


class Transitions(NamedTuple):
    """Transitions ``obs [N, S]``, ``action [N]`` int64 or ``[N, A]``, ``reward [N]``, ``next_obs [N, S]`` and
    ``ended [N]``, which is 1 at termination and otherwise 0, also at a time limit. Rows of an episode are consecutive
    and in order."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    ended: Tensor

    def at(self, rows: Tensor) -> "Transitions":
        """Return the transitions at ``rows``, indices or a mask."""
        return Transitions(*(column[rows] for column in self))

    def piece_starts(self) -> Tensor:
        """Cut episodes after every `PIECE` steps and return the first row of each piece, ``[K]``. An episode begins
        after a termination, or if its observation is not the next one of the row before."""
        begins = torch.ones(len(self.obs), dtype=torch.bool)
        begins[1:] = (self.obs[1:] != self.next_obs[:-1]).any(1) | (self.ended[:-1] > 0)
        rows = torch.arange(len(self.obs))
        first_rows = rows.where(begins, 0).cummax(0).values  # [N], of each row's episode
        return ((rows - first_rows) % PIECE == 0).nonzero()[:, 0]

    def split(self, share: float, streams: Streams) -> tuple["Transitions", "Transitions"]:
        """Split into training and held-out transitions. Held out are all rows of a ``share`` of the pieces, sampled by
        ``streams``, at least one piece."""
        starts = self.piece_starts()
        count = max(1, round(share * len(starts)))
        held_out_pieces = streams.uniform(len(starts))[0].argsort()[:count]
        piece_of_row = torch.bucketize(torch.arange(len(self.obs)), starts, right=True) - 1
        held_out = torch.isin(piece_of_row, held_out_pieces)
        return self.at(~held_out), self.at(held_out)


class Fit:
    """Scales of the inputs and outputs of a synthetic MDP's networks, and the losses of a fit.

    The fit standardises all inputs, next states and rewards to mean 0 and variance 1. `in_raw_units` moves these scales
    into the first and last layers. A target that never varies has scale 0, so its network outputs a constant."""

    def __init__(self, networks: Networks, transitions: Transitions):
        self.networks, self.largest = networks, transitions.obs.abs().amax(0)
        inputs, terminations = self.inputs(transitions), transitions.ended
        self.center, spread = inputs.mean(0), _spread(inputs)
        self.spread = spread.where(spread > 0, 1.0)
        termination_varies = bool(terminations.min() < terminations.max())
        # The done network of a fit outputs a logit. If all rows have the same end, scale 0 makes it constant.
        done_center = torch.full((1,), ENDS_ABOVE) if termination_varies else terminations[:1]
        # Center and scale of each network's output.
        self.targets = {
            "state": (transitions.next_obs.mean(0), _spread(transitions.next_obs)),
            "reward": (transitions.reward.mean()[None], _spread(transitions.reward[:, None])),
            "done": (done_center, torch.full((1,), float(termination_varies))),
        }

    def inputs(self, rows: Transitions) -> Tensor:
        """Return the networks' inputs ``[N, A + S]``: the action (one-hot if discrete), then the state."""
        discrete = isinstance(self.networks.actions, Discrete)
        action = F.one_hot(rows.action, self.networks.action_size) if discrete else rows.action
        return torch.cat([action.float(), rows.obs], 1)

    def losses(self, flat: Tensor, rows: Transitions) -> tuple[Tensor, Tensor]:
        """Return the losses of state, reward and termination, ``[3]``, and the gradient ``[1, D]`` of their sum with
        respect to the parameters ``flat [1, D]``. Autograd computes only the gradients of the outputs."""
        inputs = ((self.inputs(rows) - self.center) / self.spread).T[None]
        mlps, gradient = self.networks.parts, torch.zeros_like(flat)
        layers = {name: mlps[name].layers(self.networks.split(flat)[name]) for name in PARTS}
        traces = {name: mlps[name].forward(layers[name], inputs) for name in PARTS}
        outputs = [traces[name][-1].requires_grad_() for name in PARTS]
        state, reward, logit = (output[0].T for output in outputs)
        losses = torch.stack(transition_losses(state, reward, logit, *self.fit_targets(rows)))
        for name, output_gradient in zip(PARTS, torch.autograd.grad(losses.sum(), outputs), strict=True):
            part_gradient, _ = mlps[name].backward(layers[name], inputs, traces[name], output_gradient)
            self.networks.split(gradient)[name].copy_(part_gradient)
        return losses.detach(), gradient

    def fit_targets(self, rows: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        """Return the targets of a fit: standardised next states ``[N, S]`` and rewards ``[N, 1]``, and terminations
        ``[N, 1]``."""
        return (
            self.standardise("state", rows.next_obs),
            self.standardise("reward", rows.reward[:, None]),
            rows.ended[:, None],
        )

    def standardise(self, name: str, values: Tensor) -> Tensor:
        """Standardise ``values`` of the output ``name``. Outputs that never vary are only centred."""
        center, spread = self.targets[name]
        return (values - center) / spread.where(spread > 0, 1.0)

    def in_raw_units(self, flat: Tensor) -> Tensor:
        """Convert parameters ``flat [1, D]`` of a fit, with standardised inputs and outputs, to parameters ``[1, D]``
        with inputs and outputs in raw units. The done network's logit 0 becomes 0.5, above which episodes end."""
        flat = flat.clone()
        for name, (center, spread) in self.targets.items():
            layers = self.networks.parts[name].layers(self.networks.split(flat)[name])
            weight, bias = layers[0]
            weight.div_(self.spread)
            bias.sub_(weight @ self.center[:, None])
            weight, bias = layers[-1]
            weight.mul_(spread[:, None])
            bias.mul_(spread[:, None]).add_(center[:, None])
        return flat

    def start_wide(self, flat: Tensor, streams: Streams) -> None:
        """Fit the initial-state network in ``flat [1, D]``, if there is one, in place. Its initial states are normal
        with mean 0; each number's standard deviation is half of its largest absolute value in the data."""
        if "initial" in self.networks.parts:
            parameters = self.networks.split(flat)["initial"]  # a view
            noise = streams.normal(4096, self.networks.latent)
            states = noise * self.largest * _WIDE
            parameters.copy_(fit(self.networks.parts["initial"], parameters, noise, states))

    def errors(self, flat: Tensor, rows: Transitions) -> dict[str, float]:
        """Return errors of the synthetic environment ``flat [1, D]`` (`in_raw_units`) on ``rows``, by name.

        ``obs_loss``, ``reward_loss`` and ``termination_loss`` are as in `transition_losses`. ``ends_missed`` is the
        share of terminations that the done network misses, ``ends_false`` the share of other steps that it ends. Errors
        of `rollout_errors` follow. An error without data is NaN.
        """
        out = self.networks.program(flat).step(rows.obs[None], rows.action[None])
        state, reward = self.standardise("state", out.next_state[0]), self.standardise("reward", out.reward.T)
        losses = transition_losses(state, reward, out.done.T - ENDS_ABOVE, *self.fit_targets(rows))
        named_losses = dict(zip(("obs_loss", "reward_loss", "termination_loss"), map(float, losses), strict=True))
        predicted_ends, true_ends = out.done[0] > ENDS_ABOVE, rows.ended > 0
        named_losses |= {
            "ends_missed": float((~predicted_ends[true_ends]).float().mean()),
            "ends_false": float(predicted_ends[~true_ends].float().mean()),
        }
        return named_losses | self.rollout_errors(flat, rows)

    def rollout_errors(self, flat: Tensor, rows: Transitions) -> dict[str, float]:
        """Return errors of closed-loop rollouts, which start at the first state of each piece of an episode and take
        the recorded actions.

        ``rollout_error`` is measured at the last step of a piece: the root mean square over the state's numbers, in
        standard deviations, and the median over pieces. ``rollout_ends`` is the share of pieces in which the done
        network is wrong at any step.
        """
        program, num_rows, starts = self.networks.program(flat), len(rows.obs), rows.piece_starts()
        lengths = starts.diff(append=torch.tensor([num_rows]))
        state, error = rows.obs[starts], torch.zeros(len(starts))
        wrong_ends = torch.zeros(len(starts), dtype=torch.bool)
        for step in range(PIECE):
            running = step < lengths
            recorded = rows.at((starts + step).clamp(max=num_rows - 1))
            out = program.step(state[None], recorded.action[None])
            state = out.next_state[0]
            difference = self.standardise("state", state) - self.standardise("state", recorded.next_obs)
            step_error = difference.square().mean(1).sqrt().nan_to_num(torch.inf)
            error = step_error.where(running, error)
            wrong_ends |= running & ((out.done[0] > ENDS_ABOVE) != (recorded.ended > 0))
        return {"rollout_error": float(error.median()), "rollout_ends": float(wrong_ends.float().mean())}


def _spread(values: Tensor) -> Tensor:
    """Return standard deviations ``[S]`` of ``values [N, S]``, exactly 0 for equal values."""
    return values.std(0, correction=0).where(values.amax(0) > values.amin(0), 0.0)
