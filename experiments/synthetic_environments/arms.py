"""New agents in three arms: trained on the real environment, on synthetic environments whose search had agents of fixed
hyperparameters, and on others whose search had agents of varied hyperparameters.

    python experiments/synthetic_environments/arms.py measure cartpole-200 --searches 5 --json exp_dir/arms.json
    python experiments/synthetic_environments/arms.py draw docs/results/arms.json --game cartpole-200 --out figure3.png

Figures 3 (CartPole) and 7 (Acrobot) of Ferreira et al. 2022. A search ends at the first mean on which 16 agents
solve the game. Then new agents of three kinds train on each synthetic environment for its number of steps. Others train
on the real environment until their last ten episodes solve it, or for ``--real_steps`` steps. All sample learning rate,
batch size, width and depth, and are tested in ten episodes of the real environment. With ``--no_vary_hp`` they have the
search's hyperparameters, which shows the generalisation gap.
"""

import argparse
import dataclasses
import functools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

from control.commands.proxy_agents import agent_settings
from control.evolution.inner_loop import InnerLoop, Outcome, fresh_seeds
from control.reports.figures import COLOURS, WIDTH, rows, write_numbers
from experiments.comparison import Layout, check_options, numbers_in, run_script, run_search
from experiments.plotting import density, draw_pages, measure_and_draw, parse_with_extra_flags
from models.proxies import files
from models.proxies.synthetic.config import PROXIES
from models.settings import SettingError, field_types

GAMES = {"cartpole-200": "CartPole, 200 steps", "acrobot": "Acrobot"}
AGENTS = ("DDQN", "DuelingDDQN", "TD3Discrete")
ARMS = {
    "real": "trained on the real environment",
    "fixed": "on synthetic ones, searched with fixed hyperparameters",
    "varied": "on synthetic ones, searched with varied hyperparameters",
}
SEARCH = {"fixed": ["--no_vary_hp"], "varied": ["--vary_hp", "--vary", "lr,batch_size"]}
COLOUR = dict(zip(ARMS, (COLOURS[1], COLOURS[0], COLOURS[2]), strict=True))
LAYOUT = Layout(("returns", "steps", "episodes"), 3)  # game -> arm -> agent; a list for each synthetic environment
VIOLINS = "densities of the returns in ten test episodes of each agent; lines: smallest, mean and largest"
NOTE = """densities: Gaussian kernels; bars: mean steps and episodes of a training, line: standard deviation of steps;
number: mean return in ten test episodes of each agent; all agents draw their hyperparameters"""


def search(flags: argparse.Namespace, arm: str, seed: int) -> Path:
    """Run a search, or resume it if it was stopped. Return its folder."""
    target = {"cartpole-200": "195", "acrobot": "-100"}[flags.game]
    changes = ["--proxy", flags.proxy, "--target_return", target, "--eval_every", "2", *SEARCH[arm], *flags.extra_flags]
    return run_search(flags.logdir, flags.game, f"arms_{flags.proxy}_{arm}", seed, changes)


def numbers_of(outcome: Outcome) -> dict[str, list[float]]:
    """Return the returns of all test episodes, and steps and episodes of all trainings. Omits agents that diverged."""
    finite = outcome.scores.isfinite()
    returns = outcome.returns[finite].flatten().tolist()
    return {"returns": returns, "steps": outcome.steps[finite].tolist(), "episodes": outcome.episodes[finite].tolist()}


def comparison_key(flags: argparse.Namespace) -> str:
    """Return the key in the file for a game, a kind of proxy, and sampled or fixed hyperparameters."""
    key = f"{flags.game}, {flags.proxy}"
    return f"{key}, fixed agents" if flags.no_vary_hp else key


def on_synthetic(folder: Path, kind: str, count: int, seed: int, vary_hp: bool) -> dict[str, list[float]]:
    """Train new agents of the implementation ``kind`` on the winner of a search, and test them on the real
    environment."""
    proxy = files.load(str(folder))
    config = dataclasses.replace(proxy.config, test_episodes=10, inner_steps=proxy.config.steps_in_use)
    loop = InnerLoop(config, kind, agent_settings(proxy, kind, {"vary_hp": vary_hp}), proxy.game)
    seeds = fresh_seeds(seed, f"arms, {kind}", count)
    return numbers_of(loop.run(proxy.parameters.expand(count, -1), seeds))


