"""The names for ``--gamename``: a table of games, and every registered Gymnasium id. Imports no torch.

A name may contain parameters: ``procmaze,grid_size=5,teleport_on_termination=false``. In the name of a `Game` they are
sorted and written as in YAML, without the table's values. The parameters of a Gymnasium environment are arguments of
its constructor: ``FrozenLake-v1,is_slippery=false``.
"""

import contextlib
import difflib
import functools
import importlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from models.settings import (
    INTEGER,
    MAX_ITEMS,
    SettingError,
    allowed_clause,
    check,
    check_value,
    closest,
    format_value,
    match_spelling,
    nearest,
    parse_value,
    setting,
)


@dataclass(frozen=True)
class Parameters:
    """Base class for the parameters of an environment. Raises SettingError for a value that is out of range."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class GridParameters(Parameters):
    """Parameters of `envs.gridworld.ProcMaze` and `envs.gridworld.OpenGrid`."""

    grid_size: int = setting(10, "cells along a side of the grid", minimum=2, maximum=100)
    spontaneous_termination: bool = setting(True, "rare events, which end the search for the goal")
    teleport_on_termination: bool = setting(True, "an event moves the player to the goal; off, it ends the episode")


@dataclass(frozen=True)
class ButtonParameters(Parameters):
    """Parameters of `envs.gridworld.ButtonGrid`."""

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
    """Parameter of `envs.classic_control.RepeatedDynamics` and `envs.wrappers.RepeatAction`."""

    action_repeat: int = setting(
        1, "times that each action is taken; time limits count these, all else counts actions", minimum=1, maximum=1000
    )


_physics_setting = functools.partial(setting, above=0, maximum=1000.0)


@dataclass(frozen=True)
class CartPoleParameters(Parameters):
    """Parameters of `envs.classic_control.CartPole`; the defaults are Gymnasium's."""

    gravity: float = _physics_setting(9.8, "of CartPole, in m/s^2")
    cart_mass: float = _physics_setting(1.0, "kg")
    pole_mass: float = _physics_setting(0.1, "kg")
    half_length: float = _physics_setting(0.5, "of the pole, in m")
    force: float = _physics_setting(10.0, "of a push, in N")
    physics_spread: float = setting(
        1.0,
        "every episode has a gravity, masses and a half length of its own: those above, times factors that are "
        "log-uniform between 1 over this number and this number",
        minimum=1.0,
        maximum=10.0,
    )


@dataclass(frozen=True)
class Game:
    """One environment with its name. Its tensor program, if there is one, replaces Gymnasium's except to draw
    frames."""

    name: str
    # Gymnasium's id, or ``module:id`` if a module must be imported first. May be empty if there are ``dynamics``.
    gym_id: str = ""
    max_return: float | None = None  # upper bound on returns, to which commanded returns are clipped; None if unknown
    # Arguments of ``gymnasium.make``, except ``action_repeat`` (`envs.wrappers.RepeatAction`), and of ``dynamics``.
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()  # classes of ``envs/wrappers.py``, applied in order
    dynamics: str = ""  # ``module:class`` of the tensor program (`envs.tensor.Dynamics`); empty if there is none
    # A field for each of the ``kwargs`` that a name may change, with the same default. Every field is also a flag.
    parameters: type[Parameters] | None = None
    info: tuple[str, ...] = ()  # entries of Gymnasium's ``info`` that `envs.base.Step.info` contains, in this order

    @property
    def base_name(self) -> str:
        """The name without parameters."""
        return self.name.partition(",")[0]

    @property
    def takes_arguments(self) -> bool:
        """Whether a name may have any arguments of ``gymnasium.make``. False for tensor programs, and for games with
        ``parameters``, whose names may have only these."""
        return self.parameters is None and not self.dynamics

    def parameter_values(self) -> dict[str, Any]:
        """Return every parameter with its value in this game."""
        values = asdict(self.parameters()) if self.parameters else {}
        return {name: self.kwargs.get(name, value) for name, value in values.items()}


def _tensor_game(dynamics: str, max_return: float, parameters: type[Parameters], **kwargs: Any) -> Game:
    """Return the `Game` of a tensor program ``module:class`` of this folder, such as ``gridworld:ProcMaze``, with a
    time limit of 100 steps. ``kwargs`` replace defaults of its ``parameters``."""
    kwargs["max_episode_steps"] = 100
    name = dynamics.partition(":")[2]
    return Game(
        name.lower(), f"understudy/{name}-v0", max_return, kwargs, dynamics=f"envs.{dynamics}", parameters=parameters
    )


