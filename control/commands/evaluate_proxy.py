"""`--eval_agent PROXY`: what are fresh agents worth that never trained on the real environment?

They train on the synthetic environment and are tested on the real one, beside agents that trained on the real one.
"""

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from control.cli.settings import Settings, as_dict, build, from_dict, validate
from control.evolution.cluster import make_workers
from control.loops.build import spaces_of
from control.reports.synthetic import describe, iqm_text
from control.reports.tables import aligned
from control.storage import checkpoints, run_dir
from models.proxies import files
from models.proxies.files import Proxy, ProxyError
from models.registry import learns_from
from models.settings import SettingError
from models.streams import derive_seed
from understudy.files import IN_RUN, SUFFIX, pretrained

HEADER = ("trained on", "mean", "std", "IQM [95 % interval]", "solved", "steps", "episodes", "seconds")
WIDTHS = (10, 7, 6, 22, 6, 8, 8, 7)
REAL_STEPS = 50_000  # at most, of an agent that trains on the real environment until it solves it


def load_proxy(path: str) -> Proxy | None:
    """The proxy in a file, of a shipped name, or of a search's folder or checkpoint: its winner, or the best mean so
    far. None for an agent's folder or checkpoint."""
    where = Path(path)
    winners = [folder / IN_RUN for folder in (where, run_dir.newest(where)) if folder]
    where = next((winner for winner in winners if winner.exists()), where)
    if where.suffix == SUFFIX or path in pretrained() and not where.exists():
        return files.load(where)
    checkpoint = checkpoints.load(where)
    settings, game = checkpoint.settings, checkpoint.settings.run.gamename
    if learns_from(settings.run.implementation) != "evolution":
        return None
    entries = checkpoint.run_state["evolution"]["archive"]["entries"]
    if not entries:
        raise ProxyError(f"checkpoint {str(checkpoint.path)!r} is of a search whose mean has no fitness yet")
    description = {"settings": as_dict(settings), "scores": {"generation": entries[0][1]}}
    return Proxy(checkpoint.path, settings.proxy, spaces_of(game), game, entries[0][2], description)


def evaluate_proxy(settings: Settings, proxy: Proxy) -> None:
    """Train ``num_agents`` fresh agents on the proxy and as many on the real environment, and print a table of their
    real returns. Seeds of the agents come from ``--seed``."""
    run = settings.run
    for name in ("record", "evaluation", "command", "implementation", "gamename"):
        if name in settings.given:
            raise SettingError(f"--{name} has no effect with a synthetic environment for --eval_agent", name)
    agent_name = run.agent if "agent" in settings.given else proxy.description.get("settings", {}).get("agent", "DDQN")
    agent = agent_settings(proxy, agent_name, settings.changed)
    share = max(1, min(run.num_eval_episodes, 1000) // run.num_agents)
    tests = share if "num_eval_episodes" in settings.given else 10
    config = dataclasses.replace(proxy.config, test_episodes=tests)
    print(f"{proxy.game} by a synthetic {'bandit' if config.proxy == 'bandit' else 'environment'}: {proxy.path}")
    sampled = f", sampled for each agent: {', '.join(agent.vary)}" if agent.vary_hp else ""
    print(f"{run.num_agents} fresh {agent_name} agents on each, seed {run.seed}{sampled}; "
          f"{tests} real test episodes per agent\n")  # fmt: skip
    seeds = [derive_seed(run.seed, f"evaluation, agent {i}") for i in range(run.num_agents)]

    def show(name: str, agent_config: Any, proxies: Tensor | None, steps: int, rule: str | None) -> None:
        """Train, test, and print the row."""
        started = time.perf_counter()
        job = (config, agent_name, agent_config, proxy.game)
        with contextlib.closing(make_workers(*job, run.num_workers, run.ray_address)) as workers:
            outcome = workers.run(proxies, seeds, steps=steps, test_limit=run.time_limit, rule=rule)
        row = describe(outcome, config.solved_reward)
        cells = (
            name, f"{row['mean']:.1f}", f"{row['std']:.1f}", iqm_text(row),
            "" if row["solved"] is None else f"{100 * row['solved']:.0f} %",
            f"{row['steps']:,.0f}", f"{row['episodes']:,.1f}", f"{time.perf_counter() - started:.1f}",
        )  # fmt: skip
        print(*aligned([cells], WIDTHS), flush=True)

    print(*aligned([HEADER], WIDTHS))
    rule = "budget" if config.inner_rule == "tests" else None  # this training knows no real tests
    show("synthetic", agent, proxy.parameters.expand(run.num_agents, -1), config.steps_in_use, rule)
    if not run.real_baseline:
        return
    # One environment, one update per step, and everything is remembered.
    real = dataclasses.replace(
        agent, num_envs=1, fill=0, init_episodes=max(1, agent.init_episodes), rb_size=100_000, eps_fraction=None
    )
    solved = config.solved_reward
    show("real", real, None, REAL_STEPS, "budget" if solved is None else "solved")
    until = "" if solved is None else f" until {config.early_out_num} episodes reach {solved:g} on average,"
    print(f"\non the real environment agents train{until} at most {REAL_STEPS:,} steps")


def agent_settings(proxy: Proxy, name: str, changed: dict[str, Any]) -> Any:
    """Settings of fresh agents: those of the search's agents as far as ``name`` knows them, then ``changed``.
    ``vary_hp`` samples everything it can, unless ``vary`` says what."""
    search = {"implementation": "SE", "gamename": proxy.game} | proxy.description.get("settings", {})
    default = from_dict(search | {"agent": name}).agent
    if changed.get("vary_hp") and "vary" not in changed:
        changed = changed | {"vary": type(default)().vary}
    config = build(default, changed)
    validate(name, config)
    return config
