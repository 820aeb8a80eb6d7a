"""Synthetic environments fitted to transitions of known systems and of real environments."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import pytorch_lightning as pl
import torch

import trainer
import understudy
from control.cli import parse
from control.evolution.inner_loop import InnerLoop
from control.lightning.supervised import record_transitions
from control.storage.run_dir import read_metrics
from envs.make import make_dynamics
from fake_runs import Shown
from helpers import SEARCHED, run_folder, same_runs
from models.proxies import files
from models.proxies.supervised import Fit, Transitions
from models.proxies.synthetic.config import Config
from models.proxies.synthetic.networks import Networks
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams

pytestmark = pytest.mark.xdist_group("supervised")  # one process fits the proxy
SMALL = {
    "implementation": "SE", "gamename": "cartpole", "preset": "supervised", "transitions": 300, "fit_updates": 60,
    "transitions_from": "random", "report_agents": 2, "inner_steps": 60, "compiled": False,
}  # fmt: skip
MATRIX = torch.tensor([[0.9, 0.2], [-0.3, 1.1]])
PUSH = torch.tensor([[0.5, -1.0], [0.0, 2.0], [-0.7, 0.1]])  # of each action


def system(count: int, seed: int) -> Transitions:
    """A linear system at scales far from 1, which ends if its first number exceeds 3/4 standard deviations."""
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(count, 2, generator=generator) * torch.tensor([30.0, 0.02]) + torch.tensor([100.0, 5.0])
    action = torch.randint(3, (count,), generator=generator)
    next_obs = obs @ MATRIX.T + PUSH[action]
    return Transitions(obs, action, 2 * obs[:, 0] - action, next_obs, (obs[:, 0] > 122.5).float())


def fit_to(rows: Transitions, spaces: Spaces, updates: int, **changes: Any) -> tuple[Fit, torch.Tensor]:
    networks = Networks(Config(preset="supervised", **changes), spaces)
    fit, flat = Fit(networks, rows), torch.nn.Parameter(networks.initial(Streams([0])))
    optimizer = torch.optim.Adam([flat])
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = 0.02 * (1 - update / updates)
        _, flat.grad = fit.losses(flat.detach(), rows)
        optimizer.step()
    return fit, flat.detach()


def linear(**changes: Any) -> tuple[Fit, torch.Tensor]:
    return fit_to(system(400, 0), Spaces((2,), Discrete(3)), 800, **changes)


def test_linear_system_is_recovered() -> None:
    fit, flat = linear(proxy_hidden_layer=0)
    flat, rows = fit.convert_to_raw_units(flat), system(500, 1)
    out = fit.networks.with_weights(flat).step(rows.obs[None], rows.action[None])
    assert (out.next_state[0] - rows.next_obs).abs().max() < 0.02  # of numbers around 100
    assert (out.reward[0] - rows.reward).abs().max() < 0.02
    errors = fit.errors(flat, rows)
    assert errors["obs_loss"] < 1e-6 and errors["rollout_error"] < 0.01
    assert errors["ends_missed"] < 0.05 and errors["ends_false"] < 0.02 and 0.15 < rows.terminated.mean() < 0.35


@pytest.mark.parametrize("activation", ["relu", "tanh", "prelu"])
def test_scales_are_folded_into_the_layers(activation: str) -> None:
    rows = system(200, 0)
    fit, flat = fit_to(rows, Spaces((2,), Discrete(3)), 5, proxy_activation_fn=activation, proxy_hidden_layer=2)
    x, parts = fit.input_scale.standardise(fit.inputs(rows)).T[None], fit.networks.mlps
    state, done = (
        parts[n].forward(parts[n].layers(fit.networks.split(flat)[n]), x)[-1][0].T for n in ("state", "done")
    )
    out = fit.networks.with_weights(fit.convert_to_raw_units(flat)).step(rows.obs[None], rows.action[None])
    center, spread = fit.output_scales["state"]
    torch.testing.assert_close(out.next_state[0], state * spread + center, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(out.done.T, done + 0.5, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("activation", ["relu", "leakyrelu", "tanh", "prelu", "identity"])
def test_gradient_equals_finite_differences(activation: str) -> None:
    rows = system(30, 0)
    fit, flat = fit_to(rows, Spaces((2,), Discrete(3)), 2, proxy_activation_fn=activation, proxy_hidden_size=5)
    losses, gradient = fit.losses(flat, rows)
    direction = torch.randn(flat.shape, generator=torch.Generator().manual_seed(1))
    # No unit switches within these steps; rounding of losses near 1 costs some 1e-7 / 6e-4 of the difference.
    ahead, behind = (fit.losses(flat + step * direction, rows)[0].double().sum() for step in (3e-4, -3e-4))
    assert float(ahead - behind) / 6e-4 == pytest.approx(float((gradient * direction).sum()), rel=0.01, abs=1e-3)
    assert losses.shape == (3,)


def test_constant_targets_give_constant_outputs() -> None:
    rows = system(200, 0)
    rows = Transitions(rows.obs, rows.action, torch.full((200,), 0.1), rows.next_obs, torch.zeros(200))
    fit, flat = fit_to(rows, Spaces((2,), Discrete(3)), 3)
    out = fit.networks.with_weights(fit.convert_to_raw_units(flat)).step(
        1e3 * torch.randn(1, 50, 2), torch.zeros(1, 50, dtype=torch.int64)
    )
    assert out.reward.sub(0.1).abs().max() < 1e-6 and out.done.max() <= 0.5


def test_held_out_rows_are_whole_pieces_of_episodes() -> None:
    obs = torch.arange(130.0)[:, None]
    next_obs, terminated = obs + 1, torch.zeros(130)
    next_obs[19], terminated[69] = -1.0, 1.0  # a time limit, and an end
    rows = Transitions(obs, torch.zeros(130, dtype=torch.int64), terminated, next_obs, terminated)
    assert rows.piece_starts().tolist() == [0, 20, 70, 120]
    learned, held_out = (part.obs[:, 0].int().tolist() for part in rows.split(0.25, Streams([0])))
    assert sorted([*learned, *held_out]) == [*range(130)]
    assert held_out in [[*range(a, b)] for a, b in ((0, 20), (20, 70), (70, 120), (120, 130))]


def test_rollout_errors_by_hand() -> None:
    obs = 0.4 * torch.arange(21.0)[:, None]
    rows = Transitions(obs[:20], torch.zeros(20, dtype=torch.int64), torch.ones(20), obs[1:], torch.eye(20)[7])
    fit, flat = fit_to(rows, Spaces((1,), Discrete(2)), 0, proxy_hidden_layer=0)
    flat.zero_()
    named_weights = fit.networks.named_tensors(flat[0])
    named_weights["state.0.weight"][0, 2], named_weights["state.0.bias"][0] = 1.0, 0.5
    named_weights["reward.0.bias"][0] = 1.0
    errors, spread = fit.errors(flat, rows), float(obs[1:].std(correction=0))
    # Each step is 0.1 too far and never ends. The pieces are the 8 steps up to the end, and the 12 after it.
    assert errors["obs_loss"] == pytest.approx((0.1 / spread) ** 2, rel=1e-4) and errors["reward_loss"] == 0
    assert errors["rollout_error"] == pytest.approx(0.8 / spread, rel=1e-4)  # the lower median
    assert (errors["ends_missed"], errors["ends_false"], errors["rollout_ends"]) == (1, 0, 0.5)
    named_weights["done.0.bias"][0] = 0.6
    errors = fit.errors(flat, rows)
    assert (errors["ends_missed"], errors["ends_false"], errors["rollout_ends"]) == (0, 1, 1)
    # -log sigmoid(0.1) at the end, -log sigmoid(-0.1) at 19 others
    expected_loss = (np.log1p(np.exp(-0.1)) + 19 * np.log1p(np.exp(0.1))) / 20
    assert errors["termination_loss"] == pytest.approx(expected_loss, rel=1e-5)


@pytest.mark.parametrize(
    ("source", "game", "agent"),
    [
        ("random", "cartpole", "DDQN"), ("agents", "cartpole", "DDQN"), ("agents", "pendulum", "TD3"),
        ("random", "gymnasium.envs.classic_control:MountainCar-v0", "DDQN"),
    ],
)  # fmt: skip
def test_transitions_follow_the_environment(source: str, game: str, agent: str) -> None:
    words = ["--implementation", "SE", "--gamename", game, "--agent", agent, "--preset", "supervised"]
    words += ["--transitions", "300", "--transitions_from", source, "--compiled", "false"]
    settings = parse.parse(words)
    rows = record_transitions(InnerLoop(settings.proxy, agent, settings.agent, game), 0)
    assert len(rows.obs) == 300
    dynamics = make_dynamics(game.rpartition(":")[2].partition("-")[0].lower())
    assert dynamics is not None
    if game == "pendulum":  # which shows the angle's cosine and sine
        state = torch.stack([torch.atan2(rows.obs[:, 1], rows.obs[:, 0]), rows.obs[:, 2]], 1)
    else:
        state = rows.obs
    state, reward, terminated, _ = dynamics.step(state[None].double(), rows.action[None])
    torch.testing.assert_close(dynamics.observe(state)[0].float(), rows.next_obs, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(reward[0].float(), rows.reward, rtol=1e-3, atol=1e-3)
    assert (terminated[0].float() == rows.terminated).float().mean() > 0.99  # rounding at a bound
    assert len(rows.piece_starts()) > 4 and 0.2 < rows.action.double().std() < 3
    second_rows = record_transitions(InnerLoop(settings.proxy, agent, settings.agent, game), 0)
    assert torch.equal(rows.next_obs, second_rows.next_obs)


def run(logdir: Path, *callbacks: pl.Callback, **changes: Any) -> Path:
    trainer.train(**SMALL | {"logdir": str(logdir)} | changes, verbose=False, callbacks=callbacks)
    return run_folder(logdir)


FITS: list[Path] = []


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fit by the settings of ``SMALL``, made once, in a test, where figures are blank."""
    if not FITS:
        FITS.append(run(tmp_path_factory.mktemp("fit")))
    return FITS[0]


