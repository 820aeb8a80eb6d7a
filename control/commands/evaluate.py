"""`--eval_agent CHECKPOINT`: how good is it? The checkpoint knows everything but how many episodes."""

import contextlib
import itertools
from collections.abc import Iterator

from control.cli.settings import Settings
from control.commands.evaluate_proxy import evaluate_proxy, load_proxy
from control.commands.run import ENVS, with_weights
from control.commands.train import prepare
from control.lightning.agent import AgentModule
from control.lightning.callbacks import film
from control.loops.rollout import Episodes
from control.reports.statistics import interval, iqm
from control.reports.tables import aligned, with_interval
from control.storage import checkpoints
from models.settings import SettingError

_FROM_NOW = ("num_workers", "num_eval_episodes", "evaluation", "record", "accelerator", "num_threads")


def evaluate(settings: Settings) -> int:
    """Print how good an agent's checkpoint is, or what agents are worth that train on a proxy. Returns 0."""
    prepare(settings.run)
    assert settings.run.eval_agent
    proxy = load_proxy(settings.run.eval_agent)
    if proxy:
        evaluate_proxy(settings, proxy)
    else:
        evaluate_checkpoint(settings)
    return 0


def evaluate_checkpoint(settings: Settings) -> None:
    """Play `num_eval_episodes` episodes for each member of the checkpoint and print a table; with ``--record`` also a
    video of one episode. Episode seeds come from ``--seed`` (25 by default), not from the run's."""
    now = settings.run
    of_proxies = {"num_agents", "real_baseline", "agent"} & settings.given
    for name in sorted(of_proxies | settings.changed.keys()):
        why = "only on a synthetic environment agents are trained" if name in of_proxies else "the checkpoint holds it"
        raise SettingError(f"--{name} has no effect with --eval_agent: {why}", name)
    checkpoint = checkpoints.load(now.eval_agent or "")
    then = checkpoint.settings
    for name in ("implementation", "gamename"):
        if name in settings.given and getattr(now, name) != getattr(then.run, name):
            raise SettingError(
                f"{name} is {getattr(now, name)!r}, but the checkpoint is of {getattr(then.run, name)!r}; leave it out"
            )
    names = (*_FROM_NOW, *{"time_limit"} & settings.given)
    changes = {name: getattr(now, name) for name in names} | {"command": then.command | settings.command}
    module = with_weights(checkpoint, now.seed, eval_episodes=min(ENVS, now.num_eval_episodes), **changes)
    with contextlib.closing(module):
        able = module.loop.evaluation_modes
        if now.evaluation not in ("both", *able):
            raise SettingError(
                f"evaluation is {now.evaluation!r}, which has no effect with {then.run.implementation}; allowed: "
                f"{', '.join(able)}"
            )
        epoch = checkpoint.run_state["epoch"]
        print(f"{then.run.implementation} on {then.run.gamename}, epoch {epoch}: {checkpoint.path}")
        print(f"{_followed(module)}{now.num_eval_episodes} episodes per seed\n")
        modes = able if now.evaluation == "both" else (now.evaluation,)
        table = [["", "seed", "mean", "std", "IQM [95 % interval]", "length"]]
        for mode in modes:
            table += _rows(mode, module.seeds, module.loop.evaluate(now.num_eval_episodes, sample=mode == "sampled"))
        print("\n".join(aligned(table)))
        if now.record:
            folder = checkpoint.path.parent
            folder = folder.parent / "videos" if folder.name == "checkpoints" else folder
            paths = (folder / f"eval_{checkpoint.path.stem}_{number}.mp4" for number in itertools.count())
            path = next(path for path in paths if not path.exists())
            total = film(module, path, f"video {now.seed}", sample=modes == ("sampled",))
            print(f"\nvideo: {path} (return {total:.0f})")


def _followed(module: AgentModule) -> str:
    """The command that the agent is given, for those that follow one."""
    commands = module.loop.commands_now()
    if not commands:
        return ""
    given = {name: float(value.mean()) for name, value in commands.items()} | module.settings.command
    shown = ", ".join(f"{name} {value:.4g}" for name, value in given.items())
    drawn = module.settings.agent.eval_command == "sampled"
    return f"command {shown}{' (mean of a distribution)' if drawn else ''}; "


def _rows(mode: str, seeds: list[int], episodes: Episodes) -> Iterator[list[str]]:
    """Lines of the table: one per seed, and one for all of several."""
    returns, lengths = episodes.returns.double().numpy(), episodes.lengths.numpy()
    rows = [(str(seed), returns[m], lengths[m]) for m, seed in enumerate(seeds)]
    if len(seeds) > 1:
        rows.append(("all", returns.ravel(), lengths.ravel()))
    for name, values, steps in rows:
        middle = with_interval(float(iqm(values)), interval(values, iqm))
        yield [mode, name, f"{values.mean():.1f}", f"{values.std():.1f}", middle, f"{steps.mean():.0f}"]
