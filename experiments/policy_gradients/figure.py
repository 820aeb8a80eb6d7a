"""VPG, EPG, BPG and CPG in one figure, and AAC against CPG; their best running means as a table and as JSON.

    python experiments/policy_gradients/figure.py exp_dir/beresheet --out figure.png

Takes run folders or any folder above them and reads `metrics.csv` and `config.yaml` only, so unfinished runs work too.
Runs of other families are skipped. If the argument is the JSON of an earlier figure, the script draws its best running
means.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from control.reports import scores
from control.reports.curves import (
    RETURN_LABEL,
    STEPS_LABEL,
    Level,
    curves_note,
    draw_curves,
    draw_levels,
    on_grid,
    scale,
    share_limits,
    solved_levels,
)
from control.reports.figures import (
    COLOURS,
    WIDTH,
    FigureStyle,
    figure_file,
    figure_files,
    figure_panels,
    row_lengths,
    rows,
    set_title,
    show,
)
from control.reports.runs import Run, logged
from control.reports.tables import AGGREGATES, Table, aggregates, over_seeds, seeds_text
from control.reports.tags import RUNNING_MEAN
from experiments.comparison import Layout, check_seed_is_new, command_line, numbers_in, run_script, runs_of, style_of
from models.agents.policy_gradients.config import IMPLEMENTATIONS, Config
from models.settings import SettingError

FOUR, TWO = ("VPG", "EPG", "BPG", "CPG"), ("CPG", "AAC")


class Panel(NamedTuple):
    """A panel with the curves of one tag, and the label of its y axis."""

    title: str
    tag: str
    implementations: Sequence[str]
    label: str


# Panels of returns are first.
PANELS = (
    Panel("Mean return of the last {length} episodes", RUNNING_MEAN, FOUR, RETURN_LABEL),
    Panel("The same of AAC and CPG", RUNNING_MEAN, TWO, RETURN_LABEL),
    Panel("Policy loss", "train/policy_loss", FOUR, "loss (nats x weight)"),
    Panel("Baseline", "train/baseline", FOUR, RETURN_LABEL),
    Panel("Entropy loss", "train/entropy_loss", FOUR, "loss (nats)"),
    Panel("Entropy of the policy", "train/entropy_share", tuple(IMPLEMENTATIONS), "share of the largest"),
)
# Public runs of one seed each.
PUBLISHED = {"CPG": Level(79.76, "CPG, notebook"), "AAC": Level(96.35, "AAC, notebook")}
X = {"episodes": "episodes", "env_steps": STEPS_LABEL}


@dataclass
class Arm:
    """The seeds of one implementation under one preset."""

    implementation: str
    runs: list[Run] = field(default_factory=list)


@dataclass
class Comparison:
    """All arms by name, with the preset if it is not the default, and the episodes in a ``running_mean``."""

    game: str
    running_mean: int
    arms: dict[str, Arm]


def load(folders: Sequence[Path]) -> Comparison:
    """Load the family's runs below ``folders``. If a seed has several versions, the newest counts.

    Raises SettingError if there are no runs, or if they differ in game or length of running means.
    """

    def order(settings_and_run: tuple[Any, Run]) -> tuple[int, bool]:
        """Sort key: the family's order, the default preset before others."""
        settings, _ = settings_and_run
        return list(IMPLEMENTATIONS).index(settings.run.implementation), settings.agent.preset != Config.preset

    matching_runs = runs_of(folders, IMPLEMENTATIONS)
    arms: dict[str, Arm] = {}
    for settings, run in sorted(matching_runs, key=order):
        name, preset = settings.run.implementation, settings.agent.preset
        label = name if preset == Config.preset else f"{name}, {preset.removeprefix(f'{name.lower()}_')}"
        arm = arms.setdefault(label, Arm(name))
        check_seed_is_new(run, arm.runs, name)
        if not logged([run], [RUNNING_MEAN]):
            raise SettingError(f"{run.source} is no metrics.csv of {name}: {RUNNING_MEAN} is missing")
        run.columns["episodes"] = run.columns["epoch"] * settings.agent.batch_episodes
        arm.runs.append(run)
    game = _single_value("gamename", [settings.run.gamename for settings, _ in matching_runs])
    length = _single_value("running_mean_len", [settings.agent.running_mean_len for settings, _ in matching_runs])
    return Comparison(game, length, arms)


def _single_value(name: str, values: Sequence[Any]) -> Any:
    """Return the value of the setting ``name``, which must be the same in all runs, else raise SettingError."""
    distinct = sorted(set(values))
    if len(distinct) > 1:
        raise SettingError(f"{name} of these runs is {' and '.join(map(str, distinct))}; allowed: one for all")
    return distinct[0]


def summarise(comparison: Comparison) -> dict[str, Any]:
    """Return the numbers of every arm as plain data.

    For each seed they are best and final running mean, episodes and environment steps; over seeds, mean, IQM and the
    IQM's 95 % interval of best and final.
    """
    arms = {}
    for name, arm in comparison.arms.items():
        seeds = {
            str(run.seed): {
                "best": run.best(RUNNING_MEAN),
                "final": float(run.points(RUNNING_MEAN)[1][-1]),
                "episodes": int(run.columns["episodes"].max()),
                "env_steps": int(run.columns["env_steps"].max()),
            }
            for run in arm.runs
        }
        statistics = {key: over_seeds([numbers[key] for numbers in seeds.values()]) for key in ("best", "final")}
        arms[name] = {"seeds": seeds, "over_seeds": statistics}
    return {"game": comparison.game, "running_mean_len": comparison.running_mean, "arms": arms}


