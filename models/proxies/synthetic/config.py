"""Settings of synthetic environments. Settings of the search are in `models.proxies.search`. Imports no torch.

Sources: [F] Ferreira et al. 2022, "Learning Synthetic Environments and Reward Networks for Reinforcement Learning",
arXiv 2202.02790, and its public code. [L] Liesen et al. 2024, "Discovering Minimal Reinforcement Learning
Environments", arXiv 2406.12589. Other values were tuned in this project: docs/synthetic_environments.md.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.family import Family, reasons_by_setting
from models.proxies.search import NetworkConfig, SearchConfig, load_presets
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

    # How it is fitted to transitions, with preset supervised
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
class Config(SearchConfig, NetworkConfig, Synthetic):
    """A population of synthetic environments, and the search in which it trains and tests fresh agents."""

    def validate(self) -> str | None:
        if self.scale_obs and self.test_every is not None:
            return f"scale_obs is on, but test_every is {self.test_every}; allowed with scale_obs: null"
        if self.proxy == "bandit" and self.inner_rule == "plateau":
            return (
                "inner_rule is 'plateau', but proxy is 'bandit', whose episodes have one step; allowed: budget, tests"
            )
        if self.preset == "clone" and self.start_from is None:
            line = "preset is 'clone', but start_from is null"
            return f"{line}; allowed: an agent's run or checkpoint, or module:function, whose policy is to be cloned"
        if self.preset == "supervised" and self.raw_done:
            return "raw_done is on, but preset is 'supervised', whose done is no share of an end; allowed: off"
        if self.preset == "supervised" and self.generations is None:
            return "total_steps has no effect with preset supervised; did you mean '--fit_updates'?"
        if self.proxy != "bandit":
            for name in ("reward_form", "first_states", "pairs"):  # settings of a bandit
                value, default = getattr(self, name), getattr(Config, name)
                if value != default:
                    line = f"{name} is {value!r}, but proxy is {self.proxy!r}"
                    return f"{line}; allowed: {default or 'null'}, or the proxy bandit"
        if self.reward_form == "free":  # there is no target, which other values of these settings need
            for name, allowed in (("pairs", "null"), ("scored_by", "agents"), ("second_scored_by", "agents")):
                value = getattr(self, name)
                if value not in (None, "agents"):
                    line = f"{name} is {value!r}, but reward_form is 'free', which has no target"
                    return f"{line}; allowed: {allowed}, or a reward_form of {', '.join(FORMS[1:])}"
        if self.pairs is not None and self.first_states != "table":
            line = f"first_states is {self.first_states!r}, but pairs is {self.pairs}"
            return f"{line}; allowed: table, or pairs null"
        return super().validate()

    def ineffective(self) -> dict[str, str]:
        supervised, bandit = self.preset == "supervised", self.proxy == "bandit"
        preset, first_states = f"preset is {self.preset!r}", f"first_states is {self.first_states!r}"
        search_settings = tuple(names_with(Config, "fit", False))
        fit_settings = tuple(names_with(Config, "section", "supervised fit"))
        episode_settings = ("learned_reset", "max_steps", "done_bias", "raw_done")
        table_settings = ("table_size", "table_episodes", "target_scale", "scale_obs")
        # A rule is a condition, the settings that have no effect if it holds, and the reason.
        return super().ineffective() | reasons_by_setting(
            (supervised, search_settings, f"{preset}, which searches for nothing"),
            (not supervised, fit_settings, preset),
            (self.first_states != "table", table_settings, first_states),
            (self.proxy_hidden_layer == 0, ("proxy_hidden_size", "proxy_activation_fn"), "proxy_hidden_layer is 0"),
            (self.pairs is not None, ("table_size", "target_scale", "proxy_init"), f"pairs is {self.pairs}"),
            (bandit, episode_settings, "proxy is 'bandit', whose episodes have one step"),
            (self.first_states != "latent", ("latent_size",), first_states),
            (not (bandit or self.learned_reset), ("latent_size",), "learned_reset is off"),
            (self.start_from is None, ("clone_of", "dagger_rounds"), "start_from is null"),
        )


# Games for which the default proxy and preset of `Synthetic` fail -> the proxy and the preset that work there.
_GAME_DEFAULTS = dict.fromkeys(
    ("pendulum", "mountaincar", "mountaincar-continuous", "swimmer", "halfcheetah", "hopper"), ("bandit", "two_stage")
)
SOLVED = {"cartpole": 475.0, "cartpole-200": 195.0, "acrobot": -100.0}  # Gymnasium's reward thresholds
_PREPARED = frozenset({*SOLVED, *_GAME_DEFAULTS})  # games for which presets have settings


def usual_agents(choices: Mapping[str, Any], continuous: bool, cells: bool) -> str:
    """Return the default of the setting ``agent``, the agents that train on proxies, such as "PPO,DDQN". ``choices``
    are the settings that the user has chosen, and ``continuous`` is whether actions are. In preset "published" several
    agents take turns, as in Liesen et al. 2024. Tables cannot learn on synthetic states, so ``cells`` has no effect."""
    if choices.get("preset") == "published":
        return "PPO,SAC,DDPG,TD3" if continuous else "PPO,DDQN"
    return "TD3" if continuous else "DDQN"


def proxy_defaults(choices: Mapping[str, Any], game: str) -> dict[str, object]:
    """Return the default settings of the synthetic environment, of the search and of the agents that train in it,
    ``{name: value}``, for the real environment ``game``. ``choices`` are the settings that the user has chosen.
    Defaults of the preset are overridden by defaults of the agents on a bandit, and these by defaults of the game.
    Raises SettingError for an unknown proxy or preset, and for a preset that does not fit the other choices."""
    game = game.partition(",")[0]  # name without parameters
    proxy, preset = _proxy_and_preset(choices, game)
    agents = [name.strip() for name in str(choices.get("agent", "DDQN")).split(",")]
    _check_preset(preset, proxy, agents)
    tables = load_presets("synthetic")
    tuned_game = "cartpole" if game == "cartpole-200" else game  # presets.yaml has one entry for both
    defaults: dict[str, object] = {"solved_reward": SOLVED[game]} if game in SOLVED else {}
    defaults |= {"proxy": proxy, "preset": preset} | tables["presets"][proxy][preset]
    if proxy == "bandit":
        # A search that starts from a policy uses the states that the policy visits. They lie close to each other, as
        # the states of a clone do, so the agents of such a search get the defaults of agents on a clone.
        has_start = choices.get("start_from") is not None
        starts_from_policy = preset == "two_stage" and has_start and game not in _PREPARED
        is_clone = preset == "clone" or starts_from_policy
        has_cells = choices.get("first_states") == "cells"
        defaults |= _agent_defaults(agents, tuned_game, is_clone, has_cells)
        if starts_from_policy:
            defaults["deploy_steps"] = tables["presets"]["bandit"]["clone"]["inner_steps"]
    defaults |= tables["games"][proxy].get(preset, {}).get(tuned_game, {})
    solved_reward: Any = defaults.get("solved_reward")
    if proxy == "bandit" and choices.get("test_limit") is not None and solved_reward is not None and solved_reward < 0:
        defaults["solved_reward"] = None  # steps have a price, so in shorter episodes any policy might reach it
    if choices.get("solved_reward", defaults.get("solved_reward")) is None:
        defaults["quit_when_solved"] = False
    if preset == "broad" and len(agents) > 1:
        defaults["generations"] = 80  # twice the preset's 40, because each generation has two kinds of agents
    if choices.get("strategy") == "nes":
        defaults["eval_every"] = 1  # score_transform 5 to 7 need it
    return defaults


def _proxy_and_preset(choices: Mapping[str, Any], game: str) -> tuple[Any, Any]:
    """Return the kind of synthetic environment and its preset, such as ("mdp", "recipe"). Each is the user's choice in
    ``choices``, else the default of ``game``, else the default of all games. The default of the game is skipped if it
    does not fit the user's other choice: the default proxy of pendulum is a bandit, but with preset "paper", which is
    for an MDP, it is an MDP."""
    presets = load_presets("synthetic")["presets"]  # proxy -> preset -> settings
    default_proxy, default_preset = _GAME_DEFAULTS.get(game, (Config.proxy, Config.preset))
    if "preset" in choices and choices["preset"] not in presets[default_proxy]:
        default_proxy = Config.proxy
    proxy = choices.get("proxy", default_proxy)
    if default_preset not in presets.get(proxy, ()):
        default_preset = Config.preset
    return proxy, choices.get("preset", default_preset)


def _check_preset(preset: str, proxy: str, agents: list[str]) -> None:
    """Raise SettingError for an unknown proxy, a preset that is not for it, or agents that are not for the preset."""
    presets = load_presets("synthetic")["presets"]
    if proxy not in PROXIES:
        raise choice_error("proxy", proxy, PROXIES)
    if preset not in presets[proxy]:
        other_proxies = [kind for kind, names in presets.items() if preset in names]
        if not other_proxies:
            raise choice_error("preset", preset, presets[proxy], f" for a {proxy}")
        line = f"preset is {preset!r}, which is for a {other_proxies[0]}; did you mean '--proxy {other_proxies[0]}'?"
        raise SettingError(f"{line} Allowed for a {proxy}: {', '.join(presets[proxy])}", "preset")
    if preset == "broad" and "PPO" not in agents:
        raise choice_error("agent", ",".join(agents), ["PPO", "PPO,DDQN"], " with preset broad")


def _agent_defaults(agents: list[str], game: str, is_clone: bool, has_cells: bool) -> dict[str, object]:
    """Return the default settings of ``agents``, such as ["PPO", "DDQN"], that train on a bandit (a synthetic
    environment with episodes of one step) of ``game``. The bandit may be the clone of a policy (``is_clone``), and its
    first states may then be cells of a grid (``has_cells``). With several agents, the names of settings have the name
    of the agent as a prefix (``PPO_lr``)."""
    tables = load_presets("synthetic")
    agent_tables = [tables["agents"]]  # each maps an agent to settings; later tables override earlier tables
    if not is_clone:
        agent_tables.append(tables["agents_by_game"].get(game, {}))
    else:
        agent_tables.append(tables["clone_agents"])
        if has_cells:
            agent_tables.append(tables["cell_agents"])
        if not {"TD3", "DDPG", "SAC"}.isdisjoint(agents):
            agent_tables.append(tables["continuous_agents"])
    defaults: dict[str, object] = {}
    for agent in agents:
        prefix = "" if len(agents) == 1 else f"{agent}_"
        for table in agent_tables:
            defaults |= {prefix + name: value for name, value in table.get(agent, {}).items()}
    return defaults


def advice(config: Config) -> str:
    """Return the flags that may help after a search with the settings ``config`` has failed, as text for a message."""
    if config.preset == "two_stage":
        return "another --seed or more --generations"
    flags = "--proxy bandit --preset two_stage"
    if config.start_from is not None:
        flags += " with the same --start_from"
    assert Config.generations is not None
    if config.generations is not None and config.generations < Config.generations:
        return f"more --generations or {flags}"
    return flags


FAMILY = Family(
    config=Config, implementations={"SE": {}}, learns_from="evolution", proxy_defaults=proxy_defaults,
    usual_agents=usual_agents, advice=advice,
    prepared_games=lambda: _PREPARED,
)  # fmt: skip
