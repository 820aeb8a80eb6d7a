"""The stand-ins that come with the project. Imports no torch."""

from pathlib import Path

SUFFIX = ".safetensors"
SHIPPED = Path(__file__).resolve().parents[2] / "pretrained"


def pretrained() -> dict[str, Path]:
    """The stand-ins that come with the project, by name (``cartpole-mdp``)."""
    return {path.stem: path for path in sorted(SHIPPED.glob(f"*{SUFFIX}"))}
