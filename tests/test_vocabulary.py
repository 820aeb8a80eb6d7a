"""One vocabulary: the same words train every algorithm, and other libraries' and earlier words mean ours."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import trainer
from control.cli.parse import as_dict, from_dict, parse, settings_from
from control.cli.settings import acting
from control.commands.search_space import search_space, trial_settings
from control.storage import checkpoints
from control.storage.run_dir import read_metrics
from fake_runs import Shown
from helpers import same_runs
from models.registry import agent_class, implementations
from models.settings import SettingError
from models.spaces import Discrete
from models.vocabulary import DEPTHS, MODE_NAMES, WIDTHS, aliases_of
from understudy.kinds import MODES

WORDS = "--env CartPole-v1 --total_steps 60 --lr 1e-3 --discount 0.9 --hidden_sizes 8,8 --activation tanh --seed 3"


def cartpole_implementations() -> Iterator[str]:
    """The implementations that play CartPole."""
    for name, family in implementations().items():
        if family.learns_from != "evolution":
            kind = agent_class(name)
            if Discrete in kind.action_kinds and not kind.takes_cells_only:
                yield name


def folder_of(logdir: Path) -> Path:
    (table,) = logdir.rglob("metrics.csv")
    return table.parent


@pytest.mark.parametrize("name", cartpole_implementations())
def test_one_command_line_trains_every_algorithm(name: str, tmp_path: Path, capsys: Shown) -> None:
    agent = parse(["--algo", name]).agent
    short_flags = "--num_grad_steps 2 --num_rand_action_rollouts 2" if hasattr(agent, "num_grad_steps") else ""
    short_flags += "--steps_per_epoch 60 --eval_steps 3 --eval_episodes 2" if hasattr(agent, "eval_steps") else ""
    assert trainer.main([*f"--algo {name} {WORDS} {short_flags} --logdir".split(), str(tmp_path)]) == 0
    folder = folder_of(tmp_path)
    steps = read_metrics(folder / "metrics.csv")["env_steps"]
    assert steps[-1] >= 60 and all(step < 60 for step in steps[:-1])
    written = yaml.safe_load((folder / "config.yaml").read_text())
    expected = {"implementation": name, "gamename": "cartpole", "total_steps": 60, "lr": 1e-3, "discount": 0.9}
    assert (
        written | expected | {"hidden_sizes": [8, 8], "activation": "tanh", "seed": 3} == written
        and "epochs" not in written
    )
    assert f"{round(steps[-1]):,} environment steps in" in capsys.readouterr().out


# Words, what they mean, and what is said of them.
MEANT = [
    ("--algo DDQN --env cartpole --learning_rate 0.1", {"lr": 0.1}, "--learning_rate 0.1 is --lr 0.1 here"),
    ("--implementation DDQN --hidden_size 7", {"hidden_sizes": (7,)}, "--hidden_size 7 is --hidden_sizes 7 here"),
    ("--implementation PPO --hidden_layer 3", {"hidden_sizes": (64,) * 3},
     "--hidden_layer 3 is --hidden_sizes 64,64,64 here"),
    ("--implementation ER --num_hidden_units 9 --num_hidden_layers 2", {"hidden_sizes": (9, 9)},
     "--num_hidden_units 9 --num_hidden_layers 2 is --hidden_sizes 9,9 here"),
    ("--implementation ER --Q_alpha 0.1", {"lr": 0.1}, "--Q_alpha 0.1 is --lr 0.1 here"),
    ("--implementation ER --eval_frequency 30", {"steps_per_epoch": 30}, "--eval_frequency 30 is --steps_per_epoch 30"),
    ("--implementation ER --num_steps 30", {"total_steps": 30}, "--num_steps 30 is --total_steps 30 here"),
    ("--implementation PPO --num_steps 30", {"rollout_steps": 30}, "--num_steps 30 is --rollout_steps 30 here"),
    ("--implementation PPO --total_timesteps 30", {"total_steps": 30, "epochs": None}, "is --total_steps 30 here"),
    ("--implementation CPG --target_reward 3", {"target_running_mean": 3.0, "target_return": None},
     "--target_reward 3 is --target_running_mean 3 here"),
    ("--implementation CPG --batch_size 3", {"batch_episodes": 3}, "--batch_size 3 is --batch_episodes 3 here"),
    ("--implementation DDQN --target_reward 3", {"target_return": 3.0}, "--target_reward 3 is --target_return 3 here"),
    ("--implementation SAC --gamename pendulum --ent_coef 0.2", {"entropy_temperature": 0.2},
     "--ent_coef 0.2 is --entropy_temperature 0.2 here"),
    ("--implementation SE --gamename cartpole --center_every 3", {"eval_every": 3}, "is --eval_every 3 here"),
    ("--implementation SAC --gamename pendulum --rb_size 999 --gamma 0.5 --activation_fn tanh",
     {"buffer_size": 999, "discount": 0.5, "activation": "tanh"}, "--gamma 0.5 is --discount 0.5 here"),
]  # fmt: skip


@pytest.mark.parametrize("name", implementations())
def test_an_implementation_is_known_in_any_spelling(name: str, tmp_path: Path) -> None:
    """By flags, files, keywords and in the settings of a checkpoint; what is written has the name's own."""
    for spelling in (name.lower(), name.upper(), name.replace("-", "_"), name.replace("Dueling", "dueling_")):
        file = tmp_path / "run.yaml"
        file.write_text(f"algo: {spelling}\nenv: CartPole\n")
        all_settings = [parse(["--algo", spelling]), parse(["--config", str(file)]), settings_from(algo=spelling),
                 parse(["--config", str(file), "--algo", name]), from_dict({"implementation": spelling})]  # fmt: skip
        assert {settings.run.implementation for settings in all_settings} == {name}
    assert all_settings[1].run.gamename == "cartpole"
    with pytest.raises(SettingError, match=f"^implementation is '{name}x'"):
        parse(["--algo", f"{name}x"])


