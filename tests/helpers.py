"""Tiny settings, and a training loop without Lightning, for tests of agents."""

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium.envs.classic_control  # noqa: F401  # names below begin with it
import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

import trainer
from conftest import ROOT
from control.cli.settings import RunConfig, Settings
from control.lightning.callbacks import RunLog
from control.loops.build import build_loop
from control.loops.episodes import EpisodeLoop
from control.loops.steps import StepLoop
from control.storage import checkpoints
from control.storage.run_dir import read_metrics
from envs.make import make_dynamics, spaces_of
from models.contract import StepAgent
from models.mlp import MLP, Rows
from models.proxies import files
from models.registry import agent_class, default_config, family, implementations
from models.spaces import Continuous, Discrete, Spaces

# Gymnasium environments, not the tensor programs with the short names.
STEPPED_CAR = "gymnasium.envs.classic_control:MountainCar-v0"
STEPPED_PENDULUM = "gymnasium.envs.classic_control:Pendulum-v1"
# Settings of small runs, if a family has them. Batches and widths are odd, to test the remainders of vectorized loops;
# replay buffers of models wrap around.
TINY: dict[str, Any] = {
    "batch_size": 33, "num_grad_steps": 4, "num_rand_action_rollouts": 4, "training_rollouts_per_worker": 4,
    "last_few": 4, "value_hidden_sizes": (11, 7), "conv_channels": (4, 8), "random_action_epochs": 0,
}  # fmt: skip
STEP_TINY: dict[str, Any] = {
    "batch_size": 9, "feature_dim": 13, "buffer_size": 700, "init_episodes": 1,
    "rollout_steps": 19, "ppo_epochs": 2, "num_envs": 1, "icm_hidden_size": 13, "rnd_hidden_size": 11,
}  # fmt: skip
MODEL_TINY: dict[str, Any] = STEP_TINY | {
    "hidden_sizes": (11, 11), "rollout_length": 3, "num_features": 3, "feature_width": 5, "buffer_size": 23,
    "training_start_time": 3, "steps_per_epoch": 5, "target_update_frequency": 7, "lr": 3e-3, "model_lr": 3e-3,
}  # fmt: skip
# Variants of implementations with other networks and settings: id -> (implementation, settings).
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "UDRL-hypernetwork": ("UDRL", {"network": "hypernetwork", "activation": "leakyrelu"}),
    "UDRL-by-episode": ("UDRL", {"sample_by": "episode", "eval_command": "sampled", "buffer_unit": "episodes",
                                 "buffer_size": 7}),
    "UDRL-ranks": ("UDRL", {"desire_rank": True, "desire_rtg": False, "desire_horizon": False, "discount": 0.99,
                            "buffer_order": "recent", "average_decay": 0.9, "val_func_update_interval": 1}),
    "RCP-A-lambda": ("RCP-A", {"advantage_target": "lambda", "advantage_command": "quantile", "sample_by": "episode",
                               "activation": "tanh"}),
    "AAC-shared": ("AAC", {"shared_trunk": True, "activation": "leakyrelu"}),
    "AAC-improved": ("AAC", {"gae_lambda": 0.9, "bootstrap_truncation": True, "normalize_advantage": True,
                             "max_grad_norm": 0.5, "reward_scale": 0.5, "anneal_lr": True, "value_lr": 5e-3}),
    "DDQN-three-envs": ("DDQN", {"num_envs": 3, "updates_per_step": 2, "eps_fraction": 0.5}),
    "DDQN-own-lr-and-batch": ("DDQN", {"vary_hp": True, "vary": ("lr", "batch_size")}),
    "DDQN-icm": ("DDQN", {"intrinsic": "icm"}),
    "DDQN-rnd": ("DDQN", {"intrinsic": "rnd", "init_episodes": 2}),
    "QLearning-three-envs": ("QLearning", {"num_envs": 3, "random_ties": True, "eps_init": 0.5, "eps_decay": 0.7,
                                            "anneal_lr": True}),
    "QLearning-count-bonus": ("QLearning", {"count_bonus": 0.1, "truncation_ends": True, "init_episodes": 1}),
    "QLearning-own": ("QLearning", {"vary_hp": True}),
    "QLearning-icm": ("QLearning", {"intrinsic": "icm", "icm_hidden_size": 8, "init_episodes": 1, "num_envs": 2}),
    "SARSA-executed": ("SARSA", {"backup": "executed", "random_ties": True, "num_envs": 2}),
    "PPO-test-noise": ("PPO", {"test_noise": True, "activation": "prelu", "orthogonal": False, "max_grad_norm": None}),
    "PPO-normalised": ("PPO", {"normalize_obs": True, "normalize_reward": True, "clip_range_vf": 0.1,
                               "ent_coef": 0.01, "anneal_lr": True}),
    "PPO-icm": ("PPO", {"intrinsic": "icm"}),
    "PPO-rnd": ("PPO", {"intrinsic": "rnd", "num_envs": 2}),
    "PPO-three-envs": ("PPO", {"num_envs": 3, "rollout_steps": 7}),
    "PPO-target-kl": ("PPO", {"target_kl": 0.005, "ppo_epochs": 5, "lr": 0.02, "num_envs": 2, "rollout_steps": 7}),
    "PPO-own-lr-normalised": ("PPO", {"vary_hp": True, "vary": ("lr",), "normalize_obs": True,
                                      "normalize_reward": True}),
    "DuelingDDQN-batch-mean": ("DuelingDDQN", {"dueling_mean": "batch"}),
    "TD3-icm": ("TD3", {"intrinsic": "icm"}),
    "SAC-rnd": ("SAC", {"intrinsic": "rnd"}),
    "TD3Discrete-icm": ("TD3Discrete", {"intrinsic": "icm"}),
    "TD3-three-envs": ("TD3", {"num_envs": 3, "updates_per_step": 5, "hidden_sizes": (11,), "activation": "tanh"}),
    "TD3-own-lr-and-batch": ("TD3", {"vary_hp": True, "vary": ("lr", "batch_size"), "policy_delay": 1,
                                     "activation": "tanh"}),
    "SAC-fixed-temperature": ("SAC", {"learn_temperature": False, "entropy_temperature": 0.1, "num_envs": 2,
                                      "updates_per_step": 2, "hidden_sizes": (11,), "vary_hp": True, "vary": ("lr",)}),
    "TD3-ornstein-uhlenbeck": ("TD3", {"noise_type": "ornstein-uhlenbeck", "action_std": 3.0, "num_envs": 2,
                                       "updates_per_step": 2}),
    "SAC-ornstein-uhlenbeck": ("SAC", {"noise_type": "ornstein-uhlenbeck"}),
    "TD3Discrete-ornstein-uhlenbeck": ("TD3Discrete", {"noise_type": "ornstein-uhlenbeck", "num_envs": 2}),
    "TD3Discrete-hard": ("TD3Discrete", {"gumbel_softmax_hard": True, "gumbel_temperature": "learned"}),
    "TD3Discrete-annealed": ("TD3Discrete", {"gumbel_temperature": "annealed", "num_envs": 2, "policy_delay": 3}),
    "ER-silu": ("ER", {"activation": "silu", "updates_per_step": 2, "double_DQN": True}),
    "ER-epsilon-greedy": ("ER", {"exploration_strat": "epsilon_greedy", "activation": "relu", "batch_size": 1}),
    "perfect-relu": ("PerfectModel", {"activation": "relu", "use_target": False, "hidden_sizes": (7, 7)}),
    "simple-silu": ("SimpleModel", {"activation": "silu", "rollout_batch_size": 5, "hidden_sizes": (17, 17)}),
    "simple-faithful": ("SimpleModel", {"faithful_to_paper": True, "activation": "relu", "batch_size": 1}),
    "simple-no-bits": ("SimpleModel", {"activation": "prelu", "binary_obs": False, "double_DQN": True}),
    "categorical-silu": ("CategoricalLatent", {"activation": "silu", "posterior_entropy_weight": 0.3}),
    "categorical-wide": ("CategoricalLatent", {"hidden_sizes": (33, 33), "feature_width": 17, "rollout_batch_size": 1}),
    "gaussian-softplus": ("GaussianLatent", {"std_act": "softplus", "posterior_entropy_weight": 0.3,
                                            "activation": "leakyrelu"}),
    "gaussian-deviations": ("GaussianLatent", {"binary_obs": False, "learn_obs_variance": True, "num_features": 7}),
    "tanh-sigmoid": ("GaussianLatent", {"latent_type": "tanh_gaussian", "std_act": "sigmoid", "activation": "silu"}),
}  # fmt: skip
ALL = {name: (name, {}) for name in implementations() if family(name).learns_from != "evolution"} | VARIANTS
CASES = {case: spec for case, spec in ALL.items() if family(spec[0]).learns_from == "episodes"}
STEP_CASES = {case: spec for case, spec in ALL.items() if case not in CASES}
CELLS = "cliff"  # an environment with one-hot observations
# The first five have no changes.
MODELS = [case for case, (name, _) in STEP_CASES.items() if family(name).package.endswith(".model_generalisation")]


