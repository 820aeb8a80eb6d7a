"""`Family`, the record that describes a family of implementations, and schedules of training. Imports no torch."""

import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Overrides = Mapping[str, object]
"""Setting -> the value that replaces its default."""
PARTS = ("continuous actions", "discrete actions", "images")
"""Properties that only some environments have. Some settings have an effect only with one of them."""


def reasons_by_setting(*rules: tuple[bool, tuple[str, ...], str]) -> dict[str, str]:
    """Return setting -> the reason why it has no effect, for `Family.ineffective`. A rule has three items: whether it
    holds, the names of settings that then have no effect, and the reason. If a setting is in several rules that hold,
    the reason is from the first one."""
    # Reversed, because later entries of a dict replace earlier ones.
    return {name: reason for holds, names, reason in reversed(rules) if holds for name in names}


def limit_error(config: Any, limits: Mapping[str, str]) -> str | None:
    """Return the error about a setting that exceeds its limit, as one line, or None if there is none. ``limits`` maps
    the name of a setting to the name of the setting that is its limit."""
    for name, limit in limits.items():
        if getattr(config, name) > getattr(config, limit):
            problem = f"{name} is {getattr(config, name)}, but {limit} is {getattr(config, limit)}"
            return f"{problem}; allowed: {name} up to {limit}"
    return None


@dataclass(frozen=True)
class EpisodeSchedule:
    """Schedule of an agent that learns from whole episodes. The property ``schedule`` of its settings returns one.

    An epoch plays a number of ``episodes`` in parallel, and makes gradient steps. An off-policy agent makes them before
    it plays, on its replay buffer. An ``on_policy`` agent makes them afterwards, on the episodes of the epoch, and then
    forgets these. ``gradient_steps`` is their number, which is only counted; 0 for an agent without gradients.
    ``warm_up`` random episodes precede the first epoch, and the first ``random_epochs`` epochs play at random. A
    ``dataset`` of recorded episodes takes the place of random episodes. If ``episodes`` is 0, an epoch plays none, and
    the run counts the ``minibatch_steps`` that an epoch learns from.

    If ``running_mean`` is set, the score of the run is the mean return of its latest ``running_mean`` training
    episodes, and the run ends once the score reaches ``target``. Otherwise the score is from greedy evaluations. Both
    kinds of run also end when an evaluation reaches the ``target_return`` of the run.
    """

    episodes: int
    gradient_steps: int
    on_policy: bool = False
    warm_up: int = 0
    random_epochs: int = 0
    dataset: str | None = None
    minibatch_steps: int = 0
    running_mean: int | None = None
    target: float | None = None


@dataclass(frozen=True)
class StepSchedule:
    """Schedule of an agent that learns between steps. Its numbers are from the settings of the agent if they define a
    schedule, otherwise from the settings of the run.

    An epoch is ``steps_per_epoch`` steps of every member. Every ``eval_every`` epochs, an evaluation plays
    ``eval_episodes`` episodes of at most ``eval_steps`` steps (None: as in training). If ``endless``, training episodes
    have no time limit unless the run sets one. If ``continuing``, the environment has no episodes, so the reward per
    step is reported instead of the return.
    """

    steps_per_epoch: int
    eval_every: int
    eval_episodes: int
    eval_steps: int | None = None
    endless: bool = False
    continuing: bool = False


@dataclass(frozen=True)
class Family:
    """The record that ends the ``config.py`` of every family: ``FAMILY = Family(...)``.

    A family is a folder of ``models/agents/`` or ``models/proxies/``. `models.registry` finds it there; the command
    line, the help, the error messages and the contract tests then include it. ``config.py`` imports no torch. An
    agent's folder also has an ``agent.py`` with a class ``Agent`` (`models.contract`).

    A family must have:

    - ``config``: a frozen dataclass of `models.settings.setting` fields. The docstring of its module names the sources.
      It may have a property ``epochs``, if its settings define the length of a run. If ``learns_from`` is ``steps``, it
      may have a property ``schedule`` (`StepSchedule`), if its settings define the length of an epoch. Its fields
      ``total_steps``, ``steps_per_epoch``, ``eval_every`` and ``eval_episodes``, if any, replace the settings of the
      run.
    - ``implementations``: the names for ``--implementation``, each with its overrides of the defaults.
    - ``learns_from``: which loop trains it. ``episodes``: it updates between whole episodes, and ``config`` has a
      property ``schedule`` (`EpisodeSchedule`). ``steps``: it updates between steps of the environment, and ``config``
      has ``num_envs``, equal to the agent's ``envs``. ``evolution``: it learns a proxy, on which other agents train.

    It may have:

    - ``game_defaults``: game -> overrides for all implementations, also for agents that train on a proxy of the game.
    - ``environment_presets``: ``(implementation, game)`` -> overrides, but not for agents that train on a proxy.
    - ``presets``: preset -> implementation -> overrides. ``config`` then has a field ``preset``; its default value
      changes nothing.
    - ``preset_game(preset)``: the game that a preset is for, None if it is for any game.
    - ``proxy_defaults(choices, game)``: the overrides for proxy and inner agents (``evolution`` only). ``choices`` are
      the settings that the user has chosen. Raises SettingError.
    - ``usual_agents(choices, continuous)``: the default inner agents (``evolution`` only). ``continuous`` says whether
      the actions of the environment are continuous.
    - ``prepared_games``: the games for which presets have settings (``evolution`` only).
    - ``advice(config)``: settings to try after a search that failed (``evolution`` only).
    - ``validate(config)``: one line that names conflicting settings, None if there are none.
    - ``ineffective(config)``: name -> reason, for the settings that have no effect in ``config``.
    - ``replaced``: name of a setting of the run -> the setting of the family that replaces it, or "".
    - ``changeable(config)``: names of settings that a resumed run may change.
    - ``accelerators``: devices on which its agents can learn.
    - ``trains_on_proxies``: whether its agents can train on a proxy; if so, they are `models.contract.InnerAgent`.
    """

    config: type[Any]
    implementations: Mapping[str, Overrides]
    learns_from: Literal["episodes", "steps", "evolution"]
    game_defaults: Mapping[str, Overrides] = dataclasses.field(default_factory=dict)
    environment_presets: Mapping[tuple[str, str], Overrides] = dataclasses.field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Overrides]] = dataclasses.field(default_factory=dict)
    preset_game: Callable[[str], str | None] = lambda preset: None
    proxy_defaults: Callable[[Mapping[str, Any], str], Overrides] = lambda choices, game: {}
    usual_agents: Callable[[Mapping[str, Any], bool], str] = lambda choices, continuous: "DDQN"
    prepared_games: frozenset[str] = frozenset()
    advice: Callable[[Any], str] = lambda config: ""
    validate: Callable[[Any], str | None] = lambda config: None
    ineffective: Callable[[Any], Mapping[str, str]] = lambda config: {}
    replaced: Mapping[str, str] = dataclasses.field(default_factory=dict)
    changeable: Callable[[Any], tuple[str, ...]] = lambda config: ()
    accelerators: tuple[str, ...] = ("cpu",)
    trains_on_proxies: bool = False

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
