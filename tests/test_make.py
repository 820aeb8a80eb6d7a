"""The Makefile, the workflow and the forms of GitHub: what they name is there."""

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
FORMS = [path for path in sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")) if path.name != "config.yml"]
RUNNERS = {"ubuntu-latest", "macos-latest", "windows-latest"}


def read(path: Path) -> Any:
    return yaml.load(path.read_text(), yaml.BaseLoader)  # by which `on` is a word


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def test_targets_that_are_named_exist_and_are_no_files() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    assert set(phony.split()) == TARGETS | {"again"}  # which has no rule: what needs it is made once more
    lines = [command for page in PAGES for command in commands(page)]
    lines += [step["run"] for path in WORKFLOWS for step in steps(path) if "run" in step]
    lines += [line for line in (ROOT / ".ci/run").read_text().splitlines() if not line.startswith("#")]
    make_calls = [re.findall(r"\bmake(?: --?[\w-]+)* ([a-z]+)", line) for line in lines]
    assert {"setup", "lint", "types", "test", "docs", "train", "slow"} <= {
        name for names in make_calls for name in names
    }
    assert {name for names in make_calls for name in names} <= TARGETS


def test_extras_that_targets_install_exist() -> None:
    installed = re.findall(r"^(?:DEVELOP|TRAINER|SEARCHER|SITE) := (.+)$", MAKEFILE, re.MULTILINE)
    assert len(installed) == 4
    assert {extra for extras in installed for extra in extras.split(",")} <= set(PROJECT["optional-dependencies"])


def test_a_larger_set_that_is_installed_serves_the_smaller_one(tmp_path: Path) -> None:
    """`make -n` in a copy, whose .venv has an interpreter that runs and stamps."""

    def installs(target: str) -> list[str]:
        command = ["make", "-n", "UV=", f"PYTHON={sys.executable}", target]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return re.findall(r"install .*-e '\.\[(.+)\]'", done.stdout)

    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    assert installs("train") == ["train"] and installs("demo") == ["train,fast"]
    stamp = tmp_path / ".venv" / ".ready-{}.{}-".format(*sys.version_info)
    stamp.with_name(f"{stamp.name}train,dev,tune,mujoco,fast").touch()
    assert [*installs("train"), *installs("demo"), *installs("test")] == []
    assert installs("docs") == ["train,docs"], "docs are in no other set"
    stamp.with_name(f"{stamp.name}train,docs").touch()
    assert [*installs("docs"), *installs("demo")] == []
    for path in stamp.parent.glob(".ready*"):
        os.utime(path, (0, 0))
    assert len(installs("demo")) == 1, "all that is installed is older than pyproject.toml"


def test_every_place_says_which_pythons_are_supported() -> None:
    low, high = re.findall(r"\(3, (\d+)\)", re.findall(r"^SUPPORTED := (.+)$", MAKEFILE, re.MULTILINE)[0])
    assert PROJECT["requires-python"] == f">=3.{low},<3.{high}"
    supported = [f"3.{minor}" for minor in range(int(low), int(high))]
    assert set(re.findall(r"\bpython(3\.\d+)\b", MAKEFILE)) == set(supported)
    (workflow,) = WORKFLOWS
    assert read(workflow)["jobs"]["check"]["strategy"]["matrix"]["python"] == supported


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_what_github_reads(path: Path) -> None:
    workflow = read(path)
    assert workflow.keys() == {"name", "on", "permissions", "concurrency", "env", "jobs"}
    assert workflow["on"].keys() == {"push", "pull_request"} and workflow["on"]["push"] == {"branches": ["main"]}
    for job in workflow["jobs"].values():
        assert {"runs-on", "timeout-minutes", "steps"} <= job.keys() <= {
            "name", "runs-on", "timeout-minutes", "strategy", "steps"
        }  # fmt: skip
        matrix = job.get("strategy", {}).get("matrix", {})
        runners = matrix["os"] + [include["os"] for include in matrix["include"]] if matrix else [job["runs-on"]]
        assert set(runners) <= RUNNERS
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
    assert f"-c docs . {site} " in MAKEFILE, "what is kept is what `make docs` writes"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_forms_are_what_github_reads(path: Path) -> None:
    form = read(path)
    assert {"name", "description", "body"} <= form.keys() <= {"name", "description", "labels", "body"}
    for part in form["body"]:
        assert part["type"] in ("textarea", "input", "checkboxes", "dropdown", "markdown")
        assert part["attributes"].keys() <= {"label", "description", "placeholder", "render", "options", "value"}
        assert part["attributes"].keys() & {"label", "value"}
    names = [part["id"] for part in form["body"] if "id" in part]
    assert len(names) == len(set(names)) > 0
