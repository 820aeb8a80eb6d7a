"""Speed of Upside-Down RL on LunarLander, one thread: epoch, update, rollout, and the cost of Lightning.

    python benchmarks/udrl.py [--json] [--quick] [--checkpoint last.ckpt]

Times are CPU time of this process, so other jobs on the machine matter little. Contenders take turns in one run.
"""

import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import common  # first: one thread, and the project on the path
import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from common import LightningClock, Meter, Result, cpu_seconds, interleave, median_ratio
from gymnasium.envs.box2d.lunar_lander import heuristic
from plain.udrl import BATCH, ROLLOUTS, BehaviorPolicy, PlainLoop
from torch import Tensor

from control.cli.settings import Settings, from_dict
from control.commands.train import train
from control.loops.build import build_loop
from control.loops.episodes import EpisodeLoop
from control.loops.rollout import rollout
from control.storage import checkpoints
from models.contract import Policy


@dataclass(frozen=True)
class Size:
    """Amount of work."""

    updates: int = 100  # per epoch
    early: int = 5  # rounds with a fresh policy
    trained: int = 3  # rounds with a trained policy
    short: int = 9  # rounds of short measurements
    heuristic_rollouts: int = 20  # times 20 episodes of Gymnasium's controller
    heuristic_epochs: int = 30  # epochs of updates on these episodes
    lightning_epochs: int = 30

    def settings(self, **changes: Any) -> Settings:
        """Return the settings of UDRL as published, without its epoch of random actions."""
        fixed = {"gamename": "lunarlander", "random_action_epochs": 0, "num_grad_steps": self.updates}
        return from_dict(fixed | changes)


QUICK = Size(updates=3, early=1, trained=1, short=1, heuristic_rollouts=1, heuristic_epochs=2, lightning_epochs=2)


class HeuristicPolicy(Policy):
    """Gymnasium's hand-written controller of LunarLander, which lands."""

    def __init__(self, env: gym.Env):
        self.env, self.members = env, 1

    def act(self, obs: Tensor) -> Tensor:
        return torch.tensor([[heuristic(self.env, row) for row in obs[0].numpy()]])


class Contest:
    """The project's training loop and the plain loop, with the same network weights and the same steps in memory.

    In the ``state`` "early", these are 50 random episodes and a fresh policy, which crashes within a hundred steps. In
    the state "trained", they are from a ``checkpoint``. Without one, they are episodes of Gymnasium's controller and a
    policy fitted to them, which flies for longer.
    """

    def __init__(self, state: str, size: Size, checkpoint: str | None):
        self.loop, self.plain, self.updates = build_loop(size.settings()), PlainLoop(), size.updates
        self.agent: Any = self.loop.agents[0]
        self.meter = Meter()
        self.meter.wrap(self.loop, "_play", "rollout")
        if state == "trained" and checkpoint:
            loaded = checkpoints.load(checkpoint)
            weights = loaded.content["state_dict"]
            self.agent.load_state_dict({name.removeprefix("agents.0."): value for name, value in weights.items()})
            self.agent.load_training_state(loaded.run_state["loop"]["agent"])
        elif state == "trained":
            self._learn_to_fly(size)
        else:
            self.loop.warm_up()
        policy: Any = self.agent.policy
        memory: Any = self.agent.memory
        self.plain.policy.take_weights(policy.named_weights())
        for episode in memory.episodes[0]:
            steps = {name: values.numpy() for name, values in episode.steps.items()}
            lengths = np.full(len(episode), len(episode), np.float32)
            next_obs = np.roll(steps["obs"], -1, 0)
            self.plain.memory.add({**steps, "obs2": next_obs, "rollout_length": lengths})
        self.meter.take()

    def _learn_to_fly(self, size: Size) -> None:
        """Fit the project's agent to episodes of Gymnasium's controller."""
        policy, loop = HeuristicPolicy(self.plain.env), self.loop
        assert isinstance(loop, EpisodeLoop)
        for _ in range(size.heuristic_rollouts):
            trajectory = rollout(policy, loop.environment, loop.streams.episode_seeds(ROLLOUTS))
            self.agent.observe(trajectory)
        for _ in range(size.heuristic_epochs):
            self.agent.learn()

    def project_epoch(self) -> "EpochTime":
        """Run an epoch of the project's loop."""
        start_steps = int(self.loop.env_steps)
        total = cpu_seconds(self.loop.epoch)
        rollout_seconds = self.meter.take()["rollout"]
        return EpochTime(total - rollout_seconds, rollout_seconds, int(self.loop.env_steps) - start_steps)

    def plain_epoch(self) -> "EpochTime":
        """Run an epoch of the plain loop."""
        update_seconds = cpu_seconds(lambda: self.plain.updates(self.updates))
        start = time.process_time()
        steps = self.plain.rollouts()
        return EpochTime(update_seconds, time.process_time() - start, steps)


class EpochTime(NamedTuple):
    """CPU seconds of an epoch, and its environment steps."""

    update_seconds: float  # and of all other work outside rollouts
    rollout_seconds: float
    steps: int


