"""`--eval_agent`: evaluate the agent of a checkpoint, or a proxy. A checkpoint contains all settings except the number
of episodes. A proxy is evaluated by fresh agents: they train on it, are tested in the real environment, and are
compared with agents that train in the real environment."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from control.cli.options import flags, for_fresh_agents, of_other_games, unknown
from control.cli.progress import progress
from control.cli.run_settings import COMMANDS
from control.cli.settings import Settings, as_dict, from_dict, ineffective
from control.commands.process import prepare
from control.commands.run import elsewhere, to_play, with_weights
from control.evolution.cluster import make_workers
from control.evolution.inner_loop import by_kind, fresh_seeds
from control.films.recording import check_recording, film_evaluation
from control.loops.build import check_spaces, spaces_of, with_lacks
from control.loops.loop import Loop
from control.loops.rollout import Episodes
from control.reports import obedience
from control.reports.runs import note_version
from control.reports.search import describe, iqm_text, speed_text
from control.reports.statistics import interval, iqm
from control.reports.tables import Table, with_interval
from control.storage import checkpoints, run_dir
from control.storage.checkpoints import Checkpoint
from envs.names import split_name, with_parameters
from models.mixture import expand_shared, family_configs, names_in
from models.proxies import files
from models.proxies.files import Proxy, ProxyError
from models.registry import agent_class, config_classes, family, named_agents, overridden_names, split_by_family
from models.settings import SettingError, kinds, names_with
from models.spaces import Spaces
from models.vocabulary import translate
from understudy.files import SUFFIX, pretrained
from understudy.kinds import KINDS

_OF_CHECKPOINTS = (
    "record",
    "record_episodes",
    "evaluation",
    "obedience",
    "command",
    "implementation",
    "gamename",
    "step_timeout",
    "accelerator",
)
_MOST_EPISODES = 1000  # of all fresh agents on a proxy together, which are played side by side
HEADER = ("trained on", "mean", "std", "IQM [95 % interval]", "solved", "steps", "episodes", "seconds")
WIDTHS = (14, 7, 6, 22, 6, 8, 8, 7)
REAL_STEPS = 50_000  # default limit for agents that train on the real environment


def evaluate(settings: Settings) -> int:
    """Evaluate a checkpoint or a proxy, and print the results. Returns 0."""
    prepare(settings.run)
    path = settings.subcommand.eval_agent
    source = proxy_or_checkpoint(path)
    note_version(path, source.path, "eval_agent")
    if isinstance(source, Proxy):
        evaluate_proxy(settings, source)
    else:
        evaluate_checkpoint(settings, source)
    return 0


def evaluate_checkpoint(settings: Settings, checkpoint: Checkpoint) -> None:
    """Play `num_eval_episodes` episodes for each member of the checkpoint, print a table and write a video, except with
    ``--no_record``. Episode seeds come from ``--seed`` (25 by default), not from the run's."""
    now, options, checkpoint_settings = settings.run, settings.subcommand, checkpoint.settings
    of_proxies = {"num_agents", "real_baseline", "real_steps", "agent"} & settings.explicit_names
    for name in sorted(of_proxies | settings.changed.keys() & for_fresh_agents()):
        reason = "only on a proxy agents are trained" if name in of_proxies else "the checkpoint holds it"
        raise SettingError(f"--{name} has no effect with --eval_agent: {reason}", name)
    if "implementation" in settings.explicit_names and now.implementation != checkpoint_settings.run.implementation:
        raise SettingError(
            f"implementation is {now.implementation!r}, but the checkpoint is of "
            f"{checkpoint_settings.run.implementation!r}; leave it out"
        )
    trained_on, game = checkpoint_settings.run.gamename, _game(settings, checkpoint_settings.run.gamename)
    if game != trained_on:
        checkpoint_settings = elsewhere(checkpoint_settings, game)
        if options.obedience:
            line = f"--obedience has no effect with gamename {game}: its commands are those of {trained_on}"
            raise SettingError(line, "obedience")
    if options.obedience and (now.record or "return" in settings.command):
        name = "record" if now.record else "command.return"
        raise SettingError(f"--{name} has no effect with --obedience, which asks for many returns", name)
    names = {"accelerator", *names_with(now, "outcome", False), *{"time_limit"} & settings.explicit_names}
    changes = {name: getattr(now, name) for name in names} | {"command": checkpoint_settings.command | settings.command}
    use_default = options.obedience and "num_eval_episodes" not in settings.explicit_names
    episodes = obedience.EPISODES if use_default else options.num_eval_episodes
    play_settings = to_play(checkpoint_settings.replace(**changes), episodes)
    with contextlib.closing(with_weights(checkpoint, play_settings, now.seed)) as loop:
        available_modes = loop.evaluation_modes
        followed = obedience.check(loop, checkpoint_settings.run.implementation) if options.obedience else None
        if options.evaluation not in ("both", *available_modes):
            raise SettingError(
                f"evaluation is {options.evaluation!r}, which has no effect with "
                f"{checkpoint_settings.run.implementation}; allowed: {', '.join(available_modes)}"
            )
        if now.record:
            check_recording(play_settings.run)
        epoch = checkpoint.run_state["epoch"]
        where = game if game == trained_on else f"{game} (trained on {trained_on})"
        print(f"{checkpoint_settings.run.implementation} on {where}, epoch {epoch}: {checkpoint.path}")
        modes = available_modes if options.evaluation == "both" else (options.evaluation,)
        if followed:
            print(f"{obedience.COMMANDS} commands, {episodes} episodes of each per seed\n")
            obedience.report(checkpoint, followed, modes, episodes, now.seed, play_settings.command)
            return
        print(f"{_followed(loop, play_settings)}{episodes} episodes per seed\n")
        table = [["", "seed", "mean", "std", "IQM [95 % interval]", "length"]]
        for mode in modes:
            table += _rows(mode, loop.seeds, loop.evaluate(episodes, sample=mode == "sampled"))
        print(Table(table))
        if now.record or "record" not in settings.explicit_names:
            stem = "_".join([checkpoint.path.stem, *([run_dir.safe_name(game)] if game != trained_on else [])])
            name, sample = f"video {now.seed}", modes == ("sampled",)
            print(f"\n{film_evaluation(loop, play_settings.run, checkpoint.path, stem, name, sample)}")


