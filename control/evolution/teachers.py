"""Makes a synthetic environment from a policy, for direct use or as the start of a search. The policy is an agent's
checkpoint or any function of observations, for example a manual controller or an agent of another library.

The rewards of such an environment reveal the policy: they show an agent the policy's action in each state.
"""

import contextlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from control.loops.build import build_loop, take_weights
from control.storage import checkpoints
from control.storage.checkpoints import Checkpoint, CheckpointError
from control.storage.run_dir import winner
from envs.make import Stages, make_environment
from envs.names import first_line
from models.contract import StepAgent
from models.registry import family
from models.settings import SettingError
from models.spaces import Discrete, Spaces
from models.streams import Streams, derive_seed
from understudy.files import SUFFIX, pretrained

Teacher = Callable[[Tensor], Tensor]
"""Observations ``[N, S]`` to actions ``[N]`` int64 or ``[N, A]``, or to what each action is worth, ``[N, A]``."""

Spent = Callable[[int], None]
"""Is told steps that were made in the real environment."""

_LADDER = (0.0, 0.3, 1.0)  # action noise: standard deviation relative to half the range, or share of random actions
_ENVS = 4  # environments for each value of the noise


def is_teacher(source: str) -> bool:
    """Return whether ``source`` names a policy: a function ``module:function``, or an agent's run folder or checkpoint.
    Otherwise it should name a proxy."""
    path = Path(source)
    if not path.exists():
        return ":" in source and source not in pretrained()
    return path.suffix != SUFFIX and winner(path) is None


def teacher(source: str, game: str, spaces: Spaces, values: bool = False) -> Teacher:
    """Return the policy ``source`` (`is_teacher`) as a function from observations to actions (continuous ones are
    clipped to their bounds) or, with ``values``, to action values. Raises SettingError if it cannot be used in
    ``game``."""
    policy, actions = _agent(source, game, values) if Path(source).exists() else _function(source), spaces.actions
    if isinstance(actions, Discrete):
        shape = (actions.n,) if values else ()
    else:
        shape = (actions.size,)

    def wrong(result: str, allowed: str) -> SettingError:
        return SettingError(f"start_from is {source!r}, which gives {result}; allowed: {allowed}", "start_from")

    def checked(obs: Tensor) -> Tensor:
        output = policy(obs)
        output = output.unsqueeze(1) if shape == (1,) and output.shape == (len(obs),) else output
        if output.shape != (len(obs), *shape):
            expected = "the worth of every action" if values else f"one of {actions} for each of them"
            raise wrong(f"{list(output.shape)} numbers for {len(obs)} observations", expected)
        if len(lost := output[~output.float().isfinite()]):
            raise wrong(f"{lost[0].item()}", "finite numbers")
        if values:
            return output.float()
        if isinstance(actions, Discrete):
            indices = output.long()
            if len(invalid := output[(indices != output) | (indices < 0) | (indices >= actions.n)]):
                raise wrong(f"the action {invalid[0].item()}", f"whole numbers, 0 to {actions.n - 1}")
            return indices
        return torch.minimum(torch.maximum(output.float(), torch.tensor(actions.low)), torch.tensor(actions.high))

    checked(torch.zeros(2, *spaces.obs_shape))
    return checked


def _function(source: str) -> Teacher:
    module, _, name = source.rpartition(":")
    try:
        function: Any = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # an unknown module may raise anything while it is imported
        line = f"start_from is {source!r}: {first_line(error)}"
        raise SettingError(f"{line}; allowed: a proxy, a checkpoint, or module:function", "start_from") from error

    def act(obs: Tensor) -> Tensor:
        try:
            return torch.as_tensor(np.asarray(function(obs.numpy())))
        except (Exception, SystemExit) as error:  # the user's function may raise anything
            line = f"start_from is {source!r}, which failed: {first_line(error)}"
            raise SettingError(f"{line}; allowed: a function of observations [N, S]", "start_from") from error

    return act


