"""Model-generalisation agents: learning schedule, sampling, exploration, metrics, stale observations, replay memory and
device placement.

test_model_generalisation_updates.py tests the updates.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from envs.make import _cached_dynamics
from fake_runs import load_script
from helpers import ALL, MODELS, step_loop
from models.agents.model_generalisation.agent import Agent
from models.agents.model_generalisation.imagination import sample_classes
from models.agents.model_generalisation.values import Transitions
from models.optim import AdamW

NAMES = MODELS[:5]
MAZE, FLUTE = "procmaze,grid_size=3", "panflute,num_pipes=3"
LATEST = ("train/explained_variance", "train/grad_norm")
ACTED = {"train/q_mean", "train/entropy", *LATEST}
BELOW_ONE = 1 - 2**-24  # the largest number that `torch.rand` gives
parity = load_script("model_generalisation/parity")


@pytest.mark.parametrize(("start", "period", "first"), [(0, 5, 0), (3, 5, 5), (5, 5, 5), (6, 5, 10), (8, 1, 8)])
def test_learning_starts_with_a_period(start: int, period: int, first: int) -> None:
    """The original trains in a period only if it begins after the start: no update in the first ``first`` steps."""
    loop = step_loop("ER", MAZE, training_start_time=start, steps_per_epoch=period)
    initial_weights = loop.agent.values.q_network.flat.detach().clone()
    for step in range(12):
        loop.step()
        assert loop.agent.learning_members().tolist() == [step >= first] * 2
        assert (loop.loss.isfinite() == (step >= first)).all()
        assert torch.equal(loop.agent.values.q_network.flat, initial_weights) == (step < first)


@pytest.mark.parametrize(("name", "expected"), [("ER", ""), ("CategoricalLatent", "reward termination obs kl")])
def test_metrics_are_means_since_last_call(name: str, expected: str) -> None:
    rare_loop, frequent_loop = (step_loop(name, FLUTE, updates_per_step=2) for _ in range(2))
    single = []
    for step in range(12):
        rare_loop.step(), frequent_loop.step()
        if step == 8:
            losses = {f"model/{part}_loss" for part in expected.split()}
            assert rare_loop.agent.metrics().keys() == ACTED | losses
        if step >= 8:
            single.append(frequent_loop.agent.metrics())
    assert frequent_loop.agent.metrics() == {}
    means = rare_loop.agent.metrics()
    assert all(torch.equal(means.pop(tag), single[-1][tag]) for tag in LATEST)
    for tag, mean in means.items():
        torch.testing.assert_close(mean, torch.stack([logged[tag] for logged in single[1:]]).mean(0))


@pytest.mark.parametrize(("probability", "table"), [
    ([0.25, 0.0, 0.5, 0.25], {0.0: 0, 0.2499: 0, 0.25: 2, 0.5: 2, 0.7499: 2, 0.75: 3, 0.99: 3, BELOW_ONE: 3}),
    # Probability 0 is never drawn.
    ([1.0, 0.0, 0.0], {0.0: 0, BELOW_ONE: 0}), ([0.0, 1.0, 0.0], {0.0: 1, BELOW_ONE: 1}),
    ([0.0, 0.0, 1.0], {0.0: 2, BELOW_ONE: 2}), ([0.0, 0.5, 0.5], {0.0: 1, BELOW_ONE: 2}),
    # Ten times 0.0999 is 0.999; a number above it is class 9, not 10.
    ([0.0999] * 10, {BELOW_ONE: 9}),
])  # fmt: skip
def test_pick_inverts_distribution_function(probability: list[float], table: dict[float, int]) -> None:
    probabilities = torch.tensor(probability).expand(len(table), len(probability))
    assert sample_classes(probabilities, torch.tensor(list(table))).tolist() == list(table.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fixture", "agent", "steps"), [("A", "PerfectModel", 20_000), ("B", "CategoricalLatent", 5000)]
)
def test_learning_curve_matches_original(fixture: str, agent: str, steps: int, tmp_path: Path) -> None:
    """Ten seeds of each: three points within two standard errors of the original."""
    argv = ["--fixture", fixture, "--agents", agent, "--total_steps", str(steps), "--logdir", str(tmp_path / "exp_dir")]
    assert parity.main([*argv, "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert len(rows) == 3
    assert [row for row in rows if not row["within"]] == []


# -- stale observations, replay memory, devices ------------------------------------------------------------------------


CPU = torch.device("cpu")
GAMES = ["procmaze,grid_size=3", "buttongrid,grid_size=4", "panflute,num_pipes=3"]


class RecordedLoop:
    """A step loop that records the agent's observations, states and transitions."""

    def __init__(self, case: str, game: str, **changes: Any):
        self.loop = step_loop(case, game, **({"training_start_time": 10_000} | changes))
        self.agent, self.environment = self.loop.agent, self.loop.environment
        self.observations: list[Tensor] = []
        self.states: list[Tensor] = []
        self.transitions: list[tuple[Tensor, ...]] = []
        act, observe = self.agent.act, self.agent.observe

        def record_act(obs: Tensor) -> Tensor:
            self.observations.append(obs.clone())
            self.states.append(self.environment.state.clone())
            return act(obs)

        def record_observe(*step: Tensor) -> None:
            self.transitions.append(tuple(part.clone() for part in step))
            observe(*step)

        self.agent.act, self.agent.observe = record_act, record_observe

    def run(self, steps: int) -> Self:
        for _ in range(steps):
            self.loop.step()
        return self

    def current_obs(self, step: int) -> Tensor:
        return self.environment.dynamics.observe(self.states[step])


