"""Settings of reward networks. Settings of the search are in `models.proxies.search`. Imports no torch.

Source: [F] Ferreira et al. 2022, "Learning Synthetic Environments and Reward Networks for Reinforcement Learning",
arXiv 2202.02790, and its public code. Other values were tuned in this project: docs/reward_networks.md.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.family import Family, reasons_by_setting
from models.proxies.search import NetworkConfig, SearchConfig, load_presets
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

    def validate(self) -> str | None:
        for name in ("scored_by", "second_scored_by"):
            if getattr(self, name) == "target":
                return f"{name} is 'target', but a learned reward has none; allowed: agents"
        if self.preset == "teacher" and self.start_from is None:
            line = "preset is 'teacher', but start_from is null"
            return f"{line}; allowed: an agent's run or checkpoint, or module:function, whose returns make the reward"
        return super().validate()

    def ineffective(self) -> dict[str, str]:
        linear_reason = f"mode is {self.mode}: its network is a weight for each number in info"
        scale_reason = "rn_evolve_scale goes on from the factor of start_from"
        starts_from_proxy = self.start_from is not None
        layers = ("proxy_hidden_size", "proxy_hidden_layer", "proxy_activation_fn")
        inputs = ("rn_input_center", "rn_input_spread")
        network = (*layers, *inputs, "rn_init", "rn_output_scale", "rn_output", "rn_evolve_scale", "rn_terminal")
        # A rule is a condition, the settings that have no effect if it holds, and the reason.
        return super().ineffective() | reasons_by_setting(
            (self.mode == 0, network, "mode is 0, the task's own reward"),
            (self.mode in (101, 102), (*layers, *inputs), linear_reason),
            (self.proxy_hidden_layer == 0, ("proxy_hidden_size", "proxy_activation_fn"), "proxy_hidden_layer is 0"),
            (starts_from_proxy, ("rn_init",), "start_from says where the search starts"),
            (not starts_from_proxy, ("rn_discount", "rn_episodes"), "start_from is null"),
            (starts_from_proxy and self.rn_evolve_scale, ("rn_output_scale",), scale_reason),
        )


def proxy_defaults(choices: Mapping[str, Any], game: str) -> dict[str, object]:
    """Return the default settings of the learned reward, of the search and of the agents that train with the reward,
    ``{name: value}``, for the environment ``game``. ``choices`` are the settings that the user has chosen. Defaults of
    the preset are overridden by defaults of the game, and these by defaults of the mode. If preset "cheap" has no
    defaults for a game, it has the defaults of "recipe". Raises SettingError for an unknown preset."""
    preset = choices.get("preset", Config.preset)
    if preset not in PRESETS:
        raise choice_error("preset", preset, PRESETS)
    game = game.partition(",")[0]  # name without parameters
    tuned_game = "cartpole-200" if game == "cartpole" else game  # presets.yaml has one entry for both
    tables = load_presets("reward")
    game_defaults = tables["games"].get(preset, {}).get(tuned_game, {})
    if preset == "cheap" and not game_defaults:
        game_defaults = tables["games"]["recipe"].get(tuned_game, {})
    mode = choices.get("mode", game_defaults.get("mode", Config.mode))
    # The user may also write the name of a mode instead of its number. There are no defaults for names and for mode 0.
    mode_number = int(mode) if str(mode).isdecimal() else 0
    mode_defaults = tables["modes"].get(preset, {}).get(tuned_game, {}).get(mode_number, {})
    defaults = tables["presets"][preset] | game_defaults | mode_defaults
    if preset == "teacher":
        defaults |= tables["teacher_agents"].get(str(choices.get("agent")), {})
    num_agents = len(str(choices.get("agent", "")).split(","))  # "DDQN,PPO" are two
    agents_per_proxy = int(str(defaults.get("agents_per_proxy", 1)))
    if agents_per_proxy % num_agents:  # there must be equally many agents of each kind
        defaults["agents_per_proxy"] = num_agents
    solved_reward = choices.get("solved_reward", defaults.get("solved_reward"))
    if solved_reward is None:  # a game without a known threshold
        defaults["choose_by"] = "return"
        if preset == "paper":
            defaults |= {"objective": "final", "inner_rule": "budget"}
    if defaults.get("objective") == "average" and "test_every" not in defaults:
        defaults["test_every"] = 500
    return defaults


def usual_agents(choices: Mapping[str, Any], continuous: bool, cells: bool) -> str:
    """Return the default of the setting ``agent``, the agents that train with the reward: for ``continuous`` actions,
    for ``cells`` as observations, or else for discrete actions. ``choices`` have no effect."""
    return "TD3" if continuous else "QLearning" if cells else "DDQN"


def prepared_games() -> set[str]:
    """Return the games for which the preset "recipe" has settings."""
    return {"cartpole", *load_presets("reward")["games"]["recipe"]}  # "cartpole" has the settings of "cartpole-200"


FAMILY = Family(
    config=Config, implementations={"RN": {}}, learns_from="evolution", proxy_defaults=proxy_defaults,
    usual_agents=usual_agents, prepared_games=prepared_games,
    advice=lambda config: "more --inner_steps or more --generations",
)  # fmt: skip
