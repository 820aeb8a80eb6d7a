"""Recorded episodes: datasets of Minari are written and read without a difference, and agents learn from them alone."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from torch import Tensor

import trainer
from control.loops import recordings
from control.loops.recordings import Recording
from control.loops.rollout import rollout
from control.storage import checkpoints
from envs.make import make_environment, spaces_of
from envs.names import split_name
from helpers import flags, loop_of, run_folder, tiny
from models.contract import RandomPolicy
from models.settings import SettingError
from models.streams import Streams
from models.trajectory import Trajectory

minari = pytest.importorskip("minari")
EpisodeBuffer = pytest.importorskip("minari.data_collector").EpisodeBuffer
get_dataset_path = pytest.importorskip("minari.storage.datasets_root_dir").get_dataset_path
COLUMNS = ("obs", "action", "reward", "terminated", "truncated")


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("datasets")))
        yield


def record(name: str, game: str, limit: int = 20) -> Trajectory:
    """Write 70 episodes of random actions, more than are read at a time."""
    environment = make_environment(game, 1, 70, time_limit=limit)
    streams = Streams([1])
    trajectory = rollout(RandomPolicy(environment.spaces, 70, streams), environment, streams.episode_seeds(70))
    recordings.save(name, [trajectory], environment.spaces, split_name(game)[0], "random")
    environment.close()
    return trajectory


@pytest.mark.parametrize("game", ["cartpole", "cliff", "pendulum"])
def test_what_is_read_is_what_was_written(game: str) -> None:
    written = record(f"{game}/random-v0", game)
    parts = list(Recording(f"minari:{game}/random-v0", game, spaces_of(game)).trajectories(members=2))
    assert [part.returns.shape for part in parts] == [(2, 64), (2, 6)]
    for e in range(70):
        part, row = parts[e // 64], e % 64
        length = int(written.lengths[0, e])
        assert part.lengths[:, row].tolist() == [length] * 2
        for member in range(2):
            for name in COLUMNS:
                assert getattr(part, name)[:length, member, row].equal(getattr(written, name)[:length, 0, e]), name
            assert part.final_obs[member, row].equal(written.final_obs[0, e])


def test_an_episode_that_was_cut_off_counts_as_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    record("cut/random-v0", "cartpole")
    recording = Recording("minari:cut/random-v0", "cartpole", spaces_of("cartpole"))
    (episode,) = recording.dataset.iterate_episodes([0])
    no_end = np.zeros_like(episode.terminations)
    endless_episode = dataclasses.replace(episode, terminations=no_end, truncations=no_end)
    monkeypatch.setattr(recording.dataset, "iterate_episodes", lambda indices: [endless_episode])
    part = next(recording.trajectories(members=1))
    assert part.truncated[:, 0, 0].tolist() == [False] * (len(no_end) - 1) + [True] and not part.terminated.any()


def test_the_command_of_rcp_comes_from_all_episodes() -> None:
    """Not only from the last part of those that are read at a time."""
    written = record("command/random-v0", "cartpole")
    config = tiny("RCP-R", dataset="minari:command/random-v0", desire_horizon=True)
    commands = loop_of("RCP-R", "cartpole", 1, 2, config).agent.commands
    lengths = written.lengths[0].double()
    returns = (1 - 0.99**lengths) / (1 - 0.99)  # a step of CartPole has a reward of 1
    assert commands.mean.tolist() == pytest.approx([float(returns.max())] * 2)
    assert commands.spread.tolist() == pytest.approx([float(returns.std(correction=0))] * 2)
    assert commands.horizon.tolist() == [round(float(lengths.topk(5).values.mean()))] * 2


def test_a_resumed_run_needs_no_dataset(tmp_path: Path) -> None:
    record("resumed/random-v0", "cartpole")

    def run(folder: str, *words: str) -> dict[str, Tensor]:
        settings = "--implementation UDRL --gamename cartpole --batch_size 8 --num_seeds 2 --num_grad_steps 3".split()
        dataset = ["--dataset", "minari:resumed/random-v0", "--logdir", str(tmp_path / folder)]
        assert trainer.main([*settings, *dataset, *words]) == 0
        return checkpoints.load(run_folder(tmp_path / folder) / "checkpoints" / "last.ckpt").content["state_dict"]

    whole = run("whole", "--epochs", "4")
    run("cut", "--epochs", "2")
    minari.delete_dataset("resumed/random-v0")
    resumed = run("cut", "--epochs", "4", "--resume")
    assert all(resumed[name].equal(values) for name, values in whole.items())


def test_an_evaluation_writes_its_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for implementation in ("UDRL", "DDQN"):
        logdir = tmp_path / implementation
        name = f"{implementation.lower()}/played-v0"
        epochs = ["--epochs", "1", "--time_limit", "15"]
        assert trainer.main([*flags(logdir, implementation=implementation), *epochs]) == 0
        words = ["--eval_agent", str(run_folder(logdir)), "--evaluation", "greedy", "--no_record"]
        assert trainer.main([*words, "--num_eval_episodes", "7", "--save_dataset", name]) == 0
        table = capsys.readouterr().out
        returns = [episode.rewards.sum() for episode in minari.load_dataset(name)]
        assert len(returns) == 7
        assert f"{np.mean(returns):.1f}" in table.partition("dataset:")[0].splitlines()[-1]
        assert trainer.main([*words, "--save_dataset", name]) == 2


def test_errors_name_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record("wrong/random-v0", "cartpole")
    file = next(Path(minari.load_dataset("wrong/random-v0").storage.data_path).glob("*.hdf5"))
    spaces = spaces_of("cartpole")

    def download(name: str) -> None:
        raise OSError("no network")

    monkeypatch.setattr("minari.storage.hosting.download_dataset", download)
    for source, game, line in [
        ("minari:absent-v0", "cartpole", "dataset is 'minari:absent-v0', which cannot be read: no network"),
        (str(tmp_path), "cartpole", f"dataset is {str(tmp_path)!r}, which cannot be read: "),
        ("minari:wrong/random-v0", "acrobot", "observations of 4 numbers and Discrete(2); allowed: 6 numbers and"),
    ]:
        with pytest.raises(SettingError) as caught:
            Recording(source, game, spaces_of(game))
        assert line in str(caught.value)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(SettingError, match="which cannot be read"):
        list(Recording("minari:wrong/random-v0", "cartpole", spaces).trajectories(1))


CARTPOLE, CLIFF = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(48)


@pytest.mark.filterwarnings("ignore")  # Minari warns about fields that are left out
@pytest.mark.parametrize(
    ("game", "space", "rows", "reward", "line"),
    [
        ("cartpole", CARTPOLE, None, 1.0, "which has no episodes"),
        ("cartpole", CARTPOLE, np.zeros((3, 3), np.float32), 1.0, r"observations \[3, 3\], 2 actions and"),
        ("cartpole", CARTPOLE, np.zeros((3, 4), np.float32), [1.0, 2.0], r"and rewards \[2, 2\]; allowed: "),
        ("cartpole", CARTPOLE, np.zeros((3, 4), np.float32), 2e38, "not finite"),
        ("cliff", CLIFF, np.full(3, 48), 1.0, "episode 0 cannot be read"),
    ],
)
def test_content_that_differs_from_the_spaces_is_refused(
    game: str, space: gym.Space, rows: Any, reward: Any, line: str, request: pytest.FixtureRequest
) -> None:
    ends = {"terminations": [False, True], "truncations": [False] * 2}
    episode = EpisodeBuffer(0, observations=rows, actions=np.zeros(2, int), rewards=np.array([reward] * 2), **ends)
    name = f"content/case{request.node.callspec.indices['game']}-v0"
    spaces = {"observation_space": space, "action_space": gym.spaces.Discrete(2 if game == "cartpole" else 4)}
    minari.create_dataset_from_buffers(name, [] if rows is None else [episode], **spaces)
    with pytest.raises(SettingError, match=line):
        list(Recording(f"minari:{name}", game, spaces_of(game)).trajectories(1))


@pytest.mark.parametrize(
    "name", ["x/a-v0", "lander/ppo", "../../ppo-v0", "taken/random-v0", "taken/random-v0/inside-v0"]
)
def test_ids_that_no_new_dataset_can_have_are_refused(name: str) -> None:
    (get_dataset_path("taken/random-v0") / "data").mkdir(parents=True, exist_ok=True)
    with pytest.raises(SettingError, match="^save_dataset is "):
        recordings.check_new(name)
