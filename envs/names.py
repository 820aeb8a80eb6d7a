"""The names for ``--gamename``: a table of games, files of this folder that declare a ``GAME``, and every registered
Gymnasium id. Imports no torch.

The name of an environment with parameters contains the parameters that differ from the table, sorted, as in YAML:
``procmaze,grid_size=5,teleport_on_termination=false``.
"""

import contextlib
import functools
import importlib.util
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from models.settings import (
    INTEGER,
    SettingError,
    check,
    check_value,
    closest,
    format_value,
    nearest,
    read,
    setting,
    spelt,
)

PROBE_PREFIX = "probe-"


@dataclass(frozen=True)
class Parameters:
    """Base of the parameters of an environment: a frozen dataclass of `models.settings.setting` fields. Values are
    checked against their ranges; raises SettingError."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class GridParameters(Parameters):
    """Parameters of `envs.procmaze.ProcMaze` and `envs.gridworld.OpenGrid`."""

    grid_size: int = setting(10, "cells along a side of the grid", minimum=2, maximum=100)
    spontaneous_termination: bool = setting(True, "rare events, which end the search for the goal")
    teleport_on_termination: bool = setting(True, "an event moves the player to the goal; off, it ends the episode")


@dataclass(frozen=True)
class ButtonParameters(Parameters):
    """Parameters of `envs.buttongrid.ButtonGrid`."""

    grid_size: int = setting(10, "cells along a side of the grid", minimum=2, maximum=100)
    num_buttons: int = setting(3, "buttons, each on a cell of its own", minimum=1, maximum=10_000)
    spontaneous_reset: bool = setting(True, "rare events, which change the buttons")
    activate_on_reset: bool = setting(True, "an event switches all buttons on; off, it starts a new arrangement")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_value("num_buttons", self.num_buttons, INTEGER, {"minimum": 1, "maximum": self.grid_size**2})


@dataclass(frozen=True)
class FluteParameters(Parameters):
    """Parameters of `envs.panflute.PanFlute`."""

    num_pipes: int = setting(5, "pipes, of length 1, 2, ...; as many actions", minimum=1, maximum=100)
    spontaneous_reward: bool = setting(True, "rare events, which put notes at all ends")


@dataclass(frozen=True)
class RepeatParameters(Parameters):
    """Parameters of `envs.repeated.RepeatedDynamics` and `envs.wrappers.RepeatAction`."""

    action_repeat: int = setting(
        1, "times that each action is taken; time limits count these, all else counts actions", minimum=1, maximum=1000
    )


def _physical(default: float, help: str) -> Any:
    return setting(default, help, above=0, maximum=1000.0)


@dataclass(frozen=True)
class CartPoleParameters(Parameters):
    """Parameters of `envs.cartpole.CartPole` and `envs.wrappers.CartPolePhysics`; the defaults are Gymnasium's."""

    gravity: float = _physical(9.8, "of CartPole, in m/s^2")
    cart_mass: float = _physical(1.0, "kg")
    pole_mass: float = _physical(0.1, "kg")
    half_length: float = _physical(0.5, "of the pole, in m")
    force: float = _physical(10.0, "of a push, in N")
    physics_spread: float = setting(
        1.0,
        "every episode has a gravity, masses and a half length of its own: those above, times factors that are "
        "log-uniform between 1 over this number and this number",
        minimum=1.0,
        maximum=10.0,
    )


@dataclass(frozen=True)
class Game:
    """One environment by name.

    ``gym_id`` is the Gymnasium id, ``module:id`` if a module must be imported first; empty for probes.
    ``max_return`` is an upper bound on returns, None if unknown. Commands are clipped to it.
    ``kwargs`` go to ``gymnasium.make``, except ``action_repeat`` (`envs.wrappers.RepeatAction`) and the fields of
    `CartPoleParameters` (`envs.wrappers.CartPolePhysics`); ``wrappers`` are classes of ``envs/wrappers.py``, applied in
    order.
    ``dynamics`` is ``module:class`` of the environment as a tensor program (`envs.tensor.Dynamics`, made with the same
    ``kwargs``), empty if there is none. It replaces the Gymnasium id except to draw frames.
    ``parameters`` is the class of the ``kwargs`` that a name may change (`Parameters`), None if there are
    none. Its fields have the names and defaults of the constructor's arguments and become flags.
    ``info`` names the numbers of Gymnasium's ``info`` in `envs.base.Step.info`, in this order.
    """

    name: str
    gym_id: str = ""
    max_return: float | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()
    dynamics: str = ""
    parameters: type[Parameters] | None = None
    info: tuple[str, ...] = ()

    @property
    def base_name(self) -> str:
        """The name without parameters."""
        return self.name.partition(",")[0]

    def in_use(self) -> dict[str, Any]:
        """Every parameter with its value in this game."""
        values = asdict(self.parameters()) if self.parameters else {}
        return {name: self.kwargs.get(name, value) for name, value in values.items()}

    @property
    def is_probe(self) -> bool:
        return self.name.startswith(PROBE_PREFIX)


