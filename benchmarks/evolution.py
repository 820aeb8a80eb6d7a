"""Speed and memory of learned synthetic environments on CartPole, one thread: inner loop, a generation, environments.

    python benchmarks/evolution.py [--json] [--quick]

Seconds are CPU time of this process, so other jobs on the machine matter little. Contenders take turns in one run.
The comparison with stable-baselines3 needs the extra `bench` and is left out without it.
"""

import dataclasses
import multiprocessing
import resource
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import common  # first: one thread, and the project on the path
import gymnasium as gym
import torch
from common import Result, cpu_seconds, has_baseline, interleave, median_ratio, speedup
from plain import ddqn as plain

from control.evolution import inner_loop
from control.evolution.inner_loop import InnerLoop
from control.loops.steps import StepLoop
from envs.make import make_environment
from models.agents.ddqn.config import Config as AgentConfig
from models.proxies.synthetic.config import Config, proxy_defaults
from models.streams import Streams

GAME, TESTS = "cartpole", 10
MEMBERS = {"paper": (1, 16, 48), "recipe": (1, 16, 64)}
TARGETS = {("paper", 48): 12.0, ("recipe", 64): 25.0}
HALF_WAY = {"paper": 6000, "recipe": 1500}  # transitions in the replay buffer in the middle of training
LONGEST = 12_000  # steps of a training at the paper's settings
PERTURBATIONS, TRAININGS = 16, 3  # the mean and both directions of each perturbation


@dataclass(frozen=True)
class Size:
    """Amount of work. `common.interleave` repeats rounds."""

    own_steps: int = 100  # of our members per round; ten times as many for one member
    steps: int = 100  # of each plain agent per round
    agents: int = 6  # plain ones
    rounds: int = 7
    baseline: int = 600  # steps of stable-baselines3 per round
    training: int = 1000  # steps of a training in the generation
    generations: int = 3  # rounds of the generation
    sampled: int = 3  # plain agents that represent its 48
    memory: int = 300  # steps on a full replay buffer
    environment: int = 400  # steps of the tensor CartPole


QUICK = Size(2, 2, 1, 1, 4, 10, 1, 1, 2, 5)


def inner(preset: str) -> InnerLoop:
    """Return the project's inner loop with a preset's values for CartPole."""
    values: dict[str, Any] = proxy_defaults({"preset": preset}, GAME)
    config, agent = (
        {field.name: values[field.name] for field in dataclasses.fields(kind) if field.name in values}
        for kind in (Config, AgentConfig)
    )
    tests = {"test_episodes": TESTS, "test_limit": plain.EPISODE_STEPS}
    return InnerLoop(Config(**config | tests), "DDQN", AgentConfig(**agent), GAME)


class Ours:
    """M members that train side by side: on a random proxy per member, or on the real CartPole."""

    def __init__(self, loop: InnerLoop, members: int, real: bool = False):
        seeds = range(members)
        networks: Any = loop.factory.parameters
        proxies = networks.initial(Streams(seeds))
        self.program = networks.with_weights(proxies)
        self.agent: Any = loop.agent_class(loop.agent_config, loop.factory.spaces, seeds)
        stage = make_environment("cartpole-200", members, 1) if real else loop.factory.environment(proxies, self.agent)
        self.interaction = StepLoop(self.agent, stage, Streams.from_name(seeds, "episodes"))

    def begin(self, rows: int) -> "Ours":
        """Train until all members learn, then fill the replay buffers to ``rows`` with copies of their transitions."""
        while not self.agent.learning_members().all():
            self.train(10)
        replay_buffer = self.agent.replay_buffer
        index = torch.arange(rows) % replay_buffer.size
        buffer_rows = {name: part[index] for name, part in replay_buffer.rows().items()}
        replay_buffer.load_state_dict({"rows": buffer_rows, "position": rows})
        return self

    def train(self, steps: int) -> None:
        inner_loop.train(self.interaction, steps)

    def rate(self, steps: int) -> float:
        """Train for ``steps`` steps and return the steps of all members per second."""
        return self.agent.members * steps / cpu_seconds(lambda: self.train(steps))


