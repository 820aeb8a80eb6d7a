"""Compiled training loops against torch, for every option."""

import dataclasses
import re
import types
from typing import Any

import pytest
import torch
from torch import Tensor

from control.cli import parse
from control.evolution.inner_loop import InnerLoop, train
from control.loops.rollout import play_episodes
from control.loops.steps import StepLoop
from envs.make import make_environment
from models.agents.ddqn.config import Config as DDQN
from models.agents.ppo.config import Config as PPO
from models.agents.sac.config import Config as SAC
from models.agents.tabular.config import Config as Tables
from models.agents.td3.config import Config as TD3
from models.agents.td3_discrete.config import Config as TD3Discrete
from models.intrinsic import Intrinsic
from models.streams import Streams

pytest.importorskip("numba", reason="needs Numba")
from control.loops import compiled  # noqa: E402

pytestmark = pytest.mark.xdist_group("compiled")  # one process compiles

SMALL = "--hidden_sizes 7 --batch_size 5 --lr 0.01"
DDQNS = {
    "relu": "SE --gamename cartpole",
    "leakyrelu, two layers": "SE --gamename cartpole --activation leakyrelu --hidden_sizes 7,7",
    "tanh, three layers": "SE --gamename acrobot --activation tanh --hidden_sizes 7,7,7 --proxy_hidden_layer 2",
    "prelu": "SE --gamename cartpole --activation prelu --proxy_activation_fn prelu",
    "identity": "SE --gamename acrobot --activation identity --proxy_activation_fn tanh --proxy_hidden_size 9",
    "dueling": "SE --gamename acrobot --agent DuelingDDQN --feature_dim 6",
    "dueling, two layers": "RN --gamename cartpole-200 --mode 2 --agent DuelingDDQN --feature_dim 5 --hidden_sizes 7,7",
    "mean over the batch": "SE --gamename cartpole --agent DuelingDDQN --feature_dim 6 --dueling_mean batch",
    "raw done": "SE --gamename cartpole --raw_done --max_steps 20",
    "learned reset": "SE --gamename acrobot --learned_reset --max_steps 15",
    "bandit, ten environments": "SE --gamename cartpole --proxy bandit --fill 20",
    "a bandit with a target": "SE --gamename mountaincar --proxy bandit --fill 20 --reward_form exponential "
    "--first_states table",
    "epsilon by steps": "RN --gamename acrobot --mode 6 --eps_fraction 0.5 --eps_init 0.9 --eps_min 0.1",
    "several updates, small memory": "RN --gamename cartpole-200 --mode 5 --updates_per_step 3 --buffer_size 30",
    "late start": "RN --gamename mountaincar --mode 2 --init_episodes 0 --fill 40 --tau 0.3 --discount 0.7",
    "repeated": "RN --gamename mountaincar --action_repeat 3 --mode 2 --agent DDQN --time_limit 40",
    "potential 0 at the end": "RN --gamename cartpole-200 --mode 2 --rn_terminal zero --rn_output_scale 3",
    "one-hot": "SE --gamename cliff --agent DDQN",
    "linear networks": "SE --gamename cartpole --proxy_hidden_layer 0",
    "a linear reward": "RN --gamename cartpole-200 --mode 2 --proxy_hidden_layer 0",
    "several environments": "RN --gamename cartpole-200 --mode 1 --num_envs 3",
}
# The default initialization would fit a network to the energy for a second.
CAR = (
    "RN --gamename mountaincar-continuous --mode 2 --rn_init torch --agent TD3 "
    "--fill 20 --batch_size 5 --hidden_sizes 7"
)
TD3S = {
    "relu": f"{CAR} --action_repeat 2",
    "tanh, two layers": f"{CAR} --activation tanh --hidden_sizes 7,7 --rn_evolve_scale",
    "leakyrelu, several environments": f"{CAR} --activation leakyrelu --num_envs 2 --updates_per_step 2",
    "prelu, repeated unevenly": f"{CAR} --activation prelu --action_repeat 3 --policy_delay 3 --tau 0.2",
    "identity, on the pendulum": "RN --gamename pendulum --mode 6 --agent TD3 --fill 20 --hidden_sizes 7 "
    "--batch_size 5 --activation identity --policy_std 1 --policy_std_clip 0.3 --action_std 0.7 --discount 0.5",
    **{
        f"a bandit with a target, {form}": f"SE --gamename {game} --agent TD3 --proxy bandit --preset two_stage "
        f"--fill 20 --hidden_sizes 7 --batch_size 5 --reward_form {form} --first_states {states} --buffer_size 50"
        for form, game, states in (("absolute", "pendulum", "table"), ("squared", "mountaincar-continuous", "latent"))
    },
    "one critic": f"{CAR.replace('TD3', 'DDPG')} --action_repeat 2",
    "a learned environment": "SE --gamename pendulum --proxy mdp --agent TD3 --fill 20 --hidden_sizes 7,7 "
    "--batch_size 5 --max_steps 9 --init_episodes 2 --buffer_size 50",
}
# A Gaussian policy with the standard deviation of an untrained network, or at its bounds after some large steps.
SMALL_SAC = "--agent SAC --fill 20 --batch_size 5 --hidden_sizes 7"
SACS = {
    "relu": f"RN --gamename mountaincar-continuous --mode 2 --rn_init torch {SMALL_SAC} --action_repeat 2",
    "tanh, two layers, several environments": f"RN --gamename pendulum --mode 6 {SMALL_SAC} --activation tanh "
    "--hidden_sizes 7,7 --num_envs 2 --updates_per_step 2 --entropy_temperature 0.1 --target_entropy 0.5",
    "a fixed temperature, prelu": f"SE --gamename pendulum --proxy mdp {SMALL_SAC} --max_steps 9 --activation prelu "
    "--tau 0.2 --no_learn_temperature --entropy_temperature 0.3 --init_episodes 2 --buffer_size 50 --discount 0.5",
    "a bandit, clamped": f"SE --gamename pendulum {SMALL_SAC} --proxy bandit --preset two_stage --lr 0.2",
}
SMALL_DISCRETE = "--agent TD3Discrete --fill 20 --batch_size 5 --hidden_sizes 7 --init_episodes 1"
DISCRETE_TD3S = {
    "soft": f"RN --gamename cartpole-200 --mode 2 {SMALL_DISCRETE}",
    "hard, three actions": f"RN --gamename acrobot --mode 6 {SMALL_DISCRETE} --gumbel_softmax_hard --action_std 0.5",
    "annealed, several environments": f"SE --gamename cartpole {SMALL_DISCRETE} --gumbel_temperature annealed "
    "--num_envs 2 --updates_per_step 2 --policy_delay 3 --activation tanh --hidden_sizes 7,7 --buffer_size 50",
    "learned, hard": f"SE --gamename cartpole {SMALL_DISCRETE} --gumbel_temperature learned --gumbel_softmax_hard "
    "--gumbel_softmax_temp 0.7 --max_steps 15 --activation leakyrelu --policy_std 0.5 --policy_std_clip 0.3",
    "learned, one critic": f"SE --gamename acrobot {SMALL_DISCRETE} --proxy bandit --gumbel_temperature learned "
    "--no_twin_critics --tau 0.2 --discount 0.7 --activation prelu",
}
SMALL_PPO = "--agent PPO --hidden_sizes 7 --rollout_steps 20 --batch_size 12 --ppo_epochs 3 --lr 0.01 --ent_coef 0.01"
PPOS = {
    "several environments": f"SE --gamename cartpole --learned_reset --max_steps 10 {SMALL_PPO} --num_envs 2",
    "annealed, clipped values": f"SE --gamename acrobot {SMALL_PPO} --anneal_lr --clip_range_vf 0.1 --activation relu "
    "--hidden_sizes 7,7 --gae_lambda 0.5 --discount 0.8 --adam_eps 1e-3 --vf_coef 2",
    "one minibatch": f"SE --gamename cartpole --proxy bandit {SMALL_PPO} --batch_size 100 --rollout_steps 3 "
    "--max_grad_norm null",
    "A2C": f"RN --gamename cartpole-200 --mode 1 {SMALL_PPO} --rollout_steps 5 --ppo_epochs 1 --no_normalize_advantage",
    "minibatches of one, not orthogonal": f"SE --gamename cartpole {SMALL_PPO} --rollout_steps 13 --no_orthogonal "
    "--max_grad_norm 0.01 --clip_range 0.01 --activation prelu",
    "continuous": f"SE --gamename pendulum --proxy mdp {SMALL_PPO} --action_std 0.5 --max_steps 9",
    "continuous, one environment, real": f"RN --gamename mountaincar-continuous --mode 2 --rn_init torch {SMALL_PPO} "
    "--clip_range 0.05",
    "normalised": f"RN --gamename cartpole-200 --mode 2 {SMALL_PPO} --normalize_obs --normalize_reward --num_envs 3",
    "normalised, scaled": f"SE --gamename pendulum --proxy mdp {SMALL_PPO} --normalize_obs --normalize_reward "
    "--scale_actions --max_steps 9",
}
CLIFF = "RN --gamename cliff --mode 2 --agent"
TABLES = {
    "Q-learning": f"{CLIFF} QLearning",
    "count bonus, drawn": f"{CLIFF} QLearning --count_bonus 0.1 --vary_hp --num_envs 3",
    "random ties": f"{CLIFF} QLearning --random_ties --eps_init 0.5 --eps_decay 0.9 --anneal_lr",
    "SARSA": f"{CLIFF} SARSA --eps_fraction 0.7 --eps_init 1 --eps_min 0.1 --discount 0.7",
    "SARSA, executed": f"{CLIFF} SARSA --backup executed --random_ties --num_envs 2 --init_episodes 1",
    "a time limit as an end": f"{CLIFF} QLearning --truncation_ends --rn_terminal zero",
    "CliffWalking": "RN --gamename cliffwalking --mode 1 --agent QLearning --time_limit 60",
    "a learned environment": "SE --gamename emptyroom33 --agent QLearning --max_steps 7",
}


