"""Published figures drawn again from the numbers beside them, by the commands that docs/results/README.md names."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from conftest import ROOT
from control.reports.plot import plot
from control.reports.sheets import WIDTH
from fake_runs import Shown, load_script, refused
from models.settings import SettingError

RESULTS = ROOT / "docs" / "results"
gradients, cells = load_script("policy_gradients/figure"), load_script("model_generalisation/figure")
synthetic = load_script("synthetic_environments/figure")


def titles(figure: Any) -> list[str]:
    return [axis.get_title("left").replace("\n", " ") for axis in figure.axes]


def test_no_published_figure_is_older_than_its_numbers() -> None:
    figures = {
        path: path.with_name(f"{path.stem.removesuffix('_dark').removesuffix('_cliff').removesuffix('_cartpole')}.json")
        for path in RESULTS.glob("*.png")
    }
    figures = {path: numbers for path, numbers in figures.items() if "curves" not in path.stem}
    assert len(figures) == 19
    for path, numbers in figures.items():
        with Image.open(path) as image:
            assert image.info.get("Numbers") == hashlib.sha256(numbers.read_bytes()).hexdigest(), f"draw {path} again"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figures_of_scripts(theme: str, tmp_path: Path, figures: list[Any], capsys: Shown) -> None:
    out = ["--plot_theme", theme, "--out"]
    assert gradients.main([str(RESULTS / "policy_gradients.json"), *out, str(tmp_path / "a.png")]) == 0
    assert cells.main([str(RESULTS / "model_generalisation.json"), *out, str(tmp_path / "b.svg")]) == 0
    numbers = ["--numbers", str(RESULTS / "synthetic_environments.json")]
    assert synthetic.main([*numbers, *out, str(tmp_path / "c.png")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "b.svg", "c.png"]
    policy, models, searches = figures
    assert titles(policy) == ["Score of each seed", "Seeds that score more", "Probability that AAC, tuned is better"]
    dots = [line for line in policy.axes[0].get_lines() if line.get_marker() == "o"]
    assert [len(line.get_xdata()) for line in dots] == [5] * 6, "six algorithms of five seeds"
    note = " ".join(text.get_text() for text in policy.texts)
    assert "; lines of probabilities: 95 %" in note.replace("\n", " "), "profiles of six have no bands"
    assert len(models.axes) == 2 and models.axes[0].get_xlim() == models.axes[1].get_xlim()
    rows = [[label.get_text() for label in axis.get_yticklabels()] for axis in searches.axes]
    assert rows[0] == [f"{kind}, seed {i}" for kind in ("MDP", "bandit") for i in range(3)] and len(rows[2]) == 16
    rows_of = [line for line in searches.axes[1].get_lines() if len(line.get_ydata()) and line.get_linestyle() != ":"]
    bounds = [line.get_xdata() for line in rows_of if line.get_linestyle() == "-" and len(line.get_xdata()) == 2]
    diamonds = [line.get_xdata()[0] for line in rows_of if line.get_marker() == "D"]
    assert len(bounds) == 3 and all(a < at < b for (a, b), at in zip(bounds, diamonds, strict=True))
    assert all(figure.get_size_inches()[0] == WIDTH for figure in figures)
    assert len({figure.get_facecolor() for figure in figures}) == 1


@pytest.mark.parametrize("name", ["lunarlander", "rcp_a_ablation"])
def test_figures_of_plot(name: str, tmp_path: Path, figures: list[Any], capsys: Shown) -> None:
    """Nothing but the figure is written, and the numbers stay as they are."""
    source = Path(shutil.copy(RESULTS / f"{name}.json", tmp_path))
    previous_bytes = source.read_bytes()
    plot([source], tmp_path / "again.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.png", source.name]
    assert source.read_bytes() == previous_bytes and f"Numbers: {source}" in capsys.readouterr().out
    (figure,) = figures
    assert len(figure.axes) == 5 and titles(figure)[0] == "Score of each seed"
    labels = {label.get_text() for label in figure.axes[0].get_yticklabels()}
    ablation_labels = {"full", "raw-commands", "max-command", "return-advantage", "no-bootstrap", "published"}
    assert labels == ({"RCP-A", "RCP-R", "UDRL"} if name == "lunarlander" else ablation_labels)


def test_what_holds_no_numbers_is_one_line(tmp_path: Path, capsys: Shown) -> None:
    (tmp_path / "x.json").write_text("{}")
    for main in (gradients.main, cells.main):
        refused(main, [str(tmp_path / "x.json"), "--out", str(tmp_path / "x.png")], "holds no numbers of this", capsys)
    refused(synthetic.main, ["--out", str(tmp_path / "x.png")], "hold nothing to draw", capsys)
    refused(cells.main, [str(tmp_path), "--plot_format", "jpg"], "plot_format is 'jpg'; allowed: png, pdf, svg", capsys)
    with pytest.raises(SettingError, match="no curves and fewer than two groups of three seeds: there is nothing"):
        plot([RESULTS / "lunarlander_sparse.json"], tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()