@pytest.mark.parametrize("changes", [{"stale_observation": True}, {"faithful_to_paper": True}], ids=str)
def test_stale_observation_delays_first_step_of_episode(changes: dict[str, Any]) -> None:
    """The first action of an episode uses the last observation of the previous one. The replay buffer gets a step from
    there into the new maze, with reward -1, that ends the episode only if the new maze starts on its goal."""
    recorded = RecordedLoop("ER", GAMES[0], buffer_size=200, **changes).run(200)
    done = torch.stack([transition[5] for transition in recorded.transitions]).squeeze(2)
    episode_starts = done.roll(1, 0)  # [T, M]
    episode_starts[0] = False
    stale = 0
    for t, m in torch.cartesian_prod(torch.arange(200), torch.arange(2)).tolist():
        acted_obs, transition = recorded.observations[t][m, 0], [part[m, 0] for part in recorded.transitions[t]]
        obs, action, next_obs, reward, discount, _ = transition
        assert torch.equal(obs, acted_obs)
        if not episode_starts[t, m]:
            assert torch.equal(acted_obs, recorded.current_obs(t)[m, 0])
            continue
        assert torch.equal(acted_obs, recorded.transitions[t - 1][2][m, 0])
        stale += not torch.equal(acted_obs, recorded.current_obs(t)[m, 0])
        state = recorded.states[t][m, 0]
        assert reward == -1 and discount == (state[2] != state[3])
        step = recorded.environment.dynamics.step(recorded.states[t], torch.full((2, 1), int(action)))
        assert torch.equal(next_obs, recorded.environment.dynamics.observe(step[0])[m, 0])
        row = {name: rows[t, m] for name, rows in recorded.agent.replay_buffer.rows().items()}
        assert torch.equal(row["obs"].float(), acted_obs) and torch.equal(row["next_obs"].float(), next_obs)
        assert row["action"] == action and row["continues"] == discount and row["reward"] == -1
    assert stale > 5


@pytest.mark.parametrize("changes", [{}, {"faithful_to_paper": True, "stale_observation": False}], ids=str)
def test_observations_are_current_by_default(changes: dict[str, Any]) -> None:
    recorded = RecordedLoop("ER", GAMES[0], **changes).run(400)
    assert recorded.agent.episodes.min() > 5
    assert all(torch.equal(acted_obs, recorded.current_obs(t)) for t, acted_obs in enumerate(recorded.observations))


