"""Hyperparameters of searches for synthetic environments and reward networks: the best trial beside the recipe.

    python experiments/three_levels.py docs/results/three_levels.json --out exp_dir/three_levels
    python experiments/three_levels.py levels.json --collect cliff=exp_dir/cliff/debug/RN/tune/version_0 --seeds 10

``--collect`` writes the trials of finished searches (--use_tune) to the file. The best trial and the recipe then search
again with ``--seeds`` fresh seeds, under the same budget. ``--out`` draws a figure of each search in the file.
"""

# ruff: noqa: E402  # `lean.load` precedes the imports of Lightning

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from control.lightning import lean

lean.load()

from control.cli.parse import parse
from control.cli.settings import Settings
from control.commands.search_space import search_space, trial_settings
from control.commands.trials import METRIC, SPACE, TRIALS, run_searches, with_trial_defaults
from control.reports.figures import THEMES, FigureStyle, write_numbers
from control.reports.search import importance_figure
from experiments.comparison import run_script, script_flags

FIRST_SEED = 1000  # of the comparison; trials have lower seeds
REPORTED = ("searches", METRIC, "solved", "epoch", "env_steps")  # kept of a trial's metrics; Ray adds hosts and dates


def collect(folder: Path, seeds: int) -> dict[str, Any]:
    """Return the trials of the search in ``folder``, with the values of the best trial (``found``), and the scores of
    new searches with these values and with the recipe (``beside``): lists over ``seeds`` fresh seeds."""
    settings = with_trial_defaults(parse(["--use_tune", "--resume", str(folder)])).replace(
        search_space=str(folder / SPACE)
    )
    content: dict[str, Any] = json.loads((folder / TRIALS).read_text(encoding="utf-8"))
    trials_with_score = [trial for trial in content["trials"] if trial["best"]]
    best = max(trials_with_score, key=lambda trial: (trial["best"]["searches"], trial["best"][METRIC]))
    values = search_space(settings).decode(best["raw"])
    scores = {}
    if seeds:
        scores = {"found": _scores(settings, values, seeds), "recipe": _scores(settings, {}, seeds)}
    for trial in content["trials"]:
        for report in ("last", "best"):
            trial[report] = {name: trial[report][name] for name in REPORTED if name in trial[report]}
    return content | {"found": values, "beside": scores}


def _scores(settings: Settings, values: dict[str, Any], seeds: int) -> list[float]:
    """Search with ``values`` in place of those ``settings``, once for each fresh seed. Return the scores."""
    trial = trial_settings(settings, values).replace(seed=FIRST_SEED)
    means: list[float] = []  # mean scores of the first search, of the first two, ...
    with tempfile.TemporaryDirectory() as scratch:
        objective = str(settings.subcommand.tune_objective)
        run_searches(trial, seeds, objective, Path(scratch), lambda metrics: means.append(metrics[METRIC]))
    # A score is the difference of two sums.
    sums = [mean * count for count, mean in enumerate(means, start=1)]
    scores: list[float] = np.diff(sums, prepend=0.0).tolist()
    return scores


def main(argv: Sequence[str] | None = None) -> int:
    flags = script_flags(__doc__)
    flags.add_argument("json", type=Path, help="the numbers of all searches")
    flags.add_argument("--collect", nargs="*", default=[], metavar="NAME=FOLDER")
    flags.add_argument("--seeds", type=int, default=0, help="of the comparison; 0: none")
    flags.add_argument("--out", type=Path, help="where figures begin, such as exp_dir/three_levels")
    options = flags.parse_args(argv)

    def run() -> None:
        searches = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
        for entry in options.collect:
            name, _, folder = entry.partition("=")
            searches[name] = collect(Path(folder), options.seeds)
            write_numbers(options.json, searches)
        for name, content in searches.items() if options.out else ():
            for theme in THEMES:
                end = "_dark" if theme == "dark" else ""
                target = options.out.with_name(f"{options.out.name}_{name}{end}.png")
                target.parent.mkdir(parents=True, exist_ok=True)
                importance_figure(content, target, FigureStyle(theme), options.json)
                print(target)

    return run_script(run)


if __name__ == "__main__":
    sys.exit(main())
