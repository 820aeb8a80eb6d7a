"""The Python interface: `trainer.train`, `load`, `evaluate`, and modules under Lightning's Trainer."""

import copy
import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, WandbLogger
from torch.utils.data import DataLoader, TensorDataset

import trainer
import understudy
from conftest import ROOT
from control.cli.progress import Meter
from control.cli.settings import RunConfig, Settings
from control.commands.run import Run, trained_loop
from control.lightning.agent import AgentModule
from control.lightning.evolution_strategy import EvolutionStrategy
from control.loops.steps import StepGroups
from control.reports.verdict import joint_verdict
from control.storage import checkpoints
from control.storage.checkpoints import CheckpointError
from fake_runs import Shown, refused
from helpers import (
    SMALL_POLICY_RUN,
    SMALL_RUN,
    SMALL_STEP_RUN,
    default_game,
    different,
    flags,
    lasting,
    output_of,
    run_folder,
    same_runs,
    tiny,
    trained,
)  # fmt: skip
from models.registry import family, implementations
from models.settings import SettingError
from models.streams import Streams
from rounding import assert_near

SMALL = {"UDRL": SMALL_RUN | {"hidden_sizes": (12, 16)}, "CPG": SMALL_POLICY_RUN | {"hidden_sizes": (12, 16)},
         "DDQN": SMALL_STEP_RUN | {"hidden_sizes": (12,)}}  # fmt: skip


def lightning(folder: Path, epochs: int, *callbacks: pl.Callback, **settings: Any) -> pl.Trainer:
    return pl.Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=list(callbacks), default_root_dir=folder,
        enable_progress_bar=False, enable_model_summary=False, **({"logger": False} | settings),
    )  # fmt: skip


# -- runs --------------------------------------------------------------------------------------------------------------


def test_train_equals_the_command(logdir: Path, tmp_path: Path, capsys: Shown) -> None:
    run = trainer.train(verbose=False, logdir=tmp_path / "python", **SMALL["UDRL"])
    captured = capsys.readouterr()
    assert captured.out == captured.err == "" and run.finished
    assert trainer.main(flags(logdir)) == 0
    same_runs(run_folder(logdir), run.folder)
    assert run.metrics["epoch"].tolist() == [1, 2, 3, 4, 5] and np.isfinite(run.metrics["eval/return_greedy"][3])
    for sample in (False, True):
        capsys.readouterr()
        words = ["--eval_agent", str(run.folder), "--num_eval_episodes", "7"]
        assert trainer.main([*words, "--evaluation", "sampled" if sample else "greedy"]) == 0
        table = capsys.readouterr().out
        evaluation = trainer.evaluate(run.folder, episodes=7, sample=sample)
        assert evaluation.returns.shape == (1, 7)
        assert f"{evaluation.mean:.1f}" in table and f"{evaluation.std:.1f}" in table


def test_loaded_agent_predicts_and_evaluates(tmp_path: Path) -> None:
    run = trainer.train(verbose=False, logdir=tmp_path, num_seeds=2, **SMALL["DDQN"])
    loaded_run = trainer.load(run.folder / "checkpoints" / "best.ckpt")
    obs = np.array([0.1, -0.2, 0.03, 0.4])
    agent = run.module.agents[0]
    with torch.no_grad():
        best = agent.with_weights(agent.flat_parameters).act(torch.tensor(obs).float().expand(2, 1, 4))[0, 0]
    assert run.predict(obs) == loaded_run.predict(obs) == int(best) and loaded_run.folder == run.folder
    assert run.evaluate(3).returns.shape == (2, 3)
    streams = trained_loop(checkpoints.load(run.folder), run.module.settings, seed=5).evaluation_streams
    first_seeds, second_seeds = streams.episode_seeds(3).tolist()
    assert not {*first_seeds} & {*second_seeds}  # the two agents play different episodes
    with pytest.raises(SettingError, match="sample is True"):
        run.evaluate(3, sample=True)
    for wrong, line in ((obs[1:], r"shape \[3\]; allowed: \[4\]"), (obs[None], r"\[1, 4\]; allowed: \[4\], one")):
        with pytest.raises(SettingError, match=line):
            run.predict(wrong)
    with pytest.raises(SettingError, match="plot is .*; allowed: null, as only the command does that"):
        trainer.train(plot=[run.folder])
    with pytest.raises(SettingError, match="episodes is 0; allowed: integer, at least 1"):
        trainer.evaluate(run.folder, episodes=0)


