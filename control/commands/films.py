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
from control.storage.run_dir import safe_name
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
    (first, leading), game = sources[0], _game(sources[0][1])
    for word, source in sources:
        if _game(source) != game:
            mismatch = f"{first!r} is of {game}, {word!r} of {_game(source)}"
            raise SettingError(f"film: {mismatch}; allowed: one environment", "film")
    if "agent" in settings.explicit_names and not any(isinstance(source, Proxy) for _, source in sources):
        raise SettingError("--agent has no effect with --film of runs: only on a proxy an agent is trained", "agent")
    limit = run.time_limit
    if limit is None:
        limit = leading.config.test_limit if isinstance(leading, Proxy) else leading.settings.run.time_limit
    check_film(game, limit, "film")
    path = _path(film_out, run.logdir, game)
    seeds = Streams.from_name([run.seed], "film").episode_seeds(run.record_episodes)[0].tolist()
    with contextlib.ExitStack() as stack:
        actors = [_actor(settings, word, source, stack) for word, source in sources]
        with progress("filming") as watch:
            actor_returns = record(actors, game, path, seeds, limit, small=True, watch=watch)
    for actor, returns in zip(actors, actor_returns, strict=True):
        print(f"{actor.caption}: {returns_text(returns)}")
    print(f"\nvideo: {path}\nGIF:   {path.with_suffix('.gif')}")
    return 0


def _sources(words: Sequence[str]) -> list[tuple[str, Source]]:
    """Return each word with its source: the file that it names. `untrained` and `real` have the source of the last file
    before them, or else of the first file. Raises SettingError."""
    sources_by_word = {word: proxy_or_checkpoint(word) for word in words if not _is_word(word)}
    if not sources_by_word:
        line = f"film is {' '.join(words)!r}; allowed: a run, checkpoint or proxy, and beside it {' or '.join(WORDS)}"
        raise SettingError(line, "film")
    for word, source in sources_by_word.items():
        note_version(word, source.path, "film")
    latest, sources = next(iter(sources_by_word.values())), []
    for word in words:
        latest = sources_by_word.get(word, latest)
        if word not in sources_by_word and word == REAL and not isinstance(latest, Proxy):
            line = f"film: {word!r} goes with a proxy, and {str(latest.path)!r} is a run"
            raise SettingError(f"{line}; allowed: {UNTRAINED}, or another run", "film")
        sources.append((word, latest))
    return sources


def _is_word(word: str) -> bool:
    return word in WORDS and not Path(word).exists()


def _game(source: Source) -> str:
    return source.game if isinstance(source, Proxy) else source.settings.run.gamename


def _path(film_out: str | None, logdir: str, game: str) -> Path:
    """The mp4 to write: the one asked for, or the first that is not there yet."""
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
        return _on_proxy(run, *agents_on(settings, source), word, source)
    checkpoint_settings = source.settings.replace(num_workers=1, eval_episodes=1)
    loop = with_weights(source, checkpoint_settings, run.seed)
    stack.callback(loop.close)
    trained = checkpoint_settings.run
    title = f"{trained.implementation} ({trained.exp_name}, seed {trained.seed})"
    if not _is_word(word):
        return _playing(loop, run.seed, f"{title}, {int(source.run_state['env_steps'][0]):,} steps")
    commands = {name: float(value.mean()) for name, value in loop.agents[0].commands_now().items()}  # the trained one's
    new = build_loop(checkpoint_settings.replace(command=commands | checkpoint_settings.command))
    stack.callback(new.close)
    return _playing(new, run.seed, f"{checkpoint_settings.run.implementation}, untrained")


def _playing(loop: Loop, seed: int, caption: str) -> Actor:
    streams = Streams.from_name([seed] * len(loop.seeds), "film, actions")
    return Actor(lambda: loop.policy(streams.fork()), caption)


def _on_proxy(run: RunConfig, names: str, agent: Any, word: str, proxy: Proxy) -> Actor:
    """Train an agent on the proxy, on the real environment, or not at all, as ``word`` says. Seeds equal the first
    agent's in `--eval_agent`. Returns its actor."""
    word = word if _is_word(word) else ""
    name, steps = named_agents(names)[0], proxy.config.steps_in_use
    rule = "budget" if proxy.config.inner_rule == "tests" else proxy.config.inner_rule
    config = dataclasses.replace(proxy.config, inner_steps=steps, inner_rule=rule, test_every=None)
    loop = InnerLoop(config, names, agent, proxy.game, run.num_threads).alone(name)
    parameters = None if word == REAL else proxy.parameters[None]
    training = loop.begin(parameters, fresh_seeds(run.seed, "evaluation", 1, len(named_agents(names))))
    with contextlib.closing(training.environment):
        if word == UNTRAINED:
            assert isinstance(training.agent, InnerAgent)
            new = training.agent.with_weights(training.agent.flat_parameters.detach().clone())
            return Actor(lambda: new, f"{name}, untrained")
        where = f"the real {proxy.game}" if word == REAL else f"{proxy.path.stem}, which was learned"
        print(f"training {name} on {where}, for {steps:,} steps at most", flush=True)
        with progress("trained") as watch:
            trained = loop.finish(training, watch=watch)
    num_steps = int(trained.steps[0])
    return Actor(lambda: trained.policy, f"{name}, {num_steps:,} steps on {where.partition(',')[0]}")