def table(summary: dict[str, Any]) -> str:
    """Return the summary as text: one row per seed, then the rows of `AGGREGATES`."""
    lines = [f"{summary['game']}: mean return of the last {summary['running_mean_len']} training episodes"]
    for name, arm in summary["arms"].items():
        rows = [[name, "episodes", "env steps", "best", "final"]]
        for seed, numbers in arm["seeds"].items():
            steps, means = f"{numbers['env_steps']:,}", [f"{numbers['best']:.1f}", f"{numbers['final']:.1f}"]
            rows.append([f"seed {seed}", str(numbers["episodes"]), steps, *means])
        best, final = aggregates(arm["over_seeds"]["best"]), aggregates(arm["over_seeds"]["final"])
        rows += [[label, "", "", best[label], final[label]] for label in AGGREGATES]
        lines += ["", *Table(rows).lines()]
    return "\n".join(lines)


def draw(comparison: Comparison, x: str, out: Path, style: FigureStyle) -> None:
    """Write the figure: curves, and the best running mean of each seed. An arm has the same colour in all panels.
    Panels without data are left out. ``x`` is one of `X`."""
    colours = dict(zip(comparison.arms, COLOURS, strict=False))
    counts = [len(arm.runs) for arm in comparison.arms.values()]
    title = f"Policy gradients on {comparison.game}, {seeds_text(counts)}"
    panels = []
    for panel in PANELS:
        panel_arms = [arm for arm in comparison.arms.values() if arm.implementation in panel.implementations]
        if any(logged(arm.runs, [panel.tag]) for arm in panel_arms):
            panels.append(panel)
    num_returns = sum(panel.tag == RUNNING_MEAN for panel in panels)  # panels of returns
    lengths = [num_returns, *row_lengths(len(panels) - num_returns, max_columns=2)]
    note = curves_note(max(counts))
    with figure_panels(out, rows(*lengths), (WIDTH, 2.1 * len(lengths)), style, title=title, note=note) as axes:
        for axis, panel in zip(axes, panels, strict=True):
            for name, arm in comparison.arms.items():
                if arm.implementation in panel.implementations:
                    draw_curves(axis, *on_grid(arm.runs, panel.tag, x), colours[name], name)
            set_title(axis, panel.title.format(length=comparison.running_mean), 3.2)
            axis.set(xlabel=X[x], ylabel=panel.label)
            scale(axis)
            if panel.tag == RUNNING_MEAN:
                draw_levels(axis, solved_levels(comparison.game))
        share_limits(axes[:num_returns])
    best = {name: np.array([run.best(RUNNING_MEAN) for run in arm.runs]) for name, arm in comparison.arms.items()}
    if task := scores.comparable(best):
        path = out.with_stem(f"{out.stem}_scores")
        _draw_best(path, style, None, task, comparison.game, comparison.running_mean, colours)


def _draw_best(
    out: Path,
    style: FigureStyle,
    numbers: Path | None,
    task: scores.Task,
    game: str,
    length: int,
    colours: dict[str, str],
) -> None:
    """Draw the best running means of the seeds of each arm, as a comparison of scores (`scores.draw`)."""
    reference_levels = solved_levels(game)
    if game == "beresheet":
        reference_levels += [level for name, level in PUBLISHED.items() if name in task]
    title = f"Policy gradients on {game}, {seeds_text([len(returns) for returns in task.values()])}"
    note = (
        f"{scores.note(f'best mean of {length} training episodes')}; notebook: the reference implementation, one seed"
    )
    label = f"best mean return of {length} episodes"
    scores.draw(out, style, numbers, {"": task}, colours, {"": reference_levels}, label, title, note)


def redraw(numbers: Path, out: Path, style: FigureStyle) -> None:
    """Draw the best running means in the JSON of an earlier figure. Raises SettingError for another file."""
    layout = Layout(("game", "running_mean_len", "arms"))
    summary = numbers_in("logdir", numbers, layout, script="this figure")
    task = {}
    for name, arm in summary["arms"].items():
        task[name] = np.array([seed["best"] for seed in arm["seeds"].values()])
    colours = dict(zip(task, COLOURS, strict=False))
    _draw_best(out, style, numbers, task, summary["game"], summary["running_mean_len"], colours)
    print("\n".join(f"Figure:  {path}" for path in figure_files(out, style)))


def make(folders: Sequence[Path], out: Path, x: str, style: FigureStyle) -> None:
    """Print the table, write the figure and, beside it, the numbers. Raises SettingError for wrong options."""
    out = figure_file(out, "out")
    if folders[0].suffix == ".json":
        redraw(folders[0], out, style)
        return
    comparison = load(folders)
    summary = summarise(comparison)
    show(table(summary), summary, lambda out: draw(comparison, x, out, style), out)


def main(argv: Sequence[str] | None = None) -> int:
    flags = command_line(__doc__, "policy_gradients.png")
    flags.add_argument("--x", choices=list(X), default="episodes", help="what the curves are drawn over")
    options = flags.parse_args(argv)
    return run_script(lambda: make(options.logdir, options.out, options.x, style_of(options)))


if __name__ == "__main__":
    sys.exit(main())
