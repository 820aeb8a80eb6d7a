"""Parameters of environments: in names, as flags, in files; training, evaluation and films get the same ones."""

import dataclasses
import importlib
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainer
from control.cli.parse import parse
from control.cli.settings import as_dict, from_dict, to_yaml
from control.storage.run_dir import parent
from envs.gridworld import ButtonGrid
from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.make import make_dynamics, make_environment
from envs.names import GAMES, CartPoleParameters, RepeatParameters, is_continuous, resolve
from fake_runs import Shown
from helpers import yaml_file
from models.settings import SettingError
from models.spaces import Continuous

CHECKED = (CartPoleParameters, RepeatParameters)  # the constructors of other games take all parameters as they are
FIVE = "procmaze,grid_size=5,teleport_on_termination=false"


@pytest.mark.parametrize("name", [game.name for game in GAMES.values() if game.parameters in CHECKED and game.dynamics])
def test_constructors_have_these_parameters_and_defaults(name: str) -> None:
    game = GAMES[name]
    module, _, of_class = game.dynamics.partition(":")
    signature = inspect.signature(getattr(importlib.import_module(module), of_class)).parameters
    defaults = {key: value.default for key, value in signature.items() if key not in ("max_episode_steps", "physics")}
    if "physics" in signature:  # which are these parameters
        defaults |= dataclasses.asdict(getattr(importlib.import_module(module), of_class)().physics)
    assert game.parameters is not None and defaults == dataclasses.asdict(game.parameters())


def test_arguments_of_gymnasium_environments() -> None:
    lander = make_environment("LunarLander-v3,gravity=-5.0,continuous=true", 1, 1)
    assert isinstance(lander, GymnasiumEnvironment) and isinstance(lander.spaces.actions, Continuous)
    instance: Any = lander._envs[0]
    assert instance.unwrapped.gravity == -5.0
    assert lander.spaces.max_return is None  # unknown for other physics
    lander.close()
    assert is_continuous("LunarLander-v3,continuous=true") and not is_continuous("LunarLander-v3")
    with pytest.raises(SettingError, match="unexpected keyword argument 'wind'"):
        make_environment("LunarLander-v3,wind=true", 1, 1)
    with pytest.raises(SettingError, match="gravity needs a value: gravity=value"):
        resolve("LunarLander-v3,gravity")


NAMES = [  # what a file says, what is typed, and the environment that is played
    ("", "--gamename procmaze,teleport_on_termination=no,grid_size=5", FIVE),
    ("", "--gamename understudy/OpenGrid-v0,grid_size=3", "opengrid,grid_size=3"),
    ("", "--gamename procmaze --grid_size 5 --no_teleport_on_termination", FIVE),
    ("", "--gamename procmaze,grid_size=6 --grid_size 5 --teleport_on_termination no", FIVE),
    ("", "--gamename buttongrid --grid_size 3 --num_buttons 9", "buttongrid,grid_size=3,num_buttons=9"),
    ("", "--gamename panflute --num_pipes 2 --spontaneous_reward", "panflute,num_pipes=2"),
    # Flags go before the file.
    ("gamename: procmaze\ngrid_size: 5\nteleport_on_termination: no", "", FIVE),
    ("gamename: procmaze,grid_size=7,teleport_on_termination=false", "--grid_size 5", FIVE),
    # A name that is typed goes before the file's own key, and the file's key before a name in the file.
    ("gamename: procmaze\ngrid_size: 7", "--gamename procmaze,grid_size=4", "procmaze"),
    ("gamename: procmaze,grid_size=7\ngrid_size: 4", "", "procmaze"),
    # Arguments of Gymnasium environments, of any name and type.
    ("", "--gamename LunarLander-v3,gravity=-5,enable_wind=True", "lunarlander,enable_wind=true,gravity=-5"),
    ("", '--gamename FrozenLake-v1,map_name="8x8",is_slippery=False', "FrozenLake-v1,is_slippery=false,map_name=8x8"),
    # A preset of an environment chooses it.
    ("implementation: ER", "--preset buttongrid_low", "buttongrid"),
    ("implementation: ER", "--preset procmaze_low --gamename procmaze,grid_size=5", "procmaze,grid_size=5"),
    ("implementation: ER\npreset: shipped", "--gamename panflute", "panflute"),
]


@pytest.mark.parametrize(("text", "words", "name"), NAMES)
def test_the_environment_that_is_played(tmp_path: Path, text: str, words: str, name: str) -> None:
    file = ["--config", yaml_file(tmp_path, text)] if text else []
    assert parse([*file, *words.split()]).run.gamename == name
    assert resolve(name).name == name and resolve(name).base_name == name.split(",")[0]


def test_settings_of_such_a_game_survive_files_and_have_a_plain_folder(tmp_path: Path) -> None:
    settings = parse(["--gamename", FIVE])
    assert settings.agent == parse(["--gamename", "procmaze"]).agent
    assert from_dict(as_dict(settings)).run == settings.run
    assert parse(["--config", yaml_file(tmp_path, to_yaml(settings))]).run == settings.run
    assert parent(settings.run).parts[1] == "procmaze_grid_size-5_teleport_on_termination-false"
    assert parse(["--eval_agent", str(tmp_path), "--gamename", "procmaze", "--grid_size", "5",
                  "--no_teleport_on_termination"]).run.gamename == FIVE  # fmt: skip


def test_what_is_played_is_what_is_drawn() -> None:
    dynamics: Any = make_dynamics(FIVE)
    assert (dynamics.grid_size, dynamics.teleports) == (5, False)
    played_env, rendered_env = make_environment(FIVE, 1, 1), make_environment(FIVE, 1, 1, render=True)
    for environment in (played_env, rendered_env):
        assert environment.spaces.obs_shape == (100,)
        assert environment.spaces.max_episode_steps == 100 and environment.spaces.max_return == -1
        environment.reset(torch.tensor([[3]]))
    assert rendered_env.frame(0, 0).shape == (5 * 24, 5 * 24, 3)  # type: ignore[attr-defined]
    rendered_env.close()
    assert isinstance(make_dynamics("buttongrid,num_buttons=1"), ButtonGrid)
    assert make_environment("panflute,num_pipes=1", 1, 1, render=True).spaces.max_return == 100
    for name in ("procmaze", "opengrid", "buttongrid", "panflute"):
        limits = [make_environment(name, 1, 1, render=render).spaces.max_episode_steps for render in (False, True)]
        assert limits == [100, 100]


@pytest.mark.parametrize(("words", "game"), [
    ("--half_length 1", "cartpole,half_length=1.0"),
    ("--gamename cartpole,gravity=3 --half_length 1", "cartpole,gravity=3.0,half_length=1.0"),
    ("--gamename cartpole-200", "cartpole-200"),
    ("--gamename CartPole-v1", "cartpole"),
])  # fmt: skip
def test_a_checkpoint_is_evaluated_elsewhere(words: str, game: str, finished: Any, capsys: Shown) -> None:
    """Where the spaces are the same, which is said."""
    run = trainer.load(finished(implementation="DDQN")[0])
    argv = ["--eval_agent", str(run.path), "--num_eval_episodes", "3", *words.split()]
    assert trainer.main(argv) == 0
    output = capsys.readouterr().out
    trained_on = "" if game == "cartpole" else " (trained on cartpole)"
    assert output.startswith(f"DDQN on {game}{trained_on}, epoch ")
    evaluation, default_evaluation = run.evaluate(3, gamename=game), run.evaluate(3)
    assert f" {evaluation.mean:.1f} " in output and np.array_equal(evaluation.returns, default_evaluation.returns) == (
        "," not in game
    )
