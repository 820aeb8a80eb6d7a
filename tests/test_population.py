"""Ray workers for the population of a search: same numbers as one process, and no process left behind."""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from control.evolution import cluster
from control.evolution.cluster import RayWorkers, ray_connection
from control.evolution.inner_loop import InnerLoop, Outcome
from helpers import learned, start
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
JOB = (CONFIG, "DDQN", AGENT, GAME)
SEEDS = [11, 12, 11, 12, 13]


@pytest.fixture(scope="module")
def local() -> InnerLoop:
    return InnerLoop(*JOB)


@pytest.fixture(scope="module")
def two() -> Iterator[RayWorkers]:
    pytest.importorskip("ray", reason="needs the extra tune")
    workers = RayWorkers(JOB, 2, None)
    yield workers
    workers.close()
    workers.close()  # twice is no error


@pytest.fixture(scope="module")
def proxies(local: InnerLoop) -> torch.Tensor:
    return local.factory.parameters.initial(Streams(list(range(len(SEEDS)))))


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

    def dies_at_first(job: Any, *arguments: Any, **options: Any) -> Outcome | None:
        outcome = work(job, *arguments, **options)
        if arguments and SEEDS[-1] in arguments[1]:
            first = not tries.exists()
            with tries.open("a") as file:
                file.write(f"{os.getpid()} ")
            if first:
                os.kill(os.getpid(), signal.SIGKILL)
        return outcome

    monkeypatch.setattr(cluster, "_work", dies_at_first)
    workers = RayWorkers(JOB, 2, None)  # in the Ray of `two`
    assert_same_outcome(local.run(proxies, SEEDS), workers.run(proxies, SEEDS))
    killed, other = map(int, tries.read_text().split())
    assert killed != other and killed not in worker_pids(os.getpid())
    workers.close()


@pytest.mark.slow
def test_worker_that_dies_three_times_is_an_error(two: RayWorkers, proxies: torch.Tensor) -> None:
    stop_event, spared = threading.Event(), worker_pids(os.getpid())[0]
    killed: set[int] = set()

    def kill() -> None:
        while not stop_event.wait(0.1):
            for pid in set(worker_pids(os.getpid(), busy=True)) - killed - {spared}:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(UserError, match="^worker [12] of 2 died 3 times over the same agents.*memory.*buffer_size"):
            two.run(proxies, SEEDS, inner_steps=5_000_000, inner_rule="budget")
    finally:
        stop_event.set()
        killer.join()
    assert len(killed) >= 3


SETUP = f"""
import os, signal, sys
from control.evolution.cluster import make_workers
from models.agents.ddqn.config import Config as AgentConfig
from models.proxies.synthetic.config import Config
config = Config(inner_steps=60, test_episodes=2, max_steps=20, proxy_hidden_size=17)
job = (config, "DDQN", AgentConfig(batch_size=9), "{GAME}")
"""


def test_ray_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(**kwargs: object) -> None:
        raise Exception("The current node timed out during startup.\nMore.")

    monkeypatch.setattr("ray.init", late)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    with pytest.raises(UserError, match="^Ray cannot start on this machine, .*: The current node timed out"):
        with ray_connection(None, 1):
            pass


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
workers = make_workers(job, num_workers=2)
signal.signal(signal.SIGINT, on_signal)
print("started", flush=True)
outcome = workers.run(None, [1, 2], inner_steps=2500)
try:
    print("finished", len(outcome.returns), flush=True)
    workers.run(None, [1, 2], inner_steps=1_000_000)
except Stop:
    sys.exit(130)
"""


@pytest.mark.slow
def test_ctrl_c_leaves_no_output_or_process() -> None:
    """Without `close`, with Ctrl-C for all processes of Ray, and with one worker killed."""
    pytest.importorskip("ray", reason="needs the extra tune")
    temporary = tempfile.mkdtemp(prefix="t")  # a short path, as sockets need
    process = start([], SETUP + INTERRUPTED, env=os.environ | {"TMPDIR": temporary}, start_new_session=True)
    assert process.stdout
    try:
        assert process.stdout.readline() == "started\n"
        pids = worker_pids(process.pid)
        assert len(pids) == 2
        for expected in ("asked\nfinished 2\n", "asked\n"):
            time.sleep(0.1)
            os.killpg(process.pid, signal.SIGINT)
            os.kill(pids[0], signal.SIGINT)
            if "finished" in expected:
                os.kill(pids[1], signal.SIGKILL)
            assert "".join(process.stdout.readline() for _ in expected.splitlines()) == expected
        assert process.communicate(timeout=60) == ("", "")
        assert (process.returncode, os.listdir(temporary)) == (130, [])
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    finally:
        process.kill()
        shutil.rmtree(temporary, ignore_errors=True)


SEARCH = (
    "--implementation SE --gamename cartpole --population 4 --generations 5 --inner_steps 300 --hidden_sizes 8 "
    "--batch_size 8 --test_episodes 1 --test_limit 20 --center_agents 1 --retest_agents 1 --report_agents 1 "
    "--initial_draws 1 --deploy_steps 40 --max_steps 20 --no_compiled --logger none"
)


@pytest.mark.slow
def test_search_survives_the_death_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first node trains the agents of the dead one again."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    alone = start([*SEARCH.split(), "--logdir", str(tmp_path / "alone")], stderr=subprocess.STDOUT)
    output = alone.communicate(timeout=600)[0]
    assert alone.returncode in (0, 1) and " 5/5" in output, output  # 1: agents are no better than random play
    monkeypatch.setenv("RAY_worker_niceness", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    session = cluster.head_node.get_session_dir_path()
    try:
        second = cluster.add_node(num_cpus=1)
        words = ["--logdir", str(tmp_path / "cluster"), "--num_workers", "2", "--ray_address", cluster.address]
        process = start([*SEARCH.split(), *words], stderr=subprocess.STDOUT)
        assert process.stdout
        output = ""
        while " 1/5" not in output:
            output += (line := process.stdout.readline())
            assert line, output
        cluster.remove_node(second, allow_graceful=False)
        output += process.communicate(timeout=600)[0]
        assert process.returncode == alone.returncode and " 5/5" in output, output
    finally:
        cluster.shutdown()
        shutil.rmtree(session, ignore_errors=True)
    alone_folder, other = (next((tmp_path / name).rglob("metrics.csv")).parent for name in ("alone", "cluster"))
    np.testing.assert_equal(learned(other), learned(alone_folder))
    assert (other / "proxy.safetensors").read_bytes() == (alone_folder / "proxy.safetensors").read_bytes()
