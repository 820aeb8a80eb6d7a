"""What a command says to type next."""

from pathlib import Path

import pytest

from fake_runs import Shown
from helpers import trained


def test_what_to_type_next_imports_what_the_run_needed(
    logdir: Path, tmp_path: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that a flag imports, and the one that an environment's name begins with; also after --resume."""
    (tmp_path / "registers_cart.py").write_text(
        "import gymnasium as gym\ngym.register('Cart-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ("--import", "json", "--gamename", "registers_cart:Cart-v0")
    trained(logdir, *words, implementation="DDQN", epochs=1, steps_per_epoch=20, time_limit=9)
    first = [line for line in capsys.readouterr().out.splitlines() if "trainer.py" in line]
    trained(logdir, *words, "--resume", implementation="DDQN", epochs=1, steps_per_epoch=20, time_limit=9)
    second = [line for line in capsys.readouterr().out.splitlines() if "trainer.py" in line]
    assert len(first) == 2 and second == first
    assert all("trainer.py --import json,registers_cart --" in line for line in first)
