"""`StepLoop` and `rollout` in machine code, for agents and environments that have compiled functions.

A block is T consecutive steps with one set of arrays (`Block`), whose random numbers are taken at once. One member (an
independent agent with one seed) makes all steps of a block, then the next member does, with the same random numbers as
in torch. So a member's numbers are equal to the bit for any number of members. The code in torch is the reference:
tests/test_compiled.py compares the two. Importing this requires Numba.

M is the number of members, E of environments of each, T of steps in a block, K of numbers in the state of an
environment, O in an observation, A in a continuous action. A map is a deterministic grid world
(`envs.gridmaps.CellTable`).

Compiled code takes named tuples of arrays in place of objects. Its functions, here and in the compiled modules of
agents and environments, share these names of arguments:

    agent, player, work    `Members` (the agents), `Player` (the greedy policy) and `Work` (scratch memory) of the
                           module of a kind of agent, such as models/agents/ddqn/compiled.py
    world                  the environment (`envs.compiled.World`)
    m, e, t                index of a member, of an environment of the member, of a step in the block
    first, last            the call computes the members ``first`` to ``last - 1``
    obs [O], next_obs [O]  observations before and after the step in one environment
    state [K]              state of one environment
    action                 discrete action, the index of a choice; 0 if actions are continuous
    continuous_action [A]  action in the environment's units; empty if actions are discrete
    discount               factor of the next value in a target; 0 if the episode terminated
    done                   whether the episode ended, by termination or truncation
    scratch                memory that the function overwrites
"""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numba.core import event
from numba.extending import overload
from torch import Tensor

from control.cli.progress import Meter, Watch
from control.loops.rollout import Episodes
from control.loops.steps import EndedEpisodes, StepLoop
from control.loops.threads import for_members
from envs import compiled as envs
from envs.base import Environment
from envs.tensor import TensorEnvironment
from models.agents.ddqn import compiled as ddqn
from models.agents.ppo import compiled as ppo
from models.agents.sac import compiled as sac
from models.agents.tabular import compiled as tabular
from models.agents.td3 import compiled as td3
from models.agents.td3_discrete import compiled as td3_discrete
from models.contract import AgentPolicy, InnerAgent, Policy
from models.machine import EXACT_INLINED, FAST, INNER, Array, kernel
from models.streams import Streams

# Few members make several blocks of random numbers in one call, up to this number of steps summed over members.
_MAX_JOINED_STEPS = 2048
_MAX_STEP_PARAMETERS = 2**24  # limit of steps times parameters in such a call, because Ctrl-C waits for its end
_MAX_STATE_NUMBERS = 2**20  # limit of the numbers in the initial states of a block, to save memory
_EPOCH_FIELDS = ("losses", "done", "ended_returns", "ended_lengths")  # fields of `Block` that an epoch's results need
AGENT_MODULES: dict[type, Any] = {module.Agent: module for module in (ddqn, ppo, sac, tabular, td3, td3_discrete)}


