"""Sizes that do not fit are one line before any memory is taken: what is needed, what is free, and what fits."""

import dataclasses
import functools
import os
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainer
from control.cli.parse import parse
from control.loops import memory, process
from control.loops.build import spaces_of
from control.loops.memory import check_memory, of_training
from control.loops.process import available_memory
from envs.make import make_dynamics
from fake_runs import Shown, refused
from models.registry import agent_class, family, implementations
from models.settings import SettingError

OF_A_FAMILY = {family(name).config: name for name in reversed(implementations())}.values()
AGENTS = [name for name in OF_A_FAMILY if family(name).learns_from != "evolution"]
MAZE, POLE, SEARCH = "--gamename procmaze", "--gamename cartpole", "--implementation SE --gamename cartpole"
TOO_LARGE = [
    ("--num_seeds 4096", "num_seeds"),
    ("--hidden_sizes 65536,65536", "hidden_sizes"),
    ("--num_grad_steps 100000", "num_grad_steps"),
    ("--buffer_size 1000000000 --buffer_unit episodes --epochs 100000", "buffer_size"),
    ("--eval_episodes 1000000", "eval_episodes"),
    ("--implementation RCP-A --value_hidden_sizes 65536,65536", "value_hidden_sizes"),
    ("--implementation AAC --hidden_sizes 65536,65536", "hidden_sizes"),
    ("--implementation CPG --running_mean_len 1000000 --num_seeds 30", "num_seeds"),
    (f"--implementation DDQN {POLE} --hidden_sizes 65536,65536", "hidden_sizes"),
    (f"--implementation DDQN {POLE} --buffer_size 1000000000 --epochs 1000000", "buffer_size"),
    (f"--implementation DDQN {POLE} --steps_per_epoch 1000000000 --buffer_size 100", "steps_per_epoch"),
    (f"--implementation PerfectModel {MAZE} --buffer_size 1000000000", "buffer_size"),
    (f"--implementation SimpleModel {MAZE} --rollout_batch_size 1000000", "rollout_batch_size"),
    (f"--implementation CategoricalLatent {MAZE} --hidden_sizes 65536,65536,65536", "hidden_sizes"),
    (f"{SEARCH} --population 1000000000", "population"),
    (f"{SEARCH} --proxy bandit --initial_draws 100000000", "initial_draws"),
    (f"{SEARCH} --proxy bandit --initial_draws 10000000 --initial_generations 1", "initial_draws"),
    ("--eval_agent cartpole-bandit --hidden_sizes 60000,60000", "hidden_sizes"),
    ("--eval_agent cartpole-bandit --num_agents 100000 --hidden_sizes 200", "num_agents"),
]


@pytest.mark.parametrize(("words", "name"), TOO_LARGE)
def test_what_does_not_fit_is_one_line(
    words: str, name: str, tmp_path: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda accelerator: 250_000_000)
    logdir = tmp_path / "exp_dir"
    monkeypatch.chdir(tmp_path)
    where = [] if "--eval_agent" in words else ["--logdir", str(logdir)]
    line = refused(trainer.main, [*words.split(), *where], "of memory, and 0.25 GB are free", capsys)
    found = re.match(rf"error: {name} is (\[?[\d, ]+\]?), with which this needs about [\d,.]+ GB", line)
    assert found and "; allowed here: at most" in line and not logdir.exists()
    given, most = (
        [int(each) for each in re.findall(r"\d+", text)] for text in (found[1], line.partition("at most")[2])
    )
    assert all(1 <= small < large for small, large in zip(most, given, strict=True))


def needs(words: str) -> Callable[..., int]:
    game = parse(words.split()).run.gamename
    return functools.partial(of_training, spaces_of(game), make_dynamics(game))


@pytest.mark.parametrize("words", ["--hidden_sizes 5000,5000", f"--implementation DDQN {POLE} --num_seeds 1000"])
def test_what_is_offered_fits_and_little_more_does_not(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda accelerator: 100_000_000)
    settings, needed = parse(words.split()), needs(words)
    with pytest.raises(SettingError) as error:
        check_memory(needed, [settings.run, settings.agent])
    most = [int(each) for each in re.findall(r"\d+", str(error.value).partition("at most")[2])]
    name = error.value.name
    for factor, fits in ((1.0, True), (1.2, False)):
        values = [int(each * factor) for each in most]
        changed = settings.replace(**{name: values if name == "hidden_sizes" else values[0]})
        assert (needed(changed.run, changed.agent) <= 100_000_000) == fits
    monkeypatch.setattr(memory, "available_memory", lambda accelerator: 1000)
    with pytest.raises(SettingError, match="0.000001 GB|1e-06 GB are free; allowed here: no value, for even"):
        check_memory(needed, [settings.run, settings.agent])
    monkeypatch.setattr(memory, "available_memory", lambda accelerator: None)
    check_memory(needed, [settings.run, settings.agent])


