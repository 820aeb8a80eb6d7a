"""Agents that learn between the steps of their environments: M members in lock-step, tick by tick."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from envs.base import Environment
from envs.tensor import TensorEnvironment
from models.contract import InnerAgent, StepAgent
from models.streams import Streams

BLOCK = 128  # ticks whose episode starts are drawn at once


@dataclass
class Ended:
    """Episodes that ended in one step: whose ``[N]``, with which return and length, and after how many steps."""

    members: Tensor
    returns: Tensor
    lengths: Tensor
    step: int

    def of(self, which: Tensor) -> "Ended":
        """Those of the members in ``which [M]`` bool alone."""
        mine = which[self.members]
        return Ended(self.members[mine], self.returns[mine], self.lengths[mine], self.step)


class StepLoop:
    """Ticks of ``act, step, observe, learn`` for all members; an environment whose episode ended starts anew at once.

    ``streams`` give the seeds of episodes, one for every environment and tick whether it is used or not, so that a
    member's episodes do not depend on when those of others end.
    """

    def __init__(self, agent: StepAgent, environment: Environment, streams: Streams):
        self.agent, self.environment, self.streams = agent, environment, streams
        self.is_tensor = isinstance(environment, TensorEnvironment)
        self.steps = 0
        self.obs: Tensor | None = None
        self.shown: Tensor | None = None  # what the agent acts on, where that is not `obs`
        shape, device = (agent.members, agent.envs), agent.device
        self.returns = torch.zeros(shape, device=device)
        self.lengths = torch.zeros(shape, dtype=torch.int64, device=device)
        self.seeds = torch.zeros(shape, dtype=torch.int64)  # of the episodes under way
        self.loss = torch.full((agent.members,), torch.nan, device=device)
        self._block = -1
        self._block_state = streams.get_state()
        self._past: list[Tensor] = []  # actions since the oldest episode under way began, where they must be replayed

    def step(self) -> Ended | None:
        """One step of every environment and the updates it owes. Gives the episodes that ended, if any did."""
        if self.obs is None:
            self.obs = self._start(None)
        obs = self.obs if self.shown is None else self.shown
        if self.agent.knows_dynamics and isinstance(self.environment, TensorEnvironment):
            self.agent.visit(self.environment.state)
        action = self.agent.act(obs)
        step = self.environment.step(action)
        done = step.terminated | step.truncated
        discount = (~step.terminated).float() if step.discount is None else step.discount
        self.agent.observe(obs, action, step.obs, step.reward, discount, done)
        self.loss = self.agent.learn()
        self.returns = self.returns + step.reward
        self.lengths = self.lengths + 1
        self.obs = step.obs
        self.shown = step.obs if self.agent.acts_on_stale else None
        self.steps += 1
        if not self.is_tensor:
            self._past.append(action)
        if not done.any():
            return None
        who, where = done.nonzero(as_tuple=True)
        ended = Ended(who, self.returns[who, where], self.lengths[who, where], self.steps)
        self.returns[who, where], self.lengths[who, where] = 0.0, 0
        self.obs = self._start(done)
        self._past = self._past[len(self._past) - int(self.lengths.max()) :]
        return ended

    def refresh(self) -> None:
        """Show the agent the observation of now, if it was to act on an older one."""
        self.shown = None

    def _start(self, where: Tensor | None) -> Tensor:
        while self._block < self.steps // BLOCK:
            self._draw()
        tick = self.steps % BLOCK
        seeds = self._seeds[tick]
        self.seeds = seeds if where is None else torch.where(where.cpu(), seeds, self.seeds)
        if isinstance(self.environment, TensorEnvironment):
            return self.environment.set_state(self._states[tick], where)
        return self.environment.reset(seeds, where)

    def _draw(self) -> None:
        """Seeds of the next block of ticks, and for tensor programs the states they start in, ``[BLOCK, M, E]``."""
        self._block += 1
        self._block_state = self.streams.get_state()
        self._seeds = self.streams.episode_seeds(BLOCK, self.agent.envs).transpose(0, 1)
        if isinstance(self.environment, TensorEnvironment):
            self._states = self.environment.dynamics.initial(self._seeds)

    def select(self, members: Tensor) -> None:
        """Go on with ``members`` (indices ``[M']``) only. The environment must be a tensor program."""
        assert isinstance(self.environment, TensorEnvironment) and isinstance(self.agent, InnerAgent)
        self.agent.select(members)
        self.environment = self.environment.select(members)
        self.streams.select(members.tolist())
        self._block_state = self._block_state[members]
        self.returns, self.lengths, self.seeds = self.returns[members], self.lengths[members], self.seeds[members]
        self.loss = self.loss[members]
        if self.obs is not None:
            self.obs = self.obs[members]
            self.shown = None if self.shown is None else self.shown[members]
            self._seeds, self._states = self._seeds[:, members], self._states[:, members]

    # -- resume -----------------------------------------------------------------------------------------------------

    def resume_state(self) -> dict[str, Any]:
        """Everything but the agent. Of an environment that is no tensor program, seeds and actions of the episodes
        under way: an episode is a function of them."""
        state = {
            "ticks": self.steps, "obs": self.obs, "returns": self.returns, "lengths": self.lengths,
            "seeds": self.seeds, "block": self._block, "streams": self._block_state, "shown": self.shown,
        }  # fmt: skip
        if isinstance(self.environment, TensorEnvironment):
            return state | {"state": self.environment.state, "age": self.environment.age}
        return state | {"past": torch.stack(self._past) if self._past else None}

    def load_resume_state(self, state: dict[str, Any]) -> None:
        device = self.agent.device
        self.steps, self.seeds = state["ticks"], state["seeds"]
        self.obs, self.shown = (None if obs is None else obs.to(device) for obs in (state["obs"], state.get("shown")))
        self.returns, self.lengths = state["returns"].to(device), state["lengths"].to(device)
        self.streams.set_state(state["streams"])
        if state["block"] >= 0:
            self._block = state["block"] - 1
            self._draw()
        if self.obs is None:
            return
        if isinstance(self.environment, TensorEnvironment):
            self.environment.set_state(state["state"])
            self.environment.age = state["age"].to(device)
        else:
            self._past = list(state["past"].unbind(0)) if state["past"] is not None else []
            self._replay()

    def _replay(self) -> None:
        """Bring the environments back to where they were. Episodes have different ages, so each joins in at its own
        action."""
        self.environment.reset(self.seeds)
        for i, action in enumerate(self._past):
            self.environment.step(action, self.lengths >= len(self._past) - i)
