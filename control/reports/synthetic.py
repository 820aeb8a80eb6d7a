"""What a synthetic environment shows the agents that train on it."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from control.cli.settings import Settings
from control.evolution.inner_loop import InnerLoop
from control.loops.rollout import rollout
from control.reports.bandit import draw_paid
from control.reports.sheets import WIDTH, balanced, rows, sheet
from control.reports.style import COLOURS, Look, look_of
from envs.base import Environment
from envs.make import make_environment
from models.contract import Policy
from models.proxies.files import Proxy
from models.proxies.synthetic.networks import Networks

_AGENTS, _EPISODES, _BINS = 10, 10, 60


def behaviour(proxy: Proxy, settings: Settings) -> dict[str, np.ndarray]:
    """Samples of what agents see, "synthetic", "real" and "synthetic on real": states and, as the last column, rewards
    ``[N, S + 1]``.

    Ten agents train on the synthetic environment: its next states (of a bandit, its only ones) and rewards; where
    trainings end early, of the agents that ended last; of agents without a replay buffer, greedy episodes after their
    training. Then each plays ten greedy episodes on the real environment. The
    third is what the synthetic one would have answered there. As in figure 4 of Ferreira et al. 2022.
    """
    # One shape for all agents, so that one program holds them. Where trainings may end early, in torch: there agents
    # leave the program as soon as they end.
    whole = proxy.config.inner_rule == "budget" and proxy.config.train_episodes is None
    compiled = settings.proxy.compiled and whole
    config = dataclasses.replace(proxy.config, inner_steps=proxy.config.steps_in_use, compiled=compiled)
    loop = InnerLoop(config, settings.run.agent, settings.replace(vary_hp=False).agent, proxy.game)
    loop = loop.alone(loop.kinds[0])
    parameters = proxy.parameters.expand(_AGENTS, -1)
    interaction = loop.begin(parameters, list(range(_AGENTS)))
    trained = loop.finish(interaction)
    agent: Any = interaction.agent
    what = "next_obs" if proxy.config.proxy == "mdp" else "obs"
    if hasattr(agent, "replay"):
        rows = agent.replay.rows()
        if what not in rows:  # agents of continuous actions keep both together
            rows[what] = rows["pair"][..., : loop.stages.spaces.obs_shape[0]]
        seen, rewards = rows[what].flatten(0, -2), rows["reward"].flatten()
    else:
        seen, rewards = _played(trained.policy, interaction.environment, what)
    real = make_environment(proxy.game, _AGENTS, _EPISODES)
    played = rollout(trained.policy, real, torch.arange(_AGENTS * _EPISODES).view(_AGENTS, _EPISODES))
    real.close()
    valid, states = played.valid, torch.cat([played.obs[1:], played.final_obs[None]])
    program = Networks(proxy.config, loop.stages.spaces).program(parameters)
    answers = [program.step(obs, action) for obs, action in zip(played.obs, played.action, strict=True)]
    answered, paid = (torch.stack([getattr(answer, name) for answer in answers]) for name in ("next_state", "reward"))
    samples = {
        "synthetic": (seen, rewards),
        "real": (states[valid], played.reward[valid]),
        "synthetic on real": (answered[valid], paid[valid]),
    }
    return {what: torch.cat([state, reward[:, None]], 1).numpy() for what, (state, reward) in samples.items()}


def _played(policy: Policy, stage: Environment, what: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Observations, or those that follow them, ``[N, S]``, and rewards ``[N]`` of greedy episodes on ``stage``."""
    played = rollout(policy, stage, torch.arange(stage.members * stage.envs).view(stage.members, stage.envs))
    seen = played.obs if what == "obs" else torch.cat([played.obs[1:], played.final_obs[None]])
    return seen[played.valid], played.reward[played.valid]


