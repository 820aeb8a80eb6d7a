"""Agents in machine code, one step at a time, in environments that Python steps, such as Gymnasium's.

In shapes, M is the number of members, E of environments of each, O of numbers in an observation, A in a continuous
action. Importing this requires Numba.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from control.cli.progress import Watch
from control.loops import compiled
from control.loops.compiled import AGENT_MODULES, MachineCode, begin_step, choose, improve, remember
from control.loops.steps import EndedEpisodes, StepLoop
from control.loops.threads import for_members
from models.machine import Array, exact_inlined, kernel
from models.spaces import Continuous


class PythonStep(NamedTuple):
    """A step that Python makes in all environments. Compiled code writes the actions, and Python the results."""

    obs: Array  # [M, E, O], before the step
    actions: Array  # [M, E], discrete actions
    continuous_actions: Array  # [M, E, A]
    next_obs: Array  # [M, E, O]
    rewards: Array  # [M, E]
    discounts: Array  # [M, E], factors of the next values in targets
    done: Array  # [M, E] bool, whether the step ended an episode
    state: Array  # [0], because only Python knows the states


@exact_inlined
def _choose_actions(agent, work, step, m, t):
    """Choose exploring actions of member ``m`` for ``step.obs[m]``, and write them to ``step`` (`PythonStep`). ``t`` is
    the number of the step in its block of random numbers, ``agent`` has the agent's arrays, ``work`` scratch memory."""
    begin_step(agent, work, m, step.obs[m])
    for e in range(step.obs.shape[1]):
        step.actions[m, e] = choose(agent, work, m, t, e, step.obs[m, e], step.state)
        for i in range(len(work.continuous_action)):
            step.continuous_actions[m, e, i] = work.continuous_action[i]


@kernel
def _act(agent, work, step, t, first, last):
    """Write exploring actions of the members ``first`` to ``last - 1`` to ``step`` (`PythonStep`), as `StepAgent.act`
    returns them in torch. `_choose_actions` describes the other arguments."""
    for m in range(first, last):
        _choose_actions(agent, work, step, m, t)


@kernel
def _learn(agent, work, step, t, choose_next, first, last):
    """Store ``step`` (`PythonStep`) of the members ``first`` to ``last - 1``, and make the updates that are due, as
    `StepAgent.observe` and `StepAgent.learn` do in torch. With ``choose_next``, then choose the actions of the next
    step, which saves a call. `_choose_actions` describes the other arguments."""
    num_envs, obs_size = step.obs.shape[1], step.obs.shape[2]
    for m in range(first, last):
        for e in range(num_envs):
            obs, action, next_obs = step.obs[m, e], step.actions[m, e], step.next_obs[m, e]
            reward, discount, done = step.rewards[m, e], step.discounts[m, e], step.done[m, e]
            remember(agent, work, m, t, e, obs, action, next_obs, step.state, reward, discount, done)
        # Episodes are counted after all actions, because epsilon may depend on their number.
        for e in range(num_envs):
            agent.episodes[m] += step.done[m, e]
        improve(agent, work, m, t)
        for e in range(num_envs):
            for i in range(obs_size):
                step.obs[m, e, i] = step.next_obs[m, e, i]
        if choose_next:
            _choose_actions(agent, work, step, m, t + 1)


