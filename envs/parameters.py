"""Parameters of our own environments, shared by constructors, flags and names. Imports no torch."""

from dataclasses import dataclass

from models.settings import INTEGER, check, check_value, setting


@dataclass(frozen=True)
class Parameters:
    """Base of the parameters of an environment: a frozen dataclass of `models.settings.setting` fields. Values are
    checked against their ranges; raises SettingError."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class GridParameters(Parameters):
    """Parameters of `envs.procmaze.ProcMaze` and `envs.opengrid.OpenGrid`."""

    grid_size: int = setting(10, "cells along a side of the grid", minimum=2, maximum=100)
    spontaneous_termination: bool = setting(True, "rare events, which end the search for the goal")
    teleport_on_termination: bool = setting(True, "an event moves the player to the goal; off, it ends the episode")


@dataclass(frozen=True)
class ButtonParameters(Parameters):
    """Parameters of `envs.buttongrid.ButtonGrid`."""

    grid_size: int = setting(10, "cells along a side of the grid", minimum=2, maximum=100)
    num_buttons: int = setting(3, "buttons, each on a cell of its own", minimum=1)
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
