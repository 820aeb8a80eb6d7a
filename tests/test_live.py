"""The page that trains agents in a browser (docs/live.md): its script runs here in Node, without a browser."""

import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import understudy
from conftest import ROOT
from control.evolution.fitness_shaping import shared_utilities
from helpers import completed
from test_site import conf  # noqa: F401  # a fixture
from understudy.program import Program

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs node, which runs the page's script")
IDS = {"cartpole": "CartPole-v1", "acrobot": "Acrobot-v1", "pendulum": "Pendulum-v1", "mountaincar": "MountainCar-v0"}
every_task = pytest.mark.parametrize("task", IDS)


@pytest.fixture(scope="module")
def script(conf: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """The script as `make docs` writes it."""
    path = tmp_path_factory.mktemp("live") / "live.js"
    path.write_text(conf.live_script())
    return path


def run(script: Path, function: str, argument: Any = None, timeout: int = 120) -> Any:
    """Call a JavaScript function with what the script exports, `u`, and an argument. Return its result."""
    program = (
        f"const argument = JSON.parse(require('fs').readFileSync(0)); const u = require({json.dumps(str(script))});"
    )
    program += f"console.log(JSON.stringify(({function})(u, argument)))"
    return json.loads(completed([NODE, "-e", program], ROOT, input=json.dumps(argument), timeout=timeout))


def test_agents_of_the_learned_cartpole_solve_the_real_one(script: Path) -> None:
    train = """(u) => Array.from({ length: 32 }, (_, seed) => {
      const agent = u.trainedAgent(new u.Bandit(u.TASKS.cartpole), seed, 1000, 1e-3);
      return u.evaluate(agent, 10, 1000 + seed);
    })"""
    returns = np.array(run(script, train))
    assert (returns == 500).sum() >= 31, returns


@every_task
def test_an_agent_is_repeated_by_its_seed(script: Path, task: str) -> None:
    train = """(u, name) => [7, 7, 8].map((seed) => {
      const task = u.TASKS[name];
      return [new u.Bandit(task), new u.RealEnvironment(task)].map((environment) =>
        Array.from(u.trainedAgent(environment, seed, 20, 1e-3).parameters));
    })"""
    first, again, other = run(script, train, task)
    assert first == again and first[0] != other[0] and first[1] != other[1] and first[0] != first[1]
    assert np.isfinite(first[0]).all() and np.isfinite(first[1]).all()


def transitions(task: str, steps: int = 1000) -> list[dict[str, Any]]:
    """Transitions of Gymnasium. Half of the actions push into the direction of motion, so that episodes end."""
    env: Any = gymnasium.make(IDS[task]).unwrapped
    actions = {"cartpole": [-1, 1], "acrobot": [-1, 0, 1], "mountaincar": [-1, 0, 1]}.get(task)
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    rows = []
    for _ in range(steps):
        state = np.array(env.state, float)
        forward = state[{"cartpole": 2, "acrobot": 3}.get(task, 1)] > 0
        if actions is None:
            action = rng.uniform(-2, 2) if rng.random() < 0.5 else (2.0 if forward else -2.0)
            action = float(np.float32(action))
            obs, reward, terminated, _, _ = env.step(np.array([action], np.float32))
        else:
            index = int(rng.integers(len(actions))) if rng.random() < 0.5 else (len(actions) - 1) * int(forward)
            action = actions[index]
            obs, reward, terminated, _, _ = env.step(index)
        next_state = np.array(env.state, float).tolist()
        rows.append({"state": state.tolist(), "action": action, "nextState": next_state, "obs": obs.tolist(),
                     "reward": float(reward), "terminated": bool(terminated)})  # fmt: skip
        if terminated:
            env.reset()
    return rows


@every_task
def test_the_physics_are_those_of_gymnasium(script: Path, task: str) -> None:
    step = """(u, { name, rows }) => rows.map(({ state, action }) => {
      const task = u.TASKS[name];
      const reward = task.step(state, action);
      return { nextState: state, obs: task.observe(state), reward, terminated: task.terminated(state) };
    })"""
    rows = transitions(task)
    results = run(script, step, {"name": task, "rows": rows})
    for name in ("nextState", "obs", "reward"):
        expected, actual = (np.array([row[name] for row in table], float) for table in (rows, results))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6, err_msg=name)
    ends = [row["terminated"] for row in rows]
    assert [result["terminated"] for result in results] == ends
    assert any(ends) == (task != "pendulum") and not all(ends)


@every_task
def test_rewards_and_first_states_are_those_of_the_package(script: Path, task: str) -> None:
    proxy = understudy.load(f"{task}-bandit")
    size = proxy.spaces["obs_shape"][0]
    rng = np.random.default_rng(0)
    if table := "states.table" in proxy.tensors:
        states = proxy.tensors["states.table"][:200]
    else:
        states = rng.normal(size=(200, size)).astype(np.float32)
    noise = rng.normal(size=(200, size)).astype(np.float32)
    step = """(u, { task, states, noise }) => {
      const bandit = new u.Bandit(u.TASKS[task]);
      const random = new u.RandomStream(0);
      const rewards = states.map((state) => u.TASKS[task].actions.map((_, action) => {
        bandit.obs = state;
        return bandit.step(action);
      }));
      const firstStates = noise.map((row) => {
        bandit.reset(u.TASKS[task].sample ? random : { normal: () => row.shift() });
        return [...bandit.obs];
      });
      return [u.TASKS[task].actions, rewards, firstStates];
    }"""
    actions, rewards, first_states = run(
        script, step, {"task": task, "states": states.tolist(), "noise": noise.tolist()}
    )
    program = Program(proxy)
    for i, action in enumerate(actions):
        choice: Any = np.array([action], np.float32) if task == "pendulum" else np.full(len(states), i)
        np.testing.assert_allclose(np.array(rewards)[:, i], program.step(states, choice)[1], rtol=0, atol=1e-5)
    if table:  # the script draws such states itself; as in the table, they cover all there are
        bounds = np.abs(proxy.tensors["states.table"]).max(0) * 1.01
        assert (np.abs(first_states) <= bounds).all() and (np.ptp(first_states, 0) > 0.75 * bounds).all()
        return
    names = [f"initial.{part}" for part in ("0.weight", "0.bias", "1.weight", "1.bias")]
    weight1, bias1, weight2, bias2 = (proxy.tensors[name] for name in names)
    expected = np.maximum(noise @ weight1.T + bias1, 0) @ weight2.T + bias2
    np.testing.assert_allclose(first_states, expected, rtol=0, atol=1e-5)


def test_utilities_of_the_search_are_those_of_the_project(script: Path) -> None:
    fitness = [500.0, 9.5, 500.0, 30.0, 9.5, 9.5, 120.25, 8.0]
    utilities = run(script, "(u, fitness) => u.utilitiesOf(fitness)", fitness)
    np.testing.assert_allclose(utilities, shared_utilities(torch.tensor(fitness)).tolist(), atol=1e-6)
