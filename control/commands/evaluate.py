"""`--eval_agent`: evaluate the agent of a checkpoint, or a proxy. A checkpoint contains all settings except the number
of episodes. A proxy is evaluated by fresh agents: they train on it and are tested in the real environment. They are
compared with agents that train in the real environment."""

import contextlib
import dataclasses
import functools
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from control.cli.colour import paint, print_wrapped, verdict_text
from control.cli.options import command_line
from control.cli.parse import changes_of
from control.cli.progress import progress
from control.cli.settings import RunConfig, Settings, as_dict, defaults_for, from_dict, ineffective, to_yaml
from control.cli.together import check_effects
from control.commands.push import check_hub, push
from control.commands.run import export_policy, settings_in_environment, settings_to_play, trained_loop
from control.commands.summary import path_text
from control.evolution.cluster import make_workers
from control.evolution.inner_loop import Outcome, fresh_seeds
from control.films.recording import check_recording, film, filmed_seed_text, new_film, returns_text
from control.loops import recordings
from control.loops.build import check_spaces, with_missing_features
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
from models.mixture import make_mixture, names_in, shared_settings
from models.proxies import files
from models.proxies.files import Proxy, ProxyError
from models.registry import agent_class, config_classes, family, overridden_names, parse_agents
from models.settings import SettingError, UserError, field_types, names_with
from models.spaces import Spaces
from models.vocabulary import translate
from understudy.files import PROXY_FILE, SUFFIX, pretrained
from understudy.kinds import KINDS
from understudy.policy import AGENT

# Settings that have an effect only on a checkpoint, and only on a proxy.
_CHECKPOINT_ONLY_SETTINGS = {"implementation", "gamename", "accelerator", "record", "record_episodes"}
_CHECKPOINT_ONLY_SETTINGS |= {"evaluation", "save_dataset", "export", "obedience", "command"}
_PROXY_ONLY_SETTINGS = {"num_agents", "real_baseline", "real_steps", "agent"}
HEADER = ("trained on", "mean", "std", "IQM [95 % interval]", "solved", "steps")
WIDTHS = (14, 7, 5, 22, 6, 7)
REAL_STEPS = 50_000  # default limit for agents that train on the real environment
_TESTS_PER_AGENT = 10  # default number of test episodes of a fresh agent


def evaluate(settings: Settings) -> int:
    """Evaluate a checkpoint or a proxy, and print the results. Return the exit status: 1 for a failed proxy, else 0."""
    configure_process(settings.run)
    name = settings.subcommand.push_to_hub
    if name is not None:
        check_hub(name)
    source = proxy_or_checkpoint(settings.subcommand.eval_agent)
    if isinstance(source, Checkpoint):
        evaluate_checkpoint(settings, source)
        return 0
    if name is not None and source.path.suffix != SUFFIX:
        raise SettingError(f"push_to_hub is {name!r}, but the search has no {PROXY_FILE} yet", "push_to_hub")
    verdict = evaluate_proxy(settings, source)
    if name is not None:
        rows = {"proxy": source.config.proxy, "environment": source.game, "agents": verdict.agents.count}
        config = yaml.safe_dump(source.description.get("settings", {}))
        push(name, lambda folder: shutil.copy(source.path, folder / PROXY_FILE), config, rows, verdict.sentence)
    return 0 if verdict.passed else 1


