"""What agents of the model-generalisation family are shown and remember, and on which device: staleness, memory."""

import dataclasses
from collections.abc import Iterator
from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from envs.make import _cached_dynamics, make_dynamics
from helpers import ALL, MODELS, step_loop
from models.agents.model_generalisation.agent import Agent
from models.agents.model_generalisation.experience import Batch, States, Transitions
from models.replay import row_bytes

CPU = torch.device("cpu")
GAMES = ["procmaze,grid_size=3", "buttongrid,grid_size=4", "panflute,num_pipes=3"]


class Watched:
    """A step loop, which keeps what the agent was shown, the states it acted in and what it was told."""

    def __init__(self, case: str, game: str, **changes: Any):
        self.loop = step_loop(case, game, **({"training_start_time": 10_000} | changes))  # it need not learn
        self.agent, self.environment = self.loop.agent, self.loop.environment
        self.observations: list[Tensor] = []
        self.states: list[Tensor] = []
        self.transitions: list[tuple[Tensor, ...]] = []
        act, observe = self.agent.act, self.agent.observe

        def watched_act(obs: Tensor) -> Tensor:
            self.observations.append(obs.clone())
            self.states.append(self.environment.state.clone())
            return act(obs)

        def watched_observe(*step: Tensor) -> None:
            self.transitions.append(tuple(part.clone() for part in step))
            observe(*step)

        self.agent.act, self.agent.observe = watched_act, watched_observe

    def live(self, steps: int) -> Self:
        for _ in range(steps):
            self.loop.step()
        return self

    def fresh(self, step: int) -> Tensor:
        return self.environment.dynamics.observe(self.states[step])


# -- stale observations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"stale_observation": True}, {"faithful_to_paper": True}], ids=str)
def test_a_stale_agent_acts_once_on_what_it_last_saw_of_an_episode(changes: dict[str, Any]) -> None:
    """And remembers it as a step from there into the new maze, which costs 1 and does not end unless that starts on its
    goal. Everywhere else it sees what is."""
    life = Watched("ER", GAMES[0], buffer_size=200, **changes).live(200)
    episode_starts = (
        torch.stack([transition[5] for transition in life.transitions]).squeeze(2).roll(1, 0)
    )  # [T, M]: an episode ended just before
    episode_starts[0] = False
    stale = 0
    for t, m in torch.cartesian_prod(torch.arange(200), torch.arange(2)).tolist():
        acted_obs, transition = life.observations[t][m, 0], [part[m, 0] for part in life.transitions[t]]
        obs, action, next_obs, reward, discount, _ = transition
        assert torch.equal(obs, acted_obs)
        if not episode_starts[t, m]:
            assert torch.equal(acted_obs, life.fresh(t)[m, 0])
            continue
        assert torch.equal(acted_obs, life.transitions[t - 1][2][m, 0])
        stale += not torch.equal(acted_obs, life.fresh(t)[m, 0])
        state = life.states[t][m, 0]
        assert reward == -1 and discount == (state[2] != state[3])
        step = life.environment.dynamics.step(life.states[t], torch.full((2, 1), int(action)))
        assert torch.equal(next_obs, life.environment.dynamics.observe(step[0])[m, 0])
        row = {name: rows[t, m] for name, rows in life.agent.replay_buffer.rows().items()}
        assert torch.equal(row["obs"].float(), acted_obs) and torch.equal(row["next_obs"].float(), next_obs)
        assert row["action"] == (action if discount else ~action) and row["reward"] == -1
    assert stale > 5


@pytest.mark.parametrize("changes", [{}, {"faithful_to_paper": True, "stale_observation": False}], ids=str)
def test_others_always_see_what_is(changes: dict[str, Any]) -> None:
    life = Watched("ER", GAMES[0], **changes).live(400)
    assert life.agent.episodes.min() > 5
    assert all(torch.equal(acted_obs, life.fresh(t)) for t, acted_obs in enumerate(life.observations))


