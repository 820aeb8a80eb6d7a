"""`--eval_agent`: evaluate the agent of a checkpoint, or a proxy. A checkpoint contains all settings except the number
of episodes. On a proxy, fresh agents train; they are compared with agents that train in the real environment."""

import contextlib
import dataclasses
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from control.cli.colour import paint, print_wrapped, verdict_text
from control.cli.options import check_effects, command_line
from control.cli.parse import changes_of
from control.cli.progress import progress
from control.cli.settings import RunConfig, Settings, as_dict, to_yaml
from control.commands.proxy_agents import agents_for_proxy
from control.commands.push import check_hub, push
from control.commands.run import export_policy, settings_in_environment, settings_to_play, trained_loop
from control.commands.summary import path_text
from control.evolution.cluster import make_workers
from control.evolution.inner_loop import Outcome, fresh_seeds
from control.films.recording import check_recording, film, filmed_seed_text, new_film, returns_text
from control.loops import recordings
from control.loops.loop import Loop
from control.loops.process import configure_process
from control.reports import obedience
from control.reports.curves import solved_return
from control.reports.search import describe, iqm_text, reward_comparison, speed_text
from control.reports.statistics import interval, iqm
from control.reports.tables import Table, number_text, solved_verdict, with_interval
from control.reports.verdict import Baselines, Verdict
from control.storage import checkpoints, run_dir
from control.storage.checkpoints import Checkpoint
from envs.make import spaces_of
from envs.names import split_name, with_parameters
from models.proxies import files
from models.proxies.files import Proxy, ProxyError
from models.registry import family
from models.settings import SettingError, UserError, field_types, names_with
from understudy.files import PROXY_FILE, SUFFIX, pretrained
from understudy.kinds import KINDS
from understudy.policy import AGENT

# Settings that have an effect only on the evaluation of a proxy.
_PROXY_ONLY_SETTINGS = {"num_agents", "real_baseline", "real_steps", "agent"}
# Settings that have an effect only on the evaluation of a checkpoint.
_CHECKPOINT_ONLY_SETTINGS = {"implementation", "gamename", "accelerator", "record", "record_episodes"}
_CHECKPOINT_ONLY_SETTINGS |= {"evaluation", "save_dataset", "export", "obedience", "command"}
_HEADER = ("trained on", "mean", "std", "IQM [95 % interval]", "solved", "steps")
_WIDTHS = (14, 7, 5, 22, 6, 7)  # widths of the columns, in characters
_REAL_STEPS = 50_000  # default limit for agents that train on the real environment
_TESTS_PER_AGENT = 10  # default number of test episodes of a fresh agent


def evaluate(settings: Settings) -> int:
    """Evaluate a checkpoint or a proxy, and print the results. Return the exit status: 1 for a failed proxy, else 0."""
    configure_process(settings.run)
    hub_name = settings.subcommand.push_to_hub  # user/name, or None
    if hub_name is not None:
        check_hub(hub_name)
    source = proxy_or_checkpoint(settings.subcommand.eval_agent)
    if isinstance(source, Checkpoint):
        evaluate_checkpoint(settings, source)
        return 0
    if hub_name is not None and source.path.suffix != SUFFIX:
        raise SettingError(f"push_to_hub is {hub_name!r}, but the search has no {PROXY_FILE} yet", "push_to_hub")
    verdict = evaluate_proxy(settings, source)
    if hub_name is not None:
        rows = {"proxy": source.config.proxy, "environment": source.game, "agents": verdict.agents.count}
        config = yaml.safe_dump(source.description.get("settings", {}))
        push(hub_name, lambda folder: shutil.copy(source.path, folder / PROXY_FILE), config, rows, verdict.sentence)
    return 0 if verdict.passed else 1


