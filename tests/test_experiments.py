"""Scripts of experiments/: errors, numbers by hand, the published figures, and the smoke test of docs/smoke_test.md."""

import hashlib
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

import fake_runs
from conftest import ROOT
from control.cli.parse import parse
from control.reports.runs import read_runs
from experiments.comparison import sample_settings
from fake_runs import Shown, is_png, load_script, refused
from models.agents.model_generalisation.config import PRESETS
from models.settings import SettingError

rewards, exam, physics = (
    load_script(name) for name in (
        "reward_networks/compare", "synthetic_environments/exam", "synthetic_environments/physics",
    )
)  # fmt: skip
gradients, cells = load_script("policy_gradients/figure"), load_script("model_generalisation/figure")
parity, tasks = load_script("model_generalisation/parity"), load_script("learned_tasks")
bugs = load_script("synthetic_environments/planted_bugs")
TEXT, RESULTS, IMAGES = ROOT / "pyproject.toml", ROOT / "docs/results", ROOT / "docs/images"
OTHER = RESULTS / "reliability.json"
NOT_OURS = f"json is '{OTHER}', which holds no numbers of this script; allowed: a new file, or one of this script"


def test_the_figure_of_learned_tasks_has_short_names() -> None:
    names = ("experiments.tasks.battery:Battery-v0", "LunarLander-v3")
    assert [tasks.short_name(name) for name in names] == ["Battery", "LunarLander-v3"]


