"""Figures of synthetic environments, learned networks that replace a real environment: states and rewards in training,
and the rewards of bandits. (An MDP maps state and action to reward and next state, a bandit only to the reward.)"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from control.cli.settings import Settings
from control.evolution.inner_loop import InnerLoop
from control.loops.rollout import rollout
from control.reports.figures import COLOURS, WIDTH, FigureStyle, figure_panels, row_lengths, rows, style_of
from control.reports.states import state_names
from envs.base import Environment
from envs.make import make_environment, proxy_factory, spaces_of
from models.contract import Policy
from models.proxies.files import Proxy
from models.proxies.synthetic.networks import Networks, unscale_states
from models.spaces import Discrete
from models.trajectory import Trajectory

_AGENTS = 10  # number of agents
_EPISODES = 10  # number of episodes of each agent
BINS = 60  # number of bins of a histogram
_REWARD_BINS = 25  # number of bins of a component of the state, in `draw_rewards`
_ACTIONS = 41  # number of values of a continuous action, in `draw_rewards`
_MAX_PANELS = 9  # maximum number of panels of `draw_rewards`
# Kind of samples -> its label in the legend.
_LABELS = {
    "synthetic": "synthetic environment: agents in training",
    "real": "real environment: the same agents, greedy",
    "synthetic on real": "answers of the synthetic environment to real states and actions",
}
_NOTE = f"ten agents, ten episodes each; {BINS} bins from the 0.2 % to the 99.8 % quantile of all samples"


def behaviour(proxy: Proxy, settings: Settings) -> dict[str, np.ndarray]:
    """Train ten agents on the synthetic environment ``proxy``, and return three kinds of samples by name, as in figure
    4 of Ferreira et al. 2022. The samples of a kind are an array ``[N, S + 1]``: a row has the S components of a state,
    and a reward.

    - "synthetic": next states (for a bandit, states) and rewards from the training of the agents
      (`_training_samples`). Agents whose training ends early continue to step until all trainings have ended.
    - "real": next states and rewards from ten greedy episodes of each agent on the real environment.
    - "synthetic on real": the next states and rewards that the synthetic environment predicts for the states and
      actions of these episodes.
    """
    loop = _inner_loop(proxy, settings)
    parameters = proxy.parameters.expand(_AGENTS, -1)  # the same environment for each agent
    step_loop = loop.begin(parameters, list(range(_AGENTS)))
    policy = loop.train_to_end(step_loop).policy
    networks = Networks(proxy.config, loop.factory.spaces)
    training_samples = _training_samples(step_loop.agent, policy, proxy, networks)
    real = make_environment(proxy.game, _AGENTS, _EPISODES)
    trajectory = _play(policy, real)
    real.close()
    valid = trajectory.valid  # False after the end of an episode
    synthetic = networks.with_weights(parameters)
    steps = [synthetic.step(obs, action) for obs, action in zip(trajectory.obs, trajectory.action, strict=True)]
    predicted_states = torch.stack([step.next_state for step in steps])
    predicted_rewards = torch.stack([step.reward for step in steps])
    return {
        "synthetic": training_samples,
        "real": _sample_rows(_next_states(trajectory)[valid], trajectory.reward[valid]),
        "synthetic on real": _sample_rows(predicted_states[valid], predicted_rewards[valid]),
    }


def _inner_loop(proxy: Proxy, settings: Settings) -> InnerLoop:
    """Return the loop that trains the agents of `behaviour` on ``proxy``. All agents have the first implementation in
    the setting ``agent``, and networks of the same shape."""
    # In machine code, an agent whose training ends early stops, and the rest of its replay buffer is never written. In
    # torch it steps on until all trainings have ended. So machine code is used only if no training can end early.
    full_length = proxy.config.inner_rule == "budget" and proxy.config.train_episodes is None
    compiled = settings.proxy.compiled and full_length
    # Agents train for ``steps_in_use`` steps, as agents that use the finished environment do.
    config = dataclasses.replace(proxy.config, inner_steps=proxy.config.steps_in_use, compiled=compiled)
    agent_config = settings.replace(vary_hp=False).agent  # so that all networks have the same shape
    loop = InnerLoop(config, settings.run.agent, agent_config, proxy.game)
    return loop.for_implementation(loop.implementations[0])


def _sample_rows(states: Tensor, rewards: Tensor) -> np.ndarray:
    """Return states ``[N, S]`` and rewards ``[N]`` as an array ``[N, S + 1]``."""
    return torch.cat([states, rewards[:, None]], 1).numpy()


def _training_samples(agent: Any, policy: Policy, proxy: Proxy, networks: Networks) -> np.ndarray:
    """Return the next states (for a bandit, states) and rewards in the replay buffers of ``agent``, ``[N, S + 1]``. If
    the agents have no replay buffer, return samples from episodes of their ``policy`` on the synthetic environment.
    ``networks`` are the networks of the ``proxy``."""
    has_next_states = proxy.config.proxy == "mdp"
    if agent.replay_buffer is not None:
        columns = agent.replay_buffer.rows()  # name -> column [rows, agents, ...]
        states = columns["next_obs" if has_next_states else "obs"].flatten(0, -2)
        if networks.scales_obs:  # the buffers have scaled states
            states = unscale_states(states[None], networks.fixed_tensors(proxy.parameters[None]))[0]
        return _sample_rows(states, columns["reward"].flatten())
    config: Any = proxy.config
    # The policy acts in real units and scales observations itself, so the environment must not.
    unscaled = proxy_factory(dataclasses.replace(config, scale_obs=False), proxy.game)
    episodes = _play(policy, unscaled.environment(proxy.parameters.expand(_AGENTS, -1), agent))
    states = _next_states(episodes) if has_next_states else episodes.obs
    return _sample_rows(states[episodes.valid], episodes.reward[episodes.valid])


def _play(policy: Policy, environment: Environment) -> Trajectory:
    """Play an episode in each environment of each agent, with the seeds 0, 1, ..., and return the episodes."""
    agents, envs = environment.members, environment.envs
    return rollout(policy, environment, torch.arange(agents * envs).view(agents, envs))


def _next_states(trajectory: Trajectory) -> Tensor:
    """Return the observation after each step, ``[T, M, E, *O]`` as ``trajectory.obs``."""
    return torch.cat([trajectory.obs[1:], trajectory.final_obs[None]])


def picture(proxy: Proxy, folder: Path, settings: Settings) -> Path:
    """Draw ``behaviour.png`` in ``folder`` and return its path. It has a histogram for each component of the state (a
    single histogram of cells if observations are one-hot) and for the reward. For a bandit, also draw
    ``behaviour_reward.png`` (`draw_rewards`). Both figures are also written as SVG, for pages in HTML."""
    samples = behaviour(proxy, settings)
    is_bandit = proxy.config.proxy == "bandit"
    spaces = spaces_of(proxy.game)
    shown_samples = samples
    if spaces.one_hot:  # columns of the index of the cell and the reward, instead of a column for each cell
        shown_samples = {kind: np.stack([array[:, :-1].argmax(1), array[:, -1]], 1) for kind, array in samples.items()}
    style = style_of(settings.run).with_svg()
    path = style.path(folder, "behaviour")
    draw_histograms(path, histograms(shown_samples, proxy.game, is_bandit), style)
    reward_path = style.path(folder, "behaviour_reward")
    if is_bandit and spaces.one_hot and isinstance(spaces.actions, Discrete):
        draw_cell_rewards(reward_path, samples, proxy, style)
    elif is_bandit:
        draw_rewards(reward_path, samples, proxy, style)
    return path


def histograms(samples: dict[str, np.ndarray], game: str, bandit: bool) -> list[dict[str, Any]]:
    """Return a histogram for each component of the state and for the reward, as data for JSON. A histogram has its
    ``name``, the ``edges`` of its 60 bins and, for each kind of ``samples`` (`behaviour`), the fraction of the samples
    in each bin. A bandit has no next states, so histograms of its states omit the kind "synthetic on real"."""
    size = samples["real"].shape[1] - 1
    panels = []
    for column, name in enumerate([*state_names(game, size), "reward"]):
        values = {kind: array[:, column] for kind, array in samples.items()}
        if bandit and column < size:
            del values["synthetic on real"]
        # The bins leave out the most extreme 0.2 % at both ends. The margin is positive even if all values are equal.
        low = min(np.quantile(array, 0.002) for array in values.values())
        high = max(np.quantile(array, 0.998) for array in values.values())
        margin = 0.05 * max(high - low, 1e-3)
        edges = np.linspace(low - margin, high + margin, BINS + 1)
        panel: dict[str, Any] = {"name": name, "edges": [float(f"{edge:.5g}") for edge in edges]}
        for kind, array in values.items():
            counts, _ = np.histogram(array, edges)
            panel[kind] = [float(f"{fraction:.4g}") for fraction in counts / len(array)]
        panels.append(panel)
    return panels


def draw_histograms(
    path: Path, panels: list[dict[str, Any]], style: FigureStyle, numbers_path: Path | None = None
) -> None:
    """Draw a panel for each of the `histograms` ``panels``. A PNG stores the hash of the file ``numbers_path``."""
    lengths = row_lengths(len(panels))
    line_styles = ("-", "-", (0, (3, 1)))
    size, title = (WIDTH, 1.75 * len(lengths)), "States and rewards in training, beside the real environment"
    with figure_panels(path, rows(*lengths), size, style, numbers_path, title=title, note=_NOTE) as axes:
        for axis, panel in zip(axes, panels, strict=True):
            for (kind, label), colour, line_style in zip(_LABELS.items(), COLOURS, line_styles, strict=False):
                if kind in panel:
                    line: Any = {"color": colour, "linestyle": line_style, "linewidth": 1.1, "label": label}
                    axis.stairs(panel[kind], panel["edges"], **line)
            axis.set(xlabel=panel["name"], yscale="log", ylim=(1e-4, 2), ylabel="share of samples")
            axis.locator_params(axis="x", nbins=5)


def action_rewards(proxy: Proxy, states: Tensor, coordinate: int = 0) -> tuple[Tensor, Tensor]:
    """Return K actions ``[K]`` and the rewards ``[K, N]`` of the synthetic environment ``proxy`` for these actions in
    ``states [N, S]``. Discrete actions are all actions. Continuous actions are values of the coordinate with the index
    ``coordinate``, with the other coordinates at the middle of their ranges."""
    networks: Any = proxy.networks
    synthetic = networks.with_weights(proxy.parameters[None])  # one member
    space, num_states = networks.actions, len(states)
    if isinstance(space, Discrete):
        actions = torch.arange(space.n)
        action_batches = actions.view(-1, 1, 1).expand(-1, 1, num_states)  # [K, 1, N]
    else:
        low, high = torch.tensor(space.low), torch.tensor(space.high)
        actions = torch.linspace(float(low[coordinate]), float(high[coordinate]), _ACTIONS)
        middle = (low + high) / 2
        action_batches = middle.repeat(_ACTIONS, 1, num_states, 1)  # [K, 1, N, A]
        action_batches[..., coordinate] = actions.view(-1, 1, 1)
    rewards = [synthetic.step(states[None], action_batch).reward for action_batch in action_batches]
    return actions, torch.cat(rewards)  # concatenates K tensors of shape [1, N]


def bin_means(reward: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Average rewards in bins of a component of the state.

    :param reward: rewards ``[K, N]`` of K actions in N states.
    :param values: the component of these states, ``[N]``.
    :return: the edges ``[_REWARD_BINS + 1]`` of the bins, which leave out 0.5 % of the values at each end, and the
        mean rewards ``[K, _REWARD_BINS]``, NaN for an empty bin.
    """
    low, high = float(values.quantile(0.005)), float(values.quantile(0.995))
    edges = torch.linspace(low, high if high > low else low + 1, _REWARD_BINS + 1)  # low + 1 if all values are equal
    bins = torch.bucketize(values.contiguous(), edges[1:-1])  # [N], index of the bin
    is_inside = (values >= edges[0]) & (values <= edges[-1])
    sums = torch.zeros(len(reward), _REWARD_BINS).index_add_(1, bins[is_inside], reward[:, is_inside])
    return edges, sums / torch.bincount(bins[is_inside], minlength=_REWARD_BINS)


