"""Every command in the documentation runs, scaled down, in the order in which a reader would type it."""

import contextlib
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import trainer
from conftest import ROOT
from control.cli import parse as config
from helpers import on_policy
from models.agents.model_generalisation.config import PRESETS
from models.registry import family

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
PAGES += sorted(ROOT.glob("experiments/**/*.md")) + sorted(ROOT.glob("understudy/**/*.md"))
TINY = (
    "--epochs 1 --num_grad_steps 1 --batch_size 8 --eval_every 1 --eval_episodes 1 --num_rand_action_rollouts 2 "
    "--training_rollouts_per_worker 2"
)
TINY_POLICY = "--max_episodes 2 --batch_size 2 --eval_every 1 --eval_episodes 1"
TINY_STEPS = "--epochs 1 --steps_per_epoch 20 --batch_size 8 --eval_every 1 --eval_episodes 1"
TINY_MODELS = (
    "--num_steps 20 --eval_frequency 10 --training_start_time 10 --batch_size 4 --num_hidden_units 8 "
    "--eval_steps 5 --eval_batch_size 2 --buffer_size 50"
)
TINY_SEARCH = (
    "--population 4 --generations 1 --inner_steps 60 --hidden_size 8 --batch_size 8 --test_episodes 1 --test_limit 20 "
    "--center_agents 1 --retest_agents 1 --report_agents 1 --initial_draws 1 --deploy_steps 40 --max_steps 20"
)
SEEDS_SIDE_BY_SIDE = "./bash_train.sh --implementation UDRL --exp_name paper"  # the one that the quick suite runs
# These install or start something on the machine, so no test runs them.
SETUP = ("source ", "sudo apt-get install ", "pip install ", "uv ", "git clone ", "cd ", "ray start ", ".ci/run")
SLOW = (
    "takecover", "--gamename halfcheetah", "--use_tune", "/tune/", "benchmarks/", "transfer.py", "exam.py",
    "experiments/policy_gradients/", "experiments/model_generalisation/",
)  # fmt: skip


# One process runs all pages one after another: a command that several pages show then runs once.
ONE_PROCESS = pytest.mark.xdist_group("documented commands")
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """The lines of a page's bash blocks, continued lines joined, comments gone."""
    lines = "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    return [line for line in (re.sub(r"\s+#\s.*", "", line).strip() for line in lines) if line and line[0] != "#"]


def scaled(command: str) -> str:
    """The same command made small: the last of a repeated flag counts."""
    if command.startswith("make ") or " make " in command:
        return command.replace("make ", "make -n ", 1)
    if "tensorboard" in command:
        return command.replace("tensorboard", "python -m tensorboard.main --inspect", 1)
    if "--eval_agent cartpole-" in command:
        return f"{command} --num_agents 1 --no_real_baseline"
    if "exam.py" in command:
        return f"{command} --agents 1 --exams 'DDQN, drawn'"
    if command.endswith("policy_gradients/run.sh"):
        return f"SEEDS=25 EPISODES=2 {command} {TINY_POLICY.replace('--max_episodes 2', '')}"
    if command.endswith("model_generalisation/run.sh") or "model_generalisation/run.sh --resume" in command:
        few = "AGENTS=ER WORLDS=procmaze REGIMES=low NUM_SEEDS=2 NUM_STEPS=200"
        return f"{few} {command} {TINY_MODELS.replace('--num_steps 20 ', '')}"
    if "parity.py" in command:
        few = (
            "--fixture untrained --num_hidden_units 8 --num_seeds 2 --eval_steps 5 --eval_batch_size 2 --buffer_size 50"
        )
        return f"{command} {few}"  # of the others no step that is compared comes soon
    if "transfer.py" in command:
        return f"{command} --steps 400 --seeds 1 --episodes 1"
    if "trainer.py" in command and "--eval_agent" in command:
        return f"{command} --num_eval_episodes 1"
    if "--plot" in command or "--help" in command or "ray_address" in command:
        return command if "ray_address" not in command else "true"
    if "--use_tune" in command:
        return f"{command} {tiny(command)} --num_samples 1"
    if "trainer.py" in command:
        return f"{command} {tiny(command)} --no_record"
    if "bash_train.sh" in command:
        command = re.sub(r'SEEDS="(\d+)[^"]*"', r"SEEDS=\1", command)  # one seed shows that it runs
        names = command.split("./bash_train.sh")[0]
        return command if "--help" in command else f"{'' if 'SEEDS' in names else 'SEEDS=25 '}{command} {tiny(command)}"
    if "benchmarks/" in command:
        return f"{command} --quick"
    return command


