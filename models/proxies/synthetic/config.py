"""Settings of synthetic environments. Settings of the search are in `models.proxies.search`. Imports no torch.

Sources: [F] Ferreira et al. 2022, "Learning Synthetic Environments and Reward Networks for Reinforcement Learning",
arXiv 2202.02790, and its public code. [L] Liesen et al. 2024, "Discovering Minimal Reinforcement Learning
Environments", arXiv 2406.12589. Other values were tuned in this project:
docs/synthetic_environments.md.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from models.family import Family, reasons_by_setting
from models.proxies import search
from models.proxies.search import NetworkConfig, SearchConfig
from models.settings import SettingError, choice_error, names_with, setting, width

_proxy = functools.partial(setting, section="synthetic environment")
_width = functools.partial(width, section="synthetic environment")
_fit = functools.partial(setting, section="supervised fit", later=True)

PROXIES = ("mdp", "bandit")
FORMS = ("free", "absolute", "squared", "exponential")


@dataclass(frozen=True)
class Synthetic:
    """Settings of a synthetic environment."""

    proxy: str = _proxy(
        "mdp",
        "mdp: three networks give next state, reward and termination [F]; bandit: episodes of one step, with an "
        "initial-state and a reward network [L]",
        choices=PROXIES,
        chooses=True,
        identity=True,
        tunable=False,
    )
    preset: str = _proxy(
        "recipe",
        "recipe: tuned in this project; broad: an MDP for policy learners too, with --agent PPO or PPO,DDQN; paper: "
        "the published loop with its tuned values (figure 2); paper_varied: that loop with varied agents (figure 3) "
        "[F]; two_stage: a search for the target of a bandit, whose reward then trains agents; published: the "
        "published search for bandits [L]; clone: no search, a bandit whose reward compares with the policy of "
        "--start_from; distilled: a search for a bandit of a few states and their right actions; supervised: no "
        "search, an MDP fitted to transitions of the real environment, the baseline of [F]. Some games have another "
        "default, which --help shows with their --gamename",
        choices="recipe broad paper paper_varied two_stage published clone distilled supervised".split(),
        chooses=True,
        tunable=False,
    )
    reward_form: str = _proxy(
        "free",
        "reward of a bandit. free: a network of action and state [L]; the others compare an action u with the "
        "output mu of a target network for the state. absolute: -mean |u - mu|; squared: -mean (u - mu)^2; "
        "exponential: exp(-4 mean (u - mu)^2); u and mu in shares of half the range, clipped to [-1, 1]; one-hot "
        "for discrete actions",
        choices=FORMS,
        later=True,
    )
    first_states: str = _proxy(
        "latent",
        "first states of a bandit. latent: a network on normal noise [L]; table: rows of a table, sampled once from "
        "the seed, that spreads over the observation space; if its range is unknown, and for a clone, over states "
        "that the policy visits with no noise on its actions, some and much; cells: a random cell, if observations "
        "are cells",
        choices=("latent", "table", "cells"),
        later=True,
    )
    target_scale: str = _proxy(
        "start",
        "scale of a target's inputs if the bounds of observations are unknown. start: their standard deviation "
        "before the search; widest: the largest one at any scored mean, which leaves fewer actions at their bounds",
        choices=("start", "widest"),
        later=True,
    )
    table_size: int = _proxy(2048, "rows of that table", minimum=1, maximum=1_000_000, later=True)
    scale_obs: bool = _proxy(
        False,
        "agents on a bandit with a target and a table see observations scaled as the target's inputs, also on the real "
        "environment. The file keeps the real environment's units",
        later=True,
        fit=False,
    )
    pairs: int | None = _proxy(
        None,
        "rows of that table if the search is for rows and actions: the target is then a network that was trained "
        "only on these pairs of state and action; null: the search is for the target's weights",
        minimum=2,
        maximum=64,
        later=True,
    )
    table_episodes: int | None = _proxy(
        None,
        "steps after which episodes restart, if the target's states fill that table; null is the environment's limit",
        minimum=1,
        later=True,
    )
    clone_of: str = _proxy(
        "actions",
        "copied into a bandit from the policy of start_from: its actions, or its action values (agents with values, "
        "reward_form free)",
        choices=("actions", "values"),
        later=True,
        fit=False,
    )
    dagger_rounds: int = _proxy(
        3,
        "times that states visited by the clone itself are added, and the clone is fitted again (DAgger)",
        minimum=0,
        maximum=100,
        later=True,
        fit=False,
    )
    proxy_init: str = _proxy(
        "torch",
        "torch: uniform as in torch.nn.Linear [F]; normal: N(0, 1/inputs) and zero biases",
        choices=("torch", "normal"),
    )
    learned_reset: bool = _proxy(
        False,
        "first states come from a network on normal noise; off: from the real environment [F]. Always on for a "
        "bandit. With preset supervised they are normal, with half their largest size in the data as standard "
        "deviation",
    )
    latent_size: int | None = _width(None, "size of that noise; null is the size of an observation", fit=False)
    max_steps: int | None = _proxy(
        None, "largest number of steps of an episode; null is the real environment's limit [F]", minimum=1
    )
    done_bias: float = _proxy(
        0.0,
        "mdp: added to the done network's output at the start of the search; with -5 only max_steps ends episodes",
        minimum=-1000,
        maximum=1000,
        fit=False,
    )
    raw_done: bool = _proxy(
        False,
        "bootstrap by 1 - d with d the done network's raw output, as published [F]; off: by whether d exceeds 0.5",
    )


@dataclass(frozen=True)
class Supervised:
    """How a synthetic environment is fitted to transitions, with preset supervised."""

    transitions: int = _fit(10_000, "transitions of the real environment", minimum=100, maximum=20_000_000)
    transitions_from: str = _fit(
        "agents",
        "agents: two agents that learn on the real environment, each for half of the transitions; random: random play",
        choices=("agents", "random"),
    )
    fit_updates: int = _fit(10_000, "gradient steps of each network", minimum=20)
    fit_batch: int = _fit(512, "transitions of a gradient step", minimum=1, maximum=1_000_000)
    fit_lr: float = _fit(2e-3, "largest learning rate of the one-cycle schedule", above=0)


@dataclass(frozen=True)
class Config(SearchConfig, NetworkConfig, Supervised, Synthetic):
    """A population of synthetic environments, and the search in which it trains and tests fresh agents."""


# DDQN, DuelingDDQN and TD3Discrete on a bandit.
_BY_VALUE: dict[str, object] = {
    "vary_hp": True, "vary": ("lr",), "num_envs": 10, "fill": 300, "init_episodes": 0, "buffer_size": 2000,
    "eps_fraction": 0.5,
}  # fmt: skip

# (preset, proxy) -> settings of the proxy, of the search and of the inner agent
_PRESETS: dict[tuple[str, str], dict[str, object]] = {
    ("recipe", "mdp"): {"vary_hp": True, "vary": ("lr",)},
    ("recipe", "bandit"): {
        "proxy_hidden_size": 32, "proxy_activation_fn": "relu", "proxy_init": "normal",
        "strategy": "snes", "step_size": 1.0, "initial_draws": 32, "deploy_steps": 10_000,
    },
    ("broad", "mdp"): {
        "learned_reset": True, "max_steps": 10, "done_bias": -5.0, "proxy_init": "normal", "initial_draws": 16,
        "initial_members": 8, "generations": 40, "inner_steps": 10_000, "keep_best": 3, "retest_agents": 8,
        "vary_hp": True, "vary": ("lr",), "hidden_sizes": (64,), "lr": 1e-3, "PPO_num_envs": 4, "PPO_batch_size": 128,
        "rollout_steps": 128, "ppo_epochs": 4, "ent_coef": 0.01, "DDQN_num_envs": 8, "DDQN_eps_fraction": 0.5,
    },
    ("paper", "mdp"): {
        "raw_done": True, "strategy": "nes", "population": 32, "common_random_numbers": False,
        "inner_rule": "plateau", "inner_steps": 1_000_000, "train_episodes": 1000,
        "test_episodes": 10, "center_agents": 16, "eval_every": 1, "early_out_num": 10,
        "keep_best": 1, "retest_drawn": False, "quit_when_solved": True,
    },
}  # fmt: skip
_PRESETS["two_stage", "bandit"] = {
    "reward_form": "absolute", "first_states": "table", "proxy_activation_fn": "tanh", "proxy_hidden_size": 32,
    "scored_by": "target", "generations": 150, "noise_std": 0.2, "step_size": 0.05, "center_agents": 8,
    "deploy_steps": 10_000, "keep_best": 2, "retest_agents": 8, "report_agents": 32,
}  # fmt: skip
_PRESETS["distilled", "bandit"] = _PRESETS["two_stage", "bandit"] | {
    "pairs": 32, "generations": 70, "second_phase": 40, "second_scored_by": "agents",
}  # fmt: skip
_PRESETS["clone", "bandit"] = {
    "reward_form": "absolute", "first_states": "table", "table_size": 8192, "proxy_activation_fn": "tanh",
    "proxy_hidden_size": 64, "proxy_hidden_layer": 2, "scale_obs": True,
    # One generation, with a negligible step, scores the clone.
    "population": 2, "generations": 1, "step_size": 1e-9, "inner_steps": 50_000, "center_agents": 4,
    "report_agents": 32,
}  # fmt: skip
_PRESETS["supervised", "mdp"] = {
    # Agents need about as many steps as on the real environment.
    "inner_steps": 10_000, "generations": 20, "report_agents": 32, "vary_hp": True, "vary": ("lr",),
}  # fmt: skip
_PRESETS["published", "bandit"] = {
    "proxy_hidden_size": 32, "proxy_activation_fn": "relu", "proxy_init": "normal", "strategy": "snes",
    "step_size": 1.0, "noise_std": 0.05, "mirrored": False, "population": 128, "generations": 300,
    "inner_steps": 10_000, "test_episodes": 50, "agents_take_turns": "generations",
}  # fmt: skip
# Agents that train on a bandit of continuous actions.
_SHORT: dict[str, object] = {"vary_hp": True, "vary": ("lr",), "hidden_sizes": (64, 64), "batch_size": 64, "lr": 1e-3}
_OFF_POLICY: dict[str, object] = _SHORT | {
    "num_envs": 5, "fill": 1000, "init_episodes": 0, "buffer_size": 10_000, "action_std": 0.3,
}  # fmt: skip
_AGENTS: dict[str, dict[str, object]] = {
    "DDQN": _BY_VALUE, "DuelingDDQN": _BY_VALUE, "TD3Discrete": _BY_VALUE,
    "TD3": _OFF_POLICY, "DDPG": _OFF_POLICY, "SAC": _OFF_POLICY,
    "PPO": _SHORT | {"num_envs": 10, "rollout_steps": 50, "batch_size": 50, "activation": "relu"},
}  # fmt: skip
# Agents that train on a clone: with more updates, as they must tell apart states that are close to each other.
_CLONE_BY_VALUE: dict[str, object] = {
    "hidden_sizes": (64, 64), "activation": "relu", "batch_size": 64, "updates_per_step": 10, "lr": 2e-4,
}  # fmt: skip
_CLONE_OFF_POLICY: dict[str, object] = {"updates_per_step": 5}
_CLONE_AGENTS: dict[str, dict[str, object]] = {
    "DDQN": _CLONE_BY_VALUE, "DuelingDDQN": _CLONE_BY_VALUE | {"feature_dim": 64}, "TD3Discrete": _CLONE_BY_VALUE,
    "TD3": _CLONE_OFF_POLICY, "DDPG": _CLONE_OFF_POLICY, "SAC": _CLONE_OFF_POLICY | {"entropy_temperature": 0.05},
    # A greedy agent that is wrong in one cell may never leave it. Entropy lets agents try every action in every state,
    # and with learning rates that fall to 0 the last updates disturb no state.
    "PPO": {"lr": 4e-3, "anneal_lr": True, "ppo_epochs": 8, "ent_coef": 0.2},
    "A2C": {
        "lr": 5e-3, "anneal_lr": True, "num_envs": 10, "batch_size": 10, "activation": "relu",
        "normalize_advantage": True, "ent_coef": 0.1,
    },
}  # fmt: skip
# Agents that train on a clone with a random cell as its first state.
_CELL_AGENTS: dict[str, dict[str, object]] = {"PPO": {"ent_coef": 0.5}}
# Agents that train on a clone beside agents of continuous actions. Entropy would only widen their noise. With small
# batches, noise would shrink before the agent has left the wrong bound of actions, beyond which all rewards are equal.
_CONTINUOUS_AGENTS: dict[str, dict[str, object]] = {
    "PPO": {
        "lr": 6e-4, "batch_size": 500, "ppo_epochs": 16, "ent_coef": 0.0, "action_std": 0.3, "scale_actions": True,
        "hidden_sizes": (128, 128),
    },
}  # fmt: skip
_AGENTS_BY_GAME: dict[tuple[str, str], dict[str, object]] = {
    ("PPO", "pendulum"): {"action_std": 2.0},  # half the range of actions
    # Rewards have a size of 1, and SAC learns another temperature slowly.
    **{("SAC", _game): {"entropy_temperature": 0.05} for _game in ("pendulum", "swimmer")},
    # Large spaces and only 10,000 rewards: about two small updates per transition.
    **{
        (_agent, _game): {"updates_per_step": 10, "batch_size": 32, "lr": 1.5e-3}
        for _game in ("halfcheetah", "hopper")
        for _agent in ("TD3", "DDPG", "SAC")
    },
    # Speeds lie within 0.07. To tell them apart, value learners need many updates, A2C and PPO scaled observations.
    **{(_agent, "mountaincar"): {"num_envs": 2} for _agent in ("DDQN", "DuelingDDQN")},
    ("TD3Discrete", "mountaincar"): {"num_envs": 1},
    **{(_agent, "mountaincar"): {"normalize_obs": True} for _agent in ("A2C", "PPO")},
}
_PRESETS["paper_varied", "mdp"] = _PRESETS["paper", "mdp"] | {"generations": 50}

# (preset, proxy, game) -> settings that differ between games, including inner agents'.
_BY_GAME: dict[tuple[str, str, str], dict[str, object]] = {
    ("recipe", "mdp", "cartpole"): {"max_steps": 200, "agents_per_proxy": 2},
    ("paper", "mdp", "cartpole"): {
        "proxy_hidden_size": 83, "noise_std": 0.0124, "step_size": 0.148, "score_transform": 3, "generations": 200,
        "quit_when_solved": False, "max_steps": 200, "test_limit": 200, "solved_reward": 195.0,
        "batch_size": 199, "discount": 0.988, "lr": 0.000304, "tau": 0.00848, "eps_init": 0.809, "eps_min": 0.0371,
        "eps_decay": 0.961, "activation": "tanh", "hidden_sizes": (57,), "init_episodes": 1,
    },
    ("paper", "mdp", "acrobot"): {
        "proxy_hidden_size": 167, "proxy_activation_fn": "prelu", "noise_std": 0.0114, "step_size": 0.727,
        "score_transform": 3, "generations": 200, "quit_when_solved": False, "max_steps": 500,
        "batch_size": 149, "discount": 0.991, "lr": 0.00222, "tau": 0.0209, "eps_init": 0.904, "eps_min": 0.0471,
        "eps_decay": 0.899, "activation": "leakyrelu", "hidden_sizes": (112,), "init_episodes": 20,
    },
    ("paper_varied", "mdp", "cartpole"): {"max_steps": 200, "test_limit": 200, "solved_reward": 195.0},
    ("paper_varied", "mdp", "acrobot"): {"max_steps": 500},
    ("recipe", "bandit", "acrobot"): {"generations": 150},
}  # fmt: skip
_BY_GAME["distilled", "bandit", "cartpole"] = {"pairs": 8, "second_phase": 35}
_BY_GAME["distilled", "bandit", "acrobot"] = {
    "generations": 100, "second_phase": 70, "second_noise_std": 0.1, "second_step_size": 0.02,
}  # fmt: skip
_BY_GAME["distilled", "bandit", "pendulum"] = {
    "proxy_hidden_size": 64, "pairs": 64, "population": 128, "noise_std": 0.3, "step_size": 0.1, "generations": 130,
    "second_phase": 80, "second_noise_std": 0.1, "second_step_size": 0.03, "second_scored_by": "target",
}  # fmt: skip
_BY_GAME["distilled", "bandit", "mountaincar-continuous"] = {
    "pairs": 8, "generations": 60, "second_phase": None, "test_episodes": 4, "center_agents": 16,
}  # fmt: skip
_BY_GAME["two_stage", "bandit", "pendulum"] = {
    "proxy_hidden_size": 64, "initial_draws": 8, "initial_generations": 10,  # some starts end at -850
    "population": 128, "noise_std": 0.3, "step_size": 0.1, "generations": 100, "second_phase": 60,
    "second_noise_std": 0.15, "second_step_size": 0.03,
}  # fmt: skip
_BY_GAME["two_stage", "bandit", "acrobot"] = {
    "generations": 180, "second_phase": 100, "second_noise_std": 0.1, "second_step_size": 0.02, "center_agents": 64,
    "eval_every": 10, "retest_agents": 16,
}  # fmt: skip
_BY_GAME["two_stage", "bandit", "mountaincar"] = {
    "proxy_hidden_size": 16, "generations": 120, "second_phase": 60, "second_noise_std": 0.1, "second_step_size": 0.02,
    "center_agents": 64, "eval_every": 10, "keep_best": 4, "retest_agents": 32,
}  # fmt: skip
_BY_GAME["two_stage", "bandit", "mountaincar-continuous"] = {
    "proxy_hidden_size": 16, "test_episodes": 4, "center_agents": 16, "generations": 60, "second_phase": 40,
    "second_noise_std": 0.1, "second_step_size": 0.02,
}  # fmt: skip
_BY_GAME["two_stage", "bandit", "swimmer"] = {
    "population": 32, "test_episodes": 1, "generations": 100, "center_agents": 2, "eval_every": 20,
}  # fmt: skip
_BY_GAME["two_stage", "bandit", "halfcheetah"] = {
    "proxy_hidden_layer": 0, "target_scale": "widest", "strategy": "ars", "population": 32, "test_episodes": 1,
    "noise_std": 0.05, "step_size": 0.03, "generations": 200, "center_agents": 2, "eval_every": 10, "keep_best": 1,
    "retest_agents": 4, "retest_drawn": False, "reward_form": "exponential", "table_size": 4096,
    "table_episodes": 200,  # agents would hardly learn to start running from whole episodes of 1,000 steps
}  # fmt: skip
_BY_GAME["two_stage", "bandit", "hopper"] = {
    "proxy_hidden_layer": 0, "target_scale": "widest", "strategy": "ars", "survival_bonus": 1.0, "population": 32,
    "test_episodes": 1, "noise_std": 0.05, "step_size": 0.03, "generations": 250, "eval_every": 5, "center_agents": 4,
    "keep_best": 3, "retest_agents": 8, "retest_drawn": False, "reward_form": "exponential", "table_size": 4096,
}  # fmt: skip
_BY_GAME["published", "bandit", "pendulum"] = {"population": 64, "generations": 1000, "agents_per_proxy": 8}
for _game in ("swimmer", "halfcheetah", "hopper"):
    _BY_GAME["published", "bandit", _game] = {
        "generations": 2000, "test_limit_first": 100, "test_limit": 1000, "test_limit_grows": (200, 1800),
    }  # fmt: skip
_BY_GAME["published", "bandit", "hopper"] |= {"population": 256, "test_episodes": 16}
for _game in ("cartpole", "acrobot"):
    _BY_GAME["paper_varied", "mdp", _game] |= {
        "noise_std": 0.05, "step_size": 1.0, "score_transform": 7, "vary_hp": True,
        "batch_size": 128, "hidden_sizes": (128, 128), "init_episodes": 10,
    }  # fmt: skip
# Game -> its default proxy and preset, if a free reward network, the default of other games, fails there.
_BY_DEFAULT = dict.fromkeys(
    ("pendulum", "mountaincar", "mountaincar-continuous", "swimmer", "halfcheetah", "hopper"), ("bandit", "two_stage")
)
SOLVED = {"cartpole": 475.0, "cartpole-200": 195.0, "acrobot": -100.0}  # Gymnasium's reward thresholds


def usual_agents(values: Mapping[str, Any], continuous: bool) -> str:
    """Return the default of the setting ``agent``, the agents that a search trains, such as "PPO,DDQN". It depends on
    whether actions are continuous, and on the preset in ``values``, the settings that the user has chosen. In preset
    "published" several agents take turns, as in Liesen et al. 2024."""
    if values.get("preset") == "published":
        return "PPO,SAC,DDPG,TD3" if continuous else "PPO,DDQN"
    return "TD3" if continuous else "DDQN"


def proxy_defaults(values: Mapping[str, Any], game: str) -> dict[str, object]:
    """Return the default settings of the proxy, of the search and of the agents that train on the proxy, for the preset
    and the kind of proxy in ``values`` and for ``game``. ``values`` are the settings that the user has chosen. Defaults
    of the agents on a bandit override the preset's defaults, and defaults of the game override both. Raises
    SettingError for a combination that does not exist."""
    game = game.partition(",")[0]  # without parameters
    proxy, preset = _proxy_and_preset(values, game)
    agents = [name.strip() for name in str(values.get("agent", "DDQN")).split(",")]
    _check_preset(preset, proxy, agents)
    tuned_game = "cartpole" if game == "cartpole-200" else game  # the tables have one entry for both
    defaults: dict[str, object] = {"solved_reward": SOLVED[game]} if game in SOLVED else {}
    defaults |= {"proxy": proxy, "preset": preset} | _PRESETS[preset, proxy]
    if proxy == "bandit":
        # A search that starts from a policy uses the states that the policy visits. They lie close to each other, as
        # the states of a clone do, so the agents of such a search get the defaults of agents on a clone.
        starts_from_policy = preset == "two_stage" and values.get("start_from") is not None and game not in _prepared()
        has_cells = values.get("first_states") == "cells"
        is_clone = preset == "clone" or starts_from_policy
        defaults |= _agent_defaults(agents, tuned_game, is_clone, has_cells)
        if starts_from_policy:
            defaults["deploy_steps"] = _PRESETS["clone", "bandit"]["inner_steps"]
    defaults |= _BY_GAME.get((preset, proxy, tuned_game), {})
    if values.get("solved_reward", defaults.get("solved_reward")) is None:
        defaults["quit_when_solved"] = False
    if preset == "broad" and len(agents) > 1:
        defaults["generations"] = 80  # twice the preset's 40, because each generation has two kinds of agents
    if values.get("strategy") == "nes":
        defaults["eval_every"] = 1  # score_transform 5 to 7 need it
    return defaults


def _prepared() -> frozenset[str]:
    """Return the games with prepared settings."""
    return frozenset({*SOLVED, *(game for *_, game in _BY_GAME)})


def _proxy_and_preset(values: Mapping[str, Any], game: str) -> tuple[Any, Any]:
    """Return the proxy and the preset in the user's ``values``. One that the user has not chosen is the default of
    ``game`` or, if this does not fit the user's choice of the other one, the default of all games."""
    default_proxy, default_preset = _BY_DEFAULT.get(game, (Config.proxy, Config.preset))
    if (values.get("preset", default_preset), default_proxy) not in _PRESETS:
        default_proxy = Config.proxy
    proxy = values.get("proxy", default_proxy)
    if (default_preset, proxy) not in _PRESETS:
        default_preset = Config.preset
    return proxy, values.get("preset", default_preset)


