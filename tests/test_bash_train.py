"""bash_train.sh with a stand-in for the interpreter, so that only the script and GNU parallel are under test."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import ROOT

SCRIPT = ROOT / "bash_train.sh"

STAND_IN = """#!{python}
import os, sys, time
if sys.argv[1] == "-c":
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
seed = sys.argv[-1]
print("threads", os.environ["OMP_NUM_THREADS"])
print("argv", sys.argv[1:])
if seed in os.environ.get("FAIL", "").split():
    sys.exit("seed " + seed + " broke")
if os.environ.get("WAIT"):
    with open("starting_" + seed, "w") as file:
        file.write(str(os.getpid()))
    os.rename("starting_" + seed, "waiting_" + seed)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.5)
        print("checkpoint written")
        sys.exit(130)
open("finished_" + seed, "a").write("once ")
if os.environ.get("RUNS"):
    os.makedirs(os.environ["RUNS"], exist_ok=True)
    open(os.path.join(os.environ["RUNS"], "metrics.csv"), "w").close()
"""


def gnu_parallel() -> bool:
    if not shutil.which("parallel"):
        return False
    version = subprocess.run(["parallel", "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return version.stdout.startswith("GNU parallel")


needs_parallel = pytest.mark.skipif(not gnu_parallel(), reason="GNU parallel is missing (apt-get install parallel)")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    stand_in = tmp_path / "python"
    stand_in.write_text(STAND_IN.format(python=sys.executable))
    stand_in.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in ("SEEDS", "JOBS")}
    return {**kept, "PYTHON": str(stand_in), "HOME": str(tmp_path)}


def call(environment: dict[str, str], *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *flags],
        cwd=environment["HOME"],
        env=environment | variables,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def log_of(folder: Path, seed: int) -> str:
    (path,) = folder.glob(f"**/bash_train/*/seed_{seed}.log")
    return path.read_text()


@needs_parallel
def test_five_seeds_by_default_and_every_flag_as_it_was(environment: dict[str, str], tmp_path: Path) -> None:
    odd = "it's {} $HOME; a*b"
    done = call(environment, "--exp_name", odd, "--no_checkpoint", "--gamename=cartpole")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "a progress bar is for terminals"
    for seed in range(25, 30):
        argv = [str(ROOT / "trainer.py"), "--exp_name", odd, "--no_checkpoint", "--gamename=cartpole"]
        assert log_of(tmp_path, seed) == f"threads 1\nargv {[*argv, '--seed', str(seed)]}\n"
    assert list(tmp_path.glob("exp_dir/bash_train/*/joblog.tsv"))
    assert "--plot" not in done.stdout, "there is no run to plot"


@needs_parallel
def test_plot_command_names_the_folder_of_the_runs(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("implementation: RCP-A\n")
    flags = ["--logdir", "out here", "--gamename=CartPole-v1", "--exp_name", "two words", "--config", "run.yaml"]
    done = call(environment, *flags, SEEDS="1", RUNS="out here/cartpole/two_words/RCP-A/seed_1/version_0")
    assert done.stdout.splitlines()[-1].endswith(r"--plot out\ here/cartpole/two_words/RCP-A")


@needs_parallel
@pytest.mark.parametrize(
    ("flags", "variables", "line"),
    [
        (["--lrr", "1"], {}, "error: --lrr is unknown; did you mean '--lr'?\n"),
        (["--config", "no.yaml"], {}, "error: config is 'no.yaml': No such file or directory\n"),
        ([], {"SEEDS": "1 99999999999999999999"}, "error: seed is 99999999999999999999; allowed: integer, at least 0"),
    ],
)
def test_a_flag_that_trainer_refuses_starts_no_seed(
    environment: dict[str, str], tmp_path: Path, flags: list[str], variables: dict[str, str], line: str
) -> None:
    done = call(environment, *flags, **variables)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith(line)
    assert [path.name for path in tmp_path.iterdir() if path.name != "python"] == []


@needs_parallel
def test_a_failed_seed_is_named_and_the_others_finish(environment: dict[str, str], tmp_path: Path) -> None:
    done = call(environment, "--epochs", "3", SEEDS="1 2 3", FAIL="2", JOBS="2")
    assert done.returncode == 1
    assert "seed 2: seed 2 broke [exp_dir/bash_train/" in done.stderr and "seed 1:" not in done.stderr
    assert (tmp_path / "finished_1").exists() and (tmp_path / "finished_3").exists()


@needs_parallel
def test_resume_skips_what_finished_and_goes_on_with_the_rest(environment: dict[str, str], tmp_path: Path) -> None:
    call(environment, "--epochs", "3", SEEDS="1 2 3", FAIL="2")
    done = call(environment, "--epochs", "3", "--resume", SEEDS="1 2 3")
    assert done.returncode == 0, done.stderr
    assert "Finished earlier and skipped: 1 3" in done.stdout
    assert [(tmp_path / f"finished_{seed}").read_text() for seed in (1, 2, 3)] == ["once "] * 3
    assert "'--resume', '--seed', '2'" in log_of(tmp_path, 2)


@needs_parallel
@pytest.mark.parametrize(("flags", "seeds"), [(["--epochs", "4"], "1 2"), (["--epochs", "3"], "2 1")])
def test_resume_skips_nothing_under_another_call(
    environment: dict[str, str], tmp_path: Path, flags: list[str], seeds: str
) -> None:
    call(environment, "--epochs", "3", SEEDS="1 2")
    assert call(environment, *flags, "--resume", SEEDS=seeds).returncode == 0
    assert (tmp_path / "finished_1").read_text() == (tmp_path / "finished_2").read_text() == "once once "


@needs_parallel
def test_resume_starts_seeds_that_never_ran(environment: dict[str, str], tmp_path: Path) -> None:
    assert call(environment, "--resume", SEEDS="7").returncode == 0
    assert (tmp_path / "finished_7").exists()


@needs_parallel
def test_without_resume_everything_runs_again(environment: dict[str, str], tmp_path: Path) -> None:
    for _ in range(2):
        assert call(environment, SEEDS="1").returncode == 0
    assert (tmp_path / "finished_1").read_text() == "once once "


def start_and_wait(environment: dict[str, str]) -> tuple[subprocess.Popen[str], list[int]]:
    """The script with two seeds that do not end by themselves, and the seeds' process ids."""
    folder = Path(environment["HOME"])
    process = subprocess.Popen(
        ["bash", str(SCRIPT)],
        cwd=folder,
        env=environment | {"SEEDS": "1 2", "JOBS": "2", "WAIT": "yes"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 90
    while len(waiting := list(folder.glob("waiting_*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(waiting) == 2
    return process, [int(path.read_text()) for path in waiting]


@needs_parallel
def test_ctrl_c_lets_every_seed_write_its_checkpoint(environment: dict[str, str], tmp_path: Path) -> None:
    process, _ = start_and_wait(environment)
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=90)[1]
    assert process.returncode == 130
    assert errors.count("checkpoint written") == 2
    assert call(environment, "--resume", SEEDS="1 2").returncode == 0
    assert (tmp_path / "finished_1").exists() and (tmp_path / "finished_2").exists()


@needs_parallel
def test_after_sigkill_no_run_gets_a_second_writer(environment: dict[str, str], tmp_path: Path) -> None:
    """Killed outright, GNU parallel leaves its jobs behind; they are named instead of joined by others."""
    process, seeds = start_and_wait(environment)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=90)
    try:
        done = call(environment, "--resume", SEEDS="1 2")
        assert done.returncode == 2 and "seed 1 is still training, as process" in done.stderr
        assert done.stderr.count("\n") == 1
    finally:
        for pid in seeds:
            os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    assert call(environment, "--resume", SEEDS="1 2").returncode == 0
    assert (tmp_path / "finished_1").exists() and (tmp_path / "finished_2").exists()


def test_missing_parallel_is_one_line(environment: dict[str, str], tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "tr", "sed", "sort", "uniq", "grep"):
        (tools / name).symlink_to(str(shutil.which(name)))
    done = call(environment, PATH=str(tools))
    assert done.returncode == 2
    assert "apt-get install parallel" in done.stderr and "brew" in done.stderr and done.stderr.count("\n") == 1


@needs_parallel
@pytest.mark.parametrize(
    ("flags", "variables", "said"),
    [
        (["--seed", "3"], {}, "SEEDS"),
        (["--seed=3"], {}, "SEEDS"),
        ([], {"SEEDS": "25 x"}, "SEEDS is '25 x'"),
        ([], {"SEEDS": "-1"}, "SEEDS is '-1'"),
        ([], {"SEEDS": " "}, "SEEDS is ' '"),
        ([], {"SEEDS": "25 26 25"}, "each seed once"),
        ([], {"JOBS": "0"}, "JOBS is '0'"),
        ([], {"PYTHON": "no-such-python"}, "PYTHON is 'no-such-python'"),
        (["--logdir", "python/x"], {}, "logdir is 'python/x'"),
    ],
)
def test_bad_calls_are_one_line(
    environment: dict[str, str], flags: list[str], variables: dict[str, str], said: str
) -> None:
    done = call(environment, *flags, **variables)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_help_needs_nothing(environment: dict[str, str]) -> None:
    done = call(environment, "--help")
    assert done.returncode == 0 and "SEEDS" in done.stdout and done.stderr == ""
