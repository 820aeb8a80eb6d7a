"""Table of logged quantities, with one name for each, shared by all families of algorithms.

A name is a column of metrics.csv and a tag in TensorBoard and other loggers. docs/tensorboard.md shows this table. To
have a loss drawn, add a line with the kind ``loss``. Columns without a line are logged and not drawn.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["return", "loss", ""]
"""Use of a tag in reports. ``return``: figures and tables; ``loss``: figures."""

RUNNING_MEAN = "rollout/return_running_mean"
TRAINING = "rollout/return_mean"
LENGTH = "rollout/length_mean"
SAMPLED = "eval/return_sampled"
GREEDY = "eval/return_greedy"
REWARD_RATE = "eval/reward_rate"
SCORES = (GREEDY, SAMPLED, REWARD_RATE, RUNNING_MEAN)  # of evaluations
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
EPOCH = "time/epoch"
ENV_STEPS = "time/env_steps"


@dataclass(frozen=True)
class Tag:
    """A logged quantity: its column ``name`` in metrics.csv, and a sentence about it. Its unit is in
    docs/tensorboard.md. Quantities with a ``kind`` have a panel with this ``title``."""

    name: str
    text: str
    title: str = ""
    kind: Kind = ""
    short: str = ""
    """Heading of its column in tables of returns."""
    replaces: tuple[str, ...] = ()
    """Noisier tags of the same quantity, omitted if all runs have this one."""


# A running mean covers the training episodes, and so replaces their mean and the mean of sampled evaluations. In an
# environment without episodes, a return is the reward rate times the steps.
TAGS = {
    tag.name: tag
    for tag in (
        Tag(RUNNING_MEAN, "Mean return of the last `running_mean_len` training episodes, or of all if there are fewer.",
            "Mean return of the latest training episodes", "return", "running mean", (TRAINING, SAMPLED)),
        Tag("rollout/return_running_best", "The largest running mean so far."),
        Tag(TRAINING, "Mean return of the training episodes that ended in the epoch.",
            "Training return", "return", "training"),
        Tag("rollout/return_std", "Standard deviation of these returns."),
        Tag("rollout/return_min", "The smallest of these returns."),
        Tag("rollout/return_max", "The largest of these returns."),
        Tag(LENGTH, "Mean length of the training episodes that ended in the epoch."),
        Tag(SAMPLED, "Mean return of evaluation episodes whose actions are sampled from the policy.",
            "Evaluation return, sampled actions", "return", "sampled"),
        Tag(GREEDY, "Mean return of evaluation episodes with the policy's best actions.",
            "Evaluation return, greedy actions", "return", "greedy"),
        Tag("eval/length_greedy", "Mean length of evaluation episodes with the policy's best actions."),
        Tag(REWARD_RATE, "Reward per step of evaluations, for environments without episodes.",
            "Reward per step in evaluation, greedy actions", "return", "reward rate", (GREEDY,)),
        Tag(FITNESS, "Mean fitness of the generation's population.",
            "Fitness by agents of perturbed proxies", "return", "fitness"),
        Tag(MEAN_RETURN, "Mean return, in the test environment, of fresh agents that trained on the search's mean.",
            "Real return of fresh agents of the mean", "return", "search mean"),
        Tag(BEST_FITNESS, "The largest fitness of the generation."),
        Tag("search/fitness_worst", "The smallest fitness of the generation."),
        Tag("search/fitness_std", "Standard deviation of fitness."),
        Tag("search/center_solved", "Share of the mean's fresh agents that reach `solved_reward`, once `test_limit` "
            "has its final value."),
        Tag(HELD_OUT_RETURN, "Mean return of fresh agents that trained on the search's winner, once at its end.",
            "Held-out return", short="held-out"),
        Tag("search/failed", "Proxies of the population whose agents all diverged."),
        Tag("search/update_norm", "Euclidean length of the mean's latest step."),
        Tag("search/noise_std", "Standard deviation of the perturbations, after the generation."),
        Tag("search/steps_per_agent", "Mean number of steps that the generation's agents trained for."),
        Tag("search/episode_length", "Mean length of the episodes that the generation's agents trained on."),
        Tag(SYNTHETIC_STEPS, "Steps of all agents in training so far."),
        Tag("search/real_steps",
            "Steps in the real environment so far: for tests, and to fill tables of first states."),
        Tag("train/policy_loss", "Loss that the policy minimises: cross-entropy of commanded policies, policy "
            "gradient, clipped surrogate, or minus the critics' value.", "Policy loss", "loss"),
        Tag("train/value_loss", "Squared error between values and their targets: of state values, of action values, or "
            "the sum of both critics.", "Value loss", "loss"),
        Tag("train/quantile_loss", "Pinball loss of the predicted quantiles of the return-to-go, mean over their "
            "levels.", "Quantile loss", "loss"),
        Tag("train/entropy_loss", "Minus `beta` times the entropy share.", "Entropy loss", "loss"),
        Tag("train/total_loss", "Sum of the losses as they are weighted.", "Total loss", "loss"),
        Tag("train/validation_loss", "The policy's loss on new episodes, before updates on them.",
            "Policy loss on new episodes", "loss"),
        Tag("train/baseline", "Mean of the baseline that is subtracted from returns, in units of `reward_scale` times "
            "reward.", "Baseline", "loss"),
        Tag("train/advantage_mean", "Mean of return minus value, before standardisation."),
        Tag("train/entropy", "Mean entropy of the policy in the latest batch."),
        Tag("train/entropy_share", "Entropy divided by the entropy of a uniform policy."),
        Tag("train/entropy_temperature", "Weight of the entropy in the policy's objective."),
        Tag("train/q_mean", "Mean value of actions: of the latest batch, of a table's entries, or, with imagined "
            "batches, of the best actions in the observations of the epoch."),
        Tag("train/explained_variance", "Share of the targets' variance that the values explain: 1 is all, 0 no more "
            "than their mean."),
        Tag(LEARNING_RATE, "Learning rate of the policy, or of the values if actions follow from values."),
        Tag("train/grad_norm", "Euclidean length of a gradient before clipping: of the policy, or, with replayed "
            "steps, of the values. Mean over the reported updates, or of the latest."),
        Tag("train/approx_kl", "Mean of r - 1 - log r over the latest pass, with r the ratio of the new to the old "
            "policy."),
        Tag("train/clip_fraction", "Share of the ratios outside `clip_range`."),
        Tag("train/epsilon", "Probability of a random action at the end of the epoch."),
        Tag("train/buffer_size", "Steps in the replay buffer."),
        Tag(GRADIENT_STEPS, "Updates so far."),
        Tag("model/reward_loss", "Loss of the model's rewards, mean over the epoch.", "Model loss: reward", "loss"),
        Tag("model/termination_loss", "Loss of the model's terminations, mean over the epoch.",
            "Model loss: end of the episode", "loss"),
        Tag("model/obs_loss", "Loss of the model's observations, mean over the epoch.",
            "Model loss: observation", "loss"),
        Tag("model/kl_loss", "Loss of the model's next latent states, mean over the epoch.",
            "Model loss: next latent state", "loss"),
        Tag("model/kl_base_loss", "Divergence of the model's latent states from the fixed prior, mean over the epoch."),
        Tag("model/heldout_obs_loss", "Of a fitted synthetic environment, on held-out transitions: squared error of "
            "the next observation in standard deviations, mean over its numbers."),
        Tag("model/heldout_reward_loss", "The same for the reward."),
        Tag("model/heldout_termination_loss", "Cross-entropy of the episode's end on held-out transitions."),
        Tag("model/heldout_ends_missed", "Share of the held-out ends at which the fitted environment does not end the "
            "episode."),
        Tag("model/heldout_ends_false", "Share of the other held-out steps at which it ends the episode."),
        Tag("model/heldout_rollout_error", "Error of its state after a rollout of 50 steps, or to the end of an "
            "episode, with the recorded actions: root mean square over the numbers of the state, median over pieces of "
            "episodes."),
        Tag("model/heldout_rollout_ends", "Share of these pieces that it ends at another step."),
        Tag(COMMAND, "Mean commanded return of training episodes."),
        Tag(SMALLEST_SEEN, "The smallest return of the episodes in the replay buffer, discounted as commands are."),
        Tag(LARGEST_SEEN, "The largest of these returns."),
        Tag("rollout/command_horizon", "Mean commanded number of steps of training episodes."),
        Tag("rollout/command_advantage", "Mean commanded advantage of steps."),
        Tag("rollout/command_rank", "Rank that is commanded in evaluations."),
        Tag(EPOCH, "The epoch, or a search's generation: column `epoch` in metrics.csv."),
        Tag(ENV_STEPS, "The x axis itself, as a curve over time: column `env_steps` in metrics.csv."),
        Tag(SPEED, "Environment steps of all seeds of the run per second of training, without evaluations."),
        Tag("time/rollout", "Seconds of the epoch in rollouts."),
        Tag("time/update", "Seconds of the epoch in updates."),
        Tag("time/train", "Seconds of the epoch in training."),
        Tag("time/eval", "Seconds of the evaluation after the epoch."),
        Tag("time/test", "Seconds of the generation in tests of agents."),
        Tag("time/generation", "Seconds of the generation."),
    )
}  # fmt: skip


def of_search(names: Iterable[str]) -> bool:
    """Return whether a run with tags of these ``names`` is a search, which counts the steps of all its agents."""
    return any(name.startswith("search/") for name in names)


def tags(*kinds: Kind) -> list[str]:
    """Return the names of all tags of these kinds, in the order of the table."""
    return [tag.name for tag in TAGS.values() if tag.kind in kinds]


def without_replaced(names: Iterable[str], common: Collection[str]) -> list[str]:
    """Return the tags among ``names`` to show for several runs, all of which have the tags in ``common``. A common tag
    replaces noisier tags of the same quantity. The running mean is omitted if it is not common."""
    omitted = {name for tag in common for name in TAGS[tag].replaces} | ({RUNNING_MEAN} - {*common})
    return [tag for tag in names if tag not in omitted]