def on_policy(implementation: str) -> bool:
    """Whether an implementation learns from its latest episodes only."""
    return family(implementation).learns_from == "episodes" and default_config(implementation, "").schedule.on_policy


def can_play(case: str, game: str) -> bool:
    """Whether an agent can play a game; a perfect model needs a tensor program."""
    kind = Continuous if game == "pendulum" or game.endswith("-continuous") else Discrete
    agent_type = agent_class(ALL[case][0])
    needs_dynamics = issubclass(agent_type, StepAgent) and agent_type.needs_dynamics(config_of(case))
    cells = not agent_type.takes_cells_only or spaces_of(game).one_hot
    return kind in agent_type.action_kinds and not (needs_dynamics and make_dynamics(game) is None) and cells


def default_game(case: str) -> str:
    """A fast environment for an agent."""
    if agent_class(ALL[case][0]).takes_cells_only:
        return CELLS
    return "cartpole" if can_play(case, "cartpole") else "probe-truncated-continuous"


def config_of(case: str, game: str = "", **changes: Any) -> Any:
    """Settings of a case with the changes that its family has."""
    implementation, case_changes = ALL[case]
    config = default_config(implementation, game)
    field_names = {field.name for field in dataclasses.fields(config)}
    values = {name: value for name, value in (changes | case_changes).items() if name in field_names}
    return dataclasses.replace(config, **values)


