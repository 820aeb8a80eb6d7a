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
from typing import Any, NamedTuple

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
    check_number,
    check_options,
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


class Game(NamedTuple):
    """Default training on an environment. There is a test of some episodes after every ``test_every`` steps."""

    agent: str
    steps: int
    test_every: int
    test_episodes: int


GAMES = {
    "cliff": Game("QLearning", 5000, 2, 1),
    "cliffwalking": Game("QLearning", 5000, 25, 1),
    "cartpole-200": Game("DDQN", 3000, 25, 8),
    "mountaincar-continuous,action_repeat=2": Game("TD3", 10_000, 250, 4),
    "pendulum": Game("TD3", 8000, 250, 4),
    "halfcheetah": Game("TD3", 24_000, 2000, 1),
}
WEIGHTS = (0.01, 0.1, 0.3, 3.0, 10.0)
Potential = Callable[[Tensor], Tensor]  # maps observations [..., O] to potentials [...]
SHOWN = (0.02, 0.1, 0.2, 0.5, 1.0)  # shares of the training at which the table shows mean returns


class FixedReward:
    """Makes environments with a reward that is not learned: ``weight`` times the task's reward, shaped by ``potential``
    (None: not shaped). It takes the place of `envs.make.ProxyFactory` in `InnerLoop`."""

    def __init__(self, game: str, spaces: Any, potential: Potential | None, weight: float = 1.0):
        self.game, self.spaces, self.potential, self.weight = game, spaces, potential, weight

    def environment(self, proxies: Tensor, agent: Any) -> RewardedEnvironment:
        """Return the environment of an ``agent`` with all its members. ``proxies`` are ignored."""

        def phi(obs: Tensor, info: Any = None) -> Tensor:
            return obs.new_zeros(obs.shape[:2]) if self.potential is None else self.potential(obs)

        real = make_environment(self.game, agent.members, agent.envs)
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
    """Yield the name of every reward except the learned ones, and the arguments of `train` for it."""
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
    base_game = game.partition(",")[0]
    if base_game in HAND:
        for scale in options.hand_scales:
            potentials[f"by hand x {scale:g}"] = functools.partial(_shifted, HAND[base_game].potential, 0.0, scale)
    for name, potential in potentials.items():
        yield name, {"factory": FixedReward(game, spaces, potential)}
        for shift in options.shifts:
            shifted = functools.partial(_shifted, potential, shift, 1.0)
            yield f"{name} {shift:+g}", {"factory": FixedReward(game, spaces, shifted)}
    for weight in WEIGHTS if options.weights else ():
        yield f"weight {weight:g}", {"factory": FixedReward(game, spaces, None, weight)}


def train(settings: Settings, seeds: list[int], proxy: Any = None, factory: Any = None, changes: Any = None) -> Outcome:
    """Train fresh agents on the learned reward ``proxy``, on the reward of ``factory`` (`FixedReward`), or without
    either on the game's reward. ``changes`` are settings of the agents."""
    config = settings.proxy
    if proxy is not None:
        config = dataclasses.replace(proxy.config, **{name: getattr(settings.proxy, name) for name in TESTING})
    agent = dataclasses.replace(settings.agent, **(changes or {}))
    loop = InnerLoop(config, settings.run.agent, agent, settings.run.gamename)
    proxies = None if proxy is None else proxy.parameters.expand(len(seeds), -1)
    if factory is not None:
        loop.factory, proxies = factory, torch.zeros(len(seeds), 1)
    return loop.run(proxies, seeds)


def best_settings(settings: Settings, options: argparse.Namespace, **reward_kwargs: Any) -> dict[str, Any]:
    """Return the best settings of agents with one reward, out of ``options.tune``: the highest share of solved tests of
    16 agents, then the highest mean return of all tests. The settings of the command, ``{}``, are among them."""
    flags = ["--implementation", settings.run.agent, "--gamename", settings.run.gamename]
    samples = [{}, *sample_settings(flags, options.tune - 1, options.seed)]
    seeds = fresh_seeds(options.seed, "tune", 16)
    scores = []
    for sample in samples:
        curve = train(settings, seeds, changes=sample, **reward_kwargs).curve
        solved = float((curve >= settings.proxy.solved_reward).double().mean())
        scores.append((solved, float(curve.nan_to_num(-math.inf).mean())))
    return samples[scores.index(max(scores))]


TESTING = ("inner_steps", "test_every", "test_episodes", "test_limit", "solved_reward", "inner_rule", "train_episodes")