def _tensor_game(dynamics: str, max_return: float, parameters: type[Parameters], **kwargs: Any) -> Game:
    """A tensor program ``module:class`` of this folder that is also registered with Gymnasium, of 100 steps at most."""
    kwargs["max_episode_steps"] = 100
    name = dynamics.partition(":")[2]
    return Game(
        name.lower(), f"understudy/{name}-v0", max_return, kwargs, dynamics=f"envs.{dynamics}", parameters=parameters
    )


def _map(name: str, max_return: float, steps: int) -> Game:
    """A map of `envs.gridmaps.MAPS`, also registered with Gymnasium, of that many steps at most."""
    kwargs = {"map_name": name.lower(), "max_episode_steps": steps}
    return Game(name.lower(), f"understudy/{name}-v0", max_return, kwargs, dynamics="envs.gridmaps:GridMap")


def _repeatable(name: str, dynamics: str, gym_id: str, steps: int, max_return: float | None = None) -> Game:
    """A tensor program ``module:class`` of this folder with the parameter ``action_repeat`` and a limit of
    ``steps``."""
    kwargs = {"max_episode_steps": steps}
    return Game(name, gym_id, max_return, kwargs, dynamics=f"envs.{dynamics}", parameters=RepeatParameters)


_TABLE = (
    # 320 is the cap on commanded returns of the published Upside-Down RL runs.
    Game("lunarlander", "LunarLander-v3", 320.0),
    Game("beresheet", "LunarLander-v3", 320.0, {"max_episode_steps": 300}),
    Game("lunarlander-sparse", "LunarLander-v3", 320.0, wrappers=("SparseReward",)),
    # One point a frame alive; 2100 frames (60 s) is the time limit of the task as published, absent from the id.
    Game("takecover", "vizdoom.gymnasium_wrapper:VizdoomTakeCover-v1", 2100.0, {"max_episode_steps": 2100}),
    Game("cartpole", "CartPole-v1", 500.0, dynamics="envs.cartpole:CartPole", parameters=CartPoleParameters),
    Game(
        "cartpole-200",
        "CartPole-v0",
        200.0,
        {"max_episode_steps": 200},
        dynamics="envs.cartpole:CartPole",
        parameters=CartPoleParameters,
    ),
    Game("acrobot", "Acrobot-v1", dynamics="envs.acrobot:Acrobot"),
    _repeatable("mountaincar", "mountaincar:MountainCar", "MountainCar-v0", 200),
    _repeatable("mountaincar-continuous", "mountaincar:MountainCarContinuous", "MountainCarContinuous-v0", 999, 100.0),
    _repeatable("pendulum", "pendulum:Pendulum", "Pendulum-v1", 200, 0.0),
    Game("carracing", "CarRacing-v3", 1000.0),
    # The id has no time limit, and a greedy policy that walks into a wall would never come back.
    Game("cliffwalking", "CliffWalking-v1", -13.0, {"max_episode_steps": 200}, dynamics="envs.gridmaps:CliffWalking"),
    # Numbers in the info of a step. The published reward networks saw HalfCheetah-v3, whose reward_run is
    # reward_forward now.
    Game("halfcheetah", "HalfCheetah-v5", info=("x_position", "x_velocity", "reward_forward", "reward_ctrl")),
    Game(
        "hopper",
        "Hopper-v5",
        info=(
            "x_position",
            "z_distance_from_origin",
            "x_velocity",
            "reward_forward",
            "reward_ctrl",
            "reward_survive",
        ),
    ),
    Game(
        "swimmer",
        "Swimmer-v5",
        info=(
            "x_position",
            "y_position",
            "distance_from_origin",
            "x_velocity",
            "y_velocity",
            "reward_forward",
            "reward_ctrl",
        ),
    ),
    # Limits as published with reward networks (Ferreira et al. 2022). The goal pays 1 in a room, and steps cost.
    _map("Cliff", -12.0, 50),
    _map("EmptyRoom22", 1.0, 10),
    _map("EmptyRoom23", 1.0, 15),
    _map("EmptyRoom33", 1.0, 20),
    _map("WallRoom", 1.0, 30),
    _map("HoleRoom", 1.0, 30),
    _map("HoleRoomLarge", 1.0, 30),
    _map("HoleRoomLargeShifted", 1.0, 30),
    # Cut after as many steps as the evaluations of model-based generalisation have (Young et al. 2023).
    _tensor_game("procmaze:ProcMaze", -1.0, GridParameters, grid_size=4),
    _tensor_game("gridworld:OpenGrid", -1.0, GridParameters),
    _tensor_game("buttongrid:ButtonGrid", 100.0, ButtonParameters),
    _tensor_game("panflute:PanFlute", 100.0, FluteParameters),
)
_CONTINUOUS = ("mountaincar-continuous", "pendulum", "carracing", "halfcheetah", "hopper", "swimmer")
_PROBES = ("1", "2", "3", "4", "5", "4-continuous", "5-continuous", "truncated", "truncated-continuous")
GAMES: dict[str, Game] = {game.name: game for game in _TABLE}
for _name in _PROBES:
    GAMES[PROBE_PREFIX + _name] = Game(PROBE_PREFIX + _name, max_return=8.0 if "truncated" in _name else 1.0)