def tiny(case: str, game: str = "", **changes: Any) -> Any:
    """The smallest settings that still learn something."""
    plain = default_config(ALL[case][0], game)
    if case in STEP_CASES:
        hidden = {"hidden_sizes": (11,) * len(getattr(plain, "hidden_sizes", ()))}
        return config_of(case, game, **((MODEL_TINY if hasattr(plain, "model") else hidden | STEP_TINY) | changes))
    hidden = tuple(11 + 4 * i for i in range(len(getattr(plain, "hidden_sizes", ()))))
    batch_settings = {"batch_episodes": 4} if plain.schedule.on_policy else {}  # episodes of an epoch
    return config_of(case, game, **({"hidden_sizes": hidden} | TINY | batch_settings | changes))


def build(case: str, spaces: Spaces, seeds: list[int], config: Any = None) -> Any:
    return agent_class(ALL[case][0])(config or tiny(case), spaces, seeds)


def loop_of(case: str, game: str, first: int = 1, seeds: int = 1, config: Any = None, **run: Any) -> Any:
    """The loop of a run after its warm-up, with epochs of 60 steps, in torch unless ``compiled``."""
    settings = RunConfig(
        implementation=ALL[case][0], gamename=game, seed=first, num_seeds=seeds,
        **({"steps_per_epoch": 60, "epochs": 3, "eval_episodes": 4, "compiled": False} | run),
    )  # fmt: skip
    loop = build_loop(Settings(settings, config or tiny(case, game)))
    loop.warm_up()
    return loop


