"""Agents of the model-generalisation family in their worlds: each member by itself, resuming, stale observations, what
is remembered, and updates that ask nothing of the device."""

import dataclasses
from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from control.interaction import Interaction
from control.rollout import GreedyActor, rollout
from control.step_module import Group
from envs.make import make_environment
from envs.tensor import TensorEnvironment
from helpers import different
from models.agents import default_config
from models.agents.model_generalisation.agent import Agent
from models.agents.model_generalisation.draws import Draws
from models.agents.model_generalisation.replay import Replay, StateReplay
from models.settings import SettingError
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams

CPU = torch.device("cpu")
NAMES = ["ER", "PerfectModel", "SimpleModel", "CategoricalLatent", "GaussianLatent"]
GAMES = ["procmaze,grid_size=3", "buttongrid,grid_size=4", "panflute,num_pipes=3"]
# Odd sizes, so that vector tails are exercised; a memory that goes round; learning from the sixth step on.
TINY: dict[str, Any] = {
    "num_hidden_layers": 2, "num_hidden_units": 11, "batch_size": 9, "rollout_length": 3, "num_features": 3,
    "feature_width": 5, "buffer_size": 23, "training_start_time": 3, "eval_frequency": 5, "target_update_frequency": 7,
    "Q_alpha": 3e-3, "model_alpha": 3e-3,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in NAMES} | {
    "ER-silu": ("ER", {"activation": "silu", "updates_per_step": 2, "double_DQN": True}),
    "ER-epsilon": ("ER", {"exploration_strat": "epsilon_greedy", "activation": "relu", "batch_size": 1}),
    "perfect-relu": ("PerfectModel", {"activation": "relu", "use_target": False, "num_hidden_units": 7}),
    "simple-silu": ("SimpleModel", {"activation": "silu", "rollout_batch_size": 5, "num_hidden_units": 17}),
    "simple-faithful": ("SimpleModel", {"faithful_to_paper": True, "activation": "relu", "batch_size": 1}),
    "simple-no-bits": ("SimpleModel", {"binary_obs": False, "double_DQN": True}),
    "categorical-silu": ("CategoricalLatent", {"activation": "silu", "posterior_entropy_weight": 0.3}),
    "categorical-wide": ("CategoricalLatent", {"num_hidden_units": 33, "feature_width": 17, "rollout_batch_size": 1}),
    "gaussian-softplus": ("GaussianLatent", {"std_act": "softplus", "posterior_entropy_weight": 0.3}),
    "gaussian-deviations": ("GaussianLatent", {"binary_obs": False, "learn_obs_variance": True, "num_features": 7}),
    "tanh-sigmoid": ("GaussianLatent", {"latent_type": "tanh_gaussian", "std_act": "sigmoid", "activation": "silu"}),
}  # fmt: skip


class Life:
    """Members of one agent in a world, tick by tick."""

    def __init__(self, case: str, game: str, seeds: list[int], **changes: Any):
        name, own = CASES[case]
        config = dataclasses.replace(default_config(name, game), **(TINY | own | changes))
        environment = make_environment(game, len(seeds), 1, time_limit=0)
        assert isinstance(environment, TensorEnvironment)
        self.game, self.environment = game, environment
        self.agent = Agent(config, environment.spaces, seeds, environment.on_device)
        self.interaction = Interaction(self.agent, environment, Streams.named(seeds, "episodes"))
        self.losses: list[Tensor] = []

    def live(self, ticks: int) -> Self:
        for _ in range(ticks):
            self.interaction.tick()
            self.losses.append(self.interaction.loss)
        return self

    def evaluate(self, episodes: int = 3) -> Tensor:
        """Returns and lengths ``[M, 2 K]`` of greedy episodes of at most 40 steps."""
        environment = make_environment(self.game, self.agent.members, episodes, time_limit=40)
        seeds = torch.arange(episodes).expand(self.agent.members, -1)
        played = rollout(GreedyActor(self.agent), environment, seeds, keep=False)
        return torch.cat((played.returns, played.lengths), 1)

    def everything(self) -> dict[str, Tensor]:
        """What belongs to members, ``[M, ...]``."""
        agent = self.agent
        optimizers = [agent.values.optimizer, *([agent.model.optimizer] if hasattr(agent.model, "optimizer") else [])]
        moments = [part for optimizer in optimizers for part in (*optimizer.means, *optimizer.squares)]
        found = dict(agent.state_dict()) | {f"moment {i}": part for i, part in enumerate(moments)}
        found |= {f"memory {name}": rows[:, : agent.memory.size] for name, rows in agent.memory.tables.items()}
        found |= {"losses": torch.stack(self.losses, 1), "state": self.environment.state, "episodes": agent.episodes}
        return {name: value.detach().clone() for name, value in (found | agent.measured()).items()}

    def state(self) -> dict[str, Any]:
        parts = {"weights": self.agent.state_dict(), "rest": self.agent.resume_state()}
        return parts | {"loop": self.interaction.resume_state()}

    def load(self, state: dict[str, Any]) -> Self:
        self.agent.load_state_dict(state["weights"])
        self.agent.load_resume_state(state["rest"])
        self.interaction.load_resume_state(state["loop"])
        return self


