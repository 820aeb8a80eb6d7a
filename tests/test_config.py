"""Settings from flags, files and keyword arguments, their written forms, and their ranges."""

import dataclasses
import json
import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from control.cli.options import command_line, flags, parameters
from control.cli.parse import parse, settings_from
from control.cli.run_settings import COMMANDS, RunConfig
from control.cli.settings import as_dict, effective_values, from_dict, replaced_settings, to_yaml
from control.cli.words import Flag
from envs.names import GAMES
from helpers import yaml_file
from inputs import values_of
from models.registry import default_config, family, implementations
from models.settings import SettingError, bounds, check, check_value, field_types, names_with

AGENTS = [name for name in implementations() if family(name).learns_from != "evolution"]


def test_defaults_are_the_published_run() -> None:
    settings = parse([])
    assert (settings.run, settings.command, settings.explicit_names) == (RunConfig(), {}, frozenset())
    assert settings.agent == default_config("UDRL", "lunarlander")
    assert settings.run.epochs == 2000
    assert settings.agent == parse(["--gamename", "LunarLander-v3"]).agent
    assert parse(["--gamename", "LunarLander-v3"]).run.gamename == "lunarlander"  # an alias


@pytest.mark.parametrize("name", implementations())
def test_settings_of_runs_commands_and_agents_have_different_names(name: str) -> None:
    defaults = parse(["--implementation", name])
    may_repeat = names_with(RunConfig, "family_default")  # settings of a run that a family may declare again
    names = [
        field for kind in (RunConfig, *COMMANDS.values()) for field in field_types(kind) if field not in may_repeat
    ]
    names += [*field_types(type(defaults.proxy)), *field_types(type(defaults.agent))]
    assert not [name for name in set(names) if names.count(name) > 1 and name not in may_repeat]


@pytest.mark.parametrize("name", implementations())
def test_defaults_are_in_range(name: str) -> None:
    for game in {game for _, game, *_ in family(name).environment_presets} | {"cartpole"}:
        check(default_config(name, game))


def test_flags_override_files_and_presets(tmp_path: Path) -> None:
    sparse = ["--gamename", "lunarlander-sparse"]
    preset = default_config("UDRL", "lunarlander-sparse")
    assert preset.lr != default_config("UDRL", "lunarlander").lr
    assert parse(sparse).agent.lr == preset.lr
    file = ["--config", yaml_file(tmp_path, "lr: 1e-2\nbatch_size: 7\n")]
    assert parse(sparse + file).agent.lr == 1e-2
    settings = parse(["--lr", "3e-2", *file, *sparse])
    assert (settings.agent.lr, settings.agent.batch_size, settings.agent.last_few) == (3e-2, 7, preset.last_few)
    assert settings.explicit_names == {"lr", "batch_size", "gamename"}
    assert parse(["--config", yaml_file(tmp_path, "# nothing yet\n")]) == parse([])
    values = {"implementation": "RCP-A", "lr": 1e-2, "hidden_sizes": [64, 32], "command": {"return": 100}}
    (tmp_path / "settings.json").write_text(json.dumps(values | {"record": True, "time_limit": None}))
    settings = parse(["--config", str(tmp_path / "settings.json")])
    assert (settings.agent.lr, settings.agent.hidden_sizes, settings.command) == (0.01, (64, 32), {"return": 100.0})
    assert settings.run.record and settings.run.time_limit is None


FLAG_VALUES = [
    ("--lr 1e-3", "lr", 1e-3), ("--lr=1", "lr", 1.0), ("--lr 1 --lr 2", "lr", 2.0),
    ("--hidden_sizes 64,32", "hidden_sizes", (64, 32)), ("--hidden_sizes 64 32", "hidden_sizes", (64, 32)),
    ("--reward_scale none", "reward_scale", None), ("--reward_scale=null", "reward_scale", None),
    ("--expo_weighting", "expo_weighting", True), ("--expo_weighting true", "expo_weighting", True),
    ("--expo_weighting=False", "expo_weighting", False),
    ("--expo_weighting --no_expo_weighting", "expo_weighting", False),
    ("--no_checkpoint", "no_checkpoint", True), ("--recording_epoch_interval -1", "recording_epoch_interval", -1),
    ("--target_return -1.5", "target_return", -1.5), ("--exp_name 7", "exp_name", "7"),
    ("--seed 007", "seed", 7), ("--seed 0x10", "seed", 16),
]  # fmt: skip


@pytest.mark.parametrize(("words", "field", "value"), FLAG_VALUES)
def test_flag_values_are_parsed(words: str, field: str, value: Any) -> None:
    settings = parse(shlex.split(words))
    actual = getattr(settings.run if hasattr(settings.run, field) else settings.agent, field)
    assert actual == value and type(actual) is type(value)


def test_tables_train_for_fewer_epochs() -> None:
    settings = from_dict({"implementation": "QLearning", "gamename": "cliff"})
    assert (settings.epochs, from_dict(as_dict(settings)).epochs) == (400, 400)
    assert "--epochs" not in command_line(settings) and "--epochs 2000" in command_line(settings.replace(epochs=2000))
    assert from_dict({"implementation": "SARSA", "total_steps": 700}).epochs == 2


