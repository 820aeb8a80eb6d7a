"""`--eval_agent CHECKPOINT`: how good is it? The checkpoint knows everything but how many episodes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from control.cli.settings import Settings
from control.commands.run import ENVS, with_weights
from control.commands.train import prepare
from control.lightning.agent import AgentModule
from control.lightning.callbacks import film
from control.loops.rollout import Episodes
from control.reports.statistics import interval, iqm, mean
from control.reports.tables import aligned, with_interval
from control.storage import checkpoints
from control.storage.checkpoints import Checkpoint
from models.settings import SettingError

_FROM_NOW = ("num_workers", "num_eval_episodes", "evaluation", "record", "accelerator", "num_threads")


def evaluate_checkpoint(settings: Settings) -> int:
    """Play `num_eval_episodes` episodes for each member of the checkpoint and print a table; with ``--record`` also a
    video of one episode. Episode seeds come from ``--seed`` (25 by default), not from the run's. Returns 0."""
    prepare(settings.run)
    assert settings.run.eval_agent
    for name in sorted({"num_agents", "real_baseline", "agent"} & settings.given):
        raise SettingError(
            f"--{name} has no effect with --eval_agent: only on a synthetic environment agents are trained", name
        )
    for name in sorted(settings.changed):
        raise SettingError(f"--{name} has no effect with --eval_agent: the checkpoint holds it", name)
    checkpoint = checkpoints.load(settings.run.eval_agent)
    module = restore(checkpoint, settings)
    run = module.settings.run
    print(f"{run.implementation} on {run.gamename}, epoch {checkpoint.run_state['epoch']}: {checkpoint.path}")
    print(f"{_followed(module)}{run.num_eval_episodes} episodes per seed\n")
    modes = module.loop.evaluation_modes if run.evaluation == "both" else (run.evaluation,)
    table = [["", "seed", "mean", "std", "IQM [95 % interval]", "length"]]
    for mode in modes:
        table += _rows(mode, module.seeds, module.loop.evaluate(run.num_eval_episodes, sample=mode == "sampled"))
    print("\n".join(aligned(table)))
    if run.record:
        path = _video_path(checkpoint)
        total = film(module, path, f"video {settings.run.seed}", sample=modes == ("sampled",))
        print(f"\nvideo: {path} (return {total:.0f})")
    module.close()
    return 0


def restore(checkpoint: Checkpoint, now: Settings) -> AgentModule:
    """The trained agent with environments to evaluate it in. Of ``now`` only what concerns evaluation counts.

    Raises SettingError where ``now`` names another implementation or game than the checkpoint's.
    """
    then = checkpoint.settings
    for name in ("implementation", "gamename"):
        if name in now.given and getattr(now.run, name) != getattr(then.run, name):
            raise SettingError(
                f"{name} is {getattr(now.run, name)!r}, but the checkpoint is of {getattr(then.run, name)!r}; "
                "leave it out"
            )
    changes = {name: getattr(now.run, name) for name in _FROM_NOW}
    changes |= {"time_limit": now.run.time_limit} if "time_limit" in now.given else {}
    changes |= {"eval_episodes": min(ENVS, now.run.num_eval_episodes), "command": then.command | now.command}
    module = with_weights(checkpoint, now.run.seed, **changes)
    if now.run.evaluation not in ("both", *module.loop.evaluation_modes):
        module.close()
        raise SettingError(
            f"evaluation is {now.run.evaluation!r}, which has no effect with {then.run.implementation}; allowed: "
            f"{', '.join(module.loop.evaluation_modes)}"
        )
    return module


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
    returns, lengths = episodes.returns.numpy().astype(np.float64), episodes.lengths.numpy()
    rows = [(str(seed), returns[m], lengths[m]) for m, seed in enumerate(seeds)]
    if len(seeds) > 1:
        rows.append(("all", returns.ravel(), lengths.ravel()))
    for name, values, steps in rows:
        centre = with_interval(float(iqm(values)), interval(values, iqm))
        yield [mode, name, f"{float(mean(values)):.1f}", f"{float(values.std()):.1f}", centre, f"{steps.mean():.0f}"]


def _video_path(checkpoint: Checkpoint) -> Path:
    """Beside the run where the checkpoint lies in one, else beside the checkpoint; never over an earlier video."""
    folder = checkpoint.path.parent
    folder = folder.parent / "videos" if folder.name == "checkpoints" else folder
    number = 0
    while (path := folder / f"eval_{checkpoint.path.stem}_{number}.mp4").exists():
        number += 1
    return path
