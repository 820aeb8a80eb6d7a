"""Lock-step ticks: what an agent is told, whose seeds start which episode, keeping members, and resuming."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor

from control.loops.steps import BLOCK, Ended, StepLoop
from envs.base import Environment
from envs.make import make_environment
from envs.synthetic import SyntheticDynamics, starts_of
from envs.tensor import TensorEnvironment
from helpers import STEPPED_CAR
from models.agents.ddqn.agent import Agent
from models.agents.ddqn.config import Config
from models.proxies.synthetic.config import Config as ProxyConfig
from models.proxies.synthetic.networks import Networks
from models.streams import Streams

SMALL = Config(hidden_sizes=(8,), batch_size=5, init_episodes=1, lr=1e-2)


def synthetic(members: int, envs: int, bandit: bool = False) -> TensorEnvironment:
    """Stand-ins for CartPole with learned first states, whose episodes differ in length; the first's all last to the
    limit of 30."""
    real = make_environment("cartpole", 1, 1)
    settings = ProxyConfig(proxy="bandit" if bandit else "mdp", proxy_hidden_size=8, learned_reset=True, max_steps=30)
    networks = Networks(settings, real.spaces)
    flat = 2 * networks.initial(Streams(range(members)))
    if not bandit:
        networks.parts["done"].layers(networks.split(flat)["done"])[-1][1][0] -= 9
    return TensorEnvironment(SyntheticDynamics(networks.program(flat), real.spaces, starts_of(real)), members, envs)


def environment_of(name: str, members: int, envs: int) -> Environment:
    if name in ("synthetic", "bandit"):
        return synthetic(members, envs, name == "bandit")
    return make_environment(name, members, envs)


def started(name: str, seeds: list[int], envs: int = 1, config: Config = SMALL) -> StepLoop:
    environment = environment_of(name, len(seeds), envs)
    agent = Agent(Config(**{**vars(config), "num_envs": envs}), environment.spaces, seeds)
    return StepLoop(agent, environment, Streams.from_name(seeds, "episodes"))


class Recorder:
    """An agent that plays given actions and remembers all it is told."""

    device, knows_dynamics, acts_on_stale = torch.device("cpu"), False, False

    def __init__(self, actions: Tensor):
        self.actions, (_, self.members, self.envs) = actions, actions.shape
        self.transitions: list[tuple[Tensor, ...]] = []
        self.acted_on: list[Tensor] = []

    def act(self, obs: Tensor) -> Tensor:
        self.acted_on.append(obs.clone())
        return self.actions[len(self.acted_on) - 1]

    def observe(self, *parts: Tensor) -> None:
        self.transitions.append(tuple(part.clone() for part in parts))

    def learn(self) -> Tensor:
        return torch.zeros(self.members)


def recorded(name: str, ticks: int, members: int = 2, envs: int = 2) -> tuple[Recorder, list[Ended | None], StepLoop]:
    environment = environment_of(name, members, envs)
    actions = torch.randint(2, (ticks, members, envs), generator=torch.Generator().manual_seed(0))
    recorder = Recorder(actions)
    interaction = StepLoop(recorder, environment, Streams.from_name(range(members), "episodes"))
    return recorder, [interaction.step() for _ in range(ticks)], interaction


@pytest.mark.parametrize("name", ["cartpole", "synthetic", "bandit", STEPPED_CAR])
def test_an_agent_is_told_whole_episodes(name: str) -> None:
    """Observations follow one another, except behind an end: there the memory has the last of the old episode, and
    the agent acts on the first of the new one. Returns and lengths are those of what the agent was told."""
    ticks = 230 if name == STEPPED_CAR else 80
    recorder, all_ended, _ = recorded(name, ticks)
    returns, lengths, counted = torch.zeros(2, 2), torch.zeros(2, 2), 0
    for t, (obs, action, next_obs, reward, _, done) in enumerate(recorder.transitions):
        assert torch.equal(obs, recorder.acted_on[t]) and torch.equal(action, recorder.actions[t])
        if t + 1 < ticks:
            same = (next_obs == recorder.acted_on[t + 1]).all(-1)
            assert torch.equal(same, ~done)
        returns, lengths, finished = returns + reward, lengths + 1, all_ended[t]
        assert (finished is not None) == bool(done.any())
        if finished is not None:
            where = done.nonzero(as_tuple=True)
            assert torch.equal(finished.members, where[0]) and finished.step == t + 1
            assert torch.equal(finished.returns, returns[where]) and torch.equal(
                finished.lengths, lengths[where].long()
            )
            returns, lengths, counted = returns * ~done, lengths * ~done, counted + len(where[0])
    assert counted >= 4


@pytest.mark.parametrize(("name", "discount"), [("probe-1", 0.0), ("probe-truncated", 1.0), ("cartpole", 0.0)])
def test_a_time_limit_is_no_end(name: str, discount: float) -> None:
    recorder, _, _ = recorded(name, 60)
    at_ends = torch.cat([transition[4][transition[5]] for transition in recorder.transitions])
    assert len(at_ends) > 4 and (at_ends == discount).all()
    assert all((transition[4][~transition[5]] == 1).all() for transition in recorder.transitions)


def test_the_environment_s_own_discount_reaches_the_agent() -> None:
    environment = synthetic(2, 1)
    dynamics: Any = environment.dynamics
    dynamics.raw_done = True
    recorder = Recorder(torch.zeros(40, 2, 1, dtype=torch.int64))
    interaction = StepLoop(recorder, environment, Streams.from_name([0, 1], "episodes"))
    for _ in range(40):
        interaction.step()
    for obs, action, _, _, discount, done in recorder.transitions:
        raw = dynamics.program.step(obs, action).done
        assert torch.equal(discount, 1 - raw) and torch.equal(done | (raw <= 0.5), torch.ones_like(done))


def test_every_episode_starts_from_its_own_seed() -> None:
    """The first observations are those of `interaction.seeds`, and all differ."""
    _, _, interaction = recorded("cartpole", 0)
    starts, firsts = starts_of(make_environment("cartpole", 1, 1)), []
    interaction.agent.actions = torch.zeros(300, 2, 2, dtype=torch.int64)
    for _ in range(300):
        previous_seeds = interaction.seeds
        finished = interaction.step()
        fresh = interaction.seeds != previous_seeds
        if finished is not None:
            assert interaction.obs is not None and torch.equal(interaction.obs[fresh], starts(interaction.seeds)[fresh])
            firsts += interaction.seeds[fresh].tolist()
    assert len(firsts) == len(set(firsts)) > 80


def test_blocks_in_which_no_episode_ended_are_passed_over_as_in_company() -> None:
    """The first member's episodes have one step each, the other's last to the limit, beyond two blocks of seeds."""
    limit = 2 * BLOCK + 44
    real = make_environment("cartpole", 1, 1)
    networks = Networks(ProxyConfig(proxy_hidden_size=3, max_steps=limit), real.spaces)
    proxies = torch.zeros(2, networks.size)
    networks.parts["done"].layers(networks.split(proxies)["done"])[-1][1][0] = 1.0
    results = []
    for members in ([0, 1], [1]):
        dynamics = SyntheticDynamics(networks.program(proxies[members]), real.spaces, starts_of(real))
        recorder = Recorder(torch.zeros(limit, len(members), 1, dtype=torch.int64))
        environment = TensorEnvironment(dynamics, len(members), 1)
        interaction = StepLoop(recorder, environment, Streams.from_name(members, "episodes"))
        first, finished = interaction.seeds, [interaction.step() for _ in range(limit)]
        assert (
            finished[-1] is not None and finished[-1].lengths[-1] == limit and not torch.equal(interaction.seeds, first)
        )
        results.append((interaction.seeds[-1], interaction.obs[-1]))  # type: ignore[index]
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize(("name", "ticks"), [("cartpole", 0), ("synthetic", 50), ("cartpole", BLOCK)])
def test_those_who_stay_go_on_as_before(name: str, ticks: int) -> None:
    full_loop, fewer, stay = started(name, [0, 1, 2, 3]), started(name, [0, 1, 2, 3]), torch.tensor([3, 1])
    for interaction in (full_loop, fewer):
        for _ in range(ticks):
            interaction.step()
    fewer.select(stay)
    for _ in range(140):
        full_finished, other = full_loop.step(), fewer.step()
        assert torch.equal(full_loop.obs[stay], fewer.obs)  # type: ignore[arg-type,index]
        fewer_lengths = (
            [] if other is None else list(zip(stay[other.members].tolist(), other.lengths.tolist(), strict=True))
        )
        full_lengths = (
            []
            if full_finished is None
            else list(zip(full_finished.members.tolist(), full_finished.lengths.tolist(), strict=True))
        )
        assert sorted(fewer_lengths) == [pair for pair in full_lengths if pair[0] in (1, 3)]
    assert torch.equal(full_loop.agent.flat_parameters[stay], fewer.agent.flat_parameters)
    assert torch.equal(full_loop.loss[stay].nan_to_num(-1), fewer.loss.nan_to_num(-1))


def resumed(name: str, loop: StepLoop) -> StepLoop:
    """Another one, from all that a checkpoint file has of ``loop``."""
    file, other = io.BytesIO(), started(name, loop.agent.seeds, envs=2)
    torch.save((loop.agent.state_dict(), loop.state_dict()), file)
    file.seek(0)
    weights, loop_state = torch.load(file, weights_only=True)
    other.agent.load_state_dict(weights)
    other.load_state_dict(loop_state)
    return other


@pytest.mark.parametrize(("name", "ticks"), [
    ("cartpole", 77), ("synthetic", 77), ("synthetic", BLOCK), ("bandit", BLOCK), ("lunarlander", 75),
    ("probe-truncated", 16), ("probe-truncated", 20),
])  # fmt: skip
def test_goes_on_from_its_state_to_the_bit(name: str, ticks: int) -> None:
    """In the middle of episodes of different ages, at their ends, and at the ends of blocks of seeds; and once more."""
    full_loop = started(name, [0, 1], envs=2)
    for _ in range(ticks):
        full_loop.step()
    other = resumed(name, full_loop)
    if name == "lunarlander":
        assert other.lengths.unique().numel() > 1
    for step in range(90):
        if step == 45:
            other = resumed(name, other)
        full_finished, resumed_finished = full_loop.step(), other.step()
        assert torch.equal(full_loop.obs, other.obs) and (full_finished is None) == (resumed_finished is None)  # type: ignore[arg-type]
        if full_finished is not None and resumed_finished is not None:
            assert full_finished.step == resumed_finished.step
            for field in ("members", "returns", "lengths"):
                assert torch.equal(getattr(full_finished, field), getattr(resumed_finished, field))
    assert (
        torch.equal(full_loop.agent.flat_parameters, other.agent.flat_parameters)
        and full_loop.steps == other.steps == ticks + 90
    )
    assert torch.equal(full_loop.loss, other.loss) and torch.equal(full_loop.seeds, other.seeds)


def test_only_the_actions_of_episodes_under_way_are_kept() -> None:
    interaction = started(STEPPED_CAR, [0, 1])
    environment: Any = make_environment(STEPPED_CAR, 2, 1, time_limit=8)
    interaction.environment = environment
    for tick in range(1, 30):
        interaction.step()
        assert len(environment._actions) == tick % 8
    assert environment.snapshot()["actions"].shape == (5, 2, 1)