@pytest.mark.parametrize("ticks", [1, 7])
def test_first_observation_of_epoch_is_current(ticks: int) -> None:
    """With epochs of one step no observation is stale."""
    recorded = RecordedLoop("ER", GAMES[0], stale_observation=True)
    for _ in range(420 // ticks):
        recorded.loop.epoch(ticks)
    current_obs = [torch.equal(acted_obs, recorded.current_obs(t)) for t, acted_obs in enumerate(recorded.observations)]
    assert recorded.agent.episodes.min() > 5 and all(current_obs[::ticks])
    assert all(current_obs) == (ticks == 1)


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("game", GAMES)
def test_perfect_model_stores_states(game: str, stale: bool) -> None:
    """The buffer leaves out seed and time."""
    recorded = RecordedLoop("PerfectModel", game, buffer_size=60, stale_observation=stale).run(50)
    batch = recorded.agent.replay_buffer.batch(((torch.arange(50) + 0.5) / 50).expand(2, -1))
    assert isinstance(batch, Tensor)
    assert torch.equal(batch[:, :, 2:], torch.cat(recorded.states, 1)[:, :, 2:]) and not batch[:, :, :2].any()


def transitions(members: int, bits: bool, obs: int = 6, actions: int = 128) -> dict[str, Tensor]:
    """Seven transitions a member."""
    observations = torch.randn(2, members, 7, obs)
    observations = (observations > 0).float() if bits else observations
    action = torch.randint(actions, (members, 7))
    action[:, 0], action[:, 1] = 0, actions - 1
    return {
        "obs": observations[0], "action": action, "next_obs": observations[1], "reward": torch.randn(members, 7),
        "continues": torch.rand(members, 7) > 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(("obs", "bits", "actions", "row_size"), [
    (64, True, 5, 2 * 64 + 7), (15, True, 40_000, 2 * 15 + 13), (4, False, 2, 2 * 16 + 7),
])  # fmt: skip
def test_transitions_round_trip(obs: int, bits: bool, actions: int, row_size: int) -> None:
    """A byte a bit and seven more."""
    fields, replay = transitions(3, bits, obs, actions), Transitions(obs, actions, bits, 7, 3, CPU)
    assert sum(math.prod(shape) * dtype.itemsize for shape, dtype in replay.columns.values()) == row_size
    for t in range(7):
        replay.add(**{name: part[:, t : t + 1] for name, part in fields.items()})
    batch = replay.batch(((torch.arange(7) + 0.5) / 7).expand(3, -1))
    for name, part in batch.items():
        assert part.dtype == (torch.int64 if name == "action" else torch.float32)
        assert torch.equal(part, fields[name].to(part.dtype)) and part.is_contiguous()


META = torch.device("meta")  # tensors without contents


@pytest.fixture(autouse=True)
def uncached_dynamics() -> Iterator[None]:
    """Prevents that a test moves the cached dynamics of other tests to another device."""
    _cached_dynamics.cache_clear()
    yield
    _cached_dynamics.cache_clear()


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of devices other than `META`, except single numbers."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            assert not isinstance(leaf, Tensor) or leaf.device == META or leaf.dim() == 0, function
        return result


def moved(thing: Any, memo: dict[int, Any]) -> Any:
    """Moves ``thing`` and all tensors inside it to `META`."""
    if id(thing) in memo:
        return memo[id(thing)]
    if isinstance(thing, torch.device):
        return META
    if isinstance(thing, Tensor):
        moved_tensor = thing.detach().to(META)
        memo[id(thing)] = (
            nn.Parameter(moved_tensor, thing.requires_grad) if isinstance(thing, nn.Parameter) else moved_tensor
        )
        return memo[id(thing)]
    if isinstance(thing, tuple):
        return tuple(moved(item, memo) for item in thing)
    memo[id(thing)] = thing
    if isinstance(thing, list):
        thing[:] = [moved(item, memo) for item in thing]
    elif isinstance(thing, dict):
        thing.update({key: moved(value, memo) for key, value in thing.items()})
    elif type(thing).__module__.partition(".")[0] in ("models", "envs") and hasattr(thing, "__dict__"):
        moved(vars(thing), memo)
    return thing


@pytest.mark.parametrize(("case", "game"), [
    pytest.param(case, game, marks=[pytest.mark.slow] * (case not in (*NAMES, "simple-no-bits", "tanh-sigmoid")))
    for case in MODELS for game in GAMES if game == GAMES[0] or ALL[case][0] == "PerfectModel"
])  # fmt: skip
def test_update_needs_no_device_synchronization(case: str, game: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meta tensors refuse a shape or branch that depends on a number, so a CUDA graph can capture the update."""
    agent = moved(RecordedLoop(case, game, training_start_time=0).run(6).agent, {id(CPU): CPU})
    numbers = agent.random_numbers_of_update(0)
    monkeypatch.setattr(AdamW, "step", lambda optimizer: None)  # torch has no fused kernel for this device
    with OneDevice(), torch.no_grad():
        losses = agent.update(numbers)
    for loss in losses.values():
        assert loss.device == META and loss.shape == (2,)
        with pytest.raises(RuntimeError, match="item"):
            bool(loss[0] > 0)
    assert {part.device for part in (*agent.state_dict().values(), *agent.replay_buffer.rows().values())} == {META}


@pytest.mark.parametrize("game", GAMES)
def test_perfect_model_on_other_device_needs_no_initial_states(game: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = step_loop("PerfectModel", game, seeds=1)
    dynamics = loop.environment.dynamics.to(META)  # type: ignore[attr-defined]
    monkeypatch.setattr(type(dynamics), "initial", lambda self, seeds: pytest.fail("initial was called"))
    agent = Agent(loop.agent.config, loop.environment.spaces, [0], dynamics)
    assert agent.replay_buffer.columns == loop.agent.replay_buffer.columns
