"""The wheel as a project without torch installs it, in a folder that has packages of the same names as ours."""

import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from conftest import ROOT
from helpers import completed

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