class _RewardPanel(NamedTuple):
    """Mean rewards ``[K, bins]`` of K actions over a component of the state, ``component`` (`bin_means`). The actions
    ``[K]`` are discrete, or values of the number ``coordinate`` of a continuous action."""

    component: str
    coordinate: int
    actions: Tensor
    edges: Tensor
    means: Tensor


def draw_rewards(path: Path, samples: dict[str, np.ndarray], proxy: Proxy, style: FigureStyle) -> Path:
    """Draw a bandit's mean reward of each action over each component of the states in ``samples`` (`behaviour`), and
    return ``path``. Discrete actions are lines, and coordinates of continuous actions are images. Of more
    than nine panels, the nine are shown in which the component matters most for the action (`_effect`)."""
    states = torch.from_numpy(samples["synthetic"][:, :-1])  # the last column is the reward
    networks: Any = proxy.networks
    space = networks.actions
    is_discrete = isinstance(space, Discrete)
    panels = []
    for coordinate in range(1 if is_discrete else space.size):
        actions, rewards = action_rewards(proxy, states, coordinate)
        for column, name in enumerate(state_names(proxy.game, states.shape[1])):
            panels.append(_RewardPanel(name, coordinate, actions, *bin_means(rewards, states[:, column])))
    strongest = np.argsort([-_effect(panel.means) for panel in panels], kind="stable")[:_MAX_PANELS]
    shown_panels = [panels[number] for number in sorted(strongest)]  # in the order of all panels
    lengths = row_lengths(len(shown_panels))
    note = "means over the states that agents train on; other numbers of an action are at the middle of their ranges"
    title = f"What the synthetic bandit of {proxy.game} pays for"
    with figure_panels(path, rows(*lengths), (WIDTH, 2.0 * len(lengths)), style, title=title, note=note) as axes:
        for axis, panel in zip(axes, shown_panels, strict=True):
            actions, edges = panel.actions, panel.edges
            axis.locator_params(axis="x", nbins=5)
            if is_discrete:
                for action, action_means in zip(actions.tolist(), panel.means, strict=True):
                    axis.plot((edges[1:] + edges[:-1]) / 2, action_means, label=f"action {action}")
                axis.set(xlabel=panel.component, ylabel="reward")
            else:
                extent = (float(edges[0]), float(edges[-1]), float(actions[0]), float(actions[-1]))
                image = axis.imshow(panel.means, origin="lower", extent=extent, aspect="auto")
                axis.set(xlabel=panel.component, ylabel=f"action {panel.coordinate}")
                axis.grid(False)
                axis.figure.colorbar(image, ax=axis, label="reward")
    return path


def _effect(means: Tensor) -> float:
    """Measure how much a component of the state matters for the choice of the action. From mean rewards of K actions,
    ``means [K, bins]``, return the standard deviation over bins of the rise from the first action to the last."""
    is_filled = means.isfinite().all(0)
    rise = (means[-1] - means[0])[is_filled]
    return float(rise.std()) if len(rise) > 1 else 0.0


def draw_cell_rewards(path: Path, samples: dict[str, np.ndarray], proxy: Proxy, style: FigureStyle) -> None:
    """Draw a bandit's reward of each discrete action in each cell. ``samples`` (`behaviour`) have one-hot states."""
    num_cells = samples["real"].shape[1] - 1  # the last column is the reward
    actions, reward = action_rewards(proxy, torch.eye(num_cells))
    title = f"What the synthetic bandit of {proxy.game} pays for"
    with figure_panels(path, [[0]], (WIDTH, 1.2 + 0.2 * len(actions)), style, title=title) as (axis,):
        image = axis.imshow(reward, aspect="auto", interpolation="nearest")
        axis.set(xlabel="cell", ylabel="action", yticks=range(len(actions)))
        axis.grid(False)
        axis.figure.colorbar(image, ax=axis, label="reward")
