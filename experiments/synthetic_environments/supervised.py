"""The supervised baseline: train agents on models that are fitted to transitions of the real environment.

    python experiments/synthetic_environments/supervised.py --json supervised.json --out supervised.png
    python experiments/synthetic_environments/supervised.py --json supervised.json --out supervised.png --draw

Five models each are fitted to 2,000 transitions, 20,000, a million and ten million (``--preset supervised``). Fresh
agents train on them, on evolved synthetic environments and on the real one for the same number of steps, with learning
rates sampled within a factor of three, and are tested on the real one. A new call measures only the numbers that the
JSON lacks; a folder with the JSON's name holds the models.
"""

import argparse
import dataclasses
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from control.cli.settings import RunConfig, from_dict
from control.commands.train import build_module, fit
from control.loops.process import configure_process
from control.reports.curves import draw_levels, solved_levels
from control.reports.figures import COLOURS, WIDTH, figure_files, figure_panels, rows, set_title, write_numbers
from control.reports.statistics import interval, iqm
from control.reports.tables import with_interval
from experiments.comparison import (
    Layout,
    add_look,
    check_options,
    figure_to_write,
    numbers_in,
    run_script,
    script_flags,
    style_of,
)
from experiments.proxies import settings_on_task, train_and_test
from models.proxies import files
from models.proxies.files import Proxy
from models.streams import derive_seed

# Agent -> changes to its defaults on CartPole: the widest networks and batches would take most of the time.
AGENTS: dict[str, dict[str, Any]] = {
    "DDQN": {},
    "DuelingDDQN": {"feature_dim": 64},
    "PPO": {},
    "TD3Discrete": {"hidden_sizes": (64,), "batch_size": 32},
}
WIDE = "20,000, wide starts"
FITTED: dict[str, dict[str, Any]] = {
    "2,000 transitions": {"transitions": 2_000},
    "20,000 transitions": {"transitions": 20_000},
    "1,000,000 transitions": {"transitions": 1_000_000},
    "10,000,000 transitions": {"transitions": 10_000_000},  # the number that a search uses
    WIDE: {"transitions": 20_000, "learned_reset": True, "max_steps": 50},
}
EVOLVED = {
    "cartpole": {"evolved MDP": "cartpole-mdp", "evolved bandit": "cartpole-bandit"},
    "acrobot": {"evolved bandit": "acrobot-bandit"},
}
REAL = "real environment"
TITLES = {"cartpole": "CartPole", "acrobot": "Acrobot"}
LAYOUT = Layout(("models",), 2)  # game -> training environment -> its models


def fit_model(game: str, changes: dict[str, Any], seed: int, path: Path) -> dict[str, Any]:
    """Fit a model of ``game`` and write it to ``path``. ``changes`` are settings. Return its row of the JSON."""
    started = time.process_time()
    values = {"implementation": "SE", "gamename": game, "preset": "supervised", "seed": seed, "no_checkpoint": True}
    module: Any = build_module(from_dict(values | {"logger": "none"} | changes))
    with tempfile.TemporaryDirectory() as folder:
        fit(module, Path(folder), [])
    row = {"seed": seed, "fit": module.fitted_to(), "fit_seconds": time.process_time() - started, "agents": {}}
    path.parent.mkdir(exist_ok=True)
    module.save(path, scores={"fit": row["fit"]})
    return row