_NAMES = {
    "cartpole": ("cart position (m)", "cart velocity (m/s)", "pole angle (rad)", "pole angular velocity (rad/s)"),
    "acrobot": ("cos angle 1", "sin angle 1", "cos angle 2", "sin angle 2", "velocity 1 (rad/s)", "velocity 2 (rad/s)"),
    "pendulum": ("cos angle", "sin angle", "angular velocity (rad/s)"),
    "mountaincar": ("position (m)", "velocity (m/step)"),
    "mountaincar-continuous": ("position (m)", "velocity (m/step)"),
    "swimmer": (
        "angle of the front (rad)",
        "angle of joint 1 (rad)",
        "angle of joint 2 (rad)",
        "velocity along x (m/s)",
        "velocity along y (m/s)",
        "turning of the front (rad/s)",
        "turning of joint 1 (rad/s)",
        "turning of joint 2 (rad/s)",
    ),
}


def picture(proxy: Proxy, folder: Path, settings: Settings, name: str = "behaviour") -> Path:
    """``behaviour.png`` in ``folder``: histograms of `behaviour`, one panel per dimension of the state and one for the
    reward. Beside it, of a bandit, ``behaviour_reward.png``: what it pays for."""
    look = look_of(settings.run)
    ending = (look.formats or ("png",))[0]
    path, data, bandit = folder / f"{name}.{ending}", behaviour(proxy, settings), proxy.config.proxy == "bandit"
    draw_behaviour(path, data, proxy.game, bandit, look)
    if bandit:
        draw_rewards(folder / f"{name}_reward.{ending}", data, proxy, look)
    return path


def draw_rewards(path: Path, data: dict[str, np.ndarray], proxy: Proxy, look: Look) -> Path:
    """What a bandit pays for in the states of `behaviour` (`draw_paid`)."""
    states = torch.from_numpy(data["synthetic"][:, :-1])
    return draw_paid(path, proxy, states, names_of(proxy.game, states.shape[1]), look)


def names_of(game: str, size: int) -> list[str]:
    """What the numbers of a state are called."""
    return [*_NAMES.get(game.partition(",")[0], [f"state {i}" for i in range(size)])]


def draw_behaviour(path: Path, data: dict[str, np.ndarray], game: str, bandit: bool, look: Look) -> None:
    """Each panel shows what share of the samples lies in each of 60 bins, on one logarithmic axis for all."""
    size = data["real"].shape[1] - 1
    names = [*names_of(game, size), "reward"]
    kind = "bandit" if bandit else "MDP"
    seen = "states that agents train on" if bandit else "agents in training"
    labels = {
        "synthetic": f"synthetic {kind}: {seen}",
        "real": "real environment: the same agents, greedy",
        "synthetic on real": f"answers of the synthetic {kind} to real states and actions",
    }
    note = f"ten agents trained on the synthetic {kind}, ten episodes each; {_BINS} bins from the 0.2 % to the 99.8 % "
    note += "quantile of all samples"
    lengths = balanced(size + 1)
    with sheet(path, rows(*lengths), (WIDTH, 1.75 * len(lengths)), look, note=note) as axes:
        for i, (axis, name) in enumerate(zip(axes, names, strict=True)):
            shown = {
                what: samples[:, i]
                for what, samples in data.items()
                if not (bandit and what == "synthetic on real" and i < size)  # a bandit has no next state
            }
            ends = [np.quantile(samples, [0.002, 0.998]) for samples in shown.values()]
            low, high = min(low for low, _ in ends), max(high for _, high in ends)
            margin = 0.05 * max(high - low, 1e-3)
            edges = np.linspace(low - margin, high + margin, _BINS + 1)
            for what, colour, style in zip(labels, COLOURS, ("-", "-", (0, (3, 1))), strict=False):
                if what in shown:
                    weights = np.full(len(shown[what]), 1 / len(shown[what]))
                    axis.hist(shown[what], edges, histtype="step", color=colour, linestyle=style, linewidth=1.1,
                              weights=weights, log=True, label=labels[what])  # fmt: skip
            axis.set(xlabel=name, ylim=(1e-4, 2))
            if i in np.cumsum([0, *lengths]):
                axis.set_ylabel("share of samples")
