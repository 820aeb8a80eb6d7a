"""Compare a learned reward with its alternatives: fresh agents of the same seeds train on each of them.

    python experiments/reward_networks/compare.py cliff --reward found=exp_dir/.../proxy.safetensors --json cliff.json

Prints one row per reward: training steps until an agent first solves a test, and until it solves all further tests
(quartiles over agents); the share of agents that solve every test of the second half; mean returns during training.
Besides the rewards passed with ``--reward``, these have a row:

- native: the task's reward; count, icm, rnd: the same with an exploration bonus
- optimal (maps only), trained: the optimal value function, or one trained agent's, as additive potential
- by hand: a potential written by people who know the game; NAME +SHIFT: a potential plus a constant
- weight: the task's reward times one number, a row for each of five

``--tune N`` adds a row for the task's reward and for each learned one, with the agents' settings that are best of N:
those of the command and N - 1 from the search space of ``--use_tune``, by the share of solved tests of 16 other agents
each.
"""

import argparse
import dataclasses
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

from control.cli.parse import parse
from control.cli.settings import Settings
from control.evolution.inner_loop import InnerLoop, Outcome, fresh_seeds
from control.evolution.objectives import first_solved_test, first_stable_test, stays_solved
from control.loops.build import check_spaces
from control.loops.steps import StepLoop
from control.reports.figures import write_numbers
from control.reports.search import quartiles
from control.reports.statistics import interval, iqm
from control.reports.tables import Table
from envs.gridmaps import CellTable
from envs.make import make_dynamics, make_environment
from envs.names import resolve
from envs.reward import HAND, RewardedEnvironment
from experiments.comparison import (
    REWARD_ROWS,
    check_given,
    check_number,
    numbers_in,
    run_script,
    sample_settings,
    script_flags,
)
from models.mixture import Mixture
from models.off_policy import TwinCriticAgent
from models.proxies import files
from models.registry import agent_class, parse_agents
from models.settings import SettingError, choice_error, field_types
from models.spaces import Discrete
from understudy.kinds import KINDS, MODES

ADDITIVE_POTENTIAL = MODES[2]
# Game -> kind of the agents, their training steps, steps between tests, episodes of a test.
GAMES: dict[str, tuple[str, int, int, int]] = {
    "cliff": ("QLearning", 5000, 2, 1),
    "cliffwalking": ("QLearning", 5000, 25, 1),
    "cartpole-200": ("DDQN", 3000, 25, 8),
    "mountaincar-continuous,action_repeat=2": ("TD3", 10_000, 250, 4),
    "pendulum": ("TD3", 8000, 250, 4),
    "halfcheetah": ("TD3", 24_000, 2000, 1),
}
WEIGHTS = (0.01, 0.1, 0.3, 3.0, 10.0)
Potential = Callable[[Tensor], Tensor]
SHOWN = (0.02, 0.1, 0.2, 0.5, 1.0)  # shares of the training at which the table shows mean returns


class Fixed:
    """Stand-in for `envs.make.ProxyFactory`. Its reward is ``weight`` times the task's, shaped by ``potential``."""

    def __init__(self, game: str, spaces: Any, potential: Potential | None, weight: float = 1.0):
        self.game, self.spaces, self.potential, self.weight = game, spaces, potential, weight

    def environment(self, flat: Tensor, agent: Any) -> RewardedEnvironment:
        real = make_environment(self.game, agent.members, agent.envs)
        potential = self.potential or (lambda obs: obs.new_zeros(obs.shape[:2]))
        phi = lambda obs, info=None: potential(obs)  # noqa: E731
        return RewardedEnvironment(real, phi, ADDITIVE_POTENTIAL, agent.discounts(), weight=self.weight)


def optimal_values(dynamics: CellTable, discount: float) -> Tensor:
    """Return the optimal value ``[S]`` of each cell; 0 for cells that end an episode."""
    value, _ = dynamics.values(dynamics.reward.view(-1, len(dynamics.actions)), discount)
    value[dynamics.next_cell[dynamics.terminated]] = 0.0
    return value


