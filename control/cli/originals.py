"""Translate configuration files of the training scripts of Young et al. 2023 (arXiv 2211.02222), for ``--config``."""

from collections.abc import Mapping
from typing import Any

from models.settings import SettingError, choice_error, format_value, raise_all
from models.vocabulary import ORIGINAL_AGENTS, ORIGINAL_GAMES

_AGENT_TYPES = ("ER", "perfect_model", "simple_model")  # the other keys of `ORIGINAL_AGENTS` are latent types
# Key of a file without an agent type -> the agent type that reads this key. The first key that is present decides.
_AGENT_BY_KEY = {
    "latent_type": "latent_model",
    "Q_alpha": "simple_model",
    "model_alpha": "simple_model",
    "rollout_length": "perfect_model",
}
_EVAL_FREQUENCY = 500  # default of the script, in steps
_LATENT_DEFAULTS = {"min_std": "0.0", "std_act": "softplus"}  # defaults of the script; GaussianLatent has others


def is_original(content: Mapping[str, Any]) -> bool:
    """Return whether a file is for the original scripts. Such a file has the key ``env_config``, or it has an original
    name of an environment and no key ``implementation``."""
    return "env_config" in content or (content.get("environment") in ORIGINAL_GAMES and "implementation" not in content)


def translate_original(content: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the content of a file for the original scripts to settings of this program. Missing keys get the
    defaults of the scripts. Raises SettingError for an unknown environment or agent."""
    entries = dict(content)  # keys that need no translation remain in it
    game, env_config = entries.pop("environment", None), entries.pop("env_config", {})
    errors = [] if game in ORIGINAL_GAMES else [choice_error("environment", game, ORIGINAL_GAMES)]
    if not isinstance(env_config, dict):
        errors.append(SettingError(f"env_config is {format_value(env_config)}; allowed: a mapping"))
    raise_all(errors)
    # Without ``agent_type``, other keys that only one script reads determine the agent.
    agent = entries.pop("agent_type", next((agent for key, agent in _AGENT_BY_KEY.items() if key in entries), "ER"))
    if agent == "latent_model":  # ``latent_type`` remains in ``entries``, because it is also a setting of this program
        latent_types = [name for name in ORIGINAL_AGENTS if name not in _AGENT_TYPES]
        agent = entries.get("latent_type", latent_types[0])
        if agent not in latent_types:
            raise choice_error("latent_type", agent, latent_types)
    elif agent not in _AGENT_TYPES:
        raise choice_error("agent_type", agent, [*_AGENT_TYPES, "latent_model"])
    implementation = ORIGINAL_AGENTS[agent]
    settings: dict[str, Any] = {"gamename": game.lower()}
    if game == "ProcMaze":
        settings["grid_size"] = "10"  # default of the script
    settings |= env_config
    settings |= {"implementation": implementation, "episodic_env": "false"}
    if "Latent" in implementation:
        settings |= _LATENT_DEFAULTS
    # The scripts use ``rollout_batch_size`` only if the switch with the misspelt name is on. Booleans are booleans in
    # JSON and text in YAML.
    if str(entries.pop("seperate_rollout_batch_size", "")).lower() != "true":
        entries.pop("rollout_batch_size", None)
    entries.pop("save_final_params", None)  # unused by the scripts
    if "save_params" in entries:
        settings["no_checkpoint"] = str(entries.pop("save_params")).lower() == "false"
    save_steps, eval_steps = str(entries.get("save_frequency", "")), str(entries.get("eval_frequency", _EVAL_FREQUENCY))
    if save_steps.isdecimal() and eval_steps.isdecimal() and int(save_steps) and int(eval_steps):
        settings["checkpoint_every"] = str(-(-int(save_steps) // int(eval_steps)))  # number of epochs, rounded up
        del entries["save_frequency"]  # any other value remains, and the key is refused as unknown
    return settings | entries
