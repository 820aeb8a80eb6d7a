"""Step size and score transformation of NES: after how many generations do agents solve a room of a few cells?

    python experiments/synthetic_environments/step_sizes.py measure --json exp_dir/step_sizes.json --searches 40
    python experiments/synthetic_environments/step_sizes.py draw docs/results/step_sizes.json --out figure11.png

Figure 11 of Ferreira et al. 2022: random search over the step size, the eight transformations, mirrored perturbations,
and division of the step by the number of perturbations. A search has 16 perturbations, 16 Q-learning agents on the
mean, and 50 generations. It ends once the agents on the mean exceed 0.8 on the real room. ``--room`` selects a larger
room.
"""

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

from control.cli.parse import parse
from control.evolution.inner_loop import InnerLoop
from control.evolution.strategies import NES
from control.reports.figures import COLOURS, WIDTH, rows, write_numbers
from experiments.comparison import Layout, check_options, numbers_in
from experiments.plotting import measure_and_draw, run_command
from models.streams import Streams, derive_seed

ROOMS = ("emptyroom22", "emptyroom23", "emptyroom33")
FLAGS = """--implementation SE --agent QLearning --preset paper --proxy_hidden_size 32
    --noise_std 0.1 --lr 0.5 --discount 0.9 --eps_init 0.5 --eps_min 0.01 --eps_decay 0.95 --train_episodes 100
    --inner_steps 1000"""
GENERATIONS, WORKERS, BATCH, SOLVED = 50, 16, 40, 0.8
COLUMNS = ("step_size", "score_transform", "mirrored", "nes_step_size", "solved_after")
LAYOUT = Layout(COLUMNS)
NAMES = (
    "linear",
    "rank",
    "NES",
    "NES, positive",
    "best alone",
    "best if better",
    "better than the mean",
    "better, sum 1",
)
NOTE = "point: a search; above the dots: not solved within 50 generations; line: median of each decade of step sizes"


def random_settings(number: int) -> dict[str, Any]:
    """Sample the settings of search ``number``."""
    generator = np.random.default_rng(derive_seed(number, "step sizes"))
    return {
        "step_size": float(10 ** generator.uniform(-2, 2)),
        "score_transform": int(generator.integers(8)),
        "mirrored": bool(generator.integers(2)),
        "nes_step_size": bool(generator.integers(2)),
    }


def solved_after(loop: InnerLoop, numbers: Sequence[int], generations: int) -> list[int]:
    """Run the searches with these ``numbers`` side by side: all agents of a generation train in one program. Return,
    for each search, the generations until the agents on the mean solve the room; ``generations + 1`` if they do not."""
    searches = {}
    for number in numbers:
        changes = random_settings(number)
        config = dataclasses.replace(loop.config, population=WORKERS * (1 + changes["mirrored"]), **changes)
        searches[number] = NES(config, loop.factory.initial(Streams([derive_seed(number, "first mean")]))[0])
    solved = dict.fromkeys(numbers, generations + 1)
    for generation in range(1, generations + 1):
        if not searches:
            break
        streams = Streams([derive_seed(number, f"noise {generation}") for number in searches])
        num_parameters = len(next(iter(searches.values())).mean)
        noise = dict(zip(searches, streams.normal(WORKERS, num_parameters), strict=True))
        proxies, seeds = {}, []  # synthetic environments of each search, the mean first; seeds of all agents
        for number, search in searches.items():
            proxies[number] = torch.cat([search.mean.expand(WORKERS, -1), search.ask(noise[number])])
            seeds += [derive_seed(number, f"generation {generation}, agent {i}") for i in range(len(proxies[number]))]
        scores = loop.run(torch.cat(list(proxies.values())), seeds).scores
        scores_of_searches = scores.split([len(rows) for rows in proxies.values()])
        for number, fitness in zip(proxies, scores_of_searches, strict=True):
            mean_score = float(fitness[:WORKERS].mean())
            if mean_score > SOLVED:
                solved[number] = generation
                del searches[number]
            else:
                searches[number].tell(noise[number], fitness[WORKERS:], mean_score)
    return [solved[number] for number in numbers]


