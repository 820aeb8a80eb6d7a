"""`Family`, the record that describes a family of implementations, and schedules of training. Imports no torch."""

import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Overrides = Mapping[str, object]
"""Setting -> the value that replaces its default."""
PARTS = ("continuous actions", "discrete actions", "images")
"""Properties that only some environments have. Some settings have an effect only with one of them."""


class Hyperparameters:
    """Base class of the settings of a family, a frozen dataclass of `models.settings.setting` fields."""

    def validate(self) -> str | None:
        """Return one line about settings that conflict, or None if there are none."""
        return None

    def ineffective(self) -> dict[str, str]:
        """Return setting -> the reason why it has no effect in combination with the others."""
        return {}


def reasons_by_setting(*rules: tuple[bool, tuple[str, ...], str]) -> dict[str, str]:
    """Return setting -> the reason why it has no effect, for `Hyperparameters.ineffective`, by ``rules`` such as
    ``(True, ("clip_range",), "there is only one update")``: whether the rule holds, the settings that then have no
    effect, and the reason. If several rules about a setting hold, the reason is from the first of them."""
    reasons: dict[str, str] = {}
    for holds, names, reason in rules:
        if holds:
            reasons = dict.fromkeys(names, reason) | reasons
    return reasons


def limit_error(config: Any, limits: Mapping[str, str]) -> str | None:
    """Return one line about a setting of ``config`` that exceeds its limit, or None if there is none. ``limits`` maps
    a setting to the setting that limits it, such as ``{"batch_size": "buffer_size"}``."""
    for name, limit in limits.items():
        if getattr(config, name) > getattr(config, limit):
            problem = f"{name} is {getattr(config, name)}, but {limit} is {getattr(config, limit)}"
            return f"{problem}; allowed: {name} up to {limit}"
    return None


@dataclass(frozen=True)
class EpisodeSchedule:
    """Schedule of an agent that learns from whole episodes, returned by the property ``schedule`` of its settings. An
    epoch plays ``episodes`` episodes in parallel, and makes gradient steps: an off-policy agent before it plays, on its
    replay buffer; an on-policy agent afterwards, on the episodes of the epoch, which it then forgets. A run ends when
    its score reaches ``target``, or when an evaluation reaches the ``target_return`` of the run."""

    episodes: int  # episodes of an epoch; 0: the agent only learns from ``dataset``
    gradient_steps: int  # gradient steps of an epoch, for statistics only; 0 for an agent without gradients
    on_policy: bool = False
    warm_up: int = 0  # random episodes before the first epoch
    random_epochs: int = 0  # number of epochs at the start of a run in which actions are random
    dataset: str | None = None  # name or folder of recorded episodes, in place of random episodes
    minibatch_steps: int = 0  # steps that an epoch learns from; if ``episodes`` is 0, the run counts these steps
    # The score is the mean return of this number of the latest training episodes. None: it is from greedy evaluations.
    running_mean: int | None = None
    target: float | None = None  # score that ends the run


@dataclass(frozen=True)
class StepSchedule:
    """Schedule of an agent that learns between steps. Its numbers are from the settings of the agent if they define a
    schedule, otherwise from the settings of the run."""

    steps_per_epoch: int  # steps of every member per epoch
    eval_every: int  # epochs between evaluations
    eval_episodes: int
    eval_steps: int | None = None  # largest number of steps of an evaluation episode; None: as in training
    endless: bool = False  # training episodes have no time limit unless the run sets one
    continuing: bool = False  # there are no episodes, so the reward per step is reported instead of the return


@dataclass(frozen=True)
class Family:
    """The record that ends the ``config.py`` of every family: ``FAMILY = Family(...)``.

    A family is a folder of ``models/agents/`` or ``models/proxies/``. `models.registry` finds it there; the command
    line, the help, the error messages and the contract tests then include it. ``config.py`` imports no torch. An
    agent's folder also has an ``agent.py`` with a class ``Agent`` (`models.contract`).

    ``config`` is a subclass of `Hyperparameters`. The docstring of its module names the sources. It may have a property
    ``epochs``, if its settings define the length of a run. ``learns_from`` is the loop that trains the agents:

    - ``episodes``: they update between whole episodes. ``config`` has a property ``schedule`` (`EpisodeSchedule`).
    - ``steps``: they update between steps of the environment. ``config`` has ``num_envs``, equal to the agent's
      ``envs``, and a property ``schedule`` (`StepSchedule`) if its settings define the length of an epoch. Its fields
      ``total_steps``, ``steps_per_epoch``, ``eval_every`` and ``eval_episodes``, if any, replace the run's settings.
    - ``evolution``: it learns a proxy, on which other agents train.
    """

    config: type[Any]
    implementations: Mapping[str, Overrides]  # names for ``--implementation``, each with its overrides of the defaults
    learns_from: Literal["episodes", "steps", "evolution"]
    # Game -> overrides for all implementations, also for agents that train on a proxy of the game.
    game_defaults: Mapping[str, Overrides] = dataclasses.field(default_factory=dict)
    # Overrides for agents that train on a proxy, of any game.
    defaults_on_proxies: Overrides = dataclasses.field(default_factory=dict)
    # (Implementation, game) or (implementation, game, preset) -> overrides, but not for agents that train on a proxy.
    environment_presets: Mapping[tuple[str, ...], Overrides] = dataclasses.field(default_factory=dict)
    # Preset -> implementation -> overrides. ``config`` then has a field ``preset``, whose default changes nothing.
    presets: Mapping[str, Mapping[str, Overrides]] = dataclasses.field(default_factory=dict)
    preset_game: Callable[[str], str | None] = lambda preset: None  # the game that a preset is for; None: any game
    # Evolution: overrides for proxy and inner agents, from the user's choices and the game. Raises SettingError.
    proxy_defaults: Callable[[Mapping[str, Any], str], Overrides] = lambda choices, game: {}
    # Evolution: the default inner agents, from the user's choices, whether actions are continuous, and whether
    # observations are numbered cells.
    usual_agents: Callable[[Mapping[str, Any], bool, bool], str] = lambda choices, continuous, cells: "DDQN"
    prepared_games: Callable[[], Collection[str]] = lambda: ()  # evolution: the games for which presets have settings
    advice: Callable[[Any], str] = lambda config: ""  # evolution: settings to try after a search that failed
    replaced: Mapping[str, str] = dataclasses.field(default_factory=dict)  # run's setting -> the family's, or ""
    changeable: Callable[[Any], tuple[str, ...]] = lambda config: ()  # settings that a resumed run may change
    default_epochs: int | None = None  # None: the run's default
    accelerators: tuple[str, ...] = ("cpu",)  # devices on which its agents can learn
    trains_on_proxies: bool = False  # whether its agents are `models.contract.InnerAgent`

    @property
    def package(self) -> str:
        """The family's folder as a module: ``models.agents.ddqn``."""
        return self.config.__module__.rpartition(".")[0]

    @property
    def has_machine_code(self) -> bool:
        """Whether the folder has a file ``compiled.py``. Some settings of its agents may still need torch."""
        return importlib.util.find_spec(f"{self.package}.compiled") is not None

    @property
    def sources(self) -> str:
        """The docstring of ``config.py``, which lists the sources."""
        return sys.modules[self.config.__module__].__doc__ or ""