def test_names_of_agents_are_known_in_any_spelling() -> None:
    assert parse("--algo se --env CartPole --agent ddqn,dueling_ddqn".split()).run.agent == "DDQN,DuelingDDQN"
    assert parse("--algo se --env CartPole --agent td3_discrete".split()).run.agent == "TD3Discrete"


@pytest.mark.parametrize(("words", "values", "message"), MEANT, ids=[words for words, *_ in MEANT])
def test_other_names_are_accepted_everywhere(
    words: str, values: dict[str, Any], message: str, tmp_path: Path, capsys: Shown
) -> None:
    """As flags, which say so once; in files, as keywords and in a checkpoint's settings, which do not."""
    settings = parse(words.split())
    assert {name: settings.value(name) for name in values} == values
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count(message) == 1
    flag_values = dict(pair.split() for pair in words.removeprefix("--").split(" --"))
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(flag_values))
    numbers = {name: yaml.safe_load(value) for name, value in flag_values.items()}
    plain = dataclasses.replace(settings, explicit_names=frozenset())
    for other in (parse(["--config", str(tmp_path / "own.yaml")]), settings_from(**numbers), from_dict(numbers)):
        assert dataclasses.replace(other, explicit_names=frozenset()) == plain
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", implementations())
def test_no_family_calls_a_setting_by_another_name(name: str) -> None:
    setting_names = as_dict(parse(["--implementation", name])).keys()
    foreign = {other for setting in setting_names for other in aliases_of(setting)} | {*WIDTHS, *DEPTHS}
    assert not setting_names & foreign


def test_search_spaces_know_parts_and_other_names(tmp_path: Path) -> None:
    lines = ["gamma: {uniform: [0.9, 0.99]}", "hidden_size: {lograndint: [4, 64]}", "depth: [1, 2]"]
    (tmp_path / "space.yaml").write_text("\n".join(lines))
    settings = parse(["--implementation", "DDQN", "--use_tune", "--search_space", str(tmp_path / "space.yaml")])
    space = search_space(settings)
    assert list(space.dimensions) == ["discount", "width", "depth"]
    values = space.decode({"discount": 0.95, "width": 17, "depth": 2})
    assert trial_settings(settings, values).agent == dataclasses.replace(
        settings.agent, discount=0.95, hidden_sizes=(17, 17)
    )


SMALL = "--gamename cartpole --hidden_sizes 8 --eval_episodes 2 --eval_every 1"
LOOPS = {
    "episodes": f"--implementation CPG --batch_episodes 2 --anneal_lr {SMALL}",
    "episodes with a memory": f"--implementation UDRL {SMALL} --num_grad_steps 2 --num_rand_action_rollouts 2 "
    "--training_rollouts_per_worker 2",
    "steps": f"--implementation DDQN --steps_per_epoch 30 {SMALL}",
    "evolution": "--implementation SE --gamename cartpole --hidden_sizes 8 --population 2 --inner_steps 20 "
    "--center_agents 1 --keep_best 1 --retest_agents 1 --report_agents 1 --test_episodes 1 --no_compiled --no_vary_hp",
}  # fmt: skip


