"""`--eval_agent PROXY`: what are fresh agents worth that never trained on the real environment?

They train on the synthetic environment and are tested on the real one, beside agents that trained on the real one.
"""

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from control.cli.parse import Settings
from control.cli.settings import as_dict, build, from_dict, validate
from control.evolution.cluster import make_workers
from control.loops.build import spaces_of
from control.reports.synthetic import describe, iqm_text
from control.reports.tables import aligned
from control.storage import checkpoints, run_dir
from models.proxies import files
from models.proxies.files import Proxy, ProxyError
from models.registry import default_configs, learns_from
from models.settings import SettingError, kinds
from models.streams import derive_seed
from understudy.files import IN_RUN, SUFFIX, pretrained

HEADER = ("trained on", "mean", "std", "IQM [95 % interval]", "solved", "steps", "episodes", "seconds")
WIDTHS = (10, 7, 6, 22, 6, 8, 8, 7)
REAL_STEPS = 50_000  # at most, of an agent that trains on the real environment until it solves it


def is_proxy(path: str) -> bool:
    """Whether a path is of a proxy: a .safetensors file, the name of a shipped one, or the run of a search."""
    where = Path(path)
    if where.suffix == SUFFIX or path in pretrained() and not where.exists() or _winner(where):
        return True
    if not where.is_dir() and where.suffix != ".ckpt":
        return False
    return where.exists() and learns_from(checkpoints.load(where).settings.run.implementation) == "evolution"


def _winner(folder: Path) -> Path | None:
    """The winner that a search left in its run folder, or in the newest of the runs in a folder."""
    newest = run_dir.newest(folder)
    found = [place / IN_RUN for place in (folder, *([newest] if newest else []))]
    return next((path for path in found if path.exists()), None)


def evaluate_proxy(settings: Settings) -> int:
    """Train ``num_agents`` fresh agents on the proxy and as many on the real environment, and print a table of their
    real returns. Seeds of the agents come from ``--seed``. Returns 0."""
    run = settings.run
    assert run.eval_agent
    for name in ("record", "evaluation", "command", "implementation", "gamename"):
        if name in settings.given:
            raise SettingError(f"--{name} has no effect with a synthetic environment for --eval_agent", name)
    proxy = load_proxy(run.eval_agent)
    agent_name = run.agent if "agent" in settings.given else _trained_with(proxy)
    agent = agent_settings(proxy, agent_name, settings.changed)
    config = dataclasses.replace(
        proxy.config, test_episodes=max(1, min(run.num_eval_episodes, 1000) // run.num_agents)
        if "num_eval_episodes" in settings.given else 10,
    )  # fmt: skip
    print(f"{proxy.game} by a synthetic {'bandit' if config.proxy == 'bandit' else 'environment'}: {proxy.path}")
    sampled = f", sampled for each agent: {', '.join(agent.vary)}" if agent.vary_hp else ""
    print(f"{run.num_agents} fresh {agent_name} agents on each, seed {run.seed}{sampled}; "
          f"{config.test_episodes} real test episodes per agent\n")  # fmt: skip
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
        return 0
    solved = config.solved_reward
    show("real", real_agent(agent), None, REAL_STEPS, "budget" if solved is None else "solved")
    until = "" if solved is None else f" until {config.early_out_num} episodes reach {solved:g} on average,"
    print(f"\non the real environment agents train{until} at most {REAL_STEPS:,} steps")
    return 0


def load_proxy(path: str) -> Proxy:
    """A proxy from its file, from a shipped one's name, or from the folder or a checkpoint of a search: its winner,
    or the best mean so far."""
    where = _winner(Path(path)) or Path(path)
    if where.suffix == SUFFIX or not where.exists():
        return files.load(where)
    checkpoint = checkpoints.load(where)
    settings = checkpoint.settings
    entries = checkpoint.run_state["evolution"]["archive"]["entries"]
    if not entries:
        raise ProxyError(f"checkpoint {str(checkpoint.path)!r} is of a search whose mean has no fitness yet")
    description = {"settings": as_dict(settings), "scores": {"generation": entries[0][1]}}
    game = settings.run.gamename
    return Proxy(checkpoint.path, settings.proxy, spaces_of(game), game, entries[0][2], description)


def _trained_with(proxy: Proxy) -> str:
    return proxy.description.get("settings", {}).get("agent", "DDQN")


def agent_settings(proxy: Proxy, name: str, changed: dict[str, Any]) -> Any:
    """Settings of fresh agents: those of the search's agents as far as ``name`` knows them, then ``changed``.
    ``vary_hp`` samples everything it can, unless ``vary`` says what."""
    values = dict(proxy.description.get("settings", {}))
    default, _ = default_configs("SE", proxy.game, {}, name)
    if values:
        default = from_dict(values | {"agent": name}).agent
    known = kinds(type(default))
    for setting in changed:
        if setting not in known:
            raise SettingError(f"{setting} is no setting of {name}", setting)
    if changed.get("vary_hp") and "vary" not in changed:
        changed = changed | {"vary": type(default)().vary}
    config = build(default, changed)
    validate(name, config)
    return config


def real_agent(config: Any) -> Any:
    """Settings of the same agent for the real environment: one environment, one update per step, all remembered."""
    return dataclasses.replace(config, num_envs=1, fill=0, init_episodes=max(1, config.init_episodes), rb_size=100_000,
                               eps_fraction=None)  # fmt: skip
