"""Tiny settings, and a training loop without Lightning, for tests of agents."""

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conftest import ROOT
from control.loops.rollout import Episodes, rollout
from control.loops.steps import StepLoop as Steps
from control.storage.run_dir import read_metrics
from envs.base import Environment
from envs.make import make_dynamics, make_environment
from envs.tensor import TensorEnvironment
from models.contract import RandomPolicy
from models.registry import agent_class, default_config, implementations, learns_from
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams

# What makes a run small, for those fields that a family has. Batch and widths are odd, so that vector tails are
# exercised.
TINY: dict[str, Any] = {
    "batch_size": 33, "num_grad_steps": 4, "num_rand_action_rollouts": 5,
    "training_rollouts_per_worker": 3, "last_few": 4,
    "value_hidden_sizes": (11, 7), "conv_channels": (4, 8), "random_action_epochs": 0,
}  # fmt: skip
# Families' other networks and ways, tested beside every implementation: id -> (implementation, settings).
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "UDRL-hypernetwork": ("UDRL", {"network": "hypernetwork"}),
    "UDRL-by-episode": ("UDRL", {"sample_by": "episode", "eval_command": "sampled", "buffer_unit": "episodes",
                                 "buffer_size": 7}),
    "RCP-A-lambda": ("RCP-A", {"advantage_target": "lambda", "advantage_command": "quantile", "sample_by": "episode"}),
    "AAC-shared": ("AAC", {"shared_trunk": True}),
    "AAC-improved": ("AAC", {"gae_lambda": 0.9, "bootstrap_truncation": True, "normalize_advantage": True,
                             "grad_clip_val": 0.5, "reward_scale": 0.5, "anneal_lr": True, "value_lr": 5e-3}),
}  # fmt: skip
CASES = {name: (name, {}) for name in implementations() if learns_from(name) == "episodes"} | VARIANTS
# The same for families that learn between steps.
STEP_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "DDQN-three-envs": ("DDQN", {"num_envs": 3, "updates_per_step": 2, "eps_fraction": 0.5}),
    "DDQN-own-lr-and-batch": ("DDQN", {"vary_hp": True, "vary": ("lr", "batch_size")}),
    "DuelingDDQN-batch-mean": ("DuelingDDQN", {"dueling_mean": "batch"}),
    "ER-epsilon-greedy": ("ER", {"exploration_strat": "epsilon_greedy", "updates_per_step": 2, "double_DQN": True}),
}  # fmt: skip
STEP_CASES = {name: (name, {}) for name in implementations() if learns_from(name) == "steps"} | STEP_VARIANTS
STEP_TINY: dict[str, Any] = {
    "batch_size": 9, "hidden_size": 11, "feature_dim": 13, "rb_size": 700,
    "num_hidden_layers": 2, "num_hidden_units": 11, "rollout_length": 3, "num_features": 3, "feature_width": 5,
    "buffer_size": 700, "training_start_time": 5, "eval_frequency": 5, "target_update_frequency": 7,
}  # fmt: skip


def on_policy(implementation: str) -> bool:
    """Whether an implementation learns from the episodes it has just played, and forgets them."""
    return learns_from(implementation) == "episodes" and default_config(implementation, "").schedule.on_policy


def able(case: str, game: str) -> bool:
    """Whether the agent of a case of `CASES` can choose a game's actions."""
    kind = Continuous if game == "pendulum" or game.endswith("-continuous") else Discrete
    return kind in agent_class(CASES[case][0]).action_kinds


def plays(case: str, game: str) -> bool:
    """Whether a case of `STEP_CASES` can play a game: what imagines with the world itself needs its tensor program."""
    return getattr(config_of(case), "model", "") != "perfect" or make_dynamics(game) is not None


def config_of(case: str, game: str = "", **changes: Any) -> Any:
    """Settings of a case of `CASES` or `STEP_CASES`, changed where its family has such a field."""
    implementation, own = (CASES | STEP_CASES)[case]
    config = default_config(implementation, game)
    known = {field.name for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **{name: value for name, value in (changes | own).items() if name in known})


def tiny(case: str, game: str = "", **changes: Any) -> Any:
    """The smallest settings that still learn something."""
    hidden = tuple(11 + 4 * i for i in range(len(default_config(CASES[case][0], game).hidden_sizes)))
    return config_of(case, game, **({"hidden_sizes": hidden} | TINY | changes))


