"""`--import_proxy`: files of other projects, read without running their code."""

import pickle
import struct
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import trainer
import understudy
from fake_runs import Shown, refused
from inputs import Harm, archive
from understudy.env import SyntheticEnv

HIDDEN = 5
ENVIRONMENT = {"solved_reward": 195, "max_steps": 200, "activation_fn": "leakyrelu", "reward_env_type": 0}


def networks(seed: int, **sizes: tuple[int, int]) -> "OrderedDict[str, torch.Tensor]":
    """A state_dict in their format: ``env.<name>_net.<index>.weight``, with a PReLU between two layers."""
    torch.manual_seed(seed)
    state_dict: OrderedDict[str, torch.Tensor] = OrderedDict()
    for name, (inputs, outputs) in sizes.items():
        layers = nn.Sequential(nn.Linear(inputs, HIDDEN), nn.PReLU(), nn.Linear(HIDDEN, outputs))
        state_dict |= {f"env.{name}_net.{key}": value for key, value in layers.state_dict().items()}
    return state_dict


def saved(
    path: Path, model: Any, legacy: bool = False, game: str = "CartPole-v0", kind: int = 0, **changes: Any
) -> Path:
    """A file in the format of their search."""
    agents = {"gtn": {"synthetic_env_type": kind, "agent_name": "DDQN_vary"}, "ddqn": {"gamma": 0.97, "lr": 1e-3}}
    config = {"env_name": game, "envs": {game: ENVIRONMENT | changes}, "agents": agents}
    torch.save({"model": model, "config": config}, path, _use_new_zipfile_serialization=not legacy)
    return path


def imported(path: Path, logdir: Path, *flags: str) -> understudy.Proxy:
    assert trainer.main(["--import_proxy", str(path), "--logdir", str(logdir), *flags]) == 0
    (proxy_path,) = logdir.glob(f"*/imported/{path.stem}/proxy.safetensors")
    return understudy.load(proxy_path)


def by_hand(model: dict[str, torch.Tensor], name: str, x: np.ndarray, slope: float) -> np.ndarray:
    """Outputs of a network of a state_dict for rows of ``x``."""
    first, bias, last, end = (
        model[f"env.{name}_net.{i}.{part}"].numpy() for i in (0, 2) for part in ("weight", "bias")
    )
    hidden = x @ first.T + bias
    return np.where(hidden > 0, hidden, slope * hidden) @ last.T + end


@pytest.mark.parametrize("legacy", [False, True])
def test_imported_mdp_makes_the_same_steps(tmp_path: Path, legacy: bool) -> None:
    model = networks(0, state=(6, 4), reward=(6, 1), done=(6, 1))
    plain = OrderedDict((key, value) for key, value in model.items() if ".1." not in key)  # LeakyReLU has no slope
    proxy = imported(saved(tmp_path / "CartPole-v0_CW9CSH.pt", plain, legacy), tmp_path)
    assert (proxy.game, proxy.kind, proxy.time_limit) == ("cartpole-200", "mdp", 200)
    assert proxy.description["settings"] == {"agent": "DDQN", "discount": 0.97}
    env = SyntheticEnv(proxy)
    state, _ = env.reset(seed=3)
    for action in (0, 1, 1):
        x = np.concatenate((np.eye(2)[action], state))[None]
        next_state, reward, terminated, _, _ = env.step(action)
        np.testing.assert_allclose(next_state, by_hand(model, "state", x, 0.01)[0], rtol=1e-5, atol=1e-6)
        assert reward == pytest.approx(by_hand(model, "reward", x, 0.01).item(), abs=1e-6)
        assert terminated == (by_hand(model, "done", x, 0.01).item() > 0.5)
        state = next_state


