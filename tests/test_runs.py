"""Whole runs of policy gradients and of agents that learn between steps."""

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainer
from conftest import Finished
from control.loops.episodes import EpisodeLoop
from control.storage import checkpoints
from control.storage.run_dir import read_metrics
from fake_runs import Shown, refused
from helpers import flags, trained


def test_running_mean_equals_a_deque(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches have three episodes and the running mean has seven, counted again with a deque."""
    returns: list[torch.Tensor] = []  # [M, E] of each batch
    real = EpisodeLoop._play

    def play(self, policy, count):
        trajectory = real(self, policy, count)
        returns.append(trajectory.returns.clone())
        return trajectory

    monkeypatch.setattr(EpisodeLoop, "_play", play)
    folder = trained(logdir, implementation="CPG", running_mean_len=7, num_seeds=2)
    metrics = read_metrics(folder / "metrics.csv")
    for m, seed in enumerate((25, 26)):
        rows = [row for row, value in enumerate(metrics["seed"]) if value == seed]
        latest: deque[float] = deque(maxlen=7)
        means: list[float] = []
        for batch in returns:
            latest.extend(batch[m].tolist())
            means.append(sum(latest) / len(latest))
        assert len(rows) == len(returns) == 5  # batches of three have 14 episodes
        assert [metrics["rollout/return_running_mean"][row] for row in rows] == pytest.approx(means, rel=1e-12)
        best = np.maximum.accumulate(means).tolist()
        assert [metrics["rollout/return_running_best"][row] for row in rows] == pytest.approx(best, rel=1e-12)

    # best.ckpt is from the first epoch with the largest mean over both seeds
    means = np.mean(np.reshape(metrics["rollout/return_running_mean"], (5, 2)), axis=1)
    run_state = checkpoints.load(folder / "checkpoints" / "best.ckpt").run_state
    assert run_state["epoch"] == 1 + means.argmax() and run_state["best"] == pytest.approx(means.max())


def test_run_stops_at_the_target_running_mean(logdir: Path, capsys: Shown, finished: Finished) -> None:
    """The target is the largest mean of the first four epochs."""
    means = read_metrics(finished(implementation="CPG")[0] / "metrics.csv")["rollout/return_running_mean"]
    folder = trained(logdir, implementation="CPG", target_running_mean=repr(max(means[:4])))
    last_epoch = means.index(max(means[:4])) + 1
    assert read_metrics(folder / "metrics.csv")["rollout/return_running_mean"] == means[:last_epoch]
    output = capsys.readouterr().out
    assert f"mean return of the last 7 episodes {max(means[:4]):.1f} reached the" in output
    for _ in range(2):  # the second time finds nothing to do
        assert checkpoints.load(folder / "checkpoints" / "last.ckpt", resume=True).run_state["epoch"] == last_epoch
        assert trained(logdir, "--resume", implementation="CPG") == folder


def test_finished_run_keeps_its_settings(logdir: Path, tmp_path: Path, capsys: Shown) -> None:
    file = trained(logdir, implementation="CPG", max_episodes=3) / "config.yaml"
    written = file.read_text()
    trained(logdir, "--resume", implementation="CPG", max_episodes=1, target_running_mean=7.0)
    assert file.read_text() == written
    # annealed learning rates fix the end of the run
    falling = tmp_path / "falling"
    trained(falling, "--anneal_lr", implementation="CPG", max_episodes=3)
    longer = flags(falling, "--resume", "--anneal_lr", implementation="CPG", max_episodes=6)
    refused(trainer.main, longer, "max_episodes is 6, but the run to resume has 3", capsys, run_started=True)


def test_infinite_weights_end_the_run(logdir: Path, capsys: Shown) -> None:
    argv = flags(logdir, implementation="CPG", lr=1e9, hidden_sizes=[8] * 9)
    error = refused(trainer.main, argv, "weights are no longer finite", capsys, run_started=True)
    assert error.endswith("a smaller lr may help\n")


def test_longer_resumed_run_continues_epsilon(logdir: Path) -> None:
    changes: dict[str, Any] = {"implementation": "DDQN", "eps_fraction": 0.5}
    trained(logdir, epochs=4, **changes)
    epsilon = read_metrics(trained(logdir, "--resume", epochs=6, **changes) / "metrics.csv")["train/epsilon"]
    assert len(epsilon) == 6 and epsilon[0] > epsilon[1] > 0.01 and epsilon[2:] == pytest.approx([0.01] * 4)


@pytest.mark.parametrize("agent", ["PPO --num_envs 2 --rollout_steps 8", "DDQN --init_episodes 0 --fill 16"])
def test_run_too_short_to_learn_prints_a_warning(agent: str, tmp_path: Path, capsys: Shown) -> None:
    """Both agents need 16 steps for the first update."""
    for epochs in (1, 2):
        run = f"--implementation {agent} --gamename cartpole --steps_per_epoch 8 --eval_episodes 1 --time_limit 9"
        assert trainer.main([*run.split(), "--epochs", str(epochs), "--logdir", str(tmp_path)]) == 0
        start_text, _, rest_text = capsys.readouterr().out.partition(" 1/")
        warning = "nothing will be learned: the run has 8 steps a seed, and the first update comes with step 16"
        assert (warning in start_text) == (epochs == 1) == ("no gradient step was made" in rest_text)