@pytest.mark.parametrize("ticks", [1, 7])
def test_an_epoch_begins_with_what_is(ticks: int) -> None:
    """With epochs of one step nobody ever sees anything stale; with longer ones, not in their first step."""
    life = Watched("ER", GAMES[0], stale_observation=True)
    for _ in range(420 // ticks):
        life.loop.epoch(ticks)
    fresh = [torch.equal(acted_obs, life.fresh(t)) for t, acted_obs in enumerate(life.observations)]
    assert life.agent.episodes.min() > 5 and all(fresh[::ticks])
    assert all(fresh) == (ticks == 1)


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("game", GAMES)
def test_the_perfect_model_remembers_the_states_that_were_acted_in(game: str, stale: bool) -> None:
    """Where an episode ended, that of the new one next. Seed and time are nobody's business."""
    life = Watched("PerfectModel", game, buffer_size=60, stale_observation=stale).live(50)
    batch = life.agent.replay_buffer.batch(((torch.arange(50) + 0.5) / 50).expand(2, -1))
    assert isinstance(batch, Tensor)
    assert torch.equal(batch[:, :, 2:], torch.cat(life.states, 1)[:, :, 2:]) and not batch[:, :, :2].any()


@pytest.mark.parametrize("name", ["ER", "SimpleModel", "CategoricalLatent", "GaussianLatent"])
def test_the_others_remember_transitions_in_bits(name: str) -> None:
    life = Watched(name, GAMES[0], buffer_size=60).live(50)
    assert life.agent.replay_buffer.rows()["obs"].dtype == torch.bool
    batch = life.agent.replay_buffer.batch(((torch.arange(50) + 0.5) / 50).expand(2, -1))
    assert isinstance(batch, Batch)
    obs, action, next_obs, reward, discount, _ = (torch.cat(parts, 1) for parts in zip(*life.transitions, strict=True))
    for actual, expected in zip(dataclasses.astuple(batch), (obs, next_obs, action, reward, discount), strict=True):
        assert torch.equal(actual, expected)
    assert not batch.continues.all()


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
    (64, True, 5, 2 * 64 + 5), (15, True, 128, 2 * 15 + 5), (15, True, 129, 2 * 15 + 4 + 8), (4, False, 2, 2 * 16 + 5),
])  # fmt: skip
def test_transitions_come_back_as_they_were_from_few_bytes(obs: int, bits: bool, actions: int, row_size: int) -> None:
    """A byte a bit and five; with 64 bits, as ProcMaze's of size 4, thirty seeds of 100,000 rows fit in 400 MB."""
    columns = Transitions.layout(obs, actions, bits)
    assert row_bytes(columns) == row_size and 30 * 100_000 * (2 * 64 + 5) <= 400e6
    fields, replay = transitions(3, bits, obs, actions), Transitions(columns, 7, 3, CPU)
    for t in range(7):
        replay.observe(**{name: part[:, t : t + 1] for name, part in fields.items()})
    batch = dataclasses.asdict(replay.batch(((torch.arange(7) + 0.5) / 7).expand(3, -1)))
    for name, part in batch.items():
        assert part.dtype == (torch.int64 if name == "action" else torch.float32)
        assert torch.equal(part, fields[name].to(part.dtype)) and part.is_contiguous()
    stored = replay.rows()["action"].T  # below zero where the episode ended
    assert torch.equal(stored.long(), torch.where(fields["continues"], fields["action"], -fields["action"] - 1))


@pytest.mark.parametrize("game", ["procmaze,grid_size=4", "cartpole"])
def test_states_come_back_without_seed_and_time(game: str) -> None:
    """Whole numbers in two bytes a column: position, goal and sixteen cells of a maze of size 4. Others as they are."""
    dynamics = make_dynamics(game)
    assert dynamics is not None
    states = dynamics.initial(torch.arange(2**31 - 9, 2**31 - 2)[:, None])  # [7, 1, K], whose seeds are large
    skip = 2 if game.startswith("procmaze") else 0
    replay = States(10, 7, dynamics, CPU)
    assert row_bytes(replay.columns) == (2 * 18 if skip else 4 * 8)
    replay.visit(states)
    batch = replay.batch(torch.zeros(7, 1))
    assert batch.dtype == states.dtype and torch.equal(batch[..., skip:], states[..., skip:])
    assert not batch[..., :skip].any() and torch.equal(dynamics.observe(batch), dynamics.observe(states))


# -- another device ----------------------------------------------------------------------------------------------------


ELSEWHERE = torch.device("meta")  # tensors without contents


@pytest.fixture(autouse=True)
def dynamics_of_its_own() -> Iterator[None]:
    """What a test moves elsewhere as it stands would else be that of all other environments."""
    _cached_dynamics.cache_clear()
    yield
    _cached_dynamics.cache_clear()


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of other devices than `ELSEWHERE`, but for single numbers, which may come along."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            assert not isinstance(leaf, Tensor) or leaf.device == ELSEWHERE or leaf.dim() == 0, function
        return result


def moved(thing: Any, memo: dict[int, Any]) -> Any:
    """``thing`` with all tensors of ours in it, wherever they lie, on `ELSEWHERE`."""
    if id(thing) in memo:
        return memo[id(thing)]
    if isinstance(thing, torch.device):
        return ELSEWHERE
    if isinstance(thing, Tensor):
        moved_tensor = thing.detach().to(ELSEWHERE)
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
    (case, game) for case in MODELS for game in GAMES if game == GAMES[0] or ALL[case][0] == "PerfectModel"
])  # fmt: skip
def test_updates_stay_on_their_device_and_take_nothing_back(case: str, game: str) -> None:
    """An agent that has lived a little is moved to where tensors have no contents: a shape or a branch that depends on
    a number is refused there. So an update can be captured as a graph."""
    agent = moved(Watched(case, game, training_start_time=0).live(6).agent, {id(CPU): CPU})
    numbers = agent.numbers_of_update(0)
    with OneDevice(), torch.no_grad():
        losses = agent.update(numbers)
    for loss in losses.values():
        assert loss.device == ELSEWHERE and loss.shape == (2,)
        with pytest.raises(RuntimeError, match="item"):
            bool(loss[0] > 0)
    with OneDevice(), pytest.raises(AssertionError):
        torch.bmm(losses["loss"].view(1, 1, 2), torch.zeros(1, 2, 1))
    assert {part.device for part in (*agent.state_dict().values(), *agent.replay_buffer.rows().values())} == {ELSEWHERE}


@pytest.mark.parametrize("game", GAMES)
def test_a_world_that_was_moved_is_not_asked_for_starts(game: str) -> None:
    """`ChanceDynamics.initial` is for those that were not."""
    loop = step_loop("PerfectModel", game, seeds=1)
    with pytest.MonkeyPatch.context() as patch:
        twin = loop.environment.dynamics.to(ELSEWHERE)  # type: ignore[attr-defined]
        patch.setattr(type(twin), "initial", lambda self, seeds: pytest.fail("asked"))
        agent = Agent(loop.agent.config, loop.environment.spaces, [0], twin)
    assert agent.replay_buffer.columns == loop.agent.replay_buffer.columns
