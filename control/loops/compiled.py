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
from models.agents.sac import compiled as sac
from models.agents.tabular import compiled as tabular
from models.agents.td3 import compiled as td3
from models.agents.td3_discrete import compiled as td3_discrete
from models.contract import InnerAgent, Policy
from models.machine import EXACT, INLINE, kernel
from models.off_policy import ActorPolicy
from models.registry import agent_class, default_config
from models.streams import Streams

Array = np.ndarray[Any, Any]
COMPACT_EVERY = 64  # number of steps after which finished members leave
# Few members make several blocks of random numbers in one call, up to this number of steps summed over members.
_MAX_JOINED_STEPS = 2048
KINDS: dict[type, Any] = {kind.Agent: kind for kind in (ddqn, ppo, sac, tabular, td3, td3_discrete)}
_POLICIES: dict[type, Any] = {ddqn.Greedy: ddqn, ppo.Play: ppo, tabular.Greedy: tabular}  # and `ActorPolicy`


# The next four functions are stubs for compiled code. `_implement_stubs` registers an implementation for each kind of
# agent, a module in `KINDS`: ``agent`` is its `Members`, ``work`` its `Work` and ``player`` its `Player`.


def choose(agent, work, m, t, e, obs, state):  # type: ignore[no-untyped-def]
    """Stub: return the discrete action of member ``m`` in environment ``e`` at step ``t`` of the block, for the
    observation ``obs [O]`` of the environment's ``state [K]``. A continuous action is written to
    ``work.continuous_action`` instead."""


def remember(agent, work, m, t, e, obs, action, next_obs, state, reward, discount, done):  # type: ignore[no-untyped-def]
    """Stub: store step ``t`` of member ``m`` in environment ``e``. ``state`` is the state after the step."""


def improve(agent, work, m, t):  # type: ignore[no-untyped-def]
    """Stub: make the updates of member ``m`` that are due after step ``t``."""


def decide(player, m, obs, state, scratch, continuous_action):  # type: ignore[no-untyped-def]
    """Stub: return the greedy discrete action of member ``m``, or write a continuous one to ``continuous_action``.
    ``scratch`` is memory to overwrite (`EpisodeArrays.player_scratch`)."""


def _implement_stubs(kind: Any) -> None:
    """Register the functions of one kind of agent, the module ``kind``, as implementations of the stubs above, for its
    types. Numba requires equal names of arguments."""
    inline: Any = EXACT | INLINE

    def is_kind(agent):  # type: ignore[no-untyped-def]
        return agent.instance_class is kind.Members

    def find_choose(agent, work, m, t, e, obs, state):  # type: ignore[no-untyped-def]
        return kind.choose if is_kind(agent) else None

    def find_remember(agent, work, m, t, e, obs, action, next_obs, state, reward, discount, done):  # type: ignore[no-untyped-def]
        return kind.remember if is_kind(agent) else None

    def find_improve(agent, work, m, t):  # type: ignore[no-untyped-def]
        return kind.improve if is_kind(agent) else None

    def find_decide(player, m, obs, state, scratch, continuous_action):  # type: ignore[no-untyped-def]
        return kind.decide if player.instance_class is kind.Player else None

    overload(choose, jit_options=inline)(find_choose)
    overload(remember, jit_options=inline)(find_remember)
    overload(improve, jit_options=kind.IMPROVES)(find_improve)
    overload(decide, jit_options=inline)(find_decide)


for _kind in KINDS.values():
    _implement_stubs(_kind)


class Block(NamedTuple):
    """Episodes of M members with E environments in a block of T steps. Compiled code overwrites the arrays."""

    state: Array  # [M, E, K]
    obs: Array  # [M, E, O]
    age: Array  # [M, E], steps of the episode so far
    returns: Array  # [M, E]
    lengths: Array  # [M, E]
    first_states: Array  # [M, T, E, K], initial states of episodes that may begin after each step
    start_step: Array  # [M, E], the step after which the current episode began; -1 if before the block
    steps_done: Array  # [M], number of steps of the block already made
    running: Array  # [M] bool
    pause: bool  # stop after a step that ends an episode
    done: Array  # [M, T, E] bool, whether a step ended an episode
    ended_returns: Array  # [M, T, E], returns of these episodes
    ended_lengths: Array  # [M, T, E], their lengths


