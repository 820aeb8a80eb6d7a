"""Stand-ins on disk: what is written is read, anybody can rebuild it, and a damaged file is told in one line."""

import dataclasses
import io
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from models.proxies import files, shipped
from models.proxies.files import Proxy, ProxyError
from models.proxies.synthetic.config import Config
from models.proxies.synthetic.networks import Networks
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams

CARTPOLE = Spaces((4,), Discrete(2), max_episode_steps=500, max_return=500.0)
PUSHED = Spaces((3,), Continuous((-2.0, -0.5), (2.0, 0.5)))
SMALL = {"proxy_hidden_size": 7}
KINDS: dict[str, tuple[Config, Spaces]] = {
    "mdp": (Config(**SMALL), CARTPOLE),
    "mdp-wide": (Config(proxy_activation_fn="prelu", proxy_init="normal"), CARTPOLE),
    "mdp-deep": (Config(proxy_hidden_layer=3, proxy_activation_fn="tanh", **SMALL), CARTPOLE),
    "mdp-learned-reset": (Config(learned_reset=True, latent_size=2, proxy_activation_fn="relu", **SMALL), CARTPOLE),
    "mdp-continuous": (Config(max_steps=9, proxy_activation_fn="identity", **SMALL), PUSHED),
    "bandit": (Config(proxy="bandit", **SMALL), CARTPOLE),
}
DESCRIPTION = {"settings": {"seed": 3, "vary": ["lr"]}, "scores": {"report": {"mean": 497.25}}}


def written(path: Path, kind: str = "mdp", seed: int = 0, **changes: Any) -> Tensor:
    """A random stand-in's file; its parameters."""
    config, spaces = KINDS[kind]
    parameters = Networks(config, spaces).initial(Streams([seed]))[0]
    values = {"config": config, "spaces": spaces, "game": "cartpole", "description": DESCRIPTION} | changes
    files.save(path, parameters, **values)
    return parameters


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "proxy.safetensors"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read_to_the_bit(path: Path, kind: str) -> None:
    parameters = written(path, kind)
    config, spaces = KINDS[kind]
    loaded = files.load(path)
    assert torch.equal(loaded.parameters, parameters) and loaded.parameters.dtype == torch.float32
    assert dataclasses.replace(loaded, parameters=parameters) == Proxy(
        path, config, spaces, "cartpole", parameters, DESCRIPTION
    )
    assert loaded.networks.size == len(parameters)


def test_the_same_stand_in_gives_the_same_bytes(path: Path) -> None:
    written(path)
    first = path.read_bytes()
    for _ in range(5):
        written(path)
        assert path.read_bytes() == first


# -- rebuilt with torch alone ------------------------------------------------------------------------------------------

PLAIN = {"relu": nn.ReLU(), "leakyrelu": nn.LeakyReLU(0.01), "tanh": nn.Tanh(), "prelu": nn.LeakyReLU(0.25),
         "identity": nn.Identity()}  # fmt: skip


def rebuilt(path: Path) -> dict[str, nn.Sequential]:
    """The networks of a file, knowing nothing but its tensors' names and the activation."""
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["understudy"])
    networks = {}
    for name in dict.fromkeys(key.split(".")[0] for key in tensors):
        layers: list[nn.Module] = []
        for i in range(sum(key.startswith(f"{name}.") and key.endswith("weight") for key in tensors)):
            weight = tensors[f"{name}.{i}.weight"]
            linear = nn.Linear(weight.shape[1], weight.shape[0])
            linear.load_state_dict({"weight": weight, "bias": tensors[f"{name}.{i}.bias"]})
            layers += [linear, PLAIN[header["config"]["proxy_activation_fn"]]]
        networks[name] = nn.Sequential(*layers[:-1])
    return networks


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_plain_linear_layers_give_the_same_step(path: Path, kind: str) -> None:
    parameters = written(path, kind)
    config, spaces = KINDS[kind]
    nets, rows, generator = rebuilt(path), 50, torch.Generator().manual_seed(1)
    state = torch.randn(rows, *spaces.obs_shape, generator=generator)
    if isinstance(spaces.actions, Discrete):
        action = torch.randint(spaces.actions.n, (rows,), generator=generator)
        encoded = nn.functional.one_hot(action, spaces.actions.n).float()
    else:
        action = encoded = torch.randn(rows, spaces.actions.size, generator=generator)
    x = torch.cat([encoded, state], 1)
    program = Networks(config, spaces).program(parameters[None])
    ours = program.step(state[None], action[None])

    def same(mine: Tensor, theirs: Tensor) -> None:
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-6)

    same(ours.reward[0], nets["reward"](x)[:, 0])
    if config.proxy == "mdp":
        same(ours.next_state[0], nets["state"](x))
        same(ours.done[0], nets["done"](x)[:, 0])
    if "initial" in nets:
        noise = torch.randn(rows, nets["initial"][0].in_features, generator=generator)  # type: ignore[arg-type]
        same(program.first_states(noise[None])[0], nets["initial"](noise))
    assert set(nets) == set(program.networks.parts)


