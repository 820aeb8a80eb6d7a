"""`--film`: film agents side by side in the same episodes. Agents are from checkpoints, or train on a proxy first. Two
words name further agents: `untrained`, and `real` for an agent that trains on the real environment, with the same limit
of steps."""

import contextlib
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control.cli.progress import progress
from control.cli.settings import RunConfig, Settings
from control.cli.together import check_effects
from control.cli.words import WORDS
from control.commands.evaluate import agents_on, proxy_or_checkpoint
from control.commands.process import prepare
from control.commands.run import with_weights
from control.evolution.inner_loop import InnerLoop, fresh_seeds
from control.films.recording import Actor, check_film, record, returns_text
from control.loops.build import build_loop
from control.loops.loop import Loop
from control.reports.runs import note_version
from control.reports.sheets import check_writable
from control.storage.checkpoints import Checkpoint
from control.storage.run_dir import remove_empty, safe_name
from models.contract import InnerAgent
from models.proxies.files import Proxy
from models.registry import named_agents
from models.settings import SettingError
from models.streams import Streams

UNTRAINED, REAL = WORDS
Source = Proxy | Checkpoint


def film_beside(settings: Settings) -> int:
    """Write the film as mp4 and GIF, and print its agents and returns. Returns 0."""
    run, film_out = settings.run, settings.subcommand.film_out
    prepare(run)
    sources = _sources(settings.subcommand.film)
    first_word, first_source = sources[0]
    game = _game(first_source)
    for word, source in sources:
        if _game(source) != game:
            mismatch = f"{first_word!r} is of {game}, {word!r} of {_game(source)}"
            raise SettingError(f"film: {mismatch}; allowed: one environment", "film")
    if "agent" in settings.explicit_names and not any(isinstance(source, Proxy) for _, source in sources):
        check_effects([("agent", " with --film of runs: only on a proxy an agent is trained")])
    limit = _time_limit(first_source) if run.time_limit is None else run.time_limit
    check_film(game, limit, "film")
    path = _path(film_out, run.logdir, game)
    seeds = Streams.from_name([run.seed], "film").episode_seeds(run.record_episodes)[0].tolist()
    with contextlib.ExitStack() as stack:
        stack.callback(remove_empty, path.parent, path.parent if film_out else Path(run.logdir))  # after an error
        actors = [_actor(settings, word, source, stack) for word, source in sources]
        with progress("filming") as watch:
            actor_returns = record(actors, game, path, seeds, limit, small=True, watch=watch)
    for actor, returns in zip(actors, actor_returns, strict=True):
        print(f"{actor.caption}: {returns_text(returns)}")
    print(f"\nvideo: {path}\nGIF:   {path.with_suffix('.gif')}")
    return 0


def _sources(words: Sequence[str]) -> list[tuple[str, Source]]:
    """Return each word with its source: the file that it names. `untrained` and `real` have the source of the last file
    before them, or else of the first file. Raises SettingError if no word names a file, or if `real` has no proxy."""
    sources_by_word = {word: proxy_or_checkpoint(word) for word in words if not _is_untrained_or_real(word)}
    if not sources_by_word:
        line = f"film is {' '.join(words)!r}; allowed: a run, checkpoint or proxy, and beside it {' or '.join(WORDS)}"
        raise SettingError(line, "film")
    for word, source in sources_by_word.items():
        note_version(word, source.path, "film")
    latest_source, sources = next(iter(sources_by_word.values())), []
    for word in words:
        latest_source = sources_by_word.get(word, latest_source)
        if word not in sources_by_word and word == REAL and not isinstance(latest_source, Proxy):
            line = f"film: {word!r} goes with a proxy, and {str(latest_source.path)!r} is a run"
            raise SettingError(f"{line}; allowed: {UNTRAINED}, or another run", "film")
        sources.append((word, latest_source))
    return sources


def _is_untrained_or_real(word: str) -> bool:
    """Return whether a word is `untrained` or `real`, and not a file of this name."""
    return word in WORDS and not Path(word).exists()


def _game(source: Source) -> str:
    """Return the name of the environment of a proxy or of a checkpoint."""
    return source.game if isinstance(source, Proxy) else source.settings.run.gamename


def _time_limit(source: Source) -> int | None:
    """Return the steps that truncate an episode of a proxy's tests or of a checkpoint's run; None for no limit."""
    return source.config.test_limit if isinstance(source, Proxy) else source.settings.run.time_limit


