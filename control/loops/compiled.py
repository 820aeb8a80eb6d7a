"""`StepLoop` and `rollout` in machine code, for the agents and environments that have compiled functions.

One member after another makes all the steps of a block, by the same random numbers as in torch. So a member alone
equals a member in company to the bit, and the cost of a member does not depend on how many there are. Torch's path is
the oracle: tests/test_compiled.py holds the two together. Importing this takes Numba.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numba.extending import overload
from torch import Tensor

from control.loops.rollout import Episodes
from control.loops.steps import Ended, StepLoop
from control.loops.threads import for_members
from envs import compiled as envs
from envs.base import Environment
from envs.make import make_environment
from envs.tensor import TensorEnvironment
from models.agents.ddqn import compiled as ddqn
from models.agents.ppo import compiled as ppo
from models.agents.tabular import compiled as tabular
from models.agents.td3 import compiled as td3
from models.contract import InnerAgent, Policy
from models.machine import EXACT, INLINE, kernel
from models.registry import agent_class, default_config
from models.streams import Streams

Array = np.ndarray[Any, Any]
LOOK, _FEW = 64, 2048  # steps after which members that are done leave; of all together, that few members make at once
KINDS: dict[type, Any] = {ddqn.Agent: ddqn, ppo.Agent: ppo, tabular.Agent: tabular, td3.Agent: td3}
_POLICIES: dict[type, Any] = {ddqn.Greedy: ddqn, ppo.Play: ppo, tabular.Greedy: tabular, td3.Play: td3}


def choose(a, w, m, t, e, obs, state):  # type: ignore[no-untyped-def]
    """The action of one environment in ``state``, seen as ``obs``, by the function of the agent's kind; so
    the two below."""


def remember(a, w, m, t, e, obs, action, next_obs, state, reward, discount, done):  # type: ignore[no-untyped-def]
    """Take in a step of one environment, which is in ``state`` now."""


def improve(a, w, m, t):  # type: ignore[no-untyped-def]
    """The updates that a step owes."""


def decide(p, m, obs, state, rows, vector):  # type: ignore[no-untyped-def]
    """The action of greedy play, by the function of the policy's kind."""


def _compile_in(kind: Any) -> None:
    """Make the functions above those of one kind of agents, for its types."""
    inline: Any = EXACT | INLINE

    def members(a):  # type: ignore[no-untyped-def]
        return a.instance_class is kind.Members

    def find_choose(a, w, m, t, e, obs, state):  # type: ignore[no-untyped-def]
        return kind.choose if members(a) else None

    def find_remember(a, w, m, t, e, obs, action, next_obs, state, reward, discount, done):  # type: ignore[no-untyped-def]
        return kind.remember if members(a) else None

    def find_improve(a, w, m, t):  # type: ignore[no-untyped-def]
        return kind.improve if members(a) else None

    def find_decide(p, m, obs, state, rows, vector):  # type: ignore[no-untyped-def]
        return kind.decide if p.instance_class is kind.Player else None

    overload(choose, jit_options=inline)(find_choose)
    overload(remember, jit_options=inline)(find_remember)
    overload(improve, jit_options=kind.IMPROVES)(find_improve)
    overload(decide, jit_options=inline)(find_decide)


for _kind in KINDS.values():
    _compile_in(_kind)


class Block(NamedTuple):
    """Episodes of M members with E environments in a block of T steps."""

    state: Array  # [M, E, K]
    obs: Array  # [M, E, O]
    age: Array  # [M, E]
    returns: Array  # [M, E]
    lengths: Array  # [M, E]
    starts: Array  # [M, T, E, K], of episodes that begin after each step
    began: Array  # [M, E], the step after which the episode under way began; -1 before the block
    at: Array  # [M], steps of the block already made
    running: Array  # [M]
    pause: bool  # stop after a step that ends an episode
    done: Array  # [M, T, E] bool, episodes that ended, with what they gave and took
    gave: Array
    took: Array


class Tests(NamedTuple):
    """Greedy episodes of M members, by their weights of the moment: K each, the n-th time of N."""

    start: Array  # [M, N, K, S], the states that they start from
    returns: Array  # [M, N, K]
    lengths: Array  # [M, N, K]
    test_index: Array  # [T], the number of the test after each step of a block; -1 where there is none


class Hall(NamedTuple):
    """Memory of one greedy episode."""

    state: Array  # [S]
    rows: Array  # of its environment
    player_rows: Array  # of the player
    vector: Array
    # Of a map's cells: the latest episode that met each, where that went on, and what it was paid.
    last_episode: Array
    next: Array
    rewards: Array


