"""Aliases of settings: names from the original implementations and other libraries -> names of this package.

A setting has one name in all families (``lr``, ``discount``, ``buffer_size``, ``hidden_sizes``, ...). Only these tables
contain aliases. They apply to flags, files, keywords, search spaces and the settings in checkpoints. Imports no torch.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from models.registry import as_named
from models.settings import LONGEST, SettingError, format_value, no_choice

# Setting -> its aliases. Sources: the public code of [Y] Young et al. 2023, [F] Ferreira et al. 2022 and [C] the
# command-conditioned family's original; SB3 (stable-baselines3), CleanRL and RLlib.
_OTHERS = {
    "implementation": "algo algorithm",  # SB3's zoo
    "gamename": "env env_id env_name environment game",
    "exp_name": "experiment experiment_name",
    "logdir": "log_dir output_dir",
    "num_workers": "workers n_workers",
    "num_seeds": "n_seeds",
    "epochs": "num_epochs max_epochs",
    "total_steps": "total_timesteps n_timesteps num_timesteps num_steps num_env_steps",  # SB3, CleanRL, [Y]
    "eval_every": "center_every",
    "eval_episodes": "n_eval_episodes num_test_episodes eval_batch_size",  # SB3, [Y]
    "target_return": "target_reward",
    "lr": "learning_rate learn_rate alpha_adam Q_alpha",  # SB3, [Y]
    "model_lr": "model_alpha",
    "discount": "gamma discount_factor",
    "buffer_size": "rb_size replay_size memory_size",  # [F]
    "hidden_sizes": "net_arch hidden_layer_sizes",  # SB3
    "activation": "activation_fn act_fn",  # SB3, [F]
    "batch_size": "minibatch_size train_batch_size",
    "tau": "soft_update_tau",
    "max_grad_norm": "grad_clip_val grad_clip clip_grad_norm gradient_clip_val",  # [C], RLlib
    "adam_eps": "eps_adam eps adam_epsilon",  # [Y]
    "adam_beta1": "b1_adam",
    "adam_beta2": "b2_adam",
    "weight_decay": "wd_adam",
    "gae_lambda": "lam gae_lam",
    "ent_coef": "entropy_coef entropy_coeff",
    "vf_coef": "value_coef vf_loss_coeff",
    "clip_range": "clip_coef clip_param",
    "num_envs": "n_envs",
    "policy_std": "policy_noise target_policy_noise",  # CleanRL, SB3
    "policy_std_clip": "noise_clip target_noise_clip",
    "policy_delay": "policy_frequency",
    "eps_init": "exploration_initial_eps eps_start start_e",
    "eps_min": "exploration_final_eps eps_end end_e",
    "eps_fraction": "exploration_fraction",
    "fill": "learning_starts",
    "anneal_lr": "lr_decay linear_lr_schedule",
}  # fmt: skip
# Family's folder -> alias -> setting, for aliases with another meaning in this family, or with a meaning only there.
_OF_FAMILY = {
    "model_generalisation": {"eval_frequency": "steps_per_epoch", "learning_starts": "training_start_time"},
    "policy_gradients": {"batch_size": "batch_episodes", "target_reward": "target_running_mean"},
    "ppo": {"num_steps": "rollout_steps", "n_steps": "rollout_steps", "n_epochs": "ppo_epochs",
            "num_epochs": "ppo_epochs", "update_epochs": "ppo_epochs", "norm_adv": "normalize_advantage"},
    "sac": {"alpha": "entropy_temperature", "ent_coef": "entropy_temperature", "autotune": "learn_temperature"},
    "tabular": {"alpha": "lr", "epsilon": "eps_init"},
    "td3": {"exploration_noise": "action_std", "action_noise": "action_std"},
}  # fmt: skip
HINTS = {"device": "accelerator",
    "layers": "hidden_sizes", "hidden_layers": "hidden_sizes", "checkpoint": "eval_agent", "return": "command.return",
    "lambda": "td_lambda", "track": "logger", "capture_video": "record", "cuda": "accelerator",
    "num_minibatches": "batch_size", "clip_vloss": "clip_range_vf",
    "policy_lr": "lr", "q_lr": "lr", "gradient_steps": "updates_per_step", "target_network_frequency": "tau",
    "target_update_interval": "tau",
}  # fmt: skip
"""Words that nothing accepts, but that say which setting was meant."""
ORIGINAL_GAMES = ("ProcMaze", "OpenGrid", "ButtonGrid", "PanFlute")
ORIGINAL_AGENTS = {
    "ER": "ER", "perfect_model": "PerfectModel", "simple_model": "SimpleModel", "categorical": "CategoricalLatent",
    "gaussian": "GaussianLatent", "tanh_gaussian": "GaussianLatent",
}  # fmt: skip
"""[Y]'s names of environments in its files, and its scripts (the last by ``latent_type``) with what they are here."""
WIDTHS = ("width", "hidden_size", "num_hidden_units", "hidden_dim")
DEPTHS = ("depth", "hidden_layer", "num_hidden_layers", "num_layers")
"""Names for one number of ``hidden_sizes``: the units of every hidden layer, and how many layers there are."""
MODE_NAMES = {
    "icm": -1, "native": 0, "exclusive_potential": 1, "additive_potential": 2, "exclusive_potential_with_info": 3,
    "additive_potential_with_info": 4, "exclusive": 5, "additive": 6, "exclusive_with_info": 7, "additive_with_info": 8,
    "exclusive_weighted_info": 101, "additive_weighted_info": 102,
}  # fmt: skip
"""Names of ``--mode`` with [F]'s numbers: -1 has no network, others are `understudy.kinds.MODES`."""


