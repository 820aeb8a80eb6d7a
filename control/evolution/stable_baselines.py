"""Loads agents of stable-baselines3 as policies, from the files of its ``save``."""

import importlib
import json
import math
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs.names import first_line
from models.settings import SettingError
from models.spaces import Discrete, Spaces

_VERSION_FILE = "_stable_baselines3_version"  # a member of every file
# The class of an agent by an attribute that only its files store. TD3 also loads files of DDPG.
_CLASSES = {
    "clip_range": "PPO",
    "gae_lambda": "A2C",
    "exploration_rate": "DQN",
    "target_entropy": "SAC",
    "target_policy_noise": "TD3",
}
_DESCRIPTION = ", an agent of stable-baselines3"  # in errors, after the name of the file


def is_agent(source: str) -> bool:
    """Return whether the file ``source`` is an agent of stable-baselines3."""
    try:
        with zipfile.ZipFile(source) as archive:
            return _VERSION_FILE in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def policy_error(source: str, problem: str, allowed: str) -> SettingError:
    """Return the error for a policy ``source`` that cannot be used. ``problem`` follows its name in the message."""
    return SettingError(f"start_from is {source!r}{problem}; allowed: {allowed}", "start_from")


def load_policy(source: str, spaces: Spaces, wants_values: bool = False) -> Callable[[Tensor], Tensor]:
    """Return the greedy policy of the agent in the file ``source``. It is a function from observations ``[N, S]`` to
    actions or, with ``wants_values``, to action values (DQN only). Loading the file can run any code in it. Raises
    SettingError if the agent cannot be loaded, or if it has other spaces."""
    model = _load_model(source)
    obs_space, action_space = model.observation_space, model.action_space
    is_discrete = isinstance(spaces.actions, Discrete)
    is_cell = type(obs_space).__name__ == "Discrete"  # a number of a cell, which is one-hot in ``spaces``
    obs_shape = (int(obs_space.n),) if is_cell else obs_space.shape
    if isinstance(spaces.actions, Discrete):
        fits = getattr(action_space, "n", None) == spaces.actions.n
    else:
        fits = type(action_space).__name__ == "Box" and math.prod(action_space.shape) == spaces.actions.size
    if obs_shape != spaces.obs_shape or not fits:
        allowed = f"one for observations {list(spaces.obs_shape)} and actions {spaces.actions}"
        raise policy_error(source, f"{_DESCRIPTION} for {obs_space} and {action_space}", allowed)
    if wants_values and not hasattr(model, "q_net"):
        name = type(model).__name__
        raise policy_error(source, f"{_DESCRIPTION}, but {name} has no value of each action", "clone_of actions")

    @torch.no_grad()
    def act(obs: Tensor) -> Tensor:
        observations = (obs.argmax(1) if is_cell else obs).numpy()
        if wants_values:
            inputs, _ = model.policy.obs_to_tensor(observations)
            return model.q_net(inputs)
        actions, _ = model.predict(observations, deterministic=True)
        rows = torch.as_tensor(np.asarray(actions).reshape(len(obs), -1))
        return rows[:, 0] if is_discrete else rows

    return act


def _load_model(source: str) -> Any:
    """Return the agent in the file ``source``, an object of stable-baselines3. Raises SettingError."""
    try:
        library: Any = importlib.import_module("stable_baselines3")
        with zipfile.ZipFile(source) as archive:
            attributes = json.loads(archive.read("data"))
        class_name = next(name for attribute, name in _CLASSES.items() if attribute in attributes)
        # Without the buffer of a million steps, and without schedules that older versions of Python have pickled.
        replaced: dict[str, Any] = {"buffer_size": 1}
        for schedule in ("lr_schedule", "clip_range", "exploration_schedule"):
            replaced[schedule] = lambda progress: 0.0
        return getattr(library, class_name).load(source, device="cpu", custom_objects=replaced)
    except ModuleNotFoundError as error:
        problem = f"{_DESCRIPTION}, which needs the module {error.name}"
        raise policy_error(source, problem, "pip install stable-baselines3") from error
    except (Exception, SystemExit) as error:  # a damaged or foreign file may raise anything
        problem = f"{_DESCRIPTION}, which cannot be loaded: {first_line(error)}"
        raise policy_error(source, problem, "PPO, A2C, DQN, SAC, TD3, DDPG") from error
