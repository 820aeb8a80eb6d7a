"""What comes after a search: which centre wins, what it is worth, and the files that say so.

A score seen during a search is a selected maximum. So the best centres are tested again with agents of their own, and
the winner is reported on further ones that chose nothing.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from control.cli.settings import as_dict
from control.cli.words import command_line
from control.evolution.inner_loop import InnerLoop, Outcome
from control.loops.recording import record
from control.reports.synthetic import behaviour_figure, describe, search_figure, sentence
from control.storage import run_dir
from models.proxies import files
from models.settings import UserError
from models.streams import Streams

if TYPE_CHECKING:
    from control.lightning.population import ProxyModule


def conclude(module: "ProxyModule", folder: Path) -> Iterator[tuple[str, object]]:
    """Figure, second test, report, and the winner as ``proxy.safetensors``; yields lines for the summary. A search
    that was cut short gets its figure only."""
    if module.epoch == 0:
        return
    yield "figure", search_figure(folder, module.config.solved_reward)
    if not module.is_over():
        return
    generation, winner, tested = second_test(module)
    report = fresh_scores(module, winner[None], "report", module.config.report_agents)
    summary = describe(report, module.config.solved_reward)
    scores = {
        "generation": generation, "generations": module.epoch, "report": summary, "second_test": tested,
        "search_synthetic_steps": int(module.env_steps.sum()), "search_real_steps": module.real_steps,
    }  # fmt: skip
    path = folder / "proxy.safetensors"
    settings = {name: value for name, value in as_dict(module.settings).items() if name not in NOT_TOLD}
    files.save(
        path, winner, config=module.config, spaces=module.networks.spaces, game=module.settings.run.gamename,
        description={"command": command_line(module.settings, NOT_TOLD), "settings": settings, "scores": scores},
    )  # fmt: skip
    run_dir.atomic_write_text(folder / "scores.json", json.dumps(scores, indent=1) + "\n")
    yield "stand-in", f"{path} (centre before generation {generation})"
    yield "its score", f"{sentence(summary)} on {module.config.report_agents} fresh agents that chose nothing"
    if module.settings.run.record:
        yield "video", film(module, winner, folder / "videos" / "final.mp4")
    yield "behaviour", behaviour_figure(files.load(path), folder / "behaviour.png", module.settings)


def film(module: "ProxyModule", winner: Tensor, path: Path) -> str:
    """Train one more agent on the winner alone and record it on the real environment."""
    settings = module.settings
    loop = InnerLoop(module.config, settings.run.agent, settings.agent, settings.run.gamename)
    trained = loop.train(winner[None], module.seeds_of("video", 1), module.config.steps_in_use)
    try:
        total = record(
            trained.agent, settings.run.gamename, path, Streams.named(module.seeds, "video").episode_seeds(1)
        )
    except UserError as error:
        return f"none: {error}"
    return f"{path} (an agent that saw the stand-in only, on the real environment; return {total:.0f})"


# Settings that say where things are written and shown, or do nothing here.
NOT_TOLD = (
    "logdir", "resume", "exp_name", "num_workers", "ray_address", "print_statements", "record", "command", "epochs",
    "eval_every", "checkpoint_every", "recording_epoch_interval", "record_n_rollouts_per_epoch", "display",
)  # fmt: skip


def second_test(module: "ProxyModule") -> tuple[int, Tensor, list[dict[str, Any]]]:
    """The generation and parameters ``[D]`` of the centre whose new agents do best, and a row for each tested. The
    last centre takes part even where its score was never among the best."""
    entries: list[tuple[int, float | None, Tensor]] = [
        (generation, score, centre) for score, generation, centre in module.evolution.archive.entries
    ]
    if not (module.config.quit_when_solved and module.evolution.solved):
        entries.append((module.epoch + 1, None, module.centre.detach()[0]))
    count = module.config.retest_agents
    centres = torch.stack([centre for *_, centre in entries])
    outcome = fresh_scores(module, centres, "second test", count, module.config.retest_drawn)
    means = outcome.scores.view(len(entries), count).nan_to_num(-torch.inf).mean(1)
    best = int(means.argmax())
    rows = [
        {"generation": generation, "in_search": score, "again": float(mean)}
        for (generation, score, _), mean in zip(entries, means, strict=True)
    ]
    return entries[best][0], entries[best][2], rows


def fresh_scores(module: "ProxyModule", centres: Tensor, name: str, count: int, drawn: bool = False) -> Outcome:
    """``count`` fresh agents on each of ``centres [N, D]``, the same for all; trained as in use (``deploy_steps``)."""
    seeds = module.seeds_of(name, count) * len(centres)
    steps = module.config.steps_in_use
    return module.workers.run(centres.repeat_interleave(count, 0), seeds, steps=steps, drawn=drawn)
