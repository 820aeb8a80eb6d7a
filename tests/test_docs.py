"""Every command in the documentation runs, scaled down, in the order of the pages."""

import contextlib
import doctest
import functools
import importlib.util
import os
import pkgutil
import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

import trainer
from conftest import ROOT
from control.cli.parse import parse
from envs.synthetic import starts_of
from helpers import SEARCHED, completed, on_policy
from models.agents.model_generalisation.config import PRESETS
from models.proxies.search import SearchConfig
from models.registry import canonical_names, family
from test_import_proxy import networks, saved

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md", *sorted(ROOT.glob("docs/**/*.md"))]
PAGES += sorted(ROOT.glob("experiments/**/*.md")) + sorted(ROOT.glob("understudy/**/*.md"))
# test_how_to.py runs the commands of these pages, which add something to the project.
HOW_TO = [page for page in sorted(ROOT.glob("docs/how_to/*.md")) if page.name != "your_task.md"]
TINY = "--eval_every 1 --eval_episodes 1 "
EPISODES = (
    TINY + "--batch_size 8 --epochs 1 --num_grad_steps 1 --num_rand_action_rollouts 2 --training_rollouts_per_worker 2"
)
POLICY = TINY + "--batch_episodes 2 --max_episodes 2"
STEPS = TINY + "--batch_size 8 --epochs 1 --steps_per_epoch 20"
MODELS = (
    "--total_steps 20 --steps_per_epoch 10 --training_start_time 10 --batch_size 4 --hidden_sizes 8,8,8 "
    "--eval_steps 5 --eval_episodes 2 --buffer_size 50 --num_seeds 2"
)
SEARCH = (
    "--population 4 --generations 1 --inner_steps 60 --hidden_sizes 8 --batch_size 8 --test_episodes 1 --test_limit 20 "
    "--center_agents 1 --retest_agents 1 --report_agents 1 --initial_draws 1 --deploy_steps 40"
)
REWARDS = (
    "--population 4 --generations 1 --inner_steps 60 --test_episodes 1 --test_every 20 --average_from 0 "
    "--test_limit 20 --center_agents 1 --retest_agents 1 --report_agents 1 --deploy_steps 40"
)
SMALLEST_SEARCH = (
    "generations=1, population=4, inner_steps=200, initial_draws=1, center_agents=1, retest_agents=1, report_agents=1, "
    "deploy_steps=200, test_episodes=1,"
)
FILM = " --record_episodes 1 --time_limit 20"
# Installation and start of services; no test runs them.
SETUP = (
    "source ",
    "python3 -m venv ",
    "sudo apt-get install ",
    "pip install ",
    "uv ",
    "git clone ",
    "cd ",
    "ray start ",
    ".ci/run",
)
SLOW = (
    "takecover", "--gamename halfcheetah", "--gamename swimmer", "--gamename hopper", "--num_workers 2",
    "supervised.py", "three_levels.py", "bash_train.sh", "--use_tune", "/tune/", "benchmarks/", "transfer.py",
    "exam.py", "clones.sh", "physics.py", "tuning.py", "compare.py", "experiments/policy_gradients/run.sh",
    "experiments/policy_gradients/figure.py",
    *(f"experiments/model_generalisation/{name}" for name in ("run.sh", "figure.py", "parity.py", "small.yaml")),
    "beside.py", "arms.py measure", "learning_curves.py measure", "robustness.py measure", "step_sizes.py measure",
)  # fmt: skip


# One process runs all pages, so that a command of several pages runs once. test_compiled.py has the same process, so
# that no machine code is compiled twice.
ONE_PROCESS = pytest.mark.xdist_group("compiled")
RUN = [page for page in PAGES if page not in HOW_TO]
every_page_with_commands = pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
# The quick suite only parses the commands of these pages: reference pages, with commands of other pages, and long ones.
SLOW_PAGES = (
    "docs/command_conditioned.md", "docs/command_line.md", "docs/how_to/your_task.md", "docs/model_generalisation.md",
    "docs/originals.md", "docs/paper.md", "docs/policy_gradients.md", "docs/results/", "docs/synthetic_environments",
    "docs/what_is_it_worth.md", "experiments/", "understudy/",
)  # fmt: skip


