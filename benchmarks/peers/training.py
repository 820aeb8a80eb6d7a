"""Shared parts of the scripts that train one library's agent for `benchmarks/against_jax.py`. Imports no library.

A script is called in two ways. With ``steps CASE``, a JSON object with the fields of `Case`, it builds the agent and
prints the versions of its libraries as a line of JSON. For every line it reads, a number N, it then trains for N times
`Case.unit` steps and prints ``{"steps": ..., "seconds": ...}``: steps of all members and the CPU seconds they took.
With ``first GAME SEED`` it trains PPO until a greedy evaluation reaches the return of `GOALS` and prints the steps it
took.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from types import SimpleNamespace


@dataclass(frozen=True)
class Case:
    """Agent, game and sizes of a training that every library can make."""

    agent: str
    game: str  # the name of Gymnasium and of gymnax
    hidden: tuple[int, ...]
    batch: int  # transitions in a batch or a minibatch
    members: int  # agents side by side in one program
    unit: int  # steps of a member that are timed at least
    buffer: int = 0  # capacity of the replay buffer
    envs: int = 1
    rollout: int = 0  # steps of each environment between updates, on policy
    passes: int = 1  # over a rollout

    @property
    def minibatches(self) -> int:
        return self.envs * self.rollout // self.batch


# Settings of PPO in whole commands, which end at the return of `GOALS`: those tuned in stable-baselines3's zoo, without
# its schedules of the learning rate and of clipping, which not every library has.
GOALS = {"CartPole-v1": 475.0, "LunarLander-v3": 200.0}
FIRST = {
    "CartPole-v1": SimpleNamespace(
        envs=8, rollout=32, batch=256, passes=20, discount=0.98, gae_lambda=0.8, lr=1e-3, hidden=(64, 64),
        eval_steps=2560, eval_episodes=10, most_steps=204_800,
    ),
    "LunarLander-v3": SimpleNamespace(
        envs=16, rollout=512, batch=512, passes=6, discount=0.995, gae_lambda=0.98, lr=1e-3, hidden=(64, 64),
        eval_steps=40_960, eval_episodes=10, most_steps=2_007_040,
    ),
}  # fmt: skip


def serve(train: Callable[[int], int], packages: tuple[str, ...]) -> None:
    """Time ``train(units)``, which returns the number of steps, for every number of units on stdin."""
    print(json.dumps({name: version(name) for name in packages}), flush=True)
    for line in sys.stdin:
        start = time.process_time()
        steps = train(int(line))
        print(json.dumps({"steps": steps, "seconds": time.process_time() - start}), flush=True)


def main(
    trainer_of: Callable[[Case], Callable[[int], int]],
    first_result: Callable[[str, int], int],
    packages: tuple[str, ...],
) -> None:
    """Do what the command line of a library's script asks for. ``trainer_of(case)`` returns the function that `serve`
    times, ``first_result(game, seed)`` the steps that PPO took. Versions of ``packages`` (PyPI) are printed."""
    mode, *arguments = sys.argv[1:]
    if mode == "steps":
        values = json.loads(arguments[0])
        serve(trainer_of(Case(**values | {"hidden": tuple(values["hidden"])})), packages)
    else:
        print(first_result(arguments[0], int(arguments[1])))