def of(numbers: dict[str, Tensor], members: list[int]) -> dict[str, Tensor]:
    return {name: value[members] for name, value in numbers.items()}


# -- each member by itself ---------------------------------------------------------------------------------------------


EVERYWHERE = [(case, game) for case in NAMES for game in GAMES]
ONCE = [(case, GAMES[i % 3]) for i, case in enumerate(CASES) if case not in NAMES]


@pytest.mark.parametrize(("case", "game"), EVERYWHERE + ONCE)
def test_a_member_alone_is_itself_in_company_to_the_bit(case: str, game: str) -> None:
    """Of one, of two, and of three or thirty, whose tails are elsewhere."""
    seeds = list(range(30 if (case, game) in EVERYWHERE[::3] else 3))
    company = Life(case, game, seeds).live(20).everything()
    assert not company["losses"][:, :5].isfinite().any() and company["losses"][:, 5:].isfinite().all()
    assert len(company["values.online.flat"].unique(dim=0)) == len(seeds)
    for members in ([seeds[-1]], [0, 1]):
        alone = Life(case, game, members).live(20).everything()
        assert list(different(alone, of(company, members))) == []


@pytest.mark.parametrize("name", NAMES)
def test_evaluations_of_a_member_do_not_depend_on_its_company(name: str) -> None:
    """Though in company an evaluation lasts as long as somebody's longest episode; and they leave no trace in what is
    learned."""
    seeds = [0, 1, 2]
    company, never = (Life(name, GAMES[0], seeds) for _ in range(2))
    played = [company.live(5).evaluate() for _ in range(4)]
    assert list(different(company.everything(), never.live(20).everything())) == []
    for m in seeds:
        alone = Life(name, GAMES[0], [m])
        for returns in played:
            assert torch.equal(alone.live(5).evaluate()[0], returns[m])


# -- resuming ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "game"), [
    ("ER", GAMES[0]), ("ER-silu", GAMES[1]), ("PerfectModel", GAMES[0]), ("PerfectModel", GAMES[1]),
    ("SimpleModel", GAMES[2]), ("simple-faithful", GAMES[0]), ("CategoricalLatent", GAMES[2]),
    ("GaussianLatent", GAMES[1]), ("tanh-sigmoid", GAMES[0]),
])  # fmt: skip
def test_goes_on_from_its_state_as_if_nothing_had_been(case: str, game: str, tmp_path) -> None:
    """Before learning begins, before the memory is full, and after."""
    whole = Life(case, game, [4, 5])
    for ticks in (0, 3, 22):
        whole.live(ticks)
        torch.save(whole.state(), tmp_path / "state")
        resumed = Life(case, game, [4, 5]).load(torch.load(tmp_path / "state", weights_only=True))
        whole.losses = []
        whole.agent.measured()
        seen = whole.live(7).everything(), resumed.live(7).everything()
        assert list(different(*seen)) == []
        assert torch.equal(whole.evaluate(), resumed.evaluate())