def _map_game(name: str, max_return: float, steps: int) -> Game:
    """Return the `Game` of a map with a time limit of ``steps``. ``name`` is its name in Gymnasium, such as
    ``EmptyRoom22``, and in lower case its key in `envs.gridmaps.MAPS`."""
    kwargs = {"map_name": name.lower(), "max_episode_steps": steps}
    return Game(name.lower(), f"understudy/{name}-v0", max_return, kwargs, dynamics="envs.gridmaps:GridMap")


def _repeatable_game(name: str, dynamics: str, gym_id: str, steps: int, max_return: float | None = None) -> Game:
    """Return the `Game` of a tensor program ``module:class`` of this folder with the parameter ``action_repeat``."""
    kwargs = {"max_episode_steps": steps}
    return Game(name, gym_id, max_return, kwargs, dynamics=f"envs.{dynamics}", parameters=RepeatParameters)


_DOOM = {"max_episode_steps": 2100, "action_repeat": 4, "screen_resolution": "RES_160X120"}
_TABLE = (
    # 320 is the cap on commanded returns of the published Upside-Down RL runs.
    Game("lunarlander", "LunarLander-v3", 320.0),
    Game("beresheet", "LunarLander-v3", 320.0, {"max_episode_steps": 300}),
    Game("lunarlander-sparse", "LunarLander-v3", 320.0, wrappers=("SparseReward",)),
    # One point per frame alive. The published task has a time limit of 2100 frames (60 s), but the id has none.
    Game("takecover", "vizdoom.gymnasium_wrapper:VizdoomTakeCover-v1", 2100.0, _DOOM, parameters=RepeatParameters),
    Game("cartpole", "CartPole-v1", 500.0, dynamics="envs.classic_control:CartPole", parameters=CartPoleParameters),
    Game(
        "cartpole-200",
        "CartPole-v0",
        200.0,
        {"max_episode_steps": 200},
        dynamics="envs.classic_control:CartPole",
        parameters=CartPoleParameters,
    ),
    Game("acrobot", "Acrobot-v1", dynamics="envs.classic_control:Acrobot"),
    _repeatable_game("mountaincar", "classic_control:MountainCar", "MountainCar-v0", 200),
    _repeatable_game(
        "mountaincar-continuous", "classic_control:MountainCarContinuous", "MountainCarContinuous-v0", 999, 100.0
    ),
    _repeatable_game("pendulum", "classic_control:Pendulum", "Pendulum-v1", 200, 0.0),
    Game("carracing", "CarRacing-v3", 1000.0),
    # The id has no time limit, and a greedy policy that walks into a wall would never come back.
    Game("cliffwalking", "CliffWalking-v1", -13.0, {"max_episode_steps": 200}, dynamics="envs.gridmaps:CliffWalking"),
    # The published reward networks used HalfCheetah-v3, in which reward_forward was called reward_run.
    Game("halfcheetah", "HalfCheetah-v5", info=("x_position", "x_velocity", "reward_forward", "reward_ctrl")),
    Game(
        "hopper",
        "Hopper-v5",
        info=tuple("x_position z_distance_from_origin x_velocity reward_forward reward_ctrl reward_survive".split()),
    ),
    Game(
        "swimmer",
        "Swimmer-v5",
        info=tuple(
            "x_position y_position distance_from_origin x_velocity y_velocity reward_forward reward_ctrl".split()
        ),
    ),
    # Time limits as published with reward networks (Ferreira et al. 2022). A room's goal pays 1, and steps cost.
    _map_game("Cliff", -12.0, 50),
    _map_game("EmptyRoom22", 1.0, 10),
    _map_game("EmptyRoom23", 1.0, 15),
    _map_game("EmptyRoom33", 1.0, 20),
    _map_game("WallRoom", 1.0, 30),
    _map_game("HoleRoom", 1.0, 30),
    _map_game("HoleRoomLarge", 1.0, 30),
    _map_game("HoleRoomLargeShifted", 1.0, 30),
    # 100 steps, as in the evaluations of model-based generalisation (Young et al. 2023).
    _tensor_game("gridworld:ProcMaze", -1.0, GridParameters, grid_size=4),
    _tensor_game("gridworld:OpenGrid", -1.0, GridParameters),
    _tensor_game("gridworld:ButtonGrid", 100.0, ButtonParameters),
    _tensor_game("panflute:PanFlute", 100.0, FluteParameters),
)
# Games with continuous actions, besides those whose names end with "-continuous".
_CONTINUOUS = ("pendulum", "carracing", "halfcheetah", "hopper", "swimmer")
GAMES: dict[str, Game] = {game.name: game for game in _TABLE}