def test_files_of_a_fit_hold_the_environment_and_its_errors(folder: Path) -> None:
    proxy = files.load(folder)
    env = gymnasium.make("understudy/Synthetic-v0", proxy=str(folder))
    env.reset(seed=3)
    assert env.step(1)[1] == pytest.approx(1.0)
    fit = proxy.description["scores"]["fit"]
    assert fit["transitions"] == 300 and fit["transitions_from"] == "random" and fit["gradient_steps"] == 60
    names = {"population", "noise_std", "step_size", "strategy", "second_phase", "center_agents"}
    assert not names & {*understudy.load(folder).config, *proxy.description["settings"]}
    table = read_metrics(folder / "metrics.csv")
    assert table["model/heldout_obs_loss"][-1] == pytest.approx(fit["held_out"]["obs_loss"])
    assert (folder / "curve.png").exists()


@pytest.mark.slow
def test_resumed_fit_equals_uninterrupted(folder: Path, tmp_path: Path) -> None:
    class Stop(pl.Callback):
        def on_train_epoch_end(self, lightning: pl.Trainer, module: pl.LightningModule) -> None:
            lightning.should_stop = lightning.current_epoch == 6

    cut = run(tmp_path, Stop())
    assert len(read_metrics(cut / "metrics.csv")["epoch"]) == 7
    same_runs(folder, run(tmp_path, resume=True))


