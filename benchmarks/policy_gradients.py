"""Speed of policy gradients on the 300-step lander, one thread: training, ours and others', and the simulator alone.

    python benchmarks/policy_gradients.py [--json] [--quick]

Seconds are CPU time of this process, so other jobs on the machine matter little. Contenders take turns in one run.
Each begins every round with a fresh policy, which crashes within a hundred steps or so. The comparison with
stable-baselines3 needs the extra `bench` and is left out without it.
"""

import contextlib
import io
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

os.environ["MKL_CBWR"] = "AUTO"  # as trainer.py sets it

import common  # first: one thread, and the project on the path
from common import LightningClock, Result, cpu_seconds, has_baseline, interleave, median_ratio
from plain import policy_gradients as plain

from control.cli.settings import Settings, from_dict
from control.commands.train import train
from control.lightning.callbacks import Checkpoints
from control.loops.build import build_loop
from control.loops.episodes import EpisodeLoop
from control.loops.rollout import rollout
from models.streams import Streams

MEMBERS = 5
SMALL = (64, 64)  # stable-baselines3's default
NETWORKS: dict[str, dict[str, Any]] = {
    "cpg": {"implementation": "CPG"},
    "aac": {"implementation": "AAC"},
    "cpg_small": {"implementation": "CPG", "hidden_sizes": SMALL},
    "aac_small": {"implementation": "AAC", "hidden_sizes": SMALL, "value_hidden_sizes": SMALL},
}


@dataclass(frozen=True)
class Size:
    """Amount of work. `common.interleave` repeats rounds."""

    episodes: int = 256  # our episodes per round
    plain_episodes: int = 32  # of the plain loop per round
    steps: int = 4000  # of stable-baselines3 per round
    rounds: int = 5
    updates: int = 30  # with log and checkpoints
    batch: int | None = None  # None: the default


QUICK = Size(episodes=4, plain_episodes=2, steps=40, rounds=1, updates=2, batch=2)


def settings_of(network: str, size: Size, **changes: Any) -> Settings:
    """Return the settings of a `trainer.py` run on beresheet without evaluations."""
    values = {"gamename": "beresheet", "eval_every": 10**6} | NETWORKS[network] | changes
    if size.batch is not None:
        values["batch_episodes"] = size.batch
    return from_dict(values)


def fit(settings: Settings, updates: int) -> LightningClock:
    """Train a fresh policy as `trainer.py` does, and return the times of ``updates`` updates after the first."""
    clock = LightningClock(lambda callback: "checkpoints" if isinstance(callback, Checkpoints) else "log")
    episodes = (updates + 1) * settings.agent.batch_episodes
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        train(settings.replace(max_episodes=episodes, logdir=folder), (clock,))
    return clock


class Simulator:
    """Measures the environment alone: it replays the episodes of a fresh policy from their seeds and actions."""

    def __init__(self, settings: Settings):
        loop = build_loop(settings)
        assert isinstance(loop, EpisodeLoop)
        envs, streams = settings.agent.batch_episodes, Streams([0])
        seeds = streams.episode_seeds(envs)
        trajectory = rollout(loop.agent.begin(envs, streams.fork(), sample=True), loop.environment, seeds)
        loop.close()
        lengths, actions = trajectory.lengths[0].tolist(), trajectory.action[:, 0].T.tolist()
        self.episodes: list[tuple[int, list[int]]] = []  # seed and actions
        for seed, env_actions, length in zip(seeds[0].tolist(), actions, lengths, strict=True):
            self.episodes.append((seed, env_actions[:length]))
        self.steps, self.env = sum(lengths), plain.lander()

    def rate(self) -> float:
        """Replay all episodes and return the steps per second."""
        return self.steps / cpu_seconds(self.play)

    def play(self) -> None:
        for seed, actions in self.episodes:
            self.env.reset(seed=seed)
            for action in actions:
                _, _, terminated, truncated, _ = self.env.step(action)
            assert terminated or truncated


