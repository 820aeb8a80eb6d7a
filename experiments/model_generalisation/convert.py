"""A configuration file of the original code as one that ``--config`` reads.

    python experiments/model_generalisation/convert.py ER.json > er.yaml

Sources: Young, Ramesh, Kirsch & Schmidhuber 2023, arXiv 2211.02222, and its public code. Four of its scripts read such
files: one for replay, one for each kind of model. Keys that a script does not read are refused. Keys that a file leaves
out get the script's values.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from control.cli.settings import Settings, from_dict, to_yaml  # noqa: E402
from envs.names import resolve, with_parameters  # noqa: E402
from experiments.comparison import run_script  # noqa: E402
from models.agents.model_generalisation.config import OF_LATENT, OF_LEARNED, Config  # noqa: E402
from models.settings import SettingError, nearest  # noqa: E402

ENVIRONMENTS = {
    "ProcMaze": ("grid_size", "spontaneous_termination", "teleport_on_termination"),
    "OpenGrid": ("grid_size", "spontaneous_termination", "teleport_on_termination"),
    "ButtonGrid": ("grid_size", "num_buttons", "spontaneous_reset", "activate_on_reset"),
    "PanFlute": ("num_pipes", "spontaneous_reward"),
}
# Keys of theirs that are no settings of ours.
THEIRS = ("environment", "env_config", "agent_type", "save_params", "save_frequency",
          "save_final_params", "seperate_rollout_batch_size")  # fmt: skip
ALL = ("num_hidden_layers", "num_hidden_units", "activation", "b1_adam", "b2_adam", "eps_adam", "wd_adam", "gamma",
       "double_DQN", "use_target", "target_update_frequency", "batch_size", "updates_per_step", "buffer_size",
       "training_start_time", "exploration_strat", "softmax_temp", "epsilon", "episodic_env", "num_steps",
       "eval_frequency", "eval_steps", "eval_batch_size", "num_seeds", "seed", "environment", "env_config",
       "agent_type", "save_params", "save_frequency", "save_final_params")  # fmt: skip
LEARNED = (*ALL, "rollout_length", "Q_alpha", "model_alpha", *OF_LEARNED[1:])
# What each script reads, by the agent_type that it writes into its results.
KEYS: dict[str, tuple[str, ...]] = {
    "ER": (*ALL, "alpha_adam"),
    "perfect_model": (*ALL, "alpha_adam", "rollout_length"),
    "simple_model": LEARNED,
    "latent_model": (*LEARNED, *OF_LATENT, "seperate_rollout_batch_size", "rollout_batch_size"),
}
SAME = {"Q_alpha": "alpha_adam", "alpha_adam": "Q_alpha"}  # one is the other's name in another script
IMPLEMENTATIONS = {"ER": "ER", "perfect_model": "PerfectModel", "simple_model": "SimpleModel"}
LATENT = {"categorical": "CategoricalLatent", "gaussian": "GaussianLatent", "tanh_gaussian": "GaussianLatent"}
# What the scripts take for keys that a file leaves out, where our settings would be others.
ABSENT = {"double_DQN": False, "episodic_env": False, "updates_per_step": 1}
ABSENT_LATENT = {"min_std": 0.0, "std_act": "softplus"}


def converted(content: Mapping[str, Any]) -> Settings:
    """The settings that the content of one of their files means. Raises SettingError."""
    script = script_of(content)
    latent = script == "latent_model"
    name = LATENT[choice("latent_type", content, LATENT)] if latent else IMPLEMENTATIONS[script]
    check_keys(content, KEYS[script], name)
    values = {"implementation": name, "gamename": game_of(content), **ABSENT, **(ABSENT_LATENT if latent else {})}
    own = {key: value for key, value in content.items() if key not in THEIRS}
    values |= {"Q_alpha" if key == "alpha_adam" else key: value for key, value in own.items()}
    if latent and not content.get("seperate_rollout_batch_size", False):
        values["rollout_batch_size"] = None
    elif latent and "rollout_batch_size" not in content:
        raise SettingError("rollout_batch_size is missing; seperate_rollout_batch_size is true")
    return from_dict(values | saving(content))


def script_of(content: Mapping[str, Any]) -> str:
    """Which script a file is for: the one it names, else the one that needs the keys it has."""
    if "agent_type" in content:
        return choice("agent_type", content, KEYS)
    if "latent_type" in content:
        return "latent_model"
    if "Q_alpha" in content or "model_alpha" in content:
        return "simple_model"
    return "perfect_model" if "rollout_length" in content else "ER"


def check_keys(content: Mapping[str, Any], known: Iterable[str], implementation: str) -> None:
    """SettingError for a key that the script does not read."""
    for key in content:
        if key in known:
            continue
        if any(key in keys for keys in KEYS.values()):
            near = f"; did you mean '{SAME[key]}'?" if key in SAME else ""
            raise SettingError(f"{key} has no effect with {implementation}{near}")
        raise SettingError(f"{key} is unknown{nearest(key, known)}")
    if "rollout_batch_size" in content and "seperate_rollout_batch_size" not in content:
        raise SettingError("rollout_batch_size has no effect without 'seperate_rollout_batch_size'")


def game_of(content: Mapping[str, Any]) -> str:
    """The name of the environment with its parameters."""
    if "environment" not in content:
        raise SettingError(f"environment is missing; allowed: {', '.join(ENVIRONMENTS)}")
    name, given = choice("environment", content, ENVIRONMENTS), content.get("env_config", {})
    if not isinstance(given, dict):
        raise SettingError(f"env_config is {given!r}; allowed: a mapping")
    known = ENVIRONMENTS[name]
    for key in given:
        if key not in known:
            near = nearest(key, known)
            raise SettingError(f"env_config: {key} is unknown; allowed for {name}: {', '.join(known)}{near}")
    default = {"grid_size": 10} if name == "ProcMaze" else {}
    return with_parameters(resolve(name.lower()), default | given).name


def saving(content: Mapping[str, Any]) -> dict[str, Any]:
    """When checkpoints are written: in the original after whole periods too, and at the end of a run that saves."""
    saves = content.get("save_params", True)
    # The original never looked at it: like us, it saves the last state of every run that saves any.
    if content.get("save_final_params", saves) != saves:
        raise SettingError("save_final_params is not what save_params is; allowed: the same")
    values: dict[str, Any] = {"no_checkpoint": not saves} if "save_params" in content else {}
    if "save_frequency" in content:
        every, period = content["save_frequency"], content.get("eval_frequency", Config.steps_per_epoch)
        if type(every) is not int or every < 1 or type(period) is not int or period < 1:
            raise SettingError(f"save_frequency is {every!r}, eval_frequency {period!r}; allowed: integers, at least 1")
        values["checkpoint_every"] = -(-every // period)
    return values


def choice(key: str, content: Mapping[str, Any], known: Iterable[str]) -> str:
    """The value of ``key``, the first of those known where a file has none."""
    value = str(content.get(key, next(iter(known))))
    if value not in known:
        raise SettingError(f"{key} is {value!r}; allowed: {', '.join(known)}{nearest(value, known)}")
    return value


def convert(path: Path) -> None:
    """Print the file's settings as YAML."""
    try:
        print(to_yaml(converted(json.loads(path.read_text(encoding="utf-8")))), end="")
    except (SettingError, OSError, ValueError) as error:
        raise SettingError(f"{path}: {error}") from error


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    return run_script(lambda: convert(Path(argv[0])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