def evaluate_checkpoint(settings: Settings, checkpoint: Checkpoint) -> None:
    """Play ``num_eval_episodes`` episodes for each seed of the checkpoint and print a table of the returns. Write a
    video unless ``--no_record`` is set, and a dataset, a policy or an upload if the flags for them are set. Seeds of
    episodes come from ``--seed`` (25 by default), not from the run."""
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
        if episode_loop:
            print(f"{obedience.COMMANDS} commands, {episodes} episodes of each per seed\n")
            obedience.report(checkpoint, episode_loop, modes, episodes, run.seed)
            return
        print(f"{_command_text(loop, loop_settings)}{episodes} episodes per seed\n")
        if options.save_dataset is not None:
            loop.trajectories = []  # collects the episodes below
        solved = None if run.time_limit else solved_return(game)  # a threshold for whole episodes
        table = _print_returns(loop, modes, episodes, solved)
        if loop.trajectories is not None:
            spaces, (base_game, _) = loop.agents[0].spaces, split_name(game)
            dataset = recordings.save(options.save_dataset, loop.trajectories, spaces, base_game, implementation)
            flag = "" if spaces.is_image else f"--dataset minari:{options.save_dataset}, "  # images cannot be read back
            print(f"dataset: {flag}in {dataset}")
        if options.push_to_hub is not None:
            result = f"{episodes} episodes per seed\n\n{table}"
            _push_agent(options.push_to_hub, checkpoint, played_settings, loop, result)
        if run.record or "record" not in settings.explicit_names:  # not with --no_record
            stem = f"eval_{checkpoint.path.stem}"  # beginning of the film's name
            if game != trained_on:
                stem += f"_{run_dir.safe_name(game)}"
            is_sampled = modes == ("sampled",)  # the film is greedy if both modes are evaluated
            _film_evaluation(loop, loop_settings.run, new_film(checkpoint.path, stem), run.seed, is_sampled)


def _film_evaluation(loop: Loop, run: RunConfig, path: Path, seed: int, sample: bool) -> None:
    """Film the first member of ``loop`` as ``path``, with sampled actions if ``sample``, and print the file and the
    returns. ``seed`` determines the episodes."""
    episodes = run.record_episodes if run.record else 1
    try:
        with progress("filming") as watch:
            returns = film(loop, run, path, f"video {seed}", sample, episodes, with_gif=run.record, watch=watch)
    except (UserError, OSError) as error:
        if run.record:
            raise
        print()
        print_wrapped(f"note: no film ({str(error).removeprefix('record: ')})")
        return
    actions = "drawn actions" if sample else "greedy"
    if len(loop.seeds) > 1:
        actions = f"{filmed_seed_text(loop.seeds)}, {actions}"
    print()
    print_wrapped(f"video: {path} ({actions}: {returns_text(returns)})")
    if run.record:
        print_wrapped(f"GIF:   {path.with_suffix('.gif')}")


def _settings_of_episodes(settings: Settings, checkpoint: Checkpoint) -> Settings:
    """Return the settings of the checkpoint, with some of the user's settings: environment, commands to the agent, time
    limit, device, and settings that do not affect results. Raises SettingError if the user's implementation,
    environment or other settings do not fit the checkpoint."""
    trained_settings = checkpoint.settings
    run, trained_run, explicit_names = settings.run, trained_settings.run, settings.explicit_names
    if "implementation" in explicit_names and run.implementation != trained_run.implementation:
        problem = f"implementation is {run.implementation!r}, but the checkpoint is of {trained_run.implementation!r}"
        raise SettingError(f"{problem}; leave it out")
    game_name = run.gamename if "gamename" in explicit_names else trained_run.gamename
    base_game, parameters = split_name(game_name)
    run_here = dataclasses.replace(trained_run, gamename=game_name)
    changes = changes_of(settings, dataclasses.replace(trained_settings, run=run_here))
    unused = sorted((_PROXY_ONLY_SETTINGS & explicit_names) | (changes.keys() - base_game.parameter_values()))
    check_effects(dict.fromkeys(unused, " with --eval_agent of a checkpoint, which holds its agent"), settings)
    game = with_parameters(base_game, parameters | changes).name  # such as procmaze,grid_size=5
    if settings.subcommand.obedience:
        unused = sorted({"record", "command", "save_dataset", "export", "push_to_hub"} & explicit_names)
        check_effects(dict.fromkeys(unused, " with --obedience, which only commands returns"), settings)
        if game != trained_run.gamename:
            check_effects({"obedience": f" with gamename {game}: its commands are those of {trained_run.gamename}"})
    if game != trained_run.gamename:
        trained_settings = settings_in_environment(trained_settings, game)
    names = {"accelerator", *names_with(run, "outcome", False)}
    if "time_limit" in explicit_names:  # else the time limit of the training
        names.add("time_limit")
    run_values = {name: getattr(run, name) for name in names}
    return trained_settings.replace(**run_values, command=trained_settings.command | settings.command)