def row_of(outcome: Outcome, config: Any, late: int) -> dict[str, Any]:
    """Return the numbers of one reward as plain data. Tests count as late after ``late`` steps.

    ``mean``, ``low`` and ``high`` are curves: mean and quartiles over agents at each test (`thinned`).
    """
    curve, test_every, solved = outcome.curve.double(), config.test_every, config.solved_reward  # curve [agents, T]
    late_tests = curve[:, max(0, -(-late // test_every) - 1) :]
    bounds, best, num_tests = interval(curve.mean(1).numpy(), iqm), int(curve.mean(0).argmax()), curve.shape[1]
    mean = curve.mean(0)[None]  # [1, T]
    reaches, stays = int(first_solved_test(mean, solved)), int(first_stable_test(mean, solved))  # T: in no test
    return {
        "agents": len(curve),
        "first": quartiles(first_solved_test(curve, solved), curve, test_every),
        "stays": quartiles(first_stable_test(curve, solved), curve, test_every),
        "staying": float(stays_solved(curve, solved).double().mean()),
        "late": {
            "from": late,
            "mean": float(late_tests.mean()),
            "lowest": float(late_tests.mean(0).min()),
            "solved": float((late_tests >= solved).double().mean()),
        },
        "average": float(curve.mean()),
        "average_iqm": float(iqm(curve.mean(1).numpy())),
        "average_interval": None if bounds is None else [float(bound) for bound in bounds],
        "peak": {"mean": float(curve.mean(0)[best]), "step": (best + 1) * test_every},
        # Steps at which the mean over agents reaches ``solved``: for the first time, and for good.
        "mean_reaches": None if reaches == num_tests else (reaches + 1) * test_every,
        "mean_stays": None if stays == num_tests else (stays + 1) * test_every,
        "mean": thinned(curve.mean(0)),
        "low": thinned(curve.quantile(0.25, 0)),
        "high": thinned(curve.quantile(0.75, 0)),
        "every": test_every,
        "tests": num_tests,
    }


def load_reward(assignment: str, game: str) -> tuple[str, files.Proxy]:
    """Load a learned reward from ``NAME=FILE``. Raises SettingError or ProxyError if it is no reward of ``game``."""
    name, _, path = assignment.partition("=")
    if not (name and path):
        raise SettingError(f"reward is {assignment!r}; allowed: NAME=FILE")
    proxy = files.load(path)
    kind = KINDS[proxy.config.proxy]
    if not kind.used_by:
        raise SettingError(f"reward is {assignment!r}, which is a {kind.noun}; allowed: a reward of {game}")
    if _task(proxy.game) != _task(game):
        raise SettingError(f"reward is {assignment!r}, which is of {proxy.game}; allowed: a reward of {game}")
    return name, proxy


def _task(game: str) -> str:
    """Return the Gymnasium id without version: equal for games that differ only in parameters and time limits."""
    return resolve(game.partition(",")[0]).gym_id.rpartition("-v")[0]


def thinned(curve: Tensor, points: int = 100) -> list[float]:
    """Return at most ``points`` evenly spaced numbers of a curve, the last included, rounded to two decimals."""
    step = -(-len(curve) // points)
    return [round(float(value), 2) for value in curve.flip(0)[::step].flip(0)]


def cells(name: str, row: dict[str, Any]) -> list[str]:
    """Return the numbers of the reward ``name`` as texts, for a row of the table."""

    def steps_text(steps: float | None) -> str:
        return "never" if steps is None else f"{steps:,.0f}"

    curve = row["mean"]
    shown_returns = [curve[max(0, round(share * len(curve)) - 1)] for share in SHOWN]
    return [
        name,
        " / ".join(map(steps_text, row["first"])),
        " / ".join(map(steps_text, row["stays"])),
        f"{100 * row['staying']:.0f} %",
        steps_text(row["mean_reaches"]),
        steps_text(row["mean_stays"]),
        f"{row['late']['mean']:.1f}",
        f"{100 * row['late']['solved']:.0f} %",
        *(f"{value:.1f}" for value in shown_returns),
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
    check_options(options, REWARD_ROWS, agents=1, steps=1, every=1, late=0, trained_steps=0, tune=0)
    check_number("shifts", options.shifts)
    check_number("hand_scales", options.hand_scales)
    game = GAMES[options.gamename]
    kind, steps, test_every = options.agent or game.agent, options.steps or game.steps, options.every or game.test_every
    if test_every > steps:
        raise SettingError(f"every is {test_every}; allowed: at most steps, which is {steps}")
    last_test = steps // test_every * test_every
    if (options.late or 0) > last_test:
        raise SettingError(f"late is {options.late}; allowed: at most {last_test}, the step of the last test")
    learned = []
    for assignment in options.reward:
        name, proxy = load_reward(assignment, options.gamename)
        learned.append((name, {"proxy": proxy}))
    argv = f"""--implementation=RN --gamename={options.gamename} --agent={kind} --inner_steps={steps}
        --test_every={test_every} --test_episodes={game.test_episodes} --no_rank_apart --average_from=0
        --inner_rule=budget""".split()
    fixed_names = parse(argv).explicit_names
    changes, change_flags = {"vary_hp": "false"}, []
    for assignment in options.set:
        name, _, value = assignment.partition("=")
        changes[name] = value
    for name, value in changes.items():
        change_flags += [f"--{name}", *value.split(",")]
    settings = parse([*argv, *change_flags])
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
    arguments_by_name = dict(other_rewards)
    names = [*arguments_by_name, *(name for name, _ in learned)]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"reward is '{name}=...'; allowed: a name that no other row has")
    if options.only is not None:
        selected_names = options.only or ["native"]
        for name in selected_names:
            if name not in arguments_by_name:
                raise choice_error("only", name, arguments_by_name)
        other_rewards = [(name, arguments_by_name[name]) for name in selected_names]
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
        outcome = train(settings, seeds, **reward_kwargs)
        rows[name] = row_of(outcome, settings.proxy, late)
        rows[name]["cpu_seconds"] = round(time.process_time() - started, 1)
        print(*Table([cells(name, rows[name])]).lines(widths), flush=True)
    if options.tune:
        for name, reward_kwargs in [("native", {}), *learned]:
            best = best_settings(settings, options, **reward_kwargs)
            outcome = train(settings, seeds, changes=best, **reward_kwargs)
            row = rows[f"{name}, tuned"] = row_of(outcome, settings.proxy, late) | {"settings": best}
            print(*Table([cells(f"{name}, tuned", row)]).lines(widths), best, flush=True)
    if options.json:
        numbers = numbers_in("json", options.json, REWARD_ROWS, new=True)
        key = ", ".join([options.gamename, kind, *options.set])
        numbers[key] = numbers.get(key, {}) | rows
        write_numbers(options.json, numbers)


if __name__ == "__main__":
    sys.exit(main())
