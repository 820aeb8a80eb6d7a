"""Runs of policy gradients and of agents that learn between steps: what is theirs alone, and what they refuse."""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec

import trainer
from control.cli.parse import parse
from control.loops.episodes import EpisodeLoop
from control.storage import checkpoints
from control.storage.run_dir import read_metrics
from envs.make import make_environment
from fake_runs import Shown, refused
from helpers import flags, loop_of, numbers, run_folder, same_numbers, trained

Finished = Callable[..., tuple[Path, str]]


def test_the_mean_of_the_latest_episodes(logdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown) -> None:
    """Seven of them, where a batch has three, counted again with a deque, as the notebook's trainer does. The best one
    knows of this batch too, where the notebook's lags behind."""
    returns: list[torch.Tensor] = []  # of the training episodes, [M, E] a batch
    real = EpisodeLoop._play

    def play(self, policy, count):
        trajectory = real(self, policy, count)
        returns.append(trajectory.returns.clone())
        return trajectory

    monkeypatch.setattr(EpisodeLoop, "_play", play)
    folder = trained(logdir, implementation="CPG", running_mean_len=7, num_seeds=2)
    metrics = read_metrics(folder / "metrics.csv")
    steps = metrics["env_steps"][-2:]
    assert steps[0] != steps[1]
    summary = f"a mean of {round(sum(steps) / 2):,} environment steps of each of 2 seeds ({round(sum(steps)):,} in all)"
    assert summary in capsys.readouterr().out
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

    # best.ckpt is of the first epoch with the largest mean over both seeds, evaluated or not
    means = np.mean(np.reshape(metrics["rollout/return_running_mean"], (5, 2)), axis=1)
    run_state = checkpoints.load(folder / "checkpoints" / "best.ckpt").run_state
    assert run_state["epoch"] == 1 + means.argmax() and run_state["best"] == pytest.approx(means.max())


def test_stops_when_the_mean_reaches_the_target(logdir: Path, capsys: Shown, finished: Finished) -> None:
    """The largest mean of the first four epochs, to the last digit."""
    means = read_metrics(finished(implementation="CPG")[0] / "metrics.csv")["rollout/return_running_mean"]
    folder = trained(logdir, implementation="CPG", target_running_mean=repr(max(means[:4])))
    last_epoch = means.index(max(means[:4])) + 1
    assert read_metrics(folder / "metrics.csv")["rollout/return_running_mean"] == means[:last_epoch]
    output = capsys.readouterr().out
    episodes = min(7, 3 * last_epoch)
    assert f"mean return of the last {episodes} episodes {max(means[:4]):.1f} reached the target" in output
    assert "--resume" not in output
    for _ in range(2):  # the second time nothing is left to do
        assert checkpoints.load(folder / "checkpoints" / "last.ckpt", resume=True).run_state["epoch"] == last_epoch
        assert trained(logdir, "--resume", implementation="CPG") == folder


def test_a_run_that_is_over_keeps_its_own_settings(logdir: Path, tmp_path: Path, capsys: Shown) -> None:
    file = trained(logdir, implementation="CPG", max_episodes=3) / "config.yaml"
    written = file.read_text()
    trained(logdir, "--resume", implementation="CPG", max_episodes=1, target_running_mean=7.0)
    assert file.read_text() == written
    # learning rates that fall towards the end fix the end
    falling = tmp_path / "falling"
    trained(falling, "--anneal_lr", implementation="CPG", max_episodes=3)
    longer = flags(falling, "--resume", "--anneal_lr", implementation="CPG", max_episodes=6)
    refused(trainer.main, longer, "max_episodes is 6, but the run to resume has 3", capsys, run_started=True)


def test_values_meant_for_one_agent_are_not_given_to_another(capsys: Shown, finished: Finished) -> None:
    file = finished(implementation="CPG")[0] / "config.yaml"
    for flag, value, file_value in (("implementation", "AAC", "CPG"), ("preset", "skeleton", "published")):
        line = f"error: {flag} is '{value}', but {file} holds the values of '{file_value}'; "
        line += f"leave out --{flag} or --config\n"
        assert refused(trainer.main, ["--config", str(file), f"--{flag}", value], "", capsys) == line
    same = parse(["--config", str(file), "--implementation", "CPG", "--preset", "published"])
    assert same.agent == parse(["--config", str(file)]).agent


def test_a_policy_that_is_sure_of_everything_is_told(logdir: Path, capsys: Shown) -> None:
    trained(logdir, implementation="CPG", lr=1e3, max_episodes=60)
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1 and "sure of every action" in warnings[0] and "smaller lr" in warnings[0]


def test_weights_that_are_no_longer_finite_end_the_run_in_one_line(logdir: Path, capsys: Shown) -> None:
    argv = flags(logdir, implementation="CPG", lr=1e9, hidden_sizes=[8] * 9)
    error = refused(trainer.main, argv, "weights are no longer finite", capsys, run_started=True)
    assert error.endswith("a smaller lr may help\n")


