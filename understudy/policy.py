"""Trained agents as NumPy functions: the greedy policy of an agent in one file, without PyTorch.

A file is a safetensors file of float32 numbers: ``layers.0.weight [out, in]``, ``layers.0.bias [out]``, and ``mean``
and ``scale`` ``[in]`` if observations are normalised. Its metadata has one key, ``understudy_policy``: JSON with
``format``, ``game``, ``implementation``, ``actions`` (``n``, or ``low`` and ``high``), ``cells`` (whether observations
are one-hot), ``activations`` of the hidden layers and ``head``. Opening a file runs no code.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors import numpy as safetensors_numpy

_FORMAT, _KEY = 1, "understudy_policy"
CLIP_LIMIT = 10.0  # normalised observations are clipped to [-CLIP_LIMIT, CLIP_LIMIT]
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "silu": lambda x: x / (1 + np.exp(-np.maximum(x, -80))),  # without overflow
}
"""Activations by name. A number instead of a name is the slope of a leaky ReLU below 0: 0 for ReLU, 1 for identity."""
HEADS = ("argmax", "clip", "scale", "tanh")
"""From outputs to actions. argmax: the largest output's index. clip: outputs, clipped to the bounds of actions. scale:
outputs in half-widths of the bounds from their middle, then clipped. tanh: as scale, for the tanh of outputs."""


class PolicyError(ValueError):
    """A policy's file or an observation cannot be used. ``str(e)`` is one clear line."""


class Policy:
    """The greedy policy of a trained agent: ``Policy("agent.safetensors")(observation)``.

    ``game`` is the environment's name, ``implementation`` the agent's, ``obs_size`` the length of an observation.
    Observations are vectors ``[O]`` or ``[N, O]``; of an environment with cells also their indices, ``int`` or ``[N]``.
    Actions are ``int64`` (scalar or ``[N]``) or float32 vectors ``[A]`` or ``[N, A]``. Raises PolicyError for a file
    that is none, and for observations of another shape.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        header, tensors = _read(self.path)
        self.game, self.implementation = header["game"], header["implementation"]
        self._actions, self._cells, self._head = header["actions"], header["cells"], header["head"]
        self._activations = header["activations"]
        depth = len(self._activations) + 1
        self._layers = [(tensors[f"layers.{i}.weight"].T, tensors[f"layers.{i}.bias"]) for i in range(depth)]
        self._mean, self._scale = tensors.get("mean"), tensors.get("scale")
        self.obs_size = self._layers[0][0].shape[0]

    def __call__(self, observation: Any) -> Any:
        """Return the greedy action of one observation, or of each of N."""
        rows, is_single = self._rows(observation)
        actions = self._act(rows)
        return actions[0] if is_single else actions

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, Any]:
        """Return the greedy actions and None, as `predict` of stable-baselines3 does. Other arguments are ignored."""
        return self(observation), None

    def _rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Return observations ``[N, O]`` float32, and whether there was a single one without that axis."""
        allowed = f"allowed: [{self.obs_size}] or [N, {self.obs_size}]"
        if self._cells:
            allowed += f", or integers from 0 to {self.obs_size - 1}"
        try:
            values = np.asarray(observation)
        except ValueError as error:
            raise PolicyError(f"an observation is no array of numbers; {allowed}") from error
        if self._cells and self._are_indices(values):
            indices = np.atleast_1d(values)
            for index in indices[(indices < 0) | (indices >= self.obs_size)]:
                raise PolicyError(f"a cell is {index}; allowed: 0 to {self.obs_size - 1}")
            return np.eye(self.obs_size, dtype=np.float32)[indices], values.ndim == 0
        if values.ndim not in (1, 2) or values.shape[-1] != self.obs_size:
            raise PolicyError(f"an observation has shape {list(values.shape)}; {allowed}")
        try:
            with np.errstate(over="ignore"):
                rows = np.atleast_2d(values).astype(np.float32)
        except (TypeError, ValueError) as error:
            raise PolicyError(f"an observation is no array of numbers ({error}); {allowed}") from error
        for value in np.atleast_2d(values)[~np.isfinite(rows)]:
            raise PolicyError(f"a number of an observation is {value}; allowed: finite float32 numbers")
        return rows, values.ndim == 1

    def _are_indices(self, values: np.ndarray) -> bool:
        """Return whether ``values`` are indices of cells, and not one one-hot vector of integers."""
        is_one_hot = values.shape == (self.obs_size,) and np.count_nonzero(values) == 1 and values.max() == 1
        return np.issubdtype(values.dtype, np.integer) and values.ndim < 2 and not is_one_hot

    def _act(self, x: np.ndarray) -> np.ndarray:
        """Return the actions of observations ``[N, O]``."""
        if self._mean is not None:
            x = ((x - self._mean) * self._scale).clip(-CLIP_LIMIT, CLIP_LIMIT)
        for (weight, bias), activation in zip(self._layers, self._activations, strict=False):
            x = _activation(activation)(x @ weight + bias)
        weight, bias = self._layers[-1]
        x = x @ weight + bias
        if self._head == "argmax":
            return x.argmax(1)
        low, high = (np.asarray(self._actions[name], np.float32) for name in ("low", "high"))
        if self._head == "tanh":
            x = np.tanh(x)
        if self._head != "clip":
            x = (low + high) / 2 + (high - low) / 2 * x
        return x.clip(low, high)

    def __repr__(self) -> str:
        return f"Policy({str(self.path)!r}): {self.implementation} on {self.game}"


