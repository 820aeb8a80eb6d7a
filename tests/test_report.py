"""`--report`: a page of one file with curves, tables, films and settings of runs."""

import base64
import contextlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

import trainer
from control.commands.train import _score_lines
from control.films.encoding import mp4
from control.reports.figures import figure_panels
from control.reports.run_folders import ReportGroup
from control.reports.runs import Run, find_groups, read_runs
from control.reports.tables import Table, number_text, percent_text, summarise, with_margin
from control.storage import checkpoints
from control.storage.run_dir import RESULTS, folder_lock
from control.storage.versions import read_versions, versions, write_versions
from fake_runs import Shown, write_run
from helpers import trained

LINE = ["--gamename", "lunarlander"]


class Page(HTMLParser):
    """Parsed tags and texts of a page."""

    VOID = ("meta", "img", "br", "hr", "path", "use", "link", "source", "input", "wbr")

    def __init__(self, path: Path):
        super().__init__()
        self.source = path.read_text()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(self.source)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.tags if name == tag]


def numbers(level: float) -> Any:
    def row(epoch: int, seed: int) -> dict[str, float]:
        value = level + epoch + seed
        return {
            "rollout/return_mean": value,
            "eval/return_greedy": value + 1,
            "train/policy_loss": 1 / epoch,
            "time/elapsed": epoch,
        }

    return row


@pytest.fixture
def compared(logdir: Path) -> Path:
    """Two algorithms with three seeds and different learning rates, a film, and names to escape."""
    for name, lr in (("UDRL", "0.001"), ("RCP-R", "0.002")):
        for seed in (25, 26, 27):
            flags = [*LINE, "--lr", lr, "--seed", str(seed)]
            folder = write_run(logdir, name, numbers(10.0), flags=flags, seeds=[seed], name="a<b>&c")
    with mp4(folder / "videos" / "final.mp4", 8) as add:
        for picture in np.random.default_rng(0).integers(0, 255, (8, 64, 64, 3), np.uint8):
            add(picture)
    return logdir


def make_page(*argv: str | Path, out: Path) -> Page:
    assert trainer.main(["--report", *map(str, argv), "--report_out", str(out)]) == 0
    return Page(out)


def pictures(page: Page) -> list[str]:
    """Return the SVGs of all figures."""
    urls = [attrs["src"] for attrs in page.all("img")] + [attrs["srcset"] for attrs in page.all("source")]
    assert all(url.startswith("data:image/svg+xml;base64,") for url in urls)
    return [base64.b64decode(url.partition(",")[2]).decode() for url in urls]


