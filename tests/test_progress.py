"""Progress lines and bars, which do not change results."""

import contextlib
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from tqdm import tqdm

import trainer
from control.cli import progress as module
from control.cli.colour import paint, warning
from control.cli.progress import Meter, RowTable, Watch, progress, watch_part
from control.commands.choose_proxy import _mean_returns
from control.evolution.inner_loop import InnerLoop, Outcome
from control.storage.run_dir import read_metrics
from models.agents.ddqn.config import Config as AgentConfig
from models.proxies.search import SearchConfig
from models.proxies.synthetic.config import Config
from models.streams import Streams


def test_progress_lines_without_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_SECONDS", 0.0)
    with progress("agents") as watch:
        second = watch_part(watch, 0.5, 0.5)
        assert watch and second
        watch(0.25)
        second(0.5)
        second(1.0)  # no line for the end
    captured = capsys.readouterr()
    assert [line.split(",")[0] for line in captured.out.splitlines()] == ["  agents: 25 %", "  agents: 75 %"]
    assert not captured.err
    monkeypatch.setattr(module, "LINE_SECONDS", 60.0)
    with progress("agents") as watch:
        assert watch
        watch(0.5)
    with progress("agents", enabled=False) as watch:
        assert watch is None and watch_part(watch, 0.0, 1.0) is None
    assert not capsys.readouterr().out


def test_a_printed_row_draws_the_latest_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", stream)
    with contextlib.closing(Meter("epoch 1")) as meter:
        meter.show(0.25, "epoch 1")  # too soon to draw it
        tqdm.write("a row", stream)
    assert "epoch 1:  25 %" in stream.getvalue().partition("a row")[2]


