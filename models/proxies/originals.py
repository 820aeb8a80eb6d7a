"""Readers of learned environments and rewards in files of other projects. They run no code from the files.

[F] Ferreira et al. 2022 (learning_environments) save ``{"model": state_dict, "config": settings}`` by ``torch.save``.
[L] Liesen et al. 2024 (synthetic-gymnax) pickle Flax parameters. A pickle contains names of functions that rebuild its
content. These readers accept only the functions of NumPy, JAX and Flax that rebuild arrays and dicts.
"""

import io
import pickle
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from models.state import read_archive
from understudy.files import file_error

LARGEST = 2 * 10**6  # bytes of a file; all files of both projects have less than one megabyte
_ALLOWED = "a .pt of learning_environments, or a pickle of synthetic-gymnax"
_LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"  # torch.save began with this number before it wrote archives
_AGENTS = {name.lower(): name for name in ("DDQN", "DuelingDDQN", "TD3", "PPO", "SARSA")} | {"ql": "QLearning"}
Arrays = dict[str, np.ndarray]


class Original(NamedTuple):
    """The content of a file of another project."""

    kind: str  # kind of proxy
    game: str  # its environment, or "" if the file does not say
    settings: dict[str, Any]  # settings of the proxy
    agents: dict[str, Any]  # settings of its inner agents
    tensors: Arrays  # named as in `understudy.Proxy`; the reward network of a bandit has inputs [state, action]


def read(path: Path) -> Original:
    """Return the content of another project's file, which is recognised by its first bytes. Raises a ProxyError with
    the path for any other file, and for a damaged file."""
    if not path.is_file() or path.stat().st_size > LARGEST:
        raise file_error(path, f"no file of at most {LARGEST // 10**6} MB", _ALLOWED)
    content = path.read_bytes()
    try:
        if content[:2] == b"PK" or _LEGACY in content[:32]:  # a zip archive, or torch's older format
            return _read_learning_environments(read_archive(path))
        return _read_synthetic_gymnax(content)
    except Exception as error:  # a damaged or foreign file can raise anything
        reason = str(error).strip().split("\n")[0][:120] or type(error).__name__
        raise file_error(path, f"not such a file ({reason})", _ALLOWED) from error


def _read_learning_environments(content: Any) -> Original:
    """Convert the content of a file of learning_environments. Raises any error for other content."""
    config = content["config"]
    game = config["env_name"]
    environment, search = config["envs"][game], config["agents"]["gtn"]
    activation, agent_name = environment["activation_fn"], search["agent_name"]
    if not all(isinstance(name, str) for name in (game, activation, agent_name)):
        raise ValueError("its environment, activation or agent is no name")
    tensors = _rename_tensors(content["model"])
    settings = {
        "proxy_hidden_layer": sum(re.fullmatch(r"reward\.\d+\.weight", name) is not None for name in tensors) - 1,
        "proxy_hidden_size": len(tensors["reward.0.weight"]),
        "proxy_activation_fn": activation,
    }
    solved_reward = float(environment["solved_reward"])
    if abs(solved_reward) < 1e6:  # the files have a larger number for an environment that is never solved
        settings["solved_reward"] = solved_reward
    agent = re.sub("_(vary|icm).*", "", agent_name.lower())  # ddqn_vary -> ddqn
    agents: dict[str, Any] = {"agent": _AGENTS[agent]} if agent in _AGENTS else {}
    if agent in config["agents"]:
        agents["discount"] = float(config["agents"][agent]["gamma"])
    if search["synthetic_env_type"] == 0:  # an environment, otherwise a reward
        limits = {"max_steps": int(environment["max_steps"]), "raw_done": True}
        return Original("mdp", game, settings | limits, agents, tensors)
    return Original("reward", game, settings | {"mode": int(environment["reward_env_type"])}, agents, tensors)


