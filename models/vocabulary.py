"""Aliases of settings: names from the original implementations and other libraries -> names of this package.

A setting has one name in all families (``lr``, ``discount``, ``buffer_size``, ``hidden_sizes``, ...). Only these tables
contain aliases. They apply to flags, files, keywords, search spaces and the settings in checkpoints. Imports no torch.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from models.registry import canonical_names
from models.settings import INTEGER, MAX_ITEMS, SettingError, check_value, choice_error, parse_value

# Setting -> its aliases. Sources: the public code of [Y] Young et al. 2023, [F] Ferreira et al. 2022 and [C] the
# command-conditioned family's original; SB3 (stable-baselines3), CleanRL and RLlib.
_ALIASES_OF = {
    "implementation": "algo algorithm",  # SB3's zoo
    "gamename": "env env_id env_name environment game",
    "exp_name": "experiment experiment_name",
    "logdir": "log_dir output_dir exp_dir save_dir",
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
# Folder of a family -> alias -> setting, for aliases that mean another setting in this family, or nothing elsewhere.
_FAMILY_ALIASES = {
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
    "lambda": "td_lambda", "track": "logger", "capture_video": "record", "cuda": "accelerator gpu",
    "gpu": "accelerator gpu", "num_minibatches": "batch_size", "clip_vloss": "clip_range_vf",
    "policy_lr": "lr", "q_lr": "lr", "gradient_steps": "updates_per_step", "target_network_frequency": "tau",
    "target_update_interval": "tau", "format": "export agent.js", "policy_kwargs": "hidden_sizes",
    "eval_freq": "eval_every", "tensorboard_log": "logdir", "verbose": "print_statements",
}  # fmt: skip
"""Names that are not accepted -> the setting, and maybe its value, that error messages suggest instead."""
ORIGINAL_GAMES = ("ProcMaze", "OpenGrid", "ButtonGrid", "PanFlute")
ORIGINAL_AGENTS = {
    "ER": "ER", "perfect_model": "PerfectModel", "simple_model": "SimpleModel", "categorical": "CategoricalLatent",
    "gaussian": "GaussianLatent", "tanh_gaussian": "GaussianLatent",
}  # fmt: skip
"""Names in the code of [Y]: of environments, and of scripts or latent types -> implementation here."""
WIDTHS = ("width", "hidden_size", "num_hidden_units", "hidden_dim")
DEPTHS = ("depth", "hidden_layer", "num_hidden_layers", "num_layers")
"""Names for the number of units of every hidden layer, and for the number of layers. Both set ``hidden_sizes``."""
MODE_NAMES = {
    "icm": -1, "native": 0, "exclusive_potential": 1, "additive_potential": 2, "exclusive_potential_with_info": 3,
    "additive_potential_with_info": 4, "exclusive": 5, "additive": 6, "exclusive_with_info": 7, "additive_with_info": 8,
    "exclusive_weighted_info": 101, "additive_weighted_info": 102,
}  # fmt: skip
"""Names for ``--mode`` -> numbers in [F]. -1 means no network, the others are keys of `understudy.kinds.MODES`."""


def _parse_mode(text: str) -> int | str:
    """Return the number of the reward mode that ``text`` names (`MODE_NAMES`), or ``text`` unchanged if it is a number.
    Raises SettingError for an unknown name."""
    name = text.lower().replace("-", "_").replace(" ", "_")
    # Text that begins with a digit must be a number, which is checked later.
    if name not in MODE_NAMES and not text.lstrip("+-")[:1].isdigit():
        raise choice_error("mode", text, MODE_NAMES, guess=name)
    return MODE_NAMES.get(name, text)


def _parse_vary(text: str) -> str:
    """Return ``text``, names of hyperparameters for ``vary`` such as "lr,hidden_size", with names from [F] replaced by
    the names of this package: "lr,width"."""
    old_names = {"hidden_size": "width", "hidden_layer": "depth"}
    return ",".join(old_names.get(name, name) for name in text.split(","))


# Setting -> a function that translates a value in another spelling or with an old name.
_TRANSLATORS: dict[str, Callable[[str], int | str]] = {
    "mode": _parse_mode,
    "vary": _parse_vary,
    "accelerator": lambda text: "gpu" if text.lower() in ("cuda", "cuda:0") else text,
    "implementation": canonical_names,
    "agent": canonical_names,
}

_SETTING_OF_ALIAS = {alias: setting_name for setting_name, text in _ALIASES_OF.items() for alias in text.split()}


def vocabulary(families: Iterable[str], setting_names: Collection[str]) -> dict[str, str]:
    """Return alias -> setting for the settings in ``setting_names``, such as ``{"gamma": "discount"}``, without aliases
    that are themselves in ``setting_names``. The aliases of ``families`` (folder names such as "ppo") override the
    general aliases."""
    setting_of_alias = dict(_SETTING_OF_ALIAS)
    for family in families:
        setting_of_alias |= _FAMILY_ALIASES.get(family, {})
    aliases = [alias for alias in setting_of_alias if alias not in setting_names]
    return {alias: setting_of_alias[alias] for alias in aliases if setting_of_alias[alias] in setting_names}


def aliases_of(name: str, families: Iterable[str] = ()) -> list[str]:
    """Return the aliases of setting ``name`` in runs with these ``families`` (folder names), for the help."""
    aliases = list(vocabulary(families, (name,)))
    if name == "hidden_sizes":  # [1:] leaves out "width" and "depth", which are not from other programs
        aliases += [*WIDTHS[1:], *DEPTHS[1:]]
    return aliases


def translate(
    values: Mapping[str, Any],
    families: Iterable[str],
    setting_names: Collection[str],
    default_of: Callable[[str], Any] = lambda name: None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Translate a user's settings ``values`` to the names of this package: aliases of ``setting_names``, and other
    spellings of values (`_TRANSLATORS`). Return two mappings: setting -> value, and alias -> setting for translated
    names. ``{"gamma": 0.9, "seed": 3}`` becomes ``({"discount": 0.9, "seed": 3}, {"gamma": "discount"})``.

    Values are Python objects or, from the command line, lists of words. `vocabulary` describes ``families`` and
    ``setting_names``. Names that are no alias are kept. A width or a depth (`WIDTHS`, `DEPTHS`) changes one of the two
    numbers in ``hidden_sizes``; the other is from ``default_of("hidden_sizes")``, the value without ``values`` (None:
    unknown). Raises SettingError if ``values`` contain two names of one setting.
    """
    translated_names: dict[str, str] = {}  # alias -> setting
    has_shape = not values.keys().isdisjoint((*WIDTHS, *DEPTHS))
    # In a search space "width" and "depth" are settings themselves. Then they do not stand for ``hidden_sizes``.
    if has_shape and "hidden_sizes" in setting_names and "width" not in setting_names:
        values, translated_names = _with_hidden_sizes(values, default_of)
    setting_of_alias = vocabulary(families, setting_names)
    for names in (WIDTHS, DEPTHS):
        if names[0] in setting_names:  # "width" is a setting, so "hidden_size" and the other names are its aliases
            setting_of_alias |= dict.fromkeys(names, names[0])
    new_values: dict[str, Any] = {}
    for name, value in values.items():
        setting_name = setting_of_alias.get(name, name)
        is_alias = setting_name != name
        if setting_name in new_values or (is_alias and setting_name in values):  # another name of the same setting
            aliases = [alias for alias, other_setting in translated_names.items() if other_setting == setting_name]
            two_names = f"{aliases[0]} and {name}" if aliases else f"{name} and {setting_name}"
            raise SettingError(f"{two_names} are one setting; give {setting_name}", name)
        new_values[setting_name] = _translate_value(setting_name, value)
        if is_alias:
            translated_names[name] = setting_name
    return new_values, translated_names