def resolve(name: str) -> Game:
    """Return the `Game` of a name, the value of ``--gamename``: a game of the table `GAMES`, or any registered
    Gymnasium id. A name may have parameters in any order. Case and separators are ignored
    (`models.settings.match_spelling`).

    An id without a version, or with a retired version, means the newest version, and a note about that is printed on
    stderr. ``module:Env-v0`` is valid only if the module is already imported. It is not imported here, because the name
    may be from a file. Raises SettingError, with the nearest name, if there is no such environment.
    """
    name = match_spelling(name, GAMES)
    if name in GAMES:
        return GAMES[name]
    if "," in name:
        game, values = split_name(name)
        try:
            return with_parameters(game, values)
        except SettingError as error:
            raise _name_error(name, f": {error}") from error
    module, _, env_id = name.rpartition(":")
    if module and module not in sys.modules:
        raise _name_error(name, f": module {module} is not imported; give --import {module}")
    gym_ids = _gym_ids()
    gym_id = _newest_id(env_id, gym_ids)
    if gym_id not in gym_ids:
        raise _unknown_name_error(name, gym_ids)
    full_id = f"{module}:{gym_id}" if module else gym_id
    if env_id.lower() != gym_id.lower():
        print(f"note: gamename {name} is now {full_id}", file=sys.stderr)
    for table_game in _TABLE:
        if table_game.gym_id == full_id and not table_game.wrappers:
            return table_game
    return Game(full_id, full_id)


def _name_error(name: str, reason: str) -> SettingError:
    """Return the error about the name of an environment. ``reason`` follows the name in the message."""
    return SettingError(f"gamename is {format_value(name)}{reason}", "gamename")


def import_module(setting: str, value: str) -> None:
    """Import the user's module in the ``value`` of a ``setting``: ``corridor`` in gamename ``corridor:Corridor-v0`` or
    in import ``corridor``. Do nothing for a gamename without a module. The value must be from a flag or keyword of this
    process or its parent, because an import runs code. Raises SettingError if the import fails."""
    module = value.rpartition(":")[0] if setting == "gamename" else value
    if not module and setting == "gamename":
        return
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # an unknown module may raise anything while it is imported
        line = f"{setting} is {value!r}: module {module} cannot be imported ({first_line(error)})"
        # Whether the module itself or its package is missing, and not another module that it imports.
        is_missing = isinstance(error, ModuleNotFoundError) and error.name and module.startswith(error.name)
        if is_missing or module.startswith("."):  # "./corridor" would be a relative import
            line += "; allowed: a module in this folder or in a folder of PYTHONPATH, corridor for corridor.py"
        raise SettingError(line, setting) from error


def split_name(name: str) -> tuple[Game, dict[str, Any]]:
    """Split the name of an environment at its commas. For ``procmaze,grid_size=5``, return the `Game` of procmaze, and
    the parameters ``{"grid_size": 5}``. Raises SettingError for an unknown parameter, and for a parameter without a
    value. Ranges are not checked, and a value that cannot be parsed remains text."""
    base_name, *pairs = name.split(",")
    game = resolve(base_name)
    parameters = game.parameter_values()
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        is_argument = game.takes_arguments and key.isidentifier()  # arguments may have any name
        if key not in parameters and not is_argument:
            if parameters:
                allowed_names = ", ".join(parameters)
            elif game.takes_arguments:
                allowed_names = "arguments, as name=value"
            else:
                allowed_names = f"{game.name}, which has no parameters"
            raise _name_error(name, f": {key!r} is unknown{nearest(key, parameters)}; allowed: {allowed_names}")
        if is_argument and key == "render_mode":
            raise _name_error(name, ": training draws nothing; allowed: --record, for a film")
        if not equals:
            raise _name_error(name, f": {key} needs a value: {key}=value")
        if key in values:
            raise _name_error(name, f": {key} is given twice")
        values[key] = text
        with contextlib.suppress(ValueError):
            values[key] = _parse_argument(text) if is_argument else parse_value(type(parameters[key]), text)
    return game, values