class CompiledAgent(MachineCode):
    """``act``, ``observe`` and ``learn`` of the agent of ``loop`` in machine code, for environments that Python steps,
    such as Gymnasium's. Assign it to ``loop.learner``. It takes the random numbers of a block of steps at once; a block
    ends with the epoch at the latest."""

    def __init__(self, loop: StepLoop, threads: int = 1):
        super().__init__(threads)
        self.agent: Any = loop.agent
        self._plan(0)  # no steps yet
        self._loss = torch.full((self.agent.members,), torch.nan)
        shape = self.agent.members, self.agent.envs  # [M, E]
        obs_size, action_space = self.agent.spaces.obs_shape[0], self.agent.spaces.actions
        action_size = action_space.size if isinstance(action_space, Continuous) else 0
        self._python_step = PythonStep(
            obs=np.zeros((*shape, obs_size), np.float32),
            actions=np.zeros(shape, np.int64),
            continuous_actions=np.zeros((*shape, action_size), np.float32),
            next_obs=np.zeros((*shape, obs_size), np.float32),
            rewards=np.zeros(shape, np.float32),
            discounts=np.zeros(shape, np.float32),
            done=np.zeros(shape, np.bool_),
            state=np.zeros(0),
        )
        self._work: list[Any] = []  # `Work` of each thread; empty before the first block

    def advance(self, loop: StepLoop, count: int, running: Tensor, pause: bool) -> Iterator[EndedEpisodes]:
        self._plan(count)
        return loop.advance_by_steps(count, running)

    def _plan(self, steps: int) -> None:
        """Prepare for the next ``steps`` steps. Drops the current block, which an error may have left unfinished."""
        self._steps_left = steps  # number of steps after the current block
        self._block_steps, self._step = 0, 0  # number of steps in the current block, and of those already made

    def epoch(self, loop: StepLoop, steps: int, watch: Watch | None = None) -> dict[str, Tensor]:
        """Train for ``steps`` steps and return the results of the epoch, as `StepLoop.epoch` does."""
        self._plan(steps)
        self._loss = getattr(self.agent, "loss", self._loss)  # after a resume, PPO shows the loss of its latest rollout
        return loop.epoch_by_steps(steps, watch)

    def _begin_block(self) -> None:
        """Begin a block of steps: take its random numbers, and give them to compiled code."""
        agent, module = self.agent, AGENT_MODULES[type(self.agent)]
        self._random_numbers = agent.noise.take(self._steps_left)
        self._block_steps, self._step = compiled.num_steps(self._random_numbers), 0
        self._steps_left -= self._block_steps
        # Arrays of the agent that compiled code reads and writes, and scratch memory of each thread.
        self._members = module.make_members(agent, self._random_numbers, self._block_steps, self._loss)
        if not self._work:
            self._work = [module.make_work(self._members) for _ in range(self.threads)]
        self._has_actions = False  # whether the actions of the next step are already chosen

    def _run(self, function: Any, *arguments: int) -> None:
        """Call the compiled ``function``, `_act` or `_learn`, for all members, in several threads. ``arguments`` are
        the arguments of the function between ``step`` and ``first``."""

        def run(work: Any, first: int, last: int) -> None:
            function(self._members, work, self._python_step, *arguments, first, last)

        for_members(run, self.agent.members, self._work)

    def act(self, obs: Tensor) -> Tensor:
        """Return exploring actions ``[M, E]`` or ``[M, E, A]`` for ``obs [M, E, O]`` (`StepAgent.act`). Usually `learn`
        has chosen them already; `observe` has the exceptions."""
        if self._step == self._block_steps:
            self._begin_block()
        if not self._has_actions:
            self._python_step.obs[:] = obs.numpy()
            self._run(_act, self._step)
        step = self._python_step
        actions = step.continuous_actions if step.continuous_actions.size else step.actions
        return torch.from_numpy(actions.copy())

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        """Keep the step for `learn` (`StepAgent.observe`). `act` has already stored ``obs`` and ``action``."""
        step = self._python_step
        step.next_obs[:], step.rewards[:] = next_obs.numpy(), reward.numpy()
        step.discounts[:], step.done[:] = discount.numpy(), done.numpy()
        # Usually `_learn` also chooses the actions for ``next_obs``. In two cases `act` chooses them. After the last
        # step of a block, the random numbers of the next block are missing. After the end of an episode, the next
        # actions are for the first observation of a new episode.
        self._has_actions = self._step + 1 < self._block_steps and not done.any()

    def learn(self) -> Tensor:
        """Store the step, and make the updates that are due. Return the loss ``[M]`` (`StepAgent.learn`)."""
        self._run(_learn, self._step, self._has_actions)
        self.agent.count_steps(1)
        self._step += 1
        if self._step == self._block_steps:  # after the block, metrics sample the minibatch of its last step again
            self.agent.random_numbers = {name: values[:, -1] for name, values in self._random_numbers.items()}
        return self._loss.clone()

    def make_first_step(self, loop: StepLoop) -> None:
        """Make a training step of the agent in ``loop`` with invented data: observations, reward and discount are 0."""
        agent: Any = loop.agent
        compiled_agent = CompiledAgent(loop)
        compiled_agent._steps_left = 1
        shape = (agent.members, agent.envs)
        obs, zeros = torch.zeros(*shape, *agent.spaces.obs_shape), torch.zeros(shape)
        action = compiled_agent.act(obs)
        compiled_agent.observe(obs, action, next_obs=obs, reward=zeros, discount=zeros, done=zeros.bool())
        compiled_agent.learn()


def use_machine_code(loop: StepLoop, threads: int = 1) -> None:
    """Make ``loop`` train its agent in machine code, in ``threads`` threads. Do nothing if the agent has no machine
    code for its settings."""
    if not compiled.can_compile_agent(loop.agent):
        return
    if compiled.can_compile(loop):
        loop.machine_code = compiled.CompiledLoop(threads)
    else:  # Python steps the environment
        loop.machine_code = loop.learner = CompiledAgent(loop, threads)
