"""Training on a device that nobody waits for: the same numbers as step by step, no look at a number within a block, no
tensor elsewhere, and steps that are the same operations on the same memory. Nothing here needs a GPU."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import trainer
from control.evolution.inner_loop import InnerLoop
from control.lightning import population
from control.loops import memory
from control.loops.device import LOOK, DeviceLoop, Program
from control.loops.steps import StepLoop
from envs.make import make_dynamics, stages_of
from envs.names import GAMES
from fake_runs import Shown, refused
from models.agents.ddqn.agent import Agent
from models.agents.ddqn.config import Config
from models.hashed import HashedStreams
from models.proxies.reward.config import Config as Reward
from models.proxies.synthetic.config import Config as Synthetic
from models.streams import Streams

CPU, CUDA = torch.device("cpu"), torch.device("lazy", 0)
NOT_QUITE = torch.device("cpu", 0)  # the CPU, but taken for another device
AGENT = Config(hidden_sizes=(8,), batch_size=5, lr=1e-2, eps_decay=0.8, init_episodes=1, buffer_size=30)
SYNTHETIC = Synthetic(proxy_hidden_size=7, max_steps=9)
WORLDS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "mdp": (SYNTHETIC, "cartpole", {}),
    "mdp of three layers": (dataclasses.replace(SYNTHETIC, proxy_hidden_layer=2, raw_done=True), "acrobot", {}),
    "learned starts": (dataclasses.replace(SYNTHETIC, learned_reset=True), "cartpole", {"num_envs": 3, "fill": 9}),
    "bandit": (dataclasses.replace(SYNTHETIC, proxy="bandit"), "cartpole", {"num_envs": 2, "updates_per_step": 2}),
    "cells": (SYNTHETIC, "emptyroom33", {"head": "dueling", "eps_fraction": 0.5}),
    "reward": (Reward(mode=1, test_limit=12), "cartpole-200", {"activation": "tanh"}),
    "reward of cells": (Reward(mode=2, test_limit=12), "emptyroom33", {"intrinsic": "icm", "icm_hidden_size": 6}),
    "reward and novelty": (Reward(mode=5, test_limit=12), "acrobot", {"intrinsic": "rnd", "rnd_hidden_size": 6}),
}


def loop_of(world: str, kind: Any = DeviceLoop, members: int = 4, device: torch.device = CPU, **how: Any) -> Any:
    """Members at the beginning of a training of 40 steps on random proxies."""
    config, game, changes = WORLDS[world]
    stages, seeds = stages_of(config, game), list(range(members))
    agent = Agent(dataclasses.replace(AGENT, **changes), stages.spaces, seeds, device)
    agent.budget = 40 * agent.envs
    flat = 2 * stages.parameters.initial(Streams(seeds))
    streams = Streams.named(seeds, "episodes") if device == CPU else HashedStreams(seeds, device)
    return kind(agent, stages.stage(flat, agent), streams, **how)


def tensors(loop: Any) -> dict[str, Tensor]:
    """All that moves."""
    agent = loop.agent
    found = {"online": agent.online, "target": agent.target, "episodes": agent.episodes, "obs": loop.obs}
    found |= {"returns": loop.returns, "lengths": loop.lengths, "loss": loop.loss, "seeds": loop.seeds}
    if agent.curiosity is not None:
        found |= agent.curiosity.tensors()
    return found | agent.optimizer.state_dict() | agent.replay.rows()


@pytest.mark.parametrize("world", WORLDS)
def test_the_numbers_are_those_of_step_by_step(world: str) -> None:
    """Over a replay buffer that is full in the end, and the same rows of an epoch."""
    device, plain = loop_of(world), loop_of(world, StepLoop)
    for steps in (23, 3, 14):
        ours, theirs = device.epoch(steps), plain.epoch(steps)
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, equal_nan=True, rtol=1e-5, atol=1e-6)
    assert device.agent.replay.size == 30 and bool((device.agent.optimizer.count > 9).all())
    found = tensors(device)
    for name, value in tensors(plain).items():
        torch.testing.assert_close(found[name], value, equal_nan=True, rtol=1e-4, atol=1e-5)
    assert device.steps == plain.steps == device.agent.steps == 40


class Refusing(TorchDispatchMode):
    """Refuses to give a number to the host, shapes that depend on numbers, and tensors of two devices."""

    UNSTEADY = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "item", "unique", "_unique2", "equal")

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        assert name not in self.UNSTEADY, function
        if name in ("index", "index_put", "index_put_"):
            assert all(each is None or each.dtype not in (torch.bool, torch.uint8) for each in args[1]), function
        found = function(*args, **(kwargs or {}))
        devices = {
            each.device for each in tree_leaves((args, kwargs, found)) if isinstance(each, Tensor) and each.dim()
        }
        assert len(devices) <= 1, (function, devices)
        return found


@pytest.mark.parametrize("world", WORLDS)
def test_a_step_looks_at_no_number(world: str) -> None:
    loop = loop_of(world)
    list(loop.blocks(2))
    loop._program.at.zero_()
    with Refusing():
        for _ in range(2):
            loop._program.step()
    with pytest.raises(AssertionError), Refusing():
        bool(loop.obs.any())


@pytest.mark.parametrize("world", WORLDS)
def test_a_block_stays_on_the_device(world: str) -> None:
    """On tensors without contents, of a GPU that need not be there: they refuse to be looked at, and to meet others."""
    loop_of(world).epoch(3)  # what a process makes once for all is made here, with contents for those that come after
    with FakeTensorMode(allow_non_fake_inputs=True):
        loop = loop_of(world, device=CUDA, captures=False)
        loop.obs = loop._start(None)
        with Refusing():
            loop._program = Program(loop)
            for count in (2, 1):
                assert loop._program.block(count) == count
        moving = tensors(loop).values()
        assert {each.device for each in moving} == {CUDA} and loop.agent.steps == loop.steps == 3


RULES: list[dict[str, Any]] = [
    {"inner_rule": "plateau", "early_out_num": 2, "early_out_virtual_diff": 0.3},
    {"inner_rule": "tests", "solved_reward": 9.5, "early_out_num": 1},
    {"train_episodes": 30},
    {"test_every": 50},
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_member_alone_is_itself_in_company(rule: dict[str, Any]) -> None:
    """To the bit, though members leave at different times; a rule is asked after each block, and by tests too."""
    config = dataclasses.replace(SYNTHETIC, inner_steps=100, test_episodes=2, test_limit=30, **rule)
    loop, seeds = InnerLoop(config, "DDQN", AGENT, "cartpole", device=NOT_QUITE), list(range(6))
    proxies = 2 * loop.stages.parameters.initial(Streams(seeds))
    whole = loop.run(proxies, seeds)
    left = whole.steps[whole.steps < 100]
    assert rule == {"test_every": 50} or len(left) > 1 and bool((left % LOOK == 0).all())
    for rows in ([0], [1, 4]):
        part = loop.run(proxies[rows], rows)
        for name in ("returns", "steps", "episodes", "curve"):
            assert torch.equal(getattr(part, name), getattr(whole, name)[rows]), name


def test_goes_on_from_its_state() -> None:
    whole, half, rest = (loop_of("mdp") for _ in range(3))
    whole.epoch(40)
    half.epoch(21)
    rest.load_state_dict(half.state_dict())
    with torch.no_grad():
        rest.agent.online.copy_(half.agent.online)
        rest.agent.target.copy_(half.agent.target)
    rest.epoch(19)
    found = tensors(rest)
    for name, value in tensors(whole).items():
        assert torch.equal(found[name].nan_to_num(), value.nan_to_num()), name


@pytest.mark.xdist_group("compiled")  # which tests are in, on the processor
@pytest.mark.parametrize("argv", ["SE --gamename cartpole", "RN --gamename cartpole-200 --mode 1 --test_every 20"])
def test_a_search_on_another_device(argv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(memory, "available_memory", lambda accelerator: 10**10 if accelerator == "gpu" else 1)
    monkeypatch.setattr(population, "device_of", lambda run: NOT_QUITE if run.accelerator == "gpu" else CPU)
    tiny = "--population 2 --generations 2 --inner_steps 40 --test_episodes 1 --test_limit 9 --proxy_hidden_size 5"
    few = "--center_agents 1 --keep_best 1 --retest_agents 1 --report_agents 1 --deploy_steps 40 --hidden_sizes 6 "
    few += "--batch_size 4"
    words = ["--implementation", *argv.split(), *tiny.split(), *few.split(), "--accelerator", "gpu"]
    words += ["--logdir", str(tmp_path), "--logger", "none", "--no_vary_hp"]
    refused(trainer.main, [*words, "--num_workers", "2"], "num_workers is 2; allowed with accelerator 'gpu': 1", capsys)
    assert trainer.main(words) == 0 and list(tmp_path.rglob("proxy.safetensors"))
    more = [*words, "--generations", "3", "--resume", "--accelerator", "cpu"]
    refused(trainer.main, more, "accelerator is 'cpu', but the run to resume has 'gpu'", capsys)


class Recorded(TorchDispatchMode):
    """Writes down operations with the tensors they read and wrote, as a CUDA graph does with their memory."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, found))
        return found

    @torch.no_grad()
    def replay(self) -> None:
        """All of them again, with no line of Python between."""
        for function, args, kwargs, before in self.calls:
            for old, new in zip(tree_leaves(before), tree_leaves(function(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@pytest.mark.parametrize("world", WORLDS)
def test_a_step_that_was_written_down_is_every_other_step(world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a CUDA graph needs: steps are the same operations on the same memory, whatever happens in them."""
    plain, replayed = loop_of(world), loop_of(world)
    list(plain.blocks(40))
    list(replayed.blocks(7))
    program = replayed._program

    def run() -> None:
        if program.graph is None:
            with Recorded() as program.graph:
                program.step()
        else:
            program.graph.replay()

    monkeypatch.setattr(program, "_run", run)
    list(replayed.blocks(33))
    found = tensors(replayed)
    for name, value in tensors(plain).items():
        assert torch.equal(found[name].nan_to_num(), value.nan_to_num()), name


@pytest.mark.parametrize("name", [name for name, game in GAMES.items() if game.dynamics])
def test_every_tensor_program_can_be_played_on_another_device(name: str) -> None:
    dynamics = make_dynamics(name)
    assert dynamics is not None
    start = dynamics.initial(torch.zeros(3, 2, dtype=torch.int64))
    with FakeTensorMode(allow_non_fake_inputs=True):
        moved = dynamics.to(CUDA)
        state = torch.zeros(start.shape, dtype=start.dtype, device=CUDA)
        actions = torch.zeros(3, 2, dtype=torch.int64, device=CUDA)
        if not hasattr(dynamics.spaces.actions, "n"):
            actions = torch.zeros(3, 2, dynamics.spaces.actions.size, device=CUDA)
        with Refusing():
            step = moved.step(state, actions)
        assert {each.device for each in (moved.observe(step[0]), *step[:3])} == {CUDA}


def test_hashed_streams_are_uniform_and_go_on_from_their_state() -> None:
    streams = HashedStreams([5, 6], CPU)
    drawn, whole = streams.uniform(50, 400), streams.integers(7, 20_000)
    assert drawn.shape == (2, 50, 400) and drawn.dtype == torch.float32 and 0 <= drawn.min() and drawn.max() < 1
    assert (drawn.mean((1, 2)) - 0.5).abs().max() < 0.01 and (drawn.var((1, 2)) - 1 / 12).abs().max() < 0.003
    assert abs(float(torch.corrcoef(drawn.flatten(1))[0, 1])) < 0.03
    assert (torch.bincount(whole.flatten(), minlength=7) / whole.numel() - 1 / 7).abs().max() < 0.01
    state = streams.get_state()
    then = streams.uniform(9)
    again = HashedStreams([1, 2], CPU)
    again.set_state(state)
    assert torch.equal(again.uniform(9), then)
    alone = HashedStreams([6], CPU)
    assert torch.equal(alone.uniform(50, 400)[0], drawn[1])
    streams.select([1])
    assert len(streams) == 1 and streams.get_state()[0].tolist() == [6, 40_009]