def resolve(name: str) -> Game:
    """The environment of that name: from the table, or any registered Gymnasium id (``module:Env-v0`` if the module is
    already imported; names come from files too, so nothing is imported here). Parameters in a name come in any order;
    the name in the `Game` has them sorted.

    An id without a version means the newest; one whose version is gone is mapped to the newest, with a note on
    stderr. An id in the table (``LunarLander-v3``) gives its `Game`. Case and separators are ignored
    (`models.settings.spelt`). Raises SettingError with the nearest name.
    """
    name = spelt(name, [*GAMES, *declared()])
    if name in GAMES:
        return GAMES[name]
    if name in declared():
        game: Game = importlib.import_module(declared()[name]).GAME
        return game
    if "," in name:
        game, values = taken_apart(name)
        try:
            return with_parameters(game, values)
        except SettingError as error:
            raise SettingError(f"gamename is {format_value(name)}: {error}", "gamename") from error
    module, _, env_id = name.rpartition(":")
    if module and module not in sys.modules:
        line = (
            f"gamename is {format_value(name)}: only a flag can have module {module} imported; give --import {module}"
        )
        raise SettingError(line, "gamename")
    gym_id = _registered(env_id)
    if gym_id is None:
        raise _unknown(name)
    full = f"{module}:{gym_id}" if module else gym_id
    if env_id.lower() != gym_id.lower():
        print(f"note: gamename {name} is now {full}", file=sys.stderr)
    return next((g for g in _TABLE if g.gym_id == full and not g.wrappers), Game(full, full))


def import_module(setting: str, value: str) -> None:
    """Import the module in ``value``, ``module`` or ``module:Env-v0``, which a flag or a keyword gave for ``setting``,
    if only in the process that sends this one its work. Raises SettingError."""
    module = value.rpartition(":")[0] if setting == "gamename" else value
    try:
        if module or setting != "gamename":
            importlib.import_module(module)
    except (Exception, SystemExit) as error:  # an unknown module may raise anything while it is imported
        line = f"{setting} is {value!r}: module {module} cannot be imported ({first_line(error)})"
        raise SettingError(line, setting) from error


