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
    """Return setting -> the reason why it has no effect, for `Family.ineffective`. A rule is ``(holds, names of
    settings, reason)``. If several rules that hold contain a setting, the first gives the reason."""
    # Reversed, because later entries of a dict replace earlier ones.
    return {name: reason for holds, names, reason in reversed(rules) if holds for name in names}


def limit_error(config: Any, limits: Mapping[str, str]) -> str | None:
    """Return the error about the first setting in ``limits`` that exceeds its limit, another setting, as one line; None
    if none does."""
    for name, limit in limits.items():
        if getattr(config, name) > getattr(config, limit):
            problem = f"{name} is {getattr(config, name)}, but {limit} is {getattr(config, limit)}"
            return f"{problem}; allowed: {name} up to {limit}"
    return None


@dataclass(frozen=True)
class EpisodeSchedule:
    """Schedule of an agent that learns from whole episodes. The property ``schedule`` of its settings returns one.

    An epoch plays ``episodes`` in parallel and makes gradient steps. Off-policy, it learns from the replay buffer
    before it plays; ``on_policy``, it learns from these episodes afterwards and then forgets them. ``gradient_steps``
    is only used to count them; it is 0 for an agent without gradients. ``warm_up`` random episodes precede the first
    epoch, and the first ``random_epochs`` epochs play at random. A ``dataset`` of recorded episodes takes the place of
    the random ones. With 0 ``episodes`` an epoch plays none, and counts the ``minibatch_steps`` that it learns from.

    If ``running_mean`` is set, the run's score is the mean return of its latest ``running_mean`` training episodes, and
    the run ends once the score reaches ``target``. Otherwise greedy evaluations give the score. Evaluations end either
    kind of run when they reach the run's ``target_return``.
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
    """Schedule of an agent that learns between steps. Its numbers are from the agent's settings if they define a
    schedule, else from the run's.

    An epoch is ``steps_per_epoch`` steps of every member. Every ``eval_every`` epochs, an evaluation plays
    ``eval_episodes`` episodes of at most ``eval_steps`` steps (None: as in training). ``endless``: training episodes
    have no time limit except the run's. ``continuing``: the environment has no episodes, so the reward per step says
    more than the return.
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

    - ``config``: a frozen dataclass of `models.settings.setting` fields. Its module's docstring names the sources. It
      may have a property ``epochs``, if its settings define the length of a run, and, with ``steps``, a property
      ``schedule`` (`StepSchedule`), if they define the length of an epoch. Fields ``total_steps``, ``steps_per_epoch``,
      ``eval_every`` and ``eval_episodes`` replace the run's.
    - ``implementations``: the names for ``--implementation``, each with its overrides of the defaults.
    - ``learns_from``: which loop trains it. ``episodes``: it updates between whole episodes, and ``config`` has a
      property ``schedule``. ``steps``: it updates between steps of the environment, and ``config`` has ``num_envs``,
      equal to the agent's ``envs``. ``evolution``: it learns a proxy, on which agents of other families train.

    It may have:

    - ``game_defaults``: game -> overrides of all implementations, also of agents that train on a proxy of the game.
    - ``environment_presets``: ``(implementation, game)`` -> overrides, not of agents that train on a proxy.
    - ``presets``: preset -> implementation -> overrides. ``config`` then has a field ``preset``; its default value
      changes nothing.
    - ``preset_game(preset)``: the game that a preset is for, None for a preset of any game.
    - ``proxy_defaults(choices, game)``: the overrides of proxy and inner agent for the settings chosen so far
      (``evolution`` only). Raises SettingError.
    - ``usual_agents(choices, continuous)``: the default agents that train on its proxies (``evolution`` only), for
      the settings chosen so far. ``continuous``: whether the environment's actions are continuous.
    - ``prepared_games``: the games for which presets have settings (``evolution`` only).
    - ``advice(config)``: settings to try after a search that failed (``evolution`` only).
    - ``validate(config)``: one line that names conflicting settings, None if there are none.
    - ``ineffective(config)``: name -> reason, of settings that have no effect in this combination.
    - ``replaced``: name of a run's setting -> the family's setting that replaces it, or "".
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
