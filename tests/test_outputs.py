"""`--config` and `--output` as the scripts of Young et al. 2023 have them: their files in, their files out."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import trainer
from conftest import ROOT
from control.storage.run_dir import read_metrics
from fake_runs import Shown, refused

CONFIGS = ROOT / "experiments" / "model_generalisation" / "configs"
SMALL = {
    "num_seeds": 2, "num_steps": 30, "eval_frequency": 10, "training_start_time": 10, "batch_size": 4,
    "num_hidden_units": 8, "eval_steps": 5, "eval_batch_size": 2, "buffer_size": 50,
}  # fmt: skip


class Plain(pickle.Unpickler):
    """Reads containers, numbers and text, and no name of any class or function."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


def train(folder: Path, name: str, *flags: str, **changes: Any) -> Path:
    """Train by a file of the original's, made small, and give the folder of the run."""
    content = json.loads((CONFIGS / f"{name}.json").read_text()) | SMALL | changes
    (folder / f"{name}.json").write_text(json.dumps(content))
    words = ["--seed=0", f"--config={folder / name}.json", f"--output={folder / name}", f"--logdir={folder}"]
    assert trainer.main([*words, "--logger", "none", *flags]) == 0
    (metrics,) = folder.glob("*/debug/*/seed_0-1/version_*/metrics.csv")
    return metrics.parent


@pytest.mark.parametrize("name", ["ER", "categorical_latent_model", "panflute"])
def test_a_run_leaves_the_original_s_files(tmp_path: Path, name: str) -> None:
    changes = {"environment": "PanFlute", "env_config": {"num_pipes": 3}, "episodic_env": False}
    config, changes = ("ER", changes) if name == "panflute" else (name, {})
    folder = train(tmp_path, config, **changes)
    with open(tmp_path / f"{config}.out", "rb") as file:
        output = Plain(file).load()
    table = read_metrics(folder / "metrics.csv")
    score = table["eval/reward_rate" if name == "panflute" else "eval/return_greedy"]
    assert output["metrics"]["eval_times"] == [0, 10, 20]
    assert np.shape(output["metrics"]["reward_rates"]) == (3, 2)
    assert np.ravel(output["metrics"]["reward_rates"]).tolist() == score
    assert output["config"]["seed"] == 0 and output["config"]["lr"] == trainer.load(folder).settings.agent.lr


def test_weights_are_those_of_the_last_checkpoint(tmp_path: Path) -> None:
    """A pass through the file's layers by hand gives the values that the run's own network gives."""
    folder = train(tmp_path, "ER")
    weights, obs = load_file(tmp_path / "ER.params"), np.random.default_rng(0).random((2, 5, 64), np.float32)
    x = obs
    for layer in range(4):
        x = np.einsum("mbi,moi->mbo", x, weights[f"Q.{layer}.weight"]) + weights[f"Q.{layer}.bias"][:, None]
        x = np.where(x > 0, x, np.expm1(x)) if layer < 3 else x
    last = trainer.load(folder / "checkpoints" / "last.ckpt").module.loop.agents[0]
    np.testing.assert_allclose(x, last.values(torch.from_numpy(obs)).detach().numpy(), atol=1e-6)
    assert set(weights) == {f"Q.{layer}.{part}" for layer in range(4) for part in ("weight", "bias")}


def test_files_that_exist_are_kept(tmp_path: Path, capsys: Shown) -> None:
    (tmp_path / "ER.out").write_text("precious")
    words = [f"--config={CONFIGS / 'ER.json'}", f"--logdir={tmp_path}"]
    message = f"output is '{tmp_path}/ER': '{tmp_path}/ER.out' exists; allowed: a new name in a folder"
    refused(trainer.main, [*words, f"--output={tmp_path}/ER"], message, capsys)
    refused(
        trainer.main,
        [*words, f"--output={tmp_path}/no/ER"],
        f"'{tmp_path}/no' is no folder that can be written",
        capsys,
    )
    refused(trainer.main, [*words, f"--output={'x' * 300}"], "at most 200 bytes", capsys)
    train(tmp_path, "ER", "--resume", "--no_checkpoint")  # the same line finishes a run and repeats one that is over
    assert "ER.out was not written (File exists)" in capsys.readouterr().out
    assert (tmp_path / "ER.out").read_text() == "precious" and not (tmp_path / "ER.params").exists()