@pytest.mark.parametrize("first", [0.0, 0.5])
def test_time_left_follows_from_the_mean_speed_without_compilation(
    first: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(module, "LINE_SECONDS", 15.0)
    with contextlib.closing(Meter("epoch")) as meter:
        meter.restart(first)
        assert meter.time_left(first) == "?" and meter.time_left(1.0) == "00:00"
        now += 10
        Meter.begin_compiling()
        now += 60
        assert meter.time_left(first + 0.1) == ("01:30" if first == 0 else "00:40")
        Meter.end_compiling()
        meter.show(first + 0.1, "epoch")  # too soon for a line
        assert "%" not in capsys.readouterr().out
        now += 10
        assert meter.time_left(first + 0.25) == ("01:00" if first == 0 else "00:20")


def test_time_left_follows_from_the_recent_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    with contextlib.closing(Meter("epoch")) as meter:
        for step in range(1, 15):
            now = 10.0 * step
            # One hundredth in ten seconds, later a tenth: another program has ended.
            text = meter.time_left(0.01 * step if step <= 10 else 0.1 * (step - 9))
    assert text == "00:50"  # by the mean speed 02:20


def test_table_has_one_header() -> None:
    table = RowTable()
    rows = [table.text({"epoch": str(number), "loss": "0.5"}) for number in range(40)]
    assert [row.count("\n") for row in rows] == [1, *[0] * 39]
    assert "diverged" in table.text({"epoch": "40", "loss": "0.5", "diverged": "1 of 2"})


def test_runs_print_few_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings: dict[str, Any] = {"steps_per_epoch": 10, "eval_every": 1, "logdir": str(tmp_path), "logger": "none"}
    trainer.train(implementation="QLearning", gamename="cliff", epochs=200, **settings)
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    epochs = [int(line[0].removesuffix("/200")) for line in words if line and line[0].endswith("/200")]
    assert epochs[0] == 1 and epochs[-1] == 200 and 20 <= len(epochs) <= 30
    speed = read_metrics(next(tmp_path.rglob("metrics.csv")))["time/steps_per_second"][-1]
    assert f"{speed:,.0f}" in next(line for line in words if line and line[0] == "200/200")


def test_a_run_says_once_that_its_task_is_solved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control.lightning.callbacks.solved_return", lambda game: -1e6)  # by every agent
    settings: dict[str, Any] = {"steps_per_epoch": 10, "eval_every": 1, "logdir": str(tmp_path), "logger": "none"}
    trainer.train(implementation="QLearning", gamename="cliff", epochs=3, **settings)
    text = capsys.readouterr().out
    assert text.count("solved at step 10; --target_return -1e+06 would stop here") == 1
    assert "; chosen from 3 evaluations" in text and "last tenth" in text
    trainer.train(implementation="QLearning", gamename="cliff", epochs=3, target_return=1e6, **settings)
    assert "would stop here" not in capsys.readouterr().out
    monkeypatch.setattr("control.commands.train.solved_return", lambda game: -1e6)
    trainer.train(implementation="QLearning", gamename="cliff", epochs=3, num_seeds=2, **settings)
    text = capsys.readouterr().out
    assert "mean of 2 seeds solved at step 10; " in text and "by 2 of 2 seeds, at step 10\n" in text


@pytest.mark.parametrize(("environment", "terminal", "coloured"), [
    ({}, True, True), ({}, False, False), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, True, False),
    ({"NO_COLOR": ""}, True, True),
])  # fmt: skip
def test_colours_on_terminals(
    environment: dict[str, str], terminal: bool, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in ({"TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    assert paint("run", "cyan", stream) == ("\033[36mrun\033[0m" if coloured else "run")
    assert paint("", "cyan", stream) == ""
    monkeypatch.setattr(sys, "stdout", stream)
    warning("no run")
    assert stream.getvalue() == ("\033[33mwarning: no run\033[0m\n" if coloured else "warning: no run\n")


@pytest.mark.parametrize("changes", [{}, {"inner_rule": "plateau", "early_out_num": 2}, {"test_every": 40}])
def test_progress_does_not_change_results(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.evolution.inner_loop._WATCH_STEPS", 128)
    config = Config(proxy_hidden_size=7, max_steps=25, inner_steps=300, test_episodes=3, compiled=False, **changes)
    agent = AgentConfig(hidden_sizes=(8,), batch_size=5, vary_hp=True, vary=("depth",))
    loop = InnerLoop(config, "DDQN", agent, "cartpole")
    shares: list[float] = []
    proxies = loop.factory.parameters.initial(Streams([1, 2, 3, 4]))
    alone, watched = loop.run(proxies, [5, 6, 7, 8]), loop.run(proxies, [5, 6, 7, 8], watch=shares.append)
    for name in ("returns", "curve", "steps", "episodes"):
        assert torch.equal(getattr(alone, name), getattr(watched, name))
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == pytest.approx(1) and len(shares) > 2


def returns_again(
    table: Tensor, trained: list[int], watch: Watch | None = None, **changes: Any
) -> tuple[Tensor, list[int]]:
    """Re-evaluation of means with agents of returns ``table [N, count]``; the agents are added to ``trained``."""

    def run(proxies: Tensor, seeds: list[int], **kwargs: Any) -> Outcome:
        trained.extend(seeds)
        returns = table[proxies[:, 0].long(), torch.tensor(seeds)][:, None]
        if kwargs["watch"] is not None:
            kwargs["watch"](1)
        ones = torch.ones(len(seeds), dtype=torch.int64)
        return Outcome(returns, ones[:, None], torch.zeros(len(seeds), 0), ones, ones, 0, 0.0, 0.0)

    search: Any = SimpleNamespace(
        config=SearchConfig(retest_agents=table.shape[1], **changes), outcome=None, workers=SimpleNamespace(run=run),
        seeds_of=lambda _, n: list(range(n)), count_real_steps=lambda steps: None,
        settings=SimpleNamespace(
            proxy=SearchConfig(compiled=True), run=SimpleNamespace(gamename="cartpole", accelerator="cpu")
        ),
    )  # fmt: skip
    return _mean_returns(search, torch.arange(len(table))[:, None].float(), watch)


def test_re_evaluation_has_one_progress() -> None:
    table = torch.full((3, 16), 480.0)
    table[1, :8] = 0.0
    shares: list[float] = []
    returns_again(table, [], shares.append)
    assert shares == pytest.approx([1 / 3, 2 / 3, 1]) and len(shares) == 3  # the second mean has 8 agents


@pytest.mark.parametrize("seed", range(6))
def test_losing_means_get_fewer_agents(seed: int) -> None:
    means, count = 5, 20
    table = 500 - 40 * torch.rand(means, count, generator=torch.Generator().manual_seed(seed)).pow(4) * (seed % 3)
    trained: list[int] = []
    scores, tested = returns_again(table, trained)
    full_scores = [float(score) if agents == count else 0.0 for score, agents in zip(scores, tested, strict=True)]
    assert full_scores.index(max(full_scores)) == int(table.mean(1).argmax())
    assert len(trained) == sum(tested) and tested[0] == count
    assert seed % 3 or max(tested[1:]) < count
    for mean, agents in enumerate(tested):
        assert scores[mean] == table[mean, :agents].mean()
