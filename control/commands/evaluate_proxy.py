"""`--eval_agent` of a proxy: fresh agents train on it and are tested in the real environment. They are compared with
agents that train in the real environment."""

import contextlib
import dataclasses
import sys
from typing import Any

from control.cli.colour import paint, print_wrapped, verdict_text
from control.cli.options import check_effects
from control.cli.progress import progress
from control.cli.settings import Settings
from control.commands.proxy_agents import agents_for_proxy
from control.commands.summary import path_text
from control.evolution.cluster import make_workers
from control.evolution.inner_loop import Outcome, fresh_seeds
from control.reports.search import describe, iqm_text, reward_comparison, speed_text
from control.reports.tables import Table, number_text
from control.reports.verdict import Baselines, Verdict
from envs.make import spaces_of
from models.proxies.files import Proxy
from models.settings import SettingError, field_types
from understudy.kinds import KINDS

# Settings that have an effect only on the evaluation of a checkpoint.
_CHECKPOINT_ONLY_SETTINGS = {"implementation", "gamename", "accelerator", "record", "record_episodes"}
_CHECKPOINT_ONLY_SETTINGS |= {"evaluation", "save_dataset", "export", "obedience", "command"}
HEADER = ("trained on", "mean", "std", "IQM [95 % interval]", "solved", "steps")
WIDTHS = (14, 7, 5, 22, 6, 7)  # widths of the columns, in characters
REAL_STEPS = 50_000  # default limit for agents that train on the real environment
_TESTS_PER_AGENT = 10  # default number of test episodes of a fresh agent