def _rename_tensors(model: Any) -> Arrays:
    """Return the weights and biases of the state dict ``model`` by their names in `understudy`. For example,
    ``env.state_net.0.weight`` becomes ``state.0.weight``, and ``env.reward_net``, the only weight of a linear network,
    ``reward.0.weight``. Slopes of PReLU, a single number each, are left out. Raises ValueError for other tensors."""
    tensors: Arrays = {}
    last_layers = {"state": -1, "reward": -1, "done": -1}  # index of the latest layer of each network
    for key, tensor in model.items():
        # For example, "env.state_net.2.bias" is the part "bias" of the network "state".
        match = re.fullmatch(r"(?:.*\.)?(state|reward|done)_net(?:\.\d+\.(weight|bias))?", key)
        if match is None or tensor.dtype != torch.float32:
            raise ValueError(f"its tensor {key[:60]!r} is not of such a network")
        name, part, value = match[1], match[2], tensor.numpy()
        if part == "weight" and value.shape == (1,):  # a slope
            if value[0] != 0.25:  # the initial slope, which that search does not change
                raise ValueError(f"its PReLU {key[:60]!r} has slope {value[0]:g}, not 0.25")
        elif part == "bias":  # comes after the weight of its layer
            tensors[f"{name}.{last_layers[name]}.bias"] = value
        else:
            last_layers[name] += 1
            tensors[f"{name}.{last_layers[name]}.weight"] = np.atleast_2d(value)  # a vector is a single row
    return tensors


def _read_synthetic_gymnax(content: bytes) -> Original:
    """Convert the content of a file of synthetic-gymnax: a bandit with an initial-state and a reward network."""
    parameters = _Unpickler(io.BytesIO(content)).load()
    parameters = parameters.get("params", parameters)
    tensors: Arrays = {}
    for name, layers in (("initial", parameters["initial_state"]), ("reward", parameters["reward"])):
        for i in range(len(layers)):
            layer = layers[f"Dense_{i}"]
            tensors[f"{name}.{i}.weight"] = layer["kernel"].values.T  # Flax stores [in, out]
            tensors[f"{name}.{i}.bias"] = layer["bias"].values
    width, latent_size = tensors["initial.0.weight"].shape
    depth = len(parameters["reward"]) - 1
    settings = {"proxy_hidden_layer": depth, "proxy_hidden_size": width, "proxy_activation_fn": "relu"}
    settings |= {"latent_size": latent_size, "learned_reset": True}
    return Original("bandit", game="", settings=settings, agents={}, tensors=tensors)


class _FrozenDict(dict[str, Any]):
    """Replaces Flax's FrozenDict, which is pickled with its content as an argument or as its state."""

    def __setstate__(self, state: Any) -> None:
        self.update(state["_dict"])


class _Float32:
    """Replaces ``numpy.dtype``. Raises ValueError for any dtype other than little-endian float32."""

    def __init__(self, name: str, align: Any = None, copy: Any = None):
        if name != "f4":  # a float of 4 bytes; its byte order follows as state
            raise ValueError("it holds an array of other numbers than float32")

    def __setstate__(self, state: Any) -> None:
        if state[1] != "<":
            raise ValueError("it holds an array of another byte order")


class _Array:
    """Replaces NumPy's array, whose functions read any memory if the file says so. The pickle constructs an empty array
    and then sets its state, which has the numbers."""

    def __init__(self, kind: Any = None, shape: Any = None, code: Any = None):
        self.values = np.empty(0, np.float32)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, by_columns, content = state
        if not isinstance(dtype, _Float32) or len(shape) > 2:
            raise ValueError("it holds an array that is no matrix of float32")
        self.values = np.frombuffer(content, "<f4").reshape(shape, order="F" if by_columns else "C")


def _jax_array(make: Any, arguments: Any, state: Any, shape_and_dtype: Any = None) -> _Array:
    """Replaces JAX's function that rebuilds an array. Only ``state``, the state of a NumPy array, is used."""
    array = _Array()
    array.__setstate__(state)
    return array


_REPLACEMENTS: dict[str, Any] = {
    "numpy.ndarray": None,  # an argument of `_Array`, never called
    "numpy.dtype": _Float32,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "jax._src.array._reconstruct_array": _jax_array,
    "flax.core.frozen_dict.FrozenDict": _FrozenDict,
}


class _Unpickler(pickle.Unpickler):
    """Unpickler of files of synthetic-gymnax. Raises UnpicklingError for any function or class that is not replaced."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _REPLACEMENTS:
            raise pickle.UnpicklingError(f"it holds a {module}.{name}")
        return _REPLACEMENTS[f"{module}.{name}"]
