"""The end of a search: choice and evaluation of the winner, and its files.

The best fitness of a search is a selected maximum, so it overestimates. Therefore the best means are re-evaluated with
new agents, which choose the winner. A held-out evaluation with further agents then gives the winner's score.
"""

import dataclasses
import importlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from control.cli.progress import progress
from control.cli.settings import acting
from control.cli.words import command_line
from control.evolution.inner_loop import InnerLoop, Outcome, by_kind
from control.evolution.objectives import average, stays_solved
from control.films.recording import Actor, record, returns_text
from control.lightning.board import show_film
from control.lightning.proxy_module import ProxyModule
from control.lightning.supervised import SupervisedModule
from control.loops.build import spaces_of
from control.reports.curves import learning_curve
from control.reports.search import describe, fit_figure, iqm_text, speed_text
from control.reports.sheets import look_of
from control.storage import run_dir
from models.proxies import files
from models.registry import family
from models.settings import UserError, names_with
from models.streams import Streams
from understudy.files import IN_RUN

_ROUND = 8  # agents of the re-evaluation after which means are left out


def conclude(module: ProxyModule, folder: Path, verbose: bool = True) -> Iterator[tuple[str, object]]:
    """Draw the figure, re-evaluate the means, evaluate the winner, and write it as ``proxy.safetensors``. Yields lines
    for the summary, and prints each step before it starts if ``verbose``. An interrupted search gets a figure only. A
    supervised fit has one mean, which is its winner. Raises UserError if all agents diverged."""
    config, run = module.config, module.settings.run
    fit: dict[str, Any] = {}
    if isinstance(module, SupervisedModule):
        fit = module.fitted_to()
        yield "figure", fit_figure(folder, look_of(run))
    else:
        say_if(verbose, "drawing the fitness of all generations")
        yield "figure", learning_curve(folder, look_of(run))
    if not module.is_over():
        return
    generation, winner, rows = (0, module.mean.detach()[0], []) if fit else _reevaluate(module, verbose)
    count = config.report_agents
    doing = f"held-out evaluation of the winner with {count} fresh agents" if verbose else ""
    outcome = _outcome(module, winner[None], "report", count, doing)
    kind_means = by_kind(module.agents, module.seeds_of("report", count), outcome.scores) if module.kinds > 1 else {}
    summary = describe(outcome, config) | ({"each": kind_means} if kind_means else {})
    if summary["failed"] == count or rows and not math.isfinite(max(row["again"] for row in rows)):
        raise UserError(
            "the weights of all agents that judge the means are no longer finite, so the search has no winner; metrics "
            f"and checkpoint are kept in {str(folder)!r}: a smaller lr may help"
        )
    scores = (
        {"fit": fit, "report": summary}
        if fit
        else {
            "generation": generation,
            "generations": module.epoch,
            "report": summary,
            "second_test": rows,
            "search_synthetic_steps": int(module.env_steps.sum()),
            "search_real_steps": module.real_steps,
        }
    )
    path, proxy = folder / IN_RUN, module.settings.proxy
    output = {name for part in module.settings.configs for name in names_with(part, "outcome", False)}
    settings = {name: value for name, value in acting(module.settings).items() if name not in output}
    description = {"command": command_line(module.settings, output), "settings": settings, "scores": scores}
    files.save(path, winner, config=proxy, spaces=module.stages.spaces, game=run.gamename, description=description)
    run_dir.atomic_write_text(folder / "scores.json", json.dumps(scores, indent=1) + "\n")
    origin = f"fitted to {fit['transitions']:,} transitions" if fit else f"mean before generation {generation}"
    yield "proxy", f"{path} ({origin})"
    score = f"mean {summary['mean']:.1f}, IQM {iqm_text(summary)}"
    lost = f"; {summary['failed']} of them diverged and count in nothing" if summary["failed"] else ""
    where = "in machine code" if proxy.compiled else "in torch"
    yield "its score", f"{score} of {count} fresh agents, trained {where}{lost}"
    if kind_means:
        yield "of each", ", ".join(f"{kind} {mean:.1f}" for kind, mean in kind_means.items())
    if "stays" in summary:
        yield "solved", speed_text(summary)
    if run.record:
        say_if(verbose, "filming an agent that trains on the winner")
        video = folder / "videos" / "final.mp4"
        yield "video", _film(module, winner, video, verbose)
        show_film(module, folder, video)
    say_if(verbose, "drawing what the winner shows agents")
    pictures = importlib.import_module(f"control.reports.{family(run.implementation).package.rpartition('.')[2]}")
    yield "picture", pictures.picture(files.load(path), folder, module.settings)


def _film(module: ProxyModule, winner: Tensor, path: Path, verbose: bool) -> str:
    """Train one more agent on the winner, film it in the real environment, and return a line for the summary."""
    settings, game = module.settings, module.settings.run.gamename
    config = dataclasses.replace(module.config, inner_steps=module.config.steps_in_use)
    loop = InnerLoop(config, settings.run.agent, settings.agent, game, settings.run.num_threads)
    loop = loop.alone(loop.kinds[0])
    with progress("trained", verbose) as watch:
        trained = loop.finish(loop.begin(winner[None], module.seeds_of("video", 1)), watch=watch)
    seeds = Streams.from_name(module.seeds, "video").episode_seeds(settings.run.record_episodes)[0].tolist()
    try:
        with progress("filming", verbose) as watch:
            (returns,) = record([Actor(lambda: trained.policy)], game, path, seeds, small=True, watch=watch)
    except UserError as error:
        return f"none: {error}"
    return f"{path}, .gif (an agent trained on the proxy only, in the real environment: {returns_text(returns)})"