def build(case: str, spaces: Spaces, seeds: list[int], config: Any = None) -> Any:
    return agent_class(CASES[case][0])(config or tiny(case), spaces, seeds)


class Loop:
    """What a run does with an agent, epoch by epoch, ``envs`` episodes in each."""

    def __init__(self, case: str, game: str, seeds: list[int], config: Any = None, envs: int = 4):
        self.environment: Environment = make_environment(game, len(seeds), envs)
        self.agent = build(case, self.environment.spaces, seeds, config)
        self.streams = Streams.named(seeds, "rollout")
        self.envs = envs

    def warm_up(self, rounds: int = 2) -> None:
        for _ in range(rounds):
            actor = RandomPolicy(self.environment.spaces, self.envs, self.streams.fork())
            self.agent.observe(rollout(actor, self.environment, self.streams.episode_seeds(self.envs)))

    def epoch(self) -> dict[str, Tensor]:
        """Learn, then act, or the other way round; everything that came of it, each ``[M, ...]``."""
        first = {} if self.agent.config.schedule.on_policy else self.agent.learn()
        actor = self.agent.begin(self.envs, self.streams.fork(), sample=True)
        trajectory = rollout(actor, self.environment, self.streams.episode_seeds(self.envs))
        seen = self.agent.observe(trajectory)
        numbers = first or self.agent.learn()
        numbers |= {f"seen {name}": value for name, value in seen.items()}
        mine = {f"weights {name}": value.detach().clone() for name, value in self.agent.state_dict().items()}
        return numbers | mine | {"returns": trajectory.returns, "lengths": trajectory.lengths}

    def evaluate(self, sample: bool = False) -> Episodes:
        actor = self.agent.begin(self.envs, self.streams.fork(), sample=sample, evaluate=True)
        return rollout(actor, self.environment, self.streams.episode_seeds(self.envs), keep=False)


class StepLoop:
    """What a run does with an agent that learns between steps, ``ticks`` an epoch."""

    def __init__(self, case: str, game: str, seeds: list[int], config: Any = None, epochs: int = 3, ticks: int = 60):
        config, which = config or config_of(case, game, **STEP_TINY), agent_class(STEP_CASES[case][0])
        limit = 0 if hasattr(config, "schedule") and config.schedule.endless else None
        environment = make_environment(game, len(seeds), config.num_envs, time_limit=limit)
        dynamics = environment.on_device if isinstance(environment, TensorEnvironment) else None
        self.game, self.ticks = game, ticks
        world = {"dynamics": dynamics} if which.knows_dynamics else {}
        self.agent = which(config, environment.spaces, seeds, **world)
        self.agent.budget = epochs * ticks * config.num_envs
        self.interaction = Steps(self.agent, environment, Streams.named(seeds, "episodes"))

    def epoch(self) -> dict[str, Tensor]:
        """Act and learn; everything that came of it, each ``[M, ...]``."""
        losses = []
        self.interaction.refresh()
        for _ in range(self.ticks):
            self.interaction.step()
            losses.append(self.interaction.loss)
        mine = {f"weights {name}": value.detach().clone() for name, value in self.agent.state_dict().items()}
        interaction = self.interaction
        assert interaction.obs is not None
        return mine | self.agent.measured() | {
            "losses": torch.stack(losses, 1), "obs": interaction.obs.clone(), "lengths": interaction.lengths.clone(),
            "returns": interaction.returns.clone(), "episodes": self.agent.episodes.clone(),
        }  # fmt: skip

    def state(self) -> dict[str, Any]:
        """All that `load` needs to go on from here."""
        return state_of(self.interaction)

    def load(self, state: dict[str, Any]) -> None:
        load_state(self.interaction, state)

    def evaluate(self, episodes: int = 4) -> Tensor:
        """Returns ``[M, K]`` of greedy episodes, from the same seeds for all."""
        environment = make_environment(self.game, self.agent.members, episodes)
        seeds = torch.arange(episodes).expand(self.agent.members, -1)
        policy = self.agent.begin(episodes, Streams.named(self.agent.seeds, "latents"), sample=False)
        return rollout(policy, environment, seeds, keep=False).returns


def state_of(interaction: Steps) -> dict[str, Any]:
    """All that `load_state` needs to go on from here, the agent's and the loop's."""
    parts = {"weights": interaction.agent.state_dict(), "rest": interaction.agent.training_state()}
    return parts | {"loop": interaction.resume_state()}