@functools.cache
def declared() -> dict[str, str]:
    """Name -> module of environments outside the table: files of this folder with a line that begins ``GAME =
    Game("name"``, unannotated. They are read as text, because importing them imports torch. Raises RuntimeError for a
    name that is taken."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))}
    matches = {stem: re.search(r'^GAME = Game\(\s*"([^"]+)"', text, re.MULTILINE) for stem, text in texts.items()}
    modules: dict[str, str] = {}
    for stem, match in matches.items():
        if match and (match[1] in GAMES or match[1] in modules):
            raise RuntimeError(f"environment {match[1]} is in {modules.get(match[1], __name__)} and in envs.{stem}")
        if match:
            modules[match[1]] = f"envs.{stem}"
    return modules


def taken_apart(name: str) -> tuple[Game, dict[str, Any]]:
    """The `Game` before the first comma of a name and the parameters behind it, not yet held against their ranges.
    Raises SettingError."""
    base_name, *pairs = name.split(",")
    game, values = resolve(base_name), {}
    parameters = game.in_use()
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not parameters:
            raise SettingError(
                f"gamename is {format_value(name)}; allowed: {game.name}, which has no parameters", "gamename"
            )
        if key not in parameters:
            hint = nearest(key, parameters) or f"; allowed: {', '.join(parameters)}"
            raise SettingError(f"gamename is {format_value(name)}: {key or pair!r} is unknown{hint}", "gamename")
        if not equals or key in values:
            wrong = "is given twice" if equals else f"needs a value: {key}={str(parameters[key]).lower()}"
            raise SettingError(f"gamename is {format_value(name)}: {key} {wrong}", "gamename")
        try:
            values[key] = read(type(parameters[key]), text)
        except ValueError:
            values[key] = text
    return game, values


def with_parameters(game: Game, values: Mapping[str, Any]) -> Game:
    """``game``, whose name has no parameters, with parameters ``values``. Raises SettingError for a value out of
    range."""
    if game.parameters is None or not values:
        return game
    parameters = game.in_use()
    game.parameters(**{**parameters, **values})
    changes = {name: values[name] for name in sorted(values) if values[name] != parameters[name]}
    pairs = [f"{name}={str(value).lower()}" for name, value in changes.items()]
    return replace(game, name=",".join([game.name, *pairs]), kwargs={**game.kwargs, **changes}) if pairs else game


@functools.cache
def is_continuous(name: str) -> bool:
    """Whether an environment takes continuous actions; False if it cannot be made."""
    base_name = name.partition(",")[0]
    if base_name in GAMES or base_name in declared():
        return base_name in _CONTINUOUS or base_name.endswith("-continuous")
    try:
        from gymnasium import make, spaces

        with contextlib.closing(make(resolve(base_name).gym_id)) as env:
            return isinstance(env.action_space, spaces.Box)
    except Exception:  # of somebody else's
        return False


def games_with(parameter: str) -> list[str]:
    """Names of the environments that have this parameter."""
    return [game.name for game in (*_TABLE, *map(resolve, declared())) if parameter in game.in_use()]


def register_ours() -> None:
    """Register the tensor programs of the table, and the environments of `understudy`, with Gymnasium."""
    from gymnasium.envs.registration import register, registry

    import understudy  # noqa: F401  # registers its own

    for game in _TABLE:
        if game.gym_id.startswith("understudy/") and game.gym_id not in registry:
            fixed = dict(game.kwargs)
            limit = fixed.pop("max_episode_steps", None)
            kwargs = {"dynamics": game.dynamics, **fixed}
            register(game.gym_id, "envs.tensor_gym:TensorGym", max_episode_steps=limit, kwargs=kwargs)


def reward_threshold(name: str) -> float | None:
    """The mean return at which Gymnasium considers the environment solved; None without one. Raises SettingError."""
    from gymnasium.envs.registration import registry

    spec = registry.get(resolve(name).gym_id.rpartition(":")[2])
    return None if spec is None or spec.reward_threshold is None else float(spec.reward_threshold)


def _ids() -> dict[str, str]:
    """The Gymnasium ids that can be made, and the module that each is defined in."""
    from gymnasium.envs.registration import registry

    register_ours()
    # Retired ids stay registered, with an entry point that raises.
    points = {name: spec.entry_point for name, spec in registry.items()}
    points = {name: point for name, point in points.items() if not getattr(point, "__name__", "").startswith("_raise_")}
    return {name: getattr(point, "__module__", str(point).partition(":")[0]) for name, point in points.items()}


def _registered(env_id: str) -> str | None:
    """The registered id for ``env_id``: itself if it can be made, else its newest version."""
    ids = _ids()
    env_id = spelt(env_id, ids)
    id_match = re.fullmatch(r"(.+?)(?:-[vV](\d+))?", env_id)
    if id_match is None or env_id in ids:
        return env_id if id_match else None
    matches = [match for gym_id in ids if (match := re.fullmatch(r"(.+)-v(\d+)", gym_id))]
    base = spelt(id_match[1], {match[1] for match in matches})
    newest = max((int(match[2]) for match in matches if match[1] == base), default=-1)
    return f"{base}-v{newest}" if int(id_match[2] or -1) < newest else None


def _unknown(name: str) -> SettingError:
    ids, (module, _, env_id) = _ids(), name.rpartition(":")
    # What the module or its package registered first: its name in front would make any of its ids look similar.
    package = module.partition(".")[0]
    own_ids = [gym_id for gym_id, home in ids.items() if home.partition(".")[0] == (package or name)]
    if not module and "/" in env_id and not any(gym_id.startswith(env_id.partition("/")[0] + "/") for gym_id in ids):
        line = f"no module that was imported registers ids of {env_id.partition('/')[0]}"
        return SettingError(
            f"gamename is {format_value(name)}: {line}; give --import and the one that does", "gamename"
        )
    close = closest(env_id, own_ids if module else ())
    suggestion = f"{module}:{close}" if close else closest(env_id, [*GAMES, *declared(), *ids])
    if not module and not suggestion and name.isidentifier() and importlib.util.find_spec(name):
        line = f"that is a module; allowed: an id that it registers, as {name}:{own_ids[0] if own_ids else 'MyEnv-v0'}"
        return SettingError(f"gamename is {format_value(name)}: {line}", "gamename")
    hint = f"; did you mean '{suggestion}'? Allowed:" if suggestion else "; allowed:"
    listed = ", ".join([*(game.name for game in _TABLE), *declared()])
    return SettingError(f"gamename is {format_value(name)}{hint} {listed}, or any Gymnasium id", "gamename")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if there is no message."""
    try:
        return str(error).strip().splitlines()[0]
    except Exception:
        return type(error).__name__