def step_loop(case: str, game: str, seeds: int = 2, **changes: Any) -> StepLoop:
    """The step loop of the first group of agents."""
    return loop_of(case, game, 0, seeds, tiny(case, game, **changes)).groups[0]


def torch_mlp(mlp: MLP, flat: Tensor, x: Tensor) -> Tensor:
    """Outputs for ``x [B, in]`` of one member with weights ``flat [size]``, by torch's functions for autograd."""
    layers, in_rows = mlp.layers(flat[None]), mlp.products is Rows
    functions = {
        "relu": torch.relu, "tanh": torch.tanh, "identity": lambda v: v, "elu": torch.nn.functional.elu,
        "silu": torch.nn.functional.silu, "leakyrelu": lambda v: torch.nn.functional.leaky_relu(v, 0.01),
        "prelu": lambda v: torch.nn.functional.prelu(v, layers[-1][0].view(1)),
    }  # fmt: skip
    depth = len(mlp.sizes) - 1
    for i, (weight, bias) in enumerate(layers[:depth]):
        x = torch.nn.functional.linear(x, weight[0].T if in_rows else weight[0], bias.flatten())
        x = functions[mlp.activation](x) if i < depth - 1 else x
    return x


def torch_network(network: Any, m: int, activation: nn.Module) -> nn.Sequential:
    """One member of a network as modules of torch."""
    modules: list[nn.Module] = []
    for weight, bias in network.layers():
        linear = nn.Linear(*weight.shape[1:])
        linear.weight.data, linear.bias.data = weight[m].T.detach().clone(), bias[m].detach().clone()
        modules += [linear, activation]
    return nn.Sequential(*modules[:-1])


def seeds_of(members: int, envs: int, first: int = 0) -> Tensor:
    """Different seeds of episodes ``[M, E]``."""
    return torch.arange(first, first + members * envs).view(members, envs)


def place(loop: Any, member: int) -> tuple[Any, int]:
    """The agent of a member, and the row of the member in it."""
    if isinstance(loop, EpisodeLoop):
        return loop.agent, member
    group = next(group for group in loop.groups if member in group.members)
    return group.agent, group.members.tolist().index(member)


def spoil(agent: Any, m: int) -> None:
    """Set the weights and the replay buffer of a member to NaN."""
    rows = [param[m] for param in agent.parameters()]
    if hasattr(agent, "memory"):
        rows += agent.memory.columns[m].values()
    with torch.no_grad():
        for values in rows:
            if values.is_floating_point():
                values.fill_(float("nan"))


def numbers(loop: Any, row: dict[str, Tensor], member: int) -> dict[str, Tensor]:
    """Metrics, weights and step count of a member after an epoch."""
    agent, at = place(loop, member)
    weights = {f"weights {name}": value[at].detach().clone() for name, value in agent.state_dict().items()}
    metrics = {tag: value[member] for tag, value in row.items() if not tag.startswith("time/")}
    return weights | metrics | {"env_steps": loop.env_steps[member]}


# -- whole runs --------------------------------------------------------------------------------------------------------

