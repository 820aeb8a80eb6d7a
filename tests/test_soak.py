"""`make soak`: runs killed with SIGKILL at random moments and resumed: 200 kills (SOAK_KILLS), about an hour.

Each round starts a run, kills it or one of its workers up to three times, finishes it with ``--resume`` and compares it
with an uninterrupted run. ``SOAK_FILE`` (default: exp_dir/soak.jsonl) has a line for each round; an interrupted soak
continues after its last round.
"""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from helpers import STEPPED_CAR, flags, run_folder, same_runs
from running import Running

pytestmark = pytest.mark.soak

KILLS = int(os.environ.get("SOAK_KILLS", 200))
FILE = Path(os.environ.get("SOAK_FILE", ROOT / "exp_dir" / "soak.jsonl"))
AFTER_FIRST_EPOCH = 0.75  # share of kills after the first epoch; the rest may fall into imports


@dataclass(frozen=True)
class Setup:
    """Settings of a run, its number of 200 kills, and the killed process: the run, or a child with ``victim`` in its
    command line. ``ends`` are the allowed exit statuses."""

    kills: int
    changes: dict[str, Any]
    victim: str = ""
    ends: tuple[int, ...] = (-signal.SIGKILL,)

    @property
    def forks(self) -> bool:
        """Runs with child processes start from the shell instead."""
        return "num_workers" not in self.changes

    def argv(self, logdir: Path) -> list[str]:
        if "total_steps" not in self.changes:
            return flags(logdir, "--resume", **self.changes)
        return [word for name, value in self.changes.items() for word in (f"--{name}", str(value))] + [
            "--resume", "--logdir", str(logdir)]  # fmt: skip


MODEL = {
    "gamename": "procmaze", "grid_size": 3, "num_seeds": 2, "hidden_sizes": "20,20,20", "training_start_time": 100,
    "steps_per_epoch": 100, "eval_steps": 20, "eval_episodes": 4, "buffer_size": 500, "checkpoint_every": 2,
}  # fmt: skip
SEARCH = {"implementation": "SE", "generations": 6, "inner_steps": 400, "checkpoint_every": 2, "proxy": "bandit"}
WORKERS = {"gamename": STEPPED_CAR, "time_limit": 30, "epochs": 12, "eval_every": 4, "num_workers": 2}
SETUPS = {
    "UDRL": Setup(25, {"epochs": 100, "checkpoint_every": 3, "eval_every": 5, "lr": 3e-3}),
    "RCP-A, two seeds": Setup(20, {
        "implementation": "RCP-A", "num_seeds": 2, "hidden_sizes": "16,16", "buffer_size": 150, "epochs": 40}),
    "AAC, two seeds": Setup(20, {
        "implementation": "AAC", "num_seeds": 2, "gae_lambda": 0.9, "bootstrap_truncation": True, "max_grad_norm": 0.5,
        "value_lr": 1e-2, "anneal_lr": True, "max_episodes": 150}),
    "DDQN, four seeds in groups": Setup(25, {
        "implementation": "DDQN", "num_seeds": 4, "vary_hp": "true", "hidden_sizes": "6", "num_envs": 3,
        "eps_fraction": 0.6, "epochs": 25}),
    "PPO on the lander, two seeds": Setup(10, {
        "implementation": "PPO", "gamename": "lunarlander", "num_seeds": 2, "num_envs": 2, "rollout_steps": 70,
        "steps_per_epoch": 500, "total_steps": 60_000, "checkpoint_every": 3}),
    "ER": Setup(12, MODEL | {"implementation": "ER", "total_steps": 1000}),
    "CategoricalLatent": Setup(13, MODEL | {
        "implementation": "CategoricalLatent", "num_features": 5, "feature_width": 6, "total_steps": 500}),
    "UDRL, two environment workers": Setup(15, WORKERS),
    "DDQN, an environment worker": Setup(
        10, WORKERS | {"implementation": "DDQN", "num_envs": 2, "epochs": 12}, "forkserver", (0, 2)),
    "SE": Setup(25, SEARCH),
    "SE, two Ray workers": Setup(10, SEARCH | {"num_workers": 2, "inner_steps": 800}),
    "SE, a Ray worker": Setup(8, SEARCH | {"num_workers": 2, "inner_steps": 800}, "ray::_work", (0,)),
}  # fmt: skip


def recorded(name: str) -> list[dict[str, Any]]:
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    return [line for line in map(json.loads, lines) if line["setup"] == name]


def soak(name: str, share: int, play: Callable[[random.Random, Path], Iterator[float]], folder: Path) -> None:
    """Play rounds until all kills of a set-up are recorded. ``play`` yields the age of the run at each kill, and raises
    AssertionError if the result differs from an uninterrupted run."""
    target_kills = max(1, round(share * KILLS / sum(setup.kills for setup in SETUPS.values())))
    FILE.parent.mkdir(parents=True, exist_ok=True)
    while (done := sum(len(line["after"]) for line in recorded(name))) < target_kills:
        number, kill_seconds, reason = len(recorded(name)), list[float](), ""
        (round_folder := folder / f"round_{number}").mkdir()
        try:
            for seconds in play(random.Random(f"{name} {number}"), round_folder):
                kill_seconds.append(round(seconds, 2))
        except AssertionError as error:
            reason = f"{round_folder}: {str(error)[:500]}"
        with open(FILE, "a") as file:
            file.write(json.dumps({"setup": name, "after": kill_seconds, "equal": not reason, "why": reason}) + "\n")
        print(f"{name}: {done + len(kill_seconds)} of {target_kills} kills  {reason}", flush=True)
        if not reason:
            shutil.rmtree(round_folder)
    assert [line["why"] for line in recorded(name) if not line["equal"]] == []


@pytest.mark.parametrize("name", SETUPS)
def test_killed_and_resumed_run_equals_uninterrupted(name: str, tmp_path: Path) -> None:
    setup = SETUPS[name]
    full_run = Running(setup.argv(tmp_path / "whole"), tmp_path / "whole", setup.forks)
    full_run.until_it_speaks()
    first = full_run.age
    full_run.to_the_end()
    length, reference = full_run.age, run_folder(tmp_path / "whole")

    def play(draws: random.Random, round_folder: Path) -> Iterator[float]:
        logdir = round_folder / "exp_dir"
        for start in range(draws.choice((1, 1, 2, 3))):
            run = Running(setup.argv(logdir), round_folder / f"start_{start}", setup.forks)
            has_begun = draws.random() < AFTER_FIRST_EPOCH
            if has_begun:
                run.until_it_speaks()
            time.sleep(draws.uniform(0, length - first * has_begun))
            age, status = run.age, run.kill(setup.victim, draws)
            if status is None or status in (0, 1) and not setup.victim:
                break  # it ended before
            errors = run.err.read_text()
            assert status in setup.ends and errors.count("\n") == (status == 2), f"ended with {status}: {errors}"
            yield age
        Running(setup.argv(logdir), round_folder / "last", setup.forks).to_the_end()
        same_runs(reference, run_folder(logdir))

    soak(name, setup.kills, play, tmp_path)