def evaluate_checkpoint(settings: Settings, checkpoint: Checkpoint) -> None:
    """Play ``num_eval_episodes`` episodes with the agent of each seed of the checkpoint, and print a table of the
    returns. Write a video unless ``--no_record`` is set. If the flags for them are set, also write a dataset, export
    the policy, or upload it. Seeds of episodes are derived from ``--seed`` (25 by default), not from the run's seed."""
    run, options = settings.run, settings.subcommand
    played_settings = _settings_of_episodes(settings, checkpoint)
    implementation, game = played_settings.run.implementation, played_settings.run.gamename
    trained_on = checkpoint.settings.run.gamename
    if options.save_dataset is not None:
        recordings.check_new(options.save_dataset)
    episodes = options.num_eval_episodes
    if options.obedience and "num_eval_episodes" not in settings.explicit_names:
        episodes = obedience.EPISODES
    loop_settings = settings_to_play(played_settings, episodes)
    with contextlib.closing(trained_loop(checkpoint, loop_settings, run.seed)) as loop:
        episode_loop = obedience.commanded_loop(loop, implementation) if options.obedience else None
        modes = loop.evaluation_modes
        if options.evaluation != "both":
            if options.evaluation not in modes:
                problem = f"evaluation is {options.evaluation!r}, which has no effect with {implementation}"
                raise SettingError(f"{problem}; allowed: {', '.join(modes)}")
            modes = (options.evaluation,)
        if run.record:
            check_recording(loop_settings.run)
        if options.export is not None:
            path = export_policy(loop.agents[0], played_settings, Path(options.export))
            print(f'policy: understudy.Policy("{path}")' if path.suffix == SUFFIX else f"policy: {path}")
        place = game if game == trained_on else f"{game} (trained on {trained_on})"
        epoch = checkpoint.run_state["epoch"]
        print_wrapped(f"{implementation} on {place}, epoch {epoch}: {path_text(checkpoint.path)}")
        if episode_loop:  # with --obedience
            print(f"{obedience.COMMANDS} commands, {episodes} episodes of each per seed\n")
            obedience.report(checkpoint, episode_loop, modes, episodes, run.seed)
            return
        print(f"{_command_text(loop, loop_settings)}{episodes} episodes per seed\n")
        if options.save_dataset is not None:
            loop.trajectories = []  # collects the episodes below
        solved = None if run.time_limit else solved_return(game)  # the threshold is for whole episodes
        table = _print_returns(loop, modes, episodes, solved)
        if options.save_dataset is not None:
            _write_dataset(options.save_dataset, loop, played_settings.run)
        if options.push_to_hub is not None:
            result = f"{episodes} episodes per seed\n\n{table}"
            _push_agent(options.push_to_hub, checkpoint, played_settings, loop, result)
        if run.record or "record" not in settings.explicit_names:  # not with --no_record
            stem = f"eval_{checkpoint.path.stem}"  # beginning of the film's name
            if game != trained_on:
                stem += f"_{run_dir.safe_name(game)}"
            is_sampled = modes == ("sampled",)  # the film is greedy if both modes are evaluated
            _film_evaluation(loop, loop_settings.run, new_film(checkpoint.path, stem), run.seed, is_sampled)


def _write_dataset(name: str, loop: Loop, run: RunConfig) -> None:
    """Write the episodes in ``loop.trajectories`` as the dataset ``name`` of Minari, and print its folder."""
    spaces, (game, _) = loop.agents[0].spaces, split_name(run.gamename)
    dataset = recordings.save(name, loop.trajectories or (), spaces, game, run.implementation)
    flag = "" if spaces.is_image else f"--dataset minari:{name}, "  # which cannot read images
    print(f"dataset: {flag}in {dataset}")


