"""The Makefile, the workflow of GitHub, the image and the wheel."""

import os
import re
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import understudy
from conftest import ROOT
from helpers import completed
from test_docs import PAGES, commands

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
CI = WORKFLOWS[0]


def read(path: Path) -> Any:
    return yaml.load(path.read_text(), yaml.BaseLoader)  # `on` is a string


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def test_named_targets_exist() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    assert set(phony.split()) == TARGETS | {"again"}
    lines = [command for page in PAGES for command in commands(page)]
    lines += [step["run"] for path in WORKFLOWS for step in steps(path) if "run" in step]
    lines += [line for line in (ROOT / ".ci/run").read_text().splitlines() if not line.startswith("#")]
    make_calls = [re.findall(r"\bmake(?: --?[\w-]+)* ([a-z]+)", line) for line in lines]
    assert {"setup", "lint", "types", "test", "docs", "train", "slow"} <= {
        name for names in make_calls for name in names
    }
    assert {name for names in make_calls for name in names} <= TARGETS


def test_list_of_targets_fits_a_terminal() -> None:
    targets = re.findall(r"^([a-z]+):.*## (.*)$", MAKEFILE, re.MULTILINE)
    assert targets and max(len(text) for _, text in targets) <= 59  # beside a column of 21


def test_supported_python_versions() -> None:
    low, high = re.findall(r"\(3, (\d+)\)", re.findall(r"^SUPPORTED := (.+)$", MAKEFILE, re.MULTILINE)[0])
    assert PROJECT["requires-python"] == f">=3.{low},<3.{high}"
    supported = [f"3.{minor}" for minor in range(int(low), int(high))]
    assert set(re.findall(r"\bpython(3\.\d+)\b", MAKEFILE)) == set(supported)
    assert read(CI)["jobs"]["check"]["strategy"]["matrix"]["python"] == supported
    classifiers = {text.rpartition(" :: ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text}
    assert classifiers == set(supported)


def test_versions_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    released = re.findall(
        r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert understudy.__version__ == PROJECT["version"] == citation["version"] == released[0]


@pytest.mark.slow
def test_image_has_what_the_trainer_imports(tmp_path: Path) -> None:
    """A run with the files alone that the Dockerfile copies."""
    copies = [line.split()[1:] for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("COPY")]
    for *sources, target in copies:
        for source in sources:
            (tmp_path / ("" if target == "./" else target) / (source if target == "./" else "")).symlink_to(
                ROOT / source
            )
    flags = "--implementation PPO --gamename cartpole --total_steps 60 --eval_episodes 1 --no_compiled".split()
    isolated = [sys.executable, "-P", "trainer.py", *flags]
    completed(isolated, tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert (tmp_path / "exp_dir/cartpole").is_dir()


USE = """
import sys, warnings
import gymnasium
warnings.simplefilter("error")
from gymnasium.utils.env_checker import check_env
module, name = sys.argv[1:]
if not module:
    import understudy
for mode in ("NextStep", "SameStep"):
    many = gymnasium.make_vec(module + name, num_envs=3, autoreset_mode=mode)
    many.reset(seed=0)
    many.step(many.action_space.sample())
check_env(gymnasium.make(module + name).unwrapped)
assert not {"torch", "models", "envs", "control", "trainer"} & set(sys.modules)
import models, envs, control
assert models.OURS and envs.OURS and control.OURS
"""


@pytest.mark.slow
def test_the_wheel_needs_no_torch_and_leaves_other_names_alone(tmp_path: Path) -> None:
    def run(*words: object) -> str:
        return completed(words, tmp_path)

    # Of a copy: a build leaves folders behind.
    shutil.copytree(ROOT, tmp_path / "checkout", ignore=shutil.ignore_patterns(".*", "exp_dir", "build", "*.egg-info"))
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, tmp_path / "checkout")
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"understudy", f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"}
    files = (path for path in (ROOT / "understudy").rglob("*.*") if path.suffix != ".pyc")
    shipped = {path.relative_to(ROOT).as_posix() for path in files}
    assert shipped <= set(names) and "understudy/py.typed" in shipped
    shutil.rmtree(tmp_path / "checkout")
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", wheel)
    assert "torch" not in run(python, "-m", "pip", "list")
    for package in ("models", "envs", "control"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("OURS = True\n")
    (tmp_path / "use.py").write_text(USE)
    for module in ("", "understudy:"):
        for name in ("SyntheticCartPoleMDP-v0", "SyntheticCartPole-v0", "SyntheticAcrobot-v0"):
            run(python, "use.py", module, f"understudy/{name}")