def evaluate_proxy(settings: Settings, proxy: Proxy) -> Verdict:
    """Train ``num_agents`` fresh agents on the proxy (a learned environment or reward) and, unless
    ``--no_real_baseline``, as many agents on the real environment. Print a table of their returns in the real
    environment. Return the verdict about the agents on the proxy. Seeds of the agents are derived from ``--seed``."""
    run, options = settings.run, settings.subcommand
    unused = sorted(_CHECKPOINT_ONLY_SETTINGS & settings.explicit_names)
    check_effects(dict.fromkeys(unused, " with --eval_agent of a proxy"), settings)
    agents = agents_for_proxy(settings, proxy)
    if options.num_agents < len(agents):
        problem = f"num_agents is {options.num_agents}; allowed with {','.join(agents)}: at least {len(agents)}"
        raise SettingError(problem, "num_agents")
    tests_per_agent = _TESTS_PER_AGENT
    if "num_eval_episodes" in settings.explicit_names:  # the number of all tests
        tests_per_agent = max(1, options.num_eval_episodes // options.num_agents)
    config = dataclasses.replace(proxy.config, test_episodes=tests_per_agent)
    proxy = dataclasses.replace(proxy, config=config)
    kind = KINDS[config.proxy]
    is_reward_network = bool(kind.used_by)  # a learned environment needs no wrapper, so ``used_by`` is ""
    learned_name, real_name = (kind.noun, "real reward") if is_reward_network else ("synthetic", "real")
    _print_heading(settings, proxy, agents)
    # The rule "tests" ends a training by tests on the real environment. Agents make no such tests here.
    rule = "budget" if config.inner_rule == "tests" else config.inner_rule
    steps = config.steps_in_use
    outcome = _train_and_print(settings, proxy, learned_name, agents, on_proxy=True, steps=steps, rule=rule)
    footer = comparison = ""
    test_config = _test_config(settings, config)
    has_fixed_steps = rule == "budget" and config.train_episodes is None
    if options.real_baseline and options.real_steps is None and has_fixed_steps:
        # The same training on the real environment.
        real_outcome = _train_and_print(settings, proxy, real_name, agents, on_proxy=False, steps=steps, rule=rule)
        if is_reward_network:
            comparison = reward_comparison(outcome, real_outcome, test_config)
        else:
            footer = "both have the settings and steps that suit the network; "
            footer += "--real_steps N trains longer on the real one"
    elif options.real_baseline:
        # Agents with settings for the real environment train until they solve it, or for ``max_steps`` steps.
        solved = config.solved_reward
        max_steps = options.real_steps or REAL_STEPS
        real_rule = "budget" if solved is None else "solved"
        real_agents = {name: _settings_for_real_environment(agent) for name, agent in agents.items()}
        _train_and_print(settings, proxy, real_name, real_agents, on_proxy=False, steps=max_steps, rule=real_rule)
        until = "" if solved is None else f" until {config.early_out_num} episodes reach {solved:g} on average,"
        footer = f"on the real environment agents train{until} at most {max_steps:,} steps"
    limit = run.time_limit or config.test_limit
    solved_reward = test_config.solved_reward
    goal = spaces_of(proxy.game, limit).max_return if solved_reward is None else solved_reward
    baselines = Baselines.measure(proxy.game, run.seed, limit)
    verdict = baselines.judge(outcome.scores.numpy(), goal=goal, solved_reward=solved_reward, comparison=comparison)
    print()
    if footer:
        print_wrapped(footer)
    print_wrapped(verdict_text(verdict.sentence, verdict.passed))
    return verdict


def _print_heading(settings: Settings, proxy: Proxy, agents: dict[str, Any]) -> None:
    """Print the proxy and the fresh ``agents`` (implementation -> config), and the header of the table."""
    run, options = settings.run, settings.subcommand
    print_wrapped(f"{proxy.game} by a {KINDS[proxy.config.proxy].noun}: {path_text(proxy.path)}")
    places = " on each" if options.real_baseline else ""
    agents_text = f"{options.num_agents} fresh {','.join(agents)} agents{places}, seed {run.seed}"
    sampled_names: dict[str, None] = {}  # hyperparameters without repetitions
    for agent in agents.values():
        if agent.vary_hp:
            sampled_names |= dict.fromkeys(agent.vary)
    if sampled_names:
        agents_text += f", sampled for each agent: {', '.join(sampled_names)}"
    print_wrapped(f"{agents_text}; {proxy.config.test_episodes} real test episodes per agent")
    print()
    print(paint(Table([HEADER]).lines(WIDTHS)[0], "dim", sys.stdout))


def _train_and_print(
    settings: Settings, proxy: Proxy, title: str, agents: dict[str, Any], on_proxy: bool, steps: int, rule: str
) -> Outcome:
    """Train fresh ``agents`` (implementation -> config) for at most ``steps`` steps each, on the proxy if ``on_proxy``,
    otherwise on the real environment. ``rule`` is a value of the setting ``inner_rule``: "budget" takes all steps,
    other rules such as "solved" can end a training earlier. Test the agents on the real environment, and print a row of
    the table about them, which begins with ``title``, and notes below it. Return the results of all agents."""
    run, config = settings.run, proxy.config
    limits: dict[str, Any] = {
        "inner_steps": steps,
        "inner_rule": rule,
        "test_limit": run.time_limit or config.test_limit,
        "test_every": config.test_every if rule == "budget" else None,  # other rules allow no tests during training
    }
    outcomes: dict[str, Outcome] = {}
    for number, (name, agent_config) in enumerate(agents.items()):
        count, remainder = divmod(settings.subcommand.num_agents, len(agents))
        count += number < remainder  # the first implementations have one agent more
        seeds = fresh_seeds(run.seed, "evaluation", count)
        proxies = proxy.parameters.expand(count, -1) if on_proxy else None  # [count, D], equal rows
        job = (config, name, agent_config, proxy.game)
        with progress(f"{title}: {count} {name} agents") as watch:
            workers = make_workers(job, run.num_workers, run.ray_address, run.num_threads)
            with contextlib.closing(workers):
                outcomes[name] = workers.run(proxies, seeds, watch=watch, **limits)
    all_outcomes = Outcome.concatenate([*outcomes.values()])
    summary = describe(all_outcomes, _test_config(settings, config))
    mean, std = number_text(summary["mean"]), number_text(summary["std"])
    solved = "" if summary["solved"] is None else f"{100 * summary['solved']:.0f} %"
    cells = (title, mean, std, iqm_text(summary), solved, f"{summary['steps']:,.0f}")
    print(*Table([cells]).lines(WIDTHS), flush=True)
    if len(outcomes) > 1:  # print the mean of each implementation, which is nan if all of its agents have diverged
        means = [f"{name} {float(outcome.scores.nanmean()):.1f}" for name, outcome in outcomes.items()]
        print(f"  {', '.join(means)}")
    if summary["failed"]:
        print_wrapped(f"  {summary['failed']} of these agents diverged and count in nothing")
    if "stays" in summary:  # they were tested during the training
        print_wrapped(f"  {speed_text(summary)}")
    return all_outcomes


def _test_config(settings: Settings, config: Any) -> Any:
    """Return the ``config`` of a search with the ``solved_reward`` for test episodes. It is None if ``--time_limit``
    shortens these episodes, because a ``solved_reward`` is a return of whole episodes."""
    return dataclasses.replace(config, solved_reward=None) if settings.run.time_limit else config


def _settings_for_real_environment(agent: Any) -> Any:
    """Return a copy of an agent's config, which suits a proxy, for training on the real environment: a single
    environment, a larger replay buffer, and exploration by episodes."""
    changes: dict[str, Any] = {
        "num_envs": 1,
        "buffer_size": 100_000,
        "fill": 0,
        "init_episodes": max(1, agent.init_episodes),  # updates begin after these episodes
        "eps_fraction": None,  # exploration depends on the number of episodes
    }
    fields = field_types(type(agent))  # an agent may lack some of these settings
    return dataclasses.replace(agent, **{name: value for name, value in changes.items() if name in fields})