def trained_values(settings: Settings, steps: int) -> Potential:
    """Train eight agents on the game's reward and return the value function of the best one."""
    config = dataclasses.replace(settings.proxy, test_every=None, objective="final", inner_steps=steps)
    loop = InnerLoop(config, settings.run.agent, settings.agent, settings.run.gamename)
    seeds = fresh_seeds(0, "trained", 8)
    step_loop: StepLoop = loop.begin(None, seeds)
    trained = loop.train_to_end(step_loop)
    returns = loop.test(trained.policy, seeds).returns
    agent: Any = step_loop.agent
    best = int(returns.mean(1).argmax())
    print(f"the trained agent returns {float(returns.mean(1)[best]):.1f} after {steps:,} steps", flush=True)

    def value(obs: Tensor) -> Tensor:
        flat = obs.reshape(1, -1, obs.shape[-1]).expand(agent.members, -1, -1)
        values = _critic_values(agent, flat) if isinstance(agent, TwinCriticAgent) else agent.values(flat).amax(-1)
        return values[best].view(obs.shape[:-1])

    return value


@torch.no_grad()
def _critic_values(agent: TwinCriticAgent, obs: Tensor) -> Tensor:
    """Return the target critics' values of states under the greedy policy, ``obs [M, B, O] -> [M, B]``."""
    vectors = agent.evaluation_vectors(agent.actor(agent.flat_parameters, obs), streams=None)  # None: greedy
    if isinstance(agent.spaces.actions, Discrete):  # the critics expect one-hot actions, not logits
        vectors = torch.nn.functional.one_hot(vectors.argmax(2), agent.action_size).to(vectors.dtype)
    return agent.critics.target_values(obs, vectors)


def _shifted(potential: Potential, shift: float, scale: float, obs: Tensor) -> Tensor:
    return scale * potential(obs) + shift


