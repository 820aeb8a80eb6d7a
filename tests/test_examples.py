"""The scripts in examples/, briefly."""

from pathlib import Path

import gymnasium
import numpy as np

import trainer
from examples import evaluate_checkpoint, make_reward, play_without_torch, train_on_learned_environment, train_ppo
from helpers import output_of

SEARCH = {"population": 4, "generations": 1, "inner_steps": 60, "test_every": 20, "average_from": 0}
AGENTS = {"center_agents": 1, "retest_agents": 1, "report_agents": 1, "test_episodes": 1, "deploy_steps": 40}


def test_agent_is_trained_evaluated_exported_and_played(logdir: Path, tmp_path: Path) -> None:
    folder = train_ppo.main(total_steps=600, logdir=str(logdir))
    assert 5 < evaluate_checkpoint.main(folder, episodes=2) <= 500
    exported = trainer.load(folder).export(tmp_path / "agent.safetensors")
    code = "import sys\nfrom examples import play_without_torch\n"
    code += "play_without_torch.main(sys.argv[1])\nprint('torch' in sys.modules)"
    printed = output_of(code, exported)
    assert printed.splitlines()[-1] == "False"
    assert f"return {play_without_torch.main(str(exported)):.1f}" in printed


def test_learned_environment_trains_a_plain_agent() -> None:
    """Random play returns 22 on average."""
    assert train_on_learned_environment.main() > 200


def test_learned_reward_replaces_the_task_reward(logdir: Path) -> None:
    env = make_reward.main(**SEARCH, **AGENTS, logdir=str(logdir))
    assert isinstance(env, gymnasium.Wrapper)
    env.reset(seed=0)
    _, reward, _, _, info = env.step(0)
    assert info["native_reward"] == -1 and np.isfinite(float(reward)) and reward != -1
