"""`--eval_agent CHECKPOINT --obedience`: does an agent that is commanded a return obtain it? A sweep of commands over
the returns seen in training and beyond."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from control.cli.progress import progress
from control.loops.episodes import EpisodeLoop
from control.loops.loop import Loop, rounds
from control.loops.rollout import rollout
from control.reports import obedience
from control.reports.files import show
from control.reports.statistics import Array
from control.reports.tags import LARGEST_SEEN, SMALLEST_SEEN
from control.storage.checkpoints import Checkpoint
from control.storage.run_dir import home, read_metrics
from models.contract import Policy
from models.settings import SettingError
from models.streams import Streams

EPISODES = 20  # of each command, where the user does not say how many


class _Counting(Policy):
    """A policy that adds up what its episodes obtain in the units of its commands: discounted where these are."""

    def __init__(self, policy: Policy, discount: float):
        self.policy, self.members, self.discount = policy, policy.members, discount
        self.weight, self.obtained = 1.0, torch.zeros(())

    def act(self, obs: Tensor) -> Tensor:
        return self.policy.act(obs)

    def advance(self, reward: Tensor) -> None:
        self.obtained = self.obtained + self.weight * reward
        self.weight *= self.discount
        self.policy.advance(reward)


def check(loop: Loop, kind: str) -> EpisodeLoop:
    """The loop, of an agent that can be commanded a return. SettingError for any other."""
    if not isinstance(loop, EpisodeLoop) or "return" not in loop.agent.commands_now():
        raise SettingError(
            f"--obedience has no effect with {kind}, whose agents are commanded no return; allowed: UDRL, RCP-R"
        )
    return loop


def sweep(
    loop: EpisodeLoop, commands: Sequence[float], episodes: int, sample: bool, seed: int, others: dict[str, float]
) -> Array:
    """Returns ``[M, C, E]`` under each of the ``commands``, in their units. All commands have the same episodes, chosen
    by ``seed``; ``others`` are parts of the command that stay."""
    found, config = [], loop.agent.config
    discount = config.discount if config.desire_rtg else 1.0
    with progress("commands") as watch:
        for number, command in enumerate(commands):
            streams = Streams.named([seed + member for member in range(len(loop.seeds))], "obedience")
            parts = []
            for count in rounds(episodes, loop.eval_envs):
                given = {**others, "return": float(command)}
                policy = loop.agent.begin(count, streams.fork(), sample=sample, evaluate=True, command=given)
                counting = _Counting(policy, discount)
                rollout(counting, loop.evaluation, streams.episode_seeds(count), keep=False)
                parts.append(counting.obtained)
            found.append(torch.cat(parts, 1))
            if watch:
                watch((number + 1) / len(commands))
    return torch.stack(found, 1).double().numpy()


def seen(checkpoint: Checkpoint, seeds: Sequence[int], discount: float) -> tuple[list[float], list[float]]:
    """The smallest and largest return that each seed had seen when the checkpoint was written, from the run's
    metrics.csv. SettingError where that is gone, or is of a run that did not note it."""
    written = read_metrics(home(checkpoint.path) / "metrics.csv")
    metrics = {tag: np.array(column) for tag, column in written.items()}
    pairs = [(SMALLEST_SEEN, LARGEST_SEEN)] + [("rollout/return_min", "rollout/return_max")] * (discount == 1)
    tags = next((pair for pair in pairs if metrics.keys() >= {*pair}), None)
    if tags is None:
        path = str(checkpoint.path)
        raise SettingError(f"checkpoint {path!r} has no metrics.csv that says which returns its training has seen")
    past = metrics["epoch"] <= checkpoint.run_state["epoch"]
    low, high = ([metrics[tag][past & (metrics["seed"] == seed)] for seed in seeds] for tag in tags)
    if not all(np.isfinite(values).any() for values in low):
        raise SettingError(f"checkpoint {str(checkpoint.path)!r} is of a run that had not played yet")
    return [float(np.nanmin(values)) for values in low], [float(np.nanmax(values)) for values in high]


def report(
    checkpoint: Checkpoint, loop: EpisodeLoop, modes: Sequence[str], episodes: int, seed: int, others: dict[str, float]
) -> None:
    """Sweep, print the table, and write figure and numbers beside the checkpoint."""
    run, config = checkpoint.settings.run, loop.agent.config
    low, high = seen(checkpoint, loop.seeds, config.discount if config.desire_rtg else 1.0)
    commands = obedience.grid(low, high)
    numbers: dict[str, Any] = {
        "title": obedience.title(run.implementation, run.gamename, loop.seeds),
        "seeds": list(loop.seeds), "epoch": checkpoint.run_state["epoch"], "episodes": episodes,
        "modes": {},
    }  # fmt: skip
    for mode in modes:
        obtained = sweep(loop, commands.tolist(), episodes, mode == "sampled", seed, others)
        numbers["modes"][mode] = obedience.measure(commands, obtained, low, high)
    path = beside(checkpoint.path)
    show(obedience.table(numbers), numbers, lambda to: obedience.draw(numbers, to), path, "eval_agent")


def beside(checkpoint: Path) -> Path:
    """The figure of a checkpoint's sweep; its numbers have the same name but for the end."""
    return checkpoint.with_name(f"{checkpoint.stem}{obedience.END}").with_suffix(".png")