# -- never half a file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(path: Path, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = written(path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, fails, full)
    with pytest.raises(OSError):
        written(path, seed=1)
    assert torch.equal(files.load(path).parameters, old)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_parameters_that_are_no_numbers_are_never_written(path: Path, value: float) -> None:
    parameters = written(path).clone()
    before = path.read_bytes()
    parameters[5] = value
    config, spaces = KINDS["mdp"]
    with pytest.raises(ProxyError, match="not finite"):
        files.save(path, parameters, config=config, spaces=spaces, game="cartpole", description={})
    with pytest.raises(ProxyError, match=r"\[3\] parameters; allowed: \["):
        files.save(path, parameters[:3], config=config, spaces=spaces, game="cartpole", description={})
    with pytest.raises(TypeError):
        written(path, description={"path": path})
    assert path.read_bytes() == before


def test_scores_that_were_never_measured_become_null(path: Path) -> None:
    written(path, description={"scores": [{"again": float("nan")}, (1.5, float("inf"))]})
    assert files.load(path).description == {"scores": [{"again": None}, [1.5, None]]}


# -- what is no stand-in -----------------------------------------------------------------------------------------------


def one_line(path: Path) -> str:
    with pytest.raises(ProxyError) as caught:
        files.load(path)
    line = str(caught.value)
    assert str(path) in line and "\n" not in line and "allowed: " in line
    return line


def changed(path: Path, header: dict[str, Any] | None = None, **tensors: Tensor | None) -> str:
    """What is said of a good file with other header entries (None: without) and tensors (``__`` for a dot)."""
    written(path)
    with safe_open(path, "pt") as file:
        now = json.loads(file.metadata()["understudy"]) | (header or {})
    layers: dict[str, Any] = load_file(path) | {name.replace("__", "."): layer for name, layer in tensors.items()}
    kept = {name: layer for name, layer in layers.items() if layer is not None}
    text = json.dumps({name: value for name, value in now.items() if value is not None})
    save_file(kept, path, {"understudy": text})
    return one_line(path)


def test_files_of_other_kinds(path: Path) -> None:
    assert "there is no such file" in one_line(path)
    path.write_bytes(b"")
    assert "not a whole safetensors file" in one_line(path)
    path.write_text("no stand-in at all, but a text that is longer than a header")
    assert "not a whole safetensors file" in one_line(path)
    path.write_bytes(pickle.dumps({"state": [1.0]}))
    assert "not a whole safetensors file" in one_line(path)
    torch.save({"state_dict": {}}, path)
    assert "it is a checkpoint" in one_line(path)
    save_file({"state.0.weight": torch.zeros(2, 2)}, path)
    assert "without 'understudy' metadata" in one_line(path)
    save_file({"state.0.weight": torch.zeros(2, 2)}, path, {"understudy": "{"})
    assert "without 'understudy' metadata" in one_line(path)
    path.unlink()
    path.mkdir()
    assert "cannot be read" in one_line(path)


def test_a_file_cut_off_anywhere(path: Path) -> None:
    written(path)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 101), len(whole) - 1]:
        path.write_bytes(whole[:size])
        assert "not a whole safetensors file" in one_line(path)
    path.write_bytes(whole + b"\0")
    assert "not a whole safetensors file" in one_line(path)