class TestArrays(NamedTuple):
    """N tests of M members during training, each with the weights at that time: K greedy episodes per member."""

    first_states: Array  # [M, N, K, S]
    returns: Array  # [M, N, K]
    lengths: Array  # [M, N, K]
    test_index: Array  # [T], index of the test after each step of a block; -1 if there is none


class EpisodeArrays(NamedTuple):
    """Scratch memory of one greedy episode."""

    state: Array  # [S]
    scratch: Array  # memory of the environment (`envs.compiled.make_scratch`)
    player_scratch: Array  # [4, widest], memory of the player
    continuous_action: Array  # [A]
    # For each cell of a map: the latest episode that visited it, the next cell, and the reward. Otherwise empty.
    last_episode: Array
    next_cell: Array
    cell_reward: Array


def _no_tests(steps: int) -> TestArrays:
    """Return a placeholder for a block of ``steps`` steps without tests."""
    returns, lengths = np.empty((0, 0, 0), np.float32), np.empty((0, 0, 0), np.int64)
    return TestArrays(np.empty((0, 0, 0, 0)), returns, lengths, test_index=np.full(steps, -1))


@kernel
def _play_test(player, world, tests, n, arrays, first, last):
    """Play test ``n`` of the members ``first`` to ``last - 1``: greedy episodes of ``player`` (`Player`) in ``world``
    (`envs.World`). Write ``tests.returns[m, n]`` and ``tests.lengths[m, n]``. Overwrites ``arrays``
    (`EpisodeArrays`)."""
    obs = arrays.scratch[2, : world.obs_size]  # the row for observations (`envs.make_scratch`)
    _, num_tests, num_episodes = tests.returns.shape
    state, last_episode = arrays.state, arrays.last_episode
    is_map = len(last_episode) > 0
    unused_phi = np.float32(0)  # only learned rewards use phi, and tests have none
    for m in range(first, last):
        for e in range(num_episodes):
            for i in range(len(state)):
                state[i] = tests.first_states[m, n, e, i]
            envs.observe(world, state, obs)
            episode = (m * num_tests + n) * num_episodes + e  # a number that no other episode has
            total, steps, is_running = np.float32(0), 0, True
            while is_running:
                cell = int(state[0])
                if is_map:
                    if last_episode[cell] == episode:
                        break  # visited twice: the episode repeats itself, because nothing is random on a map
                    last_episode[cell] = episode
                action = decide(player, m, obs, state, arrays.player_scratch, arrays.continuous_action)
                reward, ends, _, _ = envs.advance(
                    world, m, state, action, arrays.continuous_action, obs, arrays.scratch, unused_phi
                )
                total, steps = total + reward, steps + 1
                is_running = not ends and steps < world.limit
                if is_map:
                    arrays.next_cell[cell], arrays.cell_reward[cell] = int(state[0]), reward
            while is_running and steps < world.limit:  # after the break: the rest of an episode that repeats itself
                total, steps = total + arrays.cell_reward[cell], steps + 1
                cell = arrays.next_cell[cell]
            tests.returns[m, n, e], tests.lengths[m, n, e] = total, steps