def _print_returns(loop: Loop, modes: Sequence[str], episodes: int, solved: float | None) -> Table:
    """Play ``episodes`` for each seed in each of the ``modes`` ("greedy", "sampled"). Print and return the table of the
    returns. Unless ``solved`` is None, also print whether the mean return reaches it."""
    cells = [["", "seed", "mean", "std", "IQM [95 % interval]", "length"]]
    verdicts: list[str] = []
    for mode in modes:
        results = loop.evaluate(episodes, sample=(mode == "sampled"))
        returns, lengths = results.returns.double().numpy(), results.lengths.numpy()  # [M, E]
        groups = [*zip(map(str, loop.seeds), returns, lengths, strict=True)]
        if len(loop.seeds) > 1:
            groups.append(("all", returns.ravel(), lengths.ravel()))
        for name, group, group_lengths in groups:
            iqm_cell = with_interval(float(iqm(group)), interval(group, iqm))
            mean_and_std = number_text(group.mean()), number_text(group.std())
            cells.append([mode, name, *mean_and_std, iqm_cell, f"{group_lengths.mean():.0f}"])
        if solved is not None:
            mean = float(returns.mean())
            verdicts.append(f"mean {mode} return {number_text(mean)}, {solved_verdict(mean, solved)}")
    table = Table(cells)
    header, *rows = table.lines()
    print(paint(header, "dim", sys.stdout), *rows, *verdicts, sep="\n")
    return table


def _push_agent(name: str, checkpoint: Checkpoint, trained_settings: Settings, loop: Loop, result: str) -> None:
    public = checkpoint.settings.replace(logdir="exp_dir")  # without a path of this machine
    run = trained_settings.run
    rows = {
        "agent": run.implementation,
        "environment": run.gamename,
        "seeds": ", ".join(map(str, loop.seeds)),
        "epoch": checkpoint.run_state["epoch"],
        "command": f"`{command_line(public)}`",
    }
    agent = loop.agents[0]
    push(name, lambda folder: export_policy(agent, trained_settings, folder / AGENT), to_yaml(public), rows, result)


def _command_text(loop: Loop, settings: Settings) -> str:
    """Return the user's command or, without one, the command that the agent chooses, such as ``command return 250,
    horizon 200; ``. Empty if agents of this kind follow no command."""
    commands = loop.agents[0].mean_commands()  # name -> numbers of all seeds
    if not commands:
        return ""
    means = settings.command or {name: float(value.mean()) for name, value in commands.items()}
    text = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
    if "return" in means and settings.agent.return_discount < 1:
        text += " (discounted)"
    if settings.agent.eval_command == "sampled":
        text += " (mean of a distribution)"
    return f"command {text}; "


def proxy_or_checkpoint(path: str) -> Proxy | Checkpoint:
    """Load a proxy or an agent's checkpoint. ``path`` is the file of a proxy, the name of a proxy that this package
    contains, a checkpoint, or a run folder. For a search, load the proxy that it chose at its end. If it has not ended,
    load the best mean of its search distribution so far. Raises ProxyError if no mean has a fitness yet."""
    proxy_of_folder = run_dir.find_proxy(Path(path))  # None if ``path`` is not the folder of a search that has ended
    source = proxy_of_folder or Path(path)
    if source.suffix == SUFFIX or (path in pretrained() and not source.exists()):
        return files.load(source)
    checkpoint = checkpoints.load(source)
    settings, game = checkpoint.settings, checkpoint.settings.run.gamename
    if family(settings.run.implementation).learns_from != "evolution":
        return checkpoint
    entries = checkpoint.search_state["archive"]["entries"]
    if not entries:
        raise ProxyError(f"checkpoint {str(checkpoint.path)!r} is of a search whose mean has no fitness yet")
    _, generation, best_mean = entries[0]  # the archive has the best mean first
    description = {"settings": as_dict(settings), "scores": {"generation": generation}}
    return Proxy(checkpoint.path, settings.proxy, spaces_of(game), game, best_mean, description)