def test_tensors_that_do_not_fit(path: Path) -> None:
    assert "tensor done.1.bias is missing" in changed(path, done__1__bias=None)
    extra = changed(path, done__1__biass=torch.zeros(1))
    assert "tensor done.1.biass is unknown; did you mean 'done.1.bias'?" in extra
    wrong = changed(path, state__0__weight=torch.zeros(6, 7))
    assert "tensor state.0.weight is F32 [6, 7]; allowed: F32 [7, 6]" in wrong
    double = changed(path, reward__0__bias=torch.zeros(7, dtype=torch.float64))
    assert "tensor reward.0.bias is F64 [7]; allowed: F32 [7]" in double
    nan = changed(path, reward__0__bias=torch.full((7,), float("nan")))
    assert "tensor reward.0.bias holds numbers that are not finite" in nan


def test_descriptions_that_do_not_fit(path: Path) -> None:
    config = dataclasses.asdict(KINDS["mdp"][0])
    assert "its format is 2; allowed: 1" in changed(path, {"format": 2})
    assert "its game is missing or damaged" in changed(path, {"game": None})
    assert "its config is missing or damaged" in changed(path, {"config": [1]})
    assert "'proxi' is unknown; did you mean 'proxy'?" in changed(path, {"config": config | {"proxi": "mdp"}})
    assert "proxy is 'mdpp'; allowed: mdp, bandit" in changed(path, {"config": config | {"proxy": "mdpp"}})
    wide = changed(path, {"config": config | {"proxy_hidden_size": 65_536, "proxy_hidden_layer": 2}})
    assert "tensor done.2.bias is missing" in wide  # and not: no memory
    for spaces in ({}, {"obs_shape": [4]}, {"obs_shape": [4, 4]}):
        assert "its spaces are damaged" in changed(path, {"spaces": spaces})
    for actions in ({"n": 0}, {"n": "2"}, {"low": [0.0], "high": []}, {"low": [1.0], "high": [0.0]}, {"low": []}):
        spaces = {"obs_shape": [4], "actions": actions, "max_episode_steps": None, "max_return": None}
        assert "its spaces are damaged" in changed(path, {"spaces": spaces})


def test_nothing_is_unpickled(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(path)

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("unpickled")

    for module, name in ((torch, "load"), (pickle, "load"), (pickle, "loads"), (pickle, "Unpickler")):
        monkeypatch.setattr(module, name, refused)
    with pytest.raises(AssertionError):
        torch.load(io.BytesIO())
    assert files.load(path).game == "cartpole"


# -- names -------------------------------------------------------------------------------------------------------------


def test_names_paths_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path / "pretrained")
    assert files.pretrained() == {}
    with pytest.raises(ProxyError, match="stand-in is 'cartpole-mdp'; allowed: a .safetensors file$"):
        files.find("cartpole-mdp")
    run = tmp_path / "version_0"
    for folder in (run, shipped.SHIPPED):
        folder.mkdir()
    file = shipped.SHIPPED / "cartpole-mdp.safetensors"
    written(file)
    written(run / "proxy.safetensors")
    assert files.pretrained() == {"cartpole-mdp": file}
    assert files.find("cartpole-mdp") == file == files.find(file)
    assert files.find("version_0") == Path("version_0/proxy.safetensors")
    with pytest.raises(ProxyError) as caught:
        files.find("cartpole-mpd")
    said = "did you mean 'cartpole-mdp'? Allowed: a .safetensors file, or one of cartpole-mdp"
    assert str(caught.value) == f"stand-in is 'cartpole-mpd'; {said}"
    with pytest.raises(ProxyError, match="did you mean 'version_0/proxy.safetensors'"):
        files.find("version_0/prxy.safetensors")


def test_the_shipped_folder_stands_beside_the_packages() -> None:
    assert shipped.SHIPPED == Path(files.__file__).resolve().parent.parent.parent / "pretrained"
    for path in files.pretrained().values():
        files.load(path)
