"""Whether there is memory for what the settings ask for, before any is taken. What is needed is estimated, coarsely and
rather too low than too high, so that nothing is refused that fits: docs/benchmarks.md."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from control.cli.settings import RunConfig, Settings
from control.loops.process import available_memory
from control.loops.steps import BLOCK
from envs.names import resolve
from models.registry import agent_class, config_of, family, named_agents
from models.settings import SettingError, bounds, kinds
from models.spaces import Spaces

_GYMNASIUM = 8_000  # bytes of a simple environment
_WORKER = 40_000_000  # of a process beside this one
# Fresh agents in one program; more take turns, for the sake of memory and cache. A GPU is fast with many.
MOST_MEMBERS, MOST_ON_GPU = 512, 16_384
_EPISODE = 1000  # steps that an episode is taken to have at most; a limit far off is often none
_LOSS = 200  # of what a step leaves until the end of its epoch, beside its numbers


def check_memory(needed: Callable[..., int], configs: Sequence[Any], accelerator: str = "cpu") -> None:
    """SettingError where ``needed(*configs)``, in bytes, is more than there is. It names the integer setting of
    ``configs`` that makes the greatest difference, and how large that may be."""
    there, total = available_memory(accelerator), needed(*configs)
    if there is None or total <= there:
        return

    def smaller(place: int, name: str, share: float) -> Any:
        """A setting at that share of its value, cut to two digits, or at its minimum."""
        value, config = getattr(configs[place], name), type(configs[place])
        least = bounds(kinds(config)[name], config.__dataclass_fields__[name].metadata).get("minimum", 1)
        items = [max(int(least), _round(each * share)) for each in (value if isinstance(value, tuple) else (value,))]
        return tuple(items) if isinstance(value, tuple) else items[0]

    def changed(place: int, name: str, value: Any) -> int:
        """What is needed with another value of a setting."""
        config = dataclasses.replace(configs[place], **{name: value})
        return needed(*configs[:place], config, *configs[place + 1 :])

    def blame(size: tuple[int, str]) -> tuple[bool, int]:
        """At fault is what was raised above its default, where that is enough, else what makes the most difference."""
        value, usual = getattr(configs[size[0]], size[1]), getattr(type(configs[size[0]]), size[1])
        then = total if usual is None else changed(*size, min(value, usual))
        return (False, then) if then <= there else (True, changed(*size, smaller(*size, 0.0)))

    sizes = [
        (place, name) for place, config in enumerate(configs)
        for name, kind in kinds(type(config)).items() if kind.item is int and getattr(config, name) and name != "seed"
    ]  # fmt: skip
    place, name = min(sizes, key=blame)
    values = (smaller(place, name, 0.97**i) for i in range(800))
    fitting = next((value for value in values if changed(place, name, value) <= there), smaller(place, name, 0.0))
    value, then = getattr(configs[place], name), changed(place, name, fitting)
    shown, most = (list(each) if isinstance(each, tuple) else each for each in (value, fitting))
    allowed = f"at most {most}" if then <= there else f"no value, for even {most} needs {_gigabytes(then)}"
    where = "the GPU" if accelerator == "gpu" else "memory"
    raise SettingError(
        f"{name} is {shown}, with which this needs about {_gigabytes(total)} of {where}, and {_gigabytes(there)} are "
        f"free; allowed here: {allowed}",
        name,
    )


def _round(value: float) -> int:
    """``value`` cut to two digits: the estimate is no better."""
    digits = 10 ** max(0, math.floor(math.log10(value)) - 1) if value >= 1 else 1
    return int(value // digits * digits)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2g} GB" if count < 1e11 else f"{count / 1e9:,.0f} GB"


def of_training(spaces: Spaces, dynamics: Any, run: RunConfig, agent: Any) -> int:
    """Bytes of a run of agents: what they take (`models.contract.Agent.memory_bytes`), and their environments."""
    limit = run.time_limit or spaces.max_episode_steps
    epochs, total = Settings(run, agent).epochs, Settings(run, agent).total_steps
    length = min(limit or 1, _EPISODE)
    spaces = dataclasses.replace(spaces, max_episode_steps=length)
    if family(run.implementation).learns_from == "episodes":
        plan = agent.schedule
        envs = plan.episodes + (run.eval_episodes if run.eval_episodes > plan.episodes else 0)
        ends = [] if limit is None or epochs is None else [(plan.warm_up + epochs * plan.episodes) * limit]
        if limit is not None and total is not None:
            ends.append(total + (plan.warm_up + plan.episodes) * limit)
        steps = min(ends, default=None)
        played = 2 * plan.episodes * length * (spaces.obs_bytes + 16) + 8 * (plan.running_mean or 0)
    else:
        schedule = Settings(run, agent).schedule
        assert epochs is not None  # an epoch has a number of steps
        envs, steps = agent.num_envs + schedule.eval_episodes, epochs * schedule.steps_per_epoch
        played = BLOCK * agent.num_envs * (8 + spaces.obs_bytes) + 4 * schedule.steps_per_epoch
        played += _LOSS * schedule.steps_per_epoch // run.num_seeds
    kind = agent_class(run.implementation)
    workers = _WORKER * min(run.num_workers, run.num_seeds * envs) * (run.num_workers > 1)
    own = kind.memory_bytes(agent, spaces, run.num_seeds, steps, dynamics)
    return own + run.num_seeds * (played + envs * _of_environment(run.gamename, spaces)) + workers


def of_fresh_agents(search: Any, run: RunConfig, agent: Any, spaces: Spaces, size: int, count: int) -> int:
    """Bytes of ``count`` fresh agents on proxies of ``size`` parameters; of a worker `MOST_MEMBERS` train at a time."""
    members = min(MOST_MEMBERS if run.accelerator == "cpu" else MOST_ON_GPU, -(-count // run.num_workers))
    tests = search.test_episodes * (_of_environment(run.gamename, spaces) + 12)
    names = named_agents(run.agent)
    kinds_of = [(agent_class(name), config_of(agent, name, names)) for name in names]  # which take turns
    inner = max(
        kind.memory_bytes(own, spaces, members, search.steps_in_use)
        + members * BLOCK * own.num_envs * (8 + spaces.obs_bytes)
        for kind, own in kinds_of
    )
    rule = 16 * search.early_out_num * (search.inner_rule != "budget")
    worker = inner + members * (12 * size + tests + rule)
    return run.num_workers * (worker + _WORKER) + count * (4 * size + 4 * search.test_episodes + _LOSS)


def of_search(search: Any, run: RunConfig, agent: Any, spaces: Spaces, size: int) -> int:
    """Bytes of a search for proxies of ``size`` parameters: the largest of its phases."""
    agents = max(search.agents_per_proxy, search.second_agents or 0)
    population, draws = search.population, search.initial_draws * (search.initial_draws > 1)
    each = population * agents + search.center_agents
    drawn, rows = draws * search.initial_members, 8 * draws * search.initial_members
    if search.initial_generations is not None:
        drawn, rows = draws * each, 16 * draws * population
    phases = [
        (each, 16 * population), (drawn, rows),
        ((search.keep_best + 1) * search.retest_agents, 0), (search.report_agents, 0),
    ]  # fmt: skip
    kept = 4 * size * (search.keep_best + search.initial_draws + 12)
    return kept + max(of_fresh_agents(search, run, agent, spaces, size, n) + size * more for n, more in phases)


def _of_environment(game: str, spaces: Spaces) -> int:
    """Bytes of one environment, stepped along with others."""
    return 8 * spaces.obs_bytes + (0 if resolve(game).dynamics else _GYMNASIUM)