def test_imported_reward_network_pays_the_same(tmp_path: Path) -> None:
    model = networks(1, reward=(4, 1))
    path = saved(tmp_path / "rn.pt", model, kind=1, reward_env_type=2, activation_fn="prelu")
    proxy = imported(path, tmp_path)
    assert (proxy.kind, proxy.config["mode"]) == ("reward", 2)
    import gymnasium

    env = understudy.RewardWrapper(gymnasium.make("CartPole-v1"), proxy.path, discount=0.9)
    obs, _ = env.reset(seed=0)
    next_obs, reward, *_ = env.step(1)
    phi = by_hand(model, "reward", np.stack((obs, next_obs)), 0.25)[:, 0]
    assert reward == pytest.approx(1 + 0.9 * phi[1] - phi[0], abs=1e-5)


# Pickles of synthetic-gymnax ----------------------------------------------------------------------------------------


@pytest.fixture
def flax(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Fake modules of Flax and JAX, whose dictionaries and arrays have the same pickles."""
    frozen, arrays = types.ModuleType("flax.core.frozen_dict"), types.ModuleType("jax._src.array")

    class FrozenDict:
        def __init__(self, content: dict[str, Any]):
            self._dict, self._hash = content, None

    class Array:
        def __init__(self, value: np.ndarray):
            self.value = value

        def __reduce__(self) -> Any:
            make, arguments, state = self.value.__reduce__()
            return arrays._reconstruct_array, (make, arguments, state, {"weak_type": False, "named_shape": {}})

    def _reconstruct_array(*parts: Any) -> None:
        raise AssertionError

    for module, thing in ((frozen, FrozenDict), (arrays, _reconstruct_array)):
        thing.__module__, thing.__qualname__ = module.__name__, thing.__name__
        setattr(module, thing.__name__, thing)
    for name in ("flax", "flax.core", "jax", "jax._src"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "flax.core.frozen_dict", frozen)
    monkeypatch.setitem(sys.modules, "jax._src.array", arrays)
    return types.SimpleNamespace(FrozenDict=FrozenDict, Array=Array)


def weights(array: Any, size: int = 4, actions: int = 2) -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def dense(inputs: int, outputs: int) -> dict[str, Any]:
        kernel, bias = rng.normal(size=(inputs, outputs)), rng.normal(size=outputs)
        return {"kernel": array(kernel.astype(np.float32)), "bias": array(bias.astype(np.float32))}

    return {
        "initial_state": {"Dense_0": dense(size, 32), "Dense_1": dense(32, size)},
        "reward": {"Dense_0": dense(size + actions, 32), "Dense_1": dense(32, 1)},
    }


@pytest.mark.parametrize(("form", "protocol"), [("frozen", 3), ("nested", 4), ("plain", 5)])
def test_imported_bandit_pays_the_same(tmp_path: Path, flax: Any, form: str, protocol: int) -> None:
    content: Any = weights(flax.Array)
    content = flax.FrozenDict({"params": content}) if form == "frozen" else content
    content = {"params": flax.FrozenDict(content)} if form == "nested" else content
    path = tmp_path / "cartpole" / "checkpoint.pkl"
    path.parent.mkdir()
    path.write_bytes(pickle.dumps(content, protocol))
    proxy = imported(path, tmp_path)
    assert (proxy.game, proxy.kind) == ("cartpole", "bandit")
    layers = weights(lambda value: value)
    env = SyntheticEnv(proxy)
    state, _ = env.reset(seed=0)
    _, reward, terminated, _, _ = env.step(1)
    first, last = layers["reward"]["Dense_0"], layers["reward"]["Dense_1"]
    hidden = np.maximum(np.concatenate((state, [0, 1])) @ first["kernel"] + first["bias"], 0)
    assert terminated and reward == pytest.approx((hidden @ last["kernel"] + last["bias"]).item(), rel=1e-5)
    first, last = (proxy.tensors[f"initial.{i}.weight"] for i in (0, 1))
    assert first.shape == (32, 4) and np.array_equal(last.T, layers["initial_state"]["Dense_1"]["kernel"])


def test_missing_environment_name_needs_a_flag(tmp_path: Path, flax: Any, capsys: Shown) -> None:
    path = tmp_path / "theirs.pkl"
    path.write_bytes(pickle.dumps(weights(flax.Array)))
    words = ["--import_proxy", str(path), "--logdir", str(tmp_path)]
    refused(trainer.main, words, "import_proxy: gamename is 'theirs'", capsys)
    refused(trainer.main, [*words, "--gamename", "acrobot"], "with acrobot", capsys)
    assert imported(path, tmp_path, "--gamename", "cartpole").game == "cartpole"
    refused(trainer.main, [*words, "--gamename", "cartpole"], "proxy.safetensors' exists; move it away", capsys)


# Hostile files ---------------------------------------------------------------------------------------------------


def hostile(folder: Path) -> Iterator[tuple[str, bytes, str]]:
    """Name, content and message."""
    mark = folder / "harmed"
    for protocol in (0, 2, 4):
        yield "system", pickle.dumps({"params": Harm(mark)}, protocol), "it holds a posix.system"
    yield "bytes", b"\x80\x04B" + struct.pack("<I", 2**32 - 1) + b"x.", "not such a file"
    yield "bytes8", b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"x.", "not such a file"
    yield "large", b"N0" * 1_100_000, "no file of at most 2 MB"
    yield "array", pickle.dumps(bandit("text"), 4), "not such a file"
    yield "objects", pickle.dumps({"params": bandit(AnyMemory())}, 4), "not such a file"
    yield "empty", b"", "not such a file"
    yield "huge array", pickle.dumps({"params": {"initial_state": 1, "reward": 2}}), "not such a file"
    archived = archive({"archive/data.pkl": pickle.dumps({"model": Harm(mark)}, 2), "archive/version": b"3"})
    yield "zip.pt", archived, "it holds more than tensors and plain values"


class AnyMemory:
    """Pickled as an array of objects, whose addresses are from the file."""

    def __reduce__(self) -> Any:
        return np.ndarray, ((1, 1), "O", b"A" * 8)


def bandit(kernel: Any) -> dict[str, Any]:
    layers = {"Dense_0": {"kernel": kernel, "bias": kernel}}
    return {"initial_state": layers, "reward": layers}


def test_hostile_file_is_refused_without_running_it(tmp_path: Path, capsys: Shown) -> None:
    for number, (name, content, message) in enumerate(hostile(tmp_path)):
        path = tmp_path / f"{number}-{name}"
        path.write_bytes(content)
        words = ["--import_proxy", str(path), "--gamename", "cartpole", "--logdir", str(tmp_path / "exp")]
        line = refused(trainer.main, words, message, capsys)
        assert line.startswith(f"error: proxy '{path}': no"), line
    path = saved(tmp_path / "legacy.pt", Harm(tmp_path / "harmed"), legacy=True)
    refused(trainer.main, ["--import_proxy", str(path)], "it holds more than tensors and plain values", capsys)
    assert not (tmp_path / "harmed").exists() and not (tmp_path / "exp").exists()


WRONG = [
    ({"activation_fn": "swish"}, {}, "its setting proxy_activation_fn is 'swish'"),
    ({"activation_fn": ["relu"]}, {}, "its environment, activation or agent is no name"),
    ({}, {"env.state_net.1.weight": torch.tensor([0.5])}, "has slope 0.5, not 0.25"),
    ({}, {"env.other.0.weight": torch.zeros(2, 2)}, "'env.other.0.weight' is not of such a network"),
    ({}, {"env.state_net.0.weight": torch.zeros(HIDDEN, 6).half()}, "is not of such a network"),
    ({}, {"env.state_net.0.weight": torch.zeros(HIDDEN, 7)}, "its tensor state.0.weight is [5, 7]; allowed: [5, 6]"),
]


@pytest.mark.parametrize(("environment", "model", "message"), WRONG)
def test_unexpected_networks_are_refused(
    environment: dict[str, Any], model: dict[str, Any], message: str, tmp_path: Path, capsys: Shown
) -> None:
    state_dict = networks(0, state=(6, 4), reward=(6, 1), done=(6, 1)) | model
    path = saved(tmp_path / "theirs.pt", state_dict, **environment)
    refused(trainer.main, ["--import_proxy", str(path), "--logdir", str(tmp_path)], message, capsys)
