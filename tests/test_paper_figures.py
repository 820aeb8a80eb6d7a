"""Figures of Ferreira et al. 2022: the scripts that measure and draw them, and the published files."""

import hashlib
import json
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from conftest import ROOT
from envs.base import Step
from experiments.plotting import density
from fake_runs import Shown, is_png, load_script, refused

RESULTS, IMAGES = ROOT / "docs/results", ROOT / "docs/images"
SYNTHETIC = "synthetic_environments"
curves, arms, behaviour = (load_script(f"{SYNTHETIC}/{name}") for name in ("learning_curves", "arms", "behaviour"))
noise, choices, times = (load_script(f"{SYNTHETIC}/{name}") for name in ("robustness", "choices", "step_times"))
step_sizes, visits = load_script(f"{SYNTHETIC}/step_sizes"), load_script("reward_networks/visits")
rewards = load_script("reward_networks/figure")


def test_published_figures_are_up_to_date() -> None:
    """The commands of the page name the source of each figure."""
    page = (ROOT / "docs/paper.md").read_text()
    pairs = re.findall(
        r"^python experiments/.* (docs/results/\w+\.json).* --out exp_dir/(\w+)\.png", page, re.MULTILINE
    )
    assert len(pairs) >= 9
    for source, name in (pair for pair in pairs if not pair[1].endswith("_dark")):
        digest = hashlib.sha256((ROOT / source).read_bytes()).hexdigest()
        for path in (IMAGES / f"{name}.png", IMAGES / f"{name}_dark.png"):
            with Image.open(path) as image:
                assert image.info.get("Numbers") == digest, f"draw {path} again"


@pytest.mark.draws
@pytest.mark.parametrize(("script", "name"), [
    (curves, "learning_curves"), (step_sizes, "step_sizes"), (visits, "visits"), (times, "step_times"),
])  # fmt: skip
def test_figures_have_a_light_and_a_dark_version(script: ModuleType, name: str, tmp_path: Path) -> None:
    assert script.main(["draw", str(RESULTS / f"{name}.json"), "--out", str(tmp_path / "f.png")]) == 0
    assert is_png(tmp_path / "f.png") and is_png(tmp_path / "f_dark.png")
    colours = [Image.open(tmp_path / name).convert("RGB").getpixel((0, 0)) for name in ("f.png", "f_dark.png")]
    assert colours == [(255, 255, 255), (13, 17, 23)]


OTHER = RESULTS / "reliability.json"


@pytest.mark.parametrize(("script", "flags", "message"), [
    (curves, f"measure cartpole --json {OTHER}", "holds no numbers of this script; allowed: a new file, or one of"),
    (choices, f"{OTHER} --out x.png", "which holds no numbers of tuning.py"),
    (behaviour, f"cartpole-mdp --numbers {OTHER} --out x.png", "which holds no numbers of this script"),
    (visits, "measure --json x --reward cartpole-exclusive", "reward of cartpole-200; allowed: reward of cliff"),
    (rewards, "curves a.json b.json --out x.png", "source is 'a.json b.json'; allowed for curves: one file"),
])  # fmt: skip
def test_flag_error_message(
    script: ModuleType, flags: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    monkeypatch.chdir(tmp_path)
    previous_bytes = OTHER.read_bytes()
    refused(script.main, flags.split(), message, capsys)
    assert OTHER.read_bytes() == previous_bytes and not list(tmp_path.glob("*.png"))


def test_density_equals_scipy() -> None:
    values, at = np.random.default_rng(0).normal(3, 2, 200), np.linspace(-10, 16, 800)
    # scipy's bandwidth is of the unbiased deviation.
    expected = stats.gaussian_kde(values, 200**-0.2 * values.std() / values.std(ddof=1))(at)
    assert density(values, at, 1e-9) == pytest.approx(expected, rel=1e-9)
    same = density(np.full(50, 200.0), np.linspace(0, 400, 4001), 3.0)
    assert same.max() == pytest.approx(1 / (3 * np.sqrt(2 * np.pi))) and same.sum() * 0.1 == pytest.approx(1)


def test_correlations_equal_scipy() -> None:
    x, y = np.random.default_rng(1).integers(0, 6, (2, 40)).astype(float)  # with ties
    assert choices.kendall(x, y) == pytest.approx(stats.kendalltau(x, y).statistic)
    assert choices.pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic)
    assert choices.kendall(x, np.ones(40)) == choices.pearson(np.ones(40), y) == 0


class ConstantEnvironment:
    """Two members and three environments with only ones."""

    spaces = SimpleNamespace(obs_shape=(4,))

    def step(self, actions: Any, active: Any = None) -> Step:
        return Step(torch.ones(2, 3, 4), torch.ones(2, 3), torch.zeros(2, 3).bool(), torch.zeros(2, 3).bool())


@pytest.mark.parametrize("column", [0, 3, 4])
def test_noise_is_on_one_column(column: int) -> None:
    noisy: Any = noise.Noisy(ConstantEnvironment(), column, 0.5)
    steps = [noisy.step(None) for _ in range(2000)]
    answers = torch.stack([torch.cat([step.obs, step.reward[..., None]], -1) for step in steps])
    off = (answers - 1).flatten(0, -2)
    assert float(off[:, column].std()) == pytest.approx(0.5, rel=0.03)  # 12,000 draws: a standard error of 0.65 %
    assert not off[:, [i for i in range(5) if i != column]].any()
    assert torch.cat(noisy.answers).unique().tolist() == [1], "recorded without noise"


def test_visits_are_counted() -> None:
    counter: Any = visits.Counter(ConstantEnvironment())
    counter.step(None), counter.step(None)
    assert counter.entered.tolist() == [12] * 4  # two steps of six environments, ones everywhere
    shares = {name: row["share"] for name, row in json.loads((RESULTS / "visits.json").read_text()).items()}
    assert all(sum(share) == pytest.approx(1, abs=1e-3) and len(share) == 48 for share in shares.values())


def test_histograms_are_shares() -> None:
    generator = np.random.default_rng(0)
    data = {label: generator.normal(size=(500, 5)) for label in behaviour.LABELS}
    panels = behaviour.histograms(data, "cartpole", bandit=True)
    assert [set(panel) - {"name", "edges"} for panel in panels[:-1]] == [{"synthetic", "real"}] * 4
    assert set(panels[-1]) == {"name", "edges", *behaviour.LABELS} and panels[-1]["name"] == "reward"
    for panel in panels:
        edges = np.array(panel["edges"])
        assert len(edges) == 61 and (np.diff(edges) > 0).all()
        # 0.2 % at either side may lie outside.
        assert all(0.995 <= sum(panel[label]) <= 1.0001 for label in panel.keys() - {"name", "edges"})