def _reevaluate(module: ProxyModule, verbose: bool) -> tuple[int, Tensor, list[dict[str, Any]]]:
    """Re-evaluate the means in the archive with new agents. Returns generation and parameters ``[D]`` of the best mean,
    and a row of results for each mean. The last mean is also a candidate, unless the search ended by solving the
    task."""
    entries: list[tuple[float | None, int, Tensor]] = [*module.archive.entries]
    if not module.has_solved():
        last, generation = module.proxies(module.evolution.mean), module.epoch + 1
        entries.append((None, generation, module.with_visited_states(last, generation)))
    count = module.config.retest_agents
    doing = f"re-evaluating {len(entries)} means with {count} fresh agents each" if verbose else ""
    means = torch.stack([mean for *_, mean in entries])
    if module.config.choose_by == "stays":  # ties are broken by the curve's height, with less weight than an agent
        assert module.config.solved_reward is not None
        outcome = _outcome(module, means, "second test", count, doing, module.config.retest_drawn)
        share = stays_solved(outcome.curve, module.config.solved_reward).view(len(entries), count).float().mean(1)
        height = average(outcome, module.config).view(len(entries), count).nan_to_num(-torch.inf).mean(1)
        scores, tested = share + height.argsort().argsort() / (len(entries) * count), [count] * len(entries)
    else:
        scores, tested = _returns(module, means, count, doing)
    rows = [
        {"generation": generation, "in_search": fitness, "again": float(score), "agents": agents}
        for (fitness, generation, _), score, agents in zip(entries, scores, tested, strict=True)
    ]
    eligible_scores = [
        score if agents == count else -torch.inf for score, agents in zip(scores.tolist(), tested, strict=True)
    ]
    _, generation, winner = entries[eligible_scores.index(max(eligible_scores))]
    return generation, winner, rows


def _returns(module: ProxyModule, means: Tensor, count: int, doing: str) -> tuple[Tensor, list[int]]:
    """Return the mean returns ``[N]`` of fresh agents on ``means [N, D]``, and the number of agents for each mean. It
    is ``count``, or fewer if the mean cannot exceed the first mean any more: no return exceeds the environment's
    ``max_return``."""
    run, sample_all = module.settings.run, module.config.retest_drawn
    max_return = spaces_of(run.gamename, module.config.test_limit).max_return
    if max_return is None or not module.settings.proxy.compiled:  # one large batch is fastest in torch
        outcome = _outcome(module, means, "second test", count, doing, sample_all)
        return outcome.scores.view(len(means), count).nan_to_num(-torch.inf).mean(1), [count] * len(means)
    outcome = _outcome(module, means[:1], "second test", count, doing, sample_all)
    scores = torch.full((len(means), count), torch.nan)
    scores[0] = outcome.scores.nan_to_num(-torch.inf)
    candidates, tested = list(range(1, len(means))), [count] * len(means)
    for first in range(0, count, _ROUND):
        last = min(first + _ROUND, count)
        if candidates:
            other_means = "mean" if len(candidates) == 1 else f"{len(candidates)} means"
            also = doing and f"the other {other_means} with agents {first + 1} to {last}"
            outcome = _outcome(module, means[candidates], "second test", count, also, sample_all, (first, last))
            scores[candidates, first:last] = outcome.scores.view(len(candidates), -1).nan_to_num(-torch.inf)
        for index in candidates:
            tested[index] = last
        highest = scores[:, :last].sum(1) + (count - last) * max_return
        candidates = [index for index in candidates if highest[index] > scores[0].sum()]
    return torch.stack(
        [agent_scores[:agents].mean() for agent_scores, agents in zip(scores, tested, strict=True)]
    ), tested


def _outcome(
    module: ProxyModule,
    means: Tensor,
    name: str,
    count: int,
    doing: str,
    sample_all: bool = False,
    agent_range: tuple[int, int] | None = None,
) -> Outcome:
    """Train and test ``count`` fresh agents on each of ``means [N, D]``, with equal seeds for all means, or only the
    slice ``agent_range`` of these agents. They train for ``steps_in_use`` steps. If ``doing`` is not empty, it is
    printed with the estimated minutes, and progress is shown."""
    steps = module.config.steps_in_use
    agent_seeds = module.seeds_of(name, count)[slice(*agent_range or (0, count))]
    if doing:
        minutes = module.seconds_of(len(agent_seeds) * len(means)) / 60
        print(f"{doing} (about {minutes:.0f} minutes)" if minutes >= 1 else doing, flush=True)
    proxies, seeds = means.repeat_interleave(len(agent_seeds), 0), agent_seeds * len(means)
    with progress("agents trained and tested", bool(doing)) as watch:
        outcome = module.workers.run(proxies, seeds, sample_all=sample_all, watch=watch, inner_steps=steps)
    module.count_real_steps(outcome.test_steps)  # not in checkpoints, because a resumed search is evaluated again
    return outcome


def say_if(verbose: bool, doing: str) -> None:
    """Print ``doing``, the next step of the command, if ``verbose``."""
    if verbose:
        print(doing, flush=True)
