"""The examples of CONTRIBUTING.md are complete: the files it shows, and no other change, make an agent and an
environment."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
FILES = {"models/agents/cem/config.py", "models/agents/cem/agent.py", "envs/corridor.py"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the files that the page shows: Python blocks whose first line names the file."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
        elif (path / "__init__.py").exists() or path.name in ("experiments", "pretrained", "tests"):
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
    shown = dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    assert set(shown) == FILES
    for name, text in shown.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def run(checkout: Path, *words: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, *words], cwd=checkout, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_the_example_agent_trains_in_the_example_environment(checkout: Path) -> None:
    shown = run(checkout, "trainer.py", "--implementation", "CEM", "--help")
    assert "--elite_share" in shown and ", corridor" in shown
    flags = "--implementation CEM --gamename corridor --epochs 2 --eval_every 1"
    run(checkout, "trainer.py", *flags.split())
    (metrics,) = checkout.glob("exp_dir/corridor/debug/CEM/seed_25/version_0/metrics.csv")
    header, *rows = metrics.read_text().splitlines()
    assert len(rows) == 2 and {"train/policy_loss", "train/elite_return", "eval/return_greedy"} < {*header.split(",")}


@pytest.mark.slow
def test_the_examples_have_the_style_of_the_project(checkout: Path) -> None:
    run(checkout, "-m", "ruff", "check", *sorted(FILES))
    run(checkout, "-m", "ruff", "format", "--check", *sorted(FILES))
    run(checkout, "-m", "mypy", *sorted(FILES))


@pytest.mark.slow
def test_the_examples_keep_to_their_contracts(checkout: Path) -> None:
    run(checkout, *"-m pytest -q -p no:cacheprovider tests/test_agent_contract.py -k CEM".split())
    run(checkout, *"-m pytest -q -p no:cacheprovider tests/test_dynamics.py -k corridor".split())


@pytest.mark.slow
def test_the_example_environment_can_be_learned(checkout: Path) -> None:
    flags = "--epochs 40 --lr 1e-2 --target_return 0.9 --eval_every 5 --exp_name learns"
    printed = run(checkout, *f"trainer.py --implementation CEM --gamename corridor {flags}".split())
    assert "reached" in printed or "target" in printed, printed