def evaluate_proxy(settings: Settings, proxy: Proxy) -> Verdict:
    """Train ``num_agents`` fresh agents on the proxy and, unless ``--no_real_baseline``, as many on the real
    environment. Print a table of their returns in the real environment. Return the verdict about the agents on the
    proxy. Seeds of the agents come from ``--seed``."""
    run, options = settings.run, settings.subcommand
    unused = sorted(_CHECKPOINT_ONLY_SETTINGS & settings.explicit_names)
    check_effects(dict.fromkeys(unused, " with --eval_agent of a proxy"), settings)
    agents = agents_for_proxy(settings, proxy)
    if options.num_agents < len(agents):
        line = f"num_agents is {options.num_agents}; allowed with {','.join(agents)}: at least {len(agents)}"
        raise SettingError(line, "num_agents")
    tests_per_agent = _TESTS_PER_AGENT
    if "num_eval_episodes" in settings.explicit_names:  # the number of all tests
        tests_per_agent = max(1, options.num_eval_episodes // options.num_agents)
    config = dataclasses.replace(proxy.config, test_episodes=tests_per_agent)
    proxy = dataclasses.replace(proxy, config=config)
    kind = KINDS[config.proxy]
    is_reward_network = bool(kind.used_by)  # "" for a learned environment, which agents use without a wrapper
    learned_name, real_name = (kind.noun, "real reward") if is_reward_network else ("synthetic", "real")
    _print_heading(settings, proxy, agents)
    train_and_print = functools.partial(_train_and_print, settings, proxy)
    # The rule "tests" ends a training by tests on the real environment, which agents do not get here.
    rule = "budget" if config.inner_rule == "tests" else config.inner_rule
    outcome = train_and_print(learned_name, agents, on_proxy=True, steps=config.steps_in_use, rule=rule)
    footer = comparison = ""
    limit = run.time_limit or config.test_limit
    test_config = _test_config(settings, config)
    has_fixed_steps = rule == "budget" and config.train_episodes is None
    if options.real_baseline and options.real_steps is None and has_fixed_steps:
        # The same training on the real environment.
        real_outcome = train_and_print(real_name, agents, on_proxy=False, steps=config.steps_in_use, rule=rule)
        if is_reward_network:
            comparison = reward_comparison(outcome, real_outcome, test_config)
        else:
            footer = (
                "both have the settings and steps that suit the network; --real_steps N trains longer on the real one"
            )
    elif options.real_baseline:
        # Agents with settings for the real environment train until they solve it, or for ``max_steps`` steps.
        solved = config.solved_reward
        max_steps = options.real_steps or REAL_STEPS
        real_rule = "budget" if solved is None else "solved"
        real_agents = {name: _settings_for_real_environment(agent) for name, agent in agents.items()}
        train_and_print(real_name, real_agents, on_proxy=False, steps=max_steps, rule=real_rule)
        until = "" if solved is None else f" until {config.early_out_num} episodes reach {solved:g} on average,"
        footer = f"on the real environment agents train{until} at most {max_steps:,} steps"
    solved_reward = test_config.solved_reward
    goal = spaces_of(proxy.game, limit).max_return if solved_reward is None else solved_reward
    baselines = Baselines.measure(proxy.game, run.seed, limit)
    verdict = baselines.judge(outcome.scores.numpy(), goal=goal, solved_reward=solved_reward, comparison=comparison)
    print()
    for line in filter(None, [footer, verdict_text(verdict.sentence, verdict.passed)]):
        print_wrapped(line)
    return verdict


def _print_heading(settings: Settings, proxy: Proxy, agents: dict[str, Any]) -> None:
    run, options = settings.run, settings.subcommand
    print_wrapped(f"{proxy.game} by a {KINDS[proxy.config.proxy].noun}: {path_text(proxy.path)}")
    places = " on each" if options.real_baseline else ""
    agents_text = f"{options.num_agents} fresh {','.join(agents)} agents{places}, seed {run.seed}"
    sampled_names = dict.fromkeys(name for agent in agents.values() if agent.vary_hp for name in agent.vary)
    if sampled_names:
        agents_text += f", sampled for each agent: {', '.join(sampled_names)}"
    print_wrapped(f"{agents_text}; {proxy.config.test_episodes} real test episodes per agent")
    print()
    print(paint(Table([HEADER]).lines(WIDTHS)[0], "dim", sys.stdout))


def _train_and_print(
    settings: Settings, proxy: Proxy, title: str, agents: dict[str, Any], on_proxy: bool, steps: int, rule: str
) -> Outcome:
    """Train fresh ``agents`` (implementation -> config) for at most ``steps`` steps each, on the proxy if ``on_proxy``,
    else on the real environment, and test them on the real one. Print the row ``title`` of the table, and lines about
    the agents below it. Return the results of all agents. ``rule`` is a value of the setting ``inner_rule``, such as
    "solved", which ends the training of an agent."""
    run, config = settings.run, proxy.config
    limits: dict[str, Any] = {
        "inner_steps": steps,
        "inner_rule": rule,
        "test_limit": run.time_limit or config.test_limit,
        "test_every": config.test_every if rule == "budget" else None,  # other rules allow no tests during training
    }
    outcomes: dict[str, Outcome] = {}
    for number, (name, agent_config) in enumerate(agents.items()):
        # Every len(agents)-th agent is of this implementation, so their numbers differ by at most 1.
        count = len(range(number, settings.subcommand.num_agents, len(agents)))
        seeds = fresh_seeds(run.seed, "evaluation", count)
        proxies = proxy.parameters.expand(count, -1) if on_proxy else None  # [count, D], equal rows
        job = (config, name, agent_config, proxy.game)
        with progress(f"{title}: {count} {name} agents") as watch:
            workers = make_workers(job, run.num_workers, run.ray_address, run.num_threads)
            with contextlib.closing(workers):
                outcomes[name] = workers.run(proxies, seeds, watch=watch, **limits)
    outcome = Outcome.joined([*outcomes.values()])
    row = describe(outcome, _test_config(settings, config))
    solved = "" if row["solved"] is None else f"{100 * row['solved']:.0f} %"
    cells = (title, number_text(row["mean"]), number_text(row["std"]), iqm_text(row), solved, f"{row['steps']:,.0f}")
    print(*Table([cells]).lines(WIDTHS), flush=True)
    if len(outcomes) > 1:  # the mean of each implementation, which is nan if all of its agents have diverged
        print("  " + ", ".join(f"{name} {float(part.scores.nanmean()):.1f}" for name, part in outcomes.items()))
    if row["failed"]:
        print_wrapped(f"  {row['failed']} of these agents diverged and count in nothing")
    if "stays" in row:  # they were tested during the training
        print_wrapped(f"  {speed_text(row)}")
    return outcome


def _test_config(settings: Settings, config: Any) -> Any:
    """Return the ``config`` of a search for statistics of test episodes. If ``--time_limit`` shortens these episodes,
    it has no ``solved_reward``, which is a return of whole episodes."""
    return dataclasses.replace(config, solved_reward=None) if settings.run.time_limit else config


def _settings_for_real_environment(agent: Any) -> Any:
    """Return a copy of the config ``agent`` for training on the real environment."""
    changes: dict[str, Any] = {"num_envs": 1, "buffer_size": 100_000}
    changes |= {"fill": 0, "init_episodes": max(1, agent.init_episodes)}  # updates begin after the initial episodes
    changes["eps_fraction"] = None  # exploration depends on the number of episodes
    existing = field_types(type(agent)).keys()
    return dataclasses.replace(agent, **{name: value for name, value in changes.items() if name in existing})


def agents_for_proxy(settings: Settings, proxy: Proxy) -> dict[str, Any]:
    """Return implementation -> config for the agents that train on a proxy: the agents of ``--agent``, by default of
    the proxy's search. Configs have the hyperparameters of the search, with the user's changes (``settings.changed``).
    Raises SettingError if the agents cannot train on the proxy or if a change has no effect, and ProxyError if the
    environment has other spaces or the file is damaged."""
    spaces = _real_spaces(proxy)
    is_explicit = "agent" in settings.explicit_names
    names = settings.run.agent if is_explicit else proxy.description.get("settings", {}).get("agent", "DDQN")
    run_values: dict[str, Any] = {"implementation": proxy.implementation, "gamename": proxy.game, "agent": names}
    if is_explicit:
        from_dict(run_values)  # raises SettingError for wrong names of agents
    with _settings_of_file(proxy):  # ``names`` may be from the file
        implementations = parse_agents(names)
    changed = changes_of(settings, defaults_for(run_values)) if settings.changed else {}
    classes = config_classes(implementations)
    names_of_fields = names_in(classes)  # config class -> field -> name in joint settings, such as lr -> PPO_lr
    run_config = dataclasses.replace(settings.run, **run_values)
    agents: dict[str, Any] = {}
    names_of_agents: set[str] = set()  # ``lr`` for all agents, ``PPO_lr`` for one of several
    for name in implementations:
        changed_fields: dict[str, Any] = {}
        for field, joint_name in names_of_fields[family(name).config].items():
            names_of_agents |= {field, joint_name}
            if field in changed or joint_name in changed:
                changed_fields[field] = changed[joint_name if joint_name in changed else field]
        agents[name] = agent_settings(proxy, name, changed_fields)
        check_spaces(run_config, agent_class(name), spaces, name)
    # Errors for changed settings without effect.
    joint_config = make_mixture(tuple((first_agent, agents[first_agent]) for first_agent, _ in classes))
    config = dataclasses.replace(proxy.config, retest_drawn=False)  # here hyperparameters vary only with vary_hp
    evaluated = dataclasses.replace(settings, run=run_config, proxy=config, agent=joint_config)
    reasons = ineffective(with_missing_features(evaluated, spaces))
    shared_names = shared_settings(joint_config)
    without_effect: dict[str, str] = {}
    for name in sorted(changed):
        joint_names = shared_names.get(name, (name,))
        if name not in names_of_agents:
            without_effect[name] = " with --eval_agent of a proxy"
        elif reasons.keys() >= set(joint_names):
            without_effect[name] = f": {reasons[joint_names[0]]}"
    check_effects(without_effect)
    return agents


def _real_spaces(proxy: Proxy) -> Spaces:
    """Return the observation and action spaces of the environment for which the proxy was learned. Raises ProxyError if
    this environment is unknown or has other spaces than the proxy."""
    start = f"proxy {str(proxy.path)!r}: its"
    try:
        real_spaces = spaces_of(proxy.game)
    except SettingError as error:  # the environment is unknown
        raise ProxyError(f"{start} {error}") from error
    for name in ("obs_shape", "actions", *KINDS[proxy.config.proxy].spaces):
        proxy_value, real_value = getattr(proxy.spaces, name), getattr(real_spaces, name)
        if proxy_value != real_value:
            raise ProxyError(f"{start} {name} is {proxy_value}; allowed with {proxy.game}: {real_value}")
    return real_spaces


def agent_settings(proxy: Proxy, name: str, changed: dict[str, Any]) -> Any:
    """Return the config of fresh agents of implementation ``name`` that train on the proxy. Its values are the defaults
    of its family, overridden by the hyperparameters in the proxy's search (`_searched_settings`), and then by
    ``changed``. If ``changed`` switches ``vary_hp`` on and does not have ``vary``, the default hyperparameters vary.
    Raises ProxyError for damaged settings in the file."""
    with _settings_of_file(proxy):
        values = _searched_settings(proxy, name)
        from_dict(values)  # raises an error for damaged settings
    if changed.get("vary_hp"):
        changed = {"vary": family(name).config().vary} | changed
    return from_dict(values | changed).agent


@contextlib.contextmanager
def _settings_of_file(proxy: Proxy) -> Iterator[None]:
    """Context manager for code that uses the settings in the file of ``proxy``. Its exceptions become a ProxyError,
    which says that the settings are damaged."""
    try:
        yield
    except Exception as error:  # wrong types and missing names can raise anything
        # The message of a SettingError names the wrong setting. Of another exception only the class is shown.
        reason = error if isinstance(error, SettingError) else type(error).__name__
        line = f"proxy {str(proxy.path)!r}: its description.settings are damaged ({reason})"
        raise ProxyError(line) from error


def _searched_settings(proxy: Proxy, name: str) -> dict[str, Any]:
    """Return setting -> value for fresh agents of implementation ``name``, from the settings of the search in the
    proxy's file. The content of the file is not checked, so this may raise anything.

    If agents of the same family trained in the search, ``name`` gets their values, except for settings in which the
    implementations of the family differ. Otherwise it gets the values of `_values_for_other_family`. The result also
    has the settings that determine which others exist: the proxy's settings, the game and the implementations.
    """
    values = vars(proxy.config) | {"implementation": proxy.implementation, "gamename": proxy.game, "agent": name}
    raw_settings = proxy.description.get("settings", {})
    searched_agents = parse_agents(raw_settings.get("agent", "DDQN"))
    saved_names = names_in(config_classes(searched_agents))  # config class -> field -> name in the file, such as PPO_lr
    setting_names = {name for names in saved_names.values() for name in names.values()}
    saved_settings, _ = translate(raw_settings, (), setting_names)  # without aliases
    config_class = family(name).config
    same_family = [agent for agent in searched_agents if family(agent).config is config_class]
    if same_family:
        # If no other implementation of the family trained in the search, all of its values are for ``name``.
        omitted = set() if same_family == [name] else overridden_names(name)
        for field, saved_name in saved_names[config_class].items():
            if saved_name in saved_settings and field not in omitted:
                values[field] = saved_settings[saved_name]
    elif len(saved_names) == 1:  # all agents of the search are of one other family
        values |= _values_for_other_family(values, saved_settings, searched_agents[0])
    try:
        family(proxy.implementation).proxy_defaults(values, proxy.game)
    except SettingError:  # the preset does not allow these agents, but ``values`` already have its settings
        values.pop("preset", None)
    return values


def _values_for_other_family(
    choices: Mapping[str, Any], saved_settings: Mapping[str, Any], searched_agent: str
) -> dict[str, Any]:
    """Return field -> value for the agents ``choices["agent"]``, which are of another family than the agent of the
    search, ``searched_agent``. ``choices`` are the settings that decide which other settings exist.

    A field gets the value of the proxy's preset if that is only for these agents, or differs from the value for
    ``searched_agent``. Otherwise it gets its value in ``saved_settings``, the settings of the search, if there is one.
    """
    name = choices["agent"]
    both_agents = {**choices, "agent": f"{searched_agent},{name}"}
    try:
        preset_values = family(choices["implementation"]).proxy_defaults(both_agents, choices["gamename"])
    except SettingError:  # the preset does not permit both agents
        preset_values = {}
    searched_fields = field_types(family(searched_agent).config)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(family(name).config):
        key = field.name
        preset_value = _preset_value(preset_values, name, field)
        is_in_preset = key in preset_values or f"{name}_{key}" in preset_values
        is_only_for_name = is_in_preset and key not in searched_fields
        if is_only_for_name or preset_value != _preset_value(preset_values, searched_agent, field):
            values[key] = preset_value
        elif key == "vary":  # without hyperparameters that the family of ``name`` lacks
            varied = [item for item in saved_settings.get(key, ()) if item in field.metadata["choices"]]
            if varied:
                values[key] = varied
        elif key in saved_settings:
            values[key] = saved_settings[key]
    return values


def _preset_value(preset_values: Mapping[str, Any], agent_name: str, field: "dataclasses.Field[Any]") -> Any:
    """Return the preset's value of a field for an agent: the value with the prefix of an implementation of its family
    (``PPO_lr``), else the value for all agents (``lr``), else the field's default."""
    for implementation in family(agent_name).implementations:
        if f"{implementation}_{field.name}" in preset_values:
            return preset_values[f"{implementation}_{field.name}"]
    return preset_values.get(field.name, field.default)