def tiny(command: str) -> str:
    """Flags that make the run of a command small."""
    name = (re.findall(r"--implementation (\S+)", command) or ["UDRL"])[-1]
    if family(name).learns_from == "evolution":
        return TINY_SEARCH.replace("--inner_steps 60", "--inner_steps 300") if "paper" in command else TINY_SEARCH
    if name in PRESETS["procmaze_high"] or "model_generalisation" in command:
        return TINY_MODELS
    if family(name).learns_from == "steps":
        return TINY_STEPS
    return TINY_POLICY if on_policy(name) else TINY


def slow(command: str) -> bool:
    return any(word in command for word in SLOW) or ("bash_train.sh" in command and command != SEEDS_SIDE_BY_SIDE)


def in_its_place(command: str) -> str:
    """The command that the quick suite runs for a slow one, to try its flags: one seed of several, or nothing."""
    return f"python trainer.py {command.split('./bash_train.sh')[1]}" if "bash_train.sh" in command else ""


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like a checkout but whose exp_dir is its own."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.name not in (".git", ".venv", "exp_dir", ".lock"):
            (folder / path.name).symlink_to(path)
    return folder


@functools.cache
def run(command: str, folder: Path) -> None:
    words = shlex.split(command)
    if words[:2] == ["python", "trainer.py"] and "--use_tune" not in words:
        # in this process, where torch is imported already
        with contextlib.chdir(folder):
            assert trainer.main(words[2:]) == 0, command
        return
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": tools, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def check_page(page: Path, folder: Path, slow_ones: bool) -> None:
    for command in commands(page):
        if command.startswith(SETUP):
            continue
        if slow(command) and not slow_ones:
            if "--use_tune" in command:
                config.parse(shlex.split(command)[2:])
            command = in_its_place(command)
        elif slow(command) != slow_ones or ("bash_train.sh" in command and shutil.which("parallel") is None):
            continue
        if command:
            run(scaled(command), folder)


@ONE_PROCESS
@every_page
def test_every_command_runs(page: Path, workplace: Path) -> None:
    check_page(page, workplace, slow_ones=False)


@pytest.mark.slow
@ONE_PROCESS
@every_page
def test_every_slow_command_runs(page: Path, workplace: Path) -> None:
    check_page(page, workplace, slow_ones=True)


@ONE_PROCESS
@every_page
def test_every_python_example_runs(page: Path, workplace: Path) -> None:
    """The blocks of a page share their names; those that begin with the name of a file are for test_contributing.py."""
    names: dict[str, object] = {"__name__": "__example__"}
    with contextlib.chdir(workplace):
        for block in blocks(page, "python"):
            missing = "stable_baselines3" in block and importlib.util.find_spec("stable_baselines3") is None
            if not missing and not re.match(r"# \S+\.py\n", block):
                exec(compile(block, str(page), "exec"), names)


def test_the_readme_has_commands() -> None:
    assert SEEDS_SIDE_BY_SIDE in commands(ROOT / "README.md")
    assert sum("trainer.py" in command for command in commands(ROOT / "README.md")) >= 8


def test_extras_named_in_the_documentation_exist() -> None:
    known = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for page in PAGES:
        for names in re.findall(r"pip install .*-e '?\.\[([\w,]+)\]", page.read_text()):
            assert set(names.split(",")) <= known, f"{page.name}: {names}"


@every_page
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[\w-]+)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
