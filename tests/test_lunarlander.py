"""LunarLander with less around the simulator against Gymnasium's own, to the bit."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.box2d import lunar_lander as its
from gymnasium.envs.box2d.lunar_lander import heuristic

from envs import lunarlander
from envs.gymnasium_adapter import _open
from envs.names import GAMES

GAMES_ON_IT = ["lunarlander", "beresheet", "lunarlander-sparse"]


def both(game: str, monkeypatch: pytest.MonkeyPatch) -> tuple[gym.Env, gym.Env]:
    """The environment as it is opened here, and as it is opened with another version of Gymnasium."""
    ours = _open(GAMES[game], render=False)
    with monkeypatch.context() as change:
        change.setattr(lunarlander, "TESTED", "0.0.0")
        theirs = _open(GAMES[game], render=False)
    assert type(theirs.unwrapped) is its.LunarLander
    return ours, theirs


def differing(ours: gym.Env, theirs: gym.Env, seed: int) -> tuple[int, int]:
    """Steps of an episode by random, periodic or the controller's actions, and how many of them differ in a bit."""
    obs, other = ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0]
    chance, steps, wrong, over = np.random.default_rng(seed), 0, int(obs.tobytes() != other.tobytes()), False
    while not over:
        styles = (int(chance.integers(4)), steps // 7 % 4, int(heuristic(theirs.unwrapped, other)))
        (obs, paid, *flags), (other, reward, *ends) = (env.step(styles[seed % 3])[:4] for env in (ours, theirs))
        wrong += (obs.tobytes(), obs.dtype, float(paid), flags) != (other.tobytes(), other.dtype, float(reward), ends)
        steps, over = steps + 1, any(ends)
    return steps, wrong


def equal_for(game: str, episodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = both(game, monkeypatch)
    if gym.__version__ != lunarlander.TESTED:
        pytest.skip(f"with Gymnasium {gym.__version__} its own lander is used")
    assert type(ours.unwrapped) is lunarlander.LunarLander and ours.spec is not None and theirs.spec is not None
    assert ours.spec.max_episode_steps == theirs.spec.max_episode_steps
    counted = [differing(ours, theirs, seed) for seed in range(episodes)]
    assert sum(steps for steps, _ in counted) > 50 * episodes
    assert not [seed for seed, (_, wrong) in enumerate(counted) if wrong]


@pytest.mark.parametrize("game", GAMES_ON_IT)
def test_every_step_is_gymnasiums(game: str, monkeypatch: pytest.MonkeyPatch) -> None:
    equal_for(game, 6, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES_ON_IT)
def test_every_step_of_a_hundred_episodes_is_gymnasiums(game: str, monkeypatch: pytest.MonkeyPatch) -> None:
    equal_for(game, 100, monkeypatch)


def test_pictures_and_other_landers_are_gymnasiums_own() -> None:
    for gym_id, render in (("LunarLander-v3", True), ("LunarLanderContinuous-v3", False), ("CartPole-v1", False)):
        assert _open(GAMES["lunarlander"].__class__(gym_id, gym_id), render).unwrapped.__module__ != "envs.lunarlander"


def test_an_action_that_there_is_not_is_refused_as_by_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    for env in both("lunarlander", monkeypatch):
        env.reset(seed=0)
        with pytest.raises(AssertionError, match="invalid"):
            env.step(4)
