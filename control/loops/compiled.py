"""`StepLoop` and `rollout` in machine code, for agents and environments that have compiled functions.

One member makes all steps of a block, then the next member does, with the same random numbers as in torch. So a
member's numbers are equal to the bit for any number of members, and the cost per member is constant. The code in torch
is the reference: tests/test_compiled.py compares the two. Importing this requires Numba.
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
# COMPACT_EVERY: number of steps after which finished members leave. _FEW: few members make several blocks of steps in
# one call, up to this number of steps summed over members.
COMPACT_EVERY, _FEW = 64, 2048
KINDS: dict[type, Any] = {ddqn.Agent: ddqn, ppo.Agent: ppo, tabular.Agent: tabular, td3.Agent: td3}
_POLICIES: dict[type, Any] = {ddqn.Greedy: ddqn, ppo.Play: ppo, tabular.Greedy: tabular, td3.ActorPolicy: td3}


def choose(a, w, m, t, e, obs, state):  # type: ignore[no-untyped-def]
    """Return the action of member m in environment e at step t of the block; the environment is in ``state``, with
    observation ``obs``. `_compile_in` fills this stub and the next three with the functions of each kind of agent."""


def remember(a, w, m, t, e, obs, action, next_obs, state, reward, discount, done):  # type: ignore[no-untyped-def]
    """Store a step of environment e; ``state`` is the state after the step."""


def improve(a, w, m, t):  # type: ignore[no-untyped-def]
    """Make the updates of member m that are due after step t."""


def decide(p, m, obs, state, rows, vector):  # type: ignore[no-untyped-def]
    """Return the greedy action of member m. ``rows`` and ``vector`` are scratch memory (`EpisodeArrays`)."""


def _compile_in(kind: Any) -> None:
    """Register the functions of one kind of agent as implementations of the stubs above, for its types."""
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
    starts: Array  # [M, T, E, K], initial states of episodes that may begin after each step
    start_step: Array  # [M, E], the step after which the current episode began; -1 if before the block
    at: Array  # [M], number of steps of the block already made
    running: Array  # [M] bool
    pause: bool  # stop after a step that ends an episode
    done: Array  # [M, T, E] bool, whether a step ended an episode
    ended_returns: Array  # [M, T, E], returns of these episodes
    ended_lengths: Array  # [M, T, E], their lengths


class Tests(NamedTuple):
    """N tests of M members during training, each with the weights at that time: K greedy episodes per member."""

    start: Array  # [M, N, K, S], initial states
    returns: Array  # [M, N, K]
    lengths: Array  # [M, N, K]
    test_index: Array  # [T], index of the test after each step of a block; -1 if there is none


class EpisodeArrays(NamedTuple):
    """Scratch memory of one greedy episode."""

    state: Array  # [S]
    rows: Array  # memory of the environment (`envs.compiled.memory`)
    player_rows: Array  # [4, widest], memory of the player
    vector: Array  # [A], a continuous action
    # For each cell of a map: the latest episode that visited it, the next cell, and the reward. Otherwise empty.
    last_episode: Array
    next: Array
    rewards: Array


def _no_tests(steps: int) -> Tests:
    returns, lengths = (np.empty((0, 0, 0), kind) for kind in (np.float32, np.int64))
    return Tests(np.empty((0, 0, 0, 0)), returns, lengths, np.full(steps, -1))


@kernel
def _episodes(p, world, tests, n, hall, first, last):
    """Play the n-th test of the members from ``first`` to ``last - 1``, as player ``p``, and write its returns and
    lengths into ``tests``."""
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
            if going:  # a cell was visited twice: the episode repeats itself, because nothing is random on a map
                while steps < world.limit:
                    total, cell, steps = total + hall.rewards[cell], hall.next[cell], steps + 1
            tests.returns[m, n, e], tests.lengths[m, n, e] = total, steps


@kernel
def _steps(a, w, world, block, potentials, rows, p, real, tests, hall, first, last):
    """Make the steps of the running members from ``first`` to ``last - 1``: to the end of the block or, with
    ``block.pause``, to the first step that ends an episode. After a step with a test, play it as player ``p`` in the
    ``real`` environment."""
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
            for e in range(count):  # after all actions, because epsilon may depend on the number of episodes
                a.episodes[m] += block.done[m, t, e]
            improve(a, w, m, t)
            for e in range(count):
                if not block.done[m, t, e]:
                    continue
                block.ended_returns[m, t, e], block.ended_lengths[m, t, e] = block.returns[m, e], block.lengths[m, e]
                block.returns[m, e], block.lengths[m, e], block.age[m, e] = np.float32(0), 0, 0
                block.start_step[m, e] = t
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
    """Return whether the loop's agent and environment have compiled functions."""
    kind = KINDS.get(type(loop.agent))  # type: ignore[call-overload]
    plain = all(getattr(loop.agent, name, None) is None for name in ("curiosity", "action_noise"))
    able_of = getattr(kind, "can_compile", None)
    return (
        kind is not None and plain and (able_of is None or able_of(loop.agent)) and envs.can_compile(loop.environment)
    )


