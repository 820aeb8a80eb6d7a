"""HalfCheetah: the Gymnasium adapter against MuJoCo alone, stepped one after another and by `mujoco.rollout`.

python benchmarks/mujoco_steps.py [--json] [--quick]
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import common  # first: one thread, and the project on the path
import mujoco
import numpy as np
import torch
from common import Result, cpu_seconds, interleave, median_ratio
from mujoco import rollout

from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.names import GAMES

SKIP, SIZES = 5, (1, 16, 64)
FULL = mujoco.mjtState.mjSTATE_FULLPHYSICS


def contenders(envs: int, steps: int) -> tuple[dict[str, Callable[[], float]], dict[str, Callable[[], np.ndarray]]]:
    """Return two functions per contender: one measures the microseconds per step of one of ``envs`` environments, the
    other returns the velocities ``[steps, envs, nv]`` of the same work."""
    adapter = GymnasiumEnvironment(GAMES["halfcheetah"], 1, envs)
    inner: list[Any] = []

    def fresh() -> None:
        adapter.reset(torch.arange(envs)[None])
        inner[:] = [env.unwrapped for env in adapter._envs if env is not None]

    fresh()
    model, spare = inner[0].model, mujoco.MjData(inner[0].model)
    datas = [mujoco.MjData(model) for _ in range(envs)]
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, envs, model.nu)).astype(np.float32)
    states = np.zeros((envs, mujoco.mj_stateSize(model, FULL)))

    def begin() -> np.ndarray:
        fresh()
        for row, (env, data) in enumerate(zip(inner, datas, strict=True)):
            mujoco.mj_copyData(data, model, env.data)
            mujoco.mj_getState(model, env.data, states[row], FULL)
        return states.copy()

    def by_adapter() -> np.ndarray:
        return np.stack(
            [adapter.step(torch.from_numpy(action)[None]).obs[0, :, -model.nv :].numpy() for action in actions]
        )

    def alone() -> np.ndarray:
        trajectory, x_before, x_after = np.empty((steps, envs, model.nq + model.nv)), np.empty(envs), np.empty(envs)
        for t, action in enumerate(actions):
            for row, data in enumerate(datas):
                x_before[row] = data.qpos[0]
                data.ctrl[:] = action[row]
                mujoco.mj_step(model, data, nstep=SKIP)
                x_after[row] = data.qpos[0]
                trajectory[t, row, : model.nq], trajectory[t, row, model.nq :] = data.qpos, data.qvel
            # The other outputs of an environment.
            speed, cost = (x_after - x_before) / (SKIP * model.opt.timestep), 0.1 * (action * action).sum(1)
            torch.from_numpy(np.stack((x_after, speed, speed, -cost, speed - cost), 1).astype(np.float32))
            torch.from_numpy(trajectory[t, :, 1:].astype(np.float32))
        return trajectory[..., -model.nv :]

    def by_rollout() -> np.ndarray:
        now, velocities = states.copy(), np.empty((steps, envs, model.nv))
        with rollout.Rollout(nthread=0) as run:
            for t, action in enumerate(actions):
                control = np.repeat(action[:, None].astype(np.float64), SKIP, 1)
                path, _ = run.rollout(model, [spare], now, control, nstep=SKIP)
                now = path[:, -1].copy()
                velocities[t] = now[:, 1 + model.nq : 1 + model.nq + model.nv]
        return velocities

    works = {"adapter": by_adapter, "mj_step": alone, "rollout": by_rollout}

    def timed(work: Callable[[], np.ndarray]) -> float:
        begin()
        return cpu_seconds(work) / steps / envs * 1e6

    def velocities_of(work: Callable[[], np.ndarray]) -> np.ndarray:
        begin()
        return work()

    times: dict[str, Callable[[], float]] = {name: partial(timed, work) for name, work in works.items()}
    return times, {name: partial(velocities_of, work) for name, work in works.items()}


def main() -> None:
    options = common.parser(__doc__.splitlines()[0]).parse_args()
    sizes, rounds = (SIZES[:1], 1) if options.quick else (SIZES, 7)
    torch.set_num_threads(1)
    results = {}
    for envs in sizes:
        works, paths = contenders(envs, 5 if options.quick else max(20, 400 // envs))
        times, velocities = interleave(works, rounds), {name: path() for name, path in paths.items()}
        for name, values in times.items():
            results[f"{name}_{envs}"] = Result(float(np.median(values)), "us", f"a step of one of {envs}")
            if name != "adapter":
                results[f"{name}_{envs}_speedup"] = Result(
                    median_ratio(times["adapter"], values), "times", "the adapter", (">=", 1.5)
                )
                deviation = np.abs(velocities[name] - velocities["adapter"]).max() / np.abs(velocities["adapter"]).max()
                results[f"{name}_{envs}_apart"] = Result(
                    float(deviation), "share", "largest difference over largest speed"
                )
    common.report("HalfCheetah-v5 stepped in three ways", results, options.json)


if __name__ == "__main__":
    main()
