"""Files of learned environments: round trips, networks rebuilt with plain layers, errors for damaged files."""

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import trainer
import understudy
from fake_runs import Shown, refused
from models.proxies import files
from models.registry import family
from models.settings import allowed, bounds, field_types
from proxies import DESCRIPTION, KINDS, REWARDS, written
from understudy import ProxyError
from understudy.kinds import KINDS as FILE_KINDS
from understudy.kinds import MODES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "proxy.safetensors"


@pytest.mark.parametrize("kind", KINDS | REWARDS)
def test_save_and_load_round_trip(path: Path, kind: str) -> None:
    parameters = written(path, kind)
    config, spaces, game = (KINDS | REWARDS)[kind]
    loaded = files.load(path)
    assert torch.equal(loaded.parameters, parameters) and loaded.parameters.dtype == torch.float32
    expected = files.Proxy(path, config, spaces, game, parameters, DESCRIPTION)
    assert dataclasses.replace(loaded, parameters=parameters) == expected
    assert loaded.networks.size == len(parameters)
    written(path, kind, description={"scores": [{"again": float("nan")}, (1.5, float("inf"))]})
    assert files.load(path).description == {"scores": [{"again": None}, [1.5, None]]}


def test_invalid_parameters_are_not_written(path: Path) -> None:
    good, original_bytes = written(path), path.read_bytes()
    config, spaces, game = KINDS["mdp"]
    unwritable: list[tuple[Tensor, dict[str, Any], type[Exception], str]] = [
        (good * float("nan"), {}, ProxyError, "not finite"),
        (good.index_fill(0, torch.tensor(5), float("inf")), {}, ProxyError, "not finite"),
        (good[:3], {}, ProxyError, r"\[3\] parameters; allowed: \["),
        (good, {"path": path}, TypeError, "not JSON serializable"),
    ]
    for parameters, description, error, line in unwritable:
        with pytest.raises(error, match=line):
            files.save(path, parameters, config=config, spaces=spaces, game=game, description=description)
        assert path.read_bytes() == original_bytes and [*path.parent.iterdir()] == [path]


def one_line(path: Path) -> str:
    with pytest.raises(ProxyError) as caught:
        files.load(path)
    line = str(caught.value)
    assert str(path) in line and "\n" not in line and ("; allowed: " in line or "? Allowed: " in line)
    return line


def test_foreign_truncated_or_corrupted_file_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    assert "proxy is '" in one_line(path) and "proxy is '" in one_line(path.parent)
    for content in (b"", b"a text that is longer than a header", pickle.dumps({"state": [1.0]})):
        path.write_bytes(content)
        assert "not a whole safetensors file" in one_line(path)
    torch.save({"state_dict": {}}, path)
    assert "it is a checkpoint" in one_line(path)
    for text, message in (
        (None, "without 'understudy' metadata"), ("{", "its metadata are damaged"),
        ("[" * 10**5, "its metadata are damaged"), ('{"format": NaN}', "without 'understudy' metadata of format 1"),
        (f'{{"format": {"9" * 5000}}}', "its metadata are damaged"), (" " * 2**21, "its metadata are damaged"),
    ):  # fmt: skip
        save_file({"a": torch.zeros(2)}, path, None if text is None else {"understudy": text})
        assert message in one_line(path)
    written(path)
    valid_content = path.read_bytes()
    for size in [*range(0, len(valid_content), 101), len(valid_content) - 1]:
        path.write_bytes(valid_content[:size])
        assert "not a whole safetensors file" in one_line(path)
    for place in range(0, len(valid_content), 13):
        flipped = bytes([valid_content[place] ^ 1 << place % 8])
        path.write_bytes(valid_content[:place] + flipped + valid_content[place + 1 :])
        one_line(path)
    assert "it is not as it was written" in one_line(path)
    monkeypatch.setattr("builtins.open", refused)
    assert "cannot be read (Permission denied)" in one_line(path)


