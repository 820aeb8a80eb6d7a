"""The Makefile and the workflow of GitHub refer to things that exist."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import ROOT
from test_docs import PAGES, commands

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
RUNNERS = {"ubuntu-latest", "macos-latest", "windows-latest"}


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


def test_extras_of_targets_exist() -> None:
    installed = re.findall(r"^(?:DEVELOP|TRAINER|SITE) := (.+)$", MAKEFILE, re.MULTILINE)
    assert len(installed) == 3
    assert {extra for extras in installed for extra in extras.split(",")} <= set(PROJECT["optional-dependencies"])


def test_larger_environment_serves_smaller_target(tmp_path: Path) -> None:
    """`make -n` in a copy with an interpreter in .venv."""

    def installs(target: str) -> list[str]:
        command = ["make", "-n", "UV=", f"PYTHON={sys.executable}", target]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return re.findall(r"install .*-e '\.\[(.+)\]'", done.stdout)

    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    assert installs("train") == installs("demo") == ["train"]
    stamp = tmp_path / ".venv" / ".ready-{}.{}-".format(*sys.version_info)
    stamp.with_name(f"{stamp.name}train,dev,tune,mujoco,data").touch()
    assert [*installs("train"), *installs("demo"), *installs("test")] == []
    assert installs("docs") == ["train,docs"]
    stamp.with_name(f"{stamp.name}train,docs").touch()
    assert [*installs("docs"), *installs("demo")] == []
    for path in stamp.parent.glob(".ready*"):
        os.utime(path, (0, 0))
    assert len(installs("demo")) == 1, "pyproject.toml is newer"


def test_supported_python_versions() -> None:
    low, high = re.findall(r"\(3, (\d+)\)", re.findall(r"^SUPPORTED := (.+)$", MAKEFILE, re.MULTILINE)[0])
    assert PROJECT["requires-python"] == f">=3.{low},<3.{high}"
    supported = [f"3.{minor}" for minor in range(int(low), int(high))]
    assert set(re.findall(r"\bpython(3\.\d+)\b", MAKEFILE)) == set(supported)
    (workflow,) = WORKFLOWS
    assert read(workflow)["jobs"]["check"]["strategy"]["matrix"]["python"] == supported


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows(path: Path) -> None:
    workflow = read(path)
    assert workflow.keys() == {"name", "on", "permissions", "concurrency", "env", "jobs"}
    assert workflow["on"].keys() == {"push", "pull_request"} and workflow["on"]["push"] == {"branches": ["main"]}
    for job in workflow["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        runners = matrix["os"] + [include["os"] for include in matrix["include"]] if matrix else [job["runs-on"]]
        assert set(runners) <= RUNNERS and "timeout-minutes" in job
    allowed = {"matrix.os", "matrix.python", "github.workflow", "github.ref"}
    assert set(re.findall(r"\$\{\{ (.+?) \}\}", path.read_text())) <= allowed
    for step in steps(path):
        assert ("run" in step) != ("uses" in step) and step.keys() <= {"name", "if", "run", "uses", "with"}
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])
        else:
            assert subprocess.run(["bash", "-n", "-c", step["run"]], capture_output=True).returncode == 0, step["run"]
    action_inputs = [step["with"] for step in steps(path) if "with" in step]
    (cached,) = [entry["cache-dependency-glob"] for entry in action_inputs if "cache-dependency-glob" in entry]
    assert (ROOT / cached).is_file()
    (site,) = [entry["path"] for entry in action_inputs if "path" in entry]
    assert f"-c docs . {site} " in MAKEFILE