def _check_preset(preset: str, proxy: str, agents: list[str]) -> None:
    """Raise SettingError for an unknown proxy, a preset that is not for it, or agents that are not for the preset."""
    if proxy not in PROXIES:
        raise choice_error("proxy", proxy, PROXIES)
    if (preset, proxy) not in _PRESETS:
        allowed = [name for name, kind in _PRESETS if kind == proxy]
        other_proxies = [kind for name, kind in _PRESETS if name == preset]
        if not other_proxies:
            raise choice_error("preset", preset, allowed, f" for a {proxy}")
        line = f"preset is {preset!r}, which is for a {other_proxies[0]}; did you mean '--proxy {other_proxies[0]}'?"
        raise SettingError(f"{line} Allowed for a {proxy}: {', '.join(allowed)}", "preset")
    if preset == "broad" and "PPO" not in agents:
        raise choice_error("agent", ",".join(agents), ["PPO", "PPO,DDQN"], " with preset broad")


def _agent_defaults(agents: list[str], game: str, is_clone: bool, has_cells: bool) -> dict[str, object]:
    """Return the default settings of ``agents`` that train on a bandit (an environment with episodes of one step) of
    ``game``. They differ if the bandit is a clone of a policy (``is_clone``), and if its first states are cells of a
    grid (``has_cells``). With several agents, the names of settings have the name of the agent as a prefix
    (``PPO_lr``)."""
    defaults: dict[str, object] = {}
    for agent in agents:
        prefix = "" if len(agents) == 1 else f"{agent}_"
        changes = _CLONE_AGENTS.get(agent, {}) if is_clone else _AGENTS_BY_GAME.get((agent, game), {})
        if is_clone and has_cells:
            changes = changes | _CELL_AGENTS.get(agent, {})
        if is_clone and not {"TD3", "DDPG", "SAC"}.isdisjoint(agents):
            changes = changes | _CONTINUOUS_AGENTS.get(agent, {})
        settings = _AGENTS.get(agent, {}) | changes
        defaults |= {prefix + name: value for name, value in settings.items()}
    return defaults


