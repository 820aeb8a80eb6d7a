"""experiments/model_generalisation/run.sh with a stand-in for the interpreter: only the script and GNU parallel are
under test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from test_bash_train import needs_parallel
from test_policy_gradient_figures import STAND_IN

SCRIPT = ROOT / "experiments" / "model_generalisation" / "run.sh"
# As trainer.py's own summary says it.
SUMMARY = """
world = given["--preset"].split("_")[0] + "_grid_size=3"
place = given["--logdir"], world, given["--exp_name"], given["--implementation"], "version_0"
print("  run        ", os.path.join(*place))
"""
OURS = ("AGENTS", "WORLDS", "REGIMES", "NUM_SEEDS", "SEED", "NUM_STEPS", "EXP_NAME", "LOGDIR", "JOBS", "PYTHON")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    stand_in = tmp_path / "python"
    stand_in.write_text(STAND_IN.format(python=sys.executable) + SUMMARY)
    stand_in.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in OURS}
    few = {"AGENTS": "ER SimpleModel", "WORLDS": "panflute", "NUM_SEEDS": "2", "NUM_STEPS": "2005"}
    return {**kept, **few, "PYTHON": str(stand_in), "HOME": str(tmp_path)}


def call(environment: dict[str, str], *flags: str, **variables: str) -> tuple[int, str, str]:
    done = subprocess.run(
        ["bash", str(SCRIPT), *flags], cwd=environment["HOME"], env=environment | variables, text=True,
        capture_output=True, stdin=subprocess.DEVNULL, timeout=90,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@needs_parallel
def test_every_cell_is_trained_and_then_drawn(environment: dict[str, str], tmp_path: Path) -> None:
    code, out, err = call(environment, "--buffer_size", "50", LOGDIR="my runs", SEED="007", EXP_NAME="short")
    assert (code, err) == (0, "")
    logs = {path.stem: path.read_text() for path in (tmp_path / "my runs" / "short").glob("*.log")}
    assert set(logs) == {f"{agent}_panflute_{data}" for agent in ("ER", "SimpleModel") for data in ("high", "low")}
    assert logs["SimpleModel_panflute_low"].startswith(
        "--implementation SimpleModel --preset panflute_low --exp_name short_low --num_steps 201 --logdir my runs "
        "--seed 7 --num_seeds 2 --buffer_size 50 threads 1\n"
    )
    assert "--exp_name short_high --num_steps 2005 " in logs["ER_panflute_high"]
    drawn = out.splitlines()[-1]
    assert drawn.startswith("figure [") and "'my runs/panflute_grid_size=3/short_low/SimpleModel/version_0'" in drawn
    assert drawn.endswith("'--out', 'my runs/short/comparison.png']")


@needs_parallel
def test_resume_passes_over_what_finished(environment: dict[str, str], tmp_path: Path) -> None:
    code, out, err = call(environment, FAIL="ER panflute_low")
    assert code == 1 and "figure" not in out
    log = "exp_dir/model_generalisation/ER_panflute_low.log"
    assert err.splitlines()[1:] == [f"  ER_panflute_low: error: ER panflute_low broke [{log}]"]
    assert call(environment, "--resume")[0] == 0
    assert (tmp_path / log).read_text().splitlines()[-2].endswith("--num_seeds 2 --resume threads 1")
    finished = sorted(path.name for path in tmp_path.glob("finished *"))
    assert len(finished) == 4 and all((tmp_path / name).read_text() == "once " for name in finished)
    assert call(environment, "--resume", NUM_STEPS="3000")[0] == 0
    assert (tmp_path / "finished ER panflute_low").read_text() == "once once ", "longer runs go on"
    assert call(environment, NUM_STEPS="3000")[0] == 0
    assert (tmp_path / "finished ER panflute_low").read_text() == "once once once ", "without it all runs anew"


@needs_parallel
@pytest.mark.parametrize(
    ("flags", "variables", "said"),
    [
        (["--seed=3"], {}, "--seed=3 is not for here; give it as SEED="),
        (["--num_steps", "3"], {}, "--num_steps is not for here; give it as NUM_STEPS="),
        (["--implementation", "ER"], {}, "give it as AGENTS="),
        (["--gamename", "procmaze"], {}, "give it as WORLDS="),
        (["--preset", "procmaze_low"], {}, "give it as REGIMES=low"),
        ([], {"AGENTS": "ER SimplModel"}, "AGENTS is 'ER SimplModel'; allowed: any of ER PerfectModel SimpleModel"),
        ([], {"AGENTS": "ER ER"}, "AGENTS is 'ER ER'; allowed: any of"),
        ([], {"WORLDS": " "}, "WORLDS is ' '; allowed: any of procmaze buttongrid panflute, each once"),
        ([], {"REGIMES": "middle"}, "REGIMES is 'middle'; allowed: any of high low, each once"),
        ([], {"NUM_SEEDS": "0"}, "NUM_SEEDS is '0'; allowed: an integer of at least 1"),
        ([], {"SEED": "-1"}, "SEED is '-1'; allowed: an integer of at least 0"),
        ([], {"NUM_STEPS": "1e6"}, "NUM_STEPS is '1e6'; allowed: an integer of at least 1"),
        ([], {"EXP_NAME": "../x"}, "EXP_NAME is '../x'; allowed: letters, digits"),
        ([], {"JOBS": "two"}, "JOBS is 'two'; allowed: an integer of at least 1"),
        ([], {"PYTHON": "no-such-python"}, "PYTHON is 'no-such-python'"),
        ([], {"LOGDIR": "python/x"}, "LOGDIR is 'python/x'; no folder can be written there"),
    ],
)
def test_a_call_that_cannot_work_is_one_line(
    environment: dict[str, str], tmp_path: Path, flags: list[str], variables: dict[str, str], said: str
) -> None:
    code, out, err = call(environment, *flags, **variables)
    assert (code, out) == (2, "") and said in err and err.startswith("run.sh: ") and err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["python"]


def test_missing_parallel_is_one_line(environment: dict[str, str], tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "grep"):
        (tools / name).symlink_to(f"/usr/bin/{name}" if Path(f"/usr/bin/{name}").exists() else f"/bin/{name}")
    code, _, err = call(environment, PATH=str(tools))
    assert code == 2 and "apt-get install parallel" in err and err.count("\n") == 1


def test_help_needs_nothing(environment: dict[str, str]) -> None:
    code, out, err = call(environment, "--help")
    assert code == 0 and "NUM_SEEDS" in out and err == ""