def on_real(folder: Path, kind: str, count: int, steps: int, vary_hp: bool) -> dict[str, list[float]]:
    """Train new agents with a search's settings on the real environment until they solve it, or ``steps`` steps."""
    proxy = files.load(str(folder))
    agent = agent_settings(proxy, kind, {"vary_hp": vary_hp})
    setting_kinds = field_types(type(agent))
    changes = {"num_envs": 1, "fill": 0, "init_episodes": 10, "buffer_size": 100_000, "eps_fraction": None}
    agent = dataclasses.replace(agent, **{name: value for name, value in changes.items() if name in setting_kinds})
    loop = InnerLoop(dataclasses.replace(proxy.config, test_episodes=10), kind, agent, proxy.game)
    outcome = loop.run(None, fresh_seeds(0, f"arms, {kind}, real", count), inner_rule="solved", inner_steps=steps)
    return numbers_of(outcome)


def measure(flags: argparse.Namespace) -> None:
    """Run the searches and trainings that the file lacks. Raises SettingError for a file of another script."""
    check_options(flags, LAYOUT, searches=1, agents=1, real_agents=1, real_steps=1)
    torch.set_num_threads(1)
    results, vary_hp = numbers_in("json", flags.json, LAYOUT, new=True), not flags.no_vary_hp
    comparison = results.setdefault(comparison_key(flags), {})
    for seed in range(flags.searches):
        for arm in SEARCH:
            started = time.process_time()
            folder = None  # the search runs only if the file lacks numbers of its winner
            for kind in flags.kinds:
                # Each entry has a list for each synthetic environment.
                cell = comparison.setdefault(arm, {}).setdefault(kind, {"returns": [], "steps": [], "episodes": []})
                if len(cell["returns"]) > seed:
                    continue
                if folder is None:
                    folder = search(flags, arm, seed)
                for name, values in on_synthetic(folder, kind, flags.agents, seed, vary_hp).items():
                    cell[name].append(values)
                write_numbers(flags.json, results)
                text = f"mean {np.mean(cell['returns'][-1]):.1f} ({time.process_time() - started:.0f} CPU-s)"
                print(f"{flags.game}, {arm}, search {seed}, {kind}: {text}", flush=True)
    for kind in flags.kinds:
        cell = comparison.setdefault("real", {}).setdefault(kind, {"returns": [], "steps": [], "episodes": []})
        if not cell["returns"]:
            row = on_real(search(flags, "fixed", 0), kind, flags.real_agents, flags.real_steps, vary_hp)
            for name, values in row.items():
                cell[name].append(values)
            write_numbers(flags.json, results)
            text = f"mean {np.mean(row['returns']):.1f}, steps {np.mean(row['steps']):,.0f}"
            print(f"{flags.game}, real, {kind}: {text}", flush=True)


def violins(game: str, axes: list[Any], numbers: dict[str, Any]) -> None:
    """Draw a panel for each arm, with a violin of DDQN's test returns for each synthetic environment."""
    for axis, arm in zip(axes, SEARCH, strict=True):
        returns = numbers[game][arm]["DDQN"]["returns"]
        artists = axis.violinplot(returns, range(len(returns)), widths=0.8, showmeans=True)
        lines = [artists[name] for name in ("cmeans", "cmins", "cmaxes", "cbars")]
        for artist in [*artists["bodies"], *lines]:
            artist.set_color(COLOUR[arm])
        axis.set(title=f"DDQN {ARMS[arm]}", xlabel="search seed", ylabel="test return", xticks=range(len(returns)))


class Sample(NamedTuple):
    """Numbers of the agents on all synthetic environments of an arm (``label`` "all"), or on the best half of them:
    returns of test episodes, steps and episodes of trainings."""

    arm: str
    label: str
    returns: np.ndarray
    steps: np.ndarray
    episodes: np.ndarray