def loop_of(argv: str, **changes: Any) -> InnerLoop:
    words = argv.split()
    agent = "DDQN" if "--agent" not in words else words[words.index("--agent") + 1]
    small = SMALL.split() if agent.startswith(("DDQN", "Dueling")) else []
    by_episodes = not {"bandit", "--eps_fraction"} & {*words}  # the probability of random actions falls with them
    small += ["--eps_decay", "0.8"] if small and by_episodes else []
    flag_words = [*small, "--implementation", *words]
    limit = flag_words.index("--time_limit") if "--time_limit" in flag_words else None
    if limit is not None:
        changes["test_limit"] = int(flag_words[limit + 1])
        flag_words = flag_words[:limit] + flag_words[limit + 2 :]
    settings = parse.parse(flag_words)
    config = dataclasses.replace(settings.proxy, **changes)
    return InnerLoop(config, settings.run.agent, settings.agent, settings.run.gamename)


def begin_loop(loop: InnerLoop, seeds: list[int], rows: list[int] | None = None) -> StepLoop:
    """Agents on random proxies with short and long episodes."""
    parameters = loop.factory.parameters
    proxies = 2 * loop.factory.initial(Streams(range(3)))
    if getattr(parameters, "has_target", False):  # initially 0
        proxies[:, : parameters.num_searched] += Streams(range(3)).normal(parameters.num_searched)
    return loop.begin(proxies[rows or range(len(seeds))], seeds)


