"""Translate configuration files of the training scripts of Young et al. 2023 (arXiv 2211.02222), for ``--config``."""

from collections.abc import Mapping
from typing import Any

from models.settings import SettingError, choice_error, format_value
from models.vocabulary import ORIGINAL_AGENTS, ORIGINAL_GAMES

_EVAL_FREQUENCY = 500  # default of the script, in steps
_LATENT_DEFAULTS = {"min_std": "0.0", "std_act": "softplus"}  # of the script; GaussianLatent has other defaults


def is_original(content: Mapping[str, Any]) -> bool:
    """Return whether a file is for the original scripts. Such a file has the key ``env_config``, or it has an original
    name of an environment and no key ``implementation``."""
    return "env_config" in content or (content.get("environment") in ORIGINAL_GAMES and "implementation" not in content)


def from_original(content: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the content of a file for the original scripts to settings of this program. Missing keys get the
    defaults of the scripts. Raises SettingError for an unknown environment or agent."""
    entries = dict(content)
    game, env_config = entries.pop("environment", None), entries.pop("env_config", {})
    if game not in ORIGINAL_GAMES:
        raise choice_error("environment", game, ORIGINAL_GAMES)
    implementation = _implementation_of_agent(entries)
    if not isinstance(env_config, dict):
        raise SettingError(f"env_config is {format_value(env_config)}; allowed: a mapping")
    settings: dict[str, Any] = {"gamename": game.lower()}
    if game == "ProcMaze":
        settings["grid_size"] = "10"  # default of the script
    settings |= env_config
    settings |= {"implementation": implementation, "episodic_env": "false"}
    if "Latent" in implementation:
        settings |= _LATENT_DEFAULTS
    if str(entries.pop("seperate_rollout_batch_size", "")).lower() != "true":  # a boolean in JSON, text in YAML
        entries.pop("rollout_batch_size", None)
    entries.pop("save_final_params", None)  # unused by the scripts
    if "save_params" in entries:
        settings["no_checkpoint"] = str(entries.pop("save_params")).lower() == "false"
    frequencies = [str(entries.get("save_frequency", "")), str(entries.get("eval_frequency", _EVAL_FREQUENCY))]
    if all(text.isdecimal() and int(text) for text in frequencies):  # other values are refused with the key, as unknown
        steps, steps_per_epoch = map(int, frequencies)
        settings["checkpoint_every"] = str(-(-steps // steps_per_epoch))  # rounded up
        del entries["save_frequency"]
    return settings | entries


def _implementation_of_agent(entries: dict[str, Any]) -> str:
    """Return the implementation for the ``agent_type`` in ``entries``, and remove this key. If it is missing, the
    implementation follows from keys that only one script reads. Raises SettingError for an unknown agent."""
    script_of_key = {"latent_type": "latent_model", "Q_alpha": "simple_model", "model_alpha": "simple_model"}
    script_of_key |= {"rollout_length": "perfect_model"}
    likely_script = next((script for key, script in script_of_key.items() if key in entries), "ER")
    agent = entries.pop("agent_type", likely_script)
    # ORIGINAL_AGENTS has three values of agent_type, then the values of latent_type.
    setting, choices = "agent_type", [*list(ORIGINAL_AGENTS)[:3], "latent_model"]
    if agent == "latent_model":
        setting, choices = "latent_type", list(ORIGINAL_AGENTS)[3:]
        agent = entries.get("latent_type", choices[0])
    if agent not in choices:
        raise choice_error(setting, agent, choices)
    return ORIGINAL_AGENTS[agent]