class Contest:
    """The contenders for one network. Every call is a round with a fresh policy, and returns steps per second."""

    def __init__(self, network: str, size: Size):
        self.network, self.size = network, size
        self.config = settings_of(network, size).agent
        self.seeds = itertools.count()
        self.lengths: list[float] = []  # mean length of our episodes, per round

    def project_rate(self, members: int) -> float:
        """Train ``members`` seeds side by side."""
        seed = members * next(self.seeds)
        settings = settings_of(self.network, self.size, no_checkpoint=True, seed=seed, num_seeds=members)
        batch = members * self.config.batch_episodes
        updates = -(-self.size.episodes // batch)
        clock = fit(settings, updates)
        self.lengths.append(clock.steps / (updates * batch))
        return clock.steps / clock.seconds

    def plain_rate(self) -> float:
        """Train one seed by the plain loop."""
        training = plain.PlainTraining(self.config, next(self.seeds))
        start = time.process_time()
        steps = sum(training.update() for _ in range(self.size.plain_episodes // self.config.batch_episodes))
        return steps / (time.process_time() - start)

    def sb3_rate(self, envs: int, value_hidden: tuple[int, ...]) -> float:
        """Train stable-baselines3's A2C on ``envs`` environments, with this shape of the value network."""
        model = plain.stable_baselines(self.config, envs, value_hidden, next(self.seeds))
        return self.size.steps / cpu_seconds(lambda: model.learn(self.size.steps))

    def sb3_variants(self) -> dict[str, tuple[str, Callable[[], float]]]:
        """Return variants of stable-baselines3's A2C: name -> (description, contender)."""
        config = self.config
        value_hidden = config.value_hidden_sizes if config.baseline == "value" else config.hidden_sizes
        shapes = {"sb3_1": (1, value_hidden), "sb3_8": (8, value_hidden)}
        if config.baseline != "value":  # it always has a value network, ours has none: a small one is fairer
            shapes["sb3_8_linear"] = (8, ())
        variants: dict[str, tuple[str, Callable[[], float]]] = {}
        for name, (envs, value_sizes) in shapes.items():
            layers = f"policy {_layers(config.hidden_sizes)}, values {_layers(value_sizes)}"
            description = f"stable-baselines3's A2C, {envs} env{'s' * (envs > 1)}, {layers}"
            variants[name] = (description, partial(self.sb3_rate, envs, value_sizes))
        return variants


def _layers(hidden: tuple[int, ...]) -> str:
    """Return the sizes of hidden layers as text, such as ``64-64``."""
    return "-".join(map(str, hidden)) or "linear"


def training(network: str, size: Size) -> dict[str, Result]:
    """Measure the training of one network by us, by the plain loop and by stable-baselines3."""
    contest, simulator = Contest(network, size), Simulator(settings_of(network, size))
    peers = contest.sb3_variants() if has_baseline() else {}
    contenders = {
        "ours": partial(contest.project_rate, 1),
        "members": partial(contest.project_rate, MEMBERS),
        "plain": contest.plain_rate,
        "simulator": simulator.rate,
    }
    rates = interleave(contenders | {name: contender for name, (_, contender) in peers.items()}, size.rounds)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    config = contest.config
    values = f", values {_layers(config.value_hidden_sizes)}" if config.baseline == "value" else ""
    setup = f"policy {_layers(config.hidden_sizes)}{values}, {config.batch_episodes} episodes an update"
    results = {"": Result(middle["ours"], "steps/s", f"{NETWORKS[network]['implementation']}, {setup}")}
    results["members"] = Result(middle["members"], "steps/s", f"the same, {MEMBERS} seeds in one program")
    results["length"] = Result(statistics.fmean(contest.lengths), "steps", "an episode of ours, mean")
    for name, (description, _) in peers.items():
        results[name] = Result(middle[name], "steps/s", description)
    if peers:
        best = max(peers, key=lambda name: middle[name])
        ratio = median_ratio(rates["ours"], rates[best])
        results["sb3_speedup"] = Result(ratio, "times", f"the fastest of these, {best}", (">=", 4))
    share = 100 * median_ratio(rates["ours"], rates["simulator"])
    results |= {
        "plain": Result(middle["plain"], "steps/s", "plain loop, one episode after another"),
        "plain_speedup": Result(median_ratio(rates["ours"], rates["plain"]), "times", "the plain loop"),
        "simulator": Result(middle["simulator"], "steps/s", "a batch of its episodes again, without a policy"),
        "simulator_share": Result(share, "%", "the simulator's steps/s"),
    }
    return {f"{network}_{name}" if name else network: result for name, result in results.items()}


def overhead(network: str, size: Size) -> dict[str, Result]:
    """Measure early updates with log and checkpoints, when nearly every update is the best so far and writes a file."""
    clock, name = fit(settings_of(network, size), size.updates), f"{network}_update"
    against = f"trainer.fit, mean of {size.updates} updates from the second on"
    results = {name: Result(1e3 * clock.seconds / size.updates, "ms an update", against)}
    shares = {
        "own": "rollout, observe, learn",
        "log": "metrics.csv, TensorBoard, progress",
        "checkpoints": "last.ckpt every ten, best.ckpt",
        "lightning": "all the rest",
    }
    for part, description in shares.items():
        results[f"{name}_{part}"] = Result(100 * clock.parts[part] / clock.seconds, "%", description)
    return results


def main() -> None:
    parts = [partial(training, network) for network in NETWORKS]
    parts += [partial(overhead, network) for network in ("cpg", "aac")]
    common.run("Policy gradients on the 300-step lander", __doc__, parts, Size(), QUICK)


if __name__ == "__main__":
    main()
