"""Configuration files of [Y]'s public code, by their own keys (see config.py). Imports no torch.

Four scripts read them: one for replay, one for each kind of model. Keys that a script does not read are refused here.
"""

from collections.abc import Mapping
from typing import Any

from models.agents.model_generalisation.config import OF_LATENT, OF_LEARNED, Config
from models.settings import SettingError, nearest

Pair = tuple[str, list[str]]

_WORLDS = {
    "ProcMaze": ("grid_size", "spontaneous_termination", "teleport_on_termination"),
    "OpenGrid": ("grid_size", "spontaneous_termination", "teleport_on_termination"),
    "ButtonGrid": ("grid_size", "num_buttons", "spontaneous_reset", "activate_on_reset"),
    "PanFlute": ("num_pipes", "spontaneous_reward"),
}
# Keys of theirs that are no settings of ours. A file with any of them is one of theirs.
_THEIRS = ("environment", "env_config", "agent_type", "alpha_adam", "save_params", "save_frequency",
           "save_final_params", "seperate_rollout_batch_size")  # fmt: skip
_ALL = ("num_hidden_layers", "num_hidden_units", "activation", "b1_adam", "b2_adam", "eps_adam", "wd_adam", "gamma",
        "double_DQN", "use_target", "target_update_frequency", "batch_size", "updates_per_step", "buffer_size",
        "training_start_time", "exploration_strat", "softmax_temp", "epsilon", "episodic_env", "num_steps",
        "eval_frequency", "eval_steps", "eval_batch_size", "num_seeds", "seed", "environment", "env_config",
        "agent_type", "save_params", "save_frequency", "save_final_params")  # fmt: skip
_LEARNED = (*_ALL, "rollout_length", "Q_alpha", *OF_LEARNED)
# What each script reads, by the agent_type that it writes into its results.
_KEYS: dict[str, tuple[str, ...]] = {
    "ER": (*_ALL, "alpha_adam"),
    "perfect_model": (*_ALL, "alpha_adam", "rollout_length"),
    "simple_model": _LEARNED,
    "latent_model": (*_LEARNED, *OF_LATENT, "seperate_rollout_batch_size", "rollout_batch_size"),
}
_STEP_SIZES = {"Q_alpha": "alpha_adam", "alpha_adam": "Q_alpha"}  # one is the other's name elsewhere
_IMPLEMENTATIONS = {"ER": "ER", "perfect_model": "PerfectModel", "simple_model": "SimpleModel"}
_LATENT = {"categorical": "CategoricalLatent", "gaussian": "GaussianLatent", "tanh_gaussian": "GaussianLatent"}

# What the scripts take for keys that a file leaves out, where it is not what our settings would be.
_ABSENT = {"double_DQN": "false", "episodic_env": "false", "updates_per_step": "1"}
_ABSENT_LATENT = _ABSENT | {"min_std": "0.0", "std_act": "softplus", "seperate_rollout_batch_size": "false"}
_PROCMAZE_SIZE = "10"


def translated(content: Mapping[str, Any]) -> list[Pair] | None:
    """Our names and words for the ``content`` of one of their files, whose values are text as it was written; None for
    any other file. Absent keys that their code has defaults for get those.

    Raises SettingError for what their code would not know, or would ignore.
    """
    if not any(key in content for key in _THEIRS):
        return None
    script = _script(content)
    latent = script == "latent_model"
    implementation = _LATENT[_choice("latent_type", content, _LATENT)] if latent else _IMPLEMENTATIONS[script]
    _check_keys(content, _KEYS[script], implementation)
    values = {**(_ABSENT_LATENT if latent else _ABSENT), **content}
    # The preset is said too, so that no flag can choose another, whose values the file's would then hide.
    pairs = [("implementation", [implementation]), ("preset", [Config.preset]), *_world(content), *_saving(content)]
    if latent and not _switch("seperate_rollout_batch_size", values):
        values["rollout_batch_size"] = "null"
    elif latent and "rollout_batch_size" not in content:
        raise SettingError("rollout_batch_size is missing; seperate_rollout_batch_size is true")
    for key, value in values.items():
        if key == "alpha_adam" or key not in _THEIRS:
            pairs.append(("Q_alpha" if key == "alpha_adam" else key, _words(key, value)))
    return pairs