def load_state(interaction: Steps, state: dict[str, Any]) -> None:
    """Go on from what `state_of` gave."""
    interaction.agent.load_state_dict(state["weights"])
    interaction.agent.load_training_state(state["rest"])
    interaction.load_resume_state(state["loop"])


def same_numbers(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Equal to the bit, NaN being equal to itself; says which are not."""
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name].nan_to_num(7e7), other[name].nan_to_num(7e7))]
    assert not different


# -- whole runs --------------------------------------------------------------------------------------------------------

SMALL_RUN = {
    "gamename": "cartpole", "hidden_sizes": "12,16", "batch_size": 16, "num_grad_steps": 3,
    "num_rand_action_rollouts": 4, "training_rollouts_per_worker": 3, "eval_every": 2, "eval_episodes": 2,
    "checkpoint_every": 2, "epochs": 5,
}  # fmt: skip


SMALL_POLICY_RUN = {
    "implementation": "CPG", "gamename": "cartpole", "hidden_sizes": "12,16", "batch_size": 3, "running_mean_len": 7,
    "eval_every": 2, "eval_episodes": 2, "checkpoint_every": 2, "max_episodes": 14,
}  # fmt: skip


SMALL_STEP_RUN = {
    "implementation": "DDQN", "gamename": "cartpole", "hidden_size": 12, "batch_size": 9, "rb_size": 300,
    "steps_per_epoch": 37, "eval_every": 2, "eval_episodes": 2, "checkpoint_every": 2, "epochs": 5,
}  # fmt: skip


def flags(logdir: Path, *more: str, **changes: Any) -> list[str]:
    """The command line of a run that takes a second."""
    implementation = changes.get("implementation", "UDRL")
    small = SMALL_POLICY_RUN if on_policy(implementation) else SMALL_RUN
    values = (SMALL_STEP_RUN if learns_from(implementation) == "steps" else small) | {"logdir": logdir} | changes
    return [word for name, value in values.items() for word in (f"--{name}", str(value))] + list(more)


def run_folder(logdir: Path) -> Path:
    """The newest version of the only run under ``logdir``."""
    return sorted(logdir.glob("*/*/*/*/version_*"), key=lambda path: int(path.name.removeprefix("version_")))[-1]


def learned(folder: Path) -> dict[str, list[float]]:
    """Every column of a run's metrics that a clock does not decide."""
    return {
        name: column for name, column in read_metrics(folder / "metrics.csv").items() if not name.startswith("time/")
    }


def same_runs(one: Path, other: Path) -> None:
    """The same numbers learned, and the same weights, optimisers and counters to the bit."""
    ours, theirs = learned(one), learned(other)
    assert ours.keys() == theirs.keys() and len(ours["epoch"]) > 0
    assert [name for name in ours if not np.array_equal(ours[name], theirs[name], equal_nan=True)] == []
    for name in ("last.ckpt", "best.ckpt"):
        contents = [torch.load(folder / "checkpoints" / name, weights_only=True) for folder in (one, other)]
        differences = list(
            different(
                *(
                    {key: content[key] for key in ("state_dict", "optimizer_states", "understudy")}
                    for content in contents
                )
            )
        )
        assert [path for path in differences if not path.startswith("/understudy/settings/")] == []


def different(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two nests of mappings, lists, tensors and plain values differ."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from different(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for i, (ours, theirs) in enumerate(zip(one, other, strict=True)):
            yield from different(ours, theirs, f"{path}/{i}")
    elif isinstance(one, Tensor) and isinstance(other, Tensor):
        if not torch.equal(one.nan_to_num(7e7), other.nan_to_num(7e7)):
            yield path
    elif one != other:
        yield path


def start(argv: Sequence[str], code: str = "") -> "subprocess.Popen[str]":
    """``python trainer.py argv``, or ``code`` in its place, as a process of its own."""
    first = ["-c", code] if code else ["trainer.py"]
    return subprocess.Popen(
        [sys.executable, *first, *argv], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[str]", seconds: float = 60) -> None:
    """Until ``condition`` holds; fails when the process ends first or time runs out."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"ended with {process.returncode}: {process.communicate()}"
        assert time.monotonic() < end, "took too long"
        time.sleep(0.005)
