"""The settings of a run, and how they are written down: as one flat mapping of names to plain values. It is
`config.yaml` in a run folder, what a checkpoint carries, and what ``--config`` reads. Imports no torch."""

import dataclasses
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.family import StepSchedule
from models.registry import default_configs, families_of, family, named_agents
from models.settings import Kind, SettingError, check, check_value, kinds, nearest, setting
from models.vocabulary import translate

_run = functools.partial(setting, section="run")
_count = functools.partial(_run, minimum=1, maximum=4096)
_training = functools.partial(setting, section="training")
_evaluation = functools.partial(setting, section="evaluation")
_tuning = functools.partial(setting, section="tuning")
_figure = functools.partial(setting, section="figures")
_films = functools.partial(setting, section="films")
_drawn = functools.partial(setting, section="how figures look")


@dataclass(frozen=True)
class RunConfig:
    """Everything about a run that is not a hyperparameter of the agent. This is the only home of its defaults."""

    implementation: str = _run("UDRL", "the learning algorithm, SE to learn a synthetic environment, or RN a reward")
    agent: str = _run("DDQN", "agent that trains on a proxy (SE, RN), or several of one family: DDQN,DuelingDDQN")
    gamename: str = _run("lunarlander", "the environment: one of those above, or any Gymnasium id", maximum=200)
    exp_name: str = _run("debug", "name of the experiment, a folder", maximum=100)
    seed: int = _run(25, "seed of the run; with num_seeds, of its first member", minimum=0, maximum=2**63 - 1)
    num_seeds: int = _count(1, "runs trained side by side, with seeds seed, seed + 1, ...")
    num_workers: int = _count(
        1, "processes that step environments or, with SE or RN, train the population (Ray); 1 is this process"
    )
    accelerator: str = _run("cpu", "device for agents that can use it; gpu is CUDA's first", choices=("cpu", "gpu"))
    num_threads: int = _count(
        1,
        "threads of a tensor operation: above 1, numbers may differ in the last digit from run to run. Agents that a "
        "search trains in machine code are shared between so many threads, and their numbers stay the same",
    )
    matmul_precision: str = _run(
        "highest",
        "precision of matrix products: highest is float32, medium lets them use bfloat16 where the processor can",
        choices=("highest", "high", "medium"),
    )
    ray_address: str | None = _run(None, "Ray cluster to join (host:port or auto); null starts one here")
    time_limit: int | None = _run(None, "steps that truncate an episode; null is the environment's own", minimum=1)
    step_timeout: float | None = _run(
        None,
        "seconds in which an environment must answer, else the run ends; it then has a process of its own; null waits",
        above=0,
    )
    logdir: str = _run("exp_dir", "folder under which everything is written")
    logger: str = _run(
        "tensorboard", "what shows the run beside its metrics.csv", choices=("tensorboard", "wandb", "mlflow", "none")
    )
    print_statements: int = _run(0, "above 0 prints more while training", minimum=0)
    record: bool = _run(False, "write a video at the end, of the trained agent or of the one that --eval_agent names")
    record_episodes: int = _run(3, "episodes in that video, and in that of --film", minimum=1, maximum=100)
    display: bool = _run(False, "accepted for old scripts and without effect: nothing needs a display")

    epochs: int = _training(2000, "epochs to train, each some gradient steps and then some episodes", minimum=1)
    steps_per_epoch: int = _training(500, "steps per epoch, for agents that learn step by step", minimum=1)
    target_return: float | None = _training(
        None,
        "stop early once greedy evaluation (with SE, RN: of fresh agents of the mean) reaches this return; null never",
    )
    eval_every: int = _training(10, "epochs between evaluations", minimum=1)
    eval_episodes: int = _training(10, "episodes of each evaluation while training", minimum=1, maximum=1_000_000)
    recording_epoch_interval: int = _training(-1, "epochs between videos; 0 or less records none")
    record_n_rollouts_per_epoch: int = _training(1, "episodes in each of these videos", minimum=1, maximum=1000)
    no_checkpoint: bool = _training(False, "save no checkpoints")
    checkpoint_every: int = _training(10, "epochs between checkpoints of everything that --resume needs", minimum=1)
    resume: bool = _training(False, "continue the newest run of this folder, or start one where there is none")
    reload: str | None = _training(None, "checkpoint whose weights (nothing else) a new run starts from")

    eval_agent: str | None = _evaluation(None, "evaluate this checkpoint and end; it knows its agent and environment")
    num_eval_episodes: int = _evaluation(100, "episodes that --eval_agent plays", minimum=1, maximum=1_000_000)
    num_agents: int = _evaluation(10, "fresh agents that --eval_agent trains on a proxy", minimum=1, maximum=100_000)
    real_baseline: bool = _evaluation(True, "train as many on the real environment, to compare")
    real_steps: int | None = _evaluation(
        None,
        "steps that each of these trains for at most: it has one environment and an update a step, and ends when it "
        "solves the environment. null: it trains as those on the proxy do",
        minimum=1,
    )
    evaluation: str = _evaluation("both", "how --eval_agent acts", choices=("greedy", "sampled", "both"))

    use_tune: bool = _tuning(False, "search hyperparameters with Ray Tune instead of one run")
    search_space: str | None = _tuning(None, "YAML file of the search space; null is the published one")
    tune_algorithm: str = _tuning("asha", "chooses and stops trials", choices=("asha", "optuna", "bohb", "pbt"))
    num_samples: int = _tuning(16, "trials", minimum=1, maximum=100_000)
    max_concurrent_trials: int | None = _tuning(
        None, "trials at the same time; null is one per core", minimum=1, maximum=4096
    )

    plot: tuple[str, ...] | None = _figure(None, "draw and tabulate these run folders, and end", longest=10_000)
    plot_out: str | None = _figure(None, "file of the figure; null is beside the runs")
    plot_format: tuple[str, ...] | None = _drawn(
        None, "formats of figures, of --plot and of a run's curve; null is png, or that of plot_out",
        choices=("png", "pdf", "svg"),
    )  # fmt: skip
    plot_theme: str = _drawn("light", "page that figures are for", choices=("light", "dark"))
    plot_log: bool = _drawn(False, "a logarithmic axis for returns, where all are positive")

    film: tuple[str, ...] | None = _films(
        None,
        "film these side by side in the same episodes, and end: run folders, checkpoints, proxies (an agent trains on "
        "each first); `untrained` is the agent before as it was when new, `real` one that trains on the real "
        "environment as long as on the proxy before",
        longest=4,
    )
    film_out: str | None = _films(None, "file of that film (.mp4); null is a new one in logdir/films")


