"""What every agent that learns between steps must keep to. It gets these tests by being in models/agents/."""

from typing import Any

import pytest
import torch
from torch import Tensor

from envs.probes import PROBES
from helpers import STEP_CASES, STEP_TINY, STEP_VARIANTS, StepLoop, config_of, plays, same_numbers
from models.registry import agent_class

GAMES = ["cartpole", "probe-5"]


def playable(*games: str) -> list[tuple[str, str]]:
    """Every case with those of ``games`` that it can play."""
    return [(case, game) for case in STEP_CASES for game in games if plays(case, game)]


@pytest.mark.parametrize(("case", "game"), playable(*GAMES))
def test_a_member_alone_is_the_same_to_the_bit(case: str, game: str) -> None:
    """Three epochs of acting and learning, though in company other episodes end elsewhere; then greedy episodes."""
    # members that share a program: with hyperparameters of their own, those that are padded alike
    implementation, _ = STEP_CASES[case]
    groups = agent_class(implementation).groups(config_of(case, game, **STEP_TINY), range(60))
    seeds = max(groups, key=len)[:3]
    together = StepLoop(case, game, seeds)
    history = [together.epoch() for _ in range(3)]
    evaluated = together.evaluate()
    for m in (0, 2):
        alone = StepLoop(case, game, seeds[m : m + 1])
        for numbers in history:
            same_numbers(alone.epoch(), {name: value[m : m + 1] for name, value in numbers.items()})
        assert torch.equal(alone.evaluate()[0], evaluated[m])
    first, last = (
        torch.cat([value for name, value in numbers.items() if name.startswith("weights")], 1)
        for numbers in (history[0], history[-1])
    )
    assert not torch.equal(last[0], last[1]) and not torch.equal(last, first)
    assert history[-1]["losses"].isfinite().all()


# Episodes that end in the middle of an epoch or not, of a tensor program and of others.
@pytest.mark.parametrize(("case", "game"), playable("cartpole", "probe-truncated", "mountaincar"))
def test_goes_on_from_its_state_as_if_nothing_had_been(case: str, game: str, tmp_path) -> None:
    seeds = [1, 1]  # two of a kind always share a program
    one = StepLoop(case, game, seeds)
    one.epoch()
    while not one.interaction.lengths.any():  # episodes that have just ended
        one.interaction.step()
        one.agent.measured()
    torch.save(one.state(), tmp_path / "state")
    other = StepLoop(case, game, seeds)
    other.load(torch.load(tmp_path / "state", weights_only=True))
    for _ in range(3):
        same_numbers(one.epoch(), other.epoch())


@pytest.mark.parametrize("case", STEP_CASES)
def test_a_broken_member_leaves_the_others_alone(case: str) -> None:
    loops = [StepLoop(case, "cartpole", [1, 1, 1]) for _ in range(2)]
    for loop in loops:
        loop.epoch()
    with torch.no_grad():
        for weights in loops[1].agent.parameters():
            weights[1] = float("nan")
    sound, sick = (loop.epoch() for loop in loops)
    same_numbers(*({name: value[[0, 2]] for name, value in numbers.items()} for numbers in (sound, sick)))
    assert sick["losses"][1].isnan().all() and sound["losses"][1].isfinite().all()


# -- the probes ------------------------------------------------------------------------------------------------------

LEARNING = {
    "lr": 5e-3, "batch_size": 32, "hidden_size": 16, "feature_dim": 16, "tau": 0.05, "rb_size": 2000,
    "Q_alpha": 5e-3, "model_alpha": 5e-3, "num_hidden_layers": 1, "num_hidden_units": 16, "buffer_size": 2000,
    "training_start_time": 0, "target_update_frequency": 20, "rollout_length": 1, "num_features": 2,
}  # fmt: skip
VALUED = ("probe-1", "probe-2", "probe-3", "probe-4", "probe-5", "probe-truncated")


def probed(case: str) -> tuple[str, ...]:
    """The probes of a case. A learned model dreams of what is seen next with noise, so that only values of last steps
    are the true ones, and only where it learns from no further ones; a draw of a latent state is another every time."""
    if getattr(config_of(case), "model", "none") != "none":
        return () if getattr(config_of(case), "model", "") != "simple" else ("probe-2", "probe-5")
    return VALUED if case not in STEP_VARIANTS else VALUED[4:5]


@pytest.mark.parametrize(("case", "game"), [(case, game) for case in STEP_CASES for game in probed(case)])
def test_learns_the_probe(case: str, game: str) -> None:
    """The value of the start, and the best actions where actions matter."""
    probe = PROBES[game]
    # a value that never ends comes back by as much a step as the discount leaves: less of it, sooner there
    discount = 0.8 if probe.truncates else 0.99
    loop = StepLoop(case, game, [1, 1], config_of(case, game, discount=discount, gamma=discount, **LEARNING), ticks=500)
    loop.epoch()
    if probe.best_return > probe.random_return:
        assert (loop.evaluate(40) == probe.best_return).all()
    states = {"sign": [-1.0, 1.0], "age": [0.0, 1.0], "zero": [0.0]}[probe.shows]
    obs = torch.tensor(states).view(1, -1, 1).expand(2, -1, -1)
    torch.testing.assert_close(best_values(loop.agent, obs), probe.value(obs[..., 0], discount), rtol=0, atol=0.1)


def best_values(agent: Any, obs: Tensor) -> Tensor:
    """Values ``[M, B]`` of the best actions in ``obs [M, B, O]``."""
    with torch.no_grad():
        if hasattr(agent, "network"):
            return agent.network.forward(agent._online, obs.transpose(1, 2))[0].amax(1)
        return agent.values(obs).amax(2)