def write(
    path: str | Path,
    layers: Sequence[tuple[np.ndarray, np.ndarray]],
    activations: Sequence[str | float],
    head: str,
    *,
    game: str,
    implementation: str,
    actions: Mapping[str, Any],
    cells: bool = False,
    moments: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
    """Write a policy to a new file. ``layers`` are weights ``[out, in]`` and biases ``[out]``, ``moments`` are ``mean``
    and ``scale``. Raises FileExistsError, PolicyError for numbers that are not finite, and OSError."""
    tensors: dict[str, np.ndarray] = {}
    for i, (weight, bias) in enumerate(layers):
        tensors |= {f"layers.{i}.weight": weight, f"layers.{i}.bias": bias}
    if moments is not None:
        tensors |= {"mean": moments[0], "scale": moments[1]}
    tensors = {name: np.ascontiguousarray(values, np.float32) for name, values in tensors.items()}
    header = {"format": _FORMAT, "game": game, "implementation": implementation, "actions": dict(actions)}
    header |= {"cells": cells, "activations": list(activations), "head": head}
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(safetensors_numpy.save(tensors, {_KEY: json.dumps(header)}))
        _read(temporary)
        os.link(temporary, path)  # fails if ``path`` exists
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read and check a file. Raises PolicyError."""
    allowed = "a file of --eval_agent RUN --export FILE"
    try:
        with safe_open(path, "np") as opened:
            header = json.loads((opened.metadata() or {}).get(_KEY, "null"))
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}
        if not isinstance(header, dict) or header.get("format") != _FORMAT:
            raise ValueError(f"no {_KEY!r} metadata of format {_FORMAT}")
        _check(header, tensors)
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        reason = f"its {error} is missing" if isinstance(error, KeyError) else str(error)
        raise PolicyError(f"policy {str(path)!r} cannot be read ({reason}); allowed: {allowed}") from error
    return header, tensors


def _check(header: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError, KeyError or TypeError for a header or tensors that no agent has."""
    for value in header["activations"]:
        _activation(value)
    for name in ("game", "implementation"):
        if not isinstance(header[name], str):
            raise ValueError(f"its {name} is no text")
    if header["head"] not in HEADS or not isinstance(header["cells"], bool):
        raise ValueError(f"its head is {header['head']!r}, cells {header['cells']!r}")
    sizes = [tensors["layers.0.weight"].shape[1]]
    for i in range(len(header["activations"]) + 1):
        weight, bias = tensors[f"layers.{i}.weight"], tensors[f"layers.{i}.bias"]
        if weight.shape != (len(bias), sizes[-1]) or bias.ndim != 1:
            raise ValueError(f"layer {i} has shapes {weight.shape} and {bias.shape}")
        sizes.append(len(bias))
    actions = header["actions"]
    if header["head"] == "argmax":
        outputs = actions["n"]
    else:
        with np.errstate(all="ignore"):
            low, high = (np.array(actions[name], np.float32) for name in ("low", "high"))
            if low.ndim != 1 or low.shape != high.shape or not ((low < high) & np.isfinite(high - low)).all():
                raise ValueError(f"its bounds of actions are low {low.tolist()}, high {high.tolist()}")
        outputs = len(low)
    if outputs != sizes[-1]:
        raise ValueError(f"it has {sizes[-1]} outputs for {outputs} actions")
    if ("mean" in tensors or "scale" in tensors) and not tensors["mean"].shape == tensors["scale"].shape == (sizes[0],):
        raise ValueError("its mean and scale have other shapes than an observation")
    for name, values in tensors.items():
        if values.dtype != np.float32 or not np.isfinite(values).all():
            raise ValueError(f"tensor {name} holds other numbers than finite float32")


def _activation(value: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return an activation by its name or slope. Raises ValueError for an unknown one."""
    if value in ACTIVATIONS:
        return ACTIVATIONS[value]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"an activation is {value!r}")
    slope = np.float32(value)
    return lambda x: np.where(x > 0, x, slope * x)
