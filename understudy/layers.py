"""Fully connected layers in NumPy."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

Layers = list[tuple[np.ndarray, np.ndarray]]
"""Weights ``[in, out]`` and biases ``[out]``, from the first layer on."""


def _leaky_relu(slope: float, x: np.ndarray) -> np.ndarray:
    return np.maximum(x, x * np.float32(slope))


# No lambdas, because environments that contain them are pickled.
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": partial(np.maximum, np.float32(0)),
    "leakyrelu": partial(_leaky_relu, 0.01),
    "tanh": np.tanh,
    "prelu": partial(_leaky_relu, 0.25),
    "identity": np.positive,
}


def join_networks(tensors: Mapping[str, np.ndarray], names: Sequence[str]) -> Layers:
    """Join networks of equal depth, which have the same inputs, into one wide network, so that a step takes one matrix
    product per layer. ``names`` are the networks' names in ``tensors``, such as ``state`` for ``state.0.weight``."""
    layers: Layers = []
    while f"{names[0]}.{len(layers)}.weight" in tensors:
        weights = [tensors[f"{name}.{len(layers)}.weight"].T for name in names]
        bias = np.concatenate([tensors[f"{name}.{len(layers)}.bias"] for name in names])
        # The networks share the inputs of the first layer. A later layer has inputs of each network alone.
        weight = _block_diagonal(weights) if layers else np.concatenate(weights, 1)
        layers.append((weight, bias))
    return layers


def _block_diagonal(blocks: list[np.ndarray]) -> np.ndarray:
    """Return a matrix with the ``blocks`` along its diagonal and zeros elsewhere."""
    matrix = np.zeros(np.sum([block.shape for block in blocks], 0), np.float32)
    row = column = 0
    for block in blocks:
        matrix[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return matrix


def run_layers(hidden: np.ndarray, layers: Layers, activation: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the outputs ``[..., out]`` of a network. ``hidden`` is the result of its first layer before the
    activation, and ``layers`` are the layers after the first."""
    for weight, bias in layers:
        hidden = activation(hidden) @ weight + bias
    return hidden