def test_a_trained_agent_is_evaluated_without_a_command(capsys: Shown, finished: Finished) -> None:
    folder, _ = finished(implementation="AAC")
    assert trainer.main(["--eval_agent", str(folder), "--num_eval_episodes", "3"]) == 0
    output = capsys.readouterr().out
    assert "AAC on cartpole" in output and "greedy" in output and "sampled" in output and "command" not in output
    error = refused(trainer.main, ["--eval_agent", str(folder), "--command.return", "5"], "", capsys)
    assert error == "error: command.return has no effect: AAC here follows no command\n"


# -- agents that learn between steps ---------------------------------------------------------------------------------


def test_worker_processes_change_nothing() -> None:
    loops = [loop_of("DDQN", "lunarlander", 1, 2, steps_per_epoch=120, num_workers=workers) for workers in (0, 2)]
    rows = [loop.epoch() for loop in loops]
    for m in range(2):
        same_numbers(*(numbers(loop, row, m) for loop, row in zip(loops, rows, strict=True)))
    assert torch.equal(*(loop.evaluate(3).returns for loop in loops))
    loops[1].close()


def test_a_longer_resumed_run_does_not_explore_anew(logdir: Path) -> None:
    changes: dict[str, Any] = {"implementation": "DDQN", "eps_fraction": 0.5}
    trained(logdir, epochs=4, **changes)
    epsilon = read_metrics(trained(logdir, "--resume", epochs=6, **changes) / "metrics.csv")["train/epsilon"]
    assert len(epsilon) == 6 and epsilon[0] > epsilon[1] > 0.01 and epsilon[2:] == pytest.approx([0.01] * 4)


def test_a_checkpoint_is_evaluated_greedily_and_filmed(logdir: Path, capsys: Shown, brief: None) -> None:
    film = ("--record", "--record_episodes", "1")
    folder = trained(logdir, *film, "--vary_hp", implementation="DDQN", num_seeds=3, hidden_sizes="6", epochs=2)
    assert (folder / "videos" / "final.mp4").stat().st_size > 1000
    capsys.readouterr()
    assert trainer.main(["--eval_agent", str(folder), "--num_eval_episodes", "5", *film]) == 0
    output = capsys.readouterr().out
    assert [line.split()[:2] for line in output.splitlines() if line.startswith(("greedy", "sampled"))] == [
        ["greedy", "25"], ["greedy", "26"], ["greedy", "27"], ["greedy", "all"],
    ]  # fmt: skip
    assert "command" not in output and len(list((folder / "videos").glob("eval_*.mp4"))) == 1


def test_a_run_that_ends_before_it_learns_says_so(tmp_path: Path, capsys: Shown) -> None:
    run = ["--implementation", "ER", "--gamename", "panflute", "--logdir", str(tmp_path), "--hidden_sizes", "4,4,4"]
    for steps, warns in (("20", True), ("40", False)):
        flags = ["--total_steps", steps, "--steps_per_epoch", "20", "--training_start_time", "20", "--eval_steps", "2"]
        assert trainer.main([*run, *flags, "--exp_name", steps]) == 0
        assert ("warning: nothing will be learned: the run has 20 steps" in capsys.readouterr().out) == warns


@pytest.mark.parametrize("agent", ["PPO --num_envs 2 --rollout_steps 8", "DDQN --init_episodes 0 --fill 16"])
def test_that_nothing_will_be_learned_is_said_before_the_start(agent: str, tmp_path: Path, capsys: Shown) -> None:
    """Both can first learn with step 16."""
    for epochs in (1, 2):
        run = f"--implementation {agent} --gamename cartpole --steps_per_epoch 8 --eval_episodes 1 --time_limit 9"
        assert trainer.main([*run.split(), "--epochs", str(epochs), "--logdir", str(tmp_path)]) == 0
        start_text, _, rest_text = capsys.readouterr().out.partition("epoch 1/")
        warning = (
            "warning: nothing will be learned: the run has 8 steps a seed, and the first update comes with step 16"
        )
        assert (warning in start_text) == (epochs == 1) == ("no gradient step was made" in rest_text)


# -- what cannot be --------------------------------------------------------------------------------------------------


class Pictures(gym.Env):
    observation_space = gym.spaces.Box(0, 255, (20, 20, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}


def test_images_are_not_for_agents_of_vectors(logdir: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gym.registry, "Pictures-v0", EnvSpec("Pictures-v0", Pictures))
    argv = ["--implementation", "DDQN", "--gamename", "Pictures-v0", "--logdir", str(logdir)]
    line = "gamename is 'Pictures-v0', which shows images; DDQN takes vectors of observations"
    refused(trainer.main, argv, line, capsys)


def test_the_notebooks_lander_is_cut_after_300_steps() -> None:
    environment = make_environment("beresheet", 1, 1)
    environment.close()
    assert environment.spaces.max_episode_steps == 300 and environment.spaces.actions.n == 4


# -- does it learn? --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CPG", "AAC"])
def test_learns_cartpole(name: str, logdir: Path) -> None:
    """Every one of three seeds; in trials they were between 280 and 480."""
    argv = ["--implementation", name, "--gamename", "cartpole", "--num_seeds", "3", "--logdir", str(logdir),
            "--max_episodes", "800", "--eval_every", "1000"]  # fmt: skip
    assert trainer.main(argv) == 0
    assert min(read_metrics(run_folder(logdir) / "metrics.csv")["rollout/return_running_best"][-3:]) > 150
