"""The population of a generation among worker processes: same numbers, and nothing left behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from conftest import ROOT
from control.evolution import cluster
from control.evolution.cluster import RayWorkers
from control.evolution.inner_loop import Outcome
from control.evolution.workers import LocalWorkers, make_workers
from models.agents.ddqn.config import Config as AgentConfig
from models.proxies.synthetic.config import Config
from models.settings import SettingError, UserError
from models.streams import Streams

GAME = "cartpole-200"
CONFIG = Config(inner_steps=60, test_episodes=2, max_steps=20, proxy_hidden_size=17)
# Two batch sizes, so that a part holds programs of several shapes.
AGENT = AgentConfig(batch_size=9, hidden_size=11, vary_hp=True, vary=("lr", "batch_size"))
SEEDS = [11, 12, 11, 12, 13]


@pytest.fixture(scope="module")
def local() -> LocalWorkers:
    return LocalWorkers(CONFIG, "DDQN", AGENT, GAME)


@pytest.fixture(scope="module")
def two() -> Iterator[RayWorkers]:
    pytest.importorskip("ray")
    workers = RayWorkers(CONFIG, "DDQN", AGENT, GAME, 2)
    yield workers
    workers.close()
    workers.close()


@pytest.fixture(scope="module")
def proxies(local: LocalWorkers) -> torch.Tensor:
    return local.loop.networks.initial(Streams(list(range(len(SEEDS)))))


def same(one: Outcome, other: Outcome) -> None:
    for name in ("returns", "steps", "episodes"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert one.test_steps == other.test_steps


def test_two_workers_do_what_one_process_does(local: LocalWorkers, two: RayWorkers, proxies: torch.Tensor) -> None:
    alone = local.run(proxies, SEEDS)
    assert len(alone.returns.unique()) > 2
    shared = two.run(proxies, SEEDS)
    same(alone, shared)
    assert shared.train_seconds > 0 and shared.test_seconds > 0
    more = {"steps": 30, "test_limit": 7, "rule": "plateau"}
    same(local.run(proxies[:3], SEEDS[:3], **more), two.run(proxies[:3], SEEDS[:3], **more))  # type: ignore[arg-type]
    same(local.run(None, SEEDS[:1]), two.run(None, SEEDS[:1]))


def test_what_a_worker_raises_comes_out_as_it_is(two: RayWorkers, proxies: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)in run.*size"):
        two.run(proxies[:, :-1], SEEDS)


def test_a_killed_worker_changes_nothing(local: LocalWorkers, two: RayWorkers, proxies: torch.Tensor) -> None:
    expected = local.run(proxies, SEEDS, steps=800)
    before = two.pids
    timer = threading.Timer(0.2, os.kill, (before[1], signal.SIGKILL))
    started = time.monotonic()
    timer.start()
    same(expected, two.run(proxies, SEEDS, steps=800))
    assert time.monotonic() - started > 0.2
    assert two.pids[0] == before[0] and two.pids[1] != before[1]


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_is_one_line(
    two: RayWorkers, proxies: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_DEATHS", 2)
    killed: set[int] = set()
    ended = threading.Event()

    def kill() -> None:
        while not ended.wait(0.3):
            (pid,) = two.pids[:1]
            if pid not in killed:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(UserError, match="^worker 1 of 2 died 2 times over the same agents.*memory.*rb_size"):
            two.run(proxies, SEEDS, steps=100_000, rule="budget")
    finally:
        ended.set()
        killer.join()
    assert len(killed) == 2


# -- in processes of their own ---------------------------------------------------------------------------------

SETUP = f"""
import os, signal, sys
import torch
from control.evolution.workers import make_workers
from models.agents.ddqn.config import Config as AgentConfig
from models.proxies.synthetic.config import Config
config = Config(inner_steps=60, test_episodes=2, max_steps=20, proxy_hidden_size=17)
job = (config, "DDQN", AgentConfig(batch_size=9), "{GAME}")
"""


def script(code: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", SETUP + code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=os.environ | environment,
    )  # fmt: skip


def test_one_worker_needs_no_ray() -> None:
    process = script("make_workers(*job).run(None, [1], steps=3)\nprint([m for m in sys.modules if m[:3] == 'ray'])")
    assert process.communicate(timeout=120) == ("[]\n", "")


def test_more_workers_than_cores_are_refused(two: RayWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a search too, whose Ray this one stands for."""
    with pytest.raises(SettingError, match="^num_workers is 3; allowed: at most 2, the cores of the search's Ray$"):
        make_workers(CONFIG, "DDQN", AGENT, GAME, 3)
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    error = f"^num_workers is 999; allowed: at most {os.cpu_count()}, the cores of this machine$"
    with pytest.raises(SettingError, match=error):
        make_workers(CONFIG, "DDQN", AGENT, GAME, 999)


INTERRUPTED = """
class Stop(BaseException):
    pass

def on_signal(number, frame):
    global asked
    asked += 1
    print("asked", flush=True)
    if asked > 1:
        raise Stop

asked = 0
workers = make_workers(*job, num_workers=2)
signal.signal(signal.SIGINT, on_signal)
print(*workers.pids, flush=True)
outcome = workers.run(None, [1, 2], steps=2500)
try:
    print("finished", len(outcome.returns), flush=True)
    workers.run(None, [1, 2], steps=1_000_000)
except Stop:
    sys.exit(130)
"""


@pytest.mark.slow
def test_ctrl_c_is_the_parents_and_nothing_is_printed_or_left() -> None:
    """Without `close`; Ctrl-C to the processes of Ray and the workers too, and one worker is killed meanwhile."""
    pytest.importorskip("ray")
    temporary = tempfile.mkdtemp(prefix="t")  # a short path, as sockets need
    process = script(INTERRUPTED, TMPDIR=temporary)
    assert process.stdout
    try:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        for after in ("asked\nfinished 2\n", "asked\n"):
            time.sleep(0.1)
            os.killpg(process.pid, signal.SIGINT)
            os.kill(pids[0], signal.SIGINT)
            if "finished" in after:
                os.kill(pids[1], signal.SIGKILL)
            assert "".join(process.stdout.readline() for _ in after.splitlines()) == after
        assert process.communicate(timeout=60) == ("", "")
        assert (process.returncode, os.listdir(temporary)) == (130, [])
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    finally:
        process.kill()
        shutil.rmtree(temporary, ignore_errors=True)