def _no_tests(steps: int) -> Tests:
    returns, lengths = (np.empty((0, 0, 0), kind) for kind in (np.float32, np.int64))
    return Tests(np.empty((0, 0, 0, 0)), returns, lengths, np.full(steps, -1))


@kernel
def _episodes(p, world, tests, n, hall, first, last):
    """What members from the ``first`` to before the ``last`` play the n-th time."""
    obs, times, count = hall.rows[2, : world.obs_size], tests.start.shape[1], tests.start.shape[2]
    for m in range(first, last):
        for e in range(count):
            for k in range(len(hall.state)):
                hall.state[k] = tests.start[m, n, e, k]
            envs.observe(world, hall.state, obs)
            reward, total = np.float32(0), np.float32(0)
            steps, going, episode = 0, True, (m * times + n) * count + e
            while going:
                cell = int(hall.state[0])
                if len(hall.last_episode):
                    if hall.last_episode[cell] == episode:
                        break
                    hall.last_episode[cell] = episode
                action = decide(p, m, obs, hall.state, hall.player_rows, hall.vector)
                reward, ends, _, _ = envs.advance(world, m, hall.state, action, hall.vector, obs, hall.rows, reward)
                total, steps = total + reward, steps + 1
                going = not ends and steps < world.limit
                if len(hall.last_episode):
                    hall.next[cell], hall.rewards[cell] = int(hall.state[0]), reward
            if going:  # in circles to the end, since nothing is random on a map
                while steps < world.limit:
                    total, cell, steps = total + hall.rewards[cell], hall.next[cell], steps + 1
            tests.returns[m, n, e], tests.lengths[m, n, e] = total, steps


@kernel
def _steps(a, w, world, block, potentials, rows, p, real, tests, hall, first, last):
    """Every running member from the ``first`` to before the ``last`` makes its steps to the end of the block, or to the
    first that ends an episode, and the ``tests`` that are due on the ``real`` environment, as ``p``."""
    count, steps = block.state.shape[1], block.starts.shape[1]
    next_obs = rows[2, : world.obs_size]
    for m in range(first, last):
        if not block.running[m] or block.at[m] >= steps:
            continue
        if world.learned_reward and world.potential:
            for e in range(count):
                potentials[e] = envs.value(world, m, block.state[m, e], block.obs[m, e], rows)
        paused = False
        while block.at[m] < steps and not paused:
            t = block.at[m]
            for e in range(count):
                obs = block.obs[m, e]
                action = choose(a, w, m, t, e, obs, block.state[m, e])
                reward, ends, discount, potentials[e] = envs.advance(
                    world, m, block.state[m, e], action, w.vector, next_obs, rows, potentials[e]
                )
                block.age[m, e] += 1
                done = ends or block.age[m, e] >= world.limit
                remember(a, w, m, t, e, obs, action, next_obs, block.state[m, e], reward, discount, done)
                block.returns[m, e] += reward
                block.lengths[m, e] += 1
                block.done[m, t, e] = done
                if not envs.on_map(world):
                    for k in range(world.obs_size):
                        obs[k] = next_obs[k]
            for e in range(count):  # once all have acted, by the epsilon of before
                a.episodes[m] += block.done[m, t, e]
            improve(a, w, m, t)
            for e in range(count):
                if not block.done[m, t, e]:
                    continue
                block.gave[m, t, e], block.took[m, t, e] = block.returns[m, e], block.lengths[m, e]
                block.returns[m, e], block.lengths[m, e], block.age[m, e] = np.float32(0), 0, 0
                block.began[m, e] = t
                for k in range(block.state.shape[2]):
                    block.state[m, e, k] = block.starts[m, t, e, k]
                envs.observe(world, block.state[m, e], block.obs[m, e])
                if world.learned_reward and world.potential:
                    potentials[e] = envs.value(world, m, block.state[m, e], block.obs[m, e], rows)
                paused = block.pause
            if tests.test_index[t] >= 0:
                _episodes(p, real, tests, tests.test_index[t], hall, m, m + 1)
            block.at[m] = t + 1


def can_compile(loop: StepLoop) -> bool:
    """Whether this agent in this environment has compiled functions."""
    kind = KINDS.get(type(loop.agent))  # type: ignore[call-overload]
    plain = all(getattr(loop.agent, name, None) is None for name in ("curiosity", "drift"))
    able_of = getattr(kind, "can_compile", None)
    return (
        kind is not None and plain and (able_of is None or able_of(loop.agent)) and envs.can_compile(loop.environment)
    )


