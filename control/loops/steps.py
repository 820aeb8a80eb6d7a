"""Agents that learn between the steps of their environments: M members of one tensor program, step by step."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from envs.base import Environment
from envs.tensor import TensorEnvironment
from models.contract import InnerAgent, StepAgent
from models.streams import Streams

BLOCK = 128  # steps whose episode starts are drawn at once


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
    """Steps of ``act, observe, learn`` for all members; an environment whose episode ended starts anew at once.

    ``streams`` give the seeds of episodes, one for every environment and step whether it is used or not, so that a
    member's episodes do not depend on when those of others end.
    """

    def __init__(self, agent: StepAgent, environment: Environment, streams: Streams):
        self.agent, self.environment, self.streams = agent, environment, streams
        self.steps = 0
        self.obs: Tensor | None = None
        self.shown: Tensor | None = None  # what the agent acts on, where that is not `obs`
        shape, device = (agent.members, agent.envs), agent.device
        self.returns = torch.zeros(shape, device=device)
        self.lengths = torch.zeros(shape, dtype=torch.int64, device=device)
        self.seeds = torch.zeros(shape, dtype=torch.int64)  # of the episodes under way
        self.loss = torch.full((agent.members,), torch.nan, device=device)
        self._all_learn = False
        self._block = -1
        self._block_state = streams.get_state()

    def step(self) -> Ended | None:
        """One step of every environment and the updates it owes. Gives the episodes that ended, if any did."""
        agent, environment = self.agent, self.environment
        if self.obs is None:
            self.obs = self._start(None)
        obs = self.obs if self.shown is None else self.shown
        if agent.knows_dynamics and environment.state is not None:
            agent.visit(environment.state)
        action = agent.act(obs)
        step = environment.step(action)
        done = step.terminated | step.truncated
        discount = (~step.terminated).float() if step.discount is None else step.discount
        agent.observe(obs, action, step.obs, step.reward, discount, done)
        self.loss = agent.learn()
        self.returns = self.returns + step.reward
        self.lengths = self.lengths + 1
        self.obs = step.obs
        self.shown = step.obs if agent.acts_on_stale else None
        self.steps += 1
        if not done.any():
            return None
        who, where = done.nonzero(as_tuple=True)
        ended = Ended(who, self.returns[who, where], self.lengths[who, where], self.steps)
        self.returns[who, where], self.lengths[who, where] = 0.0, 0
        self.obs = self._start(done)
        return ended

    def epoch(self, steps: int) -> dict[str, Tensor]:
        """Train for so many steps. ``loss``, ``return`` and ``length`` ``[M]`` are means, NaN where there was nothing;
        ``updated [M]`` counts the steps with updates; with what the agent has `measured`, by tag."""
        members, device = self.agent.members, self.agent.device
        losses, waited = [], torch.zeros(members, dtype=torch.int64, device=device)
        counts, returns, lengths = torch.zeros(3, members, dtype=torch.float64, device=device)
        self.refresh()
        for _ in range(steps):
            ended = self.step()
            losses.append(self.loss)
            if not self._all_learn:  # who learns never stops
                able = self.agent.learning()
                waited += ~able
                self._all_learn = bool(able.all())
            if ended is not None:
                counts.index_add_(0, ended.members, torch.ones_like(ended.returns, dtype=torch.float64))
                returns.index_add_(0, ended.members, ended.returns.double())
                lengths.index_add_(0, ended.members, ended.lengths.double())
        # Members lead and stay contiguous: a sum over the leading axis rounds by how many members there are.
        table = torch.stack(losses, 1).double()
        waiting = torch.arange(steps, device=device) < waited.unsqueeze(1)
        updated = steps - waited
        row = {
            "loss": table.masked_fill(waiting, 0.0).sum(1) / updated, "return": returns / counts,
            "length": lengths / counts, "updated": updated, "finite": returns.isfinite(),
        }  # fmt: skip
        return {name: value.cpu() for name, value in (row | self.agent.measured()).items()}

    def refresh(self) -> None:
        """Show the agent the observation of now, if it was to act on an older one."""
        self.shown = None

    def _start(self, where: Tensor | None) -> Tensor:
        while self._block < self.steps // BLOCK:
            self._draw()
        step = self.steps % BLOCK
        seeds = self._seeds[step]
        self.seeds = seeds if where is None else torch.where(where.cpu(), seeds, self.seeds)
        return self.environment.start(self._starts[step], where)

    def _draw(self) -> None:
        """Seeds ``[BLOCK, M, E]`` of the next block of steps, and the starts that they stand for."""
        self._block += 1
        self._block_state = self.streams.get_state()
        self._seeds = self.streams.episode_seeds(BLOCK, self.agent.envs).transpose(0, 1)
        self._starts = self.environment.starts(self._seeds)

    @property
    def can_select(self) -> bool:
        """Whether members can leave."""
        return isinstance(self.environment, TensorEnvironment) and isinstance(self.agent, InnerAgent)

    def select(self, members: Tensor) -> None:
        """Go on with ``members`` (indices ``[M']``) only, where `can_select`."""
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
            self._seeds, self._starts = self._seeds[:, members], self._starts[:, members]

    def state_dict(self) -> dict[str, Any]:
        """Everything to go on from but the agent's weights."""
        return {
            "agent": self.agent.training_state(), "environment": self.environment.snapshot(), "steps": self.steps,
            "obs": self.obs, "shown": self.shown, "returns": self.returns, "lengths": self.lengths,
            "seeds": self.seeds, "block": self._block, "streams": self._block_state,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.agent.device
        self.agent.load_training_state(state["agent"])
        self.steps, self.seeds = state["steps"], state["seeds"]
        self.obs, self.shown = (None if state[name] is None else state[name].to(device) for name in ("obs", "shown"))
        self.returns, self.lengths = state["returns"].to(device), state["lengths"].to(device)
        self.streams.set_state(state["streams"])
        if state["block"] >= 0:
            self._block = state["block"] - 1
            self._draw()
        self.environment.restore(state["environment"])