def ineffective(config: Config) -> dict[str, str]:
    """Return a dictionary, setting without effect in ``config`` -> the reason. A rule below is a condition, the
    settings that have no effect if it holds, and the reason (`reasons_by_setting`)."""
    supervised, bandit = config.preset == "supervised", config.proxy == "bandit"
    preset, first_states = f"preset is {config.preset!r}", f"first_states is {config.first_states!r}"
    episode_settings = ("learned_reset", "max_steps", "done_bias", "raw_done")
    table_settings = ("table_size", "table_episodes", "target_scale", "scale_obs")
    return search.ineffective(config) | reasons_by_setting(
        (supervised, tuple(names_with(Config, "fit", False)), f"{preset}, which searches for nothing"),
        (not supervised, tuple(field.name for field in fields(Supervised)), preset),
        (config.first_states != "table", table_settings, first_states),
        (config.proxy_hidden_layer == 0, ("proxy_hidden_size", "proxy_activation_fn"), "proxy_hidden_layer is 0"),
        (config.pairs is not None, ("table_size", "target_scale", "proxy_init"), f"pairs is {config.pairs}"),
        (bandit, episode_settings, "proxy is 'bandit', whose episodes have one step"),
        (config.first_states != "latent", ("latent_size",), first_states),
        (not (bandit or config.learned_reset), ("latent_size",), "learned_reset is off"),
        (config.start_from is None, ("clone_of", "dagger_rounds"), "start_from is null"),
    )


