"""Names of settings: the same for all algorithms, with aliases from other libraries and earlier versions."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import trainer
from conftest import ROOT
from control.cli.parse import parse, settings_from
from control.cli.settings import as_dict, effective_values, from_dict
from control.commands.search_space import search_space, trial_settings
from control.storage import checkpoints
from control.storage.run_dir import read_metrics
from fake_runs import Shown
from helpers import SEARCHED, run_folder, same_runs
from models.registry import agent_class, implementations
from models.settings import SettingError
from models.spaces import Discrete
from models.vocabulary import DEPTHS, WIDTHS, aliases_of

WORDS = "--env CartPole-v1 --total_steps 60 --lr 1e-3 --discount 0.9 --hidden_sizes 8,8 --activation tanh --seed 3"


AGENTS = {name: agent_class(name) for name, family in implementations().items() if family.learns_from != "evolution"}


@pytest.mark.parametrize(
    "name", [name for name, kind in AGENTS.items() if Discrete in kind.action_kinds and not kind.takes_cells_only]
)
def test_one_command_line_trains_every_algorithm(name: str, tmp_path: Path, capsys: Shown) -> None:
    agent = parse(["--algo", name]).agent
    short_flags = "--num_grad_steps 2 --num_rand_action_rollouts 2" if hasattr(agent, "num_grad_steps") else ""
    short_flags += "--steps_per_epoch 60 --eval_steps 3 --eval_episodes 2" if hasattr(agent, "eval_steps") else ""
    assert trainer.main([*f"--algo {name} {WORDS} {short_flags} --logdir".split(), str(tmp_path)]) == 0
    folder = run_folder(tmp_path)
    steps = read_metrics(folder / "metrics.csv")["env_steps"]
    assert steps[-1] >= 60 and all(step < 60 for step in steps[:-1])
    written = yaml.safe_load((folder / "config.yaml").read_text())
    expected = {"implementation": name, "gamename": "cartpole", "total_steps": 60, "lr": 1e-3, "discount": 0.9}
    expected |= {"hidden_sizes": [8, 8], "activation": "tanh", "seed": 3}
    assert written | expected == written and "epochs" not in written
    assert f"{round(steps[-1]):,} environment steps in" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["exp_dir", "save_dir", "output_dir", "log_dir"])
def test_names_of_the_folder_of_all_runs(name: str, capsys: Shown) -> None:
    assert parse([f"--{name}", "runs"]).run.logdir == "runs"
    assert capsys.readouterr().err == f"--{name} runs is --logdir runs here\n"


# Words, the settings they mean, and the message.
ALIASES = [
    ("--algo DDQN --env cartpole --learning_rate 0.1", {"lr": 0.1}, "--learning_rate 0.1 is --lr 0.1 here"),
    ("--implementation PPO --hidden_layer 3", {"hidden_sizes": (64,) * 3},
     "--hidden_layer 3 is --hidden_sizes 64,64,64 here"),
    ("--implementation ER --num_hidden_units 9 --num_hidden_layers 2", {"hidden_sizes": (9, 9)},
     "--num_hidden_units 9 --num_hidden_layers 2 is --hidden_sizes 9,9 here"),
    ("--implementation PPO --num_steps 30", {"rollout_steps": 30}, "--num_steps 30 is --rollout_steps 30 here"),
    ("--implementation CPG --target_reward 3", {"target_running_mean": 3.0, "target_return": None},
     "--target_reward 3 is --target_running_mean 3 here"),
    ("--implementation CPG --batch_size 3", {"batch_episodes": 3}, "--batch_size 3 is --batch_episodes 3 here"),
    ("--implementation SAC --gamename pendulum --ent_coef 0.2", {"entropy_temperature": 0.2},
     "--ent_coef 0.2 is --entropy_temperature 0.2 here"),
    ("--implementation SAC --gamename pendulum --rb_size 999 --gamma 0.5 --activation_fn tanh",
     {"buffer_size": 999, "discount": 0.5, "activation": "tanh"}, "--gamma 0.5 is --discount 0.5 here"),
]  # fmt: skip


@pytest.mark.parametrize("name", implementations())
def test_spellings_of_implementations(name: str, tmp_path: Path) -> None:
    """In flags, files, keywords and settings of checkpoints."""
    for spelling in (name.lower(), name.upper(), name.replace("-", "_"), name.replace("Dueling", "dueling_")):
        file = tmp_path / "run.yaml"
        file.write_text(f"algo: {spelling}\nenv: CartPole\n")
        all_settings = [parse(["--algo", spelling]), parse(["--config", str(file)]), settings_from(algo=spelling),
                 parse(["--config", str(file), "--algo", name]), from_dict({"implementation": spelling})]  # fmt: skip
        assert {settings.run.implementation for settings in all_settings} == {name}
    assert all_settings[1].run.gamename == "cartpole"
    with pytest.raises(SettingError, match=f"^implementation is '{name}x'"):
        parse(["--algo", f"{name}x"])


@pytest.mark.parametrize(("words", "values", "message"), ALIASES, ids=[words for words, *_ in ALIASES])
def test_aliases_of_settings(words: str, values: dict[str, Any], message: str, tmp_path: Path, capsys: Shown) -> None:
    """Flags print a message once; files, keywords and settings of checkpoints print none."""
    settings = parse(words.split())
    assert {name: settings.value(name) for name in values} == values
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count(message) == 1
    flag_values = dict(pair.split() for pair in words.removeprefix("--").split(" --"))
    (tmp_path / "aliases.yaml").write_text(yaml.safe_dump(flag_values))
    numbers = {name: yaml.safe_load(value) for name, value in flag_values.items()}
    plain = dataclasses.replace(settings, explicit_names=frozenset())
    for other in (parse(["--config", str(tmp_path / "aliases.yaml")]), settings_from(**numbers), from_dict(numbers)):
        assert dataclasses.replace(other, explicit_names=frozenset()) == plain
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", implementations())
def test_no_setting_has_the_name_of_an_alias(name: str) -> None:
    setting_names = as_dict(parse(["--implementation", name])).keys()
    foreign = {other for setting in setting_names for other in aliases_of(setting)} | {*WIDTHS, *DEPTHS}
    assert not setting_names & foreign


def test_names_of_other_libraries_on_the_page() -> None:
    """The table of docs/coming_from.md: names of stable-baselines3 and CleanRL are the setting or its aliases."""
    page = (ROOT / "docs/coming_from.md").read_text()
    rows = re.findall(r"^\| `(\w+)`(?: \((\w+)[\w, ]*\))? \| `(\w+)` \| `?(\w+)`? \|$", page, re.MULTILINE)
    assert len(rows) > 15
    for setting, family, *names in rows:
        families = [{"PPO": "ppo", "DDQN": "ddqn", "TD3": "td3", "SAC": "sac"}[family]] if family else []
        assert {*names} <= {setting, *aliases_of(setting, families), "fixed"}, setting


def test_aliases_in_search_spaces(tmp_path: Path) -> None:
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
def test_total_steps_ends_repeats_and_resumes_runs(kind: str, tmp_path: Path) -> None:
    words, statuses = LOOPS[kind].split(), SEARCHED if kind == "evolution" else (0,)
    for name, parts in {"whole": ["150"], "parts": ["70", "150"]}.items():
        for number, steps in enumerate(parts):
            resume_flags = ["--resume"] * number
            flags = [*words, "--total_steps", steps, "--logdir", str(tmp_path / name), *resume_flags]
            assert trainer.main(flags) in statuses
    full_folder, parts = run_folder(tmp_path / "whole"), run_folder(tmp_path / "parts")
    env_steps = read_metrics(full_folder / "metrics.csv")["env_steps"]
    assert env_steps[-1] >= 150 and all(step < 150 for step in env_steps[:-1]) and len(env_steps) > 1
    assert read_metrics(parts / "metrics.csv")["env_steps"][0] == env_steps[0]
    if kind in ("episodes with a memory", "evolution"):  # the others anneal over the run as first started
        same_runs(full_folder, parts)
    run_settings = checkpoints.load(full_folder / "checkpoints" / "last.ckpt").settings
    written = yaml.safe_load((full_folder / "config.yaml").read_text())
    run_settings = dataclasses.replace(run_settings, missing_features=frozenset({"images"}))
    assert written == effective_values(run_settings) | {"checkpoint_every": written["checkpoint_every"]}
    assert not {"epochs", "max_episodes", "generations", "num_samples", "evaluation", "plot"} & written.keys()
    again = ["--config", str(full_folder / "config.yaml"), "--logdir", str(tmp_path / "again")]
    assert trainer.main(again) in statuses
    same_runs(full_folder, run_folder(tmp_path / "again"))


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
def test_mode_minus_one_is_an_agent_with_an_exploration_bonus(
    words: str, means: str, tmp_path: Path, capsys: Shown
) -> None:
    expected = as_dict(parse(means.split()))
    assert as_dict(parse(["--implementation", "RN", *words.split()])) == expected
    assert capsys.readouterr().err.startswith("--mode -1 of RN is --implementation ")
    values = dict(pair.split() for pair in words.removeprefix("--").split(" --"))
    (tmp_path / "mode.yaml").write_text(yaml.safe_dump({"implementation": "RN"} | values))
    assert as_dict(parse(["--config", str(tmp_path / "mode.yaml")])) == expected
