"""A synthetic environment by supervised learning: its networks fitted to transitions of the real environment.

Source: the model-based baseline of Ferreira et al. 2022, arXiv 2202.02790. Two errors of its public code are corrected:
it trains networks on ``[state, action]`` that are later used with ``[action, state]``, and it does not train the
prediction of the end of an episode.

N is the number of transitions, S the size of an observation, A the number of actions or the size of an action. ``flat
[1, D]`` are the weights of all networks. A piece is up to `PIECE` consecutive steps of an episode.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from models.losses import transition_losses
from models.proxies.fitting import Scale, fit, undo_scaling
from models.proxies.synthetic.networks import Networks
from models.spaces import Discrete
from models.streams import Streams
from understudy.program import ENDS_ABOVE

PARTS = ("state", "reward", "done")
PIECE = 50  # largest number of steps in a piece of an episode
_WIDE_STD = 0.5  # standard deviation of wide initial states, divided by the largest absolute value in the data
_START_SAMPLES = 4096  # pairs of noise and initial state to which the initial-state network is fitted


class Transitions(NamedTuple):
    """N transitions. Rows of an episode are consecutive and in order."""

    obs: Tensor  # [N, S]
    action: Tensor  # [N] int64 or [N, A]
    reward: Tensor  # [N]
    next_obs: Tensor  # [N, S]
    terminated: Tensor  # [N] float, 1 at termination and otherwise 0, also at a time limit

    def select(self, rows: Tensor) -> "Transitions":
        """Return the transitions at ``rows``, indices or a mask."""
        return Transitions(*(column[rows] for column in self))

    def piece_starts(self) -> Tensor:
        """Return the first row of each of the K pieces of at most `PIECE` steps, ``[K]``. An episode begins after a
        termination, or if ``obs`` differs from ``next_obs`` of the row before."""
        begins = torch.ones(len(self.obs), dtype=torch.bool)
        begins[1:] = (self.obs[1:] != self.next_obs[:-1]).any(1) | (self.terminated[:-1] > 0)
        rows = torch.arange(len(self.obs))
        first_rows = rows.where(begins, 0).cummax(0).values  # [N], for each row the first row of its episode
        return ((rows - first_rows) % PIECE == 0).nonzero()[:, 0]

    def split(self, fraction: float, streams: Streams) -> tuple["Transitions", "Transitions"]:
        """Split into training and held-out transitions. The latter are a random ``fraction`` of the pieces, at least
        one."""
        starts = self.piece_starts()
        count = max(1, round(fraction * len(starts)))
        held_out_pieces = streams.uniform(len(starts))[0].argsort()[:count]  # by the stream of the only member
        rows = torch.arange(len(self.obs))
        piece_of_row = torch.bucketize(rows, starts, right=True) - 1  # [N], the last piece that starts at or before it
        held_out = torch.isin(piece_of_row, held_out_pieces)
        return self.select(~held_out), self.select(held_out)


class Fit:
    """The losses and the errors of a synthetic environment that is fitted to recorded ``transitions`` by the caller.

    During the fit, inputs, next states and rewards are standardised, and the done network outputs a logit.
    ``output_scales`` maps the name of a network to the scale of its outputs. If an output never varies in the data, the
    network outputs a constant in the end."""

    def __init__(self, networks: Networks, transitions: Transitions):
        self.networks = networks
        self.largest = transitions.obs.abs().amax(0)  # [S], the largest absolute value of each number of a state
        inputs, terminated = self.inputs(transitions), transitions.terminated
        input_std = _std(inputs)
        self.input_scale = Scale(inputs.mean(0), input_std.where(input_std > 0, 1.0))
        if terminated.min() < terminated.max():
            done_scale = Scale(torch.full((1,), ENDS_ABOVE), torch.ones(1))  # maps a logit of 0 to `ENDS_ABOVE`
        else:
            done_scale = Scale(terminated[:1], torch.zeros(1))  # the constant of all rows
        self.output_scales = {
            "state": Scale(transitions.next_obs.mean(0), _std(transitions.next_obs)),
            "reward": Scale(transitions.reward.mean()[None], _std(transitions.reward[:, None])),
            "done": done_scale,
        }

    def inputs(self, rows: Transitions) -> Tensor:
        """Return the networks' inputs ``[N, A + S]``: the action (one-hot if discrete), then the state."""
        action = rows.action
        if isinstance(self.networks.actions, Discrete):
            action = F.one_hot(action, self.networks.action_size)
        return torch.cat([action.float(), rows.obs], 1)

    def losses(self, flat: Tensor, rows: Transitions) -> tuple[Tensor, Tensor]:
        """Compute the losses of the three networks with the weights ``flat [1, D]`` on a batch ``rows`` of transitions.
        Return the losses of state, reward and termination ``[3]``, and the gradient ``[1, D]`` of their sum."""
        inputs = self.input_scale.standardise(self.inputs(rows)).T[None]  # [1, A + S, N]
        mlps, parameters = self.networks.mlps, self.networks.split(flat)
        layers = {name: mlps[name].layers(parameters[name]) for name in PARTS}
        traces = {name: mlps[name].forward(layers[name], inputs) for name in PARTS}  # the last item is the output
        outputs = [traces[name][-1].requires_grad_() for name in PARTS]  # [1, out, N]
        state, reward, logit = (output[0].T for output in outputs)  # [N, out]
        losses = torch.stack(transition_losses(state, reward, logit, *self.fit_targets(rows)))
        # Autograd computes only the gradients of the outputs, and `MLP.backward` the gradients of the parameters.
        output_gradients = torch.autograd.grad(losses.sum(), outputs)
        gradient = torch.zeros_like(flat)
        gradients = self.networks.split(gradient)  # views, so writing to them fills ``gradient``
        for name, output_gradient in zip(PARTS, output_gradients, strict=True):
            part_gradient, _ = mlps[name].backward(layers[name], inputs, traces[name], output_gradient)
            gradients[name].copy_(part_gradient)
        return losses.detach(), gradient

    def fit_targets(self, rows: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        """Return the networks' targets: standardised next states ``[N, S]`` and rewards ``[N, 1]``, ``terminated [N,
        1]``."""
        next_state = self.output_scales["state"].standardise(rows.next_obs)
        reward = self.output_scales["reward"].standardise(rows.reward[:, None])
        return next_state, reward, rows.terminated[:, None]

    def convert_to_raw_units(self, flat: Tensor) -> Tensor:
        """Convert the parameters ``flat [1, D]`` of a fit, for standardised inputs and outputs, to parameters for raw
        inputs and outputs. To the logit of the done network, `ENDS_ABOVE` is added."""
        flat = flat.clone()
        for name, output_scale in self.output_scales.items():
            layers = self.networks.mlps[name].layers(self.networks.split(flat)[name])  # views of ``flat``
            undo_scaling(layers, self.input_scale, output_scale)  # changes ``flat``
        return flat

    def fit_initial_states(self, flat: Tensor, streams: Streams) -> None:
        """Fit the initial-state network, if there is one, to initial states that are spread widely: normal noise times
        half of the largest absolute value in the data. Its weights in ``flat [1, D]`` are changed in place."""
        if "initial" in self.networks.mlps:
            parameters = self.networks.split(flat)["initial"]  # a view
            noise = streams.normal(_START_SAMPLES, self.networks.latent_size)
            states = noise * self.largest * _WIDE_STD
            parameters.copy_(fit(self.networks.mlps["initial"], parameters, noise, states))

    def errors(self, flat: Tensor, rows: Transitions) -> dict[str, float]:
        """Return errors of the synthetic environment with the weights ``flat [1, D]`` on the transitions ``rows``: the
        errors of `rollout_errors`, and errors of single steps. ``obs_loss`` and ``reward_loss`` are mean squared
        errors, ``termination_loss`` is a cross-entropy. ``ends_missed`` is the fraction of terminations that the done
        network does not predict, ``ends_false`` the fraction of other steps in which it predicts a termination. An
        error without data is NaN."""
        out = self.networks.with_weights(flat).step(rows.obs[None], rows.action[None])  # steps of one member
        # A step is in raw units. The losses are of standardised states and rewards and of the logit of an end, to which
        # ``out.done [1, N]`` adds `ENDS_ABOVE`.
        next_state = self.output_scales["state"].standardise(out.next_state[0])  # [N, S]
        reward = self.output_scales["reward"].standardise(out.reward.T)  # [N, 1]
        logit = out.done.T - ENDS_ABOVE  # [N, 1]
        losses = transition_losses(next_state, reward, logit, *self.fit_targets(rows))
        errors = dict(zip(("obs_loss", "reward_loss", "termination_loss"), map(float, losses), strict=True))
        predicts_end, has_ended = logit[:, 0] > 0, rows.terminated > 0
        errors["ends_missed"] = float((~predicts_end[has_ended]).float().mean())
        errors["ends_false"] = float(predicts_end[~has_ended].float().mean())
        return errors | self.rollout_errors(flat, rows)

    def rollout_errors(self, flat: Tensor, rows: Transitions) -> dict[str, float]:
        """Return errors of rollouts from the first state of each piece of an episode, with the recorded actions.
        ``rollout_error`` is the error of the state after the last step of a piece: the root mean square over its
        numbers, in standard deviations, then the median over pieces. ``rollout_ends`` is the fraction of pieces in
        which the done network is wrong in at least one step."""
        environment, state_scale = self.networks.with_weights(flat), self.output_scales["state"]
        num_rows, starts = len(rows.obs), rows.piece_starts()
        lengths = starts.diff(append=torch.tensor([num_rows]))
        state = rows.obs[starts]
        error = torch.zeros(len(starts))  # error of the latest step of each piece
        has_wrong_end = torch.zeros(len(starts), dtype=torch.bool)  # whether a prediction of termination was wrong
        for step in range(PIECE):
            running = step < lengths
            recorded_steps = rows.select((starts + step).clamp(max=num_rows - 1))  # not used if a piece has ended
            out = environment.step(state[None], recorded_steps.action[None])
            state = out.next_state[0]
            difference = state_scale.standardise(state) - state_scale.standardise(recorded_steps.next_obs)
            # A state that is no number any more has an infinite error.
            step_error = difference.square().mean(1).sqrt().nan_to_num(torch.inf)
            error = step_error.where(running, error)
            predicts_end, has_ended = out.done[0] > ENDS_ABOVE, recorded_steps.terminated > 0
            has_wrong_end |= running & (predicts_end != has_ended)
        return {"rollout_error": float(error.median()), "rollout_ends": float(has_wrong_end.float().mean())}


def _std(values: Tensor) -> Tensor:
    """Return standard deviations ``[S]`` of the columns of ``values [N, S]``, exactly 0 for equal values."""
    return values.std(0, correction=0).where(values.amax(0) > values.amin(0), 0.0)