def _parse_argument(text: str) -> Any:
    """Parse an argument of `gymnasium.make` that is written as in JSON or Python, such as ``true`` or ``True``. Raises
    ValueError for other text."""
    python_constants = {"True": True, "False": False, "None": None}
    return python_constants[text] if text in python_constants else json.loads(text)


def with_parameters(game: Game, values: Mapping[str, Any]) -> Game:
    """Return a copy of ``game`` with the parameters ``values`` in its ``kwargs`` and at the end of its name, which must
    have no parameters yet. Values that the game already has are left out. Raises SettingError for a value that is out
    of range. Arguments of a Gymnasium environment are not checked, and make its largest return unknown."""
    changes = dict(sorted(values.items()))
    if game.parameters is not None:
        parameters = game.parameter_values()
        game.parameters(**{**parameters, **values})  # raises SettingError for a value that is out of range
        changes = {name: value for name, value in changes.items() if value != parameters[name]}
    elif game.takes_arguments and changes:
        game = replace(game, max_return=None)
    else:  # there is nothing to change
        return game
    name = game.name
    for parameter, value in changes.items():
        text = value if isinstance(value, str) else json.dumps(value)  # JSON has true instead of True
        name += f",{parameter}={text}"
    return replace(game, name=name, kwargs={**game.kwargs, **changes})


def is_continuous(name: str) -> bool:
    """Return whether the environment of this ``name`` takes continuous actions. False if it cannot be made."""
    base_name, _, arguments = name.partition(",")
    # Without arguments of `gymnasium.make`, which may change the actions, the table answers this quickly.
    if base_name in GAMES and not (arguments and GAMES[base_name].takes_arguments):
        return base_name in _CONTINUOUS or base_name.endswith("-continuous")
    return _space_types(name)[1] == "Box"


def has_cells(name: str) -> bool:
    """Return whether observations in the environment of this ``name`` are numbered cells, which tabular agents need.
    False if it cannot be made."""
    game = GAMES.get(name.partition(",")[0])
    return game.dynamics.startswith("envs.gridmaps:") if game else _space_types(name)[0] == "Discrete"


@functools.cache
def _space_types(name: str) -> tuple[str, str]:
    """Return the types of the observation space and the action space, such as ``("Box", "Discrete")``. They are "" if
    the environment of this ``name`` cannot be made."""
    try:
        from gymnasium import make

        game = resolve(name)
        with contextlib.closing(make(game.gym_id, **game.kwargs)) as env:
            return type(env.observation_space).__name__, type(env.action_space).__name__
    except Exception:  # environments of other packages may raise any error
        return "", ""


def games_with(parameter: str) -> list[str]:
    """Return the names of the environments that have this ``parameter``, such as ``grid_size``."""
    return [game.name for game in _TABLE if parameter in game.parameter_values()]


def register_environments() -> None:
    """Register the tensor programs of the table, and the environments of `understudy`, with Gymnasium."""
    from gymnasium.envs.registration import register, registry

    import understudy  # noqa: F401  # registers its environments

    for game in _TABLE:
        if game.gym_id.startswith("understudy/") and game.gym_id not in registry:
            arguments = dict(game.kwargs)
            limit = arguments.pop("max_episode_steps", None)
            kwargs = {"dynamics": game.dynamics, **arguments}
            register(game.gym_id, "envs.tensor_gym:TensorGym", max_episode_steps=limit, kwargs=kwargs)


def reward_threshold(name: str) -> float | None:
    """Return the mean return at which Gymnasium considers the environment ``name`` solved, None if there is no such
    threshold. Raises SettingError for an unknown name."""
    from gymnasium.envs.registration import registry

    id_without_module = resolve(name).gym_id.rpartition(":")[2]
    spec = registry.get(id_without_module)
    return None if spec is None or spec.reward_threshold is None else float(spec.reward_threshold)


def _gym_ids() -> list[str]:
    """Return the Gymnasium ids that can be made."""
    from gymnasium.envs.registration import registry

    register_environments()
    # The entry point of a retired id is a function that only raises an error, such as `_raise_mujoco_py_error`.
    makers = {gym_id: getattr(spec.entry_point, "__name__", "") for gym_id, spec in registry.items()}
    return [gym_id for gym_id, name in makers.items() if not name.startswith("_raise_")]


