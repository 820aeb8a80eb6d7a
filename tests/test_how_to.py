"""The pages of docs/how_to/ are complete: the files and the changes they show, and nothing else, make an environment,
an agent, a loss term, an objective and a kind of proxy, and their commands run."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from control.storage.run_dir import read_metrics
from helpers import completed
from test_docs import HOW_TO, commands

FILES = {
    "models/agents/cem/config.py", "models/agents/cem/agent.py", "envs/corridor.py", "models/proxies/bounty/config.py",
    "models/proxies/bounty/networks.py", "envs/bounty.py", "control/reports/bounty.py",
}  # fmt: skip
CHANGED = {
    "models/agents/policy_gradients/config.py", "models/agents/policy_gradients/agent.py", "control/reports/tags.py",
    "docs/tensorboard.md",
    "models/proxies/search.py", "control/evolution/objectives.py", "understudy/kinds.py", "envs/names.py",
}  # fmt: skip
USERS = {"my_corridor.py", "my_bounties.py", "my_cma.py", "search_with_cma.py"}  # outside the project
# Lines of the trainer; what a user does with a reward that one of them leaves; help, which ends the process.
ONE = """
import sys, trainer

def run(lines):
    for line in lines:
        if trainer.main(line.split()) not in (0, 1):  # the verdict on a tiny search is often 1
            sys.exit(line)