def _path(film_out: str | None, logdir: str, game: str) -> Path:
    """Return the mp4 to write: ``film_out``, or the first ``films/GAME_N.mp4`` in ``logdir`` that does not exist.
    Raises SettingError if it cannot be written."""
    if film_out:
        path = Path(film_out)
        if path.suffix.lower() != ".mp4" or path.is_dir():
            raise SettingError(f"film_out is {film_out!r}; allowed: a file ending in .mp4", "film_out")
    else:
        candidates = (Path(logdir, "films", f"{safe_name(game)}_{number}.mp4") for number in itertools.count())
        path = next(path for path in candidates if not path.exists())
    check_writable("film_out" if film_out else "logdir", path, path.with_suffix(".gif"))
    return path


def _actor(settings: Settings, word: str, source: Source, stack: contextlib.ExitStack) -> Actor:
    """Return the actor for a word and its source. ``stack`` closes the loops that are opened."""
    run = settings.run
    if isinstance(source, Proxy):
        names, agent = agents_on(settings, source)
        return _on_proxy(run, names, agent, word, source)
    checkpoint_settings = source.settings.replace(num_workers=1, eval_episodes=1)
    loop = with_weights(source, checkpoint_settings, run.seed)
    stack.callback(loop.close)
    trained = checkpoint_settings.run
    if not _is_untrained_or_real(word):
        title = f"{trained.implementation} ({trained.exp_name}, seed {trained.seed})"
        steps_of_first_seed = int(source.run_state["env_steps"][0])
        return _actor_of_loop(loop, run.seed, f"{title}, {steps_of_first_seed:,} steps")
    # The untrained agent follows the commands of the trained one.
    commands = {name: float(value.mean()) for name, value in loop.agents[0].commands_now().items()}
    untrained_loop = build_loop(
        checkpoint_settings.replace(command=commands | checkpoint_settings.command), for_training=False
    )
    stack.callback(untrained_loop.close)
    return _actor_of_loop(untrained_loop, run.seed, f"{trained.implementation}, untrained")


def _actor_of_loop(loop: Loop, seed: int, caption: str) -> Actor:
    """Return the actor with the greedy policy of a loop, which has new random streams in each episode."""
    streams = Streams.from_name([seed] * len(loop.seeds), "film, actions")
    return Actor(lambda: loop.policy(streams.fork()), caption)  # called at the start of each episode


def _on_proxy(run: RunConfig, names: str, agent: Any, word: str, proxy: Proxy) -> Actor:
    """Train an agent on the proxy, or on the real environment for the ``word`` `real`, or not at all for `untrained`.
    Return its actor. ``names`` are the names of the agents, separated by commas; the first is filmed. Its seed equals
    the first agent's in `--eval_agent`."""
    is_untrained = word == UNTRAINED and _is_untrained_or_real(word)
    is_real = word == REAL and _is_untrained_or_real(word)
    all_names, steps = named_agents(names), proxy.config.steps_in_use
    name = all_names[0]
    rule = "budget" if proxy.config.inner_rule == "tests" else proxy.config.inner_rule
    config = dataclasses.replace(proxy.config, inner_steps=steps, inner_rule=rule, test_every=None)
    loop = InnerLoop(config, names, agent, proxy.game, run.num_threads).alone(name)
    parameters = None if is_real else proxy.parameters[None]  # [1, D]; None is the real environment
    training = loop.begin(parameters, fresh_seeds(run.seed, "evaluation", count=1, kinds=len(all_names)))
    with contextlib.closing(training.environment):
        if is_untrained:
            assert isinstance(training.agent, InnerAgent)
            untrained_agent = training.agent.with_weights(training.agent.flat_parameters.detach().clone())
            return Actor(lambda: untrained_agent, f"{name}, untrained")
        stage = f"the real {proxy.game}" if is_real else f"{proxy.path.stem}, which was learned"
        print(f"training {name} on {stage}, for {steps:,} steps at most", flush=True)
        with progress("trained") as watch:
            trained = loop.finish(training, watch=watch)
    short_stage, _, _ = stage.partition(",")  # without parameters of the environment
    return Actor(lambda: trained.policy, f"{name}, {int(trained.steps[0]):,} steps on {short_stage}")
