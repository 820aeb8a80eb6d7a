"""Translate configuration files of the training scripts of Young et al. 2023 (arXiv 2211.02222), for ``--config``."""

from collections.abc import Mapping
from typing import Any

from control.cli.options import parameters
from models.agents.model_generalisation.config import LATENT_SETTINGS, LEARNED_MODEL_SETTINGS
from models.settings import SettingError, allowed_clause, choice_error, format_value, nearest
from models.vocabulary import ORIGINAL_AGENTS, ORIGINAL_GAMES

_UNREAD = {"SimpleModel": {*LATENT_SETTINGS, "rollout_batch_size", "seperate_rollout_batch_size"}}
_UNREAD["PerfectModel"] = {*_UNREAD["SimpleModel"], *LEARNED_MODEL_SETTINGS, "model_alpha"}
_UNREAD["ER"] = {*_UNREAD["PerfectModel"], "rollout_length"}
_LATENT_DEFAULTS = {"min_std": "0.0", "std_act": "softplus"}  # of the script; they differ from GaussianLatent's


def is_original(content: Mapping[str, Any]) -> bool:
    """Return whether a file is for the original scripts. Such a file has ``env_config``, or an original name of an
    environment without an implementation."""
    return "env_config" in content or (content.get("environment") in ORIGINAL_GAMES and "implementation" not in content)


def from_original(content: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the content of an original file to settings. Missing keys get the original script's defaults. Raises
    SettingError for keys that the script does not read."""
    keys = dict(content)
    game, env_config = keys.pop("environment", None), keys.pop("env_config", {})
    if game not in ORIGINAL_GAMES:
        raise choice_error("environment", game, ORIGINAL_GAMES)
    if not isinstance(env_config, dict):
        raise SettingError(f"env_config is {format_value(env_config)}; allowed: a mapping")
    for key in env_config.keys() - (names := parameters(game.lower())).keys():
        hint = allowed_clause(nearest(key, names), ", ".join(names), f" for {game}")
        raise SettingError(f"env_config: {key} is unknown{hint}")
    settings = {"gamename": game.lower()} | ({"grid_size": "10"} if game == "ProcMaze" else {}) | env_config
    settings |= {"implementation": _implementation(keys), "episodic_env": "false"}
    settings |= _LATENT_DEFAULTS if "Latent" in settings["implementation"] else {}
    for key in keys.keys() & {"gamename", "implementation"}:
        raise SettingError(f"{key} is unknown beside environment")
    for key in keys.keys() & _UNREAD.get(settings["implementation"], set()):
        raise SettingError(f"{key} has no effect with {settings['implementation']}")
    rollout_batch = str(keys.pop("seperate_rollout_batch_size", "")).lower()
    if not rollout_batch and "rollout_batch_size" in keys:
        raise SettingError("rollout_batch_size has no effect without seperate_rollout_batch_size")
    if rollout_batch == "true" and "rollout_batch_size" not in keys:
        raise SettingError("rollout_batch_size is missing; seperate_rollout_batch_size is true")
    if rollout_batch != "true":
        keys.pop("rollout_batch_size", None)
    keys.pop("save_final_params", None)  # unused by the scripts
    if "save_params" in keys:
        settings["no_checkpoint"] = str(keys.pop("save_params")).lower() == "false"
    if "save_frequency" in keys:
        steps, epoch = str(keys.pop("save_frequency")), str(keys.get("eval_frequency", 500))
        if not (steps.isdecimal() and epoch.isdecimal() and int(steps) and int(epoch)):
            raise SettingError(f"save_frequency is {steps}, eval_frequency {epoch}; allowed: integers, at least 1")
        settings["checkpoint_every"] = str(-(-int(steps) // int(epoch)))
    return settings | keys


def _implementation(keys: dict[str, Any]) -> str:
    """Return the implementation for the ``agent_type`` in ``keys``, which is removed. Without ``agent_type``, it
    follows from the keys that only one script reads. Raises SettingError for an unknown agent."""
    scripts = {"latent_type": "latent_model", "Q_alpha": "simple_model", "model_alpha": "simple_model"}
    scripts |= {"rollout_length": "perfect_model"}
    agent = keys.pop("agent_type", next((script for key, script in scripts.items() if key in keys), "ER"))
    setting, choices = "agent_type", [*list(ORIGINAL_AGENTS)[:3], "latent_model"]
    if agent == "latent_model":
        setting, choices = "latent_type", list(ORIGINAL_AGENTS)[3:]
        agent = keys.get("latent_type", choices[0])
    if agent not in choices:
        raise choice_error(setting, agent, choices)
    return ORIGINAL_AGENTS[agent]
