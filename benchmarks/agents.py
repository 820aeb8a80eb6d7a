"""Updates of TD3, SAC and PPO on the spaces of Pendulum, one thread: one member and sixteen against stable-baselines3.

    python benchmarks/agents.py [--json] [--quick]

Seconds are CPU time of this process. Contenders take turns in one run. stable-baselines3 is in the extra `bench`;
without it, its rows and the ratios are left out.
"""

import dataclasses
import importlib
import importlib.util
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import common  # first: one thread, and the project on the path
from common import Meter, Result, cpu_seconds, has_baseline, interleave, median_ratio

from control.loops.steps import StepLoop
from envs.make import make_environment
from models.registry import agent_class, default_config
from models.streams import Streams

MEMBERS = (1, 16)


@dataclass(frozen=True)
class Case:
    """An agent, the units of its two hidden layers, the batch size, and its updates per round."""

    name: str
    units: int
    batch: int
    updates: int

    @property
    def key(self) -> str:
        return f"{self.name.lower()}_{self.units}"


@dataclass(frozen=True)
class Size:
    """Amount of work. `common.interleave` repeats rounds."""

    memory: int = 3000  # transitions in the replay buffer, off policy
    rollout: int = 2048  # steps between updates, on policy
    passes: int = 10  # over a rollout
    share: float = 1.0  # of the updates of `CASES`
    rounds: int = 5


QUICK = Size(memory=300, rollout=128, passes=1, share=0.05, rounds=1)
CASES = [Case("TD3", 256, 256, 40), Case("TD3", 64, 64, 200), Case("SAC", 256, 256, 24), Case("SAC", 64, 64, 120)]
ON_POLICY = Case("PPO", 64, 64, 0)  # the rollout sets the number of updates


class Ours:
    """M members in one program on Pendulum, past their first update."""

    def __init__(self, case: Case, members: int, size: Size):
        self.case, self.meter, seeds = case, Meter(), range(members)
        values = {"hidden_sizes": (case.units, case.units), "batch_size": case.batch}
        if case is ON_POLICY:
            values |= {"rollout_steps": size.rollout, "ppo_epochs": size.passes}
        else:
            values |= {"fill": size.memory, "init_episodes": 0}
        config = dataclasses.replace(default_config(case.name, ""), **values)
        environment = make_environment("pendulum", members, 1)
        self.agent = agent_class(case.name)(config, environment.spaces, seeds)
        self.loop = StepLoop(self.agent, environment, Streams.from_name(seeds, "episodes"))
        self.meter.wrap(self.agent, "learn", "learn")
        self.play(size.rollout if case is ON_POLICY else size.memory)

    def parameters(self) -> int:
        """Return the number of trainable parameters of a member."""
        agent = self.agent
        if self.case is ON_POLICY:
            return agent.network.num_trained
        return agent.flat_parameters.shape[1] + agent.critics.flat_parameters.shape[1]

    def play(self, steps: int) -> float:
        """Make ``steps`` environment steps and return the CPU seconds of learning."""
        self.meter.take()
        for _ in range(steps):
            self.loop.step()
        return self.meter.take()["learn"]

    def _update(self, count: int) -> None:
        for _ in range(count):
            self.agent.numbers = self.agent.noise.next()
            self.agent.learn()

    def rate(self, count: int) -> float:
        """Return the updates per second of all members, off policy."""
        return self.agent.members * count / cpu_seconds(lambda: self._update(count))

    def rollout_rate(self, size: Size) -> float:
        """Return the updates per second after a rollout, on policy. Advantages count, environment steps do not."""
        return self.agent.members * updates(size) / self.play(size.rollout)


class Theirs:
    """stable-baselines3's agent with the same settings, also past its first update."""

    def __init__(self, case: Case, size: Size, project_side: Ours):
        self.case, self.meter = case, Meter()
        config, kind = project_side.agent.config, getattr(importlib.import_module("stable_baselines3"), case.name)
        values: dict[str, Any] = {"learning_rate": config.lr, "gamma": config.discount, "batch_size": case.batch}
        policy: dict[str, Any] = {"net_arch": [case.units] * 2}
        if case is ON_POLICY:
            values |= {"n_steps": size.rollout, "n_epochs": size.passes}
        else:
            values |= {"tau": config.tau, "learning_starts": size.memory, "buffer_size": size.memory}
        self.model = kind("MlpPolicy", "Pendulum-v1", policy_kwargs=policy, device="cpu", seed=0, **values)
        assert self.parameters() == project_side.parameters(), case
        self.meter.wrap(self.model, "train", "learn")
        self.model.learn(size.rollout if case is ON_POLICY else size.memory)

    def parameters(self) -> int:
        """As `Ours.parameters`."""
        model = self.model
        modules = [model.policy] if self.case is ON_POLICY else [model.actor, model.critic]
        num_parameters = sum(part.numel() for module in modules for part in module.parameters())
        return num_parameters + (self.case.name == "SAC")  # the temperature is no part of these modules

    def rate(self, count: int) -> float:
        return count / cpu_seconds(lambda: self.model.train(gradient_steps=count, batch_size=self.case.batch))

    def rollout_rate(self, size: Size) -> float:
        self.meter.take()
        self.model.learn(size.rollout, reset_num_timesteps=False)
        return updates(size) / self.meter.take()["learn"]


def updates(size: Size) -> int:
    """Return the number of PPO's updates after a rollout."""
    return size.passes * -(-size.rollout // ON_POLICY.batch)


def contest(case: Case, size: Size) -> dict[str, Result]:
    with_baseline = has_baseline()
    project_sides = {f"{members}": Ours(case, members, size) for members in MEMBERS}
    sides: dict[str, Ours | Theirs] = {**project_sides}
    if with_baseline:
        sides["sb3"] = Theirs(case, size, project_sides["1"])
    contenders: dict[str, Callable[[], float]] = {}
    for name, side in sides.items():
        count = max(2, round(case.updates * size.share / (4 if name == f"{MEMBERS[-1]}" else 1)))
        contenders[name] = partial(side.rollout_rate, size) if case is ON_POLICY else partial(side.rate, count)
    rates = interleave(contenders, size.rounds)
    description, peer = f"2 x {case.units} units, batches of {case.batch}", f"stable-baselines3's {case.name}"
    results = {}
    if with_baseline:
        results[f"{case.key}_sb3"] = Result(statistics.median(rates["sb3"]), "updates/s", f"{peer}, {description}")
    for members in MEMBERS:
        project_rates, key = rates[f"{members}"], f"{case.key}_{members}"
        results[key] = Result(
            statistics.median(project_rates), "updates/s", f"{members} in one program, all together; {description}"
        )
        if with_baseline:
            results[f"{key}_ratio"] = Result(median_ratio(project_rates, rates["sb3"]), "times", peer)
    return results


def main() -> None:
    parts = [partial(contest, case) for case in (*CASES, ON_POLICY)]
    common.run("Updates of agents on the spaces of Pendulum", __doc__, parts, Size(), QUICK)


if __name__ == "__main__":
    main()