@kernel
def _steps(agent, work, world, block, phi, scratch, player, test_world, tests, arrays, first, last):
    """Make the steps of the running members ``first`` to ``last - 1`` in ``world``: to the end of the block or, with
    ``block.pause``, to the first step that ends an episode (`StepLoop.step`). After a step with a test, play it as
    ``player`` in ``test_world`` (`_play_test`). ``agent`` is `Members`, ``work`` is `Work` and ``player`` is `Player`
    of the kind of agent. Overwrites the arrays of ``block`` (`Block`), and as scratch memory ``phi [E]`` (the potential
    of each environment's state, for learned rewards), ``scratch`` and ``arrays``."""
    num_envs, num_steps = block.state.shape[1], block.first_states.shape[1]
    uses_phi = world.learned_reward and world.is_potential
    next_obs = scratch[2, : world.obs_size]  # the row for observations (`envs.make_scratch`)
    for m in range(first, last):
        if not block.running[m] or block.steps_done[m] >= num_steps:
            continue
        if uses_phi:
            for e in range(num_envs):
                phi[e] = envs.phi_value(world, m, block.state[m, e], block.obs[m, e], scratch)
        paused = False
        while block.steps_done[m] < num_steps and not paused:
            t = block.steps_done[m]
            for e in range(num_envs):
                obs, state = block.obs[m, e], block.state[m, e]
                action = choose(agent, work, m, t, e, obs, state)
                reward, ends, discount, phi[e] = envs.advance(
                    world, m, state, action, work.continuous_action, next_obs, scratch, phi[e]
                )
                block.age[m, e] += 1
                done = ends or block.age[m, e] >= world.limit
                remember(agent, work, m, t, e, obs, action, next_obs, state, reward, discount, done)
                block.returns[m, e] += reward
                block.lengths[m, e] += 1
                block.done[m, t, e] = done
                if not envs.is_map(world):
                    for i in range(world.obs_size):
                        obs[i] = next_obs[i]
            for e in range(num_envs):  # after all actions, because epsilon may depend on the number of episodes
                agent.episodes[m] += block.done[m, t, e]
            improve(agent, work, m, t)
            for e in range(num_envs):
                if not block.done[m, t, e]:
                    continue
                block.ended_returns[m, t, e], block.ended_lengths[m, t, e] = block.returns[m, e], block.lengths[m, e]
                block.returns[m, e], block.lengths[m, e], block.age[m, e] = np.float32(0), 0, 0
                block.start_step[m, e] = t
                for i in range(block.state.shape[2]):
                    block.state[m, e, i] = block.first_states[m, t, e, i]
                envs.observe(world, block.state[m, e], block.obs[m, e])
                if uses_phi:
                    phi[e] = envs.phi_value(world, m, block.state[m, e], block.obs[m, e], scratch)
                paused = block.pause
            if tests.test_index[t] >= 0:
                _play_test(player, test_world, tests, tests.test_index[t], arrays, m, m + 1)
            block.steps_done[m] = t + 1


def can_compile(loop: StepLoop) -> bool:
    """Return whether the loop's agent and environment have compiled functions that support their settings."""
    agent: Any = loop.agent
    kind = KINDS.get(type(agent))
    parts_in_torch = [getattr(agent, name, None) for name in ("curiosity", "action_noise")]
    if kind is None or any(part is not None for part in parts_in_torch):
        return False
    supports_agent = getattr(kind, "can_compile", None)  # None: all settings
    return (supports_agent is None or supports_agent(agent)) and envs.can_compile(loop.environment)