def examine(proxy: Proxy, kind: str, real: bool, steps: int, count: int, seed: int) -> dict[str, Any]:
    """Train ``count`` fresh agents of the implementation ``kind`` for ``steps`` steps on ``proxy`` or, if ``real``, on
    the real environment, and test them in ten episodes. Return mean returns and lengths of training as lists over
    agents. ``returns`` omits agents that diverged."""
    agent = dataclasses.replace(settings_on_task(kind, "cartpole"), vary_hp=True, vary=("lr",), **AGENTS[kind])
    seeds = [derive_seed(seed, f"{kind}, agent {i}") for i in range(count)]
    started = time.process_time()
    outcome = train_and_test(proxy, kind, agent, seeds, real, steps)
    finite = outcome.scores.isfinite()
    return {
        "returns": outcome.scores[finite].tolist(),
        "of_200": outcome.returns[finite].clamp(max=200).mean(1).tolist(),
        "episodes": outcome.episodes.tolist(),
        "steps": outcome.steps.tolist(),
        "failed": int((~finite).sum()),
        "cpu_seconds": time.process_time() - started,
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the numbers that the JSON lacks, and return all. Writes the file after each model and kind of agent."""
    results = numbers_in("json", options.json, LAYOUT, new=True)
    configure_process(RunConfig())

    def examine_kinds(game: str, name: str, seed: int, source: Path | str, count: int) -> None:
        """Examine agents of all kinds on a model, which is number ``seed`` of the training environment ``name``."""
        model = results[game][name]["models"][seed]
        for kind in options.kinds:
            if kind not in model["agents"]:
                row = examine(files.load(source), kind, name == REAL, options.steps, count, seed)
                model["agents"][kind] = row
                write_numbers(options.json, results)
                print(f"{game}, {name}, model {seed}: {kind} {np.mean(row['returns']):.1f}", flush=True)

    for seed, game in itertools.product(range(options.models), options.games):
        rows = results.setdefault(game, {})
        for name in options.rows:
            if name == WIDE and game != "cartpole":
                continue
            path = options.json.with_suffix("") / f"{game}, {name}, {seed}.safetensors"
            models = rows.setdefault(name, {"models": []})["models"]
            if len(models) == seed:
                models.append(fit_model(game, FITTED[name], seed, path))
                write_numbers(options.json, results)
            examine_kinds(game, name, seed, path, options.agents)
    for game in options.games:
        # On the real environment, agents have the settings for the first of the evolved ones.
        for name, shipped in (EVOLVED[game] | {REAL: next(iter(EVOLVED[game].values()))}).items():
            results[game].setdefault(name, {"models": [{"seed": 0, "agents": {}}]})
            examine_kinds(game, name, 0, shipped, options.agents * options.models)
    return results


def over_models(row: dict[str, Any], kind: str, quantity: str = "returns") -> np.ndarray:
    """Return a ``quantity`` of `examine` for all agents of a kind on all models of a row; a NaN without agents."""
    values = [model["agents"][kind][quantity] for model in row["models"] if kind in model["agents"]]
    return np.concatenate(values) if values else np.full(1, np.nan)


def table(results: dict[str, Any]) -> None:
    """Print a line with the agents' returns for each training environment, and the errors of its models."""
    for game, rows_by_name in results.items():
        for name, row in rows_by_name.items():
            cells = []
            for kind in AGENTS:
                returns = over_models(row, kind)
                if not np.isfinite(returns).any():
                    continue
                cell = f"{kind} {returns.mean():.1f} / {with_interval(float(iqm(returns)), interval(returns, iqm))}"
                num_diverged = sum(
                    model["agents"][kind]["failed"] for model in row["models"] if kind in model["agents"]
                )
                if num_diverged:
                    cell += f" ({num_diverged} diverged)"
                if game == "cartpole":
                    cell += f", of 200: {over_models(row, kind, 'of_200').mean():.1f}"
                cells.append(cell)
            print(f"{game} | {name} | {len(row['models'])} models | {' | '.join(cells)}")
            fits = [model["fit"]["held_out"] for model in row["models"] if "fit" in model]
            if fits:
                medians = {loss: np.median([errors[loss] for errors in fits]) for loss in fits[0]}
                errors_text = ", ".join(f"{loss} {median:.3g}" for loss, median in medians.items())
                seconds = np.mean([model["fit_seconds"] for model in row["models"]])
                print(f"    median over models: {errors_text}; {seconds:.0f} CPU s a fit")


def draw(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """Draw the density of returns and the episodes of training, a row of panels for each game."""
    all_rows = [row for rows_by_name in results.values() for row in rows_by_name.values()]
    kinds = [kind for kind in AGENTS if any(np.isfinite(over_models(row, kind)).all() for row in all_rows)]
    names = {name for rows_by_name in results.values() for name in rows_by_name}
    order = [name for name in (*FITTED, "evolved MDP", "evolved bandit", REAL) if name in names]
    colours = dict(zip(order, COLOURS, strict=False))
    note = "violins: density of the agents' mean returns; diamonds: interquartile means; all agents "
    note += "train for as many steps, with drawn learning rates; bars: mean and standard deviation"
    cells, size = rows(*[2] * len(results)), (WIDTH, 2.6 * len(results))
    out, style = figure_to_write("out", options.out), style_of(options)
    with figure_panels(out, cells, size, style, options.json, note=note, widths=[1.9, 1.0]) as axes:
        for (game, rows_by_name), left_axis, right_axis in zip(results.items(), axes[::2], axes[1::2], strict=True):
            row_names = [name for name in order if name in rows_by_name]
            width = 0.84 / len(row_names)  # of a violin and a bar, with the gap
            for i, name in enumerate(row_names):
                row, colour = rows_by_name[name], colours[name]
                places = np.arange(len(kinds)) - 0.42 + width * (i + 0.5)
                returns = [over_models(row, kind) for kind in kinds]
                # Equal returns have no density, so they are made slightly different.
                varied = [values + np.linspace(0, 1e-3, len(values)) for values in returns]
                artists = left_axis.violinplot(varied, places, widths=0.95 * width, showextrema=False)
                for body in artists["bodies"]:
                    body.set(facecolor=colour, alpha=0.45, linewidth=0)
                left_axis.plot(places, list(map(iqm, returns)), "D", color=colour, markersize=3, label=name)
                episodes = [over_models(row, kind, "episodes") for kind in kinds]
                means, deviations = [values.mean() for values in episodes], [values.std() for values in episodes]
                look: dict[str, Any] = {"color": colour, "error_kw": {"linewidth": 0.6}}
                right_axis.bar(places, means, 0.95 * width, yerr=deviations, **look)
            for axis in (left_axis, right_axis):
                axis.set_xticks(range(len(kinds)), kinds, fontsize=5.5 if axis is right_axis else None)
                axis.tick_params(axis="x", length=0)
                axis.grid(False, axis="x")
            draw_levels(left_axis, solved_levels(game))
            set_title(left_axis, f"{TITLES[game]}: return on the real environment", WIDTH / 2)
            left_axis.set_ylabel("return")
            steps = int(over_models(rows_by_name[row_names[0]], "DDQN", "steps").mean())
            set_title(right_axis, f"episodes in {steps:,} steps", WIDTH / 3)
            right_axis.set(ylabel="episodes", yscale="log")
    print("\n".join(map(str, figure_files(out, style))))


def make(options: argparse.Namespace) -> None:
    """Measure missing numbers (unless ``--draw``), print the table and draw the figure."""
    check_options(options, LAYOUT, agents=1, models=1, steps=1)
    figure_to_write("out", options.out)
    style_of(options)  # raise for a wrong format before measuring
    results = numbers_in("json", options.json, LAYOUT) if options.draw else measure(options)
    table(results)
    draw(options, results)


def main(argv: Sequence[str] | None = None) -> int:
    flags = script_flags(__doc__)
    flags.add_argument("--json", type=Path, required=True, help="numbers: written, and gone on from")
    flags.add_argument("--out", type=Path, default=Path("supervised.png"))
    flags.add_argument("--games", nargs="+", choices=list(EVOLVED), default=list(EVOLVED))
    flags.add_argument("--rows", nargs="+", choices=list(FITTED), default=list(FITTED), help="models")
    flags.add_argument("--kinds", nargs="+", choices=list(AGENTS), default=list(AGENTS))
    flags.add_argument("--models", type=int, default=5, help="models of each size")
    flags.add_argument("--agents", type=int, default=8, help="agents of each kind on each model")
    flags.add_argument("--steps", type=int, default=10_000, help="steps that an agent trains for")
    flags.add_argument("--draw", action="store_true", help="table and figure of the numbers in the JSON, no training")
    add_look(flags)
    options = flags.parse_args(argv)
    return run_script(lambda: make(options))


if __name__ == "__main__":
    sys.exit(main())