def weights(loop: StepLoop) -> list[Tensor]:
    agent: Any = loop.agent
    parameters = [agent.flat_parameters] + [agent.critics.flat_parameters for _ in [0] if hasattr(agent, "critics")]
    return [tensor.clone() for tensor in parameters]


def train_both(argv: str, steps: int, **changes: Any) -> tuple[StepLoop, StepLoop, Any, Any]:
    """The same agents after training in torch, and in machine code."""
    inner = loop_of(argv, **changes)
    seeds = list(range(3))
    if hasattr(inner.agent_config, "vary_hp") and "batch_size" in vars(inner.agent_config):
        inner.agent_config = dataclasses.replace(inner.agent_config, vary=("lr",))
    old, new = begin_loop(inner, seeds), begin_loop(inner, seeds)
    assert compiled.can_compile(new)
    rule = inner._rule
    steps = -(-steps // old.agent.envs)
    first = train(old, steps, rule(3), inner.config.train_episodes)
    new.machine_code = compiled.CompiledLoop()
    second = train(new, steps, rule(3), inner.config.train_episodes)
    return old, new, first, second


BUDGET: dict[str, Any] = {"train_episodes": None, "inner_rule": "budget"}
# Cases of each kind, steps of training, settings of the search, and tolerance. One block of random numbers is 128 long,
# which the first case of DDQN exceeds, and so do PPO and tables.
COMPARISONS: dict[str, tuple[dict[str, str], int, dict[str, Any], float]] = {
    "DDQN": (DDQNS, 90, BUDGET, 2e-4),
    "TD3": (TD3S, 60, {}, 2e-4),
    "SAC": (SACS, 60, {}, 2e-4),
    "TD3Discrete": (DISCRETE_TD3S, 60, BUDGET, 2e-4),
    "PPO": (PPOS, 130, BUDGET, 5e-4),
    "tables": (TABLES, 700, {}, 0.0),
}


@pytest.mark.parametrize(
    ("kind", "case"), [(kind, case) for kind, (cases, *_) in COMPARISONS.items() for case in cases]
)
def test_machine_code_equals_torch(kind: str, case: str) -> None:
    cases, steps, changes, tolerance = COMPARISONS[kind]
    old, new, first, second = train_both(cases[case], 150 if (kind, case) == ("DDQN", "relu") else steps, **changes)
    tolerance = 2e-5 if kind == "tables" and "learned" in case else tolerance
    for name in ("steps", "episodes", "finite"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert old.steps == new.steps and torch.equal(old.lengths, new.lengths) and torch.equal(old.seeds, new.seeds)
    torch.testing.assert_close(new.obs, old.obs, rtol=1e-4, atol=1e-4 if tolerance else 0)
    for expected, other in zip(weights(old), weights(new), strict=True):
        assert not torch.equal(expected, expected[:1].expand_as(expected))
        torch.testing.assert_close(other, expected, rtol=tolerance, atol=tolerance)
    if kind == "PPO":
        assert old.agent.optimizer.count == new.agent.optimizer.count > 5
        assert old.agent.rollout.position == new.agent.rollout.position
        torch.testing.assert_close(new.loss, old.loss, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("rule", "changes"), [
    ("plateau", {"early_out_num": 2, "early_out_virtual_diff": 0.2}),
    ("tests", {"solved_reward": 10.0, "test_limit": 10, "early_out_num": 1}), ("budget", {"train_episodes": 4}),
])  # fmt: skip
def test_training_stops_at_the_same_step_as_in_torch(rule: str, changes: dict[str, Any]) -> None:
    argv = "SE --gamename cartpole --max_steps 25"
    old, new, first, second = train_both(argv, 400, inner_rule=rule, **changes)
    assert first.steps.unique().numel() > 1 or int(first.steps[0]) < 400
    for name in ("steps", "episodes"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    torch.testing.assert_close(second.policy.flat_parameters, first.policy.flat_parameters, rtol=1e-3, atol=1e-3)


THREADED = [DDQNS["dueling"], DDQNS["bandit, ten environments"], PPOS["A2C"], PPOS["continuous"], TD3S["relu"],
            SACS["relu"], DISCRETE_TD3S["annealed, several environments"], TABLES["SARSA"]]  # fmt: skip


@pytest.mark.parametrize("argv", THREADED)
@pytest.mark.parametrize("rule", ["budget", "train_episodes"])
def test_threads_do_not_change_results(argv: str, rule: str) -> None:
    """With seven threads each member trains alone."""
    leave = 6 if rule == "train_episodes" else None
    inner, seeds = loop_of(argv, inner_steps=200, inner_rule="budget", train_episodes=leave), list(range(7))
    inner.agent_config = dataclasses.replace(inner.agent_config, vary_hp=False)
    results: list[list[Tensor]] = []
    for threads in (1, 3, 7):
        inner.threads = threads
        training = inner.train_to_end(inner.begin(2 * inner.factory.parameters.initial(Streams(seeds)), seeds))
        policy: Any = training.policy
        results.append([policy.flat_parameters, training.steps, training.episodes, inner.test(policy, seeds).returns])
    assert results[0][0].unique().numel() > 20 and len(results[0][1]) == 7
    for other in results[1:]:
        assert all(torch.equal(reference, tensor) for reference, tensor in zip(results[0], other, strict=True))


@pytest.mark.parametrize("argv", [
    DDQNS["relu"], PPOS["several environments"], TD3S["relu"], SACS["relu"], DISCRETE_TD3S["learned, hard"],
])  # fmt: skip
def test_block_boundaries_do_not_change_results(argv: str) -> None:
    inner = loop_of(argv, train_episodes=None, inner_rule="budget")
    first_loop, other = begin_loop(inner, [1, 2]), begin_loop(inner, [1, 2])
    running = torch.ones(2, dtype=torch.bool)
    list(compiled.CompiledLoop().advance(first_loop, 170, running, False))
    for steps in (1, 60, 69, 40):
        list(compiled.CompiledLoop().advance(other, steps, running, True))
    assert torch.equal(weights(first_loop)[0], weights(other)[0]) and torch.equal(first_loop.obs, other.obs)  # type: ignore[arg-type]
    # Torch continues from there.
    first_loop.step(), other.step()
    assert torch.equal(weights(first_loop)[0], weights(other)[0])


BY_VALUES = {"cliff": "QLearning", "pendulum": "TD3", "mountaincar-continuous": "TD3"}
GAMES = ["cartpole", "cartpole,half_length=0.9", "cartpole,physics_spread=2", "acrobot", "mountaincar",
         "mountaincar,action_repeat=3", "cliff"]  # fmt: skip


@pytest.mark.parametrize("game", [*GAMES, "pendulum", "mountaincar-continuous,action_repeat=2"])
@pytest.mark.parametrize("kind", ["by values", "PPO", "by critics"])
def test_play_equals_rollout(game: str, kind: str) -> None:
    by_values = BY_VALUES.get(game.partition(",")[0], "DDQN")
    if kind == "by critics" and by_values == "QLearning":
        pytest.skip("tables are tested by values")
    by_critics = "SAC" if by_values == "TD3" else "TD3Discrete"
    kind, size = {"by values": (by_values, 3), "PPO": ("PPO", 1), "by critics": (by_critics, 3)}[kind]
    argv = f"--implementation RN --gamename {game.partition(',')[0]} --mode 1 --rn_init torch --agent {kind}"
    settings = parse.parse(argv.split())
    inner = InnerLoop(settings.proxy, kind, settings.agent, game)
    seeds = list(range(40))
    agent = inner.agent_class(inner.agent_config, inner.factory.spaces, seeds)
    flat_weights = size * Streams(seeds).normal(agent.flat_parameters.shape[1])
    policy, starts = agent.with_weights(flat_weights), Streams(seeds).episode_seeds(2)
    real = make_environment(game, 40, 2, time_limit=60)
    actual, expected = compiled.CompiledLoop().play(policy, real, starts), play_episodes(policy, real, starts)
    assert actual is not None
    same = (actual.lengths == expected.lengths) & torch.isclose(actual.returns, expected.returns, rtol=1e-4, atol=1e-3)
    assert same.float().mean() > 0.95  # rounding decides between actions that are as good now and then


@pytest.mark.parametrize("argv", [
    DDQNS["bandit, ten environments"], TD3S["relu"], SACS["relu"], DISCRETE_TD3S["soft"], TABLES["count bonus, drawn"],
])  # fmt: skip
def test_tests_inside_compiled_training_equal_tests_between_blocks(argv: str) -> None:
    """Inside the compiled loop, and by `play` between its blocks."""
    inner = loop_of(argv, inner_steps=310, test_every=40, test_episodes=2, test_limit=30, inner_rule="budget")
    inner.agent_config, seeds = dataclasses.replace(inner.agent_config, vary_hp=False), [3, 1, 4]
    outcomes = []
    for make_tests in (compiled.make_tests, lambda *_: (None, None)):
        loop, inner._test_steps = begin_loop(inner, seeds), 0
        inner.compiled = types.SimpleNamespace(**(vars(compiled) | {"make_tests": make_tests}))
        outcomes.append((inner.train_to_end(loop, with_tests=True), inner._test_steps, weights(loop)))
    (first, steps, first_weights), (other, count, other_weights) = outcomes
    assert first.curve.shape == other.curve.shape == (3, 7)
    assert first.curve.unique().numel() > 2 and steps > 60
    torch.testing.assert_close(first.curve, other.curve, rtol=1e-4, atol=1e-3)
    assert steps == count and all(torch.equal(a, b) for a, b in zip(first_weights, other_weights, strict=True))


# Settings that only torch trains with, and settings that become others before the training.
IN_TORCH = {
    "noise_type", "test_noise", "normalize_obs", "normalize_reward", "target_kl", "scale_actions", "conv_channels",
    "vary", "vary_hp", *(field.name for field in dataclasses.fields(Intrinsic)),
}  # fmt: skip
CONFIGS = {"DDQN": DDQN, "TD3": TD3, "SAC": SAC, "TD3Discrete": TD3Discrete, "PPO": PPO, "tables": Tables}


@pytest.mark.parametrize("kind", COMPARISONS)
def test_every_setting_is_covered(kind: str) -> None:
    """A new setting of an algorithm needs machine code and a case in the tables above."""
    covered = set(re.findall(r"--(?:no_)?(\w+)", " ".join(COMPARISONS[kind][0].values()) + SMALL + " --eps_decay"))
    covered |= {"DDQN": {"head"}, "TD3": {"twin_critics"}}.get(kind, set())  # by DuelingDDQN and DDPG
    assert {field.name for field in dataclasses.fields(CONFIGS[kind])} - covered - IN_TORCH == set()


UNSUPPORTED = [f"SE --gamename cartpole {SMALL_PPO} --{flag}" for flag in ("test_noise", "target_kl 0.1")]
UNSUPPORTED += ["RN --gamename cartpole-200 --mode 1 --intrinsic rnd", f"{CAR} --noise_type ornstein-uhlenbeck"]
UNSUPPORTED += ["RN --gamename pendulum --mode 2 --agent SAC --noise_type ornstein-uhlenbeck"]


@pytest.mark.parametrize("argv", UNSUPPORTED)
def test_unsupported_settings_use_torch(argv: str) -> None:
    assert not loop_of(argv).runs_compiled()


def test_each_kind_compiles_once() -> None:
    """Another memory layout of an array would compile for another minute."""
    signatures = compiled._steps.signatures
    kinds = {tuple(signature[at].instance_class for at in (0, 2, 7)) for signature in signatures}
    assert len(signatures) == len(kinds) <= len(compiled.AGENT_MODULES) + 1, kinds


@pytest.mark.parametrize("argv", [DDQNS["relu"], TD3S["relu"]])
def test_kernels_have_internal_linkage(argv: str) -> None:
    """A process uses the first definition it loads of a function of two kernels, and each may round differently."""
    train_both(argv, 10)
    kernels = [entry.library for entry in compiled._steps.overloads.values()]  # type: ignore[attr-defined]
    functions = [entry for code in kernels for entry in code._get_module_for_linking().functions]
    linkage = {entry.name: entry.linkage.name for entry in functions if not entry.is_declaration}
    assert "internal" in linkage.values()
    assert [name for name, entry in linkage.items() if entry != "internal" and "6_steps" not in name] == []
