"""How well an agent does what it is told: obtained over commanded returns."""

import numpy as np
from matplotlib.figure import Figure


def command_scatter(commanded: np.ndarray, obtained: np.ndarray) -> Figure:
    """Both ``[N]``, with the diagonal that an agent which follows its commands keeps to."""
    figure = Figure(figsize=(4, 4), dpi=80, layout="constrained")
    axis = figure.subplots()
    low, high = min(commanded.min(), obtained.min()), max(commanded.max(), obtained.max())
    axis.plot([low, high], [low, high], color="0.7", linewidth=1)
    axis.scatter(commanded, obtained, s=8, alpha=0.5)
    axis.set_xlabel("commanded return")
    axis.set_ylabel("obtained return")
    return figure