class _CompileListener(event.Listener):  # type: ignore[misc]  # Numba has no types
    """Makes progress bars say that functions are being compiled. Numba calls it at the start and end of each one."""

    _depth = 0  # number of functions that are being compiled, each called by the one before it

    def on_start(self, event: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            Meter.begin_compiling()

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            Meter.end_compiling()


event.register("numba:compile", _CompileListener())


# The next functions are stubs for compiled code. Each module in `AGENT_MODULES` has implementations of the same names.
# The module's docstring describes the arguments.


def begin_step(agent, work, m, obs):  # type: ignore[no-untyped-def]
    """Stub: prepare the step of member ``m`` in all its environments, for ``obs [E, O]``, for example the policy's
    outputs. Agents that prepare nothing use the stub itself."""


def choose(agent, work, m, t, e, obs, state):  # type: ignore[no-untyped-def]
    """Stub: return the exploring discrete action of member ``m`` in environment ``e`` at step ``t`` of the block, for
    ``obs [O]`` in ``state [K]``. A continuous action is written to ``work.continuous_action`` instead."""


def remember(agent, work, m, t, e, obs, action, next_obs, state, reward, discount, done):  # type: ignore[no-untyped-def]
    """Stub: store step ``t`` of member ``m`` in environment ``e`` for learning, for example in the replay buffer.
    ``state [K]`` is the state after the step, and ``done`` says whether the step ended the episode."""


def improve(agent, work, m, t):  # type: ignore[no-untyped-def]
    """Stub: make the updates of the weights of member ``m`` that are due after step ``t``."""


def decide(player, m, obs, state, scratch, continuous_action):  # type: ignore[no-untyped-def]
    """Stub: return the greedy discrete action of member ``m`` for ``obs [O]`` in ``state [K]``. A continuous action is
    written to ``continuous_action [A]`` instead. ``scratch`` is `EpisodeArrays.player_scratch`."""


def _implement(stub: Any, implementation: Any, first_type: type, jit_options: Any) -> None:
    """Let compiled code that calls ``stub`` call ``implementation``, if the first argument is a ``first_type``, such as
    `models.agents.ddqn.compiled.Members`. So it selects the agent's functions. ``jit_options`` are Numba's options."""

    @overload(stub, jit_options=jit_options, strict=False)  # not strict: other names of arguments than the stub
    def find(first_argument: Any, *arguments: Any) -> Any:
        """Return ``implementation`` if the first of these Numba types is ``first_type``, else None."""
        return implementation if first_argument.instance_class is first_type else None


for _module in AGENT_MODULES.values():
    _implement(begin_step, getattr(_module, "begin_step", begin_step), _module.Members, EXACT_INLINED)
    _implement(choose, _module.choose, _module.Members, EXACT_INLINED)
    _implement(remember, _module.remember, _module.Members, EXACT_INLINED)
    # Updates of tables are short, and equal torch's to the bit.
    _implement(improve, _module.improve, _module.Members, EXACT_INLINED if _module is tabular else FAST | INNER)
    _implement(decide, _module.decide, _module.Player, EXACT_INLINED)


class Block(NamedTuple):
    """Episodes of M members with E environments in a block of T steps. Compiled code overwrites the arrays."""

    state: Array  # [M, E, K], current states
    obs: Array  # [M, E, O], current observations
    age: Array  # [M, E], steps of the episode so far, for the time limit
    returns: Array  # [M, E], sum of the episode's rewards so far
    lengths: Array  # [M, E], steps of the episode so far, for statistics
    first_states: Array  # [M, T, E, K], initial states of episodes that may begin after each step
    start_step: Array  # [M, E], the step after which the current episode began; -1 if before the block
    steps_done: Array  # [M], number of steps of the block already made
    running: Array  # [M] bool, whether a member makes steps
    done: Array  # [M, T, E] bool, whether a step ended an episode
    ended_returns: Array  # [M, T, E], returns of the episodes that ended
    ended_lengths: Array  # [M, T, E], lengths of the episodes that ended
    losses: Array  # [M, T], loss of the latest update after each step
    start: int = 0  # number of steps of training before the block
    pause: bool = False  # stop after a step that ends an episode


class Tests(NamedTuple):
    """At most N tests of M members: E greedy episodes per member after every ``test_every`` steps of training. Compiled
    code plays them with the current weights, and overwrites all arrays except ``first_states``."""

    test_every: int = 0  # 0 if there are no tests; the arrays are then empty
    first_states: Array = np.empty((0, 0, 0, 0))  # [M, N, E, K]
    returns: Array = np.empty((0, 0, 0), np.float32)  # [M, N, E]
    lengths: Array = np.empty((0, 0, 0), np.int64)  # [M, N, E]
    # Actions of the first member in a test, with L steps at most; empty unless they are recorded.
    actions: Array = np.empty((0, 0), np.int64)  # [E, L]
    continuous_actions: Array = np.empty((0, 0, 0), np.float32)  # [E, L, A]


class EpisodeArrays(NamedTuple):
    """Scratch memory of one greedy episode."""

    state: Array  # [K]
    scratch: Array  # memory of the environment (`envs.compiled.make_scratch`)
    player_scratch: Array  # [4, widest], memory of the player
    continuous_action: Array  # [A]
    # For each cell of a map: the latest episode that visited it, the next cell, and the reward. Otherwise empty.
    last_episode: Array
    next_cell: Array
    cell_reward: Array


@kernel
def _play_test(player, world, tests, n, arrays, first, last):
    """Play test ``n`` of the members ``first`` to ``last - 1``: greedy episodes of ``player`` in ``world``, as
    `control.loops.rollout.play_episodes` in torch. Write ``tests.returns[m, n]`` and ``tests.lengths[m, n]`` (`Tests`).
    Overwrites ``arrays`` (`EpisodeArrays`).

    On a map (a deterministic grid world), an episode that visits a cell for the second time repeats itself until the
    time limit. So the rest of the episode is looked up in the stored steps, without the player and the world.
    """
    obs = arrays.scratch[2, : world.obs_size]  # the row for observations (`envs.compiled.make_scratch`)
    _, num_tests, num_episodes = tests.returns.shape
    state, last_episode = arrays.state, arrays.last_episode
    is_map = len(last_episode) > 0  # a map: a deterministic grid world, whose state is the number of a cell
    unused_phi = np.float32(0)  # only learned rewards use phi, and tests have none
    for m in range(first, last):
        for e in range(num_episodes):
            for i in range(len(state)):
                state[i] = tests.first_states[m, n, e, i]
            envs.observe(world, state, obs)
            episode = (m * num_tests + n) * num_episodes + e  # the number of this episode, which no other episode has
            total, steps, is_running = np.float32(0), 0, True
            while is_running:
                cell = int(state[0])
                if is_map:
                    if last_episode[cell] == episode:
                        break  # the second visit; ``is_running`` remains True, so that the last loop continues here
                    last_episode[cell] = episode
                action = decide(player, m, obs, state, arrays.player_scratch, arrays.continuous_action)
                if m == 0 and len(tests.actions):
                    tests.actions[e, steps] = action
                    for i in range(len(arrays.continuous_action)):
                        tests.continuous_actions[e, steps, i] = arrays.continuous_action[i]
                reward, ends, _, _ = envs.advance(
                    world, m, state, action, arrays.continuous_action, obs, arrays.scratch, unused_phi
                )
                total, steps = total + reward, steps + 1
                is_running = not ends and steps < world.limit
                if is_map:
                    arrays.next_cell[cell], arrays.cell_reward[cell] = int(state[0]), reward
            while is_running and steps < world.limit:  # only after the break: the rest of the episode
                total, steps = total + arrays.cell_reward[cell], steps + 1
                cell = arrays.next_cell[cell]
            tests.returns[m, n, e], tests.lengths[m, n, e] = total, steps


@kernel
def _steps(agent, work, world, block, phi, scratch, player, test_world, tests, arrays, first, last):
    """Train the running members ``first`` to ``last - 1`` of ``agent`` in ``world``, as `StepLoop.step` does in torch:
    to the end of the ``block`` or, with ``block.pause``, to the first step that ends an episode. Play the ``tests``
    that are due, as ``player`` (the greedy policy) in ``test_world``.

    Overwrites the arrays of ``block`` (`Block`) and ``tests`` (`Tests`), and scratch memory: ``work`` (of the agent),
    ``phi [E]`` (the potential of each environment's state, for learned rewards), ``scratch``
    (`envs.compiled.make_scratch`) and ``arrays`` (`EpisodeArrays`).
    """
    num_envs, num_steps = block.obs.shape[1], block.done.shape[1]
    uses_phi = world.learned_reward and world.is_potential
    next_obs = scratch[2, : world.obs_size]  # the row for observations (`envs.compiled.make_scratch`)
    for m in range(first, last):
        if not block.running[m] or block.steps_done[m] >= num_steps:
            continue
        if uses_phi:
            for e in range(num_envs):
                phi[e] = envs.phi_value(world, m, block.state[m, e], block.obs[m, e], scratch)
        paused = False
        while block.steps_done[m] < num_steps and not paused:
            t = block.steps_done[m]
            # 1. Make the step in each environment, and store it.
            begin_step(agent, work, m, block.obs[m])
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
                if not envs.is_map(world):  # agents on a map read only the state, the number of the cell
                    for i in range(world.obs_size):
                        obs[i] = next_obs[i]
            # 2. Make the updates. Episodes are counted after all actions, because epsilon may depend on their number.
            for e in range(num_envs):
                agent.episodes[m] += block.done[m, t, e]
            improve(agent, work, m, t)
            block.losses[m, t] = agent.loss[m]
            # 3. Begin the next episodes.
            for e in range(num_envs):
                if not block.done[m, t, e]:
                    continue
                block.ended_returns[m, t, e], block.ended_lengths[m, t, e] = block.returns[m, e], block.lengths[m, e]
                block.returns[m, e], block.lengths[m, e], block.age[m, e] = np.float32(0), 0, 0
                block.start_step[m, e] = t  # the new episode begins after this step
                for i in range(block.state.shape[2]):
                    block.state[m, e, i] = block.first_states[m, t, e, i]
                envs.observe(world, block.state[m, e], block.obs[m, e])
                if uses_phi:
                    phi[e] = envs.phi_value(world, m, block.state[m, e], block.obs[m, e], scratch)
                paused = block.pause
            # 4. Play the test after this step, if there is one.
            training_steps = block.start + t + 1
            if tests.test_every and training_steps % tests.test_every == 0:
                _play_test(player, test_world, tests, training_steps // tests.test_every - 1, arrays, m, m + 1)
            block.steps_done[m] = t + 1


def can_compile_agent(agent: Any) -> bool:
    """Return whether an agent has compiled functions that support its settings."""
    module = AGENT_MODULES.get(type(agent))
    if module is None:
        return False
    for name in ("curiosity", "action_noise"):  # parts without compiled functions
        if getattr(agent, name, None) is not None:
            return False
    return not hasattr(module, "can_compile") or bool(module.can_compile(agent))  # most kinds support all settings


def can_compile(loop: StepLoop) -> bool:
    """Return whether the loop's agent and environment have compiled functions that support their settings."""
    return can_compile_agent(loop.agent) and envs.make_world(loop.environment) is not None


def make_tests(
    agent: InnerAgent, real: Environment, seeds: Tensor, test_every: int
) -> tuple[envs.World, Tests] | tuple[None, None]:
    """Prepare tests of ``agent`` on the environment ``real`` after every ``test_every`` steps of training. Return the
    environment in compiled form, and the `Tests`, or twice None if machine code cannot play them. Test n of member m
    has an episode for each of ``seeds[m, n]``, of ``seeds [M, N, E]``."""
    player, world = _player_and_world(agent.with_weights(agent.flat_parameters), real)
    if player is None or world is None:
        return None, None
    return world, _new_tests(real, seeds, test_every)


def _new_tests(real: Any, seeds: Tensor, test_every: int = 0) -> Tests:
    """Return N tests of each member, to be played on the environment ``real`` after every ``test_every`` steps of
    training (0: at any time). Each has E episodes, which start from ``seeds [M, N, E]``."""
    first_states = real.dynamics.initial(seeds).double().contiguous().numpy()
    return Tests(test_every, first_states, np.zeros(seeds.shape, np.float32), np.zeros(seeds.shape, np.int64))


def _player_and_world(policy: Policy, environment: Environment) -> tuple[Any, envs.World | None]:
    """Convert a greedy policy and its environment to the named tuples of arrays that compiled code plays: `Player` of
    the agent's module, and `World`. One of them is None if a compiled function is missing. Both are None if episodes
    may never end."""
    module = AGENT_MODULES.get(type(policy.agent)) if isinstance(policy, AgentPolicy) else None
    if module is None or not isinstance(environment, TensorEnvironment) or environment.spaces.max_episode_steps is None:
        return None, None
    return module.make_player(policy), envs.make_world(environment, cells_only=module is tabular)


def _make_episode_arrays(player: Any, world: envs.World, tests: Tests) -> EpisodeArrays:
    """Allocate scratch memory for one thread that plays ``tests`` as ``player`` in ``world``."""
    num_cells = world.obs_size if world.kind == envs.CELLS else 0  # only maps have cells
    return EpisodeArrays(
        state=np.empty(tests.first_states.shape[3]),
        scratch=envs.make_scratch(world),
        player_scratch=np.empty((4, player.widest), np.float32),
        continuous_action=np.empty(player.action_size, np.float32),
        last_episode=np.full(num_cells, -1),
        next_cell=np.empty(num_cells, np.int64),
        cell_reward=np.empty(num_cells, np.float32),
    )


class MachineCode:
    """Base class of objects that train the agent of a `StepLoop` in machine code, and play greedy episodes. Members are
    divided between ``threads`` threads, whose number does not change the results."""

    def __init__(self, threads: int = 1):
        self.threads = threads

    def make_first_step(self, loop: StepLoop) -> None:
        """Make a training step of the agent in ``loop``, so that Numba compiles its functions. Leave the loop's
        environment unchanged."""
        raise NotImplementedError

    def compile_ahead(self, loop: StepLoop, evaluation: Environment) -> None:
        """Compile the functions that training in ``loop`` and episodes on ``evaluation`` need, or load them from the
        cache, so that the first epoch is not slower than the others. Numba compiles a function when it is called, so a
        new agent makes a training step and plays an episode."""
        agent: Any = type(loop.agent)(loop.agent.config, loop.agent.spaces, loop.agent.seeds)  # type: ignore[call-arg]
        streams = Streams([0] * agent.members)
        self.make_first_step(StepLoop(agent, loop.environment, streams))
        policy = agent.begin(1, streams, sample=False, evaluate=True)
        self.play(policy, evaluation, torch.zeros(agent.members, 1, dtype=torch.int64))

    def play(
        self, policy: Policy, environment: Environment, seeds: Tensor, record_actions: bool = False
    ) -> Episodes | None:
        """Play a greedy episode of ``policy`` for each of ``seeds [M, E]``, as `play_episodes` does in torch. With
        ``record_actions``, the result has the first member's actions. Return None if machine code cannot: a compiled
        function is missing, an episode may never end, or actions must be recorded on a map, where `_play_test` does not
        play to the end."""
        player, world = _player_and_world(policy, environment)
        if player is None or world is None or (record_actions and world.kind == envs.CELLS):
            return None
        tests = _new_tests(environment, seeds.unsqueeze(1))  # one test, which consists of these episodes
        if record_actions:
            shape = (seeds.shape[1], world.limit)  # [E, L], of the first member alone, with L steps at most
            discrete, continuous = np.zeros(shape, np.int64), np.zeros((*shape, player.action_size), np.float32)
            tests = tests._replace(actions=discrete, continuous_actions=continuous)

        def play_members(memory: EpisodeArrays, first: int, last: int) -> None:
            _play_test(player, world, tests, 0, memory, first, last)

        memories = [_make_episode_arrays(player, world, tests) for _ in range(self.threads)]
        for_members(play_members, len(seeds), memories)
        episodes = Episodes(torch.from_numpy(tests.returns)[:, 0], torch.from_numpy(tests.lengths)[:, 0])
        if record_actions:
            actions = torch.from_numpy(continuous if player.action_size else discrete).transpose(0, 1)  # [L, E, ...]
            was_running = torch.arange(world.limit).unsqueeze(1) < episodes.lengths[0]  # [L, E], of the first member
            episodes.actions = actions[was_running]  # actions of all N steps in all episodes, [N, ...]
        return episodes


class CompiledLoop(MachineCode):
    """Trains the agent of a `StepLoop` in an environment that is machine code too, in place of `StepLoop.advance` and
    `StepLoop.epoch`. If there are ``tests``, it plays them in ``test_world`` during the training."""

    def __init__(self, threads: int = 1, test_world: envs.World | None = None, tests: Tests | None = None):
        super().__init__(threads)
        self._test_world, self._tests = test_world, Tests() if tests is None else tests
        # For each thread: `Work`, phi [E], scratch memory of the environment, `EpisodeArrays`; empty before `_prepare`.
        self._memories: list[tuple[Any, Array, Array, EpisodeArrays]] = []

    def advance(self, loop: StepLoop, count: int, running: Tensor, pause: bool) -> Iterator[EndedEpisodes]:
        """Make ``count`` steps of the members for which ``running [M]`` is True (`StepLoop.advance`).

        With ``pause``, a member makes no step after the end of an episode before the episode is yielded, so that the
        caller may end its training. Without ``pause``, yield nothing; `StepAgent.episodes` counts the episodes.
        """
        agent: Any = loop.agent
        max_steps = _max_block_steps(loop)
        while count and running.any():
            # A block has as many steps as `take` returns random numbers for, which may be less than ``count``.
            random_numbers = agent.noise.take(min(count, max_steps), _MAX_JOINED_STEPS // agent.members)
            block_steps = num_steps(random_numbers)
            tensors, seeds = _begin_block(loop, block_steps, running)
            yield from self._run_block(loop, random_numbers, tensors, seeds, pause)
            count -= block_steps

    def epoch(self, loop: StepLoop, steps: int, watch: Watch | None = None) -> dict[str, Tensor]:
        """Train for ``steps`` steps and return the results of the epoch, as `StepLoop.epoch` does."""
        agent: Any = loop.agent
        loop.loss = getattr(agent, "loss", loop.loss)  # after a resume, PPO shows the loss of its latest rollout
        episodes_before, steps_before = agent.episodes.clone(), agent.steps
        max_steps = _max_block_steps(loop)
        # Up to this number of steps, several blocks of random numbers are joined, which saves calls for few members.
        max_joined = min(_MAX_JOINED_STEPS // agent.members, _MAX_STEP_PARAMETERS // agent.flat_parameters.shape[1])
        all_members = torch.ones(agent.members, dtype=torch.bool)
        blocks: list[dict[str, Tensor]] = []
        steps_done = 0
        while steps_done < steps:
            if watch is not None:
                watch(steps_done / steps)
            random_numbers = agent.noise.take(min(steps - steps_done, max_steps), max_joined)
            # The random numbers of the last step: the agent's metrics sample the minibatch of the latest update again.
            agent.random_numbers = {name: values[:, -1] for name, values in random_numbers.items()}
            tensors, seeds = _begin_block(loop, num_steps(random_numbers), all_members)
            for _ in self._run_block(loop, random_numbers, tensors, seeds, pause=False):
                pass  # without `pause` it yields nothing
            blocks.append({name: tensors[name] for name in _EPOCH_FIELDS})
            steps_done += seeds.shape[1]
        losses, done, returns, lengths = (torch.cat([block[name] for block in blocks], 1) for name in _EPOCH_FIELDS)
        # After each step: the number of steps in all environments [T], and the number of finished episodes [M, T].
        env_steps = (steps_before + torch.arange(1, steps + 1)) * agent.envs
        episodes = episodes_before.unsqueeze(1) + done.sum(2).cumsum(1)
        is_learning = (episodes >= agent.config.init_episodes) & (env_steps >= agent.first_update)
        return loop._results(
            losses,
            waiting_steps=(~is_learning).sum(1),
            counts=done.flatten(1).sum(1).double(),
            returns=returns.double().flatten(1).sum(1),  # 0 if no episode ended
            lengths=lengths.double().flatten(1).sum(1),
        )

    def make_first_step(self, loop: StepLoop) -> None:
        CompiledLoop().epoch(StepLoop(loop.agent, copy.deepcopy(loop.environment), loop.streams), steps=1)

    def _run_block(
        self, loop: StepLoop, random_numbers: dict[str, Tensor], tensors: dict[str, Tensor], seeds: Tensor, pause: bool
    ) -> Iterator[EndedEpisodes]:
        """Make the T steps of a block, and store the state after it in ``loop``. With ``pause``, yield the episodes
        that end, before the next steps of their members. Otherwise yield nothing. ``random_numbers`` are the agent's,
        ``{name: [M, T, ...]}``. ``tensors``, which are overwritten, and ``seeds`` are from `_begin_block`."""
        steps, running = seeds.shape[1], tensors["running"]
        # The arrays share memory with ``tensors``, so compiled code writes its results there.
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
        block = Block(**arrays, start=loop.steps, pause=pause)
        members = AGENT_MODULES[type(loop.agent)].make_members(loop.agent, random_numbers, steps, loop.loss)
        if not self._memories:
            self._prepare(loop, members)
        player, world, test_world, tests = self._player, self._world, self._test_world, self._tests

        def run(memory: Any, first: int, last: int) -> None:
            work, phi, scratch, episode = memory
            _steps(members, work, world, block, phi, scratch, player, test_world, tests, episode, first, last)

        background_task = partial(loop.prepare_random_numbers, steps) if self.threads > 1 else None
        while True:
            for_members(run, len(running), self._memories, background_task)
            if not pause:
                break  # all members have made all steps
            indices = tensors["done"].nonzero(as_tuple=True)
            ended_members, ended_steps, ended_envs = indices  # [N] each
            if len(ended_members):
                returns, lengths = tensors["ended_returns"][indices], tensors["ended_lengths"][indices]
                tensors["done"].zero_()  # so that these episodes are not yielded again
                yield EndedEpisodes(ended_members, returns, lengths, loop.steps + ended_steps + 1)
            has_steps_left = tensors["steps_done"] < steps
            if not (running & has_steps_left).any():
                break
        _end_block(loop, tensors, seeds, world)

    def _prepare(self, loop: StepLoop, members: Any) -> None:
        """Build the objects that all blocks of the run use. ``members`` is `Members` of the first block."""
        agent = loop.agent
        assert isinstance(agent, InnerAgent)
        module = AGENT_MODULES[type(agent)]
        world = envs.make_world(loop.environment, cells_only=module is tabular)
        assert world is not None
        self._world = world
        if self._test_world is None:
            self._test_world = world
        # The player shares memory with the agent's weights, so it always plays the current weights.
        self._player = module.make_player(agent.with_weights(agent.flat_parameters))
        assert self._player is not None
        for _ in range(self.threads):
            phi = np.zeros(agent.envs, np.float32)  # the potential of a learned reward
            episode = _make_episode_arrays(self._player, self._test_world, self._tests)
            self._memories.append((module.make_work(members), phi, envs.make_scratch(world), episode))


def num_steps(random_numbers: dict[str, Tensor]) -> int:
    """Return the number of steps T that ``random_numbers`` are for, ``{name: [M, T, ...]}``."""
    return next(iter(random_numbers.values())).shape[1]


def _max_block_steps(loop: StepLoop) -> int:
    """Return the largest number of steps of a block, which has initial states ``[M, T, E, K]`` for all its steps."""
    real: Any = envs.real_environment(loop.environment)
    return max(1, _MAX_STATE_NUMBERS // max(1, real.state.numel()))


def _begin_block(loop: StepLoop, steps: int, running: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Prepare a block: the next T = ``steps`` steps of the members for which ``running [M]`` is True. Return the
    tensors ``{field of Block: tensor}``, and the seeds ``[M, T, E]`` of the episodes that may begin after each step.
    The tensors are copies of the loop's state. Only ``running`` is no copy, because the caller changes it meanwhile."""
    if loop.obs is None:
        loop.obs = loop.start_episodes(None)
    seeds, starts = loop.take_initial_states(steps)
    real = envs.real_environment(loop.environment)
    assert isinstance(real, TensorEnvironment)
    assert loop.agent.envs == real.envs and loop.agent.members == real.members  # compiled code checks no bounds
    members, num_envs = loop.agent.members, loop.agent.envs
    step_shape = (members, steps, num_envs)  # [M, T, E]

    def contiguous_copy(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return a contiguous copy of ``tensor``, of another ``dtype`` if there is one. Numba would compile the
        functions again for any other layout."""
        return tensor.to(dtype or tensor.dtype, copy=True, memory_format=torch.contiguous_format)

    tensors = {
        "state": contiguous_copy(real.state, torch.float64),
        "obs": contiguous_copy(loop.obs),
        "age": contiguous_copy(real.age),
        "returns": contiguous_copy(loop.returns),
        "lengths": contiguous_copy(loop.lengths),
        "first_states": contiguous_copy(starts, torch.float64),
        "start_step": torch.full((members, num_envs), -1),
        "steps_done": torch.zeros(members, dtype=torch.int64),
        "running": running,
        "done": torch.zeros(step_shape, dtype=torch.bool),
        "ended_returns": torch.zeros(step_shape),
        "ended_lengths": torch.zeros(step_shape, dtype=torch.int64),
        "losses": torch.zeros(members, steps),
    }
    return tensors, seeds


def _end_block(loop: StepLoop, tensors: dict[str, Tensor], seeds: Tensor, world: envs.World) -> None:
    """Store the state after a block of T steps in the loop, its environment and its agent, as after T steps in torch.
    ``tensors`` and ``seeds [M, T, E]`` are from `_begin_block`; ``world`` is the compiled environment."""
    agent: Any = loop.agent
    real: Any = envs.real_environment(loop.environment)
    state, obs = tensors["state"], tensors["obs"]
    if isinstance(world, envs.Map):  # compiled code writes no observations of a map
        obs = real.dynamics.observe(state.to(real.state.dtype))
    envs.set_episodes(loop.environment, state, tensors["age"], obs)
    loop.obs, loop.returns, loop.lengths = obs, tensors["returns"], tensors["lengths"]
    start_step = tensors["start_step"]  # [M, E], the step after which the current episode began; -1: before the block
    new_seeds = seeds.gather(1, start_step.clamp(min=0).unsqueeze(1)).squeeze(1)  # [M, E]
    loop.seeds = torch.where(start_step >= 0, new_seeds, loop.seeds)
    steps = seeds.shape[1]
    loop.steps += steps
    agent.count_steps(steps)
