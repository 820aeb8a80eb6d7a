"""experiments/policy_gradients: the figure of the comparison, and the script that trains for it."""

import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from conftest import ROOT
from control.cli.parse import parse, to_yaml
from test_bash_train import needs_parallel

FOLDER = ROOT / "experiments" / "policy_gradients"
BATCHES = 40


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("policy_gradient_figure", FOLDER / "figure.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


figure = load_script()


def write_run(
    logdir: Path, implementation: str, *flags: str, seeds: Sequence[int] = (25, 26), game: str = "beresheet"
) -> Path:
    """A run whose running mean rises to ``seed`` over 30 of its 40 batches and ends at half of that."""
    argv = ["--implementation", implementation, "--gamename", game, *flags]
    name = "-".join(str(seed) for seed in dict.fromkeys((seeds[0], seeds[-1])))
    folder = logdir / game / "debug" / implementation / f"seed_{name}" / "version_0"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(parse(argv)))
    tags = ["train/mean_reward", "train/loss_p", "train/entropy"]
    tags += ["train/baseline"] * (implementation in ("BPG", "CPG", "AAC"))
    tags += ["train/loss_e"] * (implementation in ("EPG", "CPG", "AAC"))
    lines = [",".join(["epoch", "env_steps", "seed", *tags])]
    for batch in range(1, BATCHES + 1):
        for seed in seeds:
            mean = seed * batch / 30 if batch <= 30 else seed / 2
            lines.append(f"{batch},{100 * batch},{seed},{mean}" + f",{math.exp(-batch / 9)}" * (len(tags) - 1))
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_all_arms_become_a_figure_a_table_and_numbers(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for implementation in ("VPG", "EPG", "BPG", "CPG", "AAC"):
        write_run(logdir, implementation)
    write_run(logdir / "more", "AAC", "--preset", "aac_tuned", "--batch_size", "8", seeds=(7,))
    write_run(logdir, "UDRL")
    out = logdir / "figures" / "all.png"
    assert figure.main([str(logdir), "--out", str(out)]) == 0
    assert out.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and out.stat().st_size > 20000
    numbers = json.loads(out.with_suffix(".json").read_text())
    assert (numbers["game"], numbers["running_mean_len"]) == ("beresheet", 100)
    assert list(numbers["arms"]) == ["VPG", "EPG", "BPG", "CPG", "AAC", "AAC, tuned"]
    cpg = numbers["arms"]["CPG"]
    assert cpg["seeds"]["26"] == {"best": 26, "final": 13, "episodes": 40 * 32, "env_steps": 4000}
    assert cpg["over_seeds"]["best"]["mean"] == 25.5 and cpg["over_seeds"]["final"]["mean"] == 12.75
    assert numbers["arms"]["AAC, tuned"]["seeds"]["7"]["episodes"] == 40 * 8
    shown = capsys.readouterr().out
    assert "mean return of the last 100 training episodes" in shown and "AAC, tuned" in shown
    assert str(out) in shown and "one seed" in shown and "UDRL" not in shown


@pytest.mark.parametrize("more", [["--x", "env_steps"], ["--out", "one.svg"]])
def test_one_arm_of_one_seed_is_enough(
    logdir: Path, tmp_path: Path, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert figure.main([str(write_run(logdir, "VPG", seeds=(3,))), *more]) == 0
    assert list(json.loads(next(tmp_path.glob("*.json")).read_text())["arms"]) == ["VPG"]


def broken(logdir: Path, what: str) -> None:
    """Something below ``logdir`` that belongs in no figure."""
    folder = write_run(logdir, "UDRL" if what == "family" else "CPG")
    config, metrics = folder / "config.yaml", folder / "metrics.csv"
    if what == "twice":
        shutil.copytree(logdir / "beresheet" / "debug", logdir / "beresheet" / "again")
    elif what == "game":
        write_run(logdir, "VPG", game="cartpole")
    elif what == "length":
        write_run(logdir, "VPG", "--running_mean_len", "10")
    elif what == "no config":
        config.unlink()
    elif what == "other config":
        config.write_text("- CPG\n")
    elif what == "no mean":
        metrics.write_text(metrics.read_text().replace("mean_reward", "mean"))
    elif what == "empty":
        metrics.write_text(metrics.read_text().splitlines()[0] + "\n")
    elif what == "nothing":
        metrics.unlink()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("nothing", "which holds no metrics.csv"),
        ("empty", "no epoch yet"),
        ("family", "holds no run of VPG, EPG, BPG, CPG, AAC"),
        ("twice", "holds seed 25 of CPG twice"),
        ("game", "gamename of these runs is beresheet and cartpole; allowed: one"),
        ("length", "running_mean_len of these runs is 10 and 100; allowed: one"),
        ("no config", "config.yaml, which says what was trained, cannot be read: No such file"),
        ("other config", "config.yaml, which says what was trained, cannot be read: it holds no settings"),
        ("no mean", "is no metrics.csv of CPG: train/mean_reward is missing"),
    ],
)
def test_what_belongs_in_no_figure_is_one_line(
    logdir: Path, tmp_path: Path, what: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken(logdir, what)
    refused([str(logdir), "--out", str(tmp_path / "x.png")], said, capsys)
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("x.jpg", "out is 'x.jpg'; allowed: a folder, or a file ending in .png, .pdf, .svg"),
        ("/dev/null/x.png", "out is '/dev/null/x.png', which cannot be written"),
    ],
)
def test_a_figure_that_cannot_be_written_is_one_line(
    logdir: Path, out: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused([str(write_run(logdir, "CPG")), "--out", out], said, capsys)


def refused(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert figure.main(argv) == 2
    output = capsys.readouterr()
    assert said in output.err and output.err.startswith("error: ") and output.err.count("\n") == 1 and output.out == ""


# -- the script ----------------------------------------------------------------------------------------------------

STAND_IN = """#!{python}
import os, sys, time
if "figure.py" in sys.argv[1]:
    print("figure", sys.argv[2:])
    sys.exit()
given = dict(zip(sys.argv[2::2], sys.argv[3::2]))
name = given["--implementation"] + " " + given["--preset"]
print(" ".join(sys.argv[2:]), "threads", os.environ["OMP_NUM_THREADS"])
if name == os.environ.get("FAIL"):
    sys.exit("error: " + name + " broke")
if os.environ.get("WAIT"):
    open("waiting " + name, "w").close()
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.5)  # a second signal would be seen here
        print("checkpoint written")
        sys.exit(130)
open("finished " + name, "a").write("once ")
os.makedirs(os.path.join(given["--logdir"], "beresheet", given["--exp_name"], given["--implementation"], "seed_5-6"),
            exist_ok=True)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    stand_in = tmp_path / "python"
    stand_in.write_text(STAND_IN.format(python=sys.executable))
    stand_in.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in ("SEEDS", "JOBS", "EPISODES", "LOGDIR")}
    return {**kept, "PYTHON": str(stand_in), "HOME": str(tmp_path), "SEEDS": "5 6"}


def start(environment: dict[str, str], *flags: str, **variables: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["bash", str(FOLDER / "run.sh"), *flags], cwd=environment["HOME"], env=environment | variables, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def call(environment: dict[str, str], *flags: str, **variables: str) -> tuple[int, str, str]:
    process = start(environment, *flags, **variables)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@needs_parallel
def test_every_arm_is_trained_and_then_drawn(environment: dict[str, str], tmp_path: Path) -> None:
    code, out, err = call(environment, "--eval_every", "5", EPISODES="640", LOGDIR="my runs")
    assert (code, err) == (0, "")
    logs = {path.stem: path.read_text() for path in (tmp_path / "my runs" / "policy_gradients").glob("*.log")}
    assert set(logs) == {f"{name}_published" for name in ("VPG", "EPG", "BPG", "CPG", "AAC")} | {"AAC_aac_tuned"}
    assert logs["AAC_aac_tuned"] == (
        "--implementation AAC --preset aac_tuned --exp_name aac_tuned --gamename beresheet --max_episodes 640 "
        "--logdir my runs --resume --seed 5 --num_seeds 2 --eval_every 5 threads 1\n"
    )
    published = [f"my runs/beresheet/published/{name}/seed_5-6" for name in ("AAC", "BPG", "CPG", "EPG", "VPG")]
    drawn = [*published, "my runs/beresheet/aac_tuned/AAC/seed_5-6", "--out", "my runs/policy_gradients/comparison.png"]
    assert out.splitlines()[-1] == f"figure {drawn}"


@needs_parallel
def test_an_arm_that_failed_is_named_and_tried_again(environment: dict[str, str], tmp_path: Path) -> None:
    code, out, err = call(environment, FAIL="BPG published")
    assert code == 1 and "figure" not in out
    assert err.splitlines()[1:] == [
        "  BPG_published: error: BPG published broke [exp_dir/policy_gradients/BPG_published.log]"
    ]
    assert len(list(tmp_path.glob("finished *"))) == 5
    assert call(environment)[0] == 0
    assert (tmp_path / "finished BPG published").read_text() == "once "


@needs_parallel
def test_ctrl_c_lets_every_arm_write_its_checkpoint(environment: dict[str, str], tmp_path: Path) -> None:
    process = start(environment, JOBS="2", WAIT="yes")
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("waiting *"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.count("checkpoint written") == 2 and "figure" not in out
    assert len(list(tmp_path.glob("waiting *"))) == 2, "nothing begins after Ctrl-C"


@needs_parallel
@pytest.mark.parametrize(
    ("flags", "variables", "said"),
    [
        (["--seed=3"], {}, "--seed=3 is not for here; give seeds as SEEDS"),
        (["--max_episodes", "3"], {}, "give it as EPISODES"),
        (["--preset", "skeleton"], {}, "--preset is not for here"),
        ([], {"SEEDS": "1 3"}, "SEEDS is '1 3'; allowed: integers of at least 0, each one above the last"),
        ([], {"SEEDS": "1 x"}, "SEEDS is '1 x'"),
        ([], {"SEEDS": " "}, "SEEDS is ' '"),
        ([], {"EPISODES": "0"}, "EPISODES is '0'; allowed: an integer of at least 1"),
        ([], {"JOBS": "two"}, "JOBS is 'two'; allowed: an integer of at least 1"),
        ([], {"PYTHON": "no-such-python"}, "PYTHON is 'no-such-python'"),
        ([], {"LOGDIR": "python/x"}, "LOGDIR is 'python/x'; no folder can be written there"),
    ],
)
def test_a_call_that_cannot_work_is_one_line(
    environment: dict[str, str], flags: list[str], variables: dict[str, str], said: str
) -> None:
    code, out, err = call(environment, *flags, **variables)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1


def test_help_needs_nothing(environment: dict[str, str]) -> None:
    code, out, err = call(environment, "--help")
    assert code == 0 and "EPISODES" in out and err == ""


@needs_parallel
@pytest.mark.slow
def test_a_tiny_comparison_from_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    tiny = ["--batch_size", "2", "--eval_every", "1", "--eval_episodes", "1"]
    process = start(environment, *tiny, PYTHON=sys.executable, SEEDS="5", EPISODES="3", JOBS="1")
    out, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (0, "")
    numbers = json.loads((tmp_path / "exp_dir" / "policy_gradients" / "comparison.json").read_text())
    assert [arm["seeds"]["5"]["episodes"] for arm in numbers["arms"].values()] == [4] * 6
