"""A search in numbers and pictures, and what a synthetic environment shows the agents that train on it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from control.cli.settings import Settings
from control.evolution.inner_loop import InnerLoop, Outcome
from control.loops.rollout import rollout
from control.reports.panels import COLOURS, GREY
from control.reports.statistics import interval, iqm
from control.storage.run_dir import read_metrics
from envs.make import make_environment
from models.proxies.files import Proxy
from models.trajectory import Trajectory

_AGENTS, _EPISODES, _BINS = 10, 10, 60


def describe(outcome: Outcome, solved: float | None) -> dict[str, Any]:
    """Numbers of N agents: mean and spread of their mean returns, interquartile mean with a bootstrap interval of
    95 %, the share that solves the task, and what training cost. Agents whose weights are no longer finite have failed,
    and count in nothing else."""
    scores = outcome.scores[outcome.scores.isfinite()].double().numpy()
    if not len(scores):
        scores = np.full(1, np.nan)
    bounds = interval(scores, iqm)
    return {
        "agents": len(outcome.scores),
        "failed": int((~outcome.scores.isfinite()).sum()),
        "mean": float(scores.mean()),
        "std": float(scores.std()),
        "median": float(np.median(scores)),
        "worst": float(scores.min()),
        "iqm": float(iqm(scores)),
        "iqm_low": None if bounds is None else float(bounds[0]),
        "iqm_high": None if bounds is None else float(bounds[1]),
        "solved": None if solved is None else float((scores >= solved).mean()),
        "steps": float(outcome.steps.double().mean()),
        "steps_std": float(outcome.steps.double().std(correction=0)),
        "episodes": float(outcome.episodes.double().mean()),
    }


def sentence(summary: dict[str, Any]) -> str:
    """``mean 498.2, IQM 500.0 [499.1, 500.0]``."""
    spread = "" if summary["iqm_low"] is None else f" [{summary['iqm_low']:.1f}, {summary['iqm_high']:.1f}]"
    return f"mean {summary['mean']:.1f}, IQM {summary['iqm']:.1f}{spread}"


def search_figure(folder: Path, solved: float | None) -> Path:
    """``curve.png``: fitness and the centre's fresh agents over generations and synthetic steps."""
    from matplotlib.figure import Figure

    columns = {name: np.asarray(values) for name, values in read_metrics(folder / "metrics.csv").items()}
    figure = Figure(figsize=(7, 3.6), dpi=120, layout="constrained")
    axis = figure.subplots()
    generation = columns["epoch"]
    axis.fill_between(
        generation, columns["es/fitness_worst"], columns["es/fitness_best"], color=COLOURS[0], alpha=0.15, linewidth=0
    )
    axis.plot(generation, columns["es/fitness_mean"], color=COLOURS[0])
    axis.annotate("perturbed stand-ins: mean, worst to best", (0.01, 0.97), xycoords="axes fraction", va="top",
                  color=COLOURS[0])  # fmt: skip
    if "es/center_return" in columns:
        scored = np.isfinite(columns["es/center_return"])
        axis.plot(generation[scored], columns["es/center_return"][scored], color=COLOURS[1], marker="o", markersize=4)
        axis.annotate("the centre, by fresh agents", (0.01, 0.89), xycoords="axes fraction", va="top", color=COLOURS[1])
    if solved is not None:
        axis.axhline(solved, color=GREY, linewidth=1, linestyle=":")
        axis.annotate("solved", (1, solved), xycoords=("axes fraction", "data"), ha="right", va="bottom", color=GREY)
    axis.set_xlabel(f"generation ({columns['es/synthetic_steps'][-1] / 1e6:.1f} M synthetic steps in all)")
    axis.set_ylabel("return on the real environment")
    axis.spines[["top", "right"]].set_visible(False)
    path = folder / "curve.png"
    figure.savefig(path)
    return path