long_pages_are_slow = pytest.mark.parametrize("page", [
    pytest.param(page, marks=[pytest.mark.slow] * is_slow, id=name)
    for page in RUN for name in (page.relative_to(ROOT).as_posix(),)
    for is_slow in (name.startswith(SLOW_PAGES) or name.endswith("_results.md"),)
])  # fmt: skip


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """Lines of bash blocks and commands in the last column of tables, without comments."""
    lines = "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    lines += re.findall(r"^\|.*\| `((?:python|tensorboard|experiments/|\./)[^`]+)` \|$", page.read_text(), re.MULTILINE)
    return [line for line in (re.sub(r"\s+#\s.*", "", line).strip() for line in lines) if line and line[0] != "#"]


# Flags that make a command with these words short. The first words found count.
LIMITS = (
    ("rules.py", "--episodes 1"), ("plain_q_learning.py", "--agents 1 --steps 20"),
    ("baseline.py", "--batches 2 --episodes 1 --critic_episodes 5"),
    ("arms.py measure", f"--searches 1 --agents 1 --real_agents 1 --real_steps 50 --kinds DDQN {SEARCH}"),
    ("learning_curves.py measure", f"--seeds 1 {SEARCH.replace('--inner_steps 60', '--inner_steps 300')}"),
    ("planted_bugs.py", "--agents DQN --bugs '' 'losses of shape [64, 64]' --seeds 1 --updates 20 --episodes 1"),
    ("parity.py", "--fixture untrained --hidden_sizes 8,8,8 --num_seeds 2 --eval_steps 5 --eval_episodes 2 "
                  "--buffer_size 50"),
    ("compare.py", "--agents 2 --steps 100 --every 50 --late 50"),
    ("--exams", "--agents 1"), ("exam.py", "--agents 1 --exams 'DDQN, drawn'"),
    ("robustness.py measure", "--agents 1 --scales 1"), ("step_sizes.py measure", "--searches 1 --generations 1"),
    ("visits.py measure", "--agents 2 --steps 60"), ("step_times.py measure", "--episodes 1"),
    ("transfer.py", "--steps 400 --seeds 1 --episodes 1"), ("physics.py", "--agents 1 --real_steps 200"),
    ("supervised.py", "--games cartpole --rows '2,000 transitions' --models 1 --agents 1 --steps 60 --kinds DDQN"),
    ("tuning.py", "--agents 1 --settings 2 --real_steps 200"), ("benchmarks/", "--quick"),
    ("--film", FILM), ("--real_steps 50000", "--num_agents 1 --real_steps 50"),
)  # fmt: skip


def scaled(command: str) -> str:
    """The command with flags that make it short: the last of a repeated flag counts."""
    if command.startswith("make ") or " make " in command:
        return command.replace("make ", "make -n ", 1)
    if "tensorboard" in command:
        return command.replace("tensorboard", "python -m tensorboard.main --inspect", 1)
    if "ray_address" in command:
        return "true"
    if "--use_tune --resume" in command:
        return f"{command} --num_samples 10"  # as many as --plot needs
    if re.search(r"--(plot|report|help|import_proxy)\b", command):  # not --report_agents
        return command
    if "--learn " in command:
        return re.sub(r" --teacher \S+", "", command) + " --only probe"
    if "clones.sh" in command:
        return f"SEEDS=0 AGENTS=1 TEACHER_STEPS=300 {command}"
    if command.endswith("policy_gradients/run.sh"):
        return f"SEEDS=25 EPISODES=2 {command} {POLICY.replace('--max_episodes 2', '')}"
    if command.endswith("model_generalisation/run.sh") or "model_generalisation/run.sh --resume" in command:
        limits = "AGENTS=ER WORLDS=procmaze REGIMES=low NUM_SEEDS=2 NUM_STEPS=200"
        flags = MODELS.replace("--total_steps 20 ", "").replace(" --num_seeds 2", "")
        return f"{limits} {command} {flags}"
    if re.search(r"--eval_agent \w+-", command) and "--real_steps" not in command:  # a shipped proxy
        return f"{command} --num_agents 3 --no_real_baseline --time_limit 40"
    command = re.sub(r"--trained_steps \d+", "--trained_steps 200", command)
    command = re.sub(r"--tune \d+", "--tune 2", command)
    for word, limits in LIMITS:
        if word in command:
            return f"{command} {limits}"
    if "--eval_agent" in command:
        return f"{command} --num_eval_episodes 1 {FILM if '--record' in command else '--time_limit 20'}"
    if "bash_train.sh" in command:
        command = re.sub(r'SEEDS="(\d+)[^"]*"', r"SEEDS=\1", command)  # one seed shows that it runs
        return f"{'' if 'SEEDS=' in command else 'SEEDS=25 '}{command} {tiny(command)}"
    if "--use_tune" in command:
        return f"{command} {tiny(command)} --num_samples 1"
    return f"{command} {tiny(command)} --no_record" if "trainer.py" in command else command


def tiny(command: str) -> str:
    """Flags that make the run of a command small."""
    names = re.findall(r"--(?:implementation|algo) (\S+)", command) or re.findall("/([A-Z]+)/tune/", command)
    name = canonical_names((names or ["UDRL"])[-1])
    if name == "QLearning":
        return "--total_steps 10 --steps_per_epoch 5 --eval_every 1 --eval_episodes 1"
    if name == "RN" and "--mode -1" in command:
        return STEPS
    if name == "RN":
        return REWARDS.replace("--test_every 20 --average_from 0 ", "") if "paper" in command else REWARDS
    if "--preset supervised" in command:
        return "--transitions 200 --fit_updates 40 --report_agents 2 --inner_steps 60"
    if family(name).learns_from == "evolution":
        search_flags = SEARCH if "--proxy bandit" in command else f"{SEARCH} --max_steps 20"
        search_flags = (
            search_flags.replace("--hidden_sizes 8 --batch_size 8 ", "") if "QLearning" in command else search_flags
        )
        search_flags += " --table_size 50" if re.search("two_stage|clone", command) else ""
        return search_flags.replace("--inner_steps 60", "--inner_steps 300") if "paper" in command else search_flags
    if name in PRESETS["procmaze_high"] or "model_generalisation" in command:
        return MODELS
    if family(name).learns_from == "steps":
        return STEPS
    if "--dataset" in command:  # takes the place of episodes
        return TINY + "--batch_size 8 --epochs 1 --num_grad_steps 1"
    return POLICY if on_policy(name) else EPISODES


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with an empty exp_dir."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.name not in (".git", ".venv", "exp_dir", ".lock"):
            (folder / path.name).symlink_to(path)
    model = networks(0, state=(6, 4), reward=(6, 1), done=(6, 1))
    saved(folder / "CartPole-v0_CW9CSH.pt", model, activation_fn="prelu")
    for kind in ("bandit", "reward"):  # files of a run of --learn
        (folder / f"{kind}.safetensors").symlink_to(ROOT / f"understudy/pretrained/lunarlander-{kind}.safetensors")
    return folder


@functools.cache
def run(command: str, folder: Path) -> None:
    words = shlex.split(command)
    statuses = SEARCHED if re.search("--implementation (SE|RN)|--eval_agent", command) else (0,)
    # in this process, which has imported torch
    if words[:2] == ["python", "trainer.py"] and "--use_tune" not in words:
        with contextlib.chdir(folder):
            assert trainer.main(words[2:]) in statuses, command
        return
    if words[0] == "python" and words[1].startswith("experiments/") and not re.search(r"[*>]|--use_tune", command):
        with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patched:
            patched.setattr(sys, "argv", words[1:])
            patched.setattr(sys, "path", [str(Path(words[1]).parent), *sys.path])
            try:
                runpy.run_path(words[1], run_name="__main__")
            except SystemExit as end:
                assert end.code in (0, None), command
        return
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": tools, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    completed(["bash", "-c", command], folder, statuses, env=environment)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Short training on shipped proxies, few agents in figures of behaviour, short fits, few evaluations of teachers,
    few steps of baselines, few initial states, and an empty folder of datasets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setattr("control.learn.teacher._EVALUATIONS", 2)
    for module in ("task", "teacher"):
        monkeypatch.setattr(f"control.learn.{module}.JUDGING_EPISODES", 16)  # fill the environments
    monkeypatch.setattr("control.reports.verdict.MOST_STEPS", 1000)
    monkeypatch.setattr("envs.synthetic.starts_of", functools.partial(starts_of, draws=16))
    short_steps = property(lambda config: max(300, config.average_from + (config.test_every or 0)))  # one test at least
    monkeypatch.setattr(SearchConfig, "steps_in_use", short_steps)
    monkeypatch.setattr("control.reports.synthetic._EPISODES", 1)  # of each agent
    monkeypatch.setattr("control.reports.synthetic._AGENTS", 2)
    monkeypatch.setattr("envs.synthetic._MIN_SCALING_OBS", 60)
    monkeypatch.setattr("envs.synthetic._DAGGER_UPDATES", 10)
    monkeypatch.setattr("models.proxies.fitting._UPDATES", 30)


@pytest.fixture(scope="module")
def trained() -> set[frozenset[str]]:
    """Flags of finished runs."""
    return set()


@every_page_with_commands
def test_flags_are_known(page: Path) -> None:
    for command in commands(page):
        words = shlex.split(re.sub(r"^.*\./bash_train\.sh", "python trainer.py", command))
        reads_files = r"--(eval_agent|plot|report|film|import_proxy|resume|config|search_space|learn)\b"
        if words[:2] == ["python", "trainer.py"] and not re.search(reads_files, command):
            parse(words[2:])


@ONE_PROCESS
@pytest.mark.usefixtures("curves")
@long_pages_are_slow
def test_commands_run(page: Path, workplace: Path, trained: set[frozenset[str]], small: None, brief: None) -> None:
    """Runs that differ only in seeds or epochs, and searches of hyperparameters, are only parsed."""
    for command in commands(page):
        command = re.sub(r"^.*\./bash_train\.sh", "python trainer.py", command)
        flags = {flag for flag in command.split(" --") if not re.match("(seed|num_seeds|epochs) ", flag)}
        if "--use_tune --resume" in command:  # needs the search of a slow test
            continue
        if "--use_tune" in command or ("--implementation" in command and flags in trained):
            parse(shlex.split(command)[2:])
        elif not command.startswith(SETUP) and not any(word in command for word in SLOW):
            run(scaled(command), workplace)
            trained.add(frozenset(flags))


@pytest.mark.slow
@ONE_PROCESS
@every_page_with_commands
def test_slow_commands_run(page: Path, workplace: Path) -> None:
    slow = [command for command in commands(page) if any(word in command for word in SLOW)]
    reads = any(re.search(r"exp_dir/\S+/version_", command) for command in slow)  # runs of the quick commands
    # Words of commands that need a library of an extra. Others need the peers of benchmarks/against_jax.py, or a GPU.
    libraries = {"transfer.py": "stable_baselines3", "beside.py": "stable_baselines3", "takecover": "vizdoom"}
    for command in commands(page) if reads else slow:
        needed = [library for word, library in libraries.items() if word in command]
        needs_peers = "--peers_python" in command or command.endswith("against_jax.py")
        possible = all(map(importlib.util.find_spec, needed)) and not needs_peers
        possible &= "--accelerator gpu" not in command or torch.cuda.is_available()
        if possible and not command.startswith(SETUP) and (command in slow or command.startswith("python trainer.py")):
            run(scaled(command), workplace)


@ONE_PROCESS
@long_pages_are_slow
def test_python_examples_run(page: Path, workplace: Path, small: None) -> None:
    """Blocks of a page share their names; test_how_to.py runs files. If a library is missing, only imports run."""
    names: dict[str, object] = {"__name__": "__example__"}
    with contextlib.chdir(workplace):
        for block in blocks(page, "python"):
            missing = "stable_baselines3" in block and importlib.util.find_spec("stable_baselines3") is None
            block = "\n".join(re.findall(r"^import .*", block, re.MULTILINE)) if missing else block
            block = re.sub(r"total_steps=[25]0_000", "total_steps=2_000", block).replace("learn(10_000)", "learn(500)")
            block = block.replace("learn(262_144", "learn(2_048")
            block = block.replace('teacher_steps=100_000, only="exam"', 'teacher_steps=1_000, only="bandit"')
            block = block.replace("    generations=30,\n    keep_best=3,\n    retest_agents=16,\n", SMALLEST_SEARCH)
            if not re.match(r"# \S+\.py\n", block):
                exec(compile(block, str(page), "exec"), names)


@ONE_PROCESS
def test_examples_of_the_api_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples in docstrings, in the order of docs/api.md, share their names and print what the docstrings say."""
    monkeypatch.chdir(tmp_path)
    silent = functools.partial(pl.Trainer, enable_progress_bar=False, enable_model_summary=False)
    monkeypatch.setattr("pytorch_lightning.Trainer", silent)
    runner, names = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), {}
    page = (ROOT / "docs/api.md").read_text()
    for name in re.findall(r"^\.\. auto\w+:: (\S+)$", page, re.MULTILINE):
        thing = pkgutil.resolve_name(":".join(name.rsplit(".", 1)))  # with a dot, it imports the folder of a function
        for example in doctest.DocTestFinder(recurse=isinstance(thing, type)).find(thing):
            example.globs = names
            runner.run(example, clear_globs=False)
    assert runner.tries > 30 and not runner.failures


def test_extras_exist_and_are_documented() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for page in PAGES:
        for names in re.findall(r"pip install .*-e '?\.\[([\w,]+)\]", page.read_text()):
            assert set(names.split(",")) <= extras, f"{page.name}: {names}"
    for name, unsaid in (("CONTRIBUTING.md", set()), ("docs/getting_started.md", {"dev"})):  # the tables of extras
        text = (ROOT / name).read_text()
        assert {extra for extra in extras if f"`{extra}`" not in text} == unsaid, name


@functools.cache
def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub and the site write them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    anchor_names: set[str] = set()
    for heading in re.findall(r"^#{1,4} (.+)$", text, re.MULTILINE):
        name = re.sub(r"[^\w -]", "", re.sub(r"\]\([^)]*\)", "", heading).lower()).strip().replace(" ", "-")
        numbered = [f"{name}-{count}" for count in range(1, 9)]
        anchor_names.add(next(candidate for candidate in (name, *numbered) if candidate not in anchor_names))
    return anchor_names


@pytest.mark.parametrize(
    "page",
    [*PAGES, *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CODE_OF_CONDUCT", "SECURITY"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_between_pages_exist(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([\w-]+))?\)", page.read_text()):
        target_path = page.parent / target if target else page
        assert target_path.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(target_path), f"{page.name} links to {target}#{anchor}"
