"""The settings of every run, for all implementations, and the settings of each command other than training. Their
defaults are defined here only. Imports no torch.

The flag of its first setting selects a command, such as ``--plot``. Properties of a setting say, for example, which
commands use it, and whether a resumed run may change it (`models.settings.PROPERTIES`).
"""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

from models.settings import FieldType, machine_code, setting

# Each function declares a setting (`models.settings.setting`) with the properties that a group of settings shares.
_setting = functools.partial(setting, hparam=False)
_run = functools.partial(_setting, section="run", commands=("eval_agent", "use_tune"))
_count = functools.partial(_run, minimum=1, maximum=4096)
_output = functools.partial(_setting, section="run", outcome=False, commands=("use_tune",))
_training = functools.partial(_setting, section="training", commands=("use_tune",))
_saving = functools.partial(_training, outcome=False)
_style = functools.partial(
    _setting, section="how figures look", outcome=False, by_flag=True, commands=("use_tune", "plot")
)
_evaluation = functools.partial(setting, section="evaluation")
_tuning = functools.partial(setting, section="tuning")
_figure = functools.partial(setting, section="figures", by_flag=True)
_film = functools.partial(setting, section="films", by_flag=True)
_report = functools.partial(setting, section="reports", by_flag=True)
_learning = functools.partial(setting, section="learning a task")
_FILMS = ("eval_agent", "use_tune", "film")


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run except hyperparameters of the agent."""

    implementation: str = _run(
        "UDRL",
        "the learning algorithm, SE to learn a synthetic environment, or RN a reward",
        identity=True,
        commands=("eval_agent", "use_tune", "learn"),
    )
    agent: str = _run(
        "DDQN",
        "agent that trains on a proxy (SE, RN), or several: DDQN,PPO. A flag applies to all of them that have it; "
        "--PPO_lr applies to one",
        chooses=True,
        commands=_FILMS,
        replaced={"episodes": "implementation", "steps": "implementation"},
    )
    gamename: str = _run(
        "lunarlander",
        "the environment: one that `--help` lists, or any Gymnasium id",
        maximum=200,
        identity=True,
        commands=("eval_agent", "use_tune", "import_proxy", "learn"),
    )
    exp_name: str = _output("debug", "name of the experiment, a folder", maximum=100, commands=("use_tune", "learn"))
    seed: int = _run(
        25,
        "seed of the run; with num_seeds, its first seed",
        minimum=0,
        maximum=2**62,  # later seeds of num_seeds fit into 64 bits
        identity=True,
        commands=(*_FILMS, "learn"),
    )
    num_seeds: int = _count(1, "runs trained side by side, with seeds seed, seed + 1, ...", commands=("use_tune",))
    num_workers: int = _count(
        1,
        "processes that step environments or, with SE or RN, train the population (Ray); 1 is this process",
        outcome=False,
    )
    accelerator: str = _run("cpu", "device for agents that can use it; gpu is CUDA's first", choices=("cpu", "gpu"))
    num_threads: int = _count(
        1,
        "threads of a tensor operation: above 1, numbers may differ in the last digit from run to run. Members in "
        "machine code are divided between these threads, which changes no number",
        outcome=False,
        commands=(*_FILMS, "learn"),
    )
    matmul_precision: str = _run(
        "highest",
        "precision of matrix products: highest is float32, medium allows bfloat16 if the processor can",
        choices=("highest", "high", "medium"),
    )
    ray_address: str | None = _run(
        None,
        "Ray cluster to join (host:port or auto); null starts one here",
        outcome=False,
        by_flag=True,
        needs=("num_workers", "use_tune"),
    )
    time_limit: int | None = _run(
        None,
        "steps after which an episode is truncated; null is the environment's limit",
        minimum=1,
        hparam=True,
        commands=_FILMS,
        replaced={"evolution": "test_limit"},
    )
    logdir: str = _output(
        "exp_dir", "folder for all output", by_flag=True, commands=("use_tune", "film", "import_proxy", "learn")
    )
    output: str | None = _output(
        None,
        "also write the evaluations to OUTPUT.out and, unless no_checkpoint, the last weights to OUTPUT.params, "
        "like the code of Young et al. 2023",
        maximum=200,
        by_flag=True,
        commands=(),
        replaced={"evolution": ""},
    )
    logger: str = _output(
        "tensorboard", "logger beside metrics.csv", choices=("tensorboard", "wandb", "mlflow", "trackio", "none")
    )
    print_statements: int = _run(0, "above 0 prints more while training", minimum=0, outcome=False, usual=False)
    record: bool = _run(
        False,
        "write a video and a GIF of the trained agent at the end. --eval_agent writes a video unless --no_record",
        outcome=False,
    )
    record_episodes: int = _run(
        3,
        "episodes in that video, and in the video of --film",
        minimum=1,
        maximum=100,
        outcome=False,
        needs=("record", "film"),
        commands=_FILMS,
    )
    epochs: int | None = _training(
        2000,
        "epochs to train, each some gradient steps and some episodes; null (the default with total_steps): no limit",
        minimum=1,
        changeable=True,
        hparam=True,
        replaced={"evolution": "generations"},
    )
    total_steps: int | None = _training(
        None,
        "environment steps per seed after which training ends: at the end of the epoch in which every seed reaches "
        "them. SE, RN: steps of all agents on proxies, at the end of the generation. null: only epochs or "
        "generations end it",
        minimum=1,
        changeable=True,
        hparam=True,
        family_default=True,
    )
    steps_per_epoch: int = _training(
        500,
        "steps per epoch, for agents that learn after every step",
        minimum=1,
        hparam=True,
        family_default=True,
        replaced={"episodes": "", "evolution": "inner_steps"},
    )
    target_return: float | None = _training(
        None,
        "stop early once greedy evaluation (with SE, RN: of fresh agents of the mean) reaches this return; null: never",
        changeable=True,
        hparam=True,
    )
    eval_every: int = _training(
        10,
        "epochs between evaluations; with the default, a run of fewer than 50 epochs has more, every 5, 2 or 1 epochs "
        "and at its end; with another value, a shorter run has one at its end",
        minimum=1,
        family_default=True,
    )
    eval_episodes: int = _training(
        10,
        "episodes of each evaluation during training",
        minimum=1,
        maximum=1_000_000,
        family_default=True,
        replaced={"evolution": "test_episodes"},
    )
    compiled: bool = machine_code(section="training", commands=("use_tune",), replaced={"episodes": ""})
    recording_epoch_interval: int = _saving(
        -1, "epochs between videos; 0 or less: none", usual=False, replaced={"evolution": "record"}
    )
    record_n_rollouts_per_epoch: int = _saving(
        1, "videos in each such epoch, one episode each", minimum=1, maximum=1000, usual=False
    )
    no_checkpoint: bool = _saving(False, "save no checkpoints", usual=False)
    checkpoint_every: int = _saving(10, "epochs between checkpoints of everything that --resume needs", minimum=1)
    resume: bool = _saving(
        False, "continue the newest run of this folder, or start one if there is none", commands=("learn",)
    )
    reload: str | None = _training(
        None,
        "checkpoint from which a new run takes its first weights, and nothing else",
        exists=True,
        commands=(),
        replaced={"evolution": ""},
    )

    plot_format: tuple[str, ...] | None = _style(
        None,
        "formats of figures, of --plot and of a run's curve; null is png, or the format of plot_out",
        choices=("png", "pdf", "svg"),
    )
    plot_theme: str = _style("light", "background of figures", choices=("light", "dark"))
    plot_log: bool = _style(False, "a logarithmic axis for returns, if all are positive")


@dataclass(frozen=True)
class Command:
    """A command other than training. The flag of its first setting selects it."""

    flag: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.flag = next(iter(cls.__annotations__))  # the name of the first field


@dataclass(frozen=True)
class EvaluateConfig(Command):
    """Evaluate an agent, or train fresh agents on a proxy."""

    eval_agent: str | None = _evaluation(
        None,
        "evaluate this checkpoint and end; the checkpoint contains its agent and environment",
        by_flag=True,
        exists=True,
    )
    num_eval_episodes: int = _evaluation(100, "episodes of --eval_agent", minimum=1, maximum=1_000_000)
    num_agents: int = _evaluation(10, "fresh agents that --eval_agent trains on a proxy", minimum=1, maximum=100_000)
    real_baseline: bool = _evaluation(True, "also train as many agents on the real environment, to compare")
    real_steps: int | None = _evaluation(
        None,
        "largest number of steps of each of these agents. It then has one environment and one update per step, and "
        "ends when it solves the environment. null: it trains like the agents on the proxy",
        minimum=1,
    )
    evaluation: str = _evaluation("both", "actions of --eval_agent", choices=("greedy", "sampled", "both"))
    export: str | None = _evaluation(
        None,
        "write the greedy policy of the checkpoint's first seed to this new file: .safetensors for "
        "`understudy.Policy`, .js or .mjs for a browser or Node, or .onnx",
    )
    push_to_hub: str | None = _evaluation(
        None,
        "upload the agent or the proxy of --eval_agent to the Hugging Face Hub, as user/name, with its settings and a "
        "model card",
    )
    save_dataset: str | None = _evaluation(
        None, "write the episodes of --eval_agent as a new dataset of Minari with this id, such as lander/udrl-v0"
    )
    obedience: bool = _evaluation(
        False, "command returns within and beyond the returns of training, and compare with the obtained returns"
    )


@dataclass(frozen=True)
class TuneConfig(Command):
    """Search hyperparameters."""

    use_tune: bool = _tuning(False, "search hyperparameters with Ray Tune instead of one run")
    search_space: str | None = _tuning(
        None, "YAML file of the search space; null is that of the implementation", exists=True
    )
    tune_algorithm: str = _tuning(
        "asha",
        "algorithm that chooses and stops trials; the default of SE and RN is optuna_asha",
        choices=("asha", "optuna", "optuna_asha", "bohb", "pbt"),
    )
    tune_objective: str | None = _tuning(
        None,
        "score of a trial of SE and RN, a mean over searches of num_seeds seeds (default 3). generations: minus the "
        "generations until solved_reward is reached; steps: minus the steps of all agents until then; score: tests "
        "of fresh agents that train on the best mean. null: generations for SE with a solved_reward, else score",
        choices=("generations", "steps", "score"),
    )
    resume_search: str | None = _tuning(
        None, "folder of a search to continue, like --use_tune --resume FOLDER", by_flag=True
    )
    num_samples: int = _tuning(16, "trials", minimum=1, maximum=100_000, changeable=True)
    max_concurrent_trials: int | None = _tuning(
        None, "trials at the same time; null is one per core", minimum=1, maximum=4096, changeable=True
    )


@dataclass(frozen=True)
class PlotConfig(Command):
    """Draw learning curves."""

    plot: tuple[str, ...] | None = _figure(
        None,
        "draw and tabulate these run folders, and end; also folders with monitor.csv and evaluations.npz of "
        "stable-baselines3",
        max_items=10_000,
        exists=True,
    )
    plot_out: str | None = _figure(None, "file of the figure; null is beside the runs")


@dataclass(frozen=True)
class FilmConfig(Command):
    """Film agents."""

    film: tuple[str, ...] | None = _film(
        None,
        "film these side by side in the same episodes, and end: run folders, checkpoints, proxies (an agent trains "
        "on each first); `untrained`: the agent before it, with its first weights; `real`: an agent that trains on "
        "the real environment for as long as on the proxy before it",
        max_items=4,
        exists=True,
    )
    film_out: str | None = _film(None, "file of that film (.mp4); null is a new file in logdir/films")


@dataclass(frozen=True)
class ReportConfig(Command):
    """Write an HTML page about runs."""

    report: tuple[str, ...] | None = _report(
        None,
        "write one HTML file about these run folders, or about the run folders in them, and end",
        max_items=10_000,
        exists=True,
    )
    report_out: str | None = _report(None, "that file (.html), or its folder; null is beside the runs")


@dataclass(frozen=True)
class ImportConfig(Command):
    """Convert a proxy of another project."""

    import_proxy: str | None = setting(
        None,
        "convert this file of learning_environments (.pt) or synthetic-gymnax (.pkl) to a proxy.safetensors, and end",
        section="files of other projects",
        by_flag=True,
        exists=True,
    )


TEACHER_STEPS, RACE_STEPS = 1_000_000, 131_072  # defaults of --learn in environments that are not slow


@dataclass(frozen=True)
class LearnConfig(Command):
    """Learn an environment and a reward for a task."""

    learn: str | None = _learning(
        None, "learn a synthetic environment and a reward for this environment, and judge them", by_flag=True
    )
    teacher: str | None = _learning(
        None,
        "policy to learn from: an agent's run or checkpoint, or module:function of observations [N, S]; null trains an "
        "agent of --implementation, by default PPO, QLearning for cells, or SAC for continuous actions in a slow "
        "environment",
        by_flag=True,
    )
    teacher_steps: int | None = _learning(
        None,
        "largest number of steps of that agent's training, or of each of two PPO agents for continuous actions, the "
        f"better of which is the teacher; null is {TEACHER_STEPS:,}, or fewer in a slow environment: as many as it "
        "makes in half an hour",
        minimum=1000,
    )
    exam_agents: int = _learning(
        8, "fresh agents of each kind that train on the learned environment", minimum=2, maximum=4096
    )
    exam_steps: int | None = _learning(
        None,
        "training steps of each of these agents; null is the default of the preset clone, and four times as many for "
        "kinds of agents that learn too little in them",
        minimum=1,
    )
    race_agents: int = _learning(
        5,
        "agents that train with the learned reward, and with the task's for each of one or two settings",
        minimum=1,
        maximum=4096,
    )
    race_steps: int | None = _learning(
        None,
        f"training steps of each of these agents; null is {RACE_STEPS:,}, or fewer in a slow environment: all agents "
        "take half an hour",
        minimum=100,
    )
    only: str | None = _learning(
        None,
        "run only this stage, and the stages that it needs; null: all",
        choices=("probe", "teacher", "bandit", "exam", "reward", "race"),
    )


COMMANDS: dict[str, Any] = {kind.flag: kind for kind in Command.__subclasses__()}
"""The commands other than training, by their flags."""

RETURN_COMMANDS = {
    "return": setting(None, "return to command, in the environment's reward"),
    "horizon": setting(None, "steps to command", above=0),
    "advantage": setting(None, "advantage to command (RCP-A)"),
    "rank": setting(None, "rank to command (preset ranks of UDRL)", above=0, below=1),
}
"""Goals for agents that follow commands, set as ``--command.return 250``. With null, the agent chooses the goal."""
RETURN_COMMAND_TYPE = FieldType(float, is_list=False, optional=True)  # the type of the settings in `RETURN_COMMANDS`