class OnTheWay:
    """Greedy episodes on ``real`` after every ``test_every`` steps of a training that begins: from ``starts [M, N, K]``
    (seeds), N times at most. ``returns`` and ``lengths [M, N, K]`` are known of the ``made`` first times."""

    def __init__(self, real: TensorEnvironment, world: envs.World, starts: Tensor, test_every: int):
        self.world, self.test_every, self.tests_done = world, test_every, 0
        self._start = real.dynamics.initial(starts).double().contiguous()
        self.returns, self.lengths = torch.zeros(starts.shape), torch.zeros(starts.shape, dtype=torch.int64)

    def tests(self, start_step: int, steps: int) -> Tests:
        """Those due in so many steps after the ``begun`` ones."""
        done = np.arange(start_step + 1, start_step + steps + 1)
        self.tests_done = (start_step + steps) // self.test_every
        test_index = np.where(done % self.test_every, -1, done // self.test_every - 1)
        return Tests(self._start.numpy(), self.returns.numpy(), self.lengths.numpy(), test_index)


def on_the_way(loop: StepLoop, real: Environment, starts: Tensor, test_every: int) -> OnTheWay | None:
    """Tests that `Advance` makes within its steps, of a training that begins; None where it cannot."""
    agent = loop.agent
    assert isinstance(agent, InnerAgent)
    playing = _playing(agent.with_weights(agent.online), real)
    if playing is None:
        return None
    assert isinstance(real, TensorEnvironment)
    return OnTheWay(real, playing[1], starts, test_every)


def _world(kind: type, environment: Environment) -> envs.World | None:
    return envs.world(environment, cells_only=kind in (tabular.Agent, tabular.Greedy))


def _playing(policy: Policy, environment: Environment) -> tuple[Any, envs.World] | None:
    """What plays greedily and on what; None where a compiled function is missing, or an episode may never end."""
    kind = _POLICIES.get(type(policy))
    if kind is None or not isinstance(environment, TensorEnvironment) or environment.spaces.max_episode_steps is None:
        return None
    player, world = kind.player(policy), _world(type(policy), environment)
    return None if player is None or world is None else (player, world)


def _hall(player: Any, world: envs.World, tests: Tests) -> Hall:
    player_rows, vector = np.empty((4, player.widest), np.float32), np.empty(player.vector, np.float32)
    cells = world.obs_size if world.kind == envs.CELLS else 0
    map_memory = np.full(cells, -1), np.empty(cells, np.int64), np.empty(cells, np.float32)
    return Hall(np.empty(tests.start.shape[3]), envs.memory(world), player_rows, vector, *map_memory)


class Shared(NamedTuple):
    """What all blocks of a training work with, as long as these are its ``environment`` and weights (``online``)."""

    environment: Environment
    online: Tensor
    world: envs.World
    player: Any
    place: envs.World  # of the tests
    memories: list[Any]  # of each thread


class Advance:
    """`StepLoop.advance` of one training in machine code, with the ``tests`` that are due. The ``threads`` share the
    members and change no number.

    Without ``pause`` no episodes are given: there may be one a step, and `StepAgent.episodes` counts them.
    """

    def __init__(self, threads: int = 1, tests: OnTheWay | None = None):
        self.threads, self.tests = threads, tests
        self._shared: Shared | None = None

    def __call__(self, loop: StepLoop, count: int, running: Tensor, pause: bool) -> Iterator[Ended]:
        agent: Any = loop.agent
        if loop.obs is None:
            loop.obs = loop._start(None)
        while count and running.any():
            numbers = agent.noise.ahead(count, _FEW // agent.members)
            steps = next(iter(numbers.values())).shape[1]
            yield from self._block(loop, numbers, steps, running, pause)
            count -= steps

    def _block(
        self, loop: StepLoop, numbers: dict[str, Tensor], steps: int, running: Tensor, pause: bool
    ) -> Iterator[Ended]:
        agent, environment, obs = loop.agent, loop.environment, loop.obs
        real = envs.beneath(environment)
        assert isinstance(agent, InnerAgent) and isinstance(real, TensorEnvironment) and obs is not None
        assert agent.envs == real.envs and agent.members == real.members  # compiled code looks at no bounds
        shape = (agent.members, steps, agent.envs)
        seeds, starts = loop.starts_ahead(steps)
        # Contiguous, for every other layout would be compiled by itself.
        state, starts, obs, age, returns, lengths = (
            array.to(torch.float64 if k < 2 else array.dtype, copy=True, memory_format=torch.contiguous_format)
            for k, array in enumerate((real.state, starts, obs, real.age, loop.returns, loop.lengths))
        )
        began = torch.full(age.shape, -1)
        at, done = torch.zeros(agent.members, dtype=torch.int64), torch.zeros(shape, dtype=torch.bool)
        gave, took = torch.zeros(shape), torch.zeros(shape, dtype=torch.int64)
        arrays = (state, obs, age, returns, lengths, starts, began, at, running)
        block = Block._make(
            (*(array.numpy() for array in arrays), pause, *(array.numpy() for array in (done, gave, took)))
        )
        members = KINDS[type(agent)].members(agent, numbers, steps, loop.loss)
        tests = _no_tests(steps) if self.tests is None else self.tests.tests(loop.steps, steps)
        _, _, world, player, tested, memories = self._shared_by(loop, members, tests)

        def run_steps(memory: Any, first: int, last: int) -> None:
            work, potentials, rows, hall = memory
            _steps(members, work, world, block, potentials, rows, player, tested, tests, hall, first, last)

        background_task = partial(loop.get_ready, steps) if self.threads > 1 else None
        while True:
            for_members(run_steps, agent.members, memories, background_task)
            if not pause:
                break
            where = done.nonzero(as_tuple=True)
            if len(where[0]):
                finished = Ended(where[0], gave[where], took[where], loop.steps + where[1] + 1)
                done.zero_()
                yield finished
            if not (running & (at < steps)).any():
                break
        if isinstance(world, envs.Map):
            obs = real.dynamics.observe(state.to(real.state.dtype))
        envs.moved(environment, state, age, obs)
        loop.obs, loop.returns, loop.lengths = obs, returns, lengths
        new_seeds = seeds.gather(1, began.clamp(min=0).unsqueeze(1)).squeeze(1)
        loop.seeds = torch.where(began >= 0, new_seeds, loop.seeds)
        loop.steps += steps
        count_steps: Any = agent.count_steps
        count_steps(steps)

    def _shared_by(self, loop: StepLoop, members: Any, tests: Tests) -> Shared:
        """What the blocks of a loop share, made anew once members have left."""
        agent, environment, shared = loop.agent, loop.environment, self._shared
        assert isinstance(agent, InnerAgent)
        if shared is not None and shared.environment is environment and shared.online is agent.online:
            return shared
        kind, world = KINDS[type(agent)], _world(type(agent), environment)
        player = kind.player(agent.with_weights(agent.online))
        assert world is not None and player is not None
        place = world if self.tests is None else self.tests.world
        memories = [
            (kind.work(members), np.zeros(agent.envs, np.float32), envs.memory(world), _hall(player, place, tests))
            for _ in range(self.threads)
        ]
        self._shared = Shared(environment, agent.online, world, player, place, memories)
        return self._shared


# -- tests -------------------------------------------------------------------------------------------------------------


def play(policy: Policy, environment: Environment, seeds: Tensor, threads: int = 1) -> Episodes | None:
    """`rollout` without a trajectory; None where a compiled function is missing, or an episode may never end."""
    playing = _playing(policy, environment)
    if playing is None:
        return None
    assert isinstance(environment, TensorEnvironment)
    (player, world), way = playing, OnTheWay(environment, playing[1], seeds.unsqueeze(1), 1)
    tests = way.tests(0, 1)
    halls = [_hall(player, world, tests) for _ in range(threads)]

    def run_episodes(hall: Hall, first: int, last: int) -> None:
        _episodes(player, world, tests, 0, hall, first, last)

    for_members(run_episodes, len(seeds), halls)
    return Episodes(way.returns[:, 0], way.lengths[:, 0])


def warm() -> None:
    """Compile everything, which is then kept on disk: a step of each kind of agent, and an episode."""
    for game, implementation in (
        ("cartpole", "DDQN"),
        ("cartpole", "PPO"),
        ("cliff", "QLearning"),
        ("pendulum", "TD3"),
    ):
        config = default_config(implementation, game)
        environment = make_environment(game, 1, config.num_envs, time_limit=1)
        agent: Any = agent_class(implementation)(config, environment.spaces, [0])
        loop = StepLoop(agent, environment, Streams([0]))
        list(Advance()(loop, 1, torch.ones(1, dtype=torch.bool), False))
        play(agent.with_weights(agent.online), environment, torch.zeros(1, 1, dtype=torch.int64))
