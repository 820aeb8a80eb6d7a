"""Best values of the paper's sweep for five agents in three environments, in the high- and the low-data regime.

Source: the public code of [Y] (see config.py), for figure 4 of the paper. config.py builds its defaults from them.
"""

import itertools
from typing import Any

# Settings of an environment, for all agents.
GAMES: dict[str, dict[str, Any]] = {
    "procmaze": {"episodic_env": True},
    "buttongrid": {"episodic_env": False},  # never ends
    "panflute": {"episodic_env": False},  # never ends
}

# Settings of a regime. High data is one update per step, the default in config.py. Low data has the same number of
# updates over a tenth of the steps, and the same number of updates between two copies to the target network.
REGIMES: dict[str, dict[str, Any]] = {
    "high": {},
    "low": {"updates_per_step": 10, "target_update_frequency": 10, "total_steps": 100_000, "steps_per_epoch": 50},
}

# lr and softmax_temp of each agent: for procmaze high and low, buttongrid high and low, panflute high and low.
_TUNED_VALUES: dict[str, tuple[tuple[float, float], ...]] = {
    "ER": ((5e-5, 0.1), (2.5e-5, 1.6), (5e-5, 0.0125), (2.5e-5, 0.1), (1e-4, 0.1), (3.125e-6, 0.8)),
    "PerfectModel": ((1e-4, 0.4), (4e-4, 0.4), (2e-4, 0.0125), (2e-4, 0.0125), (2e-4, 0.1), (1e-4, 0.1)),
    "SimpleModel": ((2e-4, 0.8), (2.5e-5, 0.4), (2e-4, 1.6), (5e-5, 0.4), (1e-4, 0.4), (2e-4, 0.2)),
    "CategoricalLatent": ((2e-4, 1.6), (1e-4, 0.8), (1e-4, 0.05), (2e-4, 0.1), (8e-4, 0.05), (1.6e-3, 0.05)),
    "GaussianLatent": ((3.125e-6, 12.8), (3.125e-6, 0.8), (1.25e-5, 0.1), (2.5e-5, 0.8), (2e-4, 0.1), (2e-4, 0.1)),
}

# Preset -> agent -> settings.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {}
for _column, (_game, _regime) in enumerate(itertools.product(GAMES, REGIMES)):
    PRESETS[f"{_game}_{_regime}"] = {}
    for _agent, _values in _TUNED_VALUES.items():
        _lr, _softmax_temp = _values[_column]
        _tuned = {"lr": _lr, "softmax_temp": _softmax_temp}
        PRESETS[f"{_game}_{_regime}"][_agent] = GAMES[_game] | REGIMES[_regime] | _tuned