def test_agents_and_searches_use_the_fit(folder: Path, tmp_path: Path, capsys: Shown) -> None:
    assert trainer.main(["--eval_agent", str(folder), "--num_agents", "2"]) in SEARCHED
    assert "synthetic" in capsys.readouterr().out
    search = {"implementation": "SE", "gamename": "cartpole", "generations": 1, "population": 2, "center_agents": 1}
    search |= {"report_agents": 1, "retest_agents": 1, "inner_steps": 20, "compiled": False, "step_size": 1e-9}
    trainer.train(**search, start_from=str(folder), logdir=str(tmp_path), verbose=False)
    proxy = files.load(run_folder(tmp_path))
    torch.testing.assert_close(proxy.parameters, files.load(folder).parameters, rtol=0, atol=1e-6)


def test_continuous_actions_are_inputs() -> None:
    generator = torch.Generator().manual_seed(0)
    obs, action = torch.randn(300, 2, generator=generator), 3 * torch.randn(300, 2, generator=generator)
    rows = Transitions(obs, action, action[:, 0], obs - action, torch.zeros(300))
    fit, flat = fit_to(rows, Spaces((2,), Continuous((-9.0, -9.0), (9.0, 9.0))), 400, proxy_hidden_layer=0)
    out = fit.networks.with_weights(fit.convert_to_raw_units(flat)).step(obs[None], action[None])
    torch.testing.assert_close(out.next_state[0], rows.next_obs, rtol=0, atol=1e-2)
