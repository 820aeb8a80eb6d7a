"""Names of the components of a state, for labels of axes."""

import re

_NAMES = {
    "cartpole": ("cart position (m)", "cart velocity (m/s)", "pole angle (rad)", "pole angular velocity (rad/s)"),
    "acrobot": ("cos angle 1", "sin angle 1", "cos angle 2", "sin angle 2", "velocity 1 (rad/s)", "velocity 2 (rad/s)"),
    "pendulum": ("cos angle", "sin angle", "angular velocity (rad/s)"),
    "mountaincar": ("position (m)", "velocity (m/step)"),
    "swimmer": ("angle of the front (rad)", "angle of joint 1 (rad)", "angle of joint 2 (rad)",
                "velocity along x (m/s)", "velocity along y (m/s)",
                "turning of the front (rad/s)", "turning of joint 1 (rad/s)", "turning of joint 2 (rad/s)"),
}  # fmt: skip


def base_name(game: str) -> str:
    """Return the name that games with the same states share, such as ``cartpole`` for ``cartpole-200``."""
    return re.split("[,-]", game)[0]


def state_names(game: str, size: int) -> list[str]:
    """Return the names of the ``size`` components of a state of ``game``, such as ``pole angle (rad)``."""
    if names := _NAMES.get(base_name(game)):
        return list(names)
    return [f"state {i}" for i in range(size)] if size > 1 else ["state"]