def plain_training(preset: str, program: Any, member: int) -> plain.PlainTraining:
    """Return a fresh plain agent on the synthetic environment of one member of ``program``."""
    training = plain.PlainTraining(plain.PRESETS[preset], member)
    stage = training.environment
    for name, network in (("state", stage.state_net), ("reward", stage.reward_net), ("done", stage.done_net)):
        plain.take_weights(network, program.layers[name], member)
    return training


class Theirs:
    """Plain agents on the synthetic environments of evenly spaced members of ours."""

    def __init__(self, preset: str, project_side: Ours, agents: int):
        members = [project_side.agent.members * i // agents for i in range(agents)]
        self.trainings = [plain_training(preset, project_side.program, member) for member in members]

    def begin(self, rows: int) -> "Theirs":
        """As `Ours.begin`."""
        for training in self.trainings:
            while training.episode < training.settings.init_episodes:
                training.run(10)
            memory = training.memory
            for values in memory.fields:
                stored_values = values[: memory.size]
                values[:rows] = stored_values.repeat(-(-rows // memory.size), 1)[:rows]
            memory.size = memory.position = rows
        return self

    def rate(self, steps: int) -> float:
        """Train the agents one after another and return their steps per second."""

        def work() -> None:
            for training in self.trainings:
                training.run(steps)

        return len(self.trainings) * steps / cpu_seconds(work)


def inner_loops(preset: str, size: Size) -> dict[str, Result]:
    """Compare members side by side with plain agents on the same proxies; for preset paper, stable-baselines3 too."""
    loop, counts = inner(preset), MEMBERS[preset]
    project_sides = {members: Ours(loop, members).begin(HALF_WAY[preset]) for members in counts}
    plain_side = Theirs(preset, project_sides[counts[-1]], size.agents).begin(HALF_WAY[preset])
    contenders: dict[str, Callable[[], float]] = {"plain": partial(plain_side.rate, size.steps)}
    for members, side in project_sides.items():
        contenders[f"{members}"] = partial(side.rate, size.own_steps * (10 if members == 1 else 1))
    with_baseline = preset == "paper" and has_baseline()
    if with_baseline:
        real = Ours(loop, counts[-1], real=True).begin(HALF_WAY[preset])
        model, count = plain.stable_baselines(plain.PRESETS[preset]), size.baseline
        sb3_training = partial(model.learn, count, reset_num_timesteps=False)
        contenders |= {"real": partial(real.rate, size.own_steps), "sb3": lambda: count / cpu_seconds(sb3_training)}
    rates = interleave(contenders, size.rounds)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    description = f"{preset}: batch {plain.PRESETS[preset].batch}, {plain.PRESETS[preset].hidden} units"
    results = {f"{preset}_plain": Result(middle["plain"], "steps/s", f"plain loop, one agent; {description}")}
    for members in counts:
        target = (">=", TARGETS[preset, members]) if (preset, members) in TARGETS else None
        ratio = median_ratio(rates[f"{members}"], rates["plain"])
        results[f"{preset}_{members}"] = Result(middle[f"{members}"], "steps/s", "in one tensor program, all members")
        results[f"{preset}_{members}_speedup"] = Result(ratio, "times", "the plain loop", target)
    return results | (baseline_results(rates, middle, counts[-1]) if with_baseline else {})


def baseline_results(rates: dict[str, list[float]], middle: dict[str, float], members: int) -> dict[str, Result]:
    sb3 = "stable-baselines3's DQN"
    return {
        "sb3": Result(middle["sb3"], "steps/s", f"{sb3}, paper's sizes, on Gymnasium's CartPole"),
        "real": Result(middle["real"], "steps/s", f"{members} members on the tensor CartPole"),
        "real_sb3_speedup": Result(median_ratio(rates["real"], rates["sb3"]), "times", sb3),
        "plain_sb3_speedup": Result(median_ratio(rates["plain"], rates["sb3"]), "times", f"the plain loop, to {sb3}"),
    }


class Generation:
    """Fresh agents on a random mean and on both directions of its perturbations, tested on the real CartPole."""

    def __init__(self, size: Size):
        self.loop, self.size = inner("paper"), size
        networks: Any = self.loop.factory.parameters
        mean = networks.initial(Streams([0]))
        noise = Streams([1]).normal(PERTURBATIONS, mean.shape[1])[0] * self.loop.config.noise_std
        self.proxies = torch.cat([mean.expand_as(noise), mean + noise, mean - noise])
        assert len(self.proxies) == PERTURBATIONS * TRAININGS
        self.program = networks.with_weights(self.proxies)
        self.env = plain.cartpole()

    def project_seconds(self) -> float:
        seeds, steps = range(len(self.proxies)), self.size.training
        return cpu_seconds(lambda: self.loop.run(self.proxies, seeds, inner_steps=steps, inner_rule="budget"))

    def plain_seconds(self) -> float:
        """Train a few agents on evenly spaced proxies; return the CPU seconds scaled to all proxies."""
        count = self.size.sampled
        members = [len(self.proxies) * i // count for i in range(count)]

        def work() -> None:
            for member in members:
                training = plain_training("paper", self.program, member)
                training.run(self.size.training)
                plain.test(training.online, self.env, range(TESTS))

        return cpu_seconds(work) * len(self.proxies) / count


def generation(size: Size) -> dict[str, Result]:
    contest = Generation(size)
    rounds = interleave({"ours": contest.project_seconds, "plain": contest.plain_seconds}, size.generations)
    count = len(contest.proxies)
    work = f"{count} agents of {size.training} steps and {TESTS} tests"
    scaled = f"the plain loop, {size.sampled} agents scaled to {count}"
    return speedup("generation", rounds["plain"], rounds["ours"], "s", scaled, f"{work}, side by side", 8)


def peak() -> float:
    """Return the peak memory of this process in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def memory_of_generation(steps: int) -> tuple[float, float]:
    """Return the rise of the peak memory from training and testing 48 agents, and their replay buffer's size, in GB.

    The buffer is full from the start: it holds copies of a few transitions.
    """
    start_peak = peak()
    loop = inner("paper")
    project_side = Ours(loop, PERTURBATIONS * TRAININGS)
    project_side.begin(LONGEST).train(steps)
    loop.test(project_side.agent.with_weights(project_side.agent.flat_parameters), range(project_side.agent.members))
    return peak() - start_peak, sum(table.nbytes for table in project_side.agent.replay_buffer._tables.values()) / 1e9


def memory(size: Size) -> dict[str, Result]:
    """Measure memory in a new process. Call this first: the process inherits the peak of its parent."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        rise, replay = pool.submit(memory_of_generation, size.memory).result()
    description = f"rise of the peak, {PERTURBATIONS * TRAININGS} agents with {LONGEST:,} steps remembered"
    return {
        "memory": Result(rise, "GB", description, ("<", 2)),
        "memory_replay": Result(replay, "GB", "their replay buffer, part of it"),
    }


def tensor_cartpole(steps: int) -> float:
    """Return the steps per second of 64 x 8 parallel episodes with random actions, resets included."""
    shape = (64, 8)
    env = make_environment(GAME, *shape)
    env.reset(torch.randint(2**31, shape))

    def work() -> None:
        for _ in range(steps):
            step = env.step(torch.randint(2, shape))
            env.reset(torch.randint(2**31, shape), step.terminated | step.truncated)

    return 64 * 8 * steps / cpu_seconds(work)


def gymnasium_cartpole(steps: int) -> float:
    """Return the steps per second of one Gymnasium CartPole with random actions."""
    env, actions = gym.make("CartPole-v1"), torch.randint(2, (steps,)).tolist()
    return steps / cpu_seconds(lambda: plain.play(env, actions))


def environments(size: Size) -> dict[str, Result]:
    steps = size.environment
    contenders = {"ours": partial(tensor_cartpole, steps), "gymnasium": partial(gymnasium_cartpole, 20 * steps)}
    rates = interleave(contenders, size.rounds)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "cartpole_gymnasium": Result(middle["gymnasium"], "steps/s", "one CartPole-v1, random actions and resets"),
        "cartpole": Result(middle["ours"], "steps/s", "the same, 64 x 8 in one tensor program"),
        "cartpole_speedup": Result(median_ratio(rates["ours"], rates["gymnasium"]), "times", "one of Gymnasium's"),
    }


def main() -> None:
    loops = (partial(inner_loops, preset) for preset in ("paper", "recipe"))
    parts = (memory, *loops, generation, environments)
    common.run("Learned synthetic environments on CartPole", __doc__, parts, Size(), QUICK)


if __name__ == "__main__":
    main()