def behaviour(proxy: Proxy, settings: Settings) -> dict[str, dict[str, np.ndarray]]:
    """Samples of what agents see: ``{"stand-in" | "real" | "stand-in on real": {"state" [N, S], "reward" [N]}}``.

    Ten agents train on the stand-in (its next states, a bandit's only ones, and its rewards; where trainings end
    early, those of the agents that were the last to end), then play ten greedy episodes each on the real environment;
    the third is what the stand-in would have answered there. As in figure 4 of Ferreira et al. 2022.
    """
    # one shape for all agents, so that one program holds them
    loop = InnerLoop(proxy.config, settings.run.agent, settings.replace(vary_hp=False).agent, proxy.game)
    parameters = proxy.parameters.expand(_AGENTS, -1)
    interaction = loop.begin(parameters, list(range(_AGENTS)))
    trained = loop.finish(interaction, proxy.config.steps_in_use)
    inner: Any = interaction.agent
    memory, size = inner.memory, loop.networks.state_size
    rows = memory.rows[: memory.size]
    seen = rows[..., size : 2 * size] if proxy.config.proxy == "mdp" else rows[..., :size]
    real = make_environment(proxy.game, _AGENTS, _EPISODES)
    played = rollout(trained.agent, real, torch.arange(_AGENTS * _EPISODES).view(_AGENTS, _EPISODES))
    real.close()
    assert isinstance(played, Trajectory)
    valid, states = played.valid, torch.cat([played.obs[1:], played.final_obs[None]])
    program = loop.networks.program(parameters)
    answers = [program.step(obs, action) for obs, action in zip(played.obs, played.action, strict=True)]
    return {
        "stand-in": {"state": _flat(seen), "reward": rows[..., 2 * size + 1].flatten().numpy()},
        "real": {"state": _flat(states[valid]), "reward": played.reward[valid].numpy()},
        "stand-in on real": {
            "state": _flat(torch.stack([answer.next_state for answer in answers])[valid]),
            "reward": torch.stack([answer.reward for answer in answers])[valid].numpy(),
        },
    }


def _flat(states: torch.Tensor) -> np.ndarray:
    return states.reshape(-1, states.shape[-1]).numpy()


_NAMES = {
    "cartpole": ("cart position", "cart velocity", "pole angle", "pole angular velocity"),
    "acrobot": ("cos angle 1", "sin angle 1", "cos angle 2", "sin angle 2", "velocity 1", "velocity 2"),
}


def behaviour_figure(proxy: Proxy, path: Path, settings: Settings) -> Path:
    """Histograms of `behaviour`, one panel a dimension of the state and one for the reward; counts on a log scale."""
    from matplotlib.figure import Figure

    data = behaviour(proxy, settings)
    size = data["real"]["state"].shape[1]
    names = [*_NAMES.get(proxy.game, [f"state {i}" for i in range(size)]), "reward"]
    bandit = proxy.config.proxy == "bandit"
    columns = 3 if size > 4 else size + 1
    rows = -(-(size + 1) // columns)
    figure = Figure(figsize=(2.6 * columns, 2.3 * rows + 0.4), dpi=120, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for i, (axis, name) in enumerate(zip(axes, names, strict=False)):
        for (what, samples), colour in zip(data.items(), COLOURS, strict=False):
            if bandit and what == "stand-in on real" and i < size:
                continue  # a bandit has no next state
            values = samples["state"][:, i] if i < size else samples["reward"]
            low, high = np.quantile(values, [0.002, 0.998])
            spread = max(high - low, 1e-3)
            edges = np.linspace(low - 0.05 * spread, high + 0.05 * spread, _BINS)
            axis.hist(values, edges, histtype="step", color=colour, log=True, density=True)
        axis.set_title(name, fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=7)
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    seen = "states agents train on" if bandit else "agents in training on it"
    legend = {"stand-in": f"stand-in: {seen}", "real": "real environment: the same agents, greedy",
              "stand-in on real": "what the stand-in answers to the real states and actions"}  # fmt: skip
    handles = [axes[0].plot([], [], color=c)[0] for c in COLOURS[:3]]
    figure.legend(
        handles, [legend[name] for name in data], loc="outside lower center", ncols=2, fontsize=8, frameon=False
    )
    figure.savefig(path)
    return path
