"""Tiny settings, and a training loop without Lightning, for tests of agents."""

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conftest import ROOT
from control.rollout import Episodes, RandomActor, rollout
from control.run_dir import read_metrics
from envs.base import Environment
from envs.make import make_environment
from models.agents import agent_class, default_config, implementations
from models.spaces import Spaces
from models.streams import Streams

# What makes a run small, for those fields that a family has. Batch and widths are odd, so that vector tails are
# exercised.
TINY: dict[str, Any] = {
    "batch_size": 33, "num_grad_steps": 4, "num_rand_action_rollouts": 5,
    "training_rollouts_per_worker": 3, "last_few": 4,
    "value_hidden_sizes": (11, 7), "conv_channels": (4, 8), "random_action_epochs": 0,
}  # fmt: skip
# Families' other networks and ways, tested beside every implementation: id -> (implementation, settings).
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "UDRL-hypernetwork": ("UDRL", {"network": "hypernetwork"}),
    "UDRL-by-episode": ("UDRL", {"sample_by": "episode", "eval_command": "sampled", "buffer_unit": "episodes",
                                 "buffer_size": 7}),
    "RCP-A-lambda": ("RCP-A", {"advantage_target": "lambda", "advantage_command": "quantile", "sample_by": "episode"}),
}  # fmt: skip
CASES = {name: (name, {}) for name in implementations()} | VARIANTS


def config_of(case: str, game: str = "", **changes: Any) -> Any:
    """Settings of a case of `CASES`, changed where its family has such a field."""
    implementation, own = CASES[case]
    config = default_config(implementation, game)
    known = {field.name for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **{name: value for name, value in (changes | own).items() if name in known})


def tiny(case: str, game: str = "", **changes: Any) -> Any:
    """The smallest settings that still learn something."""
    hidden = tuple(11 + 4 * i for i in range(len(default_config(CASES[case][0], game).hidden_sizes)))
    return config_of(case, game, **({"hidden_sizes": hidden} | TINY | changes))


def build(case: str, spaces: Spaces, seeds: list[int], config: Any = None) -> Any:
    return agent_class(CASES[case][0])(config or tiny(case), spaces, seeds)


class Loop:
    """What a run does with an agent, epoch by epoch."""

    def __init__(self, case: str, game: str, seeds: list[int], config: Any = None, envs: int = 4):
        self.environment: Environment = make_environment(game, len(seeds), envs)
        self.agent = build(case, self.environment.spaces, seeds, config)
        self.streams = Streams.named(seeds, "rollout")
        self.envs = envs

    def warm_up(self, rounds: int = 2) -> None:
        for _ in range(rounds):
            actor = RandomActor(self.environment.spaces, self.envs, self.streams.fork())
            self.agent.observe(rollout(actor, self.environment, self.streams.episode_seeds(self.envs)))

    def epoch(self) -> dict[str, Tensor]:
        """Learn, then act; everything that came of it, each ``[M, ...]``."""
        numbers = self.agent.learn()
        actor = self.agent.begin(self.envs, self.streams.fork(), sample=True)
        trajectory = rollout(actor, self.environment, self.streams.episode_seeds(self.envs))
        self.agent.observe(trajectory)
        mine = {f"weights {name}": value.detach().clone() for name, value in self.agent.state_dict().items()}
        return numbers | mine | {"returns": trajectory.returns, "lengths": trajectory.lengths}

    def evaluate(self, sample: bool = False) -> Episodes:
        actor = self.agent.begin(self.envs, self.streams.fork(), sample=sample, evaluate=True)
        return rollout(actor, self.environment, self.streams.episode_seeds(self.envs), keep=False)


def same_numbers(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Equal to the bit, NaN being equal to itself; says which are not."""
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name].nan_to_num(7e7), other[name].nan_to_num(7e7))]
    assert not different


# -- whole runs --------------------------------------------------------------------------------------------------------

SMALL_RUN = {
    "gamename": "cartpole", "hidden_sizes": "12,16", "batch_size": 16, "num_grad_steps": 3,
    "num_rand_action_rollouts": 4, "training_rollouts_per_worker": 3, "eval_every": 2, "eval_episodes": 2,
    "checkpoint_every": 2, "epochs": 5,
}  # fmt: skip


def flags(logdir: Path, *more: str, **changes: Any) -> list[str]:
    """The command line of a run that takes a second."""
    values = SMALL_RUN | {"logdir": logdir} | changes
    return [word for name, value in values.items() for word in (f"--{name}", str(value))] + list(more)


def run_folder(logdir: Path) -> Path:
    """The newest version of the only run under ``logdir``."""
    return sorted(logdir.glob("*/*/*/*/version_*"), key=lambda path: int(path.name.removeprefix("version_")))[-1]


def learned(folder: Path) -> dict[str, list[float]]:
    """Every column of a run's metrics that a clock does not decide."""
    return {
        name: column for name, column in read_metrics(folder / "metrics.csv").items() if not name.startswith("time/")
    }


def same_runs(one: Path, other: Path) -> None:
    """The same numbers learned, and the same weights, optimisers and counters to the bit."""
    ours, theirs = learned(one), learned(other)
    assert ours.keys() == theirs.keys() and len(ours["epoch"]) > 0
    assert [name for name in ours if not np.array_equal(ours[name], theirs[name], equal_nan=True)] == []
    for name in ("last.ckpt", "best.ckpt"):
        contents = [torch.load(folder / "checkpoints" / name, weights_only=True) for folder in (one, other)]
        differences = list(
            different(
                *(
                    {key: content[key] for key in ("state_dict", "optimizer_states", "understudy")}
                    for content in contents
                )
            )
        )
        assert [path for path in differences if not path.startswith("/understudy/settings/")] == []


def different(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two nests of mappings, lists, tensors and plain values differ."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from different(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for i, (ours, theirs) in enumerate(zip(one, other, strict=True)):
            yield from different(ours, theirs, f"{path}/{i}")
    elif isinstance(one, Tensor) and isinstance(other, Tensor):
        if not torch.equal(one.nan_to_num(7e7), other.nan_to_num(7e7)):
            yield path
    elif one != other:
        yield path


def start(argv: Sequence[str], code: str = "") -> "subprocess.Popen[str]":
    """``python trainer.py argv``, or ``code`` in its place, as a process of its own."""
    first = ["-c", code] if code else ["trainer.py"]
    return subprocess.Popen(
        [sys.executable, *first, *argv], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[str]", seconds: float = 60) -> None:
    """Until ``condition`` holds; fails when the process ends first or time runs out."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"ended with {process.returncode}: {process.communicate()}"
        assert time.monotonic() < end, "took too long"
        time.sleep(0.005)
