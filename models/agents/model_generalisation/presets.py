"""Best values of the paper's sweep for five agents in three environments, in the high- and the low-data regime.

Source: the public code of [Y] (see config.py), for figure 4 of the paper. config.py builds its defaults and presets
from these tables.
"""

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

# Values of each agent, by environment and regime.
TUNED_VALUES: dict[str, dict[str, dict[str, Any]]] = {
    "ER": {
        "procmaze_high": {"lr": 5e-5, "softmax_temp": 0.1},
        "procmaze_low": {"lr": 2.5e-5, "softmax_temp": 1.6},
        "buttongrid_high": {"lr": 5e-5, "softmax_temp": 0.0125},
        "buttongrid_low": {"lr": 2.5e-5, "softmax_temp": 0.1},
        "panflute_high": {"lr": 1e-4, "softmax_temp": 0.1},
        "panflute_low": {"lr": 3.125e-6, "softmax_temp": 0.8},
    },
    "PerfectModel": {
        "procmaze_high": {"lr": 1e-4, "softmax_temp": 0.4},
        "procmaze_low": {"lr": 4e-4, "softmax_temp": 0.4},
        "buttongrid_high": {"lr": 2e-4, "softmax_temp": 0.0125},
        "buttongrid_low": {"lr": 2e-4, "softmax_temp": 0.0125},
        "panflute_high": {"lr": 2e-4, "softmax_temp": 0.1},
        "panflute_low": {"lr": 1e-4, "softmax_temp": 0.1},
    },
    "SimpleModel": {
        "procmaze_high": {"lr": 2e-4, "softmax_temp": 0.8},
        "procmaze_low": {"lr": 2.5e-5, "softmax_temp": 0.4},
        "buttongrid_high": {"lr": 2e-4, "softmax_temp": 1.6},
        "buttongrid_low": {"lr": 5e-5, "softmax_temp": 0.4},
        "panflute_high": {"lr": 1e-4, "softmax_temp": 0.4},
        "panflute_low": {"lr": 2e-4, "softmax_temp": 0.2},
    },
    "CategoricalLatent": {
        "procmaze_high": {"lr": 2e-4, "softmax_temp": 1.6},
        "procmaze_low": {"lr": 1e-4, "softmax_temp": 0.8},
        "buttongrid_high": {"lr": 1e-4, "softmax_temp": 0.05},
        "buttongrid_low": {"lr": 2e-4, "softmax_temp": 0.1},
        "panflute_high": {"lr": 8e-4, "softmax_temp": 0.05},
        "panflute_low": {"lr": 1.6e-3, "softmax_temp": 0.05},
    },
    "GaussianLatent": {
        "procmaze_high": {"lr": 3.125e-6, "softmax_temp": 12.8},
        "procmaze_low": {"lr": 3.125e-6, "softmax_temp": 0.8},
        "buttongrid_high": {"lr": 1.25e-5, "softmax_temp": 0.1},
        "buttongrid_low": {"lr": 2.5e-5, "softmax_temp": 0.8},
        "panflute_high": {"lr": 2e-4, "softmax_temp": 0.1},
        "panflute_low": {"lr": 2e-4, "softmax_temp": 0.1},
    },
}