def measure(flags: argparse.Namespace) -> None:
    """Run the searches that the file lacks, in batches. Raises SettingError for a file of another script."""
    check_options(flags, LAYOUT, searches=1, generations=1)
    torch.set_num_threads(1)
    results = numbers_in("json", flags.json, LAYOUT, new=True)
    if not results:
        results = {"room": flags.room, "generations": flags.generations, "cpu_seconds": 0.0}
    settings = parse([*FLAGS.split(), "--gamename", results["room"]])
    loop = InnerLoop(settings.proxy, settings.run.agent, settings.agent, settings.run.gamename)
    results |= {name: results.get(name, []) for name in COLUMNS}
    while (done := len(results["step_size"])) < flags.searches:
        started = time.process_time()
        numbers = range(done, min(done + BATCH, flags.searches))
        generations = solved_after(loop, numbers, results["generations"])
        for number, count in zip(numbers, generations, strict=True):
            for name, value in (random_settings(number) | {"solved_after": count}).items():
                results[name].append(value)
        results["cpu_seconds"] = round(results["cpu_seconds"] + time.process_time() - started, 1)
        write_numbers(flags.json, results)
        share = np.mean(np.array(results["solved_after"]) <= results["generations"])
        progress = f"{numbers.stop:,} of {flags.searches:,} searches, {100 * share:.0f} % solved"
        print(f"{progress}, {results['cpu_seconds']:.0f} CPU-s", flush=True)


def fill(axes: list[Any], numbers: dict[str, Any]) -> None:
    """Draw a panel for each transformation: generations over the step size, four kinds of searches."""
    columns = {name: np.array(numbers[name]) for name in COLUMNS}
    step_sizes, solved_after = columns["step_size"], columns["solved_after"]
    edges = np.geomspace(0.01, 100, 5)  # of decades
    decades = np.digitize(step_sizes, edges) - 1
    kinds = list(itertools.product((True, False), (False, True)))  # mirrored, step divided
    for transform, axis in enumerate(axes):
        has_transform = columns["score_transform"] == transform
        for colour, (mirrored, divided) in zip(COLOURS, kinds, strict=False):
            group = has_transform & (columns["mirrored"] == mirrored) & (columns["nes_step_size"] == divided)
            label = f"{'mirrored' if mirrored else 'not mirrored'}, step {'divided' if divided else 'whole'}"
            look: dict[str, Any] = {"color": colour, "markersize": 2.2, "alpha": 0.7, "markeredgewidth": 0}
            axis.plot(step_sizes[group], solved_after[group], "o", label=label, **look)
        medians = []
        for decade in range(len(edges) - 1):
            in_decade = solved_after[has_transform & (decades == decade)]
            medians.append(np.median(in_decade) if len(in_decade) else np.nan)
        axis.plot(np.sqrt(edges[1:] * edges[:-1]), medians, color=COLOURS[6], linewidth=1.1)
        axis.axhline(numbers["generations"] + 0.5, color=COLOURS[6], linewidth=0.6, linestyle=":")
        title = f"{transform}: {NAMES[transform]}"
        axis.set(xscale="log", xlim=(0.01, 100), ylim=(0, numbers["generations"] + 3), title=title)
        if transform >= 4:
            axis.set_xlabel("step size")
        if not transform % 4:
            axis.set_ylabel("generations until solved")


def main(argv: Sequence[str] | None = None) -> int:
    flags, measuring, _ = measure_and_draw(__doc__)
    measuring.add_argument("--room", choices=ROOMS, default=ROOMS[0], help="of a new file")
    measuring.add_argument("--searches", type=int, default=2000, help="of all calls together")
    measuring.add_argument("--generations", type=int, default=GENERATIONS, help="of a new file")
    return run_command(flags.parse_args(argv), measure, LAYOUT, fill, (rows(4, 4), (WIDTH, 3.4)), NOTE)


if __name__ == "__main__":
    sys.exit(main())
