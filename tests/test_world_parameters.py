"""Parameters of worlds: in a game's name, as flags, in files; and that all who play the game get the same."""

import dataclasses
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from control.cli.parse import as_dict, from_dict, parse, to_yaml
from control.storage.run_dir import parent
from envs.buttongrid import ButtonGrid
from envs.make import make_dynamics, make_environment
from envs.names import GAMES, resolve
from models.registry import family, implementations
from models.settings import SettingError

FIVE = "procmaze,grid_size=5,teleport_on_termination=false"
UDRL = ["--implementation", "UDRL"]


def refused(line: str, *argv: str) -> None:
    with pytest.raises(SettingError) as error:
        parse([*UDRL, *argv])
    assert str(error.value) == line


def game_of(*argv: str) -> str:
    return parse([*UDRL, *argv]).run.gamename


def yaml_file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", [game.name for game in GAMES.values() if game.parameters])
def test_constructors_have_these_parameters_and_defaults(name: str) -> None:
    game = GAMES[name]
    module, _, of_class = game.dynamics.partition(":")
    signature = inspect.signature(getattr(importlib.import_module(module), of_class)).parameters
    taken = {key: value.default for key, value in signature.items() if key != "max_episode_steps"}
    assert game.parameters is not None and taken == dataclasses.asdict(game.parameters())


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("procmaze,teleport_on_termination=no,grid_size=5", FIVE),
        (FIVE, FIVE),
        ("procmaze,grid_size=4,teleport_on_termination=true", "procmaze"),
        ("procmaze,grid_size=10", "procmaze,grid_size=10"),
        ("opengrid,grid_size=10", "opengrid"),
        ("understudy/OpenGrid-v0,grid_size=3", "opengrid,grid_size=3"),
    ],
)
def test_a_name_has_sorted_what_differs_from_the_games_own(name: str, canonical: str) -> None:
    game = resolve(name)
    assert game.name == canonical and game.base_name == canonical.split(",")[0]
    assert resolve(canonical) == game


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("procmaze,grid_sise=5", "'grid_sise' is unknown; did you mean 'grid_size'?"),
        ("panflute,", "'' is unknown; allowed: num_pipes, spontaneous_reward"),
        ("procmaze,grid_size", "grid_size needs a value: grid_size=4"),
        ("procmaze,grid_size=1", "grid_size is 1; allowed: integer, at least 2, at most 100"),
        ("procmaze,grid_size=[", "grid_size is '['; allowed: integer, at least 2, at most 100"),
        ("procmaze,grid_size=5,grid_size=6", "grid_size is given twice"),
        ("buttongrid,grid_size=3,num_buttons=10", "num_buttons is 10; allowed: integer, at least 1, at most 9"),
    ],
)
def test_wrong_names_get_one_line(name: str, line: str) -> None:
    refused(f"gamename is {name!r}: {line}", "--gamename", name)


def test_games_without_parameters_have_none_in_their_names() -> None:
    refused("gamename is 'cartpole,grid_size=4'; allowed: cartpole, which has no parameters",
            "--gamename", "cartpole,grid_size=4")  # fmt: skip
    with pytest.raises(SettingError, match="gamename is 'procmase'; did you mean 'procmaze'"):
        resolve("procmase,grid_size=4")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--gamename procmaze --grid_size 5 --no_teleport_on_termination", FIVE),
        ("--grid_size=5 --gamename procmaze --teleport_on_termination false", FIVE),
        ("--gamename procmaze,grid_size=6 --grid_size 5 --teleport_on_termination no", FIVE),
        ("--gamename procmaze --grid_size 4", "procmaze"),
        ("--gamename procmaze,grid_size=6 --grid_size 4", "procmaze"),
        ("--gamename buttongrid --grid_size 3 --num_buttons 9", "buttongrid,grid_size=3,num_buttons=9"),
        ("--gamename panflute --num_pipes 2 --spontaneous_reward", "panflute,num_pipes=2"),
    ],
)
def test_flags_become_part_of_the_name(words: str, name: str) -> None:
    assert game_of(*words.split()) == name


@pytest.mark.parametrize(
    ("text", "words", "name"),
    [
        ("gamename: procmaze\ngrid_size: 5\nteleport_on_termination: no", "", FIVE),
        ("gamename: procmaze\nno_teleport_on_termination: yes", "--grid_size 5", FIVE),
        ("gamename: procmaze,grid_size=5", "--no_teleport_on_termination", FIVE),
        ("gamename: procmaze,grid_size=7,teleport_on_termination=false", "--grid_size 5", FIVE),
        # A name that is typed goes before the file's own key, and the file's key before a name in the file.
        ("gamename: procmaze\ngrid_size: 7", "--gamename procmaze,grid_size=4", "procmaze"),
        ("gamename: procmaze,grid_size=7\ngrid_size: 4", "", "procmaze"),
        ("gamename: procmaze,grid_size=7", "--gamename panflute", "panflute"),
    ],
)
def test_flags_go_before_the_file(tmp_path: Path, text: str, words: str, name: str) -> None:
    assert game_of("--config", yaml_file(tmp_path, text), *words.split()) == name


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--gamename procmaze --grid_size 1", "grid_size is 1; allowed: integer, at least 2, at most 100"),
        ("--gamename procmaze --grid_size x", "grid_size is 'x'; allowed: integer, at least 2, at most 100"),
        ("--gamename procmaze --grid_size", "--grid_size needs a value; allowed: integer, at least 2, at most 100"),
        ("--gamename panflute --num_pipes 101", "num_pipes is 101; allowed: integer, at least 1, at most 100"),
        (
            "--gamename buttongrid,grid_size=3 --num_buttons 10",
            "num_buttons is 10; allowed: integer, at least 1, at most 9",
        ),
        (
            "--gamename procmaze,grid_size=5 --num_pipes 3",
            "--num_pipes has no effect with gamename procmaze; it is a parameter of panflute",
        ),
        (
            "--grid_size 3",
            "--grid_size has no effect with gamename lunarlander; it is a parameter of procmaze, opengrid, buttongrid",
        ),
        ("--gamename procmaze --grid_sise 5", "--grid_sise is unknown; did you mean '--grid_size'?"),
        ("--eval_agent tests --grid_size 5", "--grid_size has no effect with --eval_agent: the checkpoint holds it"),
    ],
)
def test_wrong_parameters_get_one_line(words: str, line: str) -> None:
    refused(line, *words.split())


