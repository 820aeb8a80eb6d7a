"""The arithmetic of a learned environment in NumPy: first states from seeds, and steps of N rows at once."""

from collections.abc import Callable

import numpy as np

from understudy.hashing import normal
from understudy.proxy import BOUND, Proxy
from understudy.starts import starts_of

SEEDS = 2**62  # of an environment's first episode; the next ones count on
ENDS_ABOVE = 0.5  # the done network's output above which an episode ends
_BLOCK = 32
# In place: the argument is overwritten.
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0, out=x),
    "leakyrelu": lambda x: np.maximum(x, x * 0.01, out=x),
    "prelu": lambda x: np.maximum(x, x * 0.25, out=x),
    "tanh": lambda x: np.tanh(x, out=x),
    "identity": lambda x: x,
}


class Program:
    """A `Proxy` ready to be stepped.

    What a poor one may blow up is made finite: NaN becomes 0, and observations and rewards stop at `BOUND` either way.
    Below the bound nothing is changed.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._size, self._bandit = proxy.spaces["obs_shape"][0], proxy.kind == "bandit"
        self._networks = _SideBySide(proxy, ["reward"] if self._bandit else ["state", "reward", "done"])
        self._initial = _SideBySide(proxy, ["initial"]) if "initial.0.bias" in proxy.tensors else None
        self._starts = None if self._initial else starts_of(proxy.game)
        self._by_action, self._by_state = np.split(self._networks.first, [-self._size])
        self._discrete = "n" in proxy.spaces["actions"]
        if self._discrete:  # the product of a one-hot action is a row of the weights
            self._by_action = self._by_action + self._networks.bias

    def first_states(self, seeds: np.ndarray) -> np.ndarray:
        """``seeds [...]`` int64, at least one axis, to ``[..., S]`` float32: learned from normal noise, else those of
        the real environment."""
        if self._starts is not None:
            return _finite(self._starts(seeds))
        assert self._initial is not None
        noise = normal(seeds, len(self._initial.first)).astype(np.float32)
        with np.errstate(all="ignore"):
            return _finite(self._initial.finish(noise @ self._initial.first + self._initial.bias))

    def step(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``state [N, S]``, ``action [N]`` integers or ``[N, A]`` float32, or one for all rows without that axis, to
        the next state ``[N, S]``, reward ``[N]`` float32 and whether the episode ends, ``[N]`` bool. The next state of
        a bandit is the array that was given."""
        with np.errstate(all="ignore"):
            acted = self._by_action[action] if self._discrete else action @ self._by_action + self._networks.bias
            out = self._networks.finish(state @ self._by_state + acted)
            ends = out[:, -1] > ENDS_ABOVE
            out = _finite(out)
        if self._bandit:
            return state, out[:, 0], np.ones(len(state), np.bool_)
        return out[:, : self._size], out[:, self._size], ends


class _SideBySide:
    """Networks of one input as one wide network, whose matrices are theirs along the diagonal, so that a step costs as
    many products as one network has layers. ``first [in, hidden]`` and ``bias [hidden]`` are the first layer."""

    def __init__(self, proxy: Proxy, names: list[str]) -> None:
        self._activation = ACTIVATIONS[proxy.config["proxy_activation_fn"]]
        layers = [
            [(proxy.tensors[f"{name}.{i}.weight"].T, proxy.tensors[f"{name}.{i}.bias"]) for name in names]
            for i in range(proxy.config["proxy_hidden_layer"] + 1)
        ]
        biases = [np.concatenate([bias for _, bias in layer]) for layer in layers]
        self.first, self.bias = np.concatenate([weight for weight, _ in layers[0]], 1), biases[0]
        blocks = [_diagonal([weight for weight, _ in layer]) for layer in layers[1:]]
        self._rest = list(zip(blocks, biases[1:], strict=True))

    def finish(self, hidden: np.ndarray) -> np.ndarray:
        """From what the first layer gives, before its activation, to the outputs of all networks, ``[..., out]``."""
        for weight, bias in self._rest:
            hidden = self._activation(hidden) @ weight + bias
        return hidden


def _diagonal(matrices: list[np.ndarray]) -> np.ndarray:
    whole, corner = np.zeros(np.sum([each.shape for each in matrices], 0), np.float32), np.zeros(2, int)
    for matrix in matrices:
        (top, left), (bottom, right) = corner, corner + matrix.shape
        whole[top:bottom, left:right], corner = matrix, corner + matrix.shape
    return whole


def _finite(values: np.ndarray) -> np.ndarray:
    if np.abs(values).max() <= BOUND:  # false for NaN
        return values
    return np.clip(np.nan_to_num(values, nan=0.0, posinf=BOUND, neginf=-BOUND), -BOUND, BOUND)


class Episodes:
    """First states of the episodes of N environments one after the other, drawn in blocks: a draw costs the same for
    one and for many. Episode k of environment i is that of the seed ``first[i] + k``."""

    def __init__(self, program: Program, first: np.ndarray) -> None:
        self._program, self._first, self._used = program, first, np.zeros(len(first), np.int64)
        self._draw()

    def _draw(self) -> None:
        self._first, self._used = self.following(), np.zeros_like(self._used)
        self._bank = self._program.first_states(self._first + np.arange(_BLOCK)[:, None])  # [block, N, S]

    def following(self) -> np.ndarray:
        """Seeds ``[N]`` of the next episodes."""
        return self._first + self._used

    def begin(self, rows: np.ndarray) -> np.ndarray:
        """``[k, S]``, a copy, for the k environments ``rows``, each of which goes on to its next episode."""
        if self._used[rows].max() == _BLOCK:
            self._draw()
        states = self._bank[self._used[rows], rows]
        self._used[rows] += 1
        return states
