"""Learned environments in Gymnasium with NumPy, against the trainer's tensor program for the same file.

python benchmarks/numpy_environments.py [--json] [--quick]
"""

import subprocess
import sys
from functools import partial
from typing import Any

import common  # first: one thread, and the project on the path
import gymnasium
import numpy as np
import torch
from common import ROOT, Result, cpu_seconds, interleave, median_ratio

import understudy  # noqa: F401  # registers the id
from envs.make import make_environment
from envs.synthetic import SyntheticDynamics, starts_of
from envs.tensor import TensorEnvironment
from models.proxies import files

ID, FILE, MANY = "understudy/SyntheticCartPoleMDP-v0", "cartpole-mdp", 64
TARGETS = {"make": 30, "step": 3, f"step_{MANY}": 1}
# CPU seconds without the import of Gymnasium, which both need.
CLOCK = "import gymnasium, time; start = time.process_time(); {}; print(time.process_time() - start)"
MAKE = {
    "numpy": f"gymnasium.make('understudy:{ID}')",
    "torch": f"from models.proxies import files; from envs.synthetic import SyntheticDynamics as D; "
    f"p = files.load('{FILE}'); D(p.networks.with_weights(p.parameters[None]), p.spaces, None)",
}


def startup_seconds(code: str) -> float:
    """Return the CPU seconds of ``code`` in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", CLOCK.format(code)], cwd=ROOT, capture_output=True, check=True)
    return float(done.stdout)


def contenders(envs: int, steps: int) -> dict[str, Any]:
    """Return contenders by library: CPU microseconds per step of ``envs`` parallel environments, with resets."""
    make = gymnasium.make if envs == 1 else partial(gymnasium.make_vec, num_envs=envs, autoreset_mode="SameStep")
    numpy_env: Any = make(ID)
    numpy_env.reset(seed=0)
    proxy = files.load(FILE)
    networks: Any = proxy.networks
    dynamics = SyntheticDynamics(
        networks.with_weights(proxy.parameters[None]), proxy.spaces, starts_of(make_environment(proxy.game, 1, 1))
    )
    tensors, seeds = TensorEnvironment(dynamics, 1, envs), torch.arange(envs)[None]
    tensors.reset(seeds)
    actions = np.random.default_rng(0).integers(2, size=(steps, envs))
    numpy_actions = actions[:, 0].tolist() if envs == 1 else list(actions)
    torch_actions = list(torch.from_numpy(actions)[:, None])  # [1, envs] each, for one member

    def with_numpy() -> None:
        for action in numpy_actions:
            _, _, terminated, truncated, _ = numpy_env.step(action)
            if envs == 1 and (terminated or truncated):
                numpy_env.reset()

    def with_torch() -> None:
        for action in torch_actions:
            step = tensors.step(action)
            done = step.terminated | step.truncated
            if done.any():
                tensors.reset(seeds, done)

    return {
        "numpy": lambda: cpu_seconds(with_numpy) / steps * 1e6,
        "torch": lambda: cpu_seconds(with_torch) / steps * 1e6,
    }


def main() -> None:
    options = common.parser(__doc__.splitlines()[0]).parse_args()
    steps, rounds, makes = (20, 1, 1) if options.quick else (1000, 9, 5)
    torch.set_num_threads(1)
    startup = {library: partial(startup_seconds, code) for library, code in MAKE.items()}
    measured = {
        "make": interleave(startup, makes),
        "step": interleave(contenders(1, steps), rounds),
        f"step_{MANY}": interleave(contenders(MANY, steps), rounds),
    }
    results = {}
    for name, times in measured.items():
        unit = "s" if name == "make" else "us"
        for library, values in times.items():
            results[f"{name}_{library}"] = Result(float(np.median(values)), unit, f"{library}, {FILE}")
        ratio = median_ratio(times["torch"], times["numpy"])
        results[f"{name}_speedup"] = Result(ratio, "times", "the tensor program", (">=", TARGETS[name]))
    common.report(f"A learned environment as {ID}", results, options.json)


if __name__ == "__main__":
    main()
