"""Scripts that train several runs at once, with a fake interpreter that trains nothing.

Jobs start with xargs, and again with GNU parallel if it is installed."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from conftest import ROOT
from fake_runs import STARTERS, Script

SEEDS = "bash_train.sh"
GRADIENTS = "experiments/policy_gradients/run.sh"
CELLS = "experiments/model_generalisation/run.sh"
# Code that the fake interpreter runs after a job: folders and output of a run of trainer.py.
AFTER = {
    SEEDS: "",
    GRADIENTS: """
place = given["--logdir"], "beresheet", given["--exp_name"], given["--implementation"], "seed_5-6"
os.makedirs(os.path.join(*place), exist_ok=True)
""",
    CELLS: """
world = given["--preset"].split("_")[0] + "_grid_size=3"
place = given["--logdir"], world, given["--exp_name"], given["--implementation"], "version_0"
print("  run        ", os.path.join(*place))
""",
}
FEW = {
    SEEDS: {},
    GRADIENTS: {"SEEDS": "5 6"},
    CELLS: {"AGENTS": "ER SimpleModel", "WORLDS": "panflute", "NUM_SEEDS": "2", "NUM_STEPS": "2005"},
}


def script(path: str, folder: Path, starter: str) -> Script:
    return Script(path, folder, starter, AFTER[path], **FEW[path])


@pytest.fixture(params=[STARTERS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in STARTERS[1:])])
def starter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def seeds(tmp_path: Path, starter: str) -> Script:
    return script(SEEDS, tmp_path, starter)


def called(*words: str) -> str:
    return f"argv {[str(ROOT / 'trainer.py'), *words]} threads 1\n"


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "flags", "variables", "message"), [
    (SEEDS, "--lrr 1", {}, "error: --lrr is unknown; did you mean '--lr'?\n"),
    (SEEDS, "--seed=3", {}, "--seed=3 is not for here; give seeds as SEEDS"),
    (SEEDS, "", {"SEEDS": "25 x"}, "SEEDS is '25 x'"),
    (SEEDS, "", {"JOBS": "two"}, "JOBS is 'two'; allowed: an integer of at least 1"),
    (GRADIENTS, "--max_episodes 3", {}, "give it as EPISODES"),
    (GRADIENTS, "", {"SEEDS": "1 3"}, "SEEDS is '1 3'; allowed: integers of at least 0, each one above the last"),
    (CELLS, "--total_steps 3", {}, "--total_steps is not for here; give it as NUM_STEPS="),
    (CELLS, "", {"AGENTS": "ER SimplModel"}, "AGENTS is 'ER SimplModel'; allowed: any of ER PerfectModel Sim"),
])  # fmt: skip
def test_wrong_call_is_refused(
    path: str, flags: str, variables: dict, message: str, tmp_path: Path, starter: str
) -> None:
    script(path, tmp_path, starter).refuses(message, *flags.split(), **variables)


@pytest.mark.parametrize(("path", "word"), [(SEEDS, "SEEDS"), (GRADIENTS, "EPISODES"), (CELLS, "NUM_SEEDS")])
def test_help_is_printed_and_missing_starters_are_an_error(path: str, word: str, tmp_path: Path) -> None:
    launcher, folder = script(path, tmp_path, "xargs"), tmp_path / "bin"
    code, out, err = launcher("--help")
    assert code == 0 and word in out and err == ""
    for tool in ("bash", "tr", "sed", "sort", "uniq", "grep"):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    launcher.refuses("GNU parallel and xargs are missing; apt-get install parallel", PATH=str(folder))
    assert "brew" in launcher(PATH=str(folder))[2]


@pytest.mark.parametrize(("path", "variables"), [
    (SEEDS, {"SEEDS": "1 2 3"}),
    pytest.param(GRADIENTS, {"SEEDS": "1 2"}, marks=pytest.mark.slow), pytest.param(CELLS, {}, marks=pytest.mark.slow),
])  # fmt: skip
def test_ctrl_c_lets_jobs_write_checkpoints(path: str, variables: dict, tmp_path: Path, starter: str) -> None:
    launcher = script(path, tmp_path, starter)
    process, _ = launcher.waiting(2, JOBS="2", **variables)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 130, (out, err)
    assert err.count("checkpoint written") == 2 and "figure" not in out
    assert len(list(tmp_path.glob("waiting *"))) == 2, "no job starts after Ctrl-C"
    code, out, err = launcher(*["--resume"] * (path != GRADIENTS), **variables)
    assert (code, err) == (0, "") and set(launcher.finished().values()) == {1}


# -- bash_train.sh -----------------------------------------------------------------------------------------------------


def log_of(folder: Path, seed: int) -> str:
    (path,) = folder.glob(f"**/bash_train/*/seed_{seed}.log")
    return path.read_text()


def test_every_default_seed_trains_with_the_quoted_flags(seeds: Script, tmp_path: Path) -> None:
    odd = "it's {} $HOME; a*b"
    words = ["--exp_name", odd, "--no_checkpoint", "--gamename=cartpole"]
    code, out, err = seeds(*words)
    assert (code, err) == (0, "")
    for seed in range(25, 30):
        assert out.index(f"seed {seed} begins\n") < out.index(f"seed {seed} finished after ")
        assert log_of(tmp_path, seed) == called(*words, "--seed", str(seed))
    assert list(tmp_path.glob("exp_dir/bash_train/*/joblog.tsv"))
    assert "--plot" not in out


def test_failed_seed_is_named_and_resumed(seeds: Script, tmp_path: Path) -> None:
    code, _, err = seeds("--epochs", "3", SEEDS="1 2 3", FAIL="2", JOBS="2")
    assert code == 1 and seeds.finished() == {"1": 1, "3": 1}
    assert "seed 2: error: 2 broke [exp_dir/bash_train/" in err and "seed 1:" not in err
    code, out, err = seeds("--epochs", "3", "--resume", SEEDS="1 2 3")
    assert code == 0, err
    assert "Finished earlier and skipped: 1 3" in out and seeds.finished() == {"1": 1, "2": 1, "3": 1}
    assert "'--resume', '--seed', '2'" in log_of(tmp_path, 2)
    # Nothing is skipped in another call, nor without --resume.
    for flags, seed_list in ("--epochs 4 --resume", "1"), ("--epochs 3 --resume", "1 2"), ("--epochs 3", "1"):
        assert seeds(*flags.split(), SEEDS=seed_list)[0] == 0
    assert seeds.finished() == {"1": 4, "2": 2, "3": 1}


# -- policy gradients --------------------------------------------------------------------------------------------------


def test_policy_gradient_script_trains_and_draws_every_arm(tmp_path: Path, starter: str) -> None:
    code, out, err = script(GRADIENTS, tmp_path, starter)("--eval_every", "5", EPISODES="640", LOGDIR="my runs")
    assert (code, err) == (0, "")
    logs = {path.stem: path.read_text() for path in (tmp_path / "my runs" / "policy_gradients").glob("*.log")}
    assert set(logs) == {f"{name}_published" for name in ("VPG", "EPG", "BPG", "CPG", "AAC")} | {"AAC_aac_tuned"}
    assert logs["AAC_aac_tuned"] == called(
        *"--implementation AAC --preset aac_tuned --exp_name aac_tuned --gamename beresheet --max_episodes 640".split(),
        "--logdir", "my runs", *"--resume --seed 5 --num_seeds 2 --eval_every 5".split(),
    )  # fmt: skip
    published = [f"my runs/beresheet/published/{name}/seed_5-6" for name in ("AAC", "BPG", "CPG", "EPG", "VPG")]
    out_flags = ["--out", "my runs/policy_gradients/comparison.png"]
    assert out.splitlines()[-1] == f"figure {[*published, 'my runs/beresheet/aac_tuned/AAC/seed_5-6', *out_flags]}"


# -- model generalisation ----------------------------------------------------------------------------------------------


def test_model_generalisation_script_trains_and_draws_every_cell(tmp_path: Path, starter: str) -> None:
    code, out, err = script(CELLS, tmp_path, starter)(
        "--buffer_size", "50", LOGDIR="my runs", SEED="007", EXP_NAME="short"
    )
    assert (code, err) == (0, "")
    logs = {path.stem: path.read_text() for path in (tmp_path / "my runs" / "short").glob("*.log")}
    assert set(logs) == {f"{agent}_panflute_{data}" for agent in ("ER", "SimpleModel") for data in ("high", "low")}
    assert logs["SimpleModel_panflute_low"].startswith(called(
        *"--implementation SimpleModel --preset panflute_low --exp_name short_low --total_steps 201".split(),
        "--logdir", "my runs", *"--seed 7 --num_seeds 2 --buffer_size 50".split(),
    ))  # fmt: skip
    assert "'--exp_name', 'short_high', '--total_steps', '2005'" in logs["ER_panflute_high"]
    figure_line = out.splitlines()[-1]
    assert "'my runs/panflute_grid_size=3/short_low/SimpleModel/version_0'" in figure_line
    assert figure_line.endswith("'--out', 'my runs/short/comparison.png']")