def samples_of(cells: dict[str, Any]) -> list[Sample]:
    """Return the samples of agents of a kind from their numbers by arm. The varied arm has a second one, its best
    half."""
    samples = []
    for arm in [arm for arm in ARMS if arm in cells]:
        cell = cells[arm]
        best_first = sorted(range(len(cell["returns"])), key=lambda i: -float(np.mean(cell["returns"][i])))
        selections = {"all": best_first}
        if arm == "varied" and len(best_first) > 2:
            half = -(-len(best_first) // 2)  # rounded up
            selections[f"best {half}"] = best_first[:half]
        for label, indices in selections.items():
            numbers = {}
            for name in ("returns", "steps", "episodes"):
                numbers[name] = np.concatenate([np.array(cell[name][i], float) for i in indices])
            samples.append(Sample(arm, label, **numbers))
    return samples


def densities(game: str, axes: list[Any], numbers: dict[str, Any]) -> None:
    """Draw densities of returns (first row) and bars of steps and episodes (second row) for each kind of agents."""
    kinds_present = [kind for kind in AGENTS if any(kind in cells for cells in numbers[game].values())]
    low, high = (0, 200) if game.startswith("cartpole") else (-500, -60)  # range of returns
    points = np.linspace(low - 0.02 * (high - low), high + 0.02 * (high - low), 400)
    for i, kind in enumerate(kinds_present):
        samples = samples_of({arm: cells[kind] for arm, cells in numbers[game].items() if kind in cells})
        top_axis, bottom_axis = axes[i], axes[i + len(kinds_present)]
        max_steps = max(sample.steps.mean() for sample in samples)
        # The highest bar of episodes is as high as the highest bar of steps.
        scale = max_steps / max(sample.episodes.mean() for sample in samples)
        highest = max_steps
        for place, sample in enumerate(samples):
            is_all, colour, steps = sample.label == "all", COLOUR[sample.arm], sample.steps
            label = ARMS[sample.arm] if is_all else f"{ARMS[sample.arm]}, the best half"
            height = density(sample.returns, points, 0.015 * (high - low))
            top_axis.plot(points, height, color=colour, linestyle="-" if is_all else "--", label=label)
            bottom_axis.bar(place - 0.2, steps.mean(), 0.36, color=colour, alpha=1 if is_all else 0.6)
            bottom_axis.bar(place + 0.2, sample.episodes.mean() * scale, 0.36, color=colour, alpha=0.35)
            low_steps, high_steps = max(0, steps.mean() - steps.std()), steps.mean() + steps.std()
            bottom_axis.plot([place - 0.2] * 2, [low_steps, high_steps], color=COLOURS[6], linewidth=0.8)
            highest = max(highest, high_steps)
            mean, transform = f"{sample.returns.mean():.1f}", bottom_axis.get_xaxis_transform()
            bottom_axis.text(place, 0.99, mean, ha="center", va="top", fontsize=7, transform=transform)
        top_axis.set(title=kind, xlabel="test return", xlim=(points[0], points[-1]), yscale="log", ylim=(1e-4, 0.3))
        bottom_axis.set_ylim(0, 1.2 * highest)
        names = [f"{sample.arm}\n{sample.label}" for sample in samples]
        bottom_axis.set_xticks(range(len(samples)), names, fontsize=6)
        bottom_axis.grid(False, axis="x")
        episodes_axis = bottom_axis.secondary_yaxis(
            "right", functions=(lambda y, s=scale: y / s, lambda y, s=scale: y * s)
        )
        episodes_axis.set_ylabel("episodes (pale)" if kind == kinds_present[-1] else "")
        if not i:
            top_axis.set_ylabel("density")
            bottom_axis.set_ylabel("training steps")


def draw(flags: argparse.Namespace) -> None:
    """Write the figure of one game. Raises SettingError for a game that the file lacks."""
    games = numbers_in("source", flags.source, LAYOUT)
    key = comparison_key(flags)
    if key not in games:
        raise SettingError(f"game and proxy are {key!r}; allowed with '{flags.source}': {'; '.join(games)}", "game")
    num_kinds = len({kind for cells in games[key].values() for kind in cells})
    num_environments = len(next(iter(games[key]["fixed"].values()))["returns"])
    title = f"{GAMES[flags.game]}; synthetic {flags.proxy}s in each arm: {num_environments}"
    if flags.consistency:
        cells, fill, note = rows(1, 1), violins, VIOLINS
    else:
        cells, fill, note = rows(num_kinds, num_kinds), densities, NOTE
    draw_pages(flags.source, LAYOUT, flags.out, functools.partial(fill, key), (cells, (WIDTH, 4.2)), note, title=title)


def main(argv: Sequence[str] | None = None) -> int:
    flags, measuring, drawing = measure_and_draw(__doc__)
    measuring.add_argument("game", choices=GAMES)
    measuring.add_argument("--proxy", choices=PROXIES, default="mdp", help="what is searched for")
    measuring.add_argument("--searches", type=int, default=20, help="of each arm")
    measuring.add_argument("--agents", type=int, default=10, help="of each kind on each synthetic environment")
    measuring.add_argument("--real_agents", type=int, default=40, help="of each kind on the real environment")
    measuring.add_argument("--real_steps", type=int, default=50_000, help="largest number of steps of these")
    measuring.add_argument("--kinds", nargs="+", choices=AGENTS, default=AGENTS, help="agents that are trained")
    measuring.add_argument("--logdir", type=Path, default=Path("exp_dir"), help="folder of the searches")
    drawing.add_argument("--proxy", choices=PROXIES, default="mdp", help="what was searched for")
    drawing.add_argument("--consistency", action="store_true", help="one violin for each synthetic environment")
    drawing.add_argument("--game", choices=GAMES, default="cartpole-200")
    for command in (measuring, drawing):
        command.add_argument("--no_vary_hp", action="store_true", help="agents have the search's hyperparameters")
    values = parse_with_extra_flags(flags, argv)
    return run_script(lambda: measure(values) if values.command == "measure" else draw(values))


if __name__ == "__main__":
    sys.exit(main())