class TrainingTests:
    """Tests during a training run: after every ``test_every`` steps, K greedy episodes of every member on ``real``.

    ``starts [M, N, K]`` are the seeds of at most N tests. The results of the first ``tests_done`` tests are in
    ``returns`` and ``lengths [M, N, K]``.
    """

    def __init__(self, real: TensorEnvironment, world: envs.World, starts: Tensor, test_every: int):
        self.world, self.test_every, self.tests_done = world, test_every, 0
        self._start = real.dynamics.initial(starts).double().contiguous()
        self.returns, self.lengths = torch.zeros(starts.shape), torch.zeros(starts.shape, dtype=torch.int64)

    def tests(self, start_step: int, steps: int) -> Tests:
        """Return the tests due in the next ``steps`` steps, after ``start_step`` steps of training, and count them as
        done."""
        done = np.arange(start_step + 1, start_step + steps + 1)
        self.tests_done = (start_step + steps) // self.test_every
        test_index = np.where(done % self.test_every, -1, done // self.test_every - 1)
        return Tests(self._start.numpy(), self.returns.numpy(), self.lengths.numpy(), test_index)


def on_the_way(loop: StepLoop, real: Environment, starts: Tensor, test_every: int) -> TrainingTests | None:
    """Return tests that `Advance` can play during its steps, in a training run that begins now. Return None if a
    compiled function is missing, or if an episode may never end."""
    agent = loop.agent
    assert isinstance(agent, InnerAgent)
    playing = _playing(agent.with_weights(agent.flat_parameters), real)
    if playing is None:
        return None
    assert isinstance(real, TensorEnvironment)
    return TrainingTests(real, playing[1], starts, test_every)


def _world(kind: type, environment: Environment) -> envs.World | None:
    return envs.world(environment, cells_only=kind in (tabular.Agent, tabular.Greedy))


def _playing(policy: Policy, environment: Environment) -> tuple[Any, envs.World] | None:
    """Return the player of a greedy policy and its world. Return None if a compiled function is missing, or if an
    episode may never end."""
    kind = _POLICIES.get(type(policy))
    if kind is None or not isinstance(environment, TensorEnvironment) or environment.spaces.max_episode_steps is None:
        return None
    player, world = kind.player(policy), _world(type(policy), environment)
    return None if player is None or world is None else (player, world)


def _hall(player: Any, world: envs.World, tests: Tests) -> EpisodeArrays:
    player_rows, vector = np.empty((4, player.widest), np.float32), np.empty(player.vector, np.float32)
    cells = world.obs_size if world.kind == envs.CELLS else 0
    map_memory = np.full(cells, -1), np.empty(cells, np.int64), np.empty(cells, np.float32)
    return EpisodeArrays(np.empty(tests.start.shape[3]), envs.memory(world), player_rows, vector, *map_memory)


class Shared(NamedTuple):
    """Objects that all blocks of a training run use, as long as it has this ``environment`` and these weights
    (``flat_parameters``)."""

    environment: Environment
    flat_parameters: Tensor
    world: envs.World
    player: Any
    place: envs.World  # the environment of the tests
    memories: list[Any]  # scratch memory for each thread


class Advance:
    """Runs `StepLoop.advance` in machine code for one training run, with the ``tests`` that are due. ``threads`` divide
    the members among them; their number does not change the results.

    Without ``pause`` it yields no episodes, because every step may end one; `StepAgent.episodes` counts them.
    """

    def __init__(self, threads: int = 1, tests: TrainingTests | None = None):
        self.threads, self.tests = threads, tests
        self._shared: Shared | None = None

    def __call__(self, loop: StepLoop, count: int, running: Tensor, pause: bool) -> Iterator[Ended]:
        agent: Any = loop.agent
        if loop.obs is None:
            loop.obs = loop._start(None)
        while count and running.any():
            numbers = agent.noise.take(count, _FEW // agent.members)
            steps = next(iter(numbers.values())).shape[1]
            yield from self._block(loop, numbers, steps, running, pause)
            count -= steps

    def _block(
        self, loop: StepLoop, numbers: dict[str, Tensor], steps: int, running: Tensor, pause: bool
    ) -> Iterator[Ended]:
        agent, environment, obs = loop.agent, loop.environment, loop.obs
        real = envs.real_environment(environment)
        assert isinstance(agent, InnerAgent) and isinstance(real, TensorEnvironment) and obs is not None
        assert agent.envs == real.envs and agent.members == real.members  # compiled code checks no bounds
        shape = (agent.members, steps, agent.envs)
        seeds, starts = loop.starts_ahead(steps)
        # Contiguous, because Numba would compile the functions again for any other layout.
        state, starts, obs, age, returns, lengths = (
            array.to(torch.float64 if k < 2 else array.dtype, copy=True, memory_format=torch.contiguous_format)
            for k, array in enumerate((real.state, starts, obs, real.age, loop.returns, loop.lengths))
        )
        start_step = torch.full(age.shape, -1)
        at, done = torch.zeros(agent.members, dtype=torch.int64), torch.zeros(shape, dtype=torch.bool)
        ended_returns, ended_lengths = torch.zeros(shape), torch.zeros(shape, dtype=torch.int64)
        arrays = (state, obs, age, returns, lengths, starts, start_step, at, running)
        block = Block._make(
            (
                *(array.numpy() for array in arrays),
                pause,
                *(array.numpy() for array in (done, ended_returns, ended_lengths)),
            )
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
                finished = Ended(where[0], ended_returns[where], ended_lengths[where], loop.steps + where[1] + 1)
                done.zero_()
                yield finished
            if not (running & (at < steps)).any():
                break
        if isinstance(world, envs.Map):
            obs = real.dynamics.observe(state.to(real.state.dtype))
        envs.set_episodes(environment, state, age, obs)
        loop.obs, loop.returns, loop.lengths = obs, returns, lengths
        new_seeds = seeds.gather(1, start_step.clamp(min=0).unsqueeze(1)).squeeze(1)
        loop.seeds = torch.where(start_step >= 0, new_seeds, loop.seeds)
        loop.steps += steps
        count_steps: Any = agent.count_steps
        count_steps(steps)

    def _shared_by(self, loop: StepLoop, members: Any, tests: Tests) -> Shared:
        """Return the objects that the blocks of a loop share. They are built again after members have left."""
        agent, environment, shared = loop.agent, loop.environment, self._shared
        assert isinstance(agent, InnerAgent)
        if shared is not None and shared.environment is environment and shared.flat_parameters is agent.flat_parameters:
            return shared
        kind, world = KINDS[type(agent)], _world(type(agent), environment)
        player = kind.player(agent.with_weights(agent.flat_parameters))
        assert world is not None and player is not None
        place = world if self.tests is None else self.tests.world
        memories = [
            (kind.work(members), np.zeros(agent.envs, np.float32), envs.memory(world), _hall(player, place, tests))
            for _ in range(self.threads)
        ]
        self._shared = Shared(environment, agent.flat_parameters, world, player, place, memories)
        return self._shared


# -- tests -------------------------------------------------------------------------------------------------------------


def play(policy: Policy, environment: Environment, seeds: Tensor, threads: int = 1) -> Episodes | None:
    """Play greedy episodes from ``seeds [M, K]`` like `rollout`, without a trajectory. Return None if a compiled
    function is missing, or if an episode may never end."""
    playing = _playing(policy, environment)
    if playing is None:
        return None
    assert isinstance(environment, TensorEnvironment)
    (player, world), way = playing, TrainingTests(environment, playing[1], seeds.unsqueeze(1), 1)
    tests = way.tests(0, 1)
    halls = [_hall(player, world, tests) for _ in range(threads)]

    def run_episodes(hall: EpisodeArrays, first: int, last: int) -> None:
        _episodes(player, world, tests, 0, hall, first, last)

    for_members(run_episodes, len(seeds), halls)
    return Episodes(way.returns[:, 0], way.lengths[:, 0])


def warm() -> None:
    """Compile all functions into the cache on disk, with a training step and an episode of each kind of agent."""
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
        play(agent.with_weights(agent.flat_parameters), environment, torch.zeros(1, 1, dtype=torch.int64))