@pytest.mark.parametrize("name", AGENTS)
def test_an_estimate_has_room_for_weights_and_moments_and_little_else(name: str) -> None:
    """So defaults fit everywhere, and wide networks are seen."""
    game = "procmaze" if family(name).package.endswith("model_generalisation") else "cartpole"
    settings = parse(["--implementation", name, "--gamename", game])
    assert 1e5 < needs(f"--gamename {game}")(settings.run, settings.agent) < 5e8
    endless = dataclasses.replace(settings.run, time_limit=10**9)  # which episodes do not reach
    assert needs(f"--gamename {game}")(endless, settings.agent) < 1e9
    depth = max(2, len(getattr(settings.agent, "hidden_sizes", ())))
    own: dict[str, Any] = {"hidden_sizes": (600,) * depth} if hasattr(settings.agent, "hidden_sizes") else {}
    least = {
        n: 1 for n in ("batch_size", "batch_episodes", "buffer_size", "num_grad_steps") if hasattr(settings.agent, n)
    }
    config = dataclasses.replace(settings.agent, **own, **least)
    spaces, kind = spaces_of(game), agent_class(name)
    dynamics = make_dynamics(game)
    world = {"dynamics": dynamics} if getattr(kind, "knows_dynamics", False) else {}
    count = sum(weights.numel() for weights in kind(config, spaces, [1, 2], **world).parameters())
    assert 8 * count < kind.memory_bytes(config, spaces, 2, 1, dynamics) < 40 * count + 4e6


def test_evaluating_takes_no_memory_for_training(
    finished: Callable[..., tuple[Path, str]], capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = finished()
    monkeypatch.setattr(memory, "available_memory", lambda accelerator: 1)
    assert trainer.main(["--eval_agent", str(folder), "--num_eval_episodes", "1"]) == 0
    with pytest.raises(SettingError, match="^[a-z_]+ is .*, with which this needs about .* of memory, and 1e-09 GB"):
        trainer.module(gamename="cartpole")


GROUPS = [
    ({}, 8_000_000),
    ({"unified/memory.max": "3000000", "unified/memory.current": "1"}, 8_000_000),  # of another group
    ({"a/memory.max": "3000000", "a/memory.current": "1000000", "a/memory.stat": "active_file 5\nanon 7"}, 2_000_005),
    ({"a/b/memory.max": "max", "a/b/memory.current": "1", "a/b/memory.stat": ""}, 8_000_000),
    ({"memory.max": "2000000", "memory.current": "1", "memory.stat": "inactive_file 1"}, 2_000_000),
    (
        {"memory/c/memory.limit_in_bytes": "500", "memory/c/memory.usage_in_bytes": "400",
         "memory/c/memory.stat": "total_inactive_file 20\ntotal_active_file 30\nactive_file 7"}, 150,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("files", "free"), GROUPS)
def test_what_a_container_leaves_counts(
    files: dict[str, str], free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {f"groups/{name}": text for name, text in files.items()}
    given |= {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    7813 kB\n", "proc/self/statm": "10 5 1"}
    given |= {"proc/self/cgroup": "4:cpu:/x\n3:hugetlb,memory:/c\n0::/a/b\n"}
    for name, text in given.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(process, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(process, "_GROUPS", tmp_path / "groups")
    found = available_memory("cpu")
    assert found == (7813 * 1024 if free == 8_000_000 else free)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (10 * resource.getpagesize() + 77, 0))
    assert available_memory("cpu") == 77
    monkeypatch.setattr(process, "_PROC", tmp_path / "nowhere")
    assert available_memory("cpu") is None


CORES = [
    ("--num_threads 100000", "num_threads is 100000; allowed: integer, at least 1, at most 4096"),
    ("--num_threads 9", "num_threads is 9; allowed: at most 8 on this machine, which has 2 cores"),
    ("--num_workers 4000", "num_workers is 4000; allowed: at most 8 on this machine"),
    (f"--num_workers 9 {SEARCH}", "num_workers is 9; allowed: at most 8 on this machine"),
    ("--use_tune --max_concurrent_trials 9", "max_concurrent_trials is 9; allowed: at most 8 on this machine"),
    ("--num_threads 9 --ray_address auto", "num_threads is 9; allowed: at most 8 on this machine"),
]


@pytest.mark.parametrize(("words", "said"), CORES)
def test_threads_and_processes_are_held_against_the_cores(
    words: str, said: str, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    refused(trainer.main, words.split(), said, capsys)
    assert parse(["--num_workers", "100", "--ray_address", "auto"]).run.num_workers == 100