class Native(gym.Env):
    """Episodes of six steps with random observations of any space. Rewards depend on the parts of the actions."""

    def __init__(self, obs_space: gym.Space, action_space: gym.Space):
        self.observation_space, self.action_space = obs_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in self.action_space
        self.steps += 1
        weights = self.steps + np.arange(np.size(action))
        reward = float(np.ravel(action) @ weights)
        return self.observation_space.sample(), reward, self.steps == 6, False, {}


UNEVEN = Box(np.float32([[-1, 0], [0, -2]]), np.float32([[1, 1], [3, 2]]))
NATIVE_SPACES: dict[str, tuple[gym.Space, gym.Space]] = {
    "vectors": (Box(-1, 1, (2,)), Box(-2, 2, (1,))),
    "start": (Box(-1, 1, (2,)), Discrete(3, start=-1)),
    "cells": (Discrete(4, start=2), MultiBinary((2, 2))),
    "several": (MultiDiscrete([3, 2]), MultiDiscrete([3, 4], start=[1, -2])),
    "dict": (Dict(a=Discrete(2), b=Box(-1, 1, (2, 1))), UNEVEN),
    "tuple": (Tuple([Discrete(3), Box(-1, 1, (1,))]), Box(-5, 5, (2,), np.int16)),
    "matrix": (Box(-1, 1, (2, 2)), Box(-1, 1, (3,), np.float64)),
    "images": (Box(0, 255, (40, 48, 3), np.uint8), Discrete(4, start=2)),
}


def random_run(game: str, folder: Path) -> Run:
    """A run whose agent has random weights, so that its actions depend on the observations."""
    module = trainer.module(implementation="PPO", gamename=game, compiled=False)
    (fitting := lightning(folder, 0)).fit(module)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    fitting.save_checkpoint(folder / "agent.ckpt")
    module.close()
    return trainer.load(folder / "agent.ckpt")