def validate(config: Config) -> str | None:
    """Return the first error in a combination of settings as one line, None if there is none."""
    if config.scale_obs and config.test_every is not None:
        return f"scale_obs is on, but test_every is {config.test_every}; allowed with scale_obs: null"
    if config.proxy == "bandit" and config.inner_rule == "plateau":
        return "inner_rule is 'plateau', but proxy is 'bandit', whose episodes have one step; allowed: budget, tests"
    if config.preset == "clone" and config.start_from is None:
        line = "preset is 'clone', but start_from is null"
        return f"{line}; allowed: an agent's run or checkpoint, or module:function, whose policy is to be cloned"
    if config.preset == "supervised" and config.raw_done:
        return "raw_done is on, but preset is 'supervised', whose done is no share of an end; allowed: off"
    if config.preset == "supervised" and config.generations is None:
        return "total_steps has no effect with preset supervised; did you mean '--fit_updates'?"
    for name in ("reward_form", "first_states", "pairs"):
        value, default = getattr(config, name), getattr(Config, name)
        if config.proxy != "bandit" and value != default:
            line = f"{name} is {value!r}, but proxy is {config.proxy!r}"
            return f"{line}; allowed: {default or 'null'}, or the proxy bandit"
    for name, allowed in (("pairs", "null"), ("scored_by", "agents"), ("second_scored_by", "agents")):
        value = getattr(config, name)
        needs_target = value not in (None, "agents")
        if config.reward_form == "free" and needs_target:
            line = f"{name} is {value!r}, but reward_form is 'free', which has no target"
            return f"{line}; allowed: {allowed}, or a reward_form of {', '.join(FORMS[1:])}"
    if config.pairs is not None and config.first_states != "table":
        line = f"first_states is {config.first_states!r}, but pairs is {config.pairs}"
        return f"{line}; allowed: table, or pairs null"
    return search.validate(config)


def advice(config: Config) -> str:
    """Return the flags that may help after a search with the settings ``config`` has failed, as text for a message.
    More generations are suggested only for preset two_stage, and if there were fewer than by default."""
    if config.preset == "two_stage":
        return "another --seed or more --generations"
    flags = "--proxy bandit --preset two_stage"
    if config.start_from is not None:
        flags += " with the same --start_from"
    default_generations = Config.generations or 0
    is_short = config.generations is not None and config.generations < default_generations
    return f"more --generations or {flags}" if is_short else flags


FAMILY = Family(
    config=Config, implementations={"SE": {}}, learns_from="evolution", proxy_defaults=proxy_defaults,
    usual_agents=usual_agents, validate=validate, ineffective=ineffective, advice=advice,
    prepared_games=_prepared(),
)  # fmt: skip
