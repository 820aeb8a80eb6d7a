"""What a file of a learned environment must hold; the one validation, for reading and for writing."""

import difflib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from understudy.proxy import ProxyError

FORMAT = 1


def _words(*choices: str) -> tuple[Callable[[Any], bool], str]:
    return lambda value: value in choices, ", ".join(choices)


def _integer(maximum: int | None = None, null: bool = False) -> tuple[Callable[[Any], bool], str]:
    words = f"integer, at least 1{f', at most {maximum}' if maximum else ''}{'; or null' if null else ''}"
    return lambda value: null if value is None else type(value) is int and 1 <= value <= (maximum or value), words


# Settings that a reader needs: which values are good, and how to say so. The ranges are those of the trainer's flags.
SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "proxy": _words("mdp", "bandit"),
    "proxy_hidden_size": _integer(65_536),
    "proxy_hidden_layer": _integer(16),
    "proxy_activation_fn": _words("relu", "leakyrelu", "tanh", "prelu", "identity"),
    "learned_reset": (lambda value: type(value) is bool, "true or false"),
    "latent_size": _integer(null=True),
    "max_steps": _integer(null=True),
}


def refused(path: Path, what: str, allowed: str) -> ProxyError:
    """The one line that says what is wrong with a file."""
    return ProxyError(f"synthetic environment {str(path)!r}: {what}; allowed: {allowed}")


def nearest(name: str, names: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` with the closest of ``names``, or ``""`` where none is close."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.55)
    return f"; did you mean '{close[0]}'?" if close else ""


def shapes(config: Mapping[str, Any], spaces: Mapping[str, Any]) -> dict[str, list[int]]:
    """Name -> shape of every tensor. S is the size of an observation, A the number of actions (or the size of one).

    As an MDP, state ``[S]``, reward ``[1]`` and done ``[1]`` are networks of ``[action, state]``, the action one-hot
    where discrete; as a bandit, the reward alone. Where first states are learned, ``initial`` gives ``[S]`` from noise.
    """
    bandit, (size,) = config["proxy"] == "bandit", spaces["obs_shape"]
    inputs = _actions(spaces["actions"])[0] + size
    networks = {"state": (inputs, size), "reward": (inputs, 1), "done": (inputs, 1)}
    if bandit:
        del networks["state"], networks["done"]
    if bandit or config["learned_reset"]:
        networks["initial"] = (config["latent_size"] or size, size)
    hidden = [config["proxy_hidden_size"]] * config["proxy_hidden_layer"]
    named: dict[str, list[int]] = {}
    for name, (first, last) in networks.items():
        for i, (ins, outs) in enumerate(zip([first, *hidden], [*hidden, last], strict=True)):
            named |= {f"{name}.{i}.weight": [outs, ins], f"{name}.{i}.bias": [outs]}
    return named


def check(path: Path, header: Mapping[str, Any], found: Mapping[str, tuple[str, list[int]]]) -> None:
    """Hold a header, and the dtype and shape of each tensor found, against the format. Raises ProxyError."""
    if header["format"] != FORMAT:
        raise refused(path, f"its format is {header['format']!r}", str(FORMAT))
    for name, kind in {"game": str, "spaces": dict, "config": dict, "description": dict}.items():
        if not isinstance(header.get(name), kind):
            raise refused(path, f"its {name} is missing or damaged", f"a {name} as `save` writes it")
    settings = header["description"].get("settings", {})
    if not isinstance(settings, dict) or not isinstance(settings.get("agent", ""), str):
        raise refused(path, "its description.settings are damaged", "a mapping as `save` writes it")
    _check_config(path, header["config"])
    _check_spaces(path, header["spaces"])
    expected = shapes(header["config"], header["spaces"])
    for name in sorted(expected.keys() - found):
        raise refused(path, f"tensor {name} is missing", f"all of {', '.join(expected)}")
    for name in sorted(found.keys() - expected):
        raise refused(path, f"tensor {name} is unknown{nearest(name, expected)}", ", ".join(expected))
    for name, shape in expected.items():
        if found[name] != ("F32", shape):
            raise refused(path, f"tensor {name} is {found[name][0]} {found[name][1]}", f"F32 {shape}")


def _check_config(path: Path, config: Mapping[str, Any]) -> None:
    for name, (good, words) in SETTINGS.items():
        if name not in config:
            raise refused(path, f"its setting {name} is missing", f"all of {', '.join(SETTINGS)}")
        value = config[name]
        if not good(value):
            near = nearest(value, words.split(", ")) if isinstance(value, str) else ""
            raise refused(path, f"its setting {name} is {value!r}", f"{words}{near}")


def _check_spaces(path: Path, spaces: Mapping[str, Any]) -> None:
    try:
        (size,), limit, best = spaces["obs_shape"], spaces["max_episode_steps"], spaces["max_return"]
        count, bounds = _actions(spaces["actions"])
        good = all(type(number) is int and number >= 1 for number in (size, count, 1 if limit is None else limit))
        good &= all(-math.inf < low < high < math.inf for low, high in bounds)
        if not good or not isinstance(best, int | float | None):
            raise ValueError("numbers out of range")
    except (KeyError, TypeError, ValueError) as error:
        raise refused(path, f"its spaces are damaged: {json.dumps(spaces)}", "spaces as `save` writes them") from error


def _actions(actions: Mapping[str, Any]) -> tuple[int, list[tuple[float, float]]]:
    """How many actions there are, or numbers of one, and the bounds of these."""
    if "n" in actions:
        return actions["n"], []
    bounds = list(zip(actions["low"], actions["high"], strict=True))
    return len(bounds), bounds