def _mode(text: str) -> int | str:
    """Return the number of a named mode, or ``text`` unchanged if it is a number. Raises SettingError for an unknown
    name."""
    name = text.lower().replace("-", "_").replace(" ", "_")
    if name not in MODE_NAMES and not text.lstrip("+-")[:1].isdigit():
        raise no_choice("mode", text, MODE_NAMES, guess=name)
    return MODE_NAMES.get(name, text)


# Setting -> a function that translates old names and other spellings of its values.
_VALUES: dict[str, Callable[[str], int | str]] = {
    "mode": _mode,
    "vary": lambda text: ",".join({"hidden_size": "width", "hidden_layer": "depth"}.get(p, p) for p in text.split(",")),
    "accelerator": lambda text: "gpu" if text.lower() in ("cuda", "cuda:0") else text,
    "implementation": as_named,
    "agent": as_named,
}

_GENERAL = {other: setting_name for setting_name, alias_text in _OTHERS.items() for other in alias_text.split()}


def vocabulary(families: Iterable[str], setting_names: Collection[str]) -> dict[str, str]:
    """Return alias -> setting for the settings in ``setting_names``. ``families`` are folder names, because families
    have additional aliases."""
    names_by_alias = _GENERAL | {
        other: setting_name for family in families for other, setting_name in _OF_FAMILY.get(family, {}).items()
    }
    return {
        other: setting_name
        for other, setting_name in names_by_alias.items()
        if setting_name in setting_names and other not in setting_names
    }


def aliases_of(name: str, families: Iterable[str] = ()) -> list[str]:
    """Return the aliases of setting ``name`` in ``families`` (folder names)."""
    names_by_alias = vocabulary(families, (name,))
    parts = [*WIDTHS[1:], *DEPTHS[1:]] if name == "hidden_sizes" else []
    return [other for other, setting_name in names_by_alias.items() if setting_name == name] + parts