def _newest_id(env_id: str, gym_ids: Sequence[str]) -> str:
    """Return the registered id that the user means by ``env_id``. It is the id itself, in the spelling of ``gym_ids``,
    or its newest version, if ``env_id`` has an older version or none. Return ``env_id`` if there is no such id."""
    env_id = match_spelling(env_id, gym_ids)
    if env_id in gym_ids:
        return env_id
    # Id without version -> its newest version. After sorting by version, later entries replace earlier entries.
    newest_versions = dict(sorted(_split_version(gym_id) for gym_id in gym_ids))
    base_id, requested_version = _split_version(env_id)
    base_id = match_spelling(base_id, newest_versions)
    newest_version = newest_versions.get(base_id, -1)  # -1: there is no such id
    return f"{base_id}-v{newest_version}" if requested_version < newest_version else env_id


def _split_version(gym_id: str) -> tuple[str, int]:
    """Split ``CartPole-v1`` into ``CartPole`` and 1. The version of an id without a version is -1, older than all."""
    id_match = re.fullmatch(r"(.+)-[vV](\d+)", gym_id)
    return (id_match[1], int(id_match[2])) if id_match else (gym_id, -1)


def _unknown_name_error(name: str, gym_ids: Sequence[str]) -> SettingError:
    """Return the error about a name that no environment has. Its message suggests the nearest name in ``gym_ids`` and
    `GAMES`, or how to import the module that registers the environment."""
    module, _, env_id = name.rpartition(":")
    allowed_names = [*GAMES, "any Gymnasium id, or your own as module:Name-v0"]
    if module:
        # Ids are compared without the module, which would make all of them look similar.
        module_ids = _ids_of_module(module, gym_ids)
        if module_ids:
            nearest_ids = difflib.get_close_matches(env_id, module_ids, n=MAX_ITEMS, cutoff=0.0)  # sorted by similarity
            allowed_names = [f"{module}:{gym_id}" for gym_id in nearest_ids]
        similar_id = closest(env_id, module_ids if module_ids else gym_ids)
        hint = f"; did you mean '{module}:{similar_id}'?" if similar_id else ""
        return _name_error(name, allowed_clause(hint, ", ".join(allowed_names)))
    if "/" in name and not closest(name, gym_ids):
        namespace = name.partition("/")[0]
        line = f": no module that was imported registers ids of {namespace}; give --import and the one that does"
        return _name_error(name, line)
    if _is_module_file(name):
        return _name_error(name, f", a module; name one of its environments too, as in {name}:Name-v0")
    hint = nearest(name, [*GAMES, *gym_ids])
    if re.search(r"-v\d+$", name):  # maybe the id of a module that was not imported
        if not hint:
            line = ": no such id is registered with Gymnasium; an environment of a package needs --import PACKAGE, and "
            return _name_error(name, f"{line}your own is module:{name}")
        hint += f" If it is your own: module:{name}, which imports the module."
    return _name_error(name, allowed_clause(hint, ", ".join(allowed_names)))


_LONGEST_MODULE = 200  # letters in the name of a module that is searched for; file systems have limits


def _is_module_file(name: str) -> bool:
    """Return whether Python's path has a module or a package of this ``name``. Imports nothing."""
    if not all(part.isidentifier() for part in name.split(".")) or len(name) > _LONGEST_MODULE:
        return False
    relative_path = name.replace(".", "/")
    candidates = [Path(folder) / relative_path for folder in sys.path]
    return any(path.with_suffix(".py").is_file() or (path / "__init__.py").is_file() for path in candidates)


def _ids_of_module(module: str, gym_ids: Sequence[str]) -> list[str]:
    """Return the ids in ``gym_ids`` whose environments are in the same package as ``module``."""
    from gymnasium.envs.registration import registry

    package = module.partition(".")[0]
    module_ids = []
    for gym_id in gym_ids:
        entry_point = registry[gym_id].entry_point  # a class, or text such as "package.module:Class"
        entry_module = str(getattr(entry_point, "__module__", entry_point))
        if re.split("[.:]", entry_module)[0] == package:
            module_ids.append(gym_id)
    return module_ids


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if there is no message."""
    try:
        return str(error).strip().splitlines()[0]
    except Exception:  # no line, or an error whose conversion to text fails
        return type(error).__name__