@pytest.mark.parametrize(("script", "flags", "message"), [
    (rewards, f"cliff --json {TEXT} --only", f"json is '{TEXT}', which is no JSON"),
    (rewards, "cliff --trained_steps 9", "--trained_steps has no effect: the optimal values of cliff are known"),
    (physics, f"--json {OTHER}", NOT_OURS),
    (physics, "--spread 0.5", "spread is 0.5; allowed: number, at least 1.0, at most 10.0"),
    (exam, "cartpole-bandit pendulum-bandit", "'pendulum-bandit', whose actions are continuous; allowed with DDQN"),
    (parity, "--fixture A --agents GaussianLatent", "agents is GaussianLatent; none of them is in fixture A"),
    (bugs, "--seeds 0", "seeds is 0"),
    (cells, ". --plot_format jpg", "plot_format is 'jpg'; allowed: png, pdf, svg"),
])  # fmt: skip
def test_flag_error_message(
    script: ModuleType, flags: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    monkeypatch.chdir(tmp_path)
    previous_bytes = OTHER.read_bytes()
    refused(script.main, flags.split(), message, capsys)
    assert OTHER.read_bytes() == previous_bytes and not list(tmp_path.glob("*.png"))


def test_new_rows_are_added_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "rewards.json"
    for name in ("native", "optimal"):
        argv = f"cliff --only {name} --agents 2 --steps 20 --every 10 --late 0 --set gamma=0.9 --json {file}".split()
        assert rewards.main(argv) == 0
    rows = json.loads(file.read_text())["cliff, QLearning, gamma=0.9"]
    assert [rows[name]["late"]["from"] for name in ("native", "optimal")] == [0, 0]


def test_samples_of_a_search_space_are_in_its_ranges(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(
        "lr: {loguniform: [1e-4, 1e-2]}\nbatch_size: {randint: [4, 6]}\ndiscount: {log1m: [0.01, 0.1]}\n"
        "activation: [relu, tanh]\nwidth: {lograndint: [8, 16]}\ndepth: [1, 2]\n"
    )
    words = f"--implementation DDQN --gamename cartpole --search_space {tmp_path / 'space.yaml'}".split()
    samples = sample_settings(words, 200, seed=3)
    assert samples == sample_settings(words, 200, seed=3) != sample_settings(words, 200, seed=4)
    values = {name: [sample[name] for sample in samples] for name in samples[0]}
    assert set(values["batch_size"]) == {4, 5, 6} and set(values["activation"]) == {"relu", "tanh"}
    assert {len(sizes) for sizes in values["hidden_sizes"]} == {1, 2} and values.keys().isdisjoint({"width", "depth"})
    assert {size for sizes in values["hidden_sizes"] for size in sizes} == {*range(8, 17)}
    assert (
        min(values["lr"]) < 2e-4
        and max(values["lr"]) > 5e-3
        and sum(lr < 1e-3 for lr in values["lr"]) in range(80, 120)
    )
    assert min(values["discount"]) < 0.92 and max(values["discount"]) > 0.98


def test_agents_are_tuned_for_each_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A discount of 0 shows Q-learning no way to the goal, so the other one of two samples is chosen."""
    monkeypatch.setattr(rewards, "sample_settings", lambda words, count, seed: [{"discount": 0.9}] * count)
    argv = f"cliff --only --set gamma=0 --tune 3 --agents 2 --json {tmp_path / 'tuned.json'}".split()
    assert rewards.main([*argv, "--reward", "learned=cliff-additive-potential"]) == 0
    (rows,) = json.loads((tmp_path / "tuned.json").read_text()).values()
    assert rows["native, tuned"]["settings"] == {"discount": 0.9} and rows["native"]["late"]["solved"] == 0
    assert rows["native, tuned"]["late"]["solved"] == 1 and "settings" in rows["learned, tuned"]


def test_no_published_figure_is_older_than_its_numbers() -> None:
    """The commands of the page on the paper name the source of each of its figures."""
    page = (ROOT / "docs/paper.md").read_text()
    pairs = re.findall(
        r"^python experiments/.* (docs/results/\w+\.json).* --out exp_dir/(\w+)\.png", page, re.MULTILINE
    )
    sources = {IMAGES / f"{name}{dark}.png": ROOT / source for source, name in pairs for dark in ("", "_dark")
               if not name.endswith("_dark")}  # fmt: skip
    sources |= {
        path: path.with_name(f"{re.sub('(_acrobot|_cliff|_cartpole)?(_dark)?(_narrow)?$', '', path.stem)}.json")
        for path in RESULTS.glob("*.png") if "curves" not in path.stem
    }  # fmt: skip
    assert len(pairs) >= 9 and len(sources) >= 26 + 9
    for figure, numbers in sources.items():
        with Image.open(figure) as image:
            assert image.info.get("Numbers") == hashlib.sha256(numbers.read_bytes()).hexdigest(), f"draw {figure} again"


def write_gradients(
    logdir: Path, implementation: str, *flags: str, seeds: Sequence[int] = (25, 26), game: str = "beresheet"
) -> Path:
    """A run with a running mean that rises to ``seed`` over 30 of 40 batches and ends at half of it."""
    tags = ["train/policy_loss", "train/entropy_share"]
    tags += ["train/baseline"] * (implementation in ("BPG", "CPG", "AAC"))
    tags += ["train/entropy_loss"] * (implementation in ("EPG", "CPG", "AAC"))

    def numbers(batch: int, seed: int) -> dict[str, float]:
        mean = seed * batch / 30 if batch <= 30 else seed / 2
        return {"rollout/return_running_mean": mean} | {tag: math.exp(-batch / 9) for tag in tags}

    flags = ("--gamename", game, *flags)
    return fake_runs.write_run(logdir, implementation, numbers, flags=flags, seeds=seeds, game=game, steps=100)


def write_cell(logdir: Path, implementation: str, *flags: str, seeds: Sequence[int] = (0, 1), **place: Any) -> Path:
    """A run with 20 evaluations, 500 steps apart. The e-th of seed s is ``10 e + s - 100``; without episodes the
    reward rate is ``(10 e + s) / 100``."""
    settings = parse(["--implementation", implementation, *flags])
    episodic = getattr(settings.agent, "episodic_env", True)

    def numbers(e: int, seed: int) -> dict[str, float]:
        height = 10 * e + seed
        scores = {"eval/return_greedy": height - 100 * episodic}
        return {"train/value_loss": 1 / e} | scores | ({} if episodic else {"eval/reward_rate": height / 100})

    return fake_runs.write_run(
        logdir, implementation, numbers, flags=("--num_seeds", str(len(seeds)), *flags), seeds=seeds, epochs=20,
        steps=500, game=settings.run.gamename.replace(",", "_"), **place,
    )  # fmt: skip


def write_maze(logdir: Path, implementation: str = "ER", *flags: str, **place: Any) -> Path:
    return write_cell(logdir, implementation, "--gamename", "procmaze", *flags, **place)


@pytest.mark.draws
def test_policy_gradient_figure_table_and_numbers(logdir: Path, capsys: Shown) -> None:
    for implementation in ("VPG", "EPG", "BPG", "CPG", "AAC"):
        write_gradients(logdir, implementation)
    write_gradients(logdir / "more", "AAC", "--preset", "aac_tuned", "--batch_episodes", "8", seeds=(7,))
    write_gradients(logdir, "UDRL")
    out = logdir / "figures" / "all.png"
    assert gradients.main([str(logdir), "--out", str(out)]) == 0
    assert is_png(out)
    numbers = json.loads(out.with_suffix(".json").read_text())
    assert (numbers["game"], numbers["running_mean_len"]) == ("beresheet", 100)
    assert list(numbers["arms"]) == ["VPG", "EPG", "BPG", "CPG", "AAC", "AAC, tuned"]
    cpg = numbers["arms"]["CPG"]
    assert cpg["seeds"]["26"] == {"best": 26, "final": 13, "episodes": 40 * 32, "env_steps": 4000}
    assert cpg["over_seeds"]["best"]["mean"] == 25.5 and cpg["over_seeds"]["final"]["mean"] == 12.75
    assert numbers["arms"]["AAC, tuned"]["seeds"]["7"]["episodes"] == 40 * 8
    output = capsys.readouterr().out
    assert "mean return of the last 100 training episodes" in output and "AAC, tuned" in output
    assert str(out) in output and "one seed" in output and "UDRL" not in output
    figure = logdir / "more" / "one.svg"
    assert gradients.main([str(logdir / "more"), "--x", "env_steps", "--out", str(figure)]) == 0
    assert list(json.loads(figure.with_suffix(".json").read_text())["arms"]) == ["AAC, tuned"] and figure.exists()


@pytest.mark.draws
def test_model_generalisation_figure_table_and_numbers(logdir: Path, capsys: Shown) -> None:
    for preset in PRESETS:
        for implementation in ("GaussianLatent", "ER"):
            write_cell(logdir, implementation, "--preset", preset, name=preset)
    write_maze(logdir, "DDQN")
    out = logdir / "figures" / "all.png"
    assert cells.main([str(logdir), "--out", str(out)]) == 0
    assert is_png(out)
    numbers = json.loads(out.with_suffix(".json").read_text())
    assert sorted(numbers["panels"]) == sorted(PRESETS)
    assert all(list(panel["agents"]) == ["ER", "GaussianLatent"] for panel in numbers["panels"].values())
    maze, flute = numbers["panels"]["procmaze_low"], numbers["panels"]["panflute_high"]
    assert (maze["metric"], flute["metric"]) == ("eval/return_greedy", "eval/reward_rate")
    assert maze["references"] == {"optimum": -4.40, "random": -35.36} and maze["threshold"] == pytest.approx(-19.88)
    er = maze["agents"]["ER"]
    # The last tenth of 10,000 steps has evaluations 19 and 20, at 90 and 100, and at one more for the second seed.
    assert (er["seeds"], er["env_steps"], er["last_tenth"]["mean"]) == (2, 10_000, 95.5)
    assert er["last_tenth"]["interval"] is None  # of two seeds
    # A straight line from -90 to 100, and the second seed one higher.
    assert er["area"]["mean"] == pytest.approx(5.5)
    # Means of the seeds are 10 e - 99.5: the first of at least -19.88 is the eighth.
    assert er["steps_to_threshold"] == 4000
    assert flute["agents"]["ER"]["last_tenth"]["mean"] == pytest.approx(1.955)
    assert numbers["panels"]["buttongrid_high"]["threshold"] is None
    output = capsys.readouterr().out
    assert "procmaze_low" in output and "4,000" in output and str(out) in output and "DDQN" not in output


def test_curves_are_smoothed_thinned_and_aligned(logdir: Path) -> None:
    runs = read_runs(write_maze(logdir, seeds=(0,)) / "metrics.csv")
    plain = cells.curves(runs, "eval/return_greedy", 1, 1)
    assert len(plain.steps) == 20 and plain.values[0, 0] == -90
    # Of evaluations 1, 4, 7, ..., 19 the means of three in a row, the first at the seventh.
    smooth = cells.curves(runs, "eval/return_greedy", 3, 3)
    assert smooth.steps.tolist() == [3500, 5000, 6500, 8000, 9500]
    assert smooth.values.tolist() == [[-60, -30, 0, 30, 60]]
    first_run, other = read_runs(write_maze(logdir) / "metrics.csv")
    other.columns = {name: values[1:14:2] for name, values in other.columns.items()}
    shared_curves = cells.curves([first_run, other], "eval/return_greedy", 1, 1)  # at steps of both runs
    assert shared_curves.steps.tolist() == [1000, 2000, 3000, 4000, 5000, 6000, 7000]
    assert (shared_curves.values[1] - shared_curves.values[0]).tolist() == [1] * 7
    with pytest.raises(SettingError, match="window is 21, but .* have 20 evaluations in common"):
        cells.curves(runs, "eval/return_greedy", 21, 1)


@pytest.mark.parametrize(
    ("agent", "bug", "updates"),
    [
        ("DQN", "losses of shape [64, 64]", 500),
        pytest.param("PPO", "minus the advantages", 800, marks=pytest.mark.slow),
    ],
)
def test_learned_environment_tells_a_bug_from_a_correct_agent(
    agent: str, bug: str, updates: int, tmp_path: Path, capsys: Shown
) -> None:
    flags = f"--agents {agent} --seeds 1 --episodes 5 --updates {updates} --json {tmp_path / 'bugs.json'} --bugs"
    assert bugs.main([*flags.split(), "", bug]) == 0
    correct, wrong = json.loads((tmp_path / "bugs.json").read_text()).values()
    assert correct["returns"][0] > 300 and wrong["returns"][0] < 100
    assert f"{agent} on bandit, correct: " in capsys.readouterr().out


def test_next_observation_is_kept_at_the_end_of_an_episode() -> None:
    """An episode of the bandit is one step, so the observation to act on belongs to the next episode."""
    steps = bugs.Steps(bugs.IDS["bandit"], seed=0)
    obs = steps.obs.clone()
    next_obs, rewards, terminated, ended = steps.step(bugs.torch.zeros(bugs.NUM_ENVS, dtype=bugs.torch.int64))
    assert terminated.all() and ended.all() and rewards.shape == (bugs.NUM_ENVS,)
    assert not (steps.obs == next_obs).all() and not (steps.obs == obs).all()