SMALL_RUN = {
    "gamename": "cartpole", "hidden_sizes": "12,16", "batch_size": 16, "num_grad_steps": 3,
    "num_rand_action_rollouts": 4, "training_rollouts_per_worker": 3, "eval_every": 2, "eval_episodes": 2,
    "checkpoint_every": 2, "epochs": 5,
}  # fmt: skip
SMALL_POLICY_RUN = {
    "implementation": "CPG", "gamename": "cartpole", "hidden_sizes": "12,16", "batch_episodes": 3,
    "running_mean_len": 7, "eval_every": 2, "eval_episodes": 2, "checkpoint_every": 2, "max_episodes": 14,
}  # fmt: skip
SMALL_STEP_RUN = {
    "implementation": "DDQN", "gamename": "cartpole", "hidden_sizes": "12", "batch_size": 9, "buffer_size": 300,
    "steps_per_epoch": 37, "eval_every": 2, "eval_episodes": 2, "checkpoint_every": 2, "epochs": 5,
}  # fmt: skip
SMALL_SEARCH = {
    "implementation": "SE", "gamename": "cartpole", "population": 4, "generations": 3, "inner_steps": 60,
    "hidden_sizes": "8", "batch_size": 8, "proxy_hidden_size": 6, "test_episodes": 2, "test_limit": 30,
    "center_agents": 2, "eval_every": 2, "retest_agents": 2, "report_agents": 3, "seed": 1,
}  # fmt: skip


def flags(logdir: Path, *extra_flags: str, **changes: Any) -> list[str]:
    """The command line of a run of a second."""
    implementation = changes.get("implementation", "UDRL")
    episodes = SMALL_POLICY_RUN if on_policy(implementation) else SMALL_RUN
    small = {"episodes": episodes, "steps": SMALL_STEP_RUN, "evolution": SMALL_SEARCH}
    values = small[family(implementation).learns_from] | {"logdir": logdir} | changes
    return [word for name, value in values.items() for word in (f"--{name}", str(value))] + list(extra_flags)


def lasting(changes: dict[str, Any], epochs: int) -> dict[str, Any]:
    """``changes`` with settings for a number of epochs."""
    if on_policy(changes.get("implementation", "UDRL")):
        return changes | {"max_episodes": epochs * SMALL_POLICY_RUN["batch_episodes"]}
    return changes | {"epochs": epochs}


def yaml_file(folder: Path, text: str) -> str:
    """The path of a new settings file."""
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def run_folder(logdir: Path) -> Path:
    """The newest version of the only run under ``logdir``."""
    return sorted(logdir.glob("*/*/*/*/version_*"), key=lambda path: int(path.name.removeprefix("version_")))[-1]


SEARCHED = (0, 1)  # exit statuses of a search and of an evaluation of its proxy: the verdict on a tiny one is often 1


def trained(logdir: Path, *extra_flags: str, **changes: Any) -> Path:
    """Train with small settings and these changes. Returns the folder of the run."""
    is_search = family(changes.get("implementation", "UDRL")).learns_from == "evolution"
    assert trainer.main(flags(logdir, *extra_flags, **changes)) in (SEARCHED if is_search else (0,))
    return run_folder(logdir)


def learned(folder: Path) -> dict[str, list[float]]:
    """Columns of the metrics except times."""
    return {
        name: column for name, column in read_metrics(folder / "metrics.csv").items() if not name.startswith("time/")
    }


def load_events(folder: Path) -> EventAccumulator:
    """TensorBoard's content of a folder."""
    events = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0, "histograms": 0, "tensors": 0})
    events.Reload()
    return events


def same_runs(first_run: Path, other: Path) -> None:
    """Two runs have equal metrics, checkpoints except settings, and proxies."""
    first_metrics, other_metrics = learned(first_run), learned(other)
    assert first_metrics.keys() == other_metrics.keys() and len(first_metrics["epoch"]) > 0
    np.testing.assert_equal(other_metrics, first_metrics)
    names = sorted(path.name for path in first_run.glob("checkpoints/*.ckpt"))
    assert names and names == sorted(path.name for path in other.glob("checkpoints/*.ckpt"))
    for name in names:
        contents = [torch.load(folder / "checkpoints" / name, weights_only=True) for folder in (first_run, other)]
        settings = ("/understudy/settings/", "/hyper_parameters/")
        assert [path for path in different(*contents) if not path.startswith(settings)] == []
    proxy_files = [folder / "proxy.safetensors" for folder in (first_run, other)]
    assert proxy_files[0].exists() == proxy_files[1].exists()
    if proxy_files[0].exists():
        first_proxy, other_proxy = map(files.load, proxy_files)
        assert torch.equal(first_proxy.parameters, other_proxy.parameters)
        assert first_proxy.description["scores"] == other_proxy.description["scores"]