def test_a_wrong_parameter_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "gamename: procmaze\ngrid_size: 1\n")
    refused(f"{file}: grid_size is 1; allowed: integer, at least 2, at most 100", "--config", file)
    refused("grid_size is 0; allowed: integer, at least 2, at most 100", "--config", file, "--grid_size", "0")
    line = (
        f"{file}: grid_size has no effect with gamename panflute; it is a parameter of procmaze, opengrid, buttongrid"
    )
    refused(line, "--config", file, "--gamename", "panflute")


def test_help_lists_parameters_with_the_games_values(capsys: pytest.CaptureFixture[str]) -> None:
    for name, size in (("procmaze", 4), (FIVE, 5), ("opengrid", 10)):
        with pytest.raises(SystemExit):
            parse([*UDRL, "--gamename", name, "--help"])
        shown = " ".join(capsys.readouterr().out.split())
        assert f"cells along a side of the grid (default: {size}; allowed: integer, at least 2, at most 100)" in shown
        assert "--num_pipes" not in shown
    with pytest.raises(SystemExit):
        parse([*UDRL, "--help"])
    assert "--grid_size" not in capsys.readouterr().out


def test_settings_of_such_a_game_survive_files_and_have_a_plain_folder(tmp_path: Path) -> None:
    settings = parse([*UDRL, "--gamename", FIVE])
    assert settings.agent == parse([*UDRL, "--gamename", "procmaze"]).agent
    assert from_dict(as_dict(settings)).run == settings.run
    assert parse(["--config", yaml_file(tmp_path, to_yaml(settings))]).run == settings.run
    assert parent(settings.run).parts[1] == "procmaze_grid_size=5_teleport_on_termination=false"
    assert parse(["--eval_agent", str(tmp_path), "--gamename", "procmaze", "--grid_size", "5",
                  "--no_teleport_on_termination"]).run.gamename == FIVE  # fmt: skip


def test_what_is_played_and_what_is_drawn_are_the_same_world() -> None:
    dynamics: Any = make_dynamics(FIVE)
    assert (dynamics.grid_size, dynamics.teleports) == (5, False)
    played, drawn = make_environment(FIVE, 1, 1), make_environment(FIVE, 1, 1, render=True)
    for environment in (played, drawn):
        assert environment.spaces.obs_shape == (100,)
        assert environment.spaces.max_episode_steps == 100 and environment.spaces.max_return == -1
        environment.reset(torch.tensor([[3]]))
    inner: Any = drawn
    assert inner.frame(0, 0).shape == (5 * 24, 5 * 24, 3)
    drawn.close()
    assert isinstance(make_dynamics("buttongrid,num_buttons=1", 7), ButtonGrid)
    bound = make_environment("panflute,num_pipes=1", 1, 1, render=True).spaces.max_return
    assert bound == 100


@pytest.fixture
def presets(monkeypatch: pytest.MonkeyPatch) -> None:
    games = {"maze_low": "procmaze", "flute_low": "panflute"}
    monkeypatch.setitem(implementations(), "UDRL", dataclasses.replace(family("UDRL"), preset_game=games.get))


def which(words: dict[str, list[str]], *asked: str) -> tuple[str, str]:
    from control.cli.parse import _choose

    choice = _choose(words, asked)
    return choice.implementation, choice.game


@pytest.mark.usefixtures("presets")
def test_a_preset_of_a_game_chooses_it() -> None:
    assert which({"preset": ["maze_low"]}, "preset")[1] == "procmaze"
    assert which({"preset": ["other"]}, "preset")[1] == "lunarlander"
    assert which({"preset": ["maze_low"], "gamename": ["procmaze,grid_size=5"]})[1] == "procmaze,grid_size=5"
    assert which({"preset": ["other"], "gamename": ["panflute"]})[1] == "panflute"


@pytest.mark.usefixtures("presets")
@pytest.mark.parametrize(
    ("asked", "leave"),
    [
        (("preset", "gamename"), "--gamename"),
        (("gamename",), "--gamename"),
        (("preset",), "--preset"),
        ((), "gamename"),
    ],
)
def test_a_preset_of_another_game_is_refused(asked: tuple[str, ...], leave: str) -> None:
    with pytest.raises(SettingError) as error:
        which({"preset": ["maze_low"], "gamename": ["panflute"]}, *asked)
    line = f"preset is 'maze_low', but gamename is 'panflute'; leave out {leave}, or take a preset of panflute"
    assert str(error.value) == line and error.value.name == ("" if asked else "gamename")