@pytest.mark.parametrize("count", [2, 1000, 70_000])
def test_random_numbers_go_on_from_every_tick_of_a_block(count: int) -> None:
    """128 ticks at once, 65, or one; the last tick of a block among them."""
    wanted = {"uniform": {"a": (2, count // 2), "b": (1,)}, "normal": {"c": (3,)}}
    whole = Draws([3, 4], wanted, CPU)
    for tick in range(131):
        resumed = None
        if tick in (0, 1, 2, 64, 65, 66, 127, 128, 129):
            resumed = Draws([3, 4], wanted, CPU)
            resumed.load_state(whole.state())
        numbers = whole.tick()
        assert resumed is None or list(different(numbers, resumed.tick())) == [], tick
        shapes = {name: tuple(part.shape) for name, part in numbers.items()}
        assert shapes == {"a": (2, 2, count // 2), "b": (2, 1), "c": (2, 3)}


def test_random_numbers_are_never_drawn_twice() -> None:
    draws = Draws([3], {"uniform": {"a": (1000,)}, "gumbel": {"b": (50,)}}, CPU)
    numbers = torch.cat([torch.cat(list(draws.tick().values()), 1) for _ in range(150)])
    assert len(numbers.unique(dim=0)) == 150 and (numbers[:, :1000] < 1).all() and (numbers[:, :1000] >= 0).all()
    alone = Draws([9, 3], {"uniform": {"a": (1000,)}, "gumbel": {"b": (50,)}}, CPU)
    both = torch.stack([torch.cat(list(alone.tick().values()), 1) for _ in range(150)], 1)
    assert torch.equal(both[1], numbers)


# -- stale observations ------------------------------------------------------------------------------------------------


class Watched(Life):
    """Keeps what the agent was shown, the states it acted in and what it was told."""

    def __init__(self, *given: Any, **changes: Any):
        super().__init__(*given, **changes)
        self.shown: list[Tensor] = []
        self.states: list[Tensor] = []
        self.told: list[tuple[Tensor, ...]] = []
        act, observe = self.agent.act, self.agent.observe

        def watched_act(obs: Tensor) -> Tensor:
            self.shown.append(obs.clone())
            self.states.append(self.environment.state.clone())
            return act(obs)

        def watched_observe(*step: Tensor) -> None:
            self.told.append(tuple(part.clone() for part in step))
            observe(*step)

        self.agent.act, self.agent.observe = watched_act, watched_observe  # type: ignore[method-assign]

    def fresh(self, tick: int) -> Tensor:
        return self.environment.dynamics.observe(self.states[tick])


@pytest.mark.parametrize("changes", [{"stale_observation": True}, {"faithful_to_paper": True}], ids=str)
def test_a_stale_agent_acts_once_on_what_it_last_saw_of_an_episode(changes: dict[str, Any]) -> None:
    """And remembers it as a step from there into the new maze, which costs 1 and does not end unless that starts on its
    goal. Everywhere else it sees what is."""
    life = Watched("ER", GAMES[0], [0, 1], buffer_size=200, **changes).live(200)
    after = torch.stack([told[5] for told in life.told]).squeeze(2).roll(1, 0)  # [T, M]: an episode ended just before
    after[0] = False
    stale = 0
    for t, m in torch.cartesian_prod(torch.arange(200), torch.arange(2)).tolist():
        shown, told = life.shown[t][m, 0], [part[m, 0] for part in life.told[t]]
        obs, action, next_obs, reward, discount, _ = told
        assert torch.equal(obs, shown)
        if not after[t, m]:
            assert torch.equal(shown, life.fresh(t)[m, 0])
            continue
        assert torch.equal(shown, life.told[t - 1][2][m, 0])
        stale += not torch.equal(shown, life.fresh(t)[m, 0])
        state = life.states[t][m, 0]
        assert reward == -1 and discount == (state[2] != state[3])
        step = life.environment.dynamics.step(life.states[t], torch.full((2, 1), int(action)))
        assert torch.equal(next_obs, life.environment.dynamics.observe(step[0])[m, 0])
        row = {name: table[m, t] for name, table in life.agent.memory.tables.items()}
        assert torch.equal(row["obs"].float(), shown) and torch.equal(row["next_obs"].float(), next_obs)
        assert row["action"] == (action if discount else ~action) and row["reward"] == -1
    assert stale > 5


@pytest.mark.parametrize("changes", [{}, {"faithful_to_paper": True, "stale_observation": False}], ids=str)
def test_others_always_see_what_is(changes: dict[str, Any]) -> None:
    life = Watched("ER", GAMES[0], [0, 1], **changes).live(200)
    assert life.agent.episodes.min() > 5
    assert all(torch.equal(shown, life.fresh(t)) for t, shown in enumerate(life.shown))


@pytest.mark.parametrize("ticks", [1, 7])
def test_an_epoch_begins_with_what_is(ticks: int) -> None:
    """With epochs of one step nobody ever sees anything stale; with longer ones, not in their first step."""
    life = Watched("ER", GAMES[0], [0, 1], stale_observation=True)
    group = Group(torch.arange(2), life.agent, life.interaction, life.environment)
    for _ in range(210 // ticks):
        group.epoch(ticks)
    fresh = [torch.equal(shown, life.fresh(t)) for t, shown in enumerate(life.shown)]
    assert life.agent.episodes.min() > 5 and all(fresh[::ticks])
    assert all(fresh) == (ticks == 1)


def test_a_stale_agent_resumes_in_the_midst_of_its_staleness() -> None:
    whole = Watched("ER", GAMES[0], [0], stale_observation=True)
    while not (whole.told and whole.told[-1][5].any()):
        whole.live(1)
    resumed = Watched("ER", GAMES[0], [0], stale_observation=True).load(whole.state())
    for life in (whole, resumed):
        life.live(1)
    assert torch.equal(whole.shown[-1], resumed.shown[-1]) and not torch.equal(resumed.shown[-1], whole.fresh(-1))


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("game", GAMES)
def test_the_perfect_model_remembers_the_states_that_were_acted_in(game: str, stale: bool) -> None:
    """Where an episode ended, that of the new one next. Seed and time are nobody's business."""
    life = Watched("PerfectModel", game, [0, 1], buffer_size=60, stale_observation=stale).live(50)
    assert isinstance(life.agent.memory, StateReplay)
    found = life.agent.memory.batch(((torch.arange(50) + 0.5) / 50).expand(2, -1))
    assert torch.equal(found[:, :, 2:], torch.cat(life.states, 1)[:, :, 2:]) and not found[:, :, :2].any()


@pytest.mark.parametrize("name", ["ER", "SimpleModel", "CategoricalLatent", "GaussianLatent"])
def test_the_others_remember_transitions_in_bits(name: str) -> None:
    life = Watched(name, GAMES[0], [0, 1], buffer_size=60).live(50)
    assert isinstance(life.agent.memory, Replay) and life.agent.memory.tables["obs"].dtype == torch.bool
    batch = life.agent.memory.batch(((torch.arange(50) + 0.5) / 50).expand(2, -1))
    obs, action, next_obs, reward, discount, _ = (torch.cat(parts, 1) for parts in zip(*life.told, strict=True))
    for ours, theirs in zip(dataclasses.astuple(batch), (obs, next_obs, action, reward, discount), strict=True):
        assert torch.equal(ours, theirs)
    assert not batch.going_on.all()


# -- odds and ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "period", "first"), [(0, 5, 0), (3, 5, 5), (5, 5, 5), (6, 5, 10), (8, 1, 8)])
def test_learning_begins_with_the_first_period_after_its_start(start: int, period: int, first: int) -> None:
    """As in the original, where a period trains if it begins no sooner: after ``first`` steps without an update."""
    life = Life("ER", GAMES[0], [0, 1], training_start_time=start, eval_frequency=period)
    before = life.agent.values.online.flat.detach().clone()
    for tick in range(12):
        life.live(1)
        assert life.agent.learning().tolist() == [tick >= first] * 2
        assert (life.losses[-1].isfinite() == (tick >= first)).all()
        assert torch.equal(life.agent.values.online.flat, before) == (tick < first)


@pytest.mark.parametrize("name", NAMES)
def test_measured_are_means_since_it_was_last_asked(name: str) -> None:
    expected = {
        "SimpleModel": {"reward", "termination", "obs"},
        "CategoricalLatent": {"reward", "termination", "obs", "kl"},
        "GaussianLatent": {"reward", "termination", "obs", "kl"},
    }.get(name, set())
    once, often = (Life(name, GAMES[2], [0, 1], updates_per_step=2).live(20) for _ in range(2))
    assert once.agent.measured().keys() == {f"train/model_{part}" for part in expected}
    often.agent.measured()
    assert often.agent.measured() == {}
    single = []
    for _ in range(4):
        once.live(1), often.live(1)
        single.append(often.agent.measured())
    for tag, mean in once.agent.measured().items():
        torch.testing.assert_close(mean, torch.stack([each[tag] for each in single]).mean(0))


@pytest.mark.parametrize("name", NAMES)
def test_greedy_takes_the_best_and_a_player_is_the_first_member(name: str) -> None:
    life = Life(name, GAMES[0], [0, 1, 2]).live(10)
    agent, obs = life.agent, torch.rand(3, 6, life.agent.obs_size).round()
    if "Latent" not in name:
        with torch.no_grad():
            best = agent.values(obs).argmax(2)
        assert torch.equal(agent.player().greedy(obs), best) and torch.equal(agent.first().greedy(obs[:1]), best[:1])
    assert agent.first().greedy(obs[:1]).shape == (1, 6)
    with torch.no_grad():
        for part in agent.values.parameters():
            part.zero_()
    assert not agent.player().greedy(obs).any()  # of equal values the first


@pytest.mark.parametrize(("name", "game", "changes", "named"), [
    ("SimpleModel", "cartpole", {"binary_obs": True}, "binary_obs"),
    ("GaussianLatent", GAMES[0], {"learn_obs_variance": True}, "learn_obs_variance"),
])  # fmt: skip
def test_what_cannot_be_is_refused(name: str, game: str, changes: dict[str, Any], named: str) -> None:
    environment = make_environment(game, 1, 1)
    config = dataclasses.replace(default_config(name, game), **(TINY | changes))
    with pytest.raises(SettingError, match=f"^{named} is "):
        Agent(config, environment.spaces, [0], environment.on_device)  # type: ignore[attr-defined]


@pytest.mark.parametrize("spaces", [
    Spaces((3, 8, 8), Discrete(2), torch.uint8), Spaces((3,), Continuous((-1.0,), (1.0,)))
])  # fmt: skip
def test_images_and_continuous_actions_are_refused(spaces: Spaces) -> None:
    with pytest.raises(SettingError):
        Agent(default_config("ER", ""), spaces, [0])


# -- another device ----------------------------------------------------------------------------------------------------


ELSEWHERE = torch.device("meta")  # tensors without contents


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of other devices than `ELSEWHERE`, but for single numbers, which may come along."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for each in tree_leaves((args, kwargs, found)):
            assert not isinstance(each, Tensor) or each.device == ELSEWHERE or each.dim() == 0, function
        return found


def moved(thing: Any, memo: dict[int, Any]) -> Any:
    """``thing`` with all tensors of ours in it, wherever they lie, on `ELSEWHERE`."""
    if id(thing) in memo:
        return memo[id(thing)]
    if isinstance(thing, torch.device):
        return ELSEWHERE
    if isinstance(thing, Tensor):
        found = thing.detach().to(ELSEWHERE)
        memo[id(thing)] = nn.Parameter(found, thing.requires_grad) if isinstance(thing, nn.Parameter) else found
        return memo[id(thing)]
    if isinstance(thing, tuple):
        return tuple(moved(each, memo) for each in thing)
    memo[id(thing)] = thing
    if isinstance(thing, list):
        thing[:] = [moved(each, memo) for each in thing]
    elif isinstance(thing, dict):
        thing.update({key: moved(value, memo) for key, value in thing.items()})
    elif type(thing).__module__.partition(".")[0] in ("models", "envs") and hasattr(thing, "__dict__"):
        moved(vars(thing), memo)
    return thing


@pytest.mark.parametrize(("case", "game"), [
    (case, game) for case in CASES for game in GAMES if game == GAMES[0] or CASES[case][0] == "PerfectModel"
])  # fmt: skip
def test_updates_stay_on_their_device_and_take_nothing_back(case: str, game: str) -> None:
    """An agent that has lived a little is moved to where tensors have no contents: a shape or a branch that depends on
    a number is refused there. So an update can be captured as a graph."""
    agent = moved(Life(case, game, [0, 1]).live(6).agent, {id(CPU): CPU})
    drawn = {name: agent._now[name][:, 0] for name in agent._of_updates}
    memory = agent.memory.tables
    with OneDevice(), torch.no_grad():
        losses = agent.update(drawn)
    for loss in losses.values():
        assert loss.device == ELSEWHERE and loss.shape == (2,)
        with pytest.raises(RuntimeError, match="item"):
            bool(loss[0] > 0)
    with OneDevice(), pytest.raises(AssertionError):
        torch.bmm(losses["loss"].view(1, 1, 2), torch.zeros(1, 2, 1))
    assert {part.device for part in (*agent.state_dict().values(), *memory.values())} == {ELSEWHERE}


@pytest.mark.parametrize("game", GAMES)
def test_a_world_that_was_moved_is_not_asked_for_starts(game: str) -> None:
    """`ChanceDynamics.initial` is for those that were not."""
    life = Life("PerfectModel", game, [0])
    with pytest.MonkeyPatch.context() as patch:
        twin = life.environment.dynamics.to(ELSEWHERE)  # type: ignore[attr-defined]
        patch.setattr(type(twin), "initial", lambda self, seeds: pytest.fail("asked"))
        agent = Agent(life.agent.config, life.environment.spaces, [0], twin)
    assert agent.memory.tables["state"].shape == life.agent.memory.tables["state"].shape
