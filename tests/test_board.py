"""Tags of measurements and their page, and events for TensorBoard."""

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

from conftest import ROOT, Finished
from control.cli.parse import parse
from control.cli.settings import from_dict
from control.commands.search_space import trial_settings
from control.lightning.board import Board, hyperparameters
from control.reports.tags import HELD_OUT_RETURN, TAGS, explanations
from control.storage.run_dir import read_metrics
from helpers import load_events, trained


def test_page_explains_tags_of_figures() -> None:
    assert explanations().keys() >= TAGS.keys() - {HELD_OUT_RETURN}
    assert explanations()["eval/steps_greedy"] == explanations()["eval/length_greedy"]  # TensorBoard's, metrics.csv's


def session_of(events: EventAccumulator) -> tuple[SessionStartInfo, dict[str, Any]]:
    """A row of TensorBoard's page HPARAMS, and its settings by name."""
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    session = HParamsPluginData.FromString(content).session_start_info
    return session, {name: getattr(value, value.WhichOneof("kind")) for name, value in session.hparams.items()}


def test_events_equal_metrics(finished: Finished) -> None:
    folder, _ = finished(implementation="UDRL")
    events, metrics = load_events(folder), read_metrics(folder / "metrics.csv")
    for tag in set(metrics) - {"seed", "env_steps"}:
        name = "time/epoch" if tag == "epoch" else tag.replace("/length_", "/steps_")  # sorted after the returns
        assert f"| `{name}`" in (ROOT / "docs/tensorboard.md").read_text()
        scalars = events.Scalars(name)
        expected = [(s, v) for s, v in zip(metrics["env_steps"], metrics[tag], strict=True) if not math.isnan(v)]
        assert [scalar.step for scalar in scalars] == [steps for steps, _ in expected]
        np.testing.assert_allclose([scalar.value for scalar in scalars], [value for _, value in expected], rtol=1e-6)
    evaluated = [metrics["env_steps"][epoch - 1] for epoch in (2, 4)]
    for tag in ("weights/policy", "policy/actions_greedy", "policy/actions_sampled"):
        assert [event.step for event in events.Histograms(tag)] == evaluated, tag
    (text,) = events.Tensors("settings/text_summary")
    assert "| **batch_size** | `16` |" in text.tensor_proto.string_val[0].decode()
    session, hparams = session_of(events)
    assert session.group_name == f"UDRL 25 v0 debug: {folder.relative_to(folder.parents[5])}"
    assert hparams.items() >= {"algo": "UDRL", "env": "cartpole", "set.epochs": 5}.items()
    hidden = {"logdir", "eval_every", "checkpoint_every", "logger", "display", "plot"}
    assert not hidden & {name.removeprefix("set.") for name in hparams}
    assert sorted(hparams)[:4] == ["algo", "env", "lr", "seed"]
    assert events.SummaryMetadata("eval/return_greedy").summary_description == explanations()["eval/return_greedy"]
    assert events.SummaryMetadata("train/policy_loss").summary_description.startswith("Loss that the policy minimises")
    assert events.SummaryMetadata("eval/return_greedy").data_class == DATA_CLASS_SCALAR  # or it loses its description
    (layout,) = events.Tensors("custom_scalars__config__")
    assert b"train/value_loss" in layout.tensor_proto.string_val[0]
    with pytest.raises(KeyError):  # it would hide hyperparameters of later runs
        events.SummaryMetadata("_hparams_/experiment")
    (file,) = folder.rglob("events.out.tfevents.*")  # so that the run is listed once
    assert file.parent == folder and "summary/curve" in events.Tags()["images"]


def test_several_seeds_have_curves_of_their_means(logdir: Path) -> None:
    folder = trained(logdir, num_seeds=2, logger="tensorboard")
    metrics = read_metrics(folder / "metrics.csv")
    loss = np.array(metrics["train/policy_loss"]).reshape(-1, 2)  # [epochs, seeds]
    events = load_events(folder / "mean")
    assert [point.value for point in events.Scalars("train/policy_loss")] == pytest.approx(np.nanmean(loss, 1).tolist())
    assert "conclusion/text_summary" in events.Tags()["tensors"]
    _, hparams = session_of(load_events(folder / "seed_26"))
    assert hparams["seed"] == 26


def test_a_search_has_the_tags_of_agents(finished: Finished) -> None:
    folder, _ = finished(implementation="SE")
    events, metrics = load_events(folder), read_metrics(folder / "metrics.csv")
    (score,) = events.Scalars("eval/return_greedy")
    report = json.loads((folder / "scores.json").read_text())["report"]
    assert (score.step, score.value) == (report["steps"], pytest.approx(report["mean"]))  # training steps of one agent
    assert not {"search/heldout_return", "search/synthetic_steps"} & {*events.Tags()["scalars"]}
    assert "eval/return_greedy" not in metrics
    assert "conclusion/text_summary" in events.Tags()["tensors"]
    assert len([*folder.rglob("events.out.tfevents.*")]) == 1


def test_hyperparameters_are_non_default_settings() -> None:
    base_settings = from_dict({"implementation": "CPG", "gamename": "cartpole"})
    common = {"implementation": "CPG", "gamename": "cartpole", "lr": base_settings.agent.lr}
    assert hyperparameters(base_settings) == common
    quiet = base_settings.replace(logdir="/elsewhere", print_statements=1, record=True, checkpoint_every=3)
    assert hyperparameters(quiet) == hyperparameters(base_settings)
    other = base_settings.replace(lr=0.5, seed=7, time_limit=90)
    assert hyperparameters(other) == common | {"lr": 0.5, "time_limit": 90}
    trial = trial_settings(base_settings, {"max_grad_norm": base_settings.agent.max_grad_norm})
    assert hyperparameters(trial).keys() == {*common, "max_grad_norm"}  # searched, although the value is the default
    commanded = from_dict({"implementation": "UDRL", "command": {"return": 9.0}})
    assert hyperparameters(commanded)["command.return"] == 9.0
    search = parse(["--implementation", "SE", "--gamename", "cartpole", "--population", "6", "--agent", "TD3Discrete"])
    assert hyperparameters(search).keys() == {"implementation", "gamename", "agent", "population", "lr"}


def test_histograms_leave_out_nan(tmp_path: Path) -> None:
    board = Board(tmp_path, 0)
    board.add_histogram("weights", torch.tensor([1.0, torch.nan, 3.0]), 8)
    board.add_histogram("lost", torch.tensor([torch.nan]), 8)
    board.writer.close()
    events = load_events(tmp_path)
    assert events.Tags()["histograms"] == ["weights"]
    (weights,) = events.Histograms("weights")
    assert weights.step == 8 and weights.histogram_value.num == 2 and weights.histogram_value.sum == 4


def test_events_of_a_resumed_run_follow_after_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    today = time.time()
    for now, steps in ((today, range(1, 6)), (today - 86_400, range(4, 8))):  # resumed after the third step
        monkeypatch.setattr(time, "time", lambda now=now: now)
        board = Board(tmp_path, 3 if steps[0] == 4 else 0)
        for step in steps:
            board.add_scalars({"x/y": now}, step)
        board.writer.close()
    points = load_events(tmp_path).Scalars("x/y")
    assert [point.step for point in points] == [1, 2, 3, 4, 5, 6, 7]
    assert points[3].value == points[-1].value != points[2].value
