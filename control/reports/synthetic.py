"""What a synthetic environment shows the agents that train on it."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from control.cli.settings import Settings
from control.evolution.inner_loop import InnerLoop
from control.loops.rollout import rollout
from control.reports.panels import COLOURS, grid, sheet
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
    parameters = proxy.parameters.expand(_AGENTS, -1)
    interaction = loop.begin(parameters, list(range(_AGENTS)))
    trained = loop.finish(interaction)
    agent: Any = interaction.agent
    what = "next_obs" if proxy.config.proxy == "mdp" else "obs"
    if hasattr(agent, "replay"):
        rows = agent.replay.rows()
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
    "cartpole": ("cart position", "cart velocity", "pole angle", "pole angular velocity"),
    "acrobot": ("cos angle 1", "sin angle 1", "cos angle 2", "sin angle 2", "velocity 1", "velocity 2"),
}


def picture(proxy: Proxy, folder: Path, settings: Settings) -> Path:
    """``behaviour.png`` in ``folder``: histograms of `behaviour`, one panel per dimension of the state and one for the
    reward; counts on a log scale."""
    path, data = folder / "behaviour.png", behaviour(proxy, settings)
    size = data["real"].shape[1] - 1
    names = [*_NAMES.get(proxy.game, [f"state {i}" for i in range(size)]), "reward"]
    bandit = proxy.config.proxy == "bandit"
    seen = "states agents train on" if bandit else "agents in training on it"
    labels = {
        "synthetic": f"synthetic environment: {seen}",
        "real": "real environment: the same agents, greedy",
        "synthetic on real": "what the synthetic one answers to the real states and actions",
    }
    cells = grid(size + 1, 3 if size > 4 else size + 1)
    with sheet(path, cells, (2.6 * len(cells[0]), 2.3 * len(cells) + 0.7), legend="outside lower center") as axes:
        for i, (axis, name) in enumerate(zip(axes, names, strict=True)):
            for (what, samples), colour in zip(data.items(), COLOURS, strict=False):
                if bandit and what == "synthetic on real" and i < size:
                    continue  # a bandit has no next state
                low, high = np.quantile(samples[:, i], [0.002, 0.998])
                margin = 0.05 * max(high - low, 1e-3)
                edges = np.linspace(low - margin, high + margin, _BINS)
                axis.hist(
                    samples[:, i], edges, histtype="step", color=colour, log=True, density=True, label=labels[what]
                )
            axis.set_title(name, fontsize=9)
            axis.tick_params(labelsize=7)
    return path