def _script(content: Mapping[str, Any]) -> str:
    """Which script a file is for: the one it names, else the one that needs the keys it has."""
    if "agent_type" in content:
        return _choice("agent_type", content, _KEYS)
    if "latent_type" in content:
        return "latent_model"
    if "Q_alpha" in content or "model_alpha" in content:
        return "simple_model"
    return "perfect_model" if "rollout_length" in content else "ER"


def _check_keys(content: Mapping[str, Any], known: tuple[str, ...], implementation: str) -> None:
    for key in content:
        if key in known:
            continue
        if any(key in keys for keys in _KEYS.values()):
            near = f"; did you mean '{_STEP_SIZES[key]}'?" if key in _STEP_SIZES else ""
            raise SettingError(f"{key} has no effect with {implementation}{near}")
        raise SettingError(f"{key} is unknown{nearest(key, known)}")
    if "rollout_batch_size" in content and "seperate_rollout_batch_size" not in content:
        raise SettingError("rollout_batch_size has no effect without 'seperate_rollout_batch_size'")


def _world(content: Mapping[str, Any]) -> list[Pair]:
    """The game and its parameters."""
    if "environment" not in content:
        raise SettingError(f"environment is missing; allowed: {', '.join(_WORLDS)}")
    world, given = _choice("environment", content, _WORLDS), content.get("env_config", {})
    if not isinstance(given, Mapping):
        raise SettingError(f"env_config is {' '.join(_words('env_config', given))!r}; allowed: a mapping")
    known = _WORLDS[world]
    for key in given:
        if key not in known:
            near = nearest(key, known)
            raise SettingError(f"env_config: {key} is unknown; allowed for {world}: {', '.join(known)}{near}")
    if world == "ProcMaze":
        given = {"grid_size": _PROCMAZE_SIZE, **given}
    parameters = [(key, _words(f"env_config: {key}", value)) for key, value in given.items()]
    return [("gamename", [world.lower()]), *parameters]


def _saving(content: Mapping[str, Any]) -> list[Pair]:
    """When checkpoints are written: in the original after whole periods too, and at the end of a run that saves."""
    pairs: list[Pair] = []
    saves = _switch("save_params", content, default=True)
    if "save_params" in content:
        pairs.append(("no_checkpoint", [str(not saves).lower()]))
    # The original never looked at it: like us, it saves the last state of every run that saves any.
    if _switch("save_final_params", content, default=saves) != saves:
        raise SettingError(
            f"save_final_params is {str(not saves).lower()}; allowed: what save_params is, {str(saves).lower()}"
        )
    if "save_frequency" in content:
        period = _whole("eval_frequency", content) if "eval_frequency" in content else Config.eval_frequency
        pairs.append(("checkpoint_every", [str(-(-_whole("save_frequency", content) // period))]))
    return pairs


def _choice(key: str, content: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """The word for ``key``, the first of those known where a file has none."""
    word = " ".join(_words(key, content.get(key, next(iter(known)))))
    if word not in known:
        raise SettingError(f"{key} is {word!r}; allowed: {', '.join(known)}{nearest(word, known)}")
    return word


def _switch(key: str, content: Mapping[str, Any], default: bool = False) -> bool:
    word = " ".join(_words(key, content.get(key, str(default).lower())))
    if word not in ("true", "false"):
        raise SettingError(f"{key} is {word!r}; allowed: true or false")
    return word == "true"


def _whole(key: str, content: Mapping[str, Any]) -> int:
    word = " ".join(_words(key, content[key]))
    if not (word.isdecimal() and word.isascii() and int(word) > 0):
        raise SettingError(f"{key} is {word!r}; allowed: integer, at least 1")
    return int(word)


def _words(key: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        raise SettingError(f"{key} is a mapping; allowed: one value")
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
