"""Output files of ``--output NAME``, in the format of the scripts of Young et al. 2023.

``NAME.out`` is a pickle of dicts, lists, numbers and strings: ``config``, and ``metrics`` with ``reward_rates`` (a list
of T evaluations, each a list of M seeds) and ``eval_times`` (T environment steps, counted before the steps of each
epoch). ``NAME.params`` is a safetensors file with the final weights of all M seeds.
"""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save
from torch import Tensor, nn

from control.cli.settings import RunConfig, Settings, effective_values
from control.reports.runs import read_runs
from control.reports.tags import GREEDY, REWARD_RATE
from models.mlp import MlpNetwork
from models.settings import SettingError

_NETWORKS = {
    "agents.0.values.q_network": "Q",
    "agents.0.model.reward": "model.reward",
    "agents.0.model.termination": "model.termination",
    "agents.0.model.encoder": "model.phi",
    "agents.0.model.following": "model.next",
    "agents.0.model.decoder": "model.obs",
}
"""Name of a network in this program -> its name in ``NAME.params``."""


def paths(run: RunConfig) -> list[Path]:
    """Return the files that the setting ``output`` of a run names, [] without this setting."""
    if run.output is None:
        return []
    suffixes = [".out"] if run.no_checkpoint else [".out", ".params"]
    return [Path(f"{run.output}{suffix}") for suffix in suffixes]


def check_outputs(run: RunConfig) -> None:
    """Raise SettingError if an output file exists in a run that is not resumed, or its folder cannot be written."""
    for path in paths(run):
        is_old = path.exists() and not run.resume
        if is_old or not os.access(path.parent, os.W_OK):
            problem = f"{str(path)!r} exists" if is_old else f"{str(path.parent)!r} is no folder that can be written"
            raise SettingError(f"output is {run.output!r}: {problem}; allowed: a new name in a folder", "output")


def write_outputs(settings: Settings, agents: nn.Module, folder: Path) -> Iterator[str]:
    """Write the files that the user of a run asked for (`paths`): the metrics, which are read from its ``folder``, as
    ``.out``, and the weights of its ``agents`` as the others. Yield a line for each. Existing files are kept."""
    for path in paths(settings.run):
        content = pickle.dumps(_metrics(settings, folder)) if path.suffix == ".out" else save(_weights(agents))
        try:
            with open(path, "xb") as file:
                file.write(content)
            yield str(path)
        except OSError as error:
            yield f"{path} was not written ({error.strerror})"


def _metrics(settings: Settings, folder: Path) -> dict[str, Any]:
    """Return the content of ``NAME.out`` for the run in ``folder``:

    - ``config``: setting -> value;
    - ``metrics``: ``reward_rates`` has for each evaluation a list of the reward rates of all seeds or, if they were not
      measured, of their greedy returns. ``eval_times`` has the environment steps of each evaluation.
    """
    runs = read_runs(folder / "metrics.csv")
    tag = REWARD_RATE if runs[0].has(REWARD_RATE) else GREEDY
    rates = np.stack([run.columns[tag] for run in runs], 1)  # [epochs, M], NaN in epochs without an evaluation
    # As in the published scripts, the steps are counted before an epoch.
    steps_before = np.concatenate([[0], runs[-1].columns["env_steps"][:-1]]).astype(int)
    is_evaluated = np.isfinite(rates).all(1)
    metrics = {"reward_rates": rates[is_evaluated].tolist(), "eval_times": steps_before[is_evaluated].tolist()}
    return {"config": effective_values(settings), "metrics": metrics}


def _weights(agents: nn.Module) -> dict[str, Tensor]:
    """Return name -> tensor for ``NAME.params``, without target networks. A layer of a network has the tensors
    ``NETWORK.LAYER.weight [M, out, in]`` and ``NETWORK.LAYER.bias [M, out]``."""
    state = agents.state_dict(prefix="agents.")
    weights = {name: value.clone() for name, value in state.items() if "target" not in name}
    for name, network in agents.named_modules(prefix="agents"):
        if isinstance(network, MlpNetwork):
            del weights[f"{name}.flat"]  # a tensor of all parameters of the network; layers are views of it
            layers = network.layers()[: network.mlp.depth]  # without the slope of prelu, which is the last entry
            for number, (weight, bias) in enumerate(layers):
                layer = f"{_NETWORKS.get(name, name)}.{number}"
                weights |= {f"{layer}.weight": weight.transpose(1, 2).contiguous(), f"{layer}.bias": bias.contiguous()}
    return weights