def rewards(settings: Settings, options: argparse.Namespace, loop: InnerLoop) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of every reward except the learned ones, and the arguments of `compared` for it."""
    game, spaces, dynamics = settings.run.gamename, loop.factory.spaces, make_dynamics(settings.run.gamename)
    yield "native", {}
    if isinstance(dynamics, CellTable) and "count_bonus" in field_types(type(settings.agent)):
        yield "count", {"changes": {"count_bonus": 0.1}}
    for name in ("icm", "rnd") if "intrinsic" in field_types(type(settings.agent)) else ():
        yield name, {"changes": {"intrinsic": name}}
    potentials: dict[str, Potential] = {}
    if isinstance(dynamics, CellTable):
        if options.trained_steps:
            raise SettingError(f"--trained_steps has no effect: the optimal values of {game} are known")
        table = optimal_values(dynamics, settings.agent.discount)
        potentials["optimal"] = lambda obs: (obs * table).sum(-1)
    elif options.trained_steps:
        # Training starts at the first use of the values: by then every flag has been checked.
        trained = functools.cache(functools.partial(trained_values, settings, options.trained_steps))
        potentials["trained"] = lambda obs: trained()(obs)
    if (base := game.partition(",")[0]) in HAND:
        for scale in options.hand_scales:
            potentials[f"by hand x {scale:g}"] = functools.partial(_shifted, HAND[base].potential, 0.0, scale)
    for name, potential in potentials.items():
        yield name, {"factory": Fixed(game, spaces, potential)}
        for shift in options.shifts:
            plus = functools.partial(_shifted, potential, shift, 1.0)
            yield f"{name} {shift:+g}", {"factory": Fixed(game, spaces, plus)}
    for weight in WEIGHTS if options.weights else ():
        yield f"weight {weight:g}", {"factory": Fixed(game, spaces, None, weight)}


def compared(
    settings: Settings, seeds: list[int], proxy: Any = None, factory: Any = None, changes: Any = None
) -> Outcome:
    """Train fresh agents on the learned reward ``proxy``, on the reward of ``factory``, or on the game's reward.

    ``changes`` are settings of the agents.
    """
    config = (
        settings.proxy
        if proxy is None
        else dataclasses.replace(proxy.config, **{name: getattr(settings.proxy, name) for name in TESTING})
    )
    agent = dataclasses.replace(settings.agent, **(changes or {}))
    loop = InnerLoop(config, settings.run.agent, agent, settings.run.gamename)
    if factory is not None:
        loop.factory = factory
    flat = None if factory is None else torch.zeros(len(seeds), 1)
    if proxy is not None:
        flat = proxy.parameters.expand(len(seeds), -1)
    return loop.run(flat, seeds)


def tuned(settings: Settings, options: argparse.Namespace, **reward_kwargs: Any) -> dict[str, Any]:
    """Return the best settings of agents with one reward, out of ``options.tune``: the highest share of solved tests of
    16 agents, then the highest mean return of all tests. The settings of the command, ``{}``, are among them."""
    words = ["--implementation", settings.run.agent, "--gamename", settings.run.gamename]
    samples = [{}, *sample_settings(words, options.tune - 1, options.seed)]
    seeds = fresh_seeds(options.seed, "tune", 16)
    scores = []
    for sample in samples:
        curve = compared(settings, seeds, changes=sample, **reward_kwargs).curve
        solved = float((curve >= settings.proxy.solved_reward).double().mean())
        scores.append((solved, float(curve.nan_to_num(-math.inf).mean())))
    return samples[max(range(len(samples)), key=scores.__getitem__)]


TESTING = ("inner_steps", "test_every", "test_episodes", "test_limit", "solved_reward", "inner_rule", "train_episodes")


def row_of(outcome: Outcome, config: Any, late: int) -> dict[str, Any]:
    """Return the numbers of one reward as plain data. Tests count as late after ``late`` steps.

    ``mean``, ``low`` and ``high`` are curves: mean and quartiles over agents at each test (`thinned`).
    """
    curve, test_every, solved = outcome.curve.double(), config.test_every, config.solved_reward
    last = curve[:, max(0, -(-late // test_every) - 1) :]
    bounds, best = interval(curve.mean(1).numpy(), iqm), int(curve.mean(0).argmax())
    return {
        "agents": len(curve),
        "first": quartiles(first_solved_test(curve, solved), curve, test_every),
        "stays": quartiles(first_stable_test(curve, solved), curve, test_every),
        "staying": float(stays_solved(curve, solved).double().mean()),
        "late": {
            "from": late,
            "mean": float(last.mean()),
            "lowest": float(last.mean(0).min()),
            "solved": float((last >= solved).double().mean()),
        },
        "average": float(curve.mean()),
        "average_iqm": float(iqm(curve.mean(1).numpy())),
        "average_interval": None if bounds is None else [float(bound) for bound in bounds],
        "peak": {"mean": float(curve.mean(0)[best]), "step": (best + 1) * test_every},
        **steps_of_mean(curve.mean(0), solved, test_every),
        "mean": thinned(curve.mean(0)),
        "low": thinned(curve.quantile(0.25, 0)),
        "high": thinned(curve.quantile(0.75, 0)),
        "every": test_every,
        "tests": curve.shape[1],
    }


def opened(word: str, game: str) -> tuple[str, files.Proxy]:
    """Load a learned reward from ``NAME=FILE``. Return the name and the reward. Raises SettingError or ProxyError if it
    is no reward of ``game``."""
    name, _, path = word.partition("=")
    if not (name and path):
        raise SettingError(f"reward is {word!r}; allowed: NAME=FILE")
    proxy = files.load(path)
    if not (kind := KINDS[proxy.config.proxy]).used_by:
        raise SettingError(f"reward is {word!r}, which is a {kind.noun}; allowed: a reward of {game}")
    if _task(proxy.game) != _task(game):
        raise SettingError(f"reward is {word!r}, which is of {proxy.game}; allowed: a reward of {game}")
    return name, proxy


def _task(game: str) -> str:
    """Return the Gymnasium id without version: equal for games that differ only in parameters and time limits."""
    return resolve(game.partition(",")[0]).gym_id.rpartition("-v")[0]


def steps_of_mean(curve: Tensor, solved: float, test_every: int) -> dict[str, int | None]:
    """Return the steps at which the mean over agents ``[T]`` reaches ``solved``: for the first time, and for good.

    None means never.
    """
    tests = {
        "mean_reaches": first_solved_test(curve[None], solved),
        "mean_stays": first_stable_test(curve[None], solved),
    }
    return {name: None if at == len(curve) else (int(at) + 1) * test_every for name, at in tests.items()}


def thinned(curve: Tensor, points: int = 100) -> list[float]:
    """Return at most ``points`` evenly spaced numbers of a curve, the last included, rounded to two decimals."""
    step = -(-len(curve) // points)
    return [round(float(value), 2) for value in curve.flip(0)[::step].flip(0)]


def cells(name: str, row: dict[str, Any]) -> list[str]:
    def steps(key: str) -> str:
        low, middle, high, last = (("never" if step is None else f"{step:,.0f}") for step in row[key])
        return f"{low} / {middle} / {high} / {last}"

    at = [row["mean"][max(0, round(share * len(row["mean"])) - 1)] for share in SHOWN]
    mean = ("never" if row[key] is None else f"{row[key]:,}" for key in ("mean_reaches", "mean_stays"))
    return [
        name,
        steps("first"),
        steps("stays"),
        f"{100 * row['staying']:.0f} %",
        *mean,
        f"{row['late']['mean']:.1f}",
        f"{100 * row['late']['solved']:.0f} %",
        *(f"{value:.1f}" for value in at),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    flags = script_flags(__doc__)
    flags.add_argument("gamename", choices=list(GAMES))
    flags.add_argument("--reward", action="append", default=[], help="NAME=FILE, a learned reward; may be repeated")
    flags.add_argument("--agents", type=int, default=64)
    flags.add_argument("--agent", help="another kind of agent than the game's")
    flags.add_argument("--steps", type=int, help="training steps")
    flags.add_argument("--every", type=int, help="steps between tests")
    flags.add_argument("--late", type=int, help="steps after which tests count as late; the second half by itself")
    flags.add_argument("--seed", type=int, default=1000)
    flags.add_argument("--set", nargs="*", default=[], help="settings of the agents: lr=0.001 vary_hp=true")
    flags.add_argument(
        "--only", nargs="*", help="beside the rewards that are given only these, by name; without a name the native one"
    )
    flags.add_argument("--weights", action="store_true", help="the native reward times one number too")
    flags.add_argument("--trained_steps", type=int, default=0, help="train an agent so long for a value function")
    flags.add_argument("--shifts", nargs="*", type=float, default=[], help="constants added to potentials")
    flags.add_argument("--hand_scales", nargs="*", type=float, default=[1.0], help="factors on potentials by hand")
    flags.add_argument(
        "--tune", type=int, default=0, help="settings to choose from, for two or more rows of tuned agents"
    )
    flags.add_argument("--json", type=Path, help="add the numbers to this file")
    options = flags.parse_args(argv)
    return run_script(lambda: compare(options))


def compare(options: argparse.Namespace) -> None:
    """Train agents on all rewards and print their rows. Raises SettingError before training if an option is wrong."""
    check_given(options, REWARD_ROWS, agents=1, steps=1, every=1, late=0, trained_steps=0, tune=0)
    check_number("shifts", options.shifts)
    check_number("hand_scales", options.hand_scales)
    kind, steps, test_every, episodes = GAMES[options.gamename]
    steps, test_every = options.steps or steps, options.every or test_every
    if test_every > steps:
        raise SettingError(f"every is {test_every}; allowed: at most steps, which is {steps}")
    if (options.late or 0) > (last := steps // test_every * test_every):
        raise SettingError(f"late is {options.late}; allowed: at most {last}, the step of the last test")
    opened_rewards = [opened(assignment, options.gamename) for assignment in options.reward]
    learned = [(name, {"proxy": proxy}) for name, proxy in opened_rewards]
    words = [
        f"--implementation=RN --gamename={options.gamename} --agent={options.agent or kind} --inner_steps={steps}",
        f"--test_every={test_every} --test_episodes={episodes} --second_phase= --no_rank_apart --average_from=0",
        "--inner_rule=budget --deploy_steps= --no_vary_hp",
    ]
    argv = [word for word in " ".join(words).split() if not word.endswith("=")]
    fixed_names = parse(argv).explicit_names
    changes = {name: value for name, _, value in (assignment.partition("=") for assignment in options.set)}
    settings = parse([*argv, *(word for name, value in changes.items() for word in (f"--{name}", *value.split(",")))])
    setting_names = [*field_types(type(settings.agent)), "solved_reward"]
    wrong_names = [*(changes.keys() & fixed_names), *(settings.explicit_names - fixed_names - {*setting_names})]
    if wrong_names:
        raise choice_error("set", min(wrong_names), setting_names)
    if isinstance(settings.agent, Mixture):
        raise SettingError(f"agent is {options.agent!r}, of several families; allowed: agents of one family", "agent")
    if settings.proxy.solved_reward is None:
        line = f"{options.gamename} has no return from which it is solved"
        raise SettingError(f"{line}; give one: --set solved_reward=-300")
    torch.set_num_threads(1)
    loop = InnerLoop(settings.proxy, settings.run.agent, settings.agent, settings.run.gamename)
    for name in parse_agents(settings.run.agent):
        check_spaces(settings.run, agent_class(name), loop.factory.spaces, name)
    seeds = fresh_seeds(options.seed, "compare", options.agents, len(loop.implementations))
    other_rewards = list(rewards(settings, options, loop))
    names = [*dict(other_rewards), *(name for name, _ in learned)]
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise SettingError(f"reward is '{duplicates[0]}=...'; allowed: a name that no other row has")
    if options.only is not None:
        selected_names, entries = options.only or ["native"], dict(other_rewards)
        if unknown := [name for name in selected_names if name not in entries]:
            raise choice_error("only", unknown[0], entries)
        other_rewards = [(name, entries[name]) for name in selected_names]
    head = [
        "reward",
        "first: quartiles, last",
        "stays: quartiles, last",
        "2nd half",
        "mean solved",
        "stays",
        "late",
        "solved",
        *(f"at {round(share * steps):,}" for share in SHOWN),
    ]
    widths = (22, 28, 28, 8, 11, 7, 7, 6, *(9 for _ in SHOWN))
    print(*Table([head]).lines(widths))
    late = steps // 2 if options.late is None else options.late
    rows: dict[str, Any] = {}
    for name, reward_kwargs in [*learned, *other_rewards]:
        started = time.process_time()
        outcome = compared(settings, seeds, **reward_kwargs)
        rows[name] = row_of(outcome, settings.proxy, late)
        rows[name]["cpu_seconds"] = round(time.process_time() - started, 1)
        print(*Table([cells(name, rows[name])]).lines(widths), flush=True)
    if options.tune:
        for name, reward_kwargs in [("native", {}), *learned]:
            changes = tuned(settings, options, **reward_kwargs)
            outcome = compared(settings, seeds, changes=changes, **reward_kwargs)
            row = rows[f"{name}, tuned"] = row_of(outcome, settings.proxy, late) | {"settings": changes}
            print(*Table([cells(f"{name}, tuned", row)]).lines(widths), changes, flush=True)
    if options.json:
        entries = numbers_in("json", options.json, REWARD_ROWS, new=True)
        key = f"{options.gamename}, {options.agent or kind}{''.join(f', {assignment}' for assignment in options.set)}"
        entries[key] = entries.get(key, {}) | rows
        write_numbers(options.json, entries)


if __name__ == "__main__":
    sys.exit(main())