def _game(settings: Settings, trained_on: str) -> str:
    """Return the environment to evaluate in: ``gamename`` if the user gave it, else ``trained_on``, with the user's
    parameters. Raises SettingError for a parameter that it lacks."""
    game, game_parameters = split_name(settings.run.gamename if "gamename" in settings.explicit_names else trained_on)
    for name in settings.changed:
        if name not in game.parameter_values():
            raise of_other_games(name, game.name)
    return with_parameters(game, game_parameters | settings.changed).name


def _followed(loop: Loop, settings: Settings) -> str:
    """Return the command that the agent follows, as the start of a line. Empty if it follows none."""
    commands = loop.agents[0].commands_now()
    if not commands:
        return ""
    command_values = {name: float(value.mean()) for name, value in commands.items()} | settings.command
    command_text = ", ".join(f"{name} {value:.4g}" for name, value in command_values.items())
    is_sampled = settings.agent.eval_command == "sampled"
    return f"command {command_text}{' (mean of a distribution)' if is_sampled else ''}; "


def _rows(mode: str, seeds: list[int], episodes: Episodes) -> Iterator[list[str]]:
    """Yield rows of the table: one per seed, and one for all seeds if there are several."""
    returns, lengths = episodes.returns.double().numpy(), episodes.lengths.numpy()
    rows = [(str(seed), returns[m], lengths[m]) for m, seed in enumerate(seeds)]
    if len(seeds) > 1:
        rows.append(("all", returns.ravel(), lengths.ravel()))
    for name, values, steps in rows:
        middle = with_interval(float(iqm(values)), interval(values, iqm))
        yield [mode, name, f"{values.mean():.1f}", f"{values.std():.1f}", middle, f"{steps.mean():.0f}"]


def proxy_or_checkpoint(path: str) -> Proxy | Checkpoint:
    """Load a proxy or an agent's checkpoint.

    ``path`` is a proxy's file or shipped name, a checkpoint, or a run folder. The proxy of a search is its winner, or
    the best mean so far. Raises ProxyError if no mean of the search has a fitness.
    """
    where = Path(path)
    where = run_dir.winner(where) or where
    if where.suffix == SUFFIX or path in pretrained() and not where.exists():
        return files.load(where)
    checkpoint = checkpoints.load(where)
    settings, game = checkpoint.settings, checkpoint.settings.run.gamename
    if family(settings.run.implementation).learns_from != "evolution":
        return checkpoint
    entries = checkpoint.search_state["archive"]["entries"]
    if not entries:
        raise ProxyError(f"checkpoint {str(checkpoint.path)!r} is of a search whose mean has no fitness yet")
    description = {"settings": as_dict(settings), "scores": {"generation": entries[0][1]}}
    return Proxy(checkpoint.path, settings.proxy, spaces_of(game), game, entries[0][2], description)


