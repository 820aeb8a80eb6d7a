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

    member_steps: int = 100  # of our members per round; ten times as many for one member
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
    """Return the loop that trains and tests agents on synthetic environments, with a preset's values for CartPole."""
    values: dict[str, Any] = proxy_defaults({"preset": preset}, GAME)
    values |= {"test_episodes": TESTS, "test_limit": plain.EPISODE_STEPS}
    config = {field.name: values[field.name] for field in dataclasses.fields(Config) if field.name in values}
    agent = {field.name: values[field.name] for field in dataclasses.fields(AgentConfig) if field.name in values}
    return InnerLoop(Config(**config), "DDQN", AgentConfig(**agent), GAME)


class SideBySide:
    """This project's agents, which train side by side in one tensor program. Each of the ``members`` trains on a random
    synthetic environment or, with ``real``, on CartPole."""

    def __init__(self, loop: InnerLoop, members: int, real: bool = False):
        seeds = range(members)
        networks: Any = loop.factory.parameters
        proxies = networks.initial(Streams(seeds))
        self.program = networks.with_weights(proxies)
        self.agent: Any = loop.agent_class(loop.agent_config, loop.factory.spaces, seeds)
        environment = loop.factory.environment(proxies, self.agent)
        if real:
            environment = make_environment("cartpole-200", members, 1)
        self.step_loop = StepLoop(self.agent, environment, Streams.from_name(seeds, "episodes"))

    def begin(self, transitions: int) -> "SideBySide":
        """Train until all members learn. Then fill the replay buffers with copies, up to ``transitions``
        transitions."""
        while not self.agent.learning_members().all():
            self.train(10)
        replay_buffer = self.agent.replay_buffer
        index = torch.arange(transitions) % replay_buffer.size
        copies = {name: column[index] for name, column in replay_buffer.rows().items()}
        replay_buffer.load_state_dict({"rows": copies, "position": transitions})
        return self

    def train(self, steps: int) -> None:
        inner_loop.train(self.step_loop, steps)

    def rate(self, steps: int) -> float:
        """Train for ``steps`` steps and return the steps of all members per second."""
        return self.agent.members * steps / cpu_seconds(lambda: self.train(steps))


def plain_training(preset: str, program: Any, member: int) -> plain.PlainTraining:
    """Return a fresh plain agent on the synthetic environment of a member in ``program``, which has all of them."""
    training = plain.PlainTraining(plain.PRESETS[preset], member)
    environment = training.environment
    plain.take_weights(environment.state_net, program.layers["state"], member)
    plain.take_weights(environment.reward_net, program.layers["reward"], member)
    plain.take_weights(environment.done_net, program.layers["done"], member)
    return training


class PlainAgents:
    """Plain ``agents`` that train one after another, on the environments of evenly spaced members of `SideBySide`."""

    def __init__(self, preset: str, side_by_side: SideBySide, agents: int):
        members = [side_by_side.agent.members * i // agents for i in range(agents)]
        self.trainings = [plain_training(preset, side_by_side.program, member) for member in members]

    def begin(self, transitions: int) -> "PlainAgents":
        """Do the same as `SideBySide.begin`."""
        for training in self.trainings:
            while training.episode < training.settings.init_episodes:
                training.run(10)
            memory = training.memory
            for column in memory.fields:
                index = torch.arange(transitions) % memory.size
                column[:transitions] = column[index]
            memory.size = memory.position = transitions
        return self

    def rate(self, steps: int) -> float:
        """Train the agents one after another and return their steps per second."""

        def work() -> None:
            for training in self.trainings:
                training.run(steps)

        return len(self.trainings) * steps / cpu_seconds(work)


def inner_loops(preset: str, size: Size) -> dict[str, Result]:
    """Compare members side by side with plain agents on the same environments and, for "paper", stable-baselines3."""
    loop, counts, transitions = inner(preset), MEMBERS[preset], HALF_WAY[preset]
    contenders: dict[str, Callable[[], float]] = {}
    for members in counts:
        side_by_side = SideBySide(loop, members).begin(transitions)
        contenders[f"{members}"] = partial(side_by_side.rate, size.member_steps * (10 if members == 1 else 1))
    plain_agents = PlainAgents(preset, side_by_side, size.agents).begin(transitions)  # on environments of the last
    contenders["plain"] = partial(plain_agents.rate, size.steps)
    with_baseline = preset == "paper" and has_baseline()
    if with_baseline:
        contenders["real"] = partial(SideBySide(loop, counts[-1], real=True).begin(transitions).rate, size.member_steps)
        model = plain.stable_baselines(plain.PRESETS[preset])
        sb3_training = partial(model.learn, size.baseline, reset_num_timesteps=False)
        contenders["sb3"] = lambda: size.baseline / cpu_seconds(sb3_training)
    rates = interleave(contenders, size.rounds)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    description = f"{preset}: batch {plain.PRESETS[preset].batch}, {plain.PRESETS[preset].hidden} units"
    results = {f"{preset}_plain": Result(middle["plain"], "steps/s", f"plain loop, one agent; {description}")}
    for members in counts:
        target = (">=", TARGETS[preset, members]) if (preset, members) in TARGETS else None
        ratio = median_ratio(rates[f"{members}"], rates["plain"])
        results[f"{preset}_{members}"] = Result(middle[f"{members}"], "steps/s", "in one tensor program, all members")
        results[f"{preset}_{members}_speedup"] = Result(ratio, "times", "the plain loop", target)
    if with_baseline:
        sb3, real_ratio = "stable-baselines3's DQN", median_ratio(rates["real"], rates["sb3"])
        plain_ratio = median_ratio(rates["plain"], rates["sb3"])
        results |= {
            "sb3": Result(middle["sb3"], "steps/s", f"{sb3}, paper's sizes, on Gymnasium's CartPole"),
            "real": Result(middle["real"], "steps/s", f"{counts[-1]} members on the tensor CartPole"),
            "real_sb3_speedup": Result(real_ratio, "times", sb3),
            "plain_sb3_speedup": Result(plain_ratio, "times", f"the plain loop, to {sb3}"),
        }
    return results


class Generation:
    """Work of a generation of a search: fresh agents train on perturbed synthetic environments (a random mean, and both
    directions of its perturbations), and are tested on the real CartPole."""

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
        """Train and test all agents side by side; return the CPU seconds."""
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
    """Compare a generation with agents that train one after another."""
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
    side_by_side = SideBySide(loop, PERTURBATIONS * TRAININGS).begin(LONGEST)
    side_by_side.train(steps)
    agent = side_by_side.agent
    loop.test(agent.with_weights(agent.flat_parameters), range(agent.members))
    return peak() - start_peak, sum(table.nbytes for table in agent.replay_buffer._tables.values()) / 1e9


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
    """Compare the tensor CartPole with Gymnasium's, without agents."""
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