def epochs(state: str, size: Size, checkpoint: str | None = None) -> dict[str, Result]:
    """Compare epochs of the project's loop and of the plain loop in a ``state`` (`Contest`). The two play different
    episodes, so their times are scaled to the same number of steps."""
    contest = Contest(state, size, checkpoint)
    times = interleave({"ours": contest.project_epoch, "plain": contest.plain_epoch}, getattr(size, state))
    steps = statistics.fmean(epoch.steps for epoch in times["ours"] + times["plain"])
    rates, seconds = {}, {}  # environment steps per second of rollouts; seconds of an epoch of ``steps`` steps
    for name, epoch_times in times.items():
        rates[name] = [epoch.steps / epoch.rollout_seconds for epoch in epoch_times]
        seconds[name] = [epoch.update_seconds + epoch.rollout_seconds / epoch.steps * steps for epoch in epoch_times]
    epoch_ratio = median_ratio(seconds["plain"], seconds["ours"])
    rollout_ratio = median_ratio(rates["ours"], rates["plain"])
    loop, work = "the plain loop", f"{size.updates} updates of {BATCH}, {ROLLOUTS} episodes"
    same_work = "the same, with validation loss and statistics"
    return {
        f"epoch_{state}_steps": Result(steps, "environment steps", "20 episodes, mean of both"),
        f"epoch_{state}_plain": Result(statistics.median(seconds["plain"]), "s an epoch", work),
        f"epoch_{state}": Result(statistics.median(seconds["ours"]), "s an epoch", same_work),
        f"epoch_{state}_speedup": Result(epoch_ratio, "times", loop, (">=", 5)),
        f"rollout_{state}_plain": Result(statistics.median(rates["plain"]), "steps/s", "one observation at a time"),
        f"rollout_{state}": Result(statistics.median(rates["ours"]), "steps/s", "20 episodes side by side"),
        f"rollout_{state}_speedup": Result(rollout_ratio, "times", loop, (">=", 3)),
    }


def simulator(size: Size) -> dict[str, Result]:
    """Measure random actions in the environment alone, resets included."""
    env, rates = gym.make("LunarLander-v3", disable_env_checker=True), []
    env.action_space.seed(0)
    for seed in range(size.early):
        steps, start = 0, time.process_time()
        for episode in range(20):
            env.reset(seed=100 * seed + episode)
            done = False
            while not done:
                _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                steps, done = steps + 1, terminated or truncated
        rates.append(steps / (time.process_time() - start))
    return {
        "rollout_simulator": Result(statistics.median(rates), "steps/s", "random actions and no policy, an upper bound")
    }


def bare_updates(count: int) -> Callable[[], float]:
    """Return a contender: CPU seconds of ``count`` updates by torch on a fixed batch, without sampling and clipping."""
    policy = BehaviorPolicy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3.5e-4)
    obs, command, actions = torch.randn(BATCH, 8), torch.rand(BATCH, 2) * 100, torch.randint(4, (BATCH,))

    def work() -> None:
        for _ in range(count):
            optimizer.zero_grad()
            F.cross_entropy(policy(obs, command), actions).backward()
            optimizer.step()

    return lambda: cpu_seconds(work)


def updates(size: Size) -> dict[str, Result]:
    """Compare the project's updates with `bare_updates`."""
    loop = build_loop(size.settings())
    loop.warm_up()
    agent: Any = loop.agents[0]
    rounds = interleave({"ours": lambda: cpu_seconds(agent.learn), "bare": bare_updates(size.updates)}, size.short)
    rate = {name: size.updates / statistics.median(seconds) for name, seconds in rounds.items()}
    return {
        "update_bare": Result(rate["bare"], "updates/s", "forward, backward, torch's Adam on one fixed batch of 768"),
        "update": Result(rate["ours"], "updates/s", "the same with sampling, clipping and statistics"),
        "update_slowdown": Result(median_ratio(rounds["ours"], rounds["bare"]), "times", "bare updates", ("<=", 1.3)),
    }


def lightning(size: Size) -> dict[str, Result]:
    """Measure a real run of short, early epochs: the worst case for a fixed cost per epoch."""
    count, clock = size.lightning_epochs, LightningClock(lambda callback: "callbacks")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(open(os.devnull, "w")):
        train(size.settings(epochs=count + 1, logdir=folder), (clock,))
    milliseconds = {part: 1e3 * seconds / count for part, seconds in clock.parts.items()}  # per epoch
    share = {part: 100 * seconds / clock.seconds for part, seconds in clock.parts.items()}
    unit, against = "ms an epoch", "an epoch under trainer.fit"
    callbacks = "metrics.csv, TensorBoard, progress, checkpoints"
    return {
        "fit_epoch": Result(1e3 * clock.seconds / count, unit, f"trainer.fit, mean of {count} early epochs"),
        "fit_own_work": Result(milliseconds["own"], unit, "learn, rollout, observe, evaluate"),
        "fit_callbacks": Result(milliseconds["callbacks"], unit, callbacks),
        "fit_lightning": Result(milliseconds["lightning"], unit, "all the rest"),
        "fit_lightning_share": Result(share["lightning"], "%", against, ("<", 5)),
        "fit_callbacks_share": Result(share["callbacks"], "%", against),
    }


def main() -> None:
    parser = common.parser(__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", help="last.ckpt of a UDRL run on lunarlander, for the trained state")
    options = parser.parse_args()
    trained = partial(epochs, "trained", checkpoint=options.checkpoint)
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the results alone
        parts = (partial(epochs, "early"), trained, simulator, updates, lightning)
        results = common.measure(parts, QUICK if options.quick else Size())
    common.report("Upside-Down RL on LunarLander", results, options.json)


if __name__ == "__main__":
    main()