class CompiledTests:
    """Tests during a training run: after every ``test_every`` steps, K greedy episodes of every member on ``real``.

    ``starts [M, N, K]`` are the seeds of at most N tests. The results of the first ``tests_done`` tests are in
    ``returns`` and ``lengths [M, N, K]``.
    """

    def __init__(self, real: TensorEnvironment, world: envs.World, starts: Tensor, test_every: int):
        self.world, self.test_every, self.tests_done = world, test_every, 0
        self._first_states = real.dynamics.initial(starts).double().contiguous()
        self.returns, self.lengths = torch.zeros(starts.shape), torch.zeros(starts.shape, dtype=torch.int64)

    def take_due(self, start_step: int, steps: int) -> TestArrays:
        """Return the tests due in the ``steps`` steps after ``start_step`` steps of training; count them as done."""
        step_counts = np.arange(start_step + 1, start_step + steps + 1)  # after each of these steps
        is_due = step_counts % self.test_every == 0
        test_index = np.where(is_due, step_counts // self.test_every - 1, -1)  # the first test has index 0
        self.tests_done = (start_step + steps) // self.test_every
        return TestArrays(self._first_states.numpy(), self.returns.numpy(), self.lengths.numpy(), test_index)


def on_the_way(loop: StepLoop, real: Environment, starts: Tensor, test_every: int) -> CompiledTests | None:
    """Return tests that `Advance` can play during its steps, in a training run that begins now: after every
    ``test_every`` steps, episodes from the seeds ``starts [M, N, K]`` on ``real``. Return None if a compiled function
    is missing, or if an episode may never end."""
    agent = loop.agent
    assert isinstance(agent, InnerAgent)
    compiled_policy = _player_and_world(agent.with_weights(agent.flat_parameters), real)
    if compiled_policy is None:
        return None
    assert isinstance(real, TensorEnvironment)
    _, world = compiled_policy
    return CompiledTests(real, world, starts, test_every)


def _make_world(agent_or_policy: type, environment: Environment) -> envs.World | None:
    """Return the world of ``environment`` for an agent or policy of this class; None if it has no compiled version."""
    return envs.make_world(environment, cells_only=agent_or_policy in (tabular.Agent, tabular.Greedy))


def _player_and_world(policy: Policy, environment: Environment) -> tuple[Any, envs.World] | None:
    """Return a greedy policy's player and world; None if a compiled function is missing or episodes may never end."""
    if isinstance(policy, ActorPolicy):  # of several kinds of agents
        kind = KINDS.get(type(policy.agent))
    else:
        kind = _POLICIES.get(type(policy))
    if kind is None or not isinstance(environment, TensorEnvironment) or environment.spaces.max_episode_steps is None:
        return None
    player, world = kind.make_player(policy), _make_world(type(policy), environment)
    return None if player is None or world is None else (player, world)


def _make_episode_arrays(player: Any, world: envs.World, tests: TestArrays) -> EpisodeArrays:
    """Allocate scratch memory for one thread that plays ``tests`` as ``player`` in ``world``."""
    cells = world.obs_size if world.kind == envs.CELLS else 0
    return EpisodeArrays(
        state=np.empty(tests.first_states.shape[3]),
        scratch=envs.make_scratch(world),
        player_scratch=np.empty((4, player.widest), np.float32),
        continuous_action=np.empty(player.action_size, np.float32),
        last_episode=np.full(cells, -1),
        next_cell=np.empty(cells, np.int64),
        cell_reward=np.empty(cells, np.float32),
    )


class Shared(NamedTuple):
    """Objects that all blocks of a training run use, as long as ``environment`` and ``flat_parameters`` are these."""

    environment: Environment
    flat_parameters: Tensor
    world: envs.World
    player: Any
    test_world: envs.World
    memories: list[Any]  # for each thread: `Work`, phi [E], scratch memory of the environment, `EpisodeArrays`


class Advance:
    """Runs `StepLoop.advance` in machine code for one training run, with the ``tests`` that are due. ``threads`` divide
    the members among them; their number does not change the results.

    Without ``pause`` it yields no episodes, because every step may end one; `StepAgent.episodes` counts them.
    """

    def __init__(self, threads: int = 1, tests: CompiledTests | None = None):
        self.threads, self.tests = threads, tests
        self._shared: Shared | None = None

    def __call__(self, loop: StepLoop, count: int, running: Tensor, pause: bool) -> Iterator[Ended]:
        """Make ``count`` steps of the members ``running [M]`` bool. With ``pause``, yield the episodes that have ended
        and continue when the caller asks for the next ones; it may change ``running`` in between."""
        agent: Any = loop.agent
        if loop.obs is None:
            loop.obs = loop._start(None)
        while count and running.any():
            random_numbers = agent.noise.take(count, max_joined=_MAX_JOINED_STEPS // agent.members)
            steps = next(iter(random_numbers.values())).shape[1]  # T, the same for all
            yield from self._run_block(loop, random_numbers, steps, running, pause)
            count -= steps

    def _run_block(
        self, loop: StepLoop, random_numbers: dict[str, Tensor], steps: int, running: Tensor, pause: bool
    ) -> Iterator[Ended]:
        """Make the steps of a block with ``random_numbers`` (name -> ``[M, T, ...]``), T = ``steps``, in place of T
        calls of `StepLoop.step`. ``running``, ``pause`` and the result are as in `__call__`."""
        agent: Any = loop.agent
        seeds, starts = loop.starts_ahead(steps)
        tensors = _block_tensors(loop, starts, running)
        block = Block(**{name: tensor.numpy() for name, tensor in tensors.items()}, pause=pause)
        members = KINDS[type(agent)].make_members(agent, random_numbers, steps, loop.loss)
        tests = _no_tests(steps) if self.tests is None else self.tests.take_due(loop.steps, steps)
        shared = self._shared_by(loop, members, tests)
        world, player, test_world = shared.world, shared.player, shared.test_world

        def run_steps(memory: Any, first: int, last: int) -> None:
            work, phi, scratch, arrays = memory
            _steps(members, work, world, block, phi, scratch, player, test_world, tests, arrays, first, last)

        background_task = partial(loop.get_ready, steps) if self.threads > 1 else None
        while True:
            for_members(run_steps, agent.members, shared.memories, background_task)
            if not pause:
                break
            ends = tensors["done"].nonzero(as_tuple=True)  # indices (members, steps, environments), [N] each
            if len(ends[0]):
                ended_returns, ended_lengths = tensors["ended_returns"][ends], tensors["ended_lengths"][ends]
                tensors["done"].zero_()
                yield Ended(ends[0], ended_returns, ended_lengths, step=loop.steps + ends[1] + 1)
            if not (running & (tensors["steps_done"] < steps)).any():
                break
        _end_block(loop, tensors, seeds, world)

    def _shared_by(self, loop: StepLoop, members: Any, tests: TestArrays) -> Shared:
        """Return the objects that the blocks of a loop share. They are built again after members have left.
        ``members`` is `Members` of the kind of agent."""
        agent, environment, shared = loop.agent, loop.environment, self._shared
        assert isinstance(agent, InnerAgent)
        if shared is not None and shared.environment is environment and shared.flat_parameters is agent.flat_parameters:
            return shared
        kind, world = KINDS[type(agent)], _make_world(type(agent), environment)
        player = kind.make_player(agent.with_weights(agent.flat_parameters))
        assert world is not None and player is not None
        test_world = world if self.tests is None else self.tests.world
        memories = []
        for _ in range(self.threads):
            phi, arrays = np.zeros(agent.envs, np.float32), _make_episode_arrays(player, test_world, tests)
            memories.append((kind.make_work(members), phi, envs.make_scratch(world), arrays))
        self._shared = Shared(environment, agent.flat_parameters, world, player, test_world, memories)
        return self._shared


def _block_tensors(loop: StepLoop, starts: Tensor, running: Tensor) -> dict[str, Tensor]:
    """Return the tensors of a `Block`, by field, before its first step. Its arrays share their memory. ``starts [M, T,
    E, K]`` are initial states. Only ``running [M]`` is no copy, because the caller changes it during the block."""
    real = envs.real_environment(loop.environment)
    assert isinstance(real, TensorEnvironment) and loop.obs is not None
    assert loop.agent.envs == real.envs and loop.agent.members == real.members  # compiled code checks no bounds
    shape = starts.shape[:3]  # [M, T, E]
    return {
        "state": _contiguous_copy(real.state.double()),
        "obs": _contiguous_copy(loop.obs),
        "age": _contiguous_copy(real.age),
        "returns": _contiguous_copy(loop.returns),
        "lengths": _contiguous_copy(loop.lengths),
        "first_states": _contiguous_copy(starts.double()),
        "start_step": torch.full(real.age.shape, -1),
        "steps_done": torch.zeros(real.members, dtype=torch.int64),
        "running": running,
        "done": torch.zeros(shape, dtype=torch.bool),
        "ended_returns": torch.zeros(shape),
        "ended_lengths": torch.zeros(shape, dtype=torch.int64),
    }


def _end_block(loop: StepLoop, tensors: dict[str, Tensor], seeds: Tensor, world: envs.World) -> None:
    """Store the state after a block in the loop, its environment and its agent. ``tensors`` are the block's
    (`_block_tensors`), and ``seeds [M, T, E]`` are of the episodes that may have begun after each of its T steps."""
    agent: Any = loop.agent
    real: Any = envs.real_environment(loop.environment)
    state, obs = tensors["state"], tensors["obs"]
    if isinstance(world, envs.Map):  # compiled code writes no observations of a map
        obs = real.dynamics.observe(state.to(real.state.dtype))
    envs.set_episodes(loop.environment, state, tensors["age"], obs)
    loop.obs, loop.returns, loop.lengths = obs, tensors["returns"], tensors["lengths"]
    start_step = tensors["start_step"]  # [M, E]
    new_seeds = seeds.gather(1, start_step.clamp(min=0).unsqueeze(1)).squeeze(1)  # [M, E]
    loop.seeds = torch.where(start_step >= 0, new_seeds, loop.seeds)
    steps = seeds.shape[1]
    loop.steps += steps
    agent.count_steps(steps)


def _contiguous_copy(tensor: Tensor) -> Tensor:
    """Return a contiguous copy: Numba would compile the functions again for any other layout."""
    return tensor.clone(memory_format=torch.contiguous_format)


# -- tests -------------------------------------------------------------------------------------------------------------


def play(policy: Policy, environment: Environment, seeds: Tensor, threads: int = 1) -> Episodes | None:
    """Play greedy episodes from ``seeds [M, K]`` like `rollout`, without a trajectory. Return None if a compiled
    function is missing, or if an episode may never end."""
    compiled_policy = _player_and_world(policy, environment)
    if compiled_policy is None:
        return None
    assert isinstance(environment, TensorEnvironment)
    player, world = compiled_policy
    single_test = CompiledTests(environment, world, seeds.unsqueeze(1), test_every=1)  # after the only step
    test_arrays, test_index = single_test.take_due(start_step=0, steps=1), 0
    memories = [_make_episode_arrays(player, world, test_arrays) for _ in range(threads)]

    def run_episodes(arrays: EpisodeArrays, first: int, last: int) -> None:
        _play_test(player, world, test_arrays, test_index, arrays, first, last)

    for_members(run_episodes, len(seeds), memories)
    return Episodes(single_test.returns[:, test_index], single_test.lengths[:, test_index])


def warm() -> None:
    """Compile all functions into the cache on disk, with a training step and an episode of each kind of agent."""
    running, start_seeds = torch.ones(1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.int64)  # of one member
    for game, implementation in (
        ("cartpole", "DDQN"),
        ("cartpole", "PPO"),
        ("cliff", "QLearning"),
        ("pendulum", "SAC"),
        ("pendulum", "TD3"),
        ("cartpole", "TD3Discrete"),
    ):
        config = default_config(implementation, game)
        environment = make_environment(game, 1, config.num_envs, time_limit=1)
        agent: Any = agent_class(implementation)(config, environment.spaces, [0])
        loop, advance = StepLoop(agent, environment, Streams([0])), Advance()
        list(advance(loop, count=1, running=running, pause=False))  # an iterator makes no step before it is used
        play(agent.with_weights(agent.flat_parameters), environment, start_seeds)
