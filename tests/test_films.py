"""Films: speed, size, captions, several agents side by side."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import trainer
from control.films import pictures
from control.films.encoding import mp4, poster
from control.films.recording import Actor, record
from envs.make import make_environment
from fake_runs import Shown, refused
from helpers import trained
from models.contract import Policy, RandomPolicy
from models.proxies.search import SearchConfig
from models.settings import HAS_NUMBA
from models.streams import Streams


class Stripes(gym.Env):
    """Pays 1 for each of ``seed`` steps; a picture of 10 x 9 pixels has two colours."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        self.remaining_steps = seed
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.remaining_steps -= 1
        return np.zeros(2, np.float32), 1.0, self.remaining_steps == 0, False, {}

    def render(self):
        picture = np.zeros((9, 10, 3), np.uint8)
        picture[:, 5:] = 255
        return picture


@pytest.fixture
def stripes(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(gym.registry, "Stripes-v0", EnvSpec("Stripes-v0", Stripes))
    return "Stripes-v0"


def playing(game: str, seed: int = 0) -> Policy:
    return RandomPolicy(make_environment(game, 1, 1).spaces, 1, Streams([seed]))


def frames(path: Path) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Metadata and pictures of a video."""
    reader: Iterator[Any] = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    width, height = meta["size"]
    return meta, [np.frombuffer(data, np.uint8).reshape(height, width, 3) for data in reader]


def test_film_has_every_step_at_the_speed_of_the_environment(stripes: str, tmp_path: Path) -> None:
    progress, actors = list[float](), [Actor(lambda: playing(stripes))]
    returns = record(actors, stripes, tmp_path / "film.mp4", [4, 2], with_gif=True, watch=progress.append)
    assert returns == [[4.0, 2.0]] and progress == [0.5, 1.0]
    meta, images = frames(tmp_path / "film.mp4")
    assert (meta["codec"], meta["pix_fmt"].partition("(")[0], meta["fps"]) == ("h264", "yuv420p", 7.0)
    waiting = round(1.8 * 7)
    assert len(images) == (1 + 4 + waiting) + (1 + 2 + waiting)
    assert images[0].shape[:2] == (360 + 26 + 8, 400)
    assert images[0][:350, :195].max() < 30 and images[0][:350, 205:].min() > 225  # the caption hides nothing
    with Image.open(tmp_path / "film.gif") as gif:
        assert gif.n_frames > 1 and gif.info["loop"] == 0


def test_error_while_filming_leaves_no_file(stripes: str, tmp_path: Path) -> None:
    def broken() -> Policy:
        policy: Any = playing(stripes)
        policy.act = lambda obs: 1 / 0
        return policy

    with pytest.raises(ZeroDivisionError):
        record([Actor(broken)], stripes, tmp_path / "film.mp4", [5])
    assert not [*tmp_path.iterdir()]
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(OSError):
        record([Actor(lambda: playing(stripes))], stripes, tmp_path / "folder.mp4", [1])


def test_shorter_episode_waits_for_the_longer_one(
    stripes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both begin with the same seed, but the second environment ends sooner."""
    steps = iter([8, 2])
    real = Stripes.reset

    def reset(self, *, seed=None, options=None):
        assert seed == 9
        return real(self, seed=next(steps))

    monkeypatch.setattr(Stripes, "reset", reset)
    actors = [Actor(lambda: playing(stripes), name) for name in ("left", "right")]
    assert record(actors, stripes, tmp_path / "film.mp4", [9]) == [[8.0], [2.0]]
    _, images = frames(tmp_path / "film.mp4")
    assert images[0].shape[1] == 2 * 400 + pictures.GAP and not (tmp_path / "film.gif").exists()
    assert len(images) == 1 + 8 + round(1.8 * 7)


def test_evaluation_is_filmed_by_default(
    logdir: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch, brief: None
) -> None:
    folder = trained(logdir, implementation="DDQN", epochs=1, steps_per_epoch=7, time_limit=5)
    words = ["--eval_agent", str(folder), "--num_eval_episodes", "1"]
    assert trainer.main(words) == trainer.main(words) == 0
    films = sorted((folder / "videos").glob("*.mp4"))
    assert [film.name for film in films] == ["eval_best_0.mp4", "eval_best_1.mp4"]
    output = capsys.readouterr().out
    assert f"\nvideo: {films[0]} (greedy: one episode, return 5)\n" in output
    assert trainer.main([*words, "--gamename", "cartpole-200"]) == 0
    (other_film,) = (folder / "videos").glob("eval_best_cartpole-200_0.mp4")
    other_film.unlink()
    capsys.readouterr()
    assert trainer.main([*words, "--no_record"]) == 0
    assert "video" not in capsys.readouterr().out and sorted((folder / "videos").glob("*.mp4")) == films
    monkeypatch.setattr("imageio_ffmpeg.get_ffmpeg_exe", lambda: (_ for _ in ()).throw(RuntimeError("no ffmpeg here")))
    assert trainer.main(words) == 0
    assert "note: no film (no ffmpeg here)\n" in capsys.readouterr().out
    refused(trainer.main, [*words, "--record"], "record is true, but no ffmpeg here; leave it out", capsys)


def test_films_of_epochs_are_images_in_tensorboard(logdir: Path, brief: None) -> None:
    films = {"recording_epoch_interval": 2, "record_n_rollouts_per_epoch": 2}
    folder = trained(logdir, implementation="DDQN", steps_per_epoch=7, epochs=3, time_limit=5, **films)
    names = {"epoch_0002_0.mp4", "epoch_0002_0.gif", "epoch_0002_1.mp4"}
    names |= {"epoch_0002_0.txt", "epoch_0002_1.txt"}
    assert {path.name for path in (folder / "videos").iterdir()} == names
    events = EventAccumulator(str(folder), size_guidance={"images": 0})
    events.Reload()
    (image,) = events.Images("film")
    assert image.encoded_image_string == (folder / "videos" / "epoch_0002_0.gif").read_bytes() and image.step == 14


def test_trained_on_a_proxy_beside_trained_on_the_real_environment(
    logdir: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch, brief: None
) -> None:
    monkeypatch.setattr(SearchConfig, "steps_in_use", 300)
    if HAS_NUMBA:
        monkeypatch.setattr("control.loops.compiled.can_compile", lambda loop: False)  # saves time
    (logdir / "films").mkdir(parents=True)
    (logdir / "films" / "cartpole_0.mp4").touch()  # of an earlier film
    words = "--film cartpole-bandit real untrained --agent PPO,DDQN --record_episodes 1 --time_limit 5"
    assert trainer.main([*words.split(), "--logdir", str(logdir)]) == 0
    output = capsys.readouterr().out
    assert output.count("note: the film has PPO only, the first of PPO, DDQN; --agent selects another\n") == 1
    for title in ("300 steps on cartpole-bandit", "300 steps on the real cartpole", "untrained"):
        assert f"\nPPO, {title}: one episode, return 5\n" in output
    films = ["cartpole_0.mp4", "cartpole_1.gif", "cartpole_1.mp4"]
    assert sorted(path.name for path in (logdir / "films").iterdir()) == films


def test_film_is_a_video_player_in_notebooks(tmp_path: Path, brief: None) -> None:
    small = {"max_episodes": 4, "eval_episodes": 2, "hidden_sizes": (8,), "logdir": tmp_path}
    run = trainer.train(verbose=False, gamename="cartpole", implementation="CPG", **small)
    first_film, second_film = (run.film(episodes=2, seed=3) for _ in range(2))
    assert [film.path.name for film in (first_film, second_film)] == ["film_0.mp4", "film_1.mp4"]
    assert first_film.path.parent == run.folder / "videos"
    assert len(first_film.returns) == 2 and first_film.returns == second_film.returns
    images = frames(first_film.path)[1]
    assert len(images) >= sum(first_film.returns)  # CartPole pays 1 for each step
    assert (images[0] != images[-1]).any()
    player = first_film._repr_html_()
    assert player.startswith("<video controls")
    assert base64.b64decode(player.split("base64,")[1].split('"')[0]) == first_film.path.read_bytes()


def test_poster_is_of_an_mp4_alone(tmp_path: Path) -> None:
    """A playlist with the suffix of a film could name any file."""
    film, playlist = tmp_path / "film.mp4", tmp_path / "playlist.mp4"
    with mp4(film, 10) as add:
        for level in (200, 0, 0):
            add(np.full((64, 96, 3), level, np.uint8))
    picture = np.asarray(Image.open(io.BytesIO(poster(film))))
    assert picture.shape == (64, 96, 3) and abs(int(picture.mean()) - 200) < 5
    playlist.write_text(f"ffconcat version 1.0\nfile {film.name}\n")
    assert poster(playlist) == poster(tmp_path / "missing.mp4") == b""