def _film_evaluation(loop: Loop, run: RunConfig, path: Path, seed: int, sample: bool) -> None:
    """Film the agent of the first seed in ``loop`` as ``path``, and print the file and the returns. Actions are sampled
    if ``sample``, otherwise greedy. ``seed`` determines the episodes. Without ``run.record``, film a single episode and
    print a note if that fails; otherwise raise the error."""
    episodes = run.record_episodes if run.record else 1
    try:
        with progress("filming") as watch:
            returns = film(loop, run, path, f"video {seed}", sample, episodes, with_gif=run.record, watch=watch)
    except (UserError, OSError) as error:
        if run.record:
            raise
        print()
        print_wrapped(f"note: no film ({error})")
        return
    actions = "drawn actions" if sample else "greedy"
    if len(loop.seeds) > 1:
        actions = f"{filmed_seed_text(loop.seeds)}, {actions}"
    print()
    print_wrapped(f"video: {path} ({actions}: {returns_text(returns)})")
    if run.record:
        print_wrapped(f"GIF:   {path.with_suffix('.gif')}")


def _settings_of_episodes(settings: Settings, checkpoint: Checkpoint) -> Settings:
    """Return the settings of the checkpoint, with some of the user's ``settings``: the environment, the goal of an
    agent that follows commands, the time limit, the device, and settings that do not affect results. Raises
    SettingError if the user's implementation, environment or other settings do not fit the checkpoint."""
    trained_settings = checkpoint.settings
    run, trained_run, explicit_names = settings.run, trained_settings.run, settings.explicit_names
    if "implementation" in explicit_names and run.implementation != trained_run.implementation:
        problem = f"implementation is {run.implementation!r}, but the checkpoint is of {trained_run.implementation!r}"
        raise SettingError(f"{problem}; leave it out")
    game_name = run.gamename if "gamename" in explicit_names else trained_run.gamename
    base_game, parameters = split_name(game_name)
    game_run = dataclasses.replace(trained_run, gamename=game_name)
    changes = changes_of(settings, dataclasses.replace(trained_settings, run=game_run))  # setting -> the user's value
    settings_of_training = changes.keys() - base_game.parameter_values()  # parameters of the environment may change
    unused = sorted(settings_of_training | (_PROXY_ONLY_SETTINGS & explicit_names))
    check_effects(dict.fromkeys(unused, " with --eval_agent of a checkpoint, which holds its agent"), settings)
    game = with_parameters(base_game, parameters | changes).name  # such as "procmaze,grid_size=5"
    if settings.subcommand.obedience:
        unused = sorted({"record", "command", "save_dataset", "export", "push_to_hub"} & explicit_names)
        check_effects(dict.fromkeys(unused, " with --obedience, which only commands returns"), settings)
        if game != trained_run.gamename:
            check_effects({"obedience": f" with gamename {game}: its commands are those of {trained_run.gamename}"})
    if game != trained_run.gamename:
        trained_settings = settings_in_environment(trained_settings, game)
    names = {"accelerator", *names_with(run, "outcome", False)}  # the latter do not affect results
    if "time_limit" in explicit_names:  # otherwise the time limit of the training remains
        names.add("time_limit")
    run_values = {name: getattr(run, name) for name in names}
    return trained_settings.replace(**run_values, command=trained_settings.command | settings.command)


def _print_returns(loop: Loop, modes: Sequence[str], episodes: int, solved: float | None) -> Table:
    """Play E ``episodes`` for each of M seeds in each of the ``modes`` ("greedy", "sampled"). Print and return a
    table of their returns. Unless ``solved`` is None, also print whether the mean return reaches it."""
    cells = [["", "seed", "mean", "std", "IQM [95 % interval]", "length"]]
    verdicts: list[str] = []
    for mode in modes:
        results = loop.evaluate(episodes, sample=(mode == "sampled"))
        returns, lengths = results.returns.double().numpy(), results.lengths.numpy()  # [M, E]
        groups = [*zip(map(str, loop.seeds), returns, lengths, strict=True)]
        if len(loop.seeds) > 1:
            groups.append(("all", returns.ravel(), lengths.ravel()))
        for seed_name, group_returns, group_lengths in groups:
            mean, std = number_text(group_returns.mean()), number_text(group_returns.std())
            iqm_cell = with_interval(float(iqm(group_returns)), interval(group_returns, iqm))
            cells.append([mode, seed_name, mean, std, iqm_cell, f"{group_lengths.mean():.0f}"])
        if solved is not None:
            mean_return = float(returns.mean())
            verdicts.append(f"mean {mode} return {number_text(mean_return)}, {solved_verdict(mean_return, solved)}")
    table = Table(cells)
    header, *rows = table.lines()
    print(paint(header, "dim", sys.stdout), *rows, *verdicts, sep="\n")
    return table


