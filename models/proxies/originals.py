"""Learned environments and rewards in files of other projects, read without running what the files say.

[F] Ferreira et al. 2022 (learning_environments) save ``{"model": state_dict, "config": settings}`` by ``torch.save``.
[L] Liesen et al. 2024 (synthetic-gymnax) pickle Flax parameters. A pickle names functions that rebuild its content:
here such a name means arrays, types of numbers or a dict, and any other is refused.
"""

import io
import pickle
import pickletools
import re
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from understudy.files import refused

LARGEST = 64 * 2**20  # bytes; the largest of theirs have less than one megabyte
_ALLOWED = "a .pt of learning_environments, or a pickle of synthetic-gymnax"
_LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"  # torch.save began with this number before it wrote archives
_MOST_PLACES = 100_000  # of a pickle's memo; Python allocates all up to the highest
_AGENTS = {
    "ddqn": "DDQN",
    "duelingddqn": "DuelingDDQN",
    "td3": "TD3",
    "ppo": "PPO",
    "ql": "QLearning",
    "sarsa": "SARSA",
}
Arrays = dict[str, np.ndarray]


class Original(NamedTuple):
    """The content of a file: the ``kind`` of proxy; its environment, "" if the file does not say; settings of its
    networks, and of its agents; and ``tensors`` as in `understudy.Proxy`, except that a bandit's reward takes the state
    before the action."""

    kind: str
    game: str
    settings: dict[str, Any]
    agents: dict[str, Any]
    tensors: Arrays


def read(path: Path) -> Original:
    """The content of another project's file. Raises ProxyError, one line with the path."""
    if not path.is_file() or path.stat().st_size > LARGEST:
        raise refused(path, f"no file of at most {LARGEST // 2**20} MB", _ALLOWED)
    content = path.read_bytes()
    try:
        is_torch = content[:2] == b"PK" or _LEGACY in content[:32]
        return _of_learning_environments(_torch(content)) if is_torch else _of_synthetic_gymnax(_pickled(content))
    except Exception as error:  # of a file anything can come
        name = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it names {name[1]}" if name else str(error).strip().split("\n")[0][:120] or type(error).__name__
        raise refused(path, f"not such a file ({reason})", _ALLOWED) from error


def _torch(content: bytes) -> Any:
    if content[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if any(part.compress_type for part in archive.infolist()):  # which could hold any amount
                raise ValueError("its archive is compressed")
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _of_learning_environments(content: Any) -> Original:
    config, game = content["config"], str(content["config"]["env_name"])
    environment, search = config["envs"][game], config["agents"]["gtn"]
    tensors: Arrays = {}
    depths = {"state": -1, "reward": -1, "done": -1}  # of each network, the layer that was read last
    for key, tensor in content["model"].items():  # env.state_net.0.weight, with a PReLU's slope after each layer
        match = re.fullmatch(r"(?:.*\.)?(state|reward|done)_net(?:\.\d+\.(weight|bias))?", key)
        if match is None or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ValueError(f"its tensor {key[:60]!r} is not of such a network")
        name, part, value = match[1], match[2] or "weight", tensor.float().numpy()
        if part == "weight" and value.shape == (1,) and match[2]:
            if value[0] != 0.25:  # which their search leaves as it begins
                raise ValueError(f"its PReLU {key[:60]!r} has slope {value[0]:g}, not 0.25")
            continue
        depths[name] += part == "weight"
        tensors[f"{name}.{depths[name]}.{part}"] = value if part == "bias" else np.atleast_2d(value)
    settings = {
        "proxy_hidden_layer": depths["reward"], "proxy_hidden_size": len(tensors["reward.0.weight"]),
        "proxy_activation_fn": str(environment["activation_fn"]),
    }  # fmt: skip
    solved = float(environment["solved_reward"])
    settings |= {"solved_reward": solved} if abs(solved) < 1e6 else {}  # more means that agents are never done
    agent = re.sub("_(vary|icm).*", "", str(search["agent_name"]).lower())
    agents: dict[str, Any] = {"agent": _AGENTS[agent]} if agent in _AGENTS else {}
    agents |= {"discount": float(config["agents"][agent]["gamma"])} if agent in config["agents"] else {}
    if search["synthetic_env_type"] == 0:
        limits = {"max_steps": int(environment["max_steps"]), "raw_done": True}
        return Original("mdp", game, settings | limits, agents, tensors)
    return Original("reward", game, settings | {"mode": int(environment["reward_env_type"])}, agents, tensors)


def _of_synthetic_gymnax(content: Any) -> Original:
    content, tensors = content.get("params", content), Arrays()
    for name, layers in (("initial", content["initial_state"]), ("reward", content["reward"])):
        for number in range(len(layers)):
            layer = layers[f"Dense_{number}"]
            tensors[f"{name}.{number}.weight"] = np.asarray(layer["kernel"], np.float32).T
            tensors[f"{name}.{number}.bias"] = np.asarray(layer["bias"], np.float32)
    (width, latent), depth = tensors["initial.0.weight"].shape, len(content["reward"]) - 1
    networks = {"proxy_hidden_layer": depth, "proxy_hidden_size": width, "proxy_activation_fn": "relu"}
    return Original("bandit", "", networks | {"latent_size": latent, "learned_reset": True}, {}, tensors)


class _FrozenDict(dict[str, Any]):
    """Stands for Flax's, which is pickled with its content as an argument or as its state."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.update(state["_dict"])


def _empty_array(*ignored: Any) -> np.ndarray:
    return np.empty(0, np.float32)  # whose size and numbers follow as its state


def _jax_array(make: Any, arguments: Any, state: Any, *ignored: Any) -> np.ndarray:
    array = _empty_array()
    array.__setstate__(state)
    return array


_STAND_INS: dict[str, Any] = {
    "numpy.ndarray": None, "numpy.dtype": np.dtype, "numpy.core.multiarray._reconstruct": _empty_array,
    "numpy._core.multiarray._reconstruct": _empty_array, "jax._src.array._reconstruct_array": _jax_array,
    "flax.core.frozen_dict.FrozenDict": _FrozenDict,
}  # fmt: skip


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _STAND_INS:
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")
        return _STAND_INS[f"{module}.{name}"]


def _pickled(content: bytes) -> Any:
    for code, argument, _ in pickletools.genops(content):  # which refuses lengths that the file does not have
        if code.name.endswith("PUT") and int(argument or 0) > _MOST_PLACES:
            raise ValueError(f"its memo has {argument:,} places")
    return _Unpickler(io.BytesIO(content)).load()
