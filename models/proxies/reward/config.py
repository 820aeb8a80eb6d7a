"""Settings of reward networks. Settings of the search are in `models.proxies.search`. Imports no torch.

Source: [F] Ferreira et al. 2022, "Learning Synthetic Environments and Reward Networks for Reinforcement Learning",
arXiv 2202.02790, and its public code. Other values were tuned in this project: docs/reward_networks.md.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.family import Family, reasons_by_setting
from models.proxies import search
from models.proxies.search import NetworkConfig, SearchConfig
from models.settings import choice_error, setting

_reward = functools.partial(setting, section="reward network")
PRESETS = ("recipe", "cheap", "paper", "teacher")


@dataclass(frozen=True)
class Reward:
    """Settings of a reward network phi. r is the task's reward; x and x' are the states before and after a step."""

    proxy: str = _reward("reward", "the kind of proxy", choices=("reward",), chooses=True, identity=True, tunable=False)
    mode: int = _reward(
        2,
        "the agent's reward [F]. 0: r; 1: g phi(x') - phi(x), g the agent's discount; 2: r + the same; 5: phi(x'); "
        "6: r + the same; 3, 4, 7, 8: as 1, 2, 5, 6, phi also of the numbers in the step's info; 101: w * info; "
        "102: r + the same. Names such as additive_potential work too; -1 or icm trains the agent without a network",
        choices=(0, 1, 2, 3, 4, 5, 6, 7, 8, 101, 102),  # `understudy.kinds.MODES`, which is slow to import
        chooses=True,
        identity=True,
    )
    preset: str = _reward(
        "recipe",
        "recipe: tuned in this project; cheap: an eighth of its steps; paper: the published loop and objective [F]; "
        "teacher: no search, a potential from the returns of the policy of --start_from",
        choices=PRESETS,
        chooses=True,
        tunable=False,
    )
    rn_init: str = _reward(
        "torch",
        "first phi: torch: like torch.nn.Linear [F]; terminal: fitted to 5 at good ends of episodes, -5 at bad "
        "ends, 0 elsewhere; real: fitted to the real reward of entering a state; hand: fitted to a potential made "
        "by hand",
        choices=("torch", "terminal", "real", "hand"),
    )
    rn_output_scale: float = _reward(1.0, "factor on the network's output")
    rn_output: str = _reward(
        "linear",
        "phi as a function of that product y: y itself, or symexp: sign(y) (exp |y| - 1), |y| clipped at 30, as in "
        "DreamerV3, so that phi may differ by factors between states",
        choices=("linear", "symexp"),
        later=True,
    )
    rn_evolve_scale: bool = _reward(
        False, "the search also changes the logarithm of that factor, and starts from the factor of start_from"
    )
    rn_terminal: str = _reward(
        "free",
        "phi of a terminal state: the network's output (free [F]), or 0 (zero), which keeps the best policies of "
        "the real reward (Ng, Harada & Russell 1999) but teaches less",
        choices=("free", "zero"),
    )
    rn_discount: float = _reward(
        0.99,
        "discount of the returns of a policy in start_from, from which the first phi is made; agents have another",
        minimum=0,
        maximum=1,
        later=True,
    )
    rn_episodes: int = _reward(
        768, "episodes of that policy, the last tenth of them to test phi", minimum=10, maximum=1_000_000, later=True
    )
    rn_input_center: tuple[float, ...] = _reward(
        (), "subtracted from each number of an observation", allow_empty=True, max_items=512
    )
    rn_input_spread: tuple[float, ...] = _reward(
        (), "divisor of each number of an observation, after the subtraction", allow_empty=True, max_items=512, above=0
    )


@dataclass(frozen=True)
class Config(SearchConfig, NetworkConfig, Reward):
    """A population of reward networks, and the search in which it trains and tests fresh agents."""


_RECIPE: dict[str, object] = {
    "proxy_activation_fn": "prelu", "proxy_hidden_size": 64, "objective": "average", "keep_best": 4,
    "retest_agents": 64, "retest_drawn": False, "choose_by": "stays", "eval_every": 10,
}  # fmt: skip
_PAPER: dict[str, object] = {
    "proxy_activation_fn": "prelu", "proxy_hidden_size": 64, "objective": "threshold", "inner_rule": "tests",
    "strategy": "nes", "population": 32, "noise_std": 0.1, "step_size": 0.5, "score_transform": 3, "generations": 50,
    "common_random_numbers": False, "train_episodes": 100, "inner_steps": 1_000_000, "test_episodes": 1,
    "center_agents": 16, "eval_every": 1, "keep_best": 1, "retest_drawn": False,
}  # fmt: skip
_TEACHER: dict[str, object] = {
    "proxy_activation_fn": "tanh", "proxy_hidden_size": 128, "proxy_hidden_layer": 2, "rn_terminal": "zero",
    # One generation, with a negligible step, scores the reward.
    "population": 2, "generations": 1, "step_size": 1e-9, "inner_steps": 65_536, "center_agents": 4,
    "report_agents": 16, "test_every": 8192, "objective": "average",
}  # fmt: skip
# A potential from returns already contains later rewards, so advantages need fewer of them. PPO has the same discount
# as the potential, so the best policies remain the best; with a smaller one, landers hover. The small learning rate of
# tables averages over random events.
_LEARN_FROM_RETURNS: dict[str, dict[str, object]] = {
    "PPO": {
        "num_envs": 4, "rollout_steps": 512, "batch_size": 64, "ppo_epochs": 10, "lr": 5e-4, "anneal_lr": True,
        "discount": 0.995, "gae_lambda": 0.95, "ent_coef": 0.01, "rn_discount": 0.995,
    },
    "A2C": {"discount": 0.95, "gae_lambda": 0.9},
    "QLearning": {"lr": 0.2, "discount": 0.99}, "SARSA": {"lr": 0.2, "discount": 0.99},
}  # fmt: skip
_TABULAR: dict[str, object] = {"QLearning_lr": 1.0, "discount": 0.8, "eps_init": 0.1, "eps_min": 0.1, "eps_decay": 1.0}
_Q: dict[str, object] = {  # the agents of a search for a reward of CartPole
    "hidden_sizes": (64,), "batch_size": 32, "lr": 1e-3, "tau": 0.01, "discount": 0.99,
    "eps_init": 1.0, "eps_min": 0.01, "eps_decay": 0.9, "init_episodes": 1,
}  # fmt: skip
# Defaults of presets and games: (preset, game) -> settings of the reward, the search and its agents.
_CLIFF = {"proxy_hidden_size": 32, "test_episodes": 1, "population": 64} | _TABULAR
_SHORT = {"test_every": 25, "deploy_steps": 5000, "solved_reward": -12.0, "center_agents": 32}
_BY_GAME: dict[tuple[str, str], dict[str, object]] = {
    ("recipe", "cliff"): _CLIFF | _SHORT | {
        "noise_std": 0.3, "step_size": 0.2, "agents_per_proxy": 4, "inner_steps": 2000, "generations": 180,
        "second_phase": 100, "second_noise_std": 0.1, "second_step_size": 0.05, "second_agents": 8,
        "second_steps": 1000,
    },
    ("recipe", "cliffwalking"): _CLIFF | _SHORT | {
        "noise_std": 0.3, "step_size": 0.2, "agents_per_proxy": 8, "inner_steps": 1500, "generations": 240,
        "second_phase": 120, "second_noise_std": 0.1, "second_step_size": 0.05, "second_steps": 800,
        "deploy_steps": 3000, "solved_reward": -13.0, "center_agents": 64, "random_ties": True,
    },
    ("cheap", "cliff"): _CLIFF | _SHORT | {
        "population": 40, "noise_std": 0.3, "step_size": 0.2, "agents_per_proxy": 2, "inner_steps": 1500,
        "generations": 90, "second_phase": 40, "second_noise_std": 0.12, "second_step_size": 0.07, "second_agents": 4,
        "second_steps": 800, "test_every": 10, "solved_bonus": 30.0, "truncation_ends": True,
    },
    ("paper", "cliff"): _CLIFF | {"population": 32, "solved_reward": -20.0, "eps_init": 0.01, "eps_min": 0.01},
    ("recipe", "cartpole-200"): _Q | {
        "population": 32, "noise_std": 0.1, "step_size": 0.05, "inner_steps": 2000, "test_every": 100,
        "test_episodes": 4, "generations": 40, "solved_reward": 195.0, "deploy_steps": 3000,
        "vary_hp": True, "vary": ("lr",),
    },
    ("paper", "cartpole-200"): {
        "solved_reward": 195.0, "batch_size": 192, "lr": 0.003, "eps_init": 0.8, "eps_min": 0.03, "eps_decay": 0.95,
        "activation": "leakyrelu", "hidden_sizes": (64,), "tau": 0.01, "discount": 0.99,
    },
    ("recipe", "mountaincar-continuous"): {
        "rn_init": "hand", "rn_output_scale": 5.0, "rn_evolve_scale": True,
        "rn_input_center": (-0.3, 0.0), "rn_input_spread": (0.5, 0.03), "population": 24, "agents_per_proxy": 2,
        "rank_apart": True, "inner_steps": 5000, "test_every": 250, "test_episodes": 4, "average_from": 1500,
        "noise_std": 0.07, "step_size": 0.04, "generations": 30, "solved_reward": 90.0, "deploy_steps": 10_000,
        "retest_agents": 32, "eval_every": 5, "keep_best": 6, "hidden_sizes": (64,), "batch_size": 128, "lr": 2e-3,
        "tau": 0.005, "init_episodes": 0, "fill": 500, "updates_per_step": 2,
        "discount": 0.98, "policy_std": 0.05, "policy_std_clip": 0.1, "action_std": 0.6, "policy_delay": 4,
    },
}  # fmt: skip
_BY_MODE: dict[tuple[str, str, int], dict[str, object]] = {}
# Modes 1 and 5 start from fitted networks: walking in circles beats falling, and no random network leads along all
# thirteen cells.
for _mode, _init in ((1, "terminal"), (5, "real"), (6, Config.rn_init)):
    _BY_MODE["recipe", "cliff", _mode] = {
        "noise_std": 0.1, "step_size": 0.05, "generations": 300, "second_phase": 150,
        "second_noise_std": None, "second_step_size": None, "rn_init": _init,
    }  # fmt: skip
_BY_MODE["recipe", "cliff", 5] |= {"rn_output": "symexp", "noise_std": 0.05, "average_from": 300}
for _mode, _scale in ((2, 30.0), (5, 1.0), (6, 3.0)):  # for searches that start from the winner of mode 1 (start_from)
    _BY_MODE["recipe", "cartpole-200", _mode] = {
        "rn_output_scale": _scale, "noise_std": 0.05, "step_size": 0.02, "generations": 25, "inner_steps": 1000,
    }  # fmt: skip
_BY_MODE["recipe", "cartpole-200", 2] |= {  # long trainings, so that agents remain solved
    "generations": 16, "inner_steps": 3000, "agents_per_proxy": 4, "solved_bonus": 200.0,
    "eval_every": 2, "keep_best": 10, "retest_agents": 256,  # enough to notice that one agent in sixty falls
}  # fmt: skip


def proxy_defaults(values: Mapping[str, Any], game: str) -> dict[str, object]:
    """Return the default settings of the learned reward, of the search and of the agents that train with the reward,
    for the preset and the mode in ``values`` and for ``game``. ``values`` are the settings that the user has chosen.
    Defaults of the game override the preset's, and defaults of the mode override both. If preset "cheap" has no
    defaults for a game, it has the defaults of "recipe". Raises SettingError for a preset that does not exist."""
    preset, mode = values.get("preset", Config.preset), values.get("mode", Config.mode)
    if preset not in PRESETS:
        raise choice_error("preset", preset, PRESETS)
    game = game.partition(",")[0]  # without parameters
    tuned_game = "cartpole-200" if game == "cartpole" else game  # the tables have one entry for both
    game_defaults = _BY_GAME.get((preset, tuned_game), {})
    if preset == "cheap" and not game_defaults:
        game_defaults = _BY_GAME.get(("recipe", tuned_game), {})
    # A mode may also be a name, which has no defaults. Nor has mode 0.
    mode_number = int(mode) if str(mode).isdecimal() else 0
    mode_defaults = _BY_MODE.get((preset, tuned_game, mode_number), {})
    presets = {"paper": _PAPER, "teacher": _TEACHER}
    defaults = presets.get(preset, _RECIPE) | game_defaults | mode_defaults
    if preset == "teacher":
        defaults |= _LEARN_FROM_RETURNS.get(str(values.get("agent")), {})
    num_agents = len(str(values.get("agent", "")).split(","))
    agents_per_proxy = int(str(defaults.get("agents_per_proxy", 1)))
    if agents_per_proxy % num_agents:  # there must be equally many agents of each kind
        defaults["agents_per_proxy"] = num_agents
    solved_reward = values.get("solved_reward", defaults.get("solved_reward"))
    if solved_reward is None:  # a game without a known threshold
        defaults["choose_by"] = "return"
        if preset == "paper":
            defaults |= {"objective": "final", "inner_rule": "budget"}
    if defaults.get("objective") == "average" and "test_every" not in defaults:
        defaults["test_every"] = 500
    return defaults


def ineffective(config: Config) -> dict[str, str]:
    """Return a dictionary, setting without effect in ``config`` -> the reason. A rule below is a condition, the
    settings that have no effect if it holds, and the reason (`reasons_by_setting`)."""
    info_weights = "its network is a weight for each number in info"
    proxy_scale = "rn_evolve_scale goes on from the factor of start_from"
    starts_from_proxy = config.start_from is not None
    layers = ("proxy_hidden_size", "proxy_hidden_layer", "proxy_activation_fn")
    inputs = ("rn_input_center", "rn_input_spread")
    network = (*layers, *inputs, "rn_init", "rn_output_scale", "rn_output", "rn_evolve_scale", "rn_terminal")
    return search.ineffective(config) | reasons_by_setting(
        (config.mode == 0, network, "mode is 0, the task's own reward"),
        (config.mode in (101, 102), (*layers, *inputs), f"mode is {config.mode}: {info_weights}"),
        (config.proxy_hidden_layer == 0, ("proxy_hidden_size", "proxy_activation_fn"), "proxy_hidden_layer is 0"),
        (starts_from_proxy, ("rn_init",), "start_from says where the search starts"),
        (not starts_from_proxy, ("rn_discount", "rn_episodes"), "start_from is null"),
        (starts_from_proxy and config.rn_evolve_scale, ("rn_output_scale",), proxy_scale),
    )


def validate(config: Config) -> str | None:
    """Return the first error in a combination of settings as one line, None if there is none."""
    for name in ("scored_by", "second_scored_by"):
        if getattr(config, name) == "target":
            return f"{name} is 'target', but a learned reward has none; allowed: agents"
    if config.preset == "teacher" and config.start_from is None:
        line = "preset is 'teacher', but start_from is null"
        return f"{line}; allowed: an agent's run or checkpoint, or module:function, whose returns make the reward"
    return search.validate(config)


FAMILY = Family(
    config=Config, implementations={"RN": {}}, learns_from="evolution", proxy_defaults=proxy_defaults,
    validate=validate, ineffective=ineffective, advice=lambda config: "more --inner_steps or more --generations",
    prepared_games=frozenset({"cartpole", *(_game for _, _game in _BY_GAME)}),
)  # fmt: skip
