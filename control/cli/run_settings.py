"""The settings that every run has, independent of the agent, with their defaults. Imports no torch."""

import functools
from dataclasses import dataclass

from models.settings import setting

_run = functools.partial(setting, section="run")
_count = functools.partial(_run, minimum=1, maximum=4096)
_training = functools.partial(setting, section="training")
_evaluation = functools.partial(setting, section="evaluation")
_tuning = functools.partial(setting, section="tuning")
_figure = functools.partial(setting, section="figures")
_films = functools.partial(setting, section="films")
_imported = functools.partial(setting, section="files of other projects")
_report = functools.partial(setting, section="reports")
_figure_style = functools.partial(setting, section="how figures look")


@dataclass(frozen=True)
class RunConfig:
    """Everything about a run that is not a hyperparameter of the agent. No other place defines these defaults."""

    implementation: str = _run("UDRL", "the learning algorithm, SE to learn a synthetic environment, or RN a reward")
    agent: str = _run(
        "DDQN",
        "agent that trains on a proxy (SE, RN), or several: DDQN,PPO. A flag is for all that have it; --PPO_lr is for "
        "one where several have it",
    )
    gamename: str = _run("lunarlander", "the environment: one that `--help` lists, or any Gymnasium id", maximum=200)
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
    output: str | None = _run(
        None,
        "also write the evaluations to OUTPUT.out and, unless no_checkpoint, the last weights to OUTPUT.params, as the "
        "code of Young et al. 2023 does",
        maximum=200,
    )
    logger: str = _run(
        "tensorboard", "what shows the run beside its metrics.csv", choices=("tensorboard", "wandb", "mlflow", "none")
    )
    print_statements: int = _run(0, "above 0 prints more while training", minimum=0)
    record: bool = _run(
        False, "write a video and a GIF of the trained agent at the end. --eval_agent writes a video unless --no_record"
    )
    record_episodes: int = _run(3, "episodes in that video, and in that of --film", minimum=1, maximum=100)
    display: bool = _run(False, "accepted for old scripts and without effect: nothing needs a display")

    epochs: int | None = _training(
        2000,
        "epochs to train, each some gradient steps and some episodes; null, as where total_steps is given alone: any",
        minimum=1,
    )
    total_steps: int | None = _training(
        None,
        "environment steps of a seed that end the training, with the epoch in which every seed has taken as many; SE, "
        "RN: steps of all agents together on proxies, with the generation. null: only the other end counts",
        minimum=1,
    )
    steps_per_epoch: int = _training(500, "steps per epoch, for agents that learn step by step", minimum=1)
    target_return: float | None = _training(
        None,
        "stop early once greedy evaluation (with SE, RN: of fresh agents of the mean) reaches this return; null never",
    )
    eval_every: int = _training(10, "epochs between evaluations; a run of fewer has one at its end", minimum=1)
    eval_episodes: int = _training(10, "episodes of each evaluation while training", minimum=1, maximum=1_000_000)
    recording_epoch_interval: int = _training(-1, "epochs between videos; 0 or less records none")
    record_n_rollouts_per_epoch: int = _training(
        1, "videos in each such epoch, of an episode each", minimum=1, maximum=1000
    )
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
    obedience: bool = _evaluation(
        False, "ask the agent for returns over and beyond those seen in training, and compare what it obtains"
    )

    use_tune: bool = _tuning(False, "search hyperparameters with Ray Tune instead of one run")
    search_space: str | None = _tuning(None, "YAML file of the search space; null is the published one")
    tune_algorithm: str = _tuning(
        "asha",
        "chooses and stops trials; SE, RN: optuna_asha unless given",
        choices=("asha", "optuna", "optuna_asha", "bohb", "pbt"),
    )
    tune_objective: str | None = _tuning(
        None,
        "what trials of SE and RN are judged by, as a mean over searches of num_seeds seeds (3 unless given). "
        "generations: those until solved_reward is reached, with a minus; steps: those of all agents; score: "
        "tests of fresh agents that train on the best mean. null: generations for SE with a solved_reward, else score",
        choices=("generations", "steps", "score"),
    )
    resume_search: str | None = _tuning(None, "folder of a search to go on with, as --use_tune --resume FOLDER does")
    num_samples: int = _tuning(16, "trials", minimum=1, maximum=100_000)
    max_concurrent_trials: int | None = _tuning(
        None, "trials at the same time; null is one per core", minimum=1, maximum=4096
    )

    plot: tuple[str, ...] | None = _figure(None, "draw and tabulate these run folders, and end", longest=10_000)
    plot_out: str | None = _figure(None, "file of the figure; null is beside the runs")
    plot_format: tuple[str, ...] | None = _figure_style(
        None,
        "formats of figures, of --plot and of a run's curve; null is png, or that of plot_out",
        choices=("png", "pdf", "svg"),
    )
    plot_theme: str = _figure_style("light", "page that figures are for", choices=("light", "dark"))
    plot_log: bool = _figure_style(False, "a logarithmic axis for returns, where all are positive")

    film: tuple[str, ...] | None = _films(
        None,
        "film these side by side in the same episodes, and end: run folders, checkpoints, proxies (an agent trains on "
        "each first); `untrained` is the agent before as it was when new, `real` one that trains on the real "
        "environment as long as on the proxy before",
        longest=4,
    )
    film_out: str | None = _films(None, "file of that film (.mp4); null is a new one in logdir/films")

    report: tuple[str, ...] | None = _report(
        None, "write one HTML file about these run folders, or those below them, and end", longest=10_000
    )
    report_out: str | None = _report(None, "that file (.html), or its folder; null is beside the runs")

    import_proxy: str | None = _imported(
        None, "make a proxy.safetensors of this file of learning_environments (.pt) or synthetic-gymnax (.pkl), and end"
    )


OWN = ("total_steps", "steps_per_epoch", "eval_every", "eval_episodes")
"""What a family may declare too, with a default of its own, which then takes the place of that of the run."""
BY_FLAG = {
    "logdir",
    "output",
    "ray_address",
    "eval_agent",
    "plot",
    "plot_out",
    "plot_format",
    "plot_theme",
    "plot_log",
    "film",
    "film_out",
    "report",
    "report_out",
    "import_proxy",
    "resume_search",
}
"""What is written, and whom this machine joins: flags and keywords say so. A file may come from elsewhere."""

# Loop (`Family.learns_from`) -> setting of a run that it does not use -> the setting that replaces it, or "".
REPLACED: dict[str, dict[str, str]] = {
    "evolution": {
        "epochs": "generations",
        "steps_per_epoch": "inner_steps",
        "eval_episodes": "test_episodes",
        "reload": "",
        "output": "",
        "time_limit": "test_limit",
        "step_timeout": "",
        "recording_epoch_interval": "record",
    },
    "episodes": {"steps_per_epoch": "", "agent": "implementation"},
    "steps": {"agent": "implementation"},
}
WITHOUT_EFFECT = ("evaluation", "tuning", "figures", "films", "reports", "files of other projects")
"""Sections of settings that do nothing in a training run."""