def test_preset_changes_defaults(tmp_path: Path) -> None:
    def agent_settings(*argv: str) -> tuple[str, float, float]:
        agent = parse(["--implementation", "CPG", *argv]).agent
        return agent.preset, agent.discount, agent.beta

    assert agent_settings() == agent_settings("--preset", "published") == ("published", 0.995, 0.7)
    assert agent_settings("--preset", "skeleton") == ("skeleton", 0.99, 0.5)
    assert agent_settings("--beta", "0.1", "--preset", "skeleton") == ("skeleton", 0.99, 0.1)
    assert agent_settings("--config", yaml_file(tmp_path, "beta: 0.2\npreset: skeleton\n")) == ("skeleton", 0.99, 0.2)
    assert parse(["--implementation", "AAC", "--preset", "skeleton"]).agent.beta == 1.0
    ranks = parse(["--preset", "ranks", "--gamename", "lunarlander-sparse"]).agent
    assert (ranks.desire_rank, ranks.desire_rtg, ranks.desire_horizon, ranks.lr) == (True, False, False, 1e-3)
    assert ranks.discount == 1.0 and parse(["--preset", "ranks"]).agent.discount == 0.99


def test_replace_checks_values() -> None:
    settings = parse(["--implementation", "RCP-R", "--seed", "3"])
    changed = settings.replace(lr=1, epochs=5, command={"return": 2})
    assert (changed.agent.lr, changed.run.epochs, changed.command) == (1.0, 5, {"return": 2.0})
    assert (changed.run.seed, changed.explicit_names) == (3, settings.explicit_names)
    for wrong, message in ({"lr": -1}, "lr is -1"), ({"lrr": 1}, "lrr is unknown"):
        with pytest.raises(SettingError, match=message):
            settings.replace(**wrong)
    with pytest.raises(SettingError, match="epochs is True"):  # a bool is an int in Python
        check(RunConfig(epochs=True))


def test_evaluation_reads_the_settings_of_a_file(tmp_path: Path) -> None:
    written = yaml_file(tmp_path, to_yaml(parse(["--implementation", "RCP-A", "--lr", "1"])))
    settings = parse(["--config", written, "--eval_agent", __file__, "--command.return", "250", "--record"])
    assert settings.agent is None
    assert settings.command == {"return": 250.0} and settings.subcommand.eval_agent == __file__ and settings.run.record
    assert {"command", "eval_agent", "record"} <= settings.explicit_names
    assert parse(["--eval_agent", __file__]).explicit_names == {"eval_agent"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ""),
        ({"implementation": "RCP-R", "lr": 1, "hidden_sizes": [8]}, "--implementation RCP-R --lr 1 --hidden_sizes 8"),
        ({"gamename": "procmaze", "grid_size": 5, "record": False}, "--gamename procmaze --grid_size 5 --no_record"),
        ({"command": {"return": 250}, "logdir": Path("a/b")}, "--command.return 250 --logdir a/b"),
        ({"seed": np.int64(3), "lr": np.float32(0.5), "record": np.bool_(True)}, "--seed 3 --lr 0.5 --record"),
        ({"eval_agent": Path(__file__), "tau": 0.5}, f"--eval_agent {__file__} --tau 0.5"),
        ({"plot": [Path(__file__)], "plot_out": None}, f"--plot {__file__} --plot_out null"),
    ],
)
def test_keywords_equal_flags(values: dict[str, Any], words: str) -> None:
    assert settings_from(**values) == parse(words.split())


LINES = [
    "",
    "--implementation RCP-R --hidden_sizes 8 4 --exp_name 'a b' --command.return -3 --seed 3",
    "--implementation SE --gamename pendulum --proxy bandit --test_limit 50",
    "--implementation SE --gamename acrobot --proxy bandit --no_mirrored --test_limit 20 --vary lr batch_size",
    "--implementation SE --gamename cartpole --agent DuelingDDQN --preset paper --seed 3",
    "--implementation SE --gamename cartpole --agent PPO,DDQN --preset broad",
    "--preset ranks --rank_max 0.9",
    "--implementation ER --preset panflute_low --num_pipes 3 --time_limit 7 --no_record",
    "--implementation DDQN --total_steps 900",
    "--implementation DDQN --total_steps 900 --epochs 3",
    "--implementation RN --gamename cliff --total_steps 900",
    "--implementation SE --gamename pendulum --proxy bandit --agent DDPG",
    *(f"--implementation SE --gamename {game} --proxy bandit --preset {preset}{agent}"
      for game, preset, agents in (
          ("cartpole", "published", ("", " --agent DDQN", " --agent PPO,DDQN", " --agent PPO")),
          ("pendulum", "published", ("", " --agent TD3", " --agent PPO,SAC,DDPG,TD3")),
          ("pendulum", "two_stage", ("", " --agent TD3")), ("cartpole", "recipe", (" --agent PPO,DDQN",)),
      ) for agent in agents),
]  # fmt: skip