run(line for line in sys.argv[1:] if "--help" not in line)
import glob, gymnasium, my_bounties
(proxy,) = glob.glob("exp_dir/cliff/debug/Bounty/seed_*/version_0/proxy.safetensors")
env = gymnasium.make("CliffWalking-v1")
env.reset(seed=0)
paid = my_bounties.BountyWrapper(env, proxy)
reward = paid.step(0)[1]
assert reward == -1 + paid.bounty[24] and paid.bounty.any()
run(line for line in sys.argv[1:] if "--help" in line)
"""
RN = "--no_compiled --population 4 --generations 2 --inner_steps 200 --deploy_steps 200 --second_phase null"
TINY = {
    "CPG": "--max_episodes 4 --batch_episodes 2 --eval_every 1 --eval_episodes 1",
    "CEM": "--epochs 2 --eval_every 1",
    "Bounty": "--bounty_std 1 --inner_steps 200 --population 4 --generations 2 --center_agents 1 --retest_agents 1",
    "RN": f"{RN} --center_agents 1 --retest_agents 1 --report_agents 1 --eval_every 1",
}


def changed(text: str, diff: str) -> str:
    """``text`` with the hunks of a file's diff, each of which fits in one place. Hunks bear no line numbers."""
    for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE)[1:]:
        old, new = ("".join(line[1:] for line in hunk.splitlines(True) if line[0] in f" {sign}") for sign in "-+")
        assert text.count(old) == 1, f"{text.count(old)} places for\n{old}"
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the files that the pages show, Python blocks whose first line names the file, and with the
    changes in their diffs."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
        elif (path / "__init__.py").exists() or path.name in ("experiments", "tests"):
            shutil.copytree(path, folder / path.name)  # with what Python has compiled of files that stay the same
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "tensorboard.md", folder / "docs")
    text = "".join(page.read_text() for page in HOW_TO)
    sources = dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert set(sources) == FILES | USERS
    for name, content in sources.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    diffs = "".join(re.findall(r"^```diff\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    parts = re.findall(r"^--- a/(\S+)\n\+\+\+ b/\1\n(.*?)(?=^--- a|\Z)", diffs, re.MULTILINE | re.DOTALL)
    assert {name for name, _ in parts} == CHANGED
    for name, diff in parts:
        (folder / name).write_text(changed((folder / name).read_text(), diff))
    return folder


def run(checkout: Path, *words: str, statuses: tuple[int, ...] = (0,)) -> str:
    """Run Python with ``words`` in the folder, and return its output. The exit status must be one of ``statuses``."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    return completed([sys.executable, *words], checkout, statuses, env=environment)


def metrics(checkout: Path, where: str) -> dict[str, list[float]]:
    """The columns of the one run in ``exp_dir/<where>``."""
    (path,) = checkout.glob(f"exp_dir/{where}/seed_*/version_0/metrics.csv")
    return {name: [value for value in column if value == value] for name, column in read_metrics(path).items()}


@pytest.mark.slow
def test_every_command_runs(checkout: Path) -> None:
    lines, covered_pages = [], set()
    for page in HOW_TO:
        for command in commands(page):
            if page.stem == "evolution":  # run below
                covered_pages.add(page.stem)
            elif command.startswith("python trainer.py "):
                (name,) = re.findall(r"--implementation (\S+)", command)
                lines.append(f"{command.removeprefix('python trainer.py ')} {TINY[name]}")
                covered_pages.add(page.stem)
            else:  # run below
                assert command == "python -m pytest tests/test_agent_contract.py -k CEM"
    assert covered_pages == {page.stem for page in HOW_TO}
    lines.append("--implementation CEM --gamename corridor --epochs 2 --eval_every 1")
    output = run(checkout, "-c", ONE, *lines)
    assert "--elite_share" in output and re.search(r"\bcorridor, ", output)  # the first of the games
    logged = metrics(checkout, "corridor/debug/CEM")
    assert len(logged["epoch"]) == 2 and {"train/policy_loss", "train/elite_return", "eval/return_greedy"} < set(logged)
    assert len(metrics(checkout, "my_corridor_Corridor-v0/debug/CPG")["rollout/return_mean"]) == 2
    logged = metrics(checkout, "cartpole/debug/CPG")
    parts = zip(*(logged[f"train/{name}_loss"] for name in ("score", "policy", "entropy", "total")), strict=True)
    assert all(score > 0 and score + sum(terms) == pytest.approx(total) for score, *terms, total in parts)
    (config,) = checkout.glob("exp_dir/cartpole-200/debug/RN/seed_*/version_0/config.yaml")
    assert "objective: worst" in config.read_text()
    (found_in,) = checkout.glob("exp_dir/cliff/debug/Bounty/seed_*/version_0")
    assert (found_in / "bounty.png").stat().st_size > 0


@pytest.mark.slow
def test_a_search_by_another_outer_loop(checkout: Path) -> None:
    assert "4 generations" in run(checkout, "search_with_cma.py")
    command = "trainer.py --eval_agent exp_dir/cma/proxy.safetensors --num_agents 2"
    output = run(checkout, *command.split(), statuses=(0, 1))  # 1: the verdict on a tiny search
    assert "synthetic" in output and "real" in output


@pytest.mark.slow
def test_the_examples_have_the_style_of_the_project(checkout: Path) -> None:
    changed_modules = {name for name in CHANGED if name.endswith(".py")}
    run(checkout, "-m", "ruff", "check", *sorted(FILES | changed_modules | USERS))
    run(checkout, "-m", "ruff", "format", "--check", *sorted(FILES | changed_modules | USERS))
    run(checkout, "-m", "mypy", *sorted(FILES | changed_modules))


@pytest.mark.slow
def test_the_examples_keep_to_their_contracts(checkout: Path) -> None:
    run(checkout, *"-m pytest -q -p no:cacheprovider tests/test_agent_contract.py -k CEM".split())
    run(checkout, *"-m pytest -q -p no:cacheprovider tests/test_dynamics.py -k corridor".split())


@pytest.mark.slow
def test_the_example_environment_can_be_learned(checkout: Path) -> None:
    flags = "--epochs 40 --lr 1e-2 --target_return 0.9 --eval_every 5 --exp_name learns"
    printed = run(checkout, *f"trainer.py --implementation CEM --gamename corridor {flags}".split())
    assert "reached" in printed or "target" in printed, printed
