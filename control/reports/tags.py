"""Names of logged quantities, which all families of algorithms share, and the quantities in figures and tables.

A name is a column of metrics.csv and a tag in TensorBoard and other loggers. docs/tensorboard.md explains all of them.
To have a loss drawn, add a line with the kind ``loss``. Tags without a line are logged and not drawn.
"""

import functools
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["return", "loss", ""]
"""Use of a tag in reports. ``return``: figures and tables; ``loss``: figures, of losses and diagnostics."""

RUNNING_MEAN = "rollout/return_running_mean"
TRAINING = "rollout/return_mean"
SAMPLED = "eval/return_sampled"
GREEDY = "eval/return_greedy"
REWARD_RATE = "eval/reward_rate"
SCORES = (GREEDY, SAMPLED, REWARD_RATE, RUNNING_MEAN)  # tags of scores
FITNESS = "search/fitness_mean"
BEST_FITNESS = "search/fitness_best"
MEAN_RETURN = "search/center_return"
SYNTHETIC_STEPS = "search/synthetic_steps"
COMMAND = "rollout/command_return"
SMALLEST_SEEN = "rollout/command_return_seen_min"
LARGEST_SEEN = "rollout/command_return_seen_max"
MODEL_LOSSES = ("model/obs_loss", "model/reward_loss", "model/termination_loss")
HELD_OUT = "model/heldout"  # prefix of the errors of a fit
HELD_OUT_RETURN = "search/heldout_return"
LEARNING_RATE = "train/learning_rate"
GRADIENT_STEPS = "train/gradient_steps"
SPEED = "time/steps_per_second"
ELAPSED = "time/elapsed"
EPOCH = "time/epoch"
ENV_STEPS = "time/env_steps"


@dataclass(frozen=True)
class Tag:
    """A quantity in figures. Its column in metrics.csv is ``name``, and its panels have the ``title``."""

    name: str
    title: str
    kind: Kind
    short: str = ""
    """Heading of its column in tables of returns."""
    replaces: tuple[str, ...] = ()
    """Noisier tags of the same quantity, or sums with it, which are omitted if all runs have this tag."""
    axis: str = ""
    """Label of the y axis, if it is neither a return nor a loss."""


# A running mean covers the training episodes, and so replaces their mean and the mean of sampled evaluations. In an
# environment without episodes, a return is the reward rate times the steps.
_TABLE = (
    Tag(RUNNING_MEAN, "Mean return of the latest training episodes", "return", "running mean",
        replaces=(TRAINING, SAMPLED)),
    Tag(TRAINING, "Training return", "return", "training"),
    Tag(SAMPLED, "Evaluation return, sampled", "return", "sampled"),
    Tag(GREEDY, "Evaluation return, greedy", "return", "greedy"),
    Tag(REWARD_RATE, "Reward per step in evaluation", "return", "reward rate", replaces=(GREEDY,),
        axis="reward per step"),
    Tag(FITNESS, "Mean fitness of the generation", "return", "fitness"),
    Tag(MEAN_RETURN, "Return of new agents on the task", "return", "search mean"),
    Tag(HELD_OUT_RETURN, "Mean return on the task of new agents that trained on the winner", "", "held-out"),
    Tag("train/policy_loss", "Policy loss", "loss", replaces=("train/total_loss",)),
    Tag("train/value_loss", "Value loss", "loss"),
    Tag("train/quantile_loss", "Quantile loss", "loss"),
    Tag("train/entropy_loss", "Entropy loss", "loss"),
    Tag("train/total_loss", "Total loss", "loss"),
    Tag("train/validation_loss", "Policy loss on new episodes", "loss"),
    Tag("train/entropy", "Entropy of the policy", "loss", axis="entropy"),
    Tag("train/approx_kl", "KL divergence of updates", "loss", axis="KL divergence"),
    Tag("train/baseline", "Baseline", "loss", axis="return (sum of rewards)"),
    Tag("model/reward_loss", "Model loss: reward", "loss"),
    Tag("model/termination_loss", "Model loss: end of the episode", "loss"),
    Tag("model/obs_loss", "Model loss: observation", "loss"),
    Tag("model/kl_loss", "Model loss: next latent state", "loss"),
    Tag(f"{HELD_OUT}_reward_loss", "Held-out loss: reward", "loss"),
    Tag(f"{HELD_OUT}_termination_loss", "Held-out loss: end of the episode", "loss"),
    Tag(f"{HELD_OUT}_obs_loss", "Held-out loss: observation", "loss"),
)  # fmt: skip
TAGS = {tag.name: tag for tag in _TABLE}
# Charts of several tags on TensorBoard's page CUSTOM SCALARS, for agents and for searches.
AGENT_CHARTS = {
    "return: greedy evaluation and training": (GREEDY, TRAINING),
    "loss of values": ("train/value_loss", "train/quantile_loss"),
    "loss of the policy": ("train/policy_loss",),
    "entropy of the policy": ("train/entropy",),
    "KL divergence of updates": ("train/approx_kl",),
    "explained variance of values": ("train/explained_variance",),
}
SEARCH_CHARTS = {
    "fitness: best and mean of the networks": (BEST_FITNESS, FITNESS),
    "return of new agents on the task": (MEAN_RETURN,),
}
_PAGE = Path(__file__).parents[2] / "docs" / "tensorboard.md"


@functools.cache
def explanations() -> dict[str, str]:
    """Return tag -> explanation, from the tables in docs/tensorboard.md. Empty if that page does not exist. A row of a
    table may have several tags with the same explanation."""
    page = _PAGE.read_text(encoding="utf-8") if _PAGE.exists() else ""
    sentences = {}
    for cell, sentence in re.findall(r"^\| (`[a-z]+/[a-z_]+`[^|]*) \| [^|]+ \| ([^|]+) \|$", page, re.MULTILINE):
        for tag in re.findall(r"`([a-z/_]+)`", cell):
            sentences[tag] = sentence
    return sentences


def is_search(names: Iterable[str]) -> bool:
    """Return whether a run with tags of these ``names`` is a search. A search counts the steps of all its agents."""
    return any(name.startswith("search/") for name in names)


def tags(*kinds: Kind) -> list[str]:
    """Return the names of all tags of these ``kinds``, in the order of `TAGS`."""
    return [tag.name for tag in TAGS.values() if tag.kind in kinds]


def shown_tags(names: Iterable[str], common: Collection[str]) -> list[str]:
    """Select the tags in ``names`` that a figure of several runs shows. ``common`` are the tags that all runs have,
    which replace noisier tags of the same quantity (`Tag.replaces`). A running mean that is not common is omitted."""
    omitted = {name for tag in common for name in TAGS[tag].replaces}
    if RUNNING_MEAN not in common:
        omitted.add(RUNNING_MEAN)
    return [tag for tag in names if tag not in omitted]
