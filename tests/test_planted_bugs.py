"""The smoke test of docs/smoke_test.md: a correct agent passes, and one with a planted bug fails."""

import json
from pathlib import Path

import pytest

from fake_runs import Shown, load_script, refused

bugs = load_script("synthetic_environments/planted_bugs")


@pytest.mark.parametrize(
    ("agent", "bug", "updates"),
    [
        ("DQN", "losses of shape [64, 64]", 500),
        pytest.param("PPO", "minus the advantages", 800, marks=pytest.mark.slow),
    ],
)
def test_learned_environment_tells_a_bug_from_a_correct_agent(
    agent: str, bug: str, updates: int, tmp_path: Path, capsys: Shown
) -> None:
    flags = f"--agents {agent} --seeds 1 --episodes 5 --updates {updates} --json {tmp_path / 'bugs.json'} --bugs"
    assert bugs.main([*flags.split(), "", bug]) == 0
    correct, wrong = json.loads((tmp_path / "bugs.json").read_text()).values()
    assert correct["returns"][0] > 300 and wrong["returns"][0] < 100
    assert f"{agent} on bandit, correct: " in capsys.readouterr().out


def test_next_observation_is_kept_at_the_end_of_an_episode() -> None:
    """An episode of the bandit is one step, so the observation to act on belongs to the next episode."""
    steps = bugs.Steps(bugs.IDS["bandit"], seed=0)
    obs = steps.obs.clone()
    next_obs, rewards, terminated, ended = steps.step(bugs.torch.zeros(bugs.NUM_ENVS, dtype=bugs.torch.int64))
    assert terminated.all() and ended.all() and rewards.shape == (bugs.NUM_ENVS,)
    assert not (steps.obs == next_obs).all() and not (steps.obs == obs).all()


def test_options_are_checked(capsys: Shown) -> None:
    refused(bugs.main, ["--seeds", "0"], "seeds is 0", capsys)
