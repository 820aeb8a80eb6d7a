"""Ray workers for the population of a search: same numbers as one process, and no process left behind."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from control.evolution import cluster
from control.evolution.cluster import RayWorkers, connected
from control.evolution.inner_loop import InnerLoop, Outcome
from models.agents.ddqn.config import Config as AgentConfig
from models.proxies.synthetic.config import Config
from models.settings import UserError
from models.streams import Streams
from running import descendants

# One Ray for all tests, as its start takes 15 seconds.
pytestmark = pytest.mark.xdist_group("workers")
GAME = "cartpole-200"
CONFIG = Config(inner_steps=60, test_episodes=2, max_steps=20, proxy_hidden_size=17)
# Two batch sizes, so that each worker trains programs of several shapes.
AGENT = AgentConfig(batch_size=9, hidden_sizes=(11,), vary_hp=True, vary=("lr", "batch_size"))
SEEDS = [11, 12, 11, 12, 13]


@pytest.fixture(scope="module")
def local() -> InnerLoop:
    return InnerLoop(CONFIG, "DDQN", AGENT, GAME)


@pytest.fixture(scope="module")
def two() -> Iterator[RayWorkers]:
    pytest.importorskip("ray", reason="needs the extra tune")
    workers = RayWorkers(CONFIG, "DDQN", AGENT, GAME, 2, None)
    yield workers
    workers.close()
    workers.close()  # twice is no error


@pytest.fixture(scope="module")
def proxies(local: InnerLoop) -> torch.Tensor:
    return local.stages.parameters.initial(Streams(list(range(len(SEEDS)))))


def assert_same_outcome(outcome: Outcome, other: Outcome) -> None:
    for name in ("returns", "steps", "episodes"):
        assert torch.equal(getattr(outcome, name), getattr(other, name))
    assert outcome.test_steps == other.test_steps


def worker_pids(driver: int, busy: bool = False) -> list[int]:
    """Process ids of the (busy) workers of the Ray started by process ``driver``."""
    titles = ("ray::_work",) if busy else ("ray::_work", "ray::IDLE")
    return sorted(pid for pid, line in descendants(driver).items() if line.startswith(titles))


@pytest.mark.slow
def test_two_workers_equal_one_process(
    local: InnerLoop, two: RayWorkers, proxies: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = local.run(proxies, SEEDS)
    assert len(alone.returns.unique()) > 2
    shared = two.run(proxies, SEEDS)
    assert_same_outcome(alone, shared)
    assert shared.train_seconds > 0 and shared.test_seconds > 0
    overrides = {"inner_steps": 30, "test_limit": 7, "inner_rule": "plateau"}
    assert_same_outcome(local.run(proxies[:3], SEEDS[:3], **overrides), two.run(proxies[:3], SEEDS[:3], **overrides))  # type: ignore[arg-type]
    assert_same_outcome(local.run(None, SEEDS[:1]), two.run(None, SEEDS[:1]))
    cancelled: list[Any] = []
    monkeypatch.setattr("ray.cancel", lambda task, force: cancelled.append(task))
    monkeypatch.setattr(cluster, "_GRACE_SECONDS", 60.0)
    with pytest.raises(RuntimeError, match=r"(?s)in run.*size"):  # the error of a worker
        two.run(proxies[:, :-1], SEEDS)
    assert not cancelled  # the other worker raises too; a cancelled task could abort this process


@pytest.mark.slow
def test_killed_worker_is_replaced(
    local: InnerLoop, two: RayWorkers, proxies: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker trains its agents again."""
    work, tries = cluster._work, tmp_path / "tries"

    def dies_at_first(job: Any, call: Any) -> Outcome | None:
        outcome = work(job, call)
        if call and SEEDS[-1] in call[1]:
            first = not tries.exists()
            with tries.open("a") as file:
                file.write(f"{os.getpid()} ")
            if first:
                os.kill(os.getpid(), signal.SIGKILL)
        return outcome

    monkeypatch.setattr(cluster, "_work", dies_at_first)
    workers = RayWorkers(CONFIG, "DDQN", AGENT, GAME, 2, None)  # in the Ray of `two`
    assert_same_outcome(local.run(proxies, SEEDS), workers.run(proxies, SEEDS))
    killed, other = map(int, tries.read_text().split())
    assert killed != other and killed not in worker_pids(os.getpid())
    workers.close()


def test_ray_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(**kwargs: object) -> None:
        raise Exception("The current node timed out during startup.\nMore.")

    monkeypatch.setattr("ray.init", late)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    with pytest.raises(UserError, match="^Ray cannot start on this machine, .*: The current node timed out"):
        with connected(None, 1):
            pass