def _translate_value(setting_name: str, value: Any) -> Any:
    """Return the ``value`` of a setting, translated by its function in `_TRANSLATORS`, if any: a text, or each text in
    a list. Texts in a list remain texts. All other values are kept."""
    translator = _TRANSLATORS.get(setting_name)
    if translator is not None and isinstance(value, str):
        return translator(value)
    if translator is not None and isinstance(value, list | tuple):
        items = [str(translator(item)) if isinstance(item, str) else item for item in value]
        return type(value)(items)
    return value


def _with_hidden_sizes(
    values: Mapping[str, Any], default_of: Callable[[str], Any]
) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Convert a width and a depth (`WIDTHS`, `DEPTHS`) in a user's ``values`` to the setting ``hidden_sizes``. For
    example, ``{"width": 64, "depth": 2}`` becomes ``{"hidden_sizes": (64, 64)}``.

    If ``values`` has only a width or only a depth, the missing number is from ``default_of("hidden_sizes")``, the value
    that the setting has without ``values``. Return the new values, and a mapping from each converted name to
    ``"hidden_sizes"``. Raises SettingError if ``values`` has two names for one number or also ``hidden_sizes``, or if
    the missing number is unknown.
    """
    widths = [name for name in WIDTHS if name in values]
    depths = [name for name in DEPTHS if name in values]
    names = [*widths, *depths]
    if "hidden_sizes" in values:
        raise SettingError(f"hidden_sizes and {names[0]} are one setting; give hidden_sizes", names[0])
    for synonyms in (widths, depths):
        if len(synonyms) > 1:
            raise SettingError(f"{synonyms[0]} and {synonyms[1]} are one setting; give hidden_sizes", names[0])
    sizes = default_of("hidden_sizes")  # None if unknown
    if sizes is None and not (widths and depths):
        line = f"{names[0]} does not say all of hidden_sizes; give that, such as hidden_sizes 64,64"
        raise SettingError(line, names[0])
    # 65,536 is the largest number of units of a layer (`models.settings.width`).
    width = _parse_count(widths[0], values[widths[0]], 65_536) if widths else sizes[0]
    depth = _parse_count(depths[0], values[depths[0]], MAX_ITEMS) if depths else len(sizes)
    new_sizes: Any = (width,) * depth
    if isinstance(values[names[0]], list):  # the command line passes lists of words
        new_sizes = [",".join(map(str, new_sizes))]
    new_values = {name: value for name, value in values.items() if name not in names}
    new_values["hidden_sizes"] = new_sizes
    return new_values, dict.fromkeys(names, "hidden_sizes")


def _parse_count(name: str, value: Any, limit: int) -> int:
    """Return ``value`` (an integer, text, or a list with one item) as an integer from 1 to ``limit``. Raises
    SettingError about setting ``name``."""
    count = value[0] if isinstance(value, list) and len(value) == 1 else value
    with contextlib.suppress(ValueError):  # `check_value` raises the error about other text
        count = parse_value(int, str(count))
    check_value(name, count, INTEGER, {"minimum": 1, "maximum": limit})
    return int(count)
