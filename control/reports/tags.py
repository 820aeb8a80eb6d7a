"""The measurements of a run that have a name in figures, tables or TensorBoard's HPARAMS page.

A family whose losses are to be drawn adds a line for each to `TAGS`. Every other column of metrics.csv is only logged.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["return", "score", "loss", "command"]
"""What shows a tag. ``return``: figures, tables and HPARAMS; ``score``: HPARAMS; ``loss``: figures; ``command``: the
panel of obtained against commanded return."""

RUNNING_MEAN = "train/mean_reward"  # its name in the notebook that policy gradients come from
TRAINING = "rollout/return_mean"
SAMPLED = "eval/return_sampled"
GREEDY = "eval/return_greedy"
REWARD_RATE = "eval/reward_rate"  # reward per step, of environments without episodes
FITNESS = "es/fitness_mean"
MEAN_RETURN = "es/center_return"
COMMAND = "command/return"


@dataclass(frozen=True)
class Tag:
    """``name`` is the column in metrics.csv, ``title`` heads its panel, ``short`` its column in a table of returns."""

    name: str
    title: str
    kind: Kind
    short: str = ""
    replaces: tuple[str, ...] = ()
    """Tags that say the same with more noise, and are left out where all runs have this one."""


# A running mean is over the training episodes, and over others that were played just as they were. Where nothing ends,
# a return is the reward rate times the steps.
TAGS = {
    tag.name: tag
    for tag in (
        Tag(RUNNING_MEAN, "Mean return of the latest training episodes", "return", "running mean", (TRAINING, SAMPLED)),
        Tag(TRAINING, "Training return", "return", "training"),
        Tag(SAMPLED, "Evaluation return, sampled actions", "return", "sampled"),
        Tag(GREEDY, "Evaluation return, greedy actions", "return", "greedy"),
        Tag(REWARD_RATE, "Reward per step in evaluation, greedy actions", "return", "reward rate", (GREEDY,)),
        Tag(FITNESS, "Fitness by agents of perturbed proxies", "return", "fitness"),
        Tag(MEAN_RETURN, "Real return of fresh agents of the mean", "return", "search mean"),
        Tag("es/fitness_best", "Largest fitness of the generation", "score"),
        Tag("train/policy_loss", "Policy loss", "loss"),
        Tag("train/value_loss", "Value loss", "loss"),
        Tag("train/loss", "Loss", "loss"),
        Tag("train/loss_p", "Policy loss", "loss"),
        Tag("train/loss_e", "Entropy loss", "loss"),
        Tag("train/loss_v", "Value loss", "loss"),
        Tag("train/baseline", "Baseline", "loss"),
        Tag("train/model_reward", "Model loss: reward", "loss"),
        Tag("train/model_termination", "Model loss: end of the episode", "loss"),
        Tag("train/model_obs", "Model loss: observation", "loss"),
        Tag("train/model_kl", "Model loss: next latent state", "loss"),
        Tag(COMMAND, "Obtained against commanded return", "command"),
    )
}


def tags(*kinds: Kind) -> list[str]:
    """The names of all tags of these kinds, in the table's order."""
    return [tag.name for tag in TAGS.values() if tag.kind in kinds]
