"""Trained agents as NumPy functions: the greedy policy of an agent in one file, without PyTorch.

A file is a safetensors file of float32 numbers: ``layers.0.weight [out, in]``, ``layers.0.bias [out]``, and ``mean``
and ``scale`` ``[in]`` if observations are normalised. Its metadata has one key, ``understudy_policy``: JSON with
``format``, ``game``, ``implementation``, ``actions`` (``n``, or ``low`` and ``high``), ``cells`` (whether observations
are one-hot), ``activations`` of the hidden layers and ``head``. Opening a file runs no code.

If an agent follows a command of C numbers, their names are in ``command`` of the JSON, and there is a tensor ``command
[7, C]`` with the rows `COMMAND_ROWS`. A layer may have a gate, ``gates.0.weight [out, C]`` and ``gates.0.bias [out]``:
after the activation, its outputs are multiplied by the sigmoid of the gate. A layer with ``in + C in + C`` inputs
receives the ``in`` outputs of the previous layer, their products with the command, and the command.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from understudy.files import fetch
from understudy.proxy import ProxyError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

AGENT = "agent.safetensors"  # file of an agent on the Hugging Face Hub
KEY, ONE_HOT = "understudy_policy", "one_hot/"
PARTS = ("layers.{}.weight", "layers.{}.bias", "gates.{}.weight", "gates.{}.bias")  # names of a layer's tensors
COMMAND_ROWS = ("start", "fall per step", "fall per reward", "smallest", "largest", "centre", "scale")
"""Rows of the tensor ``command``. A command begins with ``start``. After each step it falls, but not out of the range
from ``smallest`` to ``largest``. Networks receive the difference from ``centre``, times ``scale``."""
CLIP_LIMIT = 10.0  # normalised observations are clipped to [-CLIP_LIMIT, CLIP_LIMIT]
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "silu": lambda x: x / (1 + np.exp(-np.maximum(x, -80))),  # without overflow
}
"""Activations by name. A number instead of a name is the slope of a leaky ReLU below 0: 0 for ReLU, 1 for identity.
``one_hot/4`` replaces each group of four numbers by a one-hot vector, with the 1 at the largest number."""
HEADS = ("argmax", "clip", "scale", "tanh")
"""Ways to compute actions from outputs. argmax: the index of the largest output. clip: the outputs, clipped to the
bounds of actions. scale: the outputs, scaled from [-1, 1] to the bounds, then clipped. tanh: as scale, for the tanh of
the outputs."""


class PolicyError(ValueError):
    """The error about a policy's file or an observation that cannot be used."""