CONFIG = dataclasses.asdict(KINDS["mdp"][0])
SPACES = {"obs_shape": (4,), "max_episode_steps": None, "max_return": None}
TWO: dict[str, Any] = SPACES | {"actions": {"n": 2}}
REWARD_CONFIG = dataclasses.asdict(REWARDS["reward-3"][0])
# Changes of the header of a valid file (None: left out) and of its tensors, and the message.
DAMAGED: list[tuple[dict[str, Any], dict[str, Tensor | None], str]] = [
    ({}, {"done.1.bias": None}, "tensor done.1.bias is missing"),
    ({}, {"done.1.biass": torch.zeros(1)}, "tensor 'done.1.biass' is unknown; allowed: state.0.weight"),
    ({}, {"state.0.weight": torch.zeros(6, 9)}, "tensor state.0.weight is F32 [6, 9]; allowed: F32 [9, 6]"),
    ({}, {"reward.0.bias": torch.full((9,), torch.nan)}, "tensor reward.0.bias holds numbers that are not finite"),
    ({"format": 2}, {}, "without 'understudy' metadata of format 1"),
    ({"digest": "x"}, {}, "it is not as it was written: its digest is another"),
    ({"game": None}, {}, "its game is missing or damaged"),
    ({"config": CONFIG | {"proxy": ["mdp"]}}, {}, "its setting proxy is ['mdp']; allowed: mdp, bandit"),
    ({"config": CONFIG | {"max_steps": 10**400}}, {}, "0...; allowed: integer, at least 1; or null"),
    ({"config": [1]}, {}, "its config is missing or damaged"),
    ({"config": {}}, {}, "its setting proxy is None; allowed: mdp, bandit"),
    ({"config": CONFIG | {"proxi": "mdp"}}, {}, "'proxi' is unknown; did you mean 'proxy'?"),
    ({"config": CONFIG | {"proxy": "mdpp"}}, {}, "proxy is 'mdpp'; allowed: mdp, bandit, reward"),
    ({"config": CONFIG | {"proxy_hidden_layer": 17}}, {}, "is 17; allowed: integer, at least 0, at most 16"),
    ({"config": CONFIG | {"proxy_hidden_size": 65_536, "proxy_hidden_layer": 2}}, {}, "tensor done.2.bias is missing"),
    ({"description": {"settings": []}}, {}, "its description.settings are damaged"),
    ({"spaces": {}}, {}, "its spaces are damaged"),
    *(({"spaces": SPACES | {"actions": actions}}, {}, "its spaces are damaged") for actions in (
        {"n": 0}, {"low": [0.0], "high": []}, {"low": [1.0], "high": [0.0]}, [2], {"n": True},
        {"n": 2, "low": [0.0], "high": [1.0]}, {"low": [-(10**400)], "high": [1]}, {"low": "a", "high": "b"},
    )),
    *(({"spaces": TWO | {name: value}}, {}, "its spaces are damaged") for name, value in (
        ("max_episode_steps", 0), ("max_episode_steps", 200.0), ("max_episode_steps", 10**400), ("max_return", True),
        ("max_return", 10**400), ("obs_shape", "4"), ("obs_shape", [True]), ("obs_shape", [[4]]), ("more", 1),
    )),
]  # fmt: skip


DAMAGED_REWARDS: list[tuple[dict[str, Any], dict[str, Tensor | None], str]] = [
    ({}, {"reward.1.bias": None}, "tensor reward.1.bias is missing"),
    ({"config": REWARD_CONFIG | {"mode": 2}}, {}, "tensor reward.0.weight is F32 [5, 5]; allowed: F32 [5, 3]"),
    ({"config": REWARD_CONFIG | {"mode": 9}}, {}, "its setting mode is 9; allowed: 0, 1, 2, 3, 4, 5, 6, 7, 8, 101"),
    ({"config": REWARD_CONFIG | {"rn_terminal": "zeroo"}}, {}, "is 'zeroo'; allowed: free, zero"),
    ({"config": REWARD_CONFIG | {"rn_output_scale": "1"}}, {}, "its setting rn_output_scale is '1'; allowed: number"),
    ({"config": REWARD_CONFIG | {"rn_input_spread": [1, 0, 1]}}, {}, "list of numbers other than 0, at most 512"),
    ({"config": REWARD_CONFIG | {"rn_input_center": [1, 0]}}, {}, "its spaces are damaged"),
    *(({"spaces": {"obs_shape": [3], "actions": {"low": [-1], "high": [1]}, "max_episode_steps": 9, "max_return": None}
        | changes}, {}, line) for changes, line in (
        ({}, "its spaces are damaged"), ({"info": [1, 2]}, "its spaces are damaged"),
        ({"info": ["x"] * 65}, "its spaces are damaged"),
        ({"info": ["speed"]}, "tensor reward.0.weight is F32 [5, 5]; allowed: F32 [5, 4]"))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "header", "tensors", "line"),
    [("mdp", *case) for case in DAMAGED] + [("reward-3", *case) for case in DAMAGED_REWARDS],
)
def test_edited_file_is_refused(
    path: Path, kind: str, header: dict[str, Any], tensors: dict[str, Any], line: str
) -> None:
    written(path, kind)
    with safe_open(path, "pt") as file:
        now = json.loads(file.metadata()["understudy"]) | {"digest": None} | header
    layers: dict[str, Any] = load_file(path) | tensors
    text = json.dumps({name: value for name, value in now.items() if value is not None})
    save_file({name: layer for name, layer in layers.items() if layer is not None}, path, {"understudy": text})
    assert line in one_line(path)


