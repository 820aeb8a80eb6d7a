"""Checks of combinations of settings: conflicts, flags without effect, missing files. Imports no torch."""

import os
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations, product

from control.cli.errors import absent
from control.cli.options import Flag, for_evaluation
from control.cli.settings import Settings, ineffective, replaced_in
from control.cli.words import WORDS
from models.settings import SettingError, nearest, raise_all

MODES = ("eval_agent", "use_tune", "plot", "film", "report", "import_proxy")  # commands other than training
CONFLICTS = [
    *combinations(MODES, 2),
    ("resume", "reload"),
    ("use_tune", "output"),
    *product(("eval_agent", "use_tune", "film", "report"), ("resume", "reload")),
]
# Section -> the flag without which flags of this section have no effect.
SWITCHES = {"evaluation": "eval_agent", "tuning": "use_tune", "figures": "plot", "films": "film", "reports": "report"}
# Command -> the only flags that have an effect with it.
HEARD = {
    "film": ("film_out", "agent", "record_episodes", "seed", "time_limit", "logdir", "num_threads"),
    "report": ("report_out",),
    "import_proxy": ("gamename", "logdir"),
    "plot": ("plot_out", "plot_format", "plot_theme", "plot_log"),
}
# Settings of a run that have no effect with --eval_agent, which writes into the run's folder.
UNHEARD = ("exp_name", "logdir", "output", "logger", "num_seeds")
FOR_EVALUATION = ("run", "evaluation")
PER_CORE = 4  # most threads or trials; more only slow each other down
MUST_EXIST = ("eval_agent", "reload", "search_space", "plot", "film", "report", "import_proxy")


def check_together(settings: Settings, typed: Collection[str], valid_flags: Mapping[str, Flag]) -> None:
    """Raise SettingError if settings conflict, if a flag has no effect, or if a file does not exist. ``typed`` are the
    settings from flags or keywords."""
    run = settings.run
    if run.seed + run.num_seeds > 2**63:
        raise SettingError(
            f"seed is {run.seed}; allowed with num_seeds {run.num_seeds}: at most {2**63 - run.num_seeds}"
        )
    max_value = max(8, PER_CORE * (os.cpu_count() or 1))
    for name in ("num_threads",) if run.ray_address else ("num_threads", "max_concurrent_trials"):
        if (value := getattr(run, name) or 0) > max_value:
            machine = f"on this machine, which has {os.cpu_count()} cores"
            raise SettingError(f"{name} is {value}; allowed: at most {max_value} {machine}", name)
    if run.exp_name in (".", ".."):
        raise SettingError(f"exp_name is {run.exp_name!r}; allowed: the name of a folder", "exp_name")
    for first, other in CONFLICTS:
        if getattr(run, first) and getattr(run, other):
            raise SettingError(f"--{first} and --{other} exclude each other")
    raise_all(
        [SettingError(f"--{name} has no effect{reason}", name) for name, reason in _idle(settings, typed, valid_flags)]
    )
    for name in MUST_EXIST:
        value = getattr(run, name) or ()
        for path in (value,) if isinstance(value, str) else value:
            if os.path.exists(path):
                continue
            shipped: Collection[str] = ()
            if name in ("eval_agent", "film"):
                from understudy import pretrained  # loads Gymnasium, which most command lines do not need

                shipped = [*pretrained(), *(WORDS if name == "film" else ())]
            if path not in shipped:
                raise SettingError(f"{name} is {path!r}: {absent(path)}{nearest(path, shipped)}", name)


def _idle(settings: Settings, typed: Collection[str], valid_flags: Mapping[str, Flag]) -> Iterator[tuple[str, str]]:
    """Yield name and reason for every flag in ``typed`` that has no effect in combination with the other settings. The
    reason is text to append to "--name has no effect"."""
    run, evaluation_settings = settings.run, for_evaluation()
    modes = [mode for mode in HEARD if getattr(run, mode)]
    trains = not run.eval_agent and not modes  # else these settings are not used
    replacements = replaced_in(run.implementation) if trains else {}
    idle = ineffective(settings) if trains else {}
    for name in typed:
        switch = SWITCHES.get(valid_flags[name].section)
        if name == "record_episodes" and not (run.record or run.film):
            yield name, " without --record"
        elif name == "ray_address" and run.ray_address and run.num_workers == 1 and not run.use_tune:
            yield name, " without --num_workers or --use_tune"
        elif name in replacements:
            hint = f"; did you mean '--{replacements[name]}'?" if replacements[name] else ""
            yield name, f" with {run.implementation}{hint}"
        elif name in idle:
            yield name, f": {idle[name]}"
        elif switch and not getattr(run, switch) and not name.startswith("command."):
            if name != switch:
                yield name, f" without --{switch}"
            elif getattr(run, switch) is not False:  # empty text, such as an empty shell variable
                yield name, ": it is empty"
        elif mode := next((mode for mode in modes if name not in (mode, *HEARD[mode])), None):
            yield name, f" with --{mode}"
        elif run.eval_agent and (
            name in UNHEARD or valid_flags[name].section not in FOR_EVALUATION and name not in evaluation_settings
        ):
            hint = "; did you mean '--num_eval_episodes'?" if name == "eval_episodes" else ": the checkpoint holds it"
            yield name, f" with --eval_agent{hint if name not in UNHEARD else ''}"
        elif name == "num_threads" and run.num_threads > 1 and run.num_workers > 1 and settings.proxy is not None:
            yield name, f" with --num_workers {run.num_workers}, whose processes have a thread each"