@pytest.mark.parametrize("case", [*NATIVE_SPACES, "cliffwalking"])
def test_player_acts_in_the_environment(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of Gymnasium has the returns of an evaluation from the same seeds."""
    if case == "cliffwalking":  # a tensor program, whose episodes all begin in the same cell
        game, env = case, gym.make("CliffWalking-v1", max_episode_steps=200)
    else:
        game = f"{case.title()}-v0"
        make = lambda: Native(*copy.deepcopy(NATIVE_SPACES[case]))  # noqa: E731
        monkeypatch.setitem(gym.registry, game, gym.envs.registration.EnvSpec(game, make))
        env = gym.make(game)
    run = random_run(game, tmp_path)
    expected = run.evaluate(3, seed=4).returns[0]
    streams = trained_loop(checkpoints.load(run.path), run.module.settings, 4).evaluation_streams
    returns, actions = [], []
    for seed in streams.episode_seeds(3)[0].tolist():
        player, (obs, _), total, over = run.policy(), env.reset(seed=seed), 0.0, False
        assert np.array_equal(run.predict(obs), player.act(obs))
        player = run.policy()
        while not over:
            actions.append(player.act(obs))
            obs, reward, terminated, truncated, _ = env.step(actions[-1])
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    np.testing.assert_allclose(returns, expected, rtol=1e-5, atol=1e-3)  # a batch may be rounded differently
    assert case == "cliffwalking" or len({str(action) for action in actions}) > 1
    agent_obs = torch.zeros(run.module.agents[0].spaces.obs_shape)  # is accepted, too
    assert run.predict(agent_obs) in env.action_space
    with pytest.raises(SettingError, match="observations? .*; allowed: "):
        run.predict({"speed": "fast"})


def test_film_of_an_environment_without_pictures_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = lambda: Native(*NATIVE_SPACES["start"])  # noqa: E731
    monkeypatch.setitem(gym.registry, "Start-v0", gym.envs.registration.EnvSpec("Start-v0", make))
    message = "^Start-v0 cannot be filmed: it takes no render_mode; allowed: environments with render_mode 'rgb_array'$"
    with pytest.raises(SettingError, match=message):
        random_run("Start-v0", tmp_path).film()


@pytest.mark.parametrize(("extra_env", "threads"), [({}, "1"), ({"OMP_NUM_THREADS": "4"}, "4")])
def test_import_loads_no_torch_and_sets_threads(extra_env: dict[str, str], threads: str) -> None:
    code = (
        "import os, sys, trainer; assert 'torch' not in sys.modules and 'pytorch_lightning' not in sys.modules\n"
        f"assert os.environ['OMP_NUM_THREADS'] == '{threads}' and os.environ['MKL_CBWR'] == 'AUTO'"
    )
    base_env = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_CBWR")}
    output_of(code, env=base_env | extra_env)


def test_missing_logger_is_an_error_and_no_logger_is_allowed(
    logdir: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    error = refused(
        trainer.main, flags(logdir, logger="wandb"), "error: the Python module 'wandb' is not installed", capsys
    )
    assert "[loggers]" in error and not [*logdir.rglob("*")]
    names = {path.name for path in trained(logdir, logger="none").iterdir()}
    assert "metrics.csv" in names and not any(name.startswith("events") for name in names)


def test_trackio_gets_the_numbers_of_every_epoch(logdir: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[tuple[dict[str, float], int]] = []
    begun: list[Any] = []

    def init(project: str, name: str, resume: str, embed: bool) -> None:
        begun.append((project, name, resume))

    fake = SimpleNamespace(init=init, log=lambda metrics, step: rows.append((metrics, step)), finish=rows.clear)
    fake.finish = lambda: begun.append(len(rows))
    monkeypatch.setitem(sys.modules, "trackio", fake)
    folder = trained(logdir, implementation="CPG", logger="trackio", exp_name="some")
    metrics = trainer.load(folder).metrics
    assert begun == [("some", "cartpole/some/CPG/seed_25/version_0", "never"), len(metrics["epoch"])]
    assert [step for _, step in rows] == metrics["env_steps"].tolist()
    logged = [row["rollout/return_mean"] for row, _ in rows]
    assert np.allclose(logged, metrics["rollout/return_mean"])
    longer = lasting({"implementation": "CPG", "logger": "trackio", "exp_name": "some"}, 9)
    trained(logdir, "--resume", **longer)
    assert begun[2][2] == "allow"
    monkeypatch.setitem(sys.modules, "trackio", None)
    assert "'trackio' is not installed" in refused(trainer.main, flags(logdir, logger="trackio"), "module", capsys)


# -- Lightning's Trainer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_module_stops_early_and_its_best_checkpoint_loads(name: str, tmp_path: Path) -> None:
    module = trainer.module(**SMALL[name])
    stop = EarlyStopping(monitor="eval/return_greedy", mode="max", patience=0, min_delta=1e9)
    best = ModelCheckpoint(tmp_path, monitor="eval/return_greedy", mode="max")
    fitting = lightning(tmp_path, 5, stop, best, logger=(logger := CSVLogger(tmp_path)))
    fitting.fit(module)
    assert module.epoch == 2  # the first without improvement
    assert float(fitting.callback_metrics["eval/return_greedy"]) == float(module.row["eval/return_greedy"].mean())
    text = Path(logger.log_dir, "metrics.csv").read_text()
    assert "rollout/return_mean" in text and len(text.splitlines()) == 3
    assert module.hparams["implementation"] == name
    loaded = AgentModule.load_from_checkpoint(best.best_model_path)
    weights = torch.load(best.best_model_path, weights_only=True)["state_dict"]
    assert not list(different(dict(loaded.state_dict()), dict(weights)))
    (scores,) = lightning(tmp_path, 1).validate(loaded, verbose=False)
    assert scores.keys() >= {"eval/return_greedy"}
    assert trainer.evaluate(best.best_model_path, episodes=3).returns.shape == (1, 3)


@pytest.mark.parametrize("name", SMALL)
def test_lightnings_checkpoints_resume_exactly(name: str, tmp_path: Path) -> None:
    checkpointer = ModelCheckpoint(tmp_path, filename="{epoch}", monitor="eval/return_greedy", save_top_k=-1)
    full_module = trainer.module(**SMALL[name])
    fitting = lightning(tmp_path, 4, checkpointer)
    fitting.fit(full_module)
    fitting.save_checkpoint(tmp_path / "end.ckpt")
    rest = trainer.module(**SMALL[name])
    lightning(tmp_path / "rest", 4).fit(rest, ckpt_path=tmp_path / "epoch=1.ckpt", weights_only=True)
    assert rest.epoch == full_module.epoch == 4
    assert not list(different(dict(rest.state_dict()), dict(full_module.state_dict())))
    longer = trainer.module(**SMALL[name])
    lightning(tmp_path / "longer", 5).fit(longer, ckpt_path=tmp_path / "end.ckpt", weights_only=True)
    assert longer.epoch == 5 and list(different(dict(longer.state_dict()), dict(full_module.state_dict())))


def test_checkpoint_of_another_agent_is_refused(tmp_path: Path) -> None:
    (fitting := lightning(tmp_path, 1)).fit(trainer.module(**SMALL["UDRL"]))
    fitting.save_checkpoint(tmp_path / "end.ckpt")
    other = trainer.module(**SMALL["DDQN"])
    with pytest.raises(CheckpointError, match="of UDRL on cartpole; allowed for this module: one of DDQN on cartpole"):
        lightning(tmp_path, 2).fit(other, ckpt_path=tmp_path / "end.ckpt", weights_only=True)


FAMILIES = list({family(name).package: name for name in reversed(implementations())}.values())
AGENTS = [name for name in FAMILIES if family(name).learns_from != "evolution"]
SMALL_SEARCH_RUN = {
    "implementation": "SE", "gamename": "cartpole", "proxy": "bandit", "compiled": False, "inner_steps": 200,
    "hidden_sizes": (8,), "batch_size": 8, "test_episodes": 1, "test_limit": 20,
    "center_agents": 1, "eval_every": 1, "initial_draws": 1,
}  # fmt: skip


def module_of(name: str, seeds: int = 1) -> Any:
    """The module of a small run or search."""
    if name not in AGENTS:
        return trainer.module(**SMALL_SEARCH_RUN | {"implementation": name, "proxy": family(name).config().proxy})
    run = RunConfig(implementation=name, gamename=default_game(name), num_seeds=seeds, steps_per_epoch=30, epochs=2,
                    eval_every=1, eval_episodes=4, compiled=False)  # fmt: skip
    return AgentModule(Settings(run, tiny(name, run.gamename)))


@pytest.mark.parametrize("name", AGENTS)
def test_module_acts_tests_and_predicts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test is an evaluation and does not change training; predictions equal the actions of the evaluation."""
    full_module, parted = module_of(name, 2), module_of(name, 2)
    lightning(tmp_path, 2).fit(full_module)
    fitting = lightning(tmp_path, 1)
    fitting.fit(parted)
    evaluation = parted.loop.groups[0].evaluation if isinstance(parted.loop, StepGroups) else parted.loop.evaluation
    evaluation_obs: list[torch.Tensor] = []
    reset = evaluation.reset
    monkeypatch.setattr(evaluation, "reset", lambda *args: (evaluation_obs.append(obs := reset(*args)), obs)[1])
    (scores,) = lightning(tmp_path, 1).test(parted, verbose=False)
    returns = parted.row["eval/return_greedy"]
    assert returns.shape == (2,) and scores["eval/return_greedy"] == pytest.approx(float(returns.mean()))
    assert {tag.partition("/")[0] for tag in scores} == {"eval"}
    obs = evaluation_obs[0][0, :4].clone()
    actions = parted(obs)
    assert torch.equal(actions, parted.loop.actions["greedy"][:4]) and torch.equal(parted(obs[1].numpy()), actions[1])
    batches = lightning(tmp_path, 1).predict(parted, DataLoader(TensorDataset(obs.double()), batch_size=3))
    predicted: Any = torch.cat(batches)  # type: ignore[arg-type]  # of one loader a list of tensors
    assert_near(predicted, actions)  # rows of another batch may be rounded differently
    with pytest.raises(SettingError, match=r"observations have shape \[4, 2\]; allowed: \["):
        parted(torch.zeros(4, 2))
    with pytest.raises(SettingError, match=r"observations are of type tuple, which is no array of numbers; a"):
        parted((obs[0].numpy(), {}))  # the result of reset()
    fitting.fit_loop.max_epochs = 2
    fitting.fit(parted)
    assert not list(different(dict(parted.state_dict()), dict(full_module.state_dict())))


@pytest.mark.parametrize("verbose", [True, False])
def test_module_says_that_it_compiles(
    verbose: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    module = module_of("QLearning")
    module.verbose = verbose
    monkeypatch.setattr(Meter, "_has_announced", False)
    monkeypatch.setattr(module.loop, "compile_ahead", lambda: (Meter.begin_compiling(), Meter.end_compiling()))
    lightning(tmp_path, 1).fit(module)
    assert capsys.readouterr().out.count("compiling machine code") == verbose


def test_proxy_module_steps_and_saves(tmp_path: Path) -> None:
    module = trainer.module(implementation="SE", gamename="cartpole", proxy="mdp", compiled=False)
    module.set_mean(module.first_mean())
    states = module.initial_states([3, 4])
    next_states, rewards, terminated = module(states, torch.tensor([0, 1]))
    program = module.factory.parameters.with_weights(module.mean.detach())
    expected = program.step(states[None], torch.tensor([[0, 1]]))
    assert torch.equal(next_states, expected.next_state[0]) and torch.equal(rewards, expected.reward[0])
    assert terminated.dtype == torch.bool and next_states.shape == states.shape == (2, 4)
    module.save(tmp_path / "proxy.safetensors")
    loaded = understudy.load(tmp_path / "proxy.safetensors").tensors
    tensors = module.factory.parameters.named_tensors(module.mean.detach()[0])
    assert all(np.array_equal(loaded[name], tensor.numpy()) for name, tensor in tensors.items())
    module.close()


def test_reward_module_returns_shaped_rewards() -> None:
    """Mode 2 adds the discounted difference of potentials to the reward."""
    module = trainer.module(implementation="RN", gamename="cliff", agent="QLearning", mode=2, compiled=False)
    module.set_mean(module.factory.parameters.initial(Streams([0]))[0])
    obs, next_obs, reward = torch.eye(48)[:3], torch.eye(48)[1:4], torch.tensor([-1.0, -1.0, 5.0])
    terminated = torch.tensor([False, False, True])
    reward_out = module(obs, next_obs, reward, terminated, discount=0.9)
    phi = module.factory.parameters.with_weights(module.mean.detach())
    potential, next_potential = phi(obs[None])[0], phi(next_obs[None])[0]
    if module.config.rn_terminal == "zero":
        next_potential = next_potential.masked_fill(terminated, 0.0)
    torch.testing.assert_close(reward_out, reward + 0.9 * next_potential - potential)
    module.close()


@pytest.mark.parametrize("name", FAMILIES)
def test_lightnings_callbacks_and_loggers_work_with_every_family(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    loggers: list[Any] = [CSVLogger(tmp_path)]
    if importlib.util.find_spec("wandb"):  # of the extra `loggers`
        loggers.append(WandbLogger(save_dir=tmp_path, offline=True))
    module, rates = module_of(name), LearningRateMonitor()
    search = [] if name in AGENTS else [EvolutionStrategy(seed=1, population=4, noise_std=0.2)]
    saved = ModelCheckpoint(tmp_path, filename="{step}", every_n_epochs=1, save_top_k=-1)
    score = "search/center_return" if search else "eval/return_greedy"
    stop = EarlyStopping(monitor=score, mode="max", patience=5, check_on_train_epoch_end=True)
    fitting = lightning(tmp_path, 2, rates, saved, stop, *search, logger=loggers)
    fitting.fit(module)
    assert fitting.global_step == module.epoch == 2
    assert {path.name for path in tmp_path.glob("*.ckpt")} == {"step=1.ckpt", "step=2.ckpt"}
    assert rates.lrs and stop.best_score >= fitting.callback_metrics[score]
    for callback in search:
        assert callback in fitting.callbacks and len(module.population) == 4
        assert callback.generation == 2 and callback.archive.entries
    module.close()
    tags = fitting.callback_metrics.keys()
    header, *rows = Path(loggers[0].log_dir, "metrics.csv").read_text().splitlines()
    assert len(tags) > 5 and tags <= {*header.split(",")} and len(rows) >= 2
    for logger in loggers[1:]:
        logger.experiment.finish()
        (record,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
        content = record.read_bytes()
        assert all(tag.encode() in content for tag in tags)


# -- the page and its notebook -----------------------------------------------------------------------------------------

PATH_OUTSIDE = r"['\" ]/(home|work|tmp|usr|root)\b"


def code_cells(name: str) -> list[str]:
    """Return the code of a notebook of docs, whose first cell changes the directory."""
    notebook = json.loads((ROOT / "docs" / name).read_text())
    assert notebook["nbformat"] == 4
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    compile(cells[0], "first cell", "exec")
    assert "os.chdir" in cells[0]
    return cells[1:]


def test_notebook_equals_the_page() -> None:
    page = re.split(
        r"^```python\n(.*?)^```\n", (ROOT / "docs" / "python.md").read_text(), flags=re.MULTILINE | re.DOTALL
    )
    assert code_cells("python.ipynb") == [block.rstrip("\n") for block in page[1::2]]
    notebook = (ROOT / "docs" / "python.ipynb").read_text()
    cells = ["".join(cell["source"]) for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "markdown"]
    assert cells == [text.strip("\n") for text in page[::2] if text.strip("\n")]
    outputs = [cell["outputs"] for cell in json.loads(notebook)["cells"] if "print(" in "".join(cell["source"])]
    assert all(outputs[1:]) and not re.search(PATH_OUTSIDE, notebook)


def heat(obs: np.ndarray) -> np.ndarray:
    """Heat the room of the notebook to 21 degrees, from two hours before people come."""
    target = np.clip(2.3 - 1.1 * obs[:, 1] - 6.7 * obs[:, 0], 0, 4) * (obs[:, 3] < 0.2)
    return 1 + np.sign(np.round(target - 4 * obs[:, 2])).astype(int)


@pytest.mark.slow
@pytest.mark.usefixtures("short_stages")
def test_notebook_about_a_task_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown) -> None:
    """A function replaces the teacher, one kind of agents learns, and the outputs in the file name no path outside."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("control.learn.task.Task.learners", ("DDQN",))
    monkeypatch.setattr("models.proxies.fitting._UPDATES", 100)  # clones need not be good
    monkeypatch.setattr("envs.synthetic._DAGGER_UPDATES", 10)
    monkeypatch.setattr(
        "control.learn.agents.joint_verdict", lambda verdicts: joint_verdict(verdicts) | {"passed": True}
    )
    budgets = (
        "{'teacher': 'test_python:heat', 'exam_agents': 2, 'exam_steps': 500, 'race_agents': 1, 'race_steps': 100}"
    )
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in code_cells("your_task.ipynb"):
        if "stable_baselines3" in cell and importlib.util.find_spec("stable_baselines3") is None:
            continue
        cell = cell.replace("agent.learn(10_000)", "agent.learn(400)")
        exec(re.sub(r"^budgets = .*", f"budgets = {budgets}", cell, flags=re.MULTILINE), names)
    printed = capsys.readouterr().out
    assert "DDQN" in printed and len(re.findall(" becomes ", printed)) == 3
    result = names["result"]
    assert result.results["teacher"]["score"]["mean"] > result.results["probe"]["constant"]["mean"]
    assert result._repr_png_()[1:4] == b"PNG"
    assert not re.search(PATH_OUTSIDE, (ROOT / "docs" / "your_task.ipynb").read_text())
