"""Rates of PPO, DDQN and model-based generalisation on a GPU and on one core, by number of members.

    python benchmarks/gpu.py [--json] [--quick] [--device cuda cpu machine_code] [--only PPO DDQN ER ...]

PPO and DDQN run the torch text of `models.agents` on CartPole, with the environment on the device too. Training has no
such path: one generator on the device replaces the members' separate generators, so that random numbers are not what is
measured. `machine_code` rows train the same settings by Numba on one core. Agents of model-based generalisation run as
`--accelerator gpu` does, with the sizes of the paper on ProcMaze 4 x 4. Rates are by wall-clock time.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

import common  # first: one thread, and the project on the path
import torch
from common import Result, TorchSetup
from model_generalisation import QUICK as QUICK_GENERALISATION
from model_generalisation import Size as GeneralisationSize
from model_generalisation import group_of
from torch import Tensor

from control.cli.settings import from_dict
from control.loops.build import build_loop
from control.loops.process import configure_process
from control.loops.steps import StepLoop
from models.streams import Streams

AGENTS: dict[str, dict[str, Any]] = {
    "PPO": {"num_envs": 8, "rollout_steps": 128, "batch_size": 256, "ppo_epochs": 4, "hidden_sizes": (64, 64)},
    "DDQN": {"hidden_sizes": (64, 64), "batch_size": 32, "buffer_size": 10_000},
}
DEVICES = ("cuda", "cpu", "machine_code")
GENERALISATION = ("ER", "SimpleModel", "CategoricalLatent", "GaussianLatent", "PerfectModel")


@dataclasses.dataclass(frozen=True)
class Size:
    """Amount of work."""

    members: tuple[int, ...] = (1, 16, 256, 1024, 4096)
    core_members: tuple[int, ...] = (1, 16, 256)  # on a core, where a rate hardly changes with more
    seeds: tuple[int, ...] = (1, 30, 300)
    core_seeds: tuple[int, ...] = (30,)
    block: float = 2.0  # about how many seconds a contender runs
    generalisation: GeneralisationSize = GeneralisationSize(block=2.0)
    compiled_seeds: int = 30  # on a GPU, measured with the setting `compile` too


QUICK = Size((1, 2), (1, 2), (1,), (1,), 0.01, QUICK_GENERALISATION)


def move(value: Any, device: torch.device, moved: dict[int, tuple[Any, Any]]) -> Any:
    """Move all tensors in ``value``, such as an agent, to ``device``, and return the result. Objects of this project
    are changed in place, to keep other references valid. ``moved`` maps ids of visited objects to (object, result)."""
    if id(value) in moved:
        return moved[id(value)][1]
    result = value
    moved[id(value)] = value, value
    if isinstance(value, torch.nn.Parameter):
        value.data = value.data.to(device)
    elif isinstance(value, Tensor):
        result = value.to(device)
    elif isinstance(value, dict):
        for key in value:
            value[key] = move(value[key], device, moved)
    elif isinstance(value, list | tuple):
        items = [move(item, device, moved) for item in value]
        if any(item is not before for item, before in zip(items, value, strict=True)):
            result = items if isinstance(value, list) else tuple(items)
    elif hasattr(value, "__dict__") and type(value).__module__.split(".")[0] in ("models", "control", "torch"):
        for name, attribute in vars(value).items():
            vars(value)[name] = move(attribute, device, moved)
    moved[id(value)] = value, result
    return result


@contextlib.contextmanager
def on_device(device: torch.device) -> Iterator[dict[int, tuple[Any, Any]]]:
    """Context manager in which new tensors are on ``device``, and one generator there samples the random numbers of all
    members. It replaces methods of `Streams`, and yields them as the argument ``moved`` of `move`."""
    generator = torch.Generator(device).manual_seed(0)
    sample = {
        "uniform": lambda self, *shape: torch.rand(len(self), *shape, generator=generator),
        "gumbel": lambda self, *shape: -torch.empty(len(self), *shape).exponential_(generator=generator).log(),
        "normal": lambda self, *shape: torch.randn(len(self), *shape, generator=generator),
        "integers": lambda self, high, *shape: torch.randint(high, (len(self), *shape), generator=generator),
        "permutations": lambda self, count: torch.rand(len(self), count, generator=generator).argsort(1),
        "device": device,
    }
    before = {name: vars(Streams)[name] for name in sample}
    torch.set_default_device(device)
    try:
        for name, method in sample.items():
            setattr(Streams, name, method)
        yield {id(before[name]): (before[name], method) for name, method in sample.items()}
    finally:
        torch.set_default_device("cpu")
        for name, method in before.items():
            setattr(Streams, name, method)


def agent_loop(name: str, members: int, compiled: bool) -> StepLoop:
    """Return the loop of ``members`` agents on CartPole, on the CPU."""
    values = {"implementation": name, "gamename": "cartpole", "seed": 0, "num_seeds": members, "compiled": compiled}
    loop: Any = build_loop(from_dict(values | AGENTS[name]))  # its declared type has no groups
    return loop.groups[0]


def torch_rate(name: str, members: int, device: torch.device, size: Size) -> float:
    """Return the steps per second of all members in torch, with an agent past its first update."""
    loop: Any = agent_loop(name, members, compiled=False)  # the declared type of its environment has no dynamics
    loop.agent.budget = 10**9  # number of steps, so that training does not end
    with on_device(device) as sampling:
        loop.environment.dynamics = loop.environment.dynamics.to(device)
        loop.environment.device_dynamics = loop.environment.dynamics
        for owner in (loop, loop.environment):
            for attribute, value in vars(owner).items():
                if isinstance(value, Tensor):
                    setattr(owner, attribute, value.to(device))
        loop.environment.device = device
        move(loop.agent, device, sampling)
        loop.agent.device = device
        return rate(loop.epoch_by_steps, loop.agent, 128 if name == "PPO" else 64, 300, size, device)


def machine_code_rate(name: str, members: int, size: Size) -> float:
    """Return the steps per second of all members in machine code, on one core."""
    loop = agent_loop(name, members, compiled=True)
    loop.agent.budget = 10**9
    assert loop.machine_code is not None
    return rate(loop.epoch, loop.agent, 128 if name == "PPO" else 256, 300, size, torch.device("cpu"))


def rate(epoch: Callable[[int], Any], agent: Any, steps: int, warm_up: int, size: Size, device: torch.device) -> float:
    """Return the steps per second of all members of ``agent``: the best of three blocks of about a third of
    ``size.block`` seconds. ``epoch(count)`` trains for ``count`` steps. ``steps`` is the smallest size of a block, and
    ``warm_up`` the number of steps before the first."""

    def work(count: int) -> None:
        epoch(steps * count)
        if device.type == "cuda":
            torch.cuda.synchronize()

    epoch(warm_up)
    contender = TorchSetup(1).contender(work, agent.members * agent.envs * steps, size.block / 3)
    return max(contender().rate for _ in range(3))


def agent_rows(name: str, devices: list[str], size: Size) -> dict[str, Result]:
    """Measure PPO or DDQN on each device, by number of members."""
    rows = {}
    for device in devices:
        for members in size.members if device == "cuda" else size.core_members:
            key = f"{name}_{members}_{device}"
            if device == "machine_code":
                value = machine_code_rate(name, members, size)
            else:
                value = torch_rate(name, members, torch.device(device), size)
            rows[key] = show(key, Result(value, "steps/s"))
    return rows


def generalisation_rows(name: str, devices: list[str], size: Size) -> dict[str, Result]:
    """Measure an agent of model-based generalisation on each device, by number of seeds."""
    rows = {}
    for device in devices:
        if device == "machine_code":  # these agents have none
            continue
        for seeds in size.seeds if device == "cuda" else size.core_seeds:
            accelerator = "gpu" if device == "cuda" else "cpu"
            is_compiled_too = device == "cuda" and seeds == size.compiled_seeds
            for compiled in (False, True) if is_compiled_too else (False,):
                group = group_of(name, seeds, size.generalisation, accelerator=accelerator, compile=compiled)
                key = f"{name}_{seeds}_{device}" + "_compiled" * compiled
                value = rate(group.epoch, group.agent, 1, 3, size, torch.device(device))
                rows[key] = show(key, Result(value, "seed-steps/s"))
    return rows


def show(key: str, row: Result) -> Result:
    """Print a measured row on stderr at once, and return it."""
    print(f"{key:32} {row.value:14,.0f} {row.unit}", file=sys.stderr, flush=True)
    return row


def main() -> None:
    flags = common.parser(str(__doc__).splitlines()[0])
    devices = DEVICES if torch.cuda.is_available() else DEVICES[1:]
    flags.add_argument("--device", nargs="+", choices=devices, default=devices)
    flags.add_argument("--only", nargs="+", choices=(*AGENTS, *GENERALISATION), default=[*AGENTS, *GENERALISATION])
    options = flags.parse_args()
    size = QUICK if options.quick else Size()
    configure_process(from_dict({"implementation": "ER", "gamename": "procmaze", "seed": 0}).run)
    rows: dict[str, Result] = {}
    for name in options.only:
        part = agent_rows if name in AGENTS else generalisation_rows
        rows |= part(name, options.device, size)
    timing = "1 thread, wall-clock time"
    if "cuda" in options.device:
        timing += f", {torch.cuda.get_device_name()}"
    common.report("Rates on a GPU and on one core", rows, options.json, timing)


if __name__ == "__main__":
    main()