class Policy:
    """The greedy policy of a trained agent, from a file of `Run.export`.

    >>> policy = understudy.Policy("agent.safetensors")
    >>> policy([0.0, 0.0, 0.05, 0.5])
    np.int64(1)
    >>> policy([[0.0, 0.0, 0.05, 0.5], [0.0, 0.0, -0.05, -0.5]])
    array([1, 0])

    :param path: A file on disk or on the Hugging Face Hub (``hf://user/name`` or ``hf://user/name/FILE``).
    :ivar str game: Name of the environment.
    :ivar str implementation: Name of the agent.
    :ivar int obs_size: Length O of an observation.
    :ivar tuple command_names: Names of the C numbers of the command that the agent follows, () for most agents.
    :ivar ndarray command: The command ``[C]`` at the start of an episode.
    :raises PolicyError: The file is of another kind.
    """

    def __init__(self, path: str | Path):
        try:
            self.path = fetch(path, AGENT) or Path(path)  # `fetch` returns None unless ``path`` begins with hf://
        except ProxyError as error:
            raise PolicyError(str(error)) from error
        header, tensors = _read(self.path)
        self.game, self.implementation = header["game"], header["implementation"]
        self._actions, self._has_cells, self._head = header["actions"], header["cells"], header["head"]
        self._activations = header["activations"]
        self._layers: list[list[np.ndarray]] = []  # weight and bias of each layer, then of its gate if it has one
        for i in range(len(self._activations) + 1):
            names = [part.format(i) for part in PARTS]
            self._layers.append([tensors[name].T for name in names if name in tensors])  # weights become [in, out]
        self._mean, self._scale = tensors.get("mean"), tensors.get("scale")
        self.obs_size = self._layers[0][0].shape[0]
        self.command_names = tuple(header.get("command", ()))
        self._command_table = tensors.get("command", np.zeros((len(COMMAND_ROWS), 0), np.float32))
        self.command = self._command_table[0]  # the row ``start``

    def __call__(self, observation: "ArrayLike", command: "ArrayLike | None" = None) -> np.ndarray | np.int64:
        """Choose the greedy action for an observation, or for each of N observations.

        :param observation: ``[O]`` or ``[N, O]``. If observations are one-hot cells, indices of cells are allowed too,
            an ``int`` or ``[N]``.
        :param command: ``[C]`` or ``[N, C]``. None means the command at the start of an episode.
        :return: The actions, ``int64`` (scalar or ``[N]``) or float32 (``[A]`` or ``[N, A]``).
        :raises PolicyError: Observation or command have another shape.
        """
        rows, is_single = self._parse_observation(observation)
        actions = self._act(rows, np.broadcast_to(self._commands(command), (len(rows), len(self.command))))
        return actions[0] if is_single else actions

    def advance(self, command: "ArrayLike | None", reward: Any) -> np.ndarray:
        """Compute the command, such as the return that is still to be collected, after a step.

        :param command: The command before the step, ``[C]`` or ``[N, C]``. None means the command at the start of an
            episode.
        :param reward: Reward of the step, a number or ``[N]``.
        :return: The command after the step, ``[C]`` or ``[N, C]``.
        """
        _, per_step, per_reward, low, high, *_ = self._command_table  # the rows `COMMAND_ROWS`
        fall = per_step + per_reward * np.asarray(reward, np.float32)[..., None]
        return (self._commands(command) - fall).clip(low, high)

    def predict(
        self, observation: "ArrayLike", state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[np.ndarray | np.int64, None]:
        """Choose greedy actions in the form of ``predict`` of stable-baselines3.

        :param observation: As for a call of the policy.
        :param state: Ignored.
        :param episode_start: Ignored.
        :param deterministic: Ignored; actions are greedy.
        :return: The actions, and None.
        :raises PolicyError: The agent has a command that changes in an episode.
        """
        if self._command_table[1:3].any():  # fall per step, fall per reward
            allowed = "policy(observation, command), and policy.advance(command, reward) after each step"
            raise PolicyError(f"predict knows no rewards, by which the command of {self} falls; allowed: {allowed}")
        return self(observation), None

    def _commands(self, command: Any) -> np.ndarray:
        """Return ``command`` as float32, ``[C]`` or ``[N, C]``. None means the command at the start of an episode.
        Raises PolicyError for another shape, and for numbers that are not finite."""
        values = self.command if command is None else np.asarray(command, np.float32)
        if values.ndim not in (1, 2) or values.shape[-1] != len(self.command):
            allowed = f"[{len(self.command)}] or [N, {len(self.command)}], the {', '.join(self.command_names)}"
            raise PolicyError(f"a command has shape {list(values.shape)}; allowed: {allowed}")
        if not np.isfinite(values).all():
            raise PolicyError(f"a command is {values.tolist()}; allowed: finite numbers")
        return values

    def _parse_observation(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Convert the user's ``observation`` to a batch ``[N, O]`` float32. Also return whether it is a single
        observation, without the axis N. If observations are one-hot cells, an integer or integers ``[N]`` are indices
        of cells. However, integers ``[O]`` that are all 0, except for a single 1, are a one-hot observation. Raises
        PolicyError for other shapes and values."""
        allowed = f"allowed: [{self.obs_size}] or [N, {self.obs_size}]"
        if self._has_cells:
            allowed += f", or integers from 0 to {self.obs_size - 1}"
        if isinstance(observation, Mapping | tuple):
            allowed += "; for a Dict or Tuple space, gymnasium.spaces.flatten(space, observation)"
        try:
            values = np.asarray(observation)
            with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite, an error below
                rows = np.atleast_2d(values).astype(np.float32)
        except (TypeError, ValueError) as error:
            raise PolicyError(f"an observation is no array of numbers ({error}); {allowed}") from error
        is_one_hot = values.shape == (self.obs_size,) and np.count_nonzero(values) == 1 and values.max() == 1
        are_integers = np.issubdtype(values.dtype, np.integer) and values.ndim < 2
        if self._has_cells and are_integers and not is_one_hot:
            indices = np.atleast_1d(values)
            if ((indices < 0) | (indices >= self.obs_size)).any():
                raise PolicyError(f"a cell is {observation}; {allowed}")
            return np.eye(self.obs_size, dtype=np.float32)[indices], values.ndim == 0
        if values.ndim not in (1, 2) or values.shape[-1] != self.obs_size:
            raise PolicyError(f"an observation has shape {list(values.shape)}; {allowed}")
        if not np.isfinite(rows).all():
            number = np.atleast_2d(values)[~np.isfinite(rows)][0]
            raise PolicyError(f"an observation contains {number}; allowed: finite float32 numbers")
        return rows, values.ndim == 1

    def _act(self, x: np.ndarray, command: np.ndarray) -> np.ndarray:
        """Return the greedy actions, ``[N]`` or ``[N, A]``, for observations ``x [N, O]`` and ``command [N, C]``."""
        if self._mean is not None:
            x = ((x - self._mean) * self._scale).clip(-CLIP_LIMIT, CLIP_LIMIT)
        *_, center, scale = self._command_table  # the last two rows of `COMMAND_ROWS`
        command = (command - center) * scale
        activations = [*self._activations, 1]  # the last layer has no activation: the slope 1 is the identity
        for (weight, bias, *gate), activation in zip(self._layers, activations, strict=True):
            if len(weight) != x.shape[1]:  # the layer also receives the products with the command, and the command
                products = (command[:, :, None] * x[:, None]).reshape(len(x), -1)
                x = np.concatenate([x, products, command], 1)
            x = _activation(activation)(x @ weight + bias)
            if gate:
                x = x * (np.tanh((command @ gate[0] + gate[1]) / 2) + 1) / 2  # the sigmoid, without overflow
        if self._head == "argmax":
            return x.argmax(1)
        low, high = (np.asarray(self._actions[name], np.float32) for name in ("low", "high"))
        if self._head == "tanh":
            x = np.tanh(x)
        if self._head != "clip":
            x = (low + high) / 2 + (high - low) / 2 * x  # scale from [-1, 1] to [low, high]
        return x.clip(low, high)

    def __repr__(self) -> str:
        return f"Policy({str(self.path)!r}): {self.implementation} on {self.game}"


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the file of a policy. Return its header and its tensors by name (described at the top of this module).
    Raises PolicyError for a file that is damaged or of another kind."""
    allowed = "a file of --eval_agent RUN --export FILE"
    try:
        with safe_open(path, "np") as opened:
            header = json.loads((opened.metadata() or {}).get(KEY, "null"))
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}
        if not isinstance(header, dict) or header.get("format") not in (1, 2):  # 2: with a command
            raise ValueError(f"no {KEY!r} metadata of format 1 or 2")
        check(header, tensors)
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        reason = f"its {error} is missing" if isinstance(error, KeyError) else str(error)
        raise PolicyError(f"policy {str(path)!r} cannot be read ({reason}); allowed: {allowed}") from error
    return header, tensors


def check(header: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError, KeyError or TypeError if a file's ``header`` and ``tensors`` do not describe a policy."""
    for value in header["activations"]:
        _activation(value)
    for name in ("game", "implementation"):
        if not isinstance(header[name], str):
            raise ValueError(f"its {name} is no text")
    if header["head"] not in HEADS or not isinstance(header["cells"], bool):
        raise ValueError(f"its head is {header['head']!r}, cells {header['cells']!r}")
    obs_size, command_names = tensors["layers.0.weight"].shape[1], header.get("command", [])
    table_shape = tensors.get("command", np.empty((len(COMMAND_ROWS), 0))).shape
    expected_shape = (len(COMMAND_ROWS), len(command_names))
    if table_shape != expected_shape or not all(isinstance(name, str) for name in command_names):
        raise ValueError(f"its command is {command_names!r} with the shape {table_shape}")
    num_outputs = _check_layers(header["activations"], tensors, len(command_names))
    actions = header["actions"]
    if header["head"] == "argmax":
        num_actions = actions["n"]
    else:
        with np.errstate(all="ignore"):
            low, high = (np.array(actions[name], np.float32) for name in ("low", "high"))
            if low.ndim != 1 or low.shape != high.shape or not ((low < high) & np.isfinite(high - low)).all():
                raise ValueError(f"its bounds of actions are low {low.tolist()}, high {high.tolist()}")
        num_actions = len(low)
    if num_actions != num_outputs:
        raise ValueError(f"it has {num_outputs} outputs for {num_actions} actions")
    if "mean" in tensors or "scale" in tensors:  # if only one of them exists, the next line raises KeyError
        if not tensors["mean"].shape == tensors["scale"].shape == (obs_size,):
            raise ValueError("its mean and scale have other shapes than an observation")
    for name, values in tensors.items():
        if values.dtype != np.float32 or not np.isfinite(values).all():
            raise ValueError(f"tensor {name} holds other numbers than finite float32")


def _check_layers(activations: list[Any], tensors: Mapping[str, np.ndarray], command_size: int) -> int:
    """Return the number of outputs of the last layer. Raise ValueError, KeyError or TypeError if the shapes of the
    layers do not fit each other, the ``activations``, or a command of ``command_size`` numbers."""
    inputs = tensors["layers.0.weight"].shape[1]
    for i, activation in enumerate([*activations, 1]):  # the last layer has no activation: 1 is the identity
        weight, bias = tensors[f"layers.{i}.weight"], tensors[f"layers.{i}.bias"]
        gate_shapes = [tensors[name].shape for name in (f"gates.{i}.weight", f"gates.{i}.bias") if name in tensors]
        outputs = len(bias)
        # Inputs, their products with each number of the command, and the command.
        inputs_with_command = inputs + inputs * command_size + command_size
        # ``one_hot/4`` needs outputs in groups of four. An activation may also be a number.
        group_size = int(activation.removeprefix(ONE_HOT)) if ONE_HOT in str(activation) else 1
        fits_inputs = weight.shape in ((outputs, inputs), (outputs, inputs_with_command))
        fits_gate = gate_shapes in ([], [(outputs, command_size), (outputs,)])
        if not (fits_inputs and bias.shape == (outputs,) and fits_gate and outputs % group_size == 0):
            raise ValueError(f"layer {i} has shapes {[weight.shape, bias.shape, *gate_shapes]}")
        inputs = outputs
    return inputs


def _activation(value: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return the activation function for ``value`` in a file: a name of `ACTIVATIONS`, the slope of a leaky ReLU, or
    ``one_hot/4`` for one-hot vectors of 4 numbers. Raises ValueError if there is no such activation."""
    if value in ACTIVATIONS:
        return ACTIVATIONS[value]
    if isinstance(value, str) and re.fullmatch(ONE_HOT + "[1-9][0-9]*", value):
        size = int(value.removeprefix(ONE_HOT))

        def one_hot_groups(x: np.ndarray) -> np.ndarray:
            largest = x.reshape(len(x), -1, size).argmax(2)  # [N, groups], index in each group of ``size`` numbers
            return np.eye(size, dtype=np.float32)[largest].reshape(x.shape)

        return one_hot_groups
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"an activation is {value!r}")
    slope = np.float32(value)
    return lambda x: np.where(x > 0, x, slope * x)
