"""`--film`: film agents side by side in the same episodes. Agents are from checkpoints, or train on a proxy first."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control.cli.colour import note
from control.cli.progress import progress
from control.cli.settings import RunConfig, Settings
from control.cli.words import FILM_WORDS
from control.commands.evaluate import proxy_or_checkpoint
from control.commands.proxy_agents import agents_for_proxy
from control.commands.run import trained_loop
from control.evolution.inner_loop import InnerLoop, fresh_seeds
from control.films.recording import Actor, check_film, record, returns_text, unused_path
from control.loops.build import build_loop
from control.loops.process import configure_process
from control.reports.figures import check_writable
from control.storage.checkpoints import Checkpoint
from control.storage.run_dir import remove_empty, safe_name
from models.contract import InnerAgent
from models.proxies.files import Proxy
from models.settings import SettingError
from models.streams import Streams

UNTRAINED, REAL = FILM_WORDS
Source = Proxy | Checkpoint  # a filmed agent is from a checkpoint, or trains on a learned environment or reward first


def film_side_by_side(settings: Settings) -> int:
    """Film several agents side by side in the same episodes, one agent for each word of ``--film``. Write an mp4 and a
    GIF, and print the returns of each agent. Returns 0. Raises SettingError if the words name several environments, or
    if a flag or the file to write is not allowed."""
    run, film_out = settings.run, settings.subcommand.film_out
    configure_process(run)
    sources_and_roles = _sources_and_roles(settings.subcommand.film)
    sources = [source for source, _ in sources_and_roles]
    games = [source.game if isinstance(source, Proxy) else source.settings.run.gamename for source in sources]
    game, *other_games = dict.fromkeys(games)  # without repetitions
    if other_games:
        raise SettingError(f"film shows {', '.join([game, *other_games])}; allowed: one environment", "film")
    trains_agents = any(isinstance(source, Proxy) for source in sources)
    if "agent" in settings.explicit_names and not trains_agents:
        raise SettingError("--agent has no effect with --film of runs: only on a proxy an agent is trained", "agent")
    limit = run.time_limit
    if limit is None:
        first = sources[0]
        limit = first.config.test_limit if isinstance(first, Proxy) else first.settings.run.time_limit
    check_film(game, limit, "film")
    path = Path(film_out) if film_out else unused_path(Path(run.logdir, "films"), safe_name(game))
    if path.suffix.lower() != ".mp4" or path.is_dir():
        raise SettingError(f"film_out is {film_out!r}; allowed: a file ending in .mp4", "film_out")
    check_writable("film_out" if film_out else "logdir", path, path.with_suffix(".gif"))
    seeds = Streams.from_name([run.seed], "film").episode_seeds(run.record_episodes)[0].tolist()
    with contextlib.ExitStack() as stack:
        # After an error, remove the film's folder if it is empty. Without film_out, also remove empty folders above it.
        stack.callback(remove_empty, path.parent, path.parent if film_out else Path(run.logdir))
        actors = [_actor(settings, source, role, stack) for source, role in sources_and_roles]
        with progress("filming") as watch:
            actor_returns = record(actors, game, path, seeds, limit, with_gif=True, watch=watch)
    for actor, returns in zip(actors, actor_returns, strict=True):
        print(f"{actor.caption}: {returns_text(returns)}")
    print(f"\nvideo: {path}\nGIF:   {path.with_suffix('.gif')}")
    return 0


def _sources_and_roles(words: Sequence[str]) -> list[tuple[Source, str]]:
    """Return the source and the role of an agent for each of the ``words`` of ``--film``, such as ``["exp_dir/run",
    "untrained"]``. The role `untrained` means an agent with its first weights, `real` an agent that trains on the real
    environment, and "" an agent that trains on the proxy, or the agent of a checkpoint. The words `untrained` and
    `real` refer to the last file before them or, if there is none, to the first file. Raises SettingError if no word is
    a file, or if `real` refers to a run."""
    files = [word for word in words if word not in FILM_WORDS or Path(word).exists()]  # a file may be called real
    if not files:
        allowed = f"a run, checkpoint or proxy, and beside it {UNTRAINED} or {REAL}"
        raise SettingError(f"film is {' '.join(words)!r}; allowed: {allowed}", "film")
    sources = {word: proxy_or_checkpoint(word) for word in files}
    latest_source = sources[files[0]]
    sources_and_roles: list[tuple[Source, str]] = []
    for word in words:
        latest_source = sources.get(word, latest_source)
        role = "" if word in sources else word
        if role == REAL and not isinstance(latest_source, Proxy):
            problem = f"film: {word!r} goes with a proxy, and {str(latest_source.path)!r} is a run"
            raise SettingError(f"{problem}; allowed: {UNTRAINED}, or another run", "film")
        sources_and_roles.append((latest_source, role))
    return sources_and_roles


def _actor(settings: Settings, source: Source, role: str, stack: contextlib.ExitStack) -> Actor:
    """Return the agent to film for a source and a role (`_sources_and_roles`). Train it first if the source is a proxy.
    ``stack`` closes the environments of checkpoints."""
    run = settings.run
    if isinstance(source, Proxy):
        agents = agents_for_proxy(settings, source)
        first_name, *other_names = agents
        if other_names and not role:
            note(f"the film has {first_name} only, the first of {', '.join(agents)}; --agent selects another")
        return _train_actor(run, first_name, agents[first_name], role, source)
    trained_settings = source.settings.replace(num_workers=1, eval_episodes=1)
    trained = trained_settings.run
    loop = trained_loop(source, trained_settings, run.seed)
    stack.callback(loop.close)
    steps_of_first_seed = int(source.run_state["env_steps"][0])
    caption = f"{trained.implementation} ({trained.exp_name}, seed {trained.seed}), {steps_of_first_seed:,} steps"
    if role == UNTRAINED:
        # If agents follow commands, the untrained agent gets the commands of the trained agent.
        commands = {name: float(value.mean()) for name, value in loop.agents[0].mean_commands().items()}
        untrained_settings = trained_settings.replace(command={**commands, **trained_settings.command})
        loop = build_loop(untrained_settings, for_training=False)
        caption = f"{trained.implementation}, untrained"
        stack.callback(loop.close)
    streams = Streams.from_name([run.seed] * len(loop.seeds), "film, actions")
    return Actor(lambda: loop.policy(streams.fork()), caption)  # a new policy, with new streams, for each episode


def _train_actor(run: RunConfig, name: str, agent: Any, role: str, proxy: Proxy) -> Actor:
    """Train an agent of implementation ``name`` with config ``agent``, and return it for a film. The ``role`` is the
    place of its training: on the proxy (""), on the real environment of the proxy (`REAL`), or nowhere (`UNTRAINED`).
    The agent has the seed of the first agent that ``--eval_agent`` trains."""
    steps = proxy.config.steps_in_use
    # The rule "tests" ends a training by tests on the real environment. This agent makes no such tests.
    rule = "budget" if proxy.config.inner_rule == "tests" else proxy.config.inner_rule
    config = dataclasses.replace(proxy.config, inner_steps=steps, inner_rule=rule, test_every=None)
    loop = InnerLoop(config, name, agent, proxy.game, run.num_threads)
    parameters = None if role == REAL else proxy.parameters[None]  # [1, D]; None is the real environment
    training = loop.begin(parameters, fresh_seeds(run.seed, "evaluation", count=1))
    with contextlib.closing(training.environment):
        if role == UNTRAINED:
            assert isinstance(training.agent, InnerAgent)
            untrained_agent = training.agent.with_weights(training.agent.flat_parameters.detach().clone())
            return Actor(lambda: untrained_agent, f"{name}, untrained")
        game, _, _ = proxy.game.partition(",")  # without parameters of the environment
        stage = f"the real {game}" if role == REAL else proxy.path.stem
        print(f"training {name} on {stage}, for {steps:,} steps at most", flush=True)
        with progress("trained") as watch:
            trained = loop.train_to_end(training, watch=watch)
    return Actor(lambda: trained.policy, f"{name}, {int(trained.steps[0]):,} steps on {stage}")