BY_FLAG = {
    "logdir", "ray_address", "eval_agent", "plot", "plot_out", "plot_format", "plot_theme", "plot_log", "film",
    "film_out",
}  # fmt: skip
"""What is written, and whom this machine joins: flags and keywords say so. A file may come from elsewhere."""

COMMANDS = {
    "return": setting(None, "return to command, in the environment's reward"),
    "horizon": setting(None, "steps to command", above=0),
    "advantage": setting(None, "advantage to command (RCP-A)"),
}
"""What ``--command.<name>`` may say, each a `COMMAND`; null leaves it to the agent."""
COMMAND = Kind(float, many=False, optional=True)


@dataclass(frozen=True)
class Settings:
    """All settings of one invocation.

    ``agent`` is the ``config`` of the agent's family, None with ``--eval_agent``, where the checkpoint holds it.
    ``proxy`` is the ``config`` of the proxy to learn, else None; ``agent`` is then the inner agent's. ``changed``
    holds, with ``--eval_agent``, hyperparameters of agents that train on a proxy. ``command`` holds only what was
    overridden, such as ``{"return": 250.0}``. ``given`` names what a flag or file set (``"command"`` for any command).
    """

    run: RunConfig
    agent: Any
    command: dict[str, float] = dataclasses.field(default_factory=dict)
    given: frozenset[str] = frozenset()
    proxy: Any = None
    changed: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def epochs(self) -> int:
        """Epochs to train: the agent's own where its settings say so, else the run's."""
        return getattr(self.agent, "epochs", None) or self.run.epochs

    @property
    def schedule(self) -> StepSchedule:
        """Lengths of epochs and evaluations: the agent's own where its settings count steps, else the run's."""
        own = getattr(self.agent, "schedule", None)
        if isinstance(own, StepSchedule):
            return own
        return StepSchedule(self.run.steps_per_epoch, self.run.eval_every, self.run.eval_episodes)

    def replace(self, **changes: Any) -> "Settings":
        """A copy with fields of run, proxy or agent, or ``command``, changed by name. Raises SettingError. Defaults are
        not chosen anew: for another implementation or environment use `from_dict`."""
        command = changes.pop("command", self.command)
        for name, value in command.items():
            if name not in COMMANDS:
                raise SettingError(f"command.{name} is unknown; allowed: {', '.join(COMMANDS)}")
            check_value(f"command.{name}", value, COMMAND, COMMANDS[name].metadata)
        command = {name: float(value) for name, value in command.items() if value is not None}
        run, proxy = _with_own(self.run, changes), _with_own(self.proxy, changes)
        agent = build(self.agent, changes) if changes else self.agent
        return Settings(run, agent, command, self.given, proxy, self.changed)