# Content that only the trainer, which knows the real environment, can refuse, and its message.
TRAINER_ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("mdp-acrobot", {"game": "cartpole"}, "its obs_shape is (6,); allowed with cartpole: (4,)"),
    ("mdp-continuous", {"game": "mountaincar"}, "allowed with mountaincar: Discrete(n=3)"),
    ("mdp", {"game": "cartpoel"}, "its gamename is 'cartpoel'; did you mean 'cartpole'?"),
    *(("mdp", {"description": {"settings": changes}}, f"its description.settings are damaged ({line}")
      for changes, line in (({"lr": 10**400}, "lr is 1000"), ({"lr": [1, 2]}, "lr is '1 2'"))),
]  # fmt: skip


@pytest.mark.parametrize("kind, changes, line", TRAINER_ERRORS)
def test_trainer_refuses_a_file_for_another_environment(
    path: Path, kind: str, changes: dict[str, Any], line: str, capsys: Shown
) -> None:
    written(path, kind, **changes)
    assert str(path) in refused(trainer.main, ["--eval_agent", str(path)], line, capsys)


@pytest.mark.parametrize("kind", ["SE", "RN"])
def test_ranges_equal_those_of_the_flags(kind: str) -> None:
    config_class = family(kind).config
    fields = {field.name: field.metadata for field in dataclasses.fields(config_class)}
    names = fields["proxy"]["choices"]
    assert all(files.implementation_of(name) == kind for name in names)
    settings = {name: rule for proxy in names for name, rule in FILE_KINDS[proxy].settings.items()}
    for name, (good, words) in settings.items():
        setting_kind, limits = field_types(config_class)[name], bounds(field_types(config_class)[name], fields[name])
        if not setting_kind.is_list and name != "rn_output_scale":
            assert words == allowed(setting_kind, fields[name]), name
        if setting_kind.item is int and limits:
            assert good(limits["minimum"]) and good(limits["maximum"]), name
            assert not good(limits["minimum"] - 1) and not good(limits["maximum"] + 1) and not good(1.0), name
        assert good(None) == setting_kind.optional, name
        for choice in fields[name]["choices"]:
            assert good(choice), (name, choice)
    assert set(family("RN").config.__dataclass_fields__["mode"].metadata["choices"]) == set(MODES)


def test_proxies_are_loaded_by_name_path_or_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(understudy.files, "SHIPPED", tmp_path / "pretrained")
    with pytest.raises(ProxyError, match="proxy is 'cartpole-mdp'; allowed: a .safetensors file$"):
        understudy.load("cartpole-mdp")
    run, file = tmp_path / "version_0", tmp_path / "pretrained" / "cartpole-mdp.safetensors"
    for proxy_path in (run / "proxy.safetensors", file):
        proxy_path.parent.mkdir()
        written(proxy_path)
    assert understudy.pretrained() == {"cartpole-mdp": file}
    assert understudy.load("cartpole-mdp").path == file == understudy.load(file).path
    assert understudy.load("version_0").path == Path("version_0/proxy.safetensors")
    with pytest.raises(ProxyError) as caught:
        understudy.load("cartpole-mpd")
    hint = "did you mean 'cartpole-mdp'? Allowed: a .safetensors file, or one of cartpole-mdp"
    assert str(caught.value) == f"proxy is 'cartpole-mpd'; {hint}"
    with pytest.raises(ProxyError, match="did you mean 'version_0/proxy.safetensors'"):
        understudy.load("version_0/prxy.safetensors")