@pytest.mark.parametrize("kind", LOOPS)
def test_total_steps_end_any_run_its_config_repeats_it_and_resume_goes_on(kind: str, tmp_path: Path) -> None:
    words = LOOPS[kind].split()
    for name, parts in {"whole": ["150"], "parts": ["70", "150"]}.items():
        for number, steps in enumerate(parts):
            resume_flags = ["--resume"] * number
            assert trainer.main([*words, "--total_steps", steps, "--logdir", str(tmp_path / name), *resume_flags]) == 0
    full_folder, parts = folder_of(tmp_path / "whole"), folder_of(tmp_path / "parts")
    env_steps = read_metrics(full_folder / "metrics.csv")["env_steps"]
    assert env_steps[-1] >= 150 and all(step < 150 for step in env_steps[:-1]) and len(env_steps) > 1
    assert read_metrics(parts / "metrics.csv")["env_steps"][0] == env_steps[0]
    if kind in ("episodes with a memory", "evolution"):  # others have rates that fall over the run as it was begun
        same_runs(full_folder, parts)
    run_settings = checkpoints.load(full_folder / "checkpoints" / "last.ckpt").settings
    written = yaml.safe_load((full_folder / "config.yaml").read_text())
    run_settings = dataclasses.replace(run_settings, lacks=frozenset({"images"}))
    assert written == {n: v for n, v in acting(run_settings).items() if n != "checkpoint_every"} | {
        "checkpoint_every": written["checkpoint_every"]
    }
    assert (
        not {"epochs", "max_episodes", "generations", "num_samples", "display", "evaluation", "plot"} & written.keys()
    )
    assert trainer.main(["--config", str(full_folder / "config.yaml"), "--logdir", str(tmp_path / "again")]) == 0
    same_runs(full_folder, folder_of(tmp_path / "again"))


def test_modes_have_names() -> None:
    assert {number: name.replace("_", " ") for name, number in MODE_NAMES.items() if number >= 0} == {
        number: mode.name for number, mode in MODES.items()
    }
    for name in ("additive_potential", "Additive-Potential"):
        assert parse(["--implementation", "RN", "--gamename", "cliff", "--mode", name]).proxy.mode == 2
        assert settings_from(implementation="RN", gamename="cliff", mode=name).proxy.mode == 2


@pytest.mark.parametrize(
    ("words", "means"),
    [
        ("--gamename cartpole --mode -1", "--implementation DDQN --gamename cartpole --intrinsic icm"),
        ("--gamename pendulum --mode ICM --agent TD3 --icm_eta 0.1",
         "--implementation TD3 --gamename pendulum --intrinsic icm --icm_eta 0.1"),
        ("--gamename cartpole --mode icm --intrinsic rnd", "--implementation DDQN --gamename cartpole --intrinsic rnd"),
        ("--gamename cliff --mode -1 --agent SARSA", "--implementation SARSA --gamename cliff --count_bonus 0.1"),
    ],
)  # fmt: skip
def test_mode_minus_one_is_the_agent_with_a_bonus_for_novelty(
    words: str, means: str, tmp_path: Path, capsys: Shown
) -> None:
    expected = as_dict(parse(means.split()))
    assert as_dict(parse(["--implementation", "RN", *words.split()])) == expected
    assert capsys.readouterr().err.startswith("--mode -1 of RN is --implementation ")
    values = dict(pair.split() for pair in words.removeprefix("--").split(" --"))
    numbers = {name: float(value) for name, value in values.items() if name == "icm_eta"}
    assert as_dict(settings_from(implementation="RN", **values | numbers)) == expected
    (tmp_path / "mode.yaml").write_text(yaml.safe_dump({"implementation": "RN"} | values))
    assert as_dict(parse(["--config", str(tmp_path / "mode.yaml")])) == expected


def test_the_bare_command_says_what_it_does(capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "run", lambda settings: 0)
    assert trainer.main([]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert all(word in line for word in ("UDRL", "lunarlander", "2,000 epochs", "half an hour", "--help"))
    assert trainer.main(["--seed", "3"]) == 0 and capsys.readouterr().out == ""