def evaluate_proxy(settings: Settings, proxy: Proxy) -> None:
    """Train ``num_agents`` fresh agents on the proxy and as many on the real environment, and print a table of their
    real returns. Seeds of the agents come from ``--seed``."""
    run, options = settings.run, settings.subcommand
    for name in _OF_CHECKPOINTS:
        if name in settings.explicit_names:
            hint = "; did you mean '--agent'?" if name == "implementation" else ""
            raise SettingError(f"--{name} has no effect with a proxy for --eval_agent{hint}", name)
    if run.num_workers > 1 and run.num_threads > 1:
        line = f"--num_threads has no effect with --num_workers {run.num_workers}, whose processes have a thread each"
        raise SettingError(line, "num_threads")
    for name in sorted(settings.changed.keys() - for_fresh_agents()):
        raise SettingError(f"--{name} has no effect with a proxy for --eval_agent", name)
    if not options.real_baseline and "real_steps" in settings.explicit_names:
        raise SettingError("--real_steps has no effect with --no_real_baseline", "real_steps")
    if options.num_eval_episodes > _MOST_EPISODES:
        line = f"num_eval_episodes is {options.num_eval_episodes}; allowed with a proxy: at most {_MOST_EPISODES}"
        raise SettingError(line, "num_eval_episodes")
    agent_name, agent = agents_on(settings, proxy)
    names = named_agents(agent_name)
    if options.num_agents < len(names):
        line = f"num_agents is {options.num_agents}; allowed with {agent_name}: at least {len(names)}"
        raise SettingError(line, "num_agents")

    tests = (
        max(1, options.num_eval_episodes // options.num_agents)
        if "num_eval_episodes" in settings.explicit_names
        else 10
    )
    config = dataclasses.replace(proxy.config, test_episodes=tests)
    kind = KINDS[config.proxy]
    learned, real_name = (kind.noun, "real reward") if kind.used_by else ("synthetic", "real")
    print(f"{proxy.game} by a {kind.noun}: {proxy.path}")
    sampled_names = list(dict.fromkeys(name for part in family_configs(agent) if part.vary_hp for name in part.vary))
    sampled = f", sampled for each agent: {', '.join(sampled_names)}" if sampled_names else ""
    print(
        f"{options.num_agents} fresh {agent_name} agents on each, seed {run.seed}{sampled}; "
        f"{tests} real test episodes per agent\n"
    )
    seeds = fresh_seeds(run.seed, "evaluation", options.num_agents, len(names))

    def show(name: str, agent_config: Any, proxies: Tensor | None, steps: int, rule: str) -> None:
        """Train and test agents on ``proxies`` (None: the real environment) and print their row. Also print how soon
        they solve the game, if they are tested during training (``test_every``)."""
        started = time.perf_counter()
        job = (config, agent_name, agent_config, proxy.game)
        how_many = (run.num_workers, run.ray_address, run.num_threads)
        with contextlib.closing(make_workers(*job, *how_many)) as workers:
            limit = run.time_limit or config.test_limit
            test_every = config.test_every if rule == "budget" else None
            test_options: dict[str, Any] = {"test_limit": limit, "inner_rule": rule, "test_every": test_every}
            with progress(f"agents on the {name}") as watch:
                outcome = workers.run(proxies, seeds, inner_steps=steps, watch=watch, **test_options)
        full_episodes = not run.time_limit  # solved_reward is a return of whole episodes
        row = describe(outcome, config if full_episodes else dataclasses.replace(config, solved_reward=None))
        cells = (
            name,
            f"{row['mean']:.1f}",
            f"{row['std']:.1f}",
            iqm_text(row),
            "" if row["solved"] is None else f"{100 * row['solved']:.0f} %",
            f"{row['steps']:,.0f}",
            f"{row['episodes']:,.1f}",
            f"{time.perf_counter() - started:.1f}",
        )
        print(*Table([cells]).lines(WIDTHS), flush=True)
        if len(names) > 1:
            kind_means = by_kind(names, seeds, outcome.scores)
            print(f"  {', '.join(f'{name} {mean:.1f}' for name, mean in kind_means.items())}")
        if row["failed"]:
            print(f"  {row['failed']} of these agents diverged and count in nothing")
        if "stays" in row:
            print(f"  solved {speed_text(row)}")

    print(*Table([HEADER]).lines(WIDTHS))
    rule = "budget" if config.inner_rule == "tests" else config.inner_rule  # this training knows no real tests
    show(learned, agent, proxy.parameters.expand(options.num_agents, -1), config.steps_in_use, rule)
    if not options.real_baseline:
        return
    if options.real_steps is None and rule == "budget" and config.train_episodes is None:
        show(real_name, agent, None, config.steps_in_use, rule)
        if not kind.used_by:
            note = "both trainings are the same; with --real_steps N that on the real environment is one that suits it"
            print(f"\n{note}")
        return
    # One environment, one update per step, and a replay buffer that holds all steps.
    first = max(1, agent.init_episodes)
    changes = {"num_envs": 1, "fill": 0, "init_episodes": first, "buffer_size": 100_000, "eps_fraction": None}
    field_kinds = kinds(type(agent))
    real = dataclasses.replace(agent, **{name: value for name, value in changes.items() if name in field_kinds})
    solved, max_steps = config.solved_reward, options.real_steps or REAL_STEPS
    show(real_name, real, None, max_steps, "budget" if solved is None else "solved")
    until = "" if solved is None else f" until {config.early_out_num} episodes reach {solved:g} on average,"
    print(f"\non the real environment agents train{until} at most {max_steps:,} steps")


def agents_on(settings: Settings, proxy: Proxy) -> tuple[str, Any]:
    """Return the names of the agents that train on a proxy, from ``--agent`` or else from its search, and their
    `agent_settings`. Raises SettingError if they cannot train on it or if a changed setting has no effect. Raises
    ProxyError if the real environment differs from the proxy's, or if the settings in its file are damaged."""
    spaces = _real_spaces(proxy)
    if "agent" in settings.explicit_names:
        agent_name = settings.run.agent
        from_dict({"implementation": proxy.implementation, "gamename": proxy.game, "agent": agent_name})
    else:
        agent_name = proxy.description.get("settings", {}).get("agent", "DDQN")
    if settings.changed:
        valid_flags = flags(proxy.implementation, proxy.game, {"agent": agent_name})
        for name in sorted(settings.changed.keys() - valid_flags.keys()):
            raise unknown(name, valid_flags, proxy.implementation, "--", proxy.game)
    agent = agent_settings(proxy, agent_name, settings.changed)
    run_config = dataclasses.replace(
        settings.run, implementation=proxy.implementation, gamename=proxy.game, agent=agent_name
    )
    for name in named_agents(agent_name):
        check_spaces(run_config, agent_class(name), spaces, name)
    judged = dataclasses.replace(proxy.config, retest_drawn=False)
    idle = ineffective(with_lacks(dataclasses.replace(settings, run=run_config, proxy=judged, agent=agent), spaces))
    for name in sorted(settings.changed.keys() & idle.keys()):
        raise SettingError(f"--{name} has no effect: {idle[name]}", name)
    return agent_name, agent


def _real_spaces(proxy: Proxy) -> Spaces:
    """Return the spaces of the proxy's real environment. Raises ProxyError if it is unknown or has other spaces than
    the proxy."""
    start, proxy_spaces = f"proxy {str(proxy.path)!r}: its", proxy.spaces
    try:
        real = spaces_of(proxy.game)
    except SettingError as error:
        raise ProxyError(f"{start} {error}") from error
    for name in ("obs_shape", "actions", *KINDS[proxy.config.proxy].spaces):
        proxy_value, real_value = getattr(proxy_spaces, name), getattr(real, name)
        if proxy_value != real_value:
            raise ProxyError(f"{start} {name} is {proxy_value}; allowed with {proxy.game}: {real_value}")
    return real


def agent_settings(proxy: Proxy, name: str, changed: dict[str, Any]) -> Any:
    """Settings of fresh agents called ``name``: the defaults of their family, then the values of the search's agents,
    then ``changed``. Agents of another family than the search's take the values that both families have
    (`_in_common`) and the preset's values for them. ``vary_hp`` samples everything it can, unless ``vary`` names some.
    Raises ProxyError for damaged settings in the file."""
    try:
        raw_settings = proxy.description.get("settings", {})
        saved_settings, _ = translate(raw_settings, (), for_fresh_agents(), lambda name: None)
        searched = named_agents(raw_settings.get("agent", "DDQN"))
        searched_names = names_in(config_classes(searched))
        # The first files also hold the settings of all commands.
        unused = {"display", *for_fresh_agents(), *(field for command in COMMANDS.values() for field in kinds(command))}
        search = {key: value for key, value in saved_settings.items() if key not in unused}
        agent_classes = config_classes(named_agents(name))
        for first, config_class in agent_classes:
            names = names_in(agent_classes)[config_class]
            if config_class in searched_names:
                told_apart = set() if first in searched else overridden_names(first)
                for field, called in searched_names[config_class].items():
                    if field in told_apart:
                        search.pop(names[field], None)
                    elif called in saved_settings:
                        search[names[field]] = saved_settings[called]
            elif len(searched_names) == 1:
                field_values = _in_common(saved_settings, next(iter(searched_names)), config_class) | _of_preset(
                    proxy, first
                )
                search |= {names[field]: value for field, value in field_values.items()}
        search |= {"implementation": proxy.implementation, "gamename": proxy.game, "agent": name}
        if "preset" in search and not _allows(proxy, search):
            del search["preset"]  # the file has its values
        agent_config = from_dict(search).agent
    except Exception as error:  # a damaged file can raise anything
        reason = error if isinstance(error, SettingError) else type(error).__name__
        line = f"proxy {str(proxy.path)!r}: its description.settings are damaged ({reason})"
        raise ProxyError(line) from error
    changed = expand_shared(agent_config, changed)
    for _, names, part in split_by_family(agent_config, named_agents(name)):
        if changed.get(names["vary_hp"]):
            changed = {names["vary"]: type(part)().vary} | changed
    return from_dict(search | changed).agent


def _in_common(saved_settings: dict[str, Any], searched_class: type, config_class: type) -> dict[str, Any]:
    """The settings of agents of one family that another family has too. A choice that only the first family has is
    left out, also from a list. A list that becomes empty keeps its default."""
    choices = [
        {field.name: field.metadata["choices"] for field in dataclasses.fields(item)}
        for item in (searched_class, config_class)
    ]
    field_values = {}
    for name in choices[1].keys() & saved_settings.keys():
        value, foreign = (
            saved_settings[name],
            set(choices[0].get(name, ())) - set(choices[1][name] or choices[0].get(name, ())),
        )
        if isinstance(value, list) and foreign.intersection(value):
            value = [item for item in value if item not in foreign]
        if value != [] and (isinstance(value, list) or value not in foreign):
            field_values[name] = value
    return field_values


def _allows(proxy: Proxy, search: dict[str, Any]) -> bool:
    """Whether the preset in the settings of a search allows their agents."""
    try:
        return bool(family(proxy.implementation).proxy_defaults(search, proxy.game))
    except SettingError:
        return False


def _of_preset(proxy: Proxy, name: str) -> dict[str, Any]:
    """The settings that the preset of a search has for agents called ``name`` but not for the search's agents."""
    searched = named_agents(proxy.description.get("settings", {}).get("agent", name))[0]
    choices = {
        setting_name: getattr(proxy.config, setting_name)
        for setting_name in ("preset", "proxy")
        if hasattr(proxy.config, setting_name)
    }
    try:  # together, because a preset may require one kind of agent
        agents = ",".join(dict.fromkeys((searched, name)))
        preset_values = family(proxy.implementation).proxy_defaults(choices | {"agent": agents}, proxy.game)
    except SettingError:
        return {}

    def preset_value(agent_name: str, key: str) -> Any:
        of_family = [
            preset_values[f"{implementation}_{key}"]
            for implementation in family(agent_name).implementations
            if f"{implementation}_{key}" in preset_values
        ]
        return of_family[0] if of_family else preset_values.get(key, defaults[key])

    defaults = {field.name: field.default for field in dataclasses.fields(family(name).config)}
    return {key: preset_value(name, key) for key in defaults if preset_value(name, key) != preset_value(searched, key)}