def translate(
    values: Mapping[str, Any], families: Iterable[str], setting_names: Collection[str], default_of: Callable[[str], Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Translate aliases in ``values`` to ``setting_names``. Values are Python objects or lists of words.

    Return the values by setting name, and alias -> setting name for the aliases in use. ``default_of(name)`` is the
    current value of a setting, or None: a width in ``values`` changes only a part of ``hidden_sizes``. Raises
    SettingError if ``values`` contain two names of one setting.
    """
    words = vocabulary(families, setting_names)
    words |= {name: part for names in (WIDTHS, DEPTHS) for name in names if (part := names[0]) in setting_names}
    translated: dict[str, Any] = {}
    renamed: dict[str, str] = {}
    for name, value in values.items():
        setting_name = words.get(name, name)
        if (
            setting_name == name
            and name not in setting_names
            and "hidden_sizes" in setting_names
            and name in WIDTHS + DEPTHS
        ):
            continue  # a part of hidden_sizes, which is built below
        if setting_name in translated or setting_name != name and setting_name in values:
            alias = next((old for old, new in renamed.items() if new == setting_name), setting_name)
            first, second = sorted((alias, name if alias != name else setting_name), key=setting_name.__eq__)
            raise SettingError(f"{first} and {second} are one setting; give {setting_name}", name)
        translated[setting_name] = _renamed(_VALUES[setting_name], value) if setting_name in _VALUES else value
        if setting_name != name:
            renamed[name] = setting_name
    if "hidden_sizes" in setting_names and "width" not in setting_names and {*WIDTHS, *DEPTHS} & values.keys():
        _put_together(values, setting_names, translated, renamed, default_of)
    return translated, renamed


def _renamed(name: Callable[[str], int | str], value: Any) -> Any:
    """Translate the words in ``value`` by the function ``name``. Items of a list remain text."""
    if isinstance(value, list | tuple):
        return type(value)(str(name(item)) if isinstance(item, str) else item for item in value)
    return name(value) if isinstance(value, str) else value


def _put_together(
    values: Mapping[str, Any], setting_names: Collection[str], translated: dict[str, Any], renamed: dict[str, str],
    default_of: Callable[[str], Any],
) -> None:  # fmt: skip
    """Add ``hidden_sizes`` to ``translated`` if ``values`` contain a width or a depth. Record their names in
    ``renamed``."""
    widths, depths = (
        [name for name in names if name in values and name not in setting_names] for names in (WIDTHS, DEPTHS)
    )
    parts = widths + depths
    if not parts:
        return
    if "hidden_sizes" in translated or len(widths) > 1 or len(depths) > 1:
        two = (
            ("hidden_sizes", parts[0]) if "hidden_sizes" in translated else (widths if len(widths) > 1 else depths)[:2]
        )
        raise SettingError(f"{' and '.join(two)} are one setting; give hidden_sizes", parts[0])
    old_sizes = default_of("hidden_sizes")
    if old_sizes is None and not (widths and depths):
        raise SettingError(
            f"{parts[0]} does not say all of hidden_sizes; give that, such as hidden_sizes 64,64", parts[0]
        )
    width = _integer(widths[0], values[widths[0]], 65_536) if widths else old_sizes[0]
    depth = _integer(depths[0], values[depths[0]], LONGEST) if depths else len(old_sizes)
    sizes = (width,) * depth
    worded = isinstance(values[parts[0]], list)
    translated["hidden_sizes"] = [",".join(map(str, sizes))] if worded else sizes
    renamed |= dict.fromkeys(parts, "hidden_sizes")


def _integer(name: str, value: Any, limit: int) -> int:
    number = value[0] if isinstance(value, list) and len(value) == 1 else value
    text = str(number) if isinstance(number, int | str) and not isinstance(number, bool) else ""
    if not (text.isdecimal() and len(text) < 9 and 1 <= int(text) <= limit):
        words = " ".join(map(str, value)) if isinstance(value, list) else value
        raise SettingError(f"{name} is {format_value(words)}; allowed: integer, at least 1, at most {limit}", name)
    return int(text)
