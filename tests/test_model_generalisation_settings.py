"""Settings of the model-generalisation family: published hyperparameters and configuration files."""

import dataclasses
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from control.cli.parse import parse
from control.cli.settings import Settings, as_dict
from fake_runs import Shown, load_script
from models.agents.model_generalisation.config import FAMILY, PRESETS
from models.registry import default_config

convert = load_script("model_generalisation/convert").main
Converted = Callable[[dict[str, Any]], Settings]
NAMES = ["ER", "PerfectModel", "SimpleModel", "CategoricalLatent", "GaussianLatent"]
CONFIGS = ROOT / "experiments" / "model_generalisation" / "configs"
GAUSSIAN = "gaussian_latent_model"
FILES = dict(zip(["ER", "perfect_model", "simple_model", "categorical_latent_model", GAUSSIAN], NAMES, strict=True))

# Learning rate in 1e-6 and temperature, of high data and then of low data, in the order of NAMES.
CELLS = {
    "procmaze": [(50, 0.1, 25, 1.6), (100, 0.4, 400, 0.4), (200, 0.8, 25, 0.4), (200, 1.6, 100, 0.8),
                 (3.125, 12.8, 3.125, 0.8)],
    "buttongrid": [(50, 0.0125, 25, 0.1), (200, 0.0125, 200, 0.0125), (200, 1.6, 50, 0.4), (100, 0.05, 200, 0.1),
                   (12.5, 0.1, 25, 0.8)],
    "panflute": [(100, 0.1, 3.125, 0.8), (200, 0.1, 100, 0.1), (100, 0.4, 200, 0.2), (800, 0.05, 1600, 0.05),
                 (200, 0.1, 200, 0.1)],
}  # fmt: skip
HIGH = {"target_update_frequency": 100, "updates_per_step": 1, "total_steps": 1_000_000, "steps_per_epoch": 500}
LOW = {"target_update_frequency": 10, "updates_per_step": 10, "total_steps": 100_000, "steps_per_epoch": 50}


def parse_settings(words: str) -> Settings:
    return parse(words.split())


def published(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / f"{name}.json").read_text())


@pytest.fixture
def converted(tmp_path: Path) -> Callable[[dict[str, Any]], Settings]:
    """Parses the content of a configuration file with `--config`."""

    def settings_of(content: dict[str, Any]) -> Settings:
        (tmp_path / "theirs.json").write_text(json.dumps(content))
        return parse_settings(f"--config {tmp_path / 'theirs.json'}")

    return settings_of


@pytest.mark.parametrize("regime", ["high", "low"])
@pytest.mark.parametrize("game", CELLS)
@pytest.mark.parametrize("name", NAMES)
def test_presets_match_paper(name: str, game: str, regime: str) -> None:
    values = CELLS[game][NAMES.index(name)]
    step, temperature = values[:2] if regime == "high" else values[2:]
    expected = {"lr": pytest.approx(step * 1e-6), "softmax_temp": temperature, "episodic_env": game == "procmaze"}
    expected |= (HIGH if regime == "high" else LOW) | {"preset": f"{game}_{regime}"}
    config = default_config(name, game, {"preset": f"{game}_{regime}"})
    assert {key: getattr(config, key) for key in expected} == expected
    if regime == "high":
        assert dataclasses.replace(config, preset="shipped") == default_config(name, game)


def test_presets_are_complete() -> None:
    assert sorted(PRESETS) == sorted(f"{game}_{regime}" for game in CELLS for regime in ("high", "low"))
    assert {FAMILY.preset_game(preset) for preset in PRESETS} == set(CELLS)
    for preset, name in product(PRESETS, NAMES):
        plain, changed = (
            dataclasses.asdict(default_config(name, "", overrides)) for overrides in ({}, {"preset": preset})
        )
        different = {key for key in plain if changed[key] != plain[key]}
        assert different <= {"lr", "softmax_temp", "episodic_env", "preset", *LOW}


def test_presets_ignore_environment_parameters() -> None:
    assert default_config("ER", "panflute,num_pipes=8") == default_config("ER", "panflute")
    assert default_config("ER", "panflute") != default_config("ER", "procmaze,grid_size=5")
    assert default_config("SimpleModel", "opengrid") == default_config("SimpleModel", "procmaze")


def test_periods_are_rounded_up() -> None:
    config = parse_settings("--implementation ER --total_steps 1001 --training_start_time 501").agent
    assert (config.epochs, config.first_update) == (3, 1000)


@pytest.mark.parametrize("name", FILES)
def test_published_files_equal_defaults(name: str, converted: Converted) -> None:
    settings, expected = converted(published(name)), default_config(FILES[name], "procmaze")
    bits = True if expected.model in ("simple", "latent") else None
    assert settings.agent == dataclasses.replace(expected, binary_obs=bits)
    default_run = parse_settings(f"--implementation {FILES[name]} --gamename procmaze,grid_size=4").run
    assert settings.run == dataclasses.replace(default_run, num_seeds=30, checkpoint_every=20)


def test_flags_override_converted_file(tmp_path: Path, capsys: Shown, converted: Converted) -> None:
    assert convert([str(CONFIGS / "ER.json")]) == 0
    (tmp_path / "er.yaml").write_text(capsys.readouterr().out)
    settings = parse_settings(f"--config {tmp_path / 'er.yaml'} --total_steps 2000 --num_seeds 2")
    assert as_dict(settings.replace(total_steps=1_000_000, num_seeds=30)) == as_dict(converted(published("ER")))
    assert (settings.agent.epochs, settings.run.gamename) == (4, "procmaze")


FLUTE = {"environment": "PanFlute"}
MEANINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # Complete files: missing keys have the defaults of the original scripts.
    ({"environment": "ProcMaze", "alpha_adam": 1e-3},
     {"implementation": "ER", "preset": "shipped", "gamename": "procmaze,grid_size=10", "double_DQN": False,
      "episodic_env": False, "updates_per_step": 1, "lr": 1e-3, "checkpoint_every": 10}),
    (FLUTE | {"latent_type": "gaussian"}, {"min_std": 0.0, "std_act": "softplus", "gamename": "panflute"}),
    (FLUTE | {"agent_type": "latent_model"}, {"implementation": "CategoricalLatent", "rollout_batch_size": None}),
    (FLUTE | {"latent_type": "tanh_gaussian", "seed": 7}, {"implementation": "GaussianLatent", "seed": 7}),
    # Changes to the published categorical file.
    ({"save_frequency": 1200}, {"checkpoint_every": 3, "no_checkpoint": False}),
    ({"save_params": False}, {"no_checkpoint": True}),
    ({"save_final_params": False}, {"no_checkpoint": False}),
    ({"seperate_rollout_batch_size": True, "rollout_batch_size": 64}, {"rollout_batch_size": 64}),
    ({"environment": "ButtonGrid", "env_config": {"grid_size": 5, "num_buttons": 2}},
     {"gamename": "buttongrid,grid_size=5,num_buttons=2"}),
    ({"learn_obs_variance": False, "double_DQN": True}, {"learn_obs_variance": False, "double_DQN": True}),
]  # fmt: skip


@pytest.mark.parametrize(("content", "values"), MEANINGS)
def test_keys_of_published_files_have_their_meanings(
    content: dict[str, Any], values: dict[str, Any], converted: Converted
) -> None:
    is_complete = "environment" in content and "env_config" not in content
    settings = as_dict(converted(content if is_complete else published("categorical_latent_model") | content))
    assert {key: settings[key] for key in values} == values