@pytest.mark.parametrize("words", LINES)
def test_command_line_round_trip(words: str) -> None:
    settings = parse(shlex.split(words))
    python, script, *line = shlex.split(command_line(settings))
    assert (python, script) == ("python", "trainer.py")
    assert dataclasses.replace(parse(line), explicit_names=settings.explicit_names) == settings
    assert " null" not in " ".join(line).replace("--solved_reward null", "")  # a default that --test_limit changes
    assert "--exp_name" not in command_line(settings, without=("exp_name",))
    assert command_line(parse(["--record"])).endswith("--seed 25 --record")


@hypothesis_settings(max_examples=25)
@given(data=st.data(), name=st.sampled_from(AGENTS))
def test_yaml_round_trip(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, name: str) -> None:
    changes: dict[str, Any] = {}
    # Files must exist, other tests cover modes, and numbers of cores differ between machines.
    fixed = {"implementation", "gamename", "eval_agent", "reload", "use_tune", "search_space", "plot", "resume",
             "preset", "logdir", "ray_address", "plot_out", "plot_format", "plot_theme", "plot_log", "film", "film_out",
             "report", "report_out", "num_workers", "num_threads", "max_concurrent_trials", "desire_rtg",
             "desire_cum_rew", "desire_horizon", "desire_advantage", "desire_rank"}  # fmt: skip
    agent = default_config(name, "cartpole")
    # The settings of ER include total_steps, which then cannot be null.
    run_fields = [field for field in dataclasses.fields(RunConfig) if not hasattr(agent, field.name)]
    for part, part_fields in ((RunConfig, run_fields), (type(agent), dataclasses.fields(agent))):
        candidates = [field for field in part_fields if field.name not in fixed | {*replaced_settings(name)}]
        fields = st.lists(st.sampled_from(candidates), max_size=6, unique_by=lambda field: field.name)
        for field in data.draw(fields):
            changes[field.name] = data.draw(values_of(field_types(part)[field.name], field.metadata), field.name)
    settings = parse(["--implementation", name, "--gamename", "cartpole", "--command.return", "1.5"]).replace(**changes)
    assume(settings.agent.validate() is None)
    assume(settings.run.seed + settings.run.num_seeds <= 2**63)
    assume(settings.epochs is not None or settings.total_steps is not None)

    restored = parse(["--config", yaml_file(tmp_path_factory.mktemp("run"), to_yaml(settings))])
    written = effective_values(settings)
    assert {name: as_dict(restored)[name] for name in written} == written and effective_values(restored) == written
    assert from_dict(as_dict(settings)) == dataclasses.replace(settings, explicit_names=frozenset())


NUMBERS = (int, float)
FAMILIES = list({family(name).config: name for name in reversed(implementations())}.values())


def numeric(flags_by_name: dict[str, Flag]) -> list[Flag]:
    return [flag for flag in flags_by_name.values() if flag.type.item in NUMBERS]


@pytest.mark.parametrize("name", implementations())
def test_numbers_have_finite_ranges_and_texts_a_length(name: str) -> None:
    flags_by_name = flags(name, "cartpole") | {n: f for game in GAMES for n, f in parameters(game).items()}
    assert len(numeric(flags_by_name)) > 30
    for flag in flags_by_name.values():
        limits = bounds(flag.type, flag.meta)
        if flag.type.item in NUMBERS and not flag.meta["choices"]:
            assert len(limits) == 2 and all(map(math.isfinite, limits.values())), flag
        elif flag.type.item is str:
            assert flag.meta["choices"] or limits["maximum"] <= 4096, flag
        assert not flag.type.is_list or 1 <= flag.meta["max_items"] <= 10_000


def outside(flag: Flag, bound: str, value: Any) -> Any:
    if bound in ("above", "below"):
        return value
    up = bound == "maximum"
    return value + (1 if up else -1) if flag.type.item is int else math.nextafter(value, math.inf if up else -math.inf)


@pytest.mark.parametrize("name", [*FAMILIES, *sorted({game.base_name for game in GAMES.values() if game.parameters})])
def test_value_just_outside_its_range_is_refused(name: str) -> None:
    words = {"above": "greater than", "minimum": "at least", "below": "less than", "maximum": "at most"}
    for flag in numeric(parameters(name) if name in GAMES else flags(name, "cartpole")):
        for bound, value in bounds(flag.type, flag.meta).items():
            item = outside(flag, bound, value)
            if bound in ("minimum", "maximum"):  # the others are outside themselves
                check_value(flag.name, (value,) if flag.type.is_list else value, flag.type, flag.meta)
            with pytest.raises(SettingError, match=f"^{flag.name} is .*{words[bound]} {value}".replace("+", r"\+")):
                check_value(flag.name, (item,) if flag.type.is_list else item, flag.type, flag.meta)


def test_a_shorter_test_has_no_return_that_solves_the_game() -> None:
    """Each step of these games costs, so any policy might reach the return of whole episodes."""
    words = "--implementation SE --gamename pendulum --proxy bandit"
    limited, given = f"{words} --test_limit 50", f"{words} --test_limit 50 --solved_reward -60"
    values = [parse(line.split()).value("solved_reward") for line in (words, limited, given)]
    assert values == [-300.0, None, -60.0]