def _push_agent(name: str, checkpoint: Checkpoint, trained_settings: Settings, loop: Loop, result: str) -> None:
    """Upload the agent of a checkpoint to ``name`` on the Hugging Face Hub. ``trained_settings`` are its settings in
    the evaluation, ``loop`` has its weights, and ``result`` is the text of the evaluation for the model card."""
    public_settings = checkpoint.settings.replace(logdir="exp_dir")  # without a path of this machine
    run = trained_settings.run
    rows = {
        "agent": run.implementation,
        "environment": run.gamename,
        "seeds": ", ".join(map(str, loop.seeds)),
        "epoch": checkpoint.run_state["epoch"],
        "command": f"`{command_line(public_settings)}`",
    }
    agent, config = loop.agents[0], to_yaml(public_settings)
    push(name, lambda folder: export_policy(agent, trained_settings, folder / AGENT), config, rows, result)


def _command_text(loop: Loop, settings: Settings) -> str:
    """Return the goal of an agent that follows commands as text, such as ``command return 250, horizon 200; ``. It is
    the user's goal or, if there is none, the goal that the agent chooses. Empty for other agents."""
    commands = loop.agents[0].mean_commands()  # such as "return" -> its values for all seeds
    if not commands:
        return ""
    goals = settings.command or {name: float(value.mean()) for name, value in commands.items()}
    text = ", ".join(f"{name} {value:.4g}" for name, value in goals.items())
    if "return" in goals and settings.agent.return_discount < 1:
        text += " (discounted)"
    if settings.agent.eval_command == "sampled":
        text += " (mean of a distribution)"
    return f"command {text}; "


def proxy_or_checkpoint(path: str) -> Proxy | Checkpoint:
    """Load a proxy (a learned environment or reward) or an agent's checkpoint. ``path`` is the file of a proxy, the
    name of a proxy that this package contains, a checkpoint, or a run folder. For a search, load its winner or, if the
    search has not ended, the best mean so far. Raises ProxyError if no mean has a fitness yet."""
    source = run_dir.find_proxy(Path(path)) or Path(path)  # a folder has a proxy if it is of a search that has ended
    if source.suffix == SUFFIX or (path in pretrained() and not source.exists()):
        return files.load(source)
    checkpoint = checkpoints.load(source)
    settings, game = checkpoint.settings, checkpoint.settings.run.gamename
    if family(settings.run.implementation).learns_from != "evolution":
        return checkpoint
    archive_entries = checkpoint.search_state["archive"]["entries"]  # (fitness, generation, mean), the best mean first
    if not archive_entries:
        raise ProxyError(f"checkpoint {str(checkpoint.path)!r} is of a search whose mean has no fitness yet")
    _, generation, best_mean = archive_entries[0]
    description = {"settings": as_dict(settings), "scores": {"generation": generation}}
    return Proxy(checkpoint.path, settings.proxy, spaces_of(game), game, best_mean, description)


# -- evaluation of a proxy ---------------------------------------------------------------------------------------------


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
        max_steps = options.real_steps or _REAL_STEPS
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
    print(paint(Table([_HEADER]).lines(_WIDTHS)[0], "dim", sys.stdout))


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
    print(*Table([cells]).lines(_WIDTHS), flush=True)
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