def different(first: Any, other: Any, path: str = "") -> Iterator[str]:
    """Paths of differences between nested mappings, lists, tensors and values."""
    if isinstance(first, dict) and isinstance(other, dict) and first.keys() == other.keys():
        for key in first:
            yield from different(first[key], other[key], f"{path}/{key}")
    elif isinstance(first, list | tuple) and isinstance(other, list | tuple) and len(first) == len(other):
        for i, (first_item, other_item) in enumerate(zip(first, other, strict=True)):
            yield from different(first_item, other_item, f"{path}/{i}")
    elif isinstance(first, Tensor) and isinstance(other, Tensor):
        if not torch.equal(first.nan_to_num(7e7), other.nan_to_num(7e7)):
            yield path
    elif first != other:
        yield path


def forged(source: Path, path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Write a changed copy of a checkpoint to ``path``."""
    content = torch.load(source, weights_only=True)
    change(content)
    torch.save(content, path)
    return path


def stopped(argv: list[str], logdir: Path, epoch: int) -> dict[str, Any]:
    """A run of the command that dies after ``epoch`` was logged. Returns what its last checkpoint holds beside weights
    and optimisers, which is of an earlier epoch."""
    log = RunLog.on_train_epoch_end

    def dies(self: Any, lightning: Any, module: Any) -> None:
        log(self, lightning, module)
        if module.epoch == epoch:
            module.boards[0].writer.flush()
            raise ArithmeticError

    with pytest.MonkeyPatch.context() as patched, pytest.raises(ArithmeticError):
        patched.setattr(RunLog, "on_train_epoch_end", dies)
        trainer.main(argv)
    state = checkpoints.load(run_folder(logdir) / "checkpoints" / "last.ckpt", resume=True).run_state
    assert state["epoch"] == epoch - 1
    return state


def epochs_of(logdir: Path) -> int:
    """Rows of the only table below a folder, as many as epochs and seeds."""
    files = list(logdir.rglob("metrics.csv"))
    return len(files[-1].read_text().splitlines()) - 1 if files else 0


def start(argv: Sequence[str], code: str = "", **kwargs: Any) -> "subprocess.Popen[str]":
    """Start ``python trainer.py argv``, or ``code`` instead of the script."""
    first = ["-c", code] if code else [str(ROOT / "trainer.py")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    variables = {"cwd": ROOT, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
    return subprocess.Popen([sys.executable, *first, *argv], **(pipes | variables | kwargs))


def completed(words: Sequence[object], folder: Path, statuses: Sequence[int] = (0,), **kwargs: Any) -> str:
    """The output of a program in ``folder``, whose exit status must be one of ``statuses``."""
    limits = {"capture_output": True, "text": True, "timeout": 900} | kwargs
    done = subprocess.run([*map(str, words)], cwd=folder, **limits)
    assert done.returncode in statuses, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def output_of(code: str, *words: object, **kwargs: Any) -> str:
    """What ``code`` prints in another interpreter, which must end with status 0."""
    process = start([*map(str, words)], code, **kwargs)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[str]", seconds: float = 60) -> None:
    """Wait for ``condition``; fails if the process ends first or after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"ended with {process.returncode}: {process.communicate()}"
        assert time.monotonic() < end, "took too long"
        time.sleep(0.005)
