"""`StepLoop` on a device that nobody waits for: between two looks all steps are the same operations on the same memory.

On a GPU the time of a step of small agents is that of starting its operations and of waiting for numbers from the
device. So `DeviceLoop` makes `LOOK` steps without asking the device for anything; then all that happened in them is
fetched at once. A step has fixed shapes and writes its results where the last one did, hence can be captured as a CUDA
graph, which starts all of its operations by one call.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from control.cli.progress import Watch
from control.loops.steps import Ended, StepLoop
from envs.base import Environment
from models.contract import TickingAgent
from models.hashed import BLOCK as LOOK
from models.streams import Streams

_WARM = 3  # steps before a capture, in which libraries make what they need


class Program:
    """The step of all members, and the memory it works in: M members with E environments."""

    def __init__(self, loop: "DeviceLoop"):
        self.loop, agent, environment = loop, loop.agent, loop.environment
        assert isinstance(agent, TickingAgent)
        self.agent, self.environment = agent, environment
        device, shape = agent.device, (LOOK, agent.members, agent.envs)
        agent.ready()
        self.at = torch.zeros(1, dtype=torch.int64, device=device)  # the step of the block
        self.steps = torch.zeros((), dtype=torch.int64, device=device)  # all steps made before it
        self.numbers: dict[str, Tensor] = {}  # [LOOK, M, ...], the agent's random ones
        self.starts: Tensor | None = None  # [LOOK, M, E, K], of the episodes that begin after each step
        # What happened, by step: episodes that ended, their returns and lengths; losses, and of whom.
        self.done = torch.zeros(shape, dtype=torch.bool, device=device)
        self.returns = torch.zeros(shape, device=device)
        self.lengths = torch.zeros(shape, dtype=torch.int64, device=device)
        self.losses = torch.zeros(shape[:2], device=device)
        self.able = torch.zeros(shape[:2], dtype=torch.bool, device=device)
        # Attributes that a step replaces, and the memory that each of them stays in.
        own: list[tuple[object, str]] = [(loop, name) for name in ("obs", "returns", "lengths", "loss")]
        self.replaced = [*own, *environment.replaced(), *agent.replaced()]
        self.memory = [getattr(owner, name).clone() for owner, name in self.replaced]
        self._settle()
        self.made = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def _settle(self) -> None:
        for (owner, name), memory in zip(self.replaced, self.memory, strict=True):
            memory.copy_(getattr(owner, name))
            setattr(owner, name, memory)

    def step(self) -> None:
        """`StepLoop.step` without a look at any number."""
        loop, at, starts = self.loop, self.at, self.starts
        assert loop.obs is not None and starts is not None
        numbers = {name: block.index_select(0, at).squeeze(0) for name, block in self.numbers.items()}
        action = self.agent.tick(loop.obs, numbers, self.steps)
        step = self.environment.step(action)
        done = step.terminated | step.truncated
        discount = loop._ones.masked_fill(step.terminated, 0.0) if step.discount is None else step.discount
        row = {"obs": loop.obs, "action": action, "next_obs": step.obs, "reward": step.reward, "discount": discount}
        loop.loss, able = self.agent.tock(done, **row)
        returns, lengths = loop.returns + step.reward, loop.lengths + 1
        happened = {"done": done, "returns": returns, "lengths": lengths, "losses": loop.loss, "able": able}
        for name, values in happened.items():
            getattr(self, name).index_copy_(0, at, values.unsqueeze(0))
        loop.returns, loop.lengths = returns.masked_fill(done, 0.0), lengths.masked_fill(done, 0)
        loop.obs = self.environment.start(starts.index_select(0, at).squeeze(0), done)
        self.at.add_(1)
        self.steps.add_(1)
        self._settle()

    def block(self, most: int) -> int:
        """Make so many steps, or as many as the block of random numbers has left; how many."""
        loop, agent = self.loop, self.agent
        numbers = agent.noise.ahead(min(most, LOOK))
        count = next(iter(numbers.values())).shape[1]
        seeds, starts = loop.starts_ahead(count)
        if self.starts is None:
            self.numbers = {name: each.new_empty(LOOK, len(each), *each.shape[2:]) for name, each in numbers.items()}
            self.starts = starts.new_empty(LOOK, len(starts), *starts.shape[2:])
        for name, each in numbers.items():
            self.numbers[name][:count].copy_(each.transpose(0, 1))
        self.starts[:count].copy_(starts.transpose(0, 1))
        self.at.zero_()
        self.steps.fill_(agent.steps)
        for _ in range(count):
            self._run()
        # The seeds of the episodes under way: those of after the latest step that ended one.
        steps = torch.arange(1, count + 1, device=agent.device).view(-1, 1, 1)
        began = (self.done[:count] * steps).amax(0).to(seeds.device)
        begun = seeds.gather(1, (began - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        loop.seeds = torch.where(began > 0, begun, loop.seeds)
        loop.steps += count
        agent.made(count)
        return count

    def _run(self) -> None:
        """One step: replayed, where the device can."""
        if self.graph is not None:
            self.graph.replay()
            return
        if not self.loop.captures or self.made < _WARM:
            self.made += 1
            self.step()
            return
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()  # which is only written down
        self.graph = graph
        graph.replay()

    def ended(self, count: int) -> Ended | None:
        """The episodes that ended in the latest ``count`` steps, on the CPU, as if in the last one."""
        done = self.done[:count].cpu().transpose(0, 1)
        where = done.nonzero(as_tuple=True)
        if not len(where[0]):
            return None
        gave, took = (each[:count].cpu().transpose(0, 1)[where] for each in (self.returns, self.lengths))
        return Ended(where[0], gave, took, self.loop.steps)


class DeviceLoop(StepLoop):
    """`StepLoop` whose agent is a `TickingAgent` and whose environment a tensor program, both on one device.

    Whoever asks for the episodes that ended is given them after every `LOOK` steps: a member whose training they end
    has trained to there. ``captures`` has steps replayed as a CUDA graph.
    """

    def __init__(self, agent: TickingAgent, environment: Environment, streams: Streams, captures: bool | None = None):
        super().__init__(agent, environment, streams)
        self.captures = agent.device.type == "cuda" if captures is None else captures
        self._program: Program | None = None

    def blocks(self, count: int) -> Iterator[tuple[int, Program]]:
        """``count`` steps, some at a time; how many, and the program with what happened in them."""
        if self.obs is None:
            self.obs = self._start(None)
        if self._program is None:
            self._program = Program(self)
        while count:
            made = self._program.block(count)
            count -= made
            yield made, self._program

    def advance(self, count: int, running: Tensor, pause: bool) -> Iterator[Ended]:
        for made, program in self.blocks(count):
            if (ended := program.ended(made)) is not None:
                yield ended
            if not running.any():
                return

    def epoch(self, steps: int, watch: Watch | None = None) -> dict[str, Tensor]:
        members = self.agent.members
        losses, able = [], []
        sums, first = torch.zeros(3, members, dtype=torch.float64), self.steps
        for made, program in self.blocks(steps):
            if watch is not None:
                watch((self.steps - first) / steps)
            losses.append(program.losses[:made].to("cpu", copy=True).T)
            able.append(program.able[:made].to("cpu", copy=True).T)
            if (ended := program.ended(made)) is not None:
                of_each = (torch.ones_like(ended.returns), ended.returns, ended.lengths)
                for total, values in zip(sums, of_each, strict=True):
                    total.index_add_(0, ended.members, values.double())
        waited = (~torch.cat(able, 1)).sum(1)
        return self._row(torch.cat(losses, 1), waited, *sums)

    def select(self, members: Tensor) -> bool:
        self._program = None
        return super().select(members)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._program = None
        super().load_state_dict(state)