def _checkpoint(source: str) -> Checkpoint:
    """Load an agent's checkpoint. Raises SettingError if there is none."""
    line = f"start_from is {source!r}"
    try:
        checkpoint = checkpoints.load(source)
    except CheckpointError as error:
        reason = str(error).partition("; allowed")[0]
        allowed = "a proxy's file, run folder or name; where a proxy can be made of it, a policy"
        raise SettingError(
            f"{line}, neither a proxy nor a policy: {reason}; allowed: {allowed}", "start_from"
        ) from error
    if family(checkpoint.settings.run.implementation).learns_from == "evolution":
        raise SettingError(
            f"{line}, a search without a winner; allowed: a proxy, or an agent's checkpoint", "start_from"
        )
    return checkpoint


def _agent(source: str, game: str, values: bool) -> Teacher:
    checkpoint = _checkpoint(source)
    run = checkpoint.settings.run
    line = f"start_from is {source!r}"
    if run.gamename.partition(",")[0] != game.partition(",")[0]:
        raise SettingError(f"{line}, an agent on {run.gamename}; allowed: one on {game}", "start_from")
    with contextlib.closing(build_loop(checkpoint.settings)) as loop:
        take_weights(loop.agents, checkpoint)
    agent: Any = loop.agents[0]
    if values and not (isinstance(agent, StepAgent) and hasattr(agent, "values")):
        raise SettingError(f"{line}, but {run.implementation} has no value of each action; allowed: clone_of actions")

    def act(obs: Tensor) -> Tensor:
        members = len(agent.seeds)
        wide = obs.expand(members, *obs.shape)
        if values:
            action_values: Tensor = agent.values(wide)[0]
            return action_values
        streams = Streams.from_name(agent.seeds, "cloning")
        actions: Tensor = agent.begin(len(obs), streams, sample=False, evaluate=True).act(wide)[0]
        return actions

    return torch.no_grad()(act)


def visited(
    act: Teacher, game: str, count: int, seed: int, limit: int | None = None, spent: Spent = lambda steps: None
) -> Tensor:
    """Return observations ``[count, S]``, a random sample from a policy's episodes on the real environment.

    A third of the episodes have no noise, the others have noise on the actions, so that agents also learn to act in
    states that the policy never reaches. Episodes restart after ``limit`` steps; None means the environment's limit.
    ``spent`` is called with the number of steps.
    """
    envs = _ENVS * len(_LADDER)
    streams = Streams([derive_seed(seed, "states of a teacher")])
    rungs = torch.tensor(_LADDER).repeat_interleave(_ENVS)
    observations: list[Tensor] = []
    with contextlib.closing(make_environment(game, 1, envs, time_limit=limit)) as real:
        done = torch.ones(1, envs, dtype=torch.bool)
        obs = real.reset(streams.episode_seeds(envs))
        actions = real.spaces.actions
        while len(observations) * envs < 2 * count:
            obs = real.reset(streams.episode_seeds(envs), done)
            observations.append(obs[0].float())
            action = act(obs[0].float())
            if isinstance(actions, Discrete):
                random_action = (streams.uniform(envs)[0] * actions.n).long()
                action = random_action.where(streams.uniform(envs)[0] < rungs, action)
            else:
                low, high = torch.tensor(actions.low), torch.tensor(actions.high)
                noise = streams.normal(envs, actions.size)[0] * rungs[:, None] * (high - low) / 2
                action = torch.minimum(torch.maximum(action + noise, low), high)
            step = real.step(action[None])
            obs, done = step.obs, step.terminated | step.truncated
    spent(len(observations) * envs)
    all_observations = torch.cat(observations)
    return all_observations[streams.uniform(len(all_observations))[0].argsort()[:count]]


def check_teacher(source: str, stages: Stages, game: str) -> Teacher:
    """Return the policy ``source``. Raises SettingError if no proxy with these settings can be cloned from it."""
    if Path(source).exists():
        _checkpoint(source)
    return teacher(source, game, stages.spaces, values=stages.check_policy(source))


def cloned(source: str, stages: Stages, game: str, seed: int, spent: Spent = lambda steps: None) -> Tensor:
    """Return parameters ``[D]`` of the proxy cloned from the policy ``source``. Raises the errors of
    `check_teacher`."""
    values = stages.check_policy(source)
    act = target_policy = teacher(source, game, stages.spaces)
    if values:
        target_policy = teacher(source, game, stages.spaces, values)
    streams = Streams([derive_seed(seed, "initial stand-in 0")])
    return stages.cloned_from_policy(
        target_policy, lambda count, limit: visited(act, game, count, seed, limit, spent), streams
    )[0]
