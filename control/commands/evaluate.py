"""`--eval_agent`: evaluate the agent of a checkpoint, or a proxy (`control.commands.evaluate_proxy`). A checkpoint
contains all settings except the number of episodes."""

import contextlib
import dataclasses
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from control.cli.colour import paint, print_wrapped
from control.cli.options import check_effects, command_line
from control.cli.parse import changes_of
from control.cli.progress import progress
from control.cli.settings import RunConfig, Settings, as_dict, to_yaml
from control.commands.evaluate_proxy import evaluate_proxy
from control.commands.push import check_hub, push
from control.commands.run import export_policy, settings_in_environment, settings_to_play, trained_loop
from control.commands.summary import path_text
from control.films.recording import check_recording, film, filmed_seed_text, new_film, returns_text
from control.loops import recordings
from control.loops.loop import Loop
from control.loops.process import configure_process
from control.reports import obedience
from control.reports.curves import solved_return
from control.reports.statistics import interval, iqm
from control.reports.tables import Table, number_text, solved_verdict, with_interval
from control.storage import checkpoints, run_dir
from control.storage.checkpoints import Checkpoint
from envs.make import spaces_of
from envs.names import split_name, with_parameters
from models.proxies import files
from models.proxies.files import Proxy, ProxyError
from models.registry import family
from models.settings import SettingError, UserError, names_with
from understudy.files import PROXY_FILE, SUFFIX, pretrained
from understudy.policy import AGENT

# Settings that have an effect only on the evaluation of a proxy.
_PROXY_ONLY_SETTINGS = {"num_agents", "real_baseline", "real_steps", "agent"}


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