def check_page(page: Page) -> None:
    """Properties of every page: no links to outside, valid ids, accessibility."""
    source = page.source
    assert len(source.encode()) < 5_000_000
    assert not re.search(r"""(src|href|action|data|poster)\s*=\s*["']?\s*(https?:|//|file:|/)""", source)
    assert not re.search(r"@import|url\(\s*['\"]?(https?:|//|data:font)|<script|<iframe|<link", source)
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert page.all("html")[0]["lang"] == "en" and page.all("title") and len(page.all("h1")) == 1
    assert all(attrs.get("alt") for attrs in page.all("img"))
    assert all(attrs.get("aria-label") for attrs in page.all("video") + page.all("svg"))
    assert all(attrs.get("scope") in ("col", "row") for attrs in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert page.all("main") and page.all("nav") and all("tabindex" in item for item in page.all("pre"))
    assert {"viewport", "color-scheme"} <= {item.get("name") for item in page.all("meta")}
    assert "prefers-color-scheme: dark" in source


@pytest.mark.draws
def test_page_compares_algorithms(compared: Path, tmp_path: Path, capsys: Shown) -> None:
    page = make_page(compared, out=tmp_path / "page.html")
    assert capsys.readouterr().out.startswith(f"Report: {tmp_path / 'page.html'} (")
    check_page(page)
    assert "RCP-R, UDRL on lunarlander" in page.text
    # means over seeds 25, 26, 27 and the last tenth of 40 epochs, 37 to 40 (10 + 38.5 + 26 + 1)
    assert "Returns at the end of training; evaluation: greedy; solved from: 200 " in page.text
    assert "RCP-R 75.5 75.5 [74.5, 76.5] not solved, interrupted 77.0 40,000 2 min 0 s" in page.text
    ends = (f"Not solved (200 or more): {name} returns 75.5 at the end of training" for name in ("RCP-R", "UDRL"))
    assert ", the mean of 3 seeds. ".join(ends) in page.text
    assert "seed 27 40 40,000 75.5 (77.0) 76.5 (78.0)" in page.text
    headings = [page.source.find(f">{name}</h") for name in ("Curves", "Scores")]
    assert headings == sorted(headings) and headings[0] > 0
    assert page.source.count("<code>") > 3 and "`" not in page.text
    assert len(page.all("pre")) + len(page.all("video")) == len(page.all("button"))
    assert len(page.all("img")) == len(page.all("source")) == 2  # curves, and the comparison of scores
    for svg in pictures(page):
        assert "prefers-color-scheme: dark" in svg and "var(--c0)" in svg
        assert "#0072b2" not in svg.partition("</style>")[2]
    video = page.all("video")[0]["src"]
    film = next(compared.glob("**/final.mp4"))
    assert page.all("video")[0]["poster"].startswith("data:image/jpeg;base64,/9j/")
    assert video.startswith("data:video/mp4;base64,") and base64.b64decode(video.partition(",")[2]) == film.read_bytes()
    sections = page.text.partition(" Settings RCP-R ")[2].partition(" Repeat ")[0].partition(" UDRL Not ")
    for section, lr in ((sections[0], "0.002"), (sections[2], "0.001")):
        changed, _, folded = section.partition("All ")
        assert f"lr {lr} " in changed and "max_grad_norm" not in changed and " max_grad_norm " in folded
        assert "implementation" not in changed and " seed " not in changed and " seed 25 | 26 | 27 " in folded
    links = [attrs["href"] for attrs in page.all("a") if attrs["href"].endswith("metrics.csv")]
    assert len(links) == 6 and all((tmp_path / unquote(link)).is_file() for link in links)  # relative to the page
    assert " max_weight " in sections[0] and " max_weight " not in sections[2]  # of one of the agents
    command = "python trainer.py --implementation RCP-R --gamename lunarlander --seed 25 --lr 0.002"
    commands = f"{command} python trainer.py --implementation RCP-R --gamename lunarlander --seed 26"
    assert commands in page.text
    assert "a<b>" not in page.source and "before versions were noted" in page.text


@pytest.mark.draws
def test_page_of_one_run_has_its_results_films_and_settings(logdir: Path, capsys: Shown, brief: None) -> None:
    folder = trained(logdir, "--record", "--record_episodes", "1", epochs=4, time_limit=9, lr=2e-3)
    printed = capsys.readouterr().out
    assert "the best agent, greedy: one episode, return 9" in printed
    assert {path.name for path in (folder / "videos").iterdir()} == {"final.mp4", "final.gif", "final.txt"}
    assert trainer.main(["--report", str(folder)]) == 0
    page = Page(folder / "report.html")
    check_page(page)
    assert "UDRL on cartpole" in page.text and len(page.all("video")) == 1
    lead = r"Not solved \(475 or more\): UDRL returns (\d+\.\d) at the end of training\."
    (result,) = re.findall(lead, page.text)
    assert f" {result} " in page.text.partition(" best greedy ")[2]
    run_state = checkpoints.load(folder).run_state
    score = f"{number_text(run_state['best'])} at epoch {run_state['epoch']}, not solved (475 or more)"
    assert f"best.ckpt: mean greedy return {score}." in page.text
    assert f"mean greedy return {score}" in re.sub(r"\s+", " ", printed)
    assert "The trained agent: seed 25, one episode, return 9" in page.text
    (group,) = find_groups([folder])
    group.runs[0].columns["eval/return_greedy"] -= 1  # as if the second evaluation had another return
    sentence = ReportGroup(group.names, group.runs, "UDRL", summarise(group)).checkpoint_sentence
    best, epoch = run_state["best"], run_state["epoch"]
    evaluations = f"({number_text(best - 1)}, and {number_text(best + 1)} in a second evaluation)"
    assert f" {number_text(best)} at epoch {epoch} {evaluations}, not solved (475 or more)." in sentence
    changed_settings = page.text.partition("Not the default")[2].partition("All ")[0]
    assert (
        "between the runs" not in page.text
        and "lr 0.002 " in changed_settings
        and "time_limit 9 null " in changed_settings
    )
    assert "discount" not in changed_settings
    current_versions = versions()
    assert read_versions(folder) == [{"from": "1"} | current_versions]
    assert f"torch {current_versions['torch']}" in page.text and current_versions["understudy"] in page.text
    assert "--lr 0.002" in page.text.partition("Repeat")[2]
    capsys.readouterr()
    assert trainer.main(["--report", str(folder)]) == 0  # replaces the page
    assert [path.name for path in folder.glob("*.html")] == ["report.html"]


@pytest.mark.draws
def test_page_of_a_search_of_hyperparameters_leads_with_the_best_trial(logdir: Path, tmp_path: Path) -> None:
    """A trial that its search has stopped counts as finished."""
    search = logdir / "lunarlander" / "debug" / "PPO" / "tune" / "version_0"
    search.mkdir(parents=True)
    header = "trial,status,epoch,env_steps,score,best_epoch,lr,checkpoint\n"
    rows = "2,finished,40,400,87.5,40,0.01,\n1,stopped early,10,100,60.25,10,0.02,\n"
    (search / "results.csv").write_text(header + rows)
    for number in (1, 2):
        folder = write_run(logdir, "PPO", lambda epoch, _: {"eval/return_greedy": epoch}, name=f"name_{number}")
        folder.rename(search / f"trial_{number}")
    page = make_page(search, out=tmp_path / "page.html")
    check_page(page)
    assert "Search of hyperparameters" in page.text and "2 trials" in page.text and "Not finished" not in page.text
    assert (
        "Best of 2 trials: trial 2, score 87.5, not solved (200 or more)." in page.text
        and "Its settings: lr 0.01." in page.text
    )
    results = page.text.partition("Returns at the end of training")[2]
    assert results.index("finished") < results.index("stopped early")
    assert " run lr trial 2 0.01 trial 1 0.02 A figure of their importance needs 10 trials" in results
    (search / "results.csv").write_text(header + rows.replace("87.5", "38.5").replace("60.25", "38.5"))
    same = make_page(search, out=tmp_path / "same.html").text  # the mean is the score
    assert " run score verdict state best training steps trial 2 38.5 not solved finished 40.0 40,000 " in same
    single = make_page(search / "trial_1", out=tmp_path / "single.html")
    assert "Search of hyperparameters" not in single.text and "Best of" not in single.text
    (search / "results.csv").write_text(header + "1,finished,40,400,,,0.01,\n2,finished,40,400,,,0.01,\n")
    assert "None of 2 trials has a score." in make_page(search, out=tmp_path / "empty.html").text


@pytest.mark.draws
def test_page_of_several_searches_of_hyperparameters_separates_them(logdir: Path, tmp_path: Path) -> None:
    """A trial that searches for proxies has a folder for each of its seeds."""

    def row(epoch: int, seed: int) -> dict[str, float]:
        return {"search/center_return": epoch + seed, "search/fitness_mean": epoch}

    header = "trial,status,epoch,env_steps,score,best_epoch,lr,checkpoint\n"
    for version in (0, 1):
        search = logdir / "cartpole" / "debug" / "SE" / "tune" / f"version_{version}"
        for trial in range(1, 3):
            (search / f"trial_{trial}").mkdir(parents=True)
            for seed in (5, 6):
                folder = write_run(logdir, "SE", row, seeds=(seed,), name=f"{version}_{trial}", epochs=4)
                folder.rename(search / f"trial_{trial}" / f"seed_{seed}")
        rows = f"2,finished,4,40,{70 + version},4,1e-05,\n1,stopped early,4,40,60,4,0.02,\n"
        (search / "results.csv").write_text(header + rows)
    text = make_page(search, out=tmp_path / "one.html").text
    assert "Search of hyperparameters: SE on cartpole 2 trials " in text
    assert "Best of 2 trials: trial 2, score 71.0. Its settings: lr 1e-05 ." in text
    results = text.partition(" run score mean ")[2]  # a mean over seeds of their last generation
    assert results.index("trial 2 71.0 9.5 finished ") < results.index("trial 1 60.0 9.5 stopped early ")
    assert "seed 6 4 4,000 4.0 (4.0) 10.0 (10.0)" in text.partition("Returns of the seeds of trial 2")[2]
    page = make_page(search.parent, out=tmp_path / "two.html")
    check_page(page)
    assert "Searches of hyperparameters: SE on cartpole 4 trials " in page.text
    for version in (0, 1):
        assert f"tune {version}: Best of 2 trials: trial 2, score {70 + version}.0." in page.text
        assert f" tune {version}/trial 1 60.0 9.5 " in page.text


@pytest.mark.draws
def test_page_of_trials_names_trials_without_losses(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their training ends before the first update."""
    notes = []

    def note(*args: Any, **kwargs: Any) -> Any:
        notes.append(kwargs["note"])
        return figure_panels(*args, **kwargs)

    monkeypatch.setattr("control.reports.figures.figure_panels", note)
    write_run(logdir, "PPO", numbers(10.0))
    write_run(logdir, "A2C", lambda epoch, _: {"rollout/return_mean": epoch})
    make_page(logdir, out=logdir / "page.html")
    assert notes[0].endswith("; no loss was logged: A2C")


@pytest.mark.draws
@pytest.mark.parametrize(("last_return", "state"), [(10, "interrupted after 40 of 100 epochs"), (300, "")])
def test_a_run_short_of_its_target_is_interrupted(last_return: float, state: str, logdir: Path, tmp_path: Path) -> None:
    flags = ["--gamename", "lunarlander", "--target_return", "250", "--epochs", "100"]
    folder = write_run(logdir, "PPO", lambda epoch, _: {"eval/return_greedy": last_return}, flags=flags)
    page = make_page(folder, out=tmp_path / "page.html")
    assert (state or "PPO returns 300.0") in page.text and ("interrupted" in page.text) == bool(state)


@pytest.mark.draws
@pytest.mark.parametrize(
    "table", ["trial,reward\n1,12\n", "trial,status,score,best_epoch,checkpoint\n1,,abc,,\n", "\x00"]
)
def test_results_of_other_programs_are_ignored(table: str, logdir: Path, tmp_path: Path) -> None:
    folder = write_run(logdir, "PPO", lambda epoch, _: {"eval/return_greedy": epoch}).rename(tmp_path / "trial_1")
    (tmp_path / "results.csv").write_text(table)
    check_page(make_page(folder, out=tmp_path / "page.html"))


@pytest.mark.draws
def test_page_of_a_search_has_its_scores_and_verdict(logdir: Path, tmp_path: Path, capsys: Shown) -> None:
    folder = trained(logdir, "--no_compiled", implementation="SE")
    page = make_page(folder, out=tmp_path / "page.html")
    check_page(page)
    assert "Returns of new agents that trained on the winner" in page.text
    assert len(pictures(page)) == 4  # curves and behaviour, wide and narrow
    assert all("prefers-color-scheme: dark" in svg and "var(--c0)" in svg for svg in pictures(page))
    scores = json.loads((folder / "scores.json").read_text())
    mean = f"{scores['report']['mean']:.1f}"
    lead = f"Not solved (475 or more): 3 new agents that trained on the winner of SE return {mean}."
    iqm, low, high = (scores["report"][name] for name in ("iqm", "iqm_low", "iqm_high"))
    assert f" {iqm:.1f} [{low:.1f}, {high:.1f}] " in page.text
    sentence = scores["verdict"]["sentence"].removeprefix("Not solved. ")
    assert f"{lead} {sentence} " in page.text and "Held-out:" not in page.text
    assert "last tenth of the generations" in page.text
    assert '<p class="conclusion bad">' in page.source
    assert re.search(r"1 seed, [\d,]+ steps of all agents, [\d,]+ real steps", page.text)
    assert " worst solved steps of a new agent steps of the search seed 1 3 19.2 " in page.text and " 0 % " in page.text
    agent = write_run(logdir, "PPO", numbers(10.0), game="cartpole")
    both = make_page(folder, agent, out=tmp_path / "page.html").text  # mean and IQM once, in the first table
    assert (
        f" SE {mean} {iqm:.1f} [{low:.1f}, {high:.1f}] not solved held-out " in both and both.count(f"{iqm:.1f} [") == 1
    )
    assert re.search(r" PPO 74\.5 - not solved greedy 76\.0 40,000 40,000 ", both)  # training steps, all of them real
    header = "run new agents std worst solved steps of a new agent steps of the search"
    assert f" trained on the winner {header} SE, seed 1 3 " in both
    assert f" Learned {scores['verdict']['sentence']} " in both
    steps = "steps until the median agent solves a test: 325 (task's reward: 1,475)."
    scores["verdict"]["sentence"] += f" The learned reward helps: {steps}"
    (folder / "scores.json").write_text(json.dumps(scores))
    text = make_page(folder, out=tmp_path / "page.html").text
    assert " run steps to solve, learned reward steps to solve, task's reward new agents " in text
    assert " seed 1 325 1,475 3 " in text and "Steps to solve: until the median agent solves a test." in text
    (folder / "scores.json").unlink()  # as while the search runs
    page = make_page(folder, out=tmp_path / "page.html")
    assert "SE: without a held-out evaluation; new agents returned " in page.text
    assert "3 new agents that trained" not in page.text and "ot solved" not in page.text
    metrics = folder / "metrics.csv"
    lines = metrics.read_text().splitlines()
    metrics.write_text("\n".join(lines[:3]) + "\n")  # two of three generations
    for state in ("interrupted", "still running"):
        with folder_lock(folder) if state == "still running" else contextlib.nullcontext():
            text = make_page(folder, out=tmp_path / "page.html").text
        pattern = rf"SE: {state} after 2 of 3 generations; new agents returned [\d.]+ after generation \d\."
        assert re.search(pattern, text) and "Not finished" not in text
    assert re.search(r" generations 3 \d+ largest number", page.text) and "--checkpoint_every" not in page.text


@pytest.mark.parametrize(("flags", "text"), [
    (["--epochs", "40"], ""), (["--total_steps", "40000"], ""),
    (["--epochs", "50"], "Not finished: PPO, seed 25-26, interrupted after 40 of 50 epochs."),
    (["--epochs", "50", "--target_return", "9"], ""),
])  # fmt: skip
def test_page_names_interrupted_runs(flags: list[str], text: str, logdir: Path, tmp_path: Path) -> None:
    write_run(logdir, "PPO", numbers(10.0), flags=[*LINE, *flags], seeds=(25, 26))
    page = make_page(logdir, out=tmp_path / "page.html")
    assert text in page.text and ("interrupted after" in page.text) == bool(text)
    assert "2 seeds, 40,000 steps, 40 s of training and tests, experiment debug" in page.text  # side by side
    assert ('class="conclusion bad"' in page.source) != bool(text)


def test_page_is_in_the_folder_that_the_user_named(logdir: Path) -> None:
    learned = logdir / "debug" / "learned" / "seed_25" / "version_0"
    teacher = write_run(learned, "PPO", numbers(10.0), name="teacher")
    other = write_run(logdir, "A2C", numbers(10.0))
    for name in (RESULTS, "teacher.ckpt"):
        (learned / name).touch()
    (learned / "page.html").touch()
    assert trainer.main(["--report", str(logdir)]) == 0
    page = Page(logdir / "report.html")
    assert "PPO" not in page.text and "Beside these runs: a learned environment" in page.text
    (address,) = [item["href"] for item in page.all("a") if item["href"].endswith("page.html")]
    assert (logdir / address).resolve() == learned / "page.html"
    shutil.rmtree(other)
    assert trainer.main(["--report", str(learned)]) == 0
    assert "Beside these runs" not in Page(learned / "report.html").text
    assert 'href="page.html"' in (learned / "report.html").read_text()
    assert trainer.main(["--report", str(teacher)]) == 0
    assert (teacher / "report.html").is_file()


def test_page_of_many_groups_names_the_best(logdir: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("PPO", "A2C", "DDQN", "SAC", "UDRL")):
        write_run(logdir, name, numbers(50.0 * number), epochs=10)  # the last is 50 * number + 10 + 25 + 1
    text = make_page(logdir, out=tmp_path / "page.html").text
    lead = (
        "Solved by 1 of 5 groups. Solved (200 or more): UDRL returns 236.0 at the end of training; first solved at step"
    )
    lists = "Solved: UDRL. Not solved: SAC, DDQN, A2C, PPO."
    assert f" {lead} 1,000. {lists} Results" in text and " SAC returns " not in text
    for name in ("AAC", "BPG", "TD3", "UDRL-R", "RCP-A"):
        write_run(logdir, name, numbers(0.0), epochs=10, name="others")
    text = make_page(logdir, out=tmp_path / "page.html").text
    assert re.search(r" Not solved: debug/SAC, (\S+, ){6}\S+ and 1 more\. Results", text)
    shutil.rmtree(logdir / "lunarlander/others")
    shutil.rmtree(logdir / "lunarlander/debug/PPO")
    text = make_page(logdir, out=tmp_path / "page.html").text  # each of four, with its mean
    assert re.search(r"Solved by 1 of 4 groups\. .* UDRL .* SAC .* DDQN .*: A2C returns 86\.0 ", text)
    assert "Solved: UDRL" not in text and " real steps " not in text


def test_page_begins_with_solved_environments(logdir: Path, tmp_path: Path) -> None:
    write_run(logdir, "PPO", numbers(100.0), game="cartpole")  # returns up to 163, solved from 475
    write_run(logdir, "PPO", numbers(-160.0), game="acrobot")  # solved from -100
    page = make_page(logdir, out=tmp_path / "page.html")
    assert page.text.index("Solved (-100 or more): acrobot returns ") < page.text.index("Not solved (475 or more)")
    for name in ("A2C", "DDQN", "TD3"):
        write_run(logdir, name, numbers(90.0), game="cartpole")
    text = make_page(logdir, out=tmp_path / "page.html").text  # of five groups, the best in each environment
    assert "acrobot/PPO returns " in text and "cartpole/PPO returns " in text and "cartpole/A2C returns " not in text


def test_settings_have_defaults_or_an_explanation_of_empty_cells(logdir: Path, tmp_path: Path) -> None:
    """Runs with a number of steps store no ``epochs``, and TD3 alone has ``twin_critics``."""
    for name, flags in (("a", ["--epochs", "4"]), ("b", ["--total_steps", "9000"])):
        write_run(logdir, "PPO", numbers(10.0), flags=[*LINE, *flags], name=name)
    settings = make_page(logdir, out=tmp_path / "page.html").text.partition(" Settings ")[2]
    assert " epochs 4 null 2,000 " in settings and " total_steps null 9,000 null " in settings
    assert "-: not a setting" not in settings and "SE, RN" not in settings  # these are other implementations
    assert "so with total_steps or a few steps more" in make_page(logdir, out=tmp_path / "page.html").text
    for game in ("cartpole", "pendulum"):
        write_run(logdir, "SE", numbers(10.0), flags=["--gamename", game], game=game)
    text = make_page(logdir / "cartpole", logdir / "pendulum", out=tmp_path / "page.html").text
    assert "--proxy" not in text.rpartition(" Repeat ")[2]  # the default
    assert " setting cartpole pendulum default meaning " in text and " twin_critics - true " in text
    assert "Not the default, or different between the runs; -: not a setting of this run" in text


def test_page_of_equal_results_begins_with_the_finished_run(logdir: Path, tmp_path: Path) -> None:
    for name, epochs in (("A2C", "80"), ("PPO", "40")):
        write_run(logdir, name, numbers(50.0), flags=[*LINE, "--epochs", epochs])
    page = make_page(logdir, out=tmp_path / "page.html")
    assert page.text.index(" PPO returns ") < page.text.index(" A2C returns ")
    assert page.source.count('class="not-solved" data-name="verdict">not solved,<br>') == 1
    rows = re.findall(r'<th scope="row">(PPO|A2C)<', page.source)
    assert rows[:2] == ["PPO", "A2C"]


def test_page_names_each_interrupted_search(logdir: Path, tmp_path: Path) -> None:
    def row(epoch: int, seed: int) -> dict[str, float]:
        return {"search/center_return": epoch, "search/fitness_mean": epoch}

    for name in ("a", "b", "c", "d", "e"):  # the conclusion has sentences about four
        flags = ["--gamename", "cartpole", "--generations", "9"]
        write_run(logdir, "SE", row, flags=flags, epochs=3, game="cartpole", name=name)
    text = make_page(logdir, out=tmp_path / "page.html").text
    assert "a: interrupted after 3 of 9 generations; new agents returned 3.0 after generation 3." in text
    others = "; ".join(f"{name}, seed 25, interrupted after 3 of 9 generations" for name in ("b", "c", "d", "e"))
    assert f" Not finished: {others}." in text


def test_page_has_the_other_runs_if_one_is_damaged(logdir: Path, tmp_path: Path, capsys: Shown) -> None:
    write_run(logdir, "PPO", numbers(10.0))
    damaged = write_run(logdir, "A2C", numbers(10.0)) / "metrics.csv"
    damaged.write_text("")
    assert "PPO returns" in make_page(logdir, out=tmp_path / "page.html").text
    assert f"warning: left out: '{damaged}' is no metrics.csv of numbers" in capsys.readouterr().out
    assert trainer.main(["--report", str(damaged.parent)]) == 2  # the user named it
    assert "error: " in capsys.readouterr().err


def test_page_explains_only_what_it_shows(logdir: Path, tmp_path: Path) -> None:
    run = write_run(logdir, "PPO", numbers(10.0))
    assert "IQM:" not in make_page(run, out=tmp_path / "page.html").text
    write_run(logdir, "PPO", numbers(10.0), seeds=(26,))
    page = make_page(logdir, out=tmp_path / "page.html")
    assert "IQM" not in page.text and "95 %" not in page.text and page.source.count('"number"') == 16  # of two seeds
    assert (
        "Returns of the seeds of PPO, in brackets the best run" in page.text and " tenth of the epochs. " in page.text
    )
    write_run(logdir, "PPO", numbers(10.0), seeds=(27,))
    assert "IQM:" in make_page(logdir, out=tmp_path / "page.html").text


def test_sentence_has_the_step_at_which_all_seeds_have_solved(logdir: Path, tmp_path: Path) -> None:
    def row(epoch: int, seed: int) -> dict[str, float]:
        return {"eval/return_greedy": 190.0 if seed == 27 else 240.0}

    write_run(logdir, "PPO", row, seeds=(25, 26, 27))
    text = make_page(logdir, out=tmp_path / "page.html").text
    assert "PPO returns 223.3 at the end of training, the mean of 3 seeds. " in text  # seed 27 has not
    assert "3 seeds, 40,000 steps, experiment debug" in text  # an earlier version logged no time


def test_page_has_no_time_if_a_run_lacks_it_at_first(logdir: Path, tmp_path: Path) -> None:
    """A run of an earlier version that was resumed has the time since then alone."""

    def row(epoch: int, seed: int) -> dict[str, float]:
        return {"eval/return_greedy": 7.0} | ({"time/elapsed": epoch} if epoch > 20 else {})

    write_run(logdir, "PPO", row)
    assert " of training and tests" not in make_page(logdir, out=tmp_path / "page.html").text


@pytest.mark.parametrize("tag", ["eval/return_greedy", "rollout/return_running_mean"])
def test_score_lines_of_seeds_with_different_numbers_of_evaluations(logdir: Path, tag: str) -> None:
    def row(epoch: int, seed: int) -> dict[str, float]:
        return {"eval/return_greedy": seed + epoch} if seed == 20 or epoch == 1 else {}

    runs = read_runs(write_run(logdir, "BPG", row, seeds=(20, 30), epochs=10) / "metrics.csv")
    runs.append(Run(40, runs[0].source, {"epoch": runs[0].columns["epoch"]}))  # without evaluations
    loop = SimpleNamespace(score_tag=tag, score_name="score")
    agents: Any = SimpleNamespace(loop=loop, best=3.0, settings=SimpleNamespace(run=SimpleNamespace(gamename="cliff")))
    expected = {
        "eval/return_greedy": ("last tenth", "30.5"),
        "rollout/return_running_mean": ("best", "greedy return 30.5"),
    }
    name, text = expected[tag]  # (30 + 31) / 2
    assert dict(_score_lines(agents, runs, 1))[name].endswith(text)


def test_columns_are_in_the_order_of_the_rows_keys() -> None:
    table = Table.of_rows([{"run": "DDQN", "IQM": "-", "steps": "9"}, {"run": "PPO", "IQM": "7", "steps": "9"}])
    assert table.rows[0] == ["run", "IQM", "steps"]


def test_page_has_the_end_and_the_best_of_a_short_run(logdir: Path, tmp_path: Path) -> None:
    """Only the last of ten epochs is at the end."""
    write_run(logdir, "PPO", lambda epoch, seed: {"eval/return_greedy": 250.0 if epoch == 4 else 7.0}, epochs=10)
    text = make_page(logdir, out=tmp_path / "page.html").text
    assert "Not solved (200 or more): PPO returns 7.0 at the end of training." in text
    assert "best greedy solved at step seed 25 10 10,000 7.0 250.0 4,000 " in text


def test_numbers_of_tables_have_three_digits_below_1() -> None:
    texts = [number_text(value) for value in (None, -0.0, -1936.04, 475.0, 0.01234, -0.5)]
    assert texts == ["-", "0.0", "-1,936.0", "475.0", "0.0123", "-0.500"]
    assert [with_margin(247.28, 5.06), percent_text(-0.001)] == ["247.3 ± 5.1", "0 %"]


def test_versions_are_noted_on_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_versions(tmp_path, 1)
    write_versions(tmp_path, 5)
    assert len(read_versions(tmp_path)) == 1
    changed = versions() | {"torch": "0.1"}
    monkeypatch.setattr("control.storage.versions.versions", lambda: changed)
    write_versions(tmp_path, 7)
    assert [(entry["from"], entry["torch"]) for entry in read_versions(tmp_path)][1:] == [("7", "0.1")]
    write_versions(tmp_path, 7)  # again from the checkpoint
    assert [entry["from"] for entry in read_versions(tmp_path)] == ["1", "7"]
    monkeypatch.undo()
    write_versions(tmp_path, 5)  # from an earlier checkpoint, with the first versions again
    assert [entry["from"] for entry in read_versions(tmp_path)] == ["1"]


def test_finished_version_counts_rather_than_an_interrupted_newer_one(logdir: Path, tmp_path: Path) -> None:
    flags = [*LINE, "--epochs", "40"]
    for version, epochs in enumerate((40, 40, 9)):  # the last two are newer, and the last was interrupted
        level = 100.0 * version
        folder = write_run(logdir, "PPO", numbers(level), flags=flags, epochs=epochs, version=version)
    assert "seed 25 40 40,000 163.5 164.5 165.0 166.0 " in make_page(logdir, out=tmp_path / "page.html").text
    assert "interrupted after 9 of 40 epochs" in make_page(folder, out=tmp_path / "page.html").text
    with folder_lock(folder):  # still running
        assert "seed 25 9 9,000" in make_page(logdir, out=tmp_path / "page.html").text