def _with_own(config: Any, values: dict[str, Any]) -> Any:
    """``config`` with those of ``values`` that are its settings, which are taken out."""
    known = kinds(type(config)) if config is not None else ()
    own = {name: values.pop(name) for name in list(values) if name in known}
    return build(config, own) if own else config


def as_dict(settings: Settings) -> dict[str, Any]:
    """The written form: flat, plain types only (tuples as lists), ``command`` a mapping."""
    configs = [config for config in (settings.run, settings.proxy, settings.agent) if config is not None]
    values = {name: value for config in configs for name, value in dataclasses.asdict(config).items()}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return plain | {"command": dict(settings.command)}


def from_dict(values: Mapping[str, Any]) -> Settings:
    """Settings of the written form. What is missing takes its default. Raises SettingError."""
    first = ("implementation", "gamename", "agent")  # they say which settings there are
    values, _ = translate(values, (), first, lambda name: None)
    command = values.pop("command", None) or {}
    run = build(RunConfig(), {name: values[name] for name in first if name in values})
    agent, proxy = default_configs(run.implementation, run.gamename, values, run.agent)
    known = {name for config in (run, proxy, agent) if config is not None for name in kinds(type(config))}
    families = families_of(run.implementation, run.agent)
    values, _ = translate(values, families, known, lambda name: getattr(agent, name, None))
    run = _with_own(run, values)
    if proxy is not None and run.target_return is not None:
        solved = values.get("solved_reward")
        if solved not in (None, run.target_return):
            raise SettingError(f"target_return is {run.target_return}, but solved_reward is {solved}; give one")
        values = {"quit_when_solved": True} | values | {"solved_reward": run.target_return}
    settings = Settings(run, agent, proxy=proxy).replace(**values, command=command)
    if proxy is not None:
        validate(run.implementation, settings.proxy)
    validate(run.implementation if proxy is None else named_agents(run.agent)[0], settings.agent)
    return settings


def validate(implementation: str, config: Any) -> None:
    """SettingError where settings of an implementation, each in its range, do not go together."""
    if problem := family(implementation).validate(config):
        raise SettingError(problem)


def build(config: Any, values: Mapping[str, Any]) -> Any:
    """``config`` with ``values``, checked. Lists become tuples, paths text and whole numbers floats, where a field
    says so."""
    known = kinds(type(config))
    for name in values:
        if name not in known:
            raise SettingError(f"{name} is unknown{nearest(name, known)}")
    config = dataclasses.replace(config, **{name: _typed(known[name].item, value) for name, value in values.items()})
    check(config)
    return config


def _typed(item: type, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_typed(item, each) for each in value)
    if item is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    # An integer that no float holds is left to be refused.
    return float(value) if item is float and type(value) is int and abs(value) < 2**1000 else value


def to_yaml(settings: Settings) -> str:
    """The written form as YAML without `BY_FLAG`, which ``--config`` reads back to the same settings."""
    import yaml

    values = {name: value for name, value in as_dict(settings).items() if name not in BY_FLAG}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)
