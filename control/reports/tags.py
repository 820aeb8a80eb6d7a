"""Table of logged quantities, with one name for each, shared by all families of algorithms.

A name is a column of metrics.csv and a tag in TensorBoard and other loggers. docs/tensorboard.md shows this table. To
have a loss drawn, add a line with the kind ``loss``. Columns without a line are logged and not drawn.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["return", "loss", "command", ""]
"""Use of a tag in reports. ``return``: figures and tables; ``loss``: figures; ``command``: the panel of obtained
against commanded return."""

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
    """A logged quantity: its column ``name`` in metrics.csv, the ``title`` of its panel, and a sentence about it. Its
    unit is in docs/tensorboard.md."""

    name: str
    title: str
    text: str
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
        Tag(RUNNING_MEAN, "Mean return of the latest training episodes",
            "Mean return of the last `running_mean_len` training episodes, or of all if there are fewer.",
            "return", "running mean", (TRAINING, SAMPLED)),
        Tag("rollout/return_running_best", "Best running mean", "The largest running mean so far."),
        Tag(TRAINING, "Training return",
            "Mean return of the training episodes that ended in the epoch.", "return", "training"),
        Tag("rollout/return_std", "Training return, standard deviation", "Standard deviation of these returns."),
        Tag("rollout/return_min", "Training return, smallest", "The smallest of these returns."),
        Tag("rollout/return_max", "Training return, largest", "The largest of these returns."),
        Tag(LENGTH, "Episode length", "Mean length of the training episodes that ended in the epoch."),
        Tag(SAMPLED, "Evaluation return, sampled actions",
            "Mean return of evaluation episodes whose actions are sampled from the policy.", "return", "sampled"),
        Tag(GREEDY, "Evaluation return, greedy actions",
            "Mean return of evaluation episodes with the policy's best actions.", "return", "greedy"),
        Tag("eval/length_greedy", "Evaluation length, greedy actions",
            "Mean length of evaluation episodes with the policy's best actions."),
        Tag(REWARD_RATE, "Reward per step in evaluation, greedy actions",
            "Reward per step of evaluations, for environments without episodes.", "return", "reward rate", (GREEDY,)),
        Tag(FITNESS, "Fitness by agents of perturbed proxies",
            "Mean fitness of the generation's population.", "return", "fitness"),
        Tag(MEAN_RETURN, "Real return of fresh agents of the mean",
            "Mean return, in the test environment, of fresh agents that trained on the search's mean.",
            "return", "search mean"),
        Tag(BEST_FITNESS, "Largest fitness of the generation", "The largest fitness of the generation."),
        Tag("search/fitness_worst", "Smallest fitness of the generation", "The smallest fitness of the generation."),
        Tag("search/fitness_std", "Fitness, standard deviation", "Standard deviation of fitness."),
        Tag("search/center_solved", "Solved by agents of the mean",
            "Share of the mean's fresh agents that reach `solved_reward`, once `test_limit` has its final value."),
        Tag(HELD_OUT_RETURN, "Held-out return",
            "Mean return of fresh agents that trained on the search's winner, once at its end.", short="held-out"),
        Tag("search/failed", "Failed proxies", "Proxies of the population whose agents all diverged."),
        Tag("search/update_norm", "Step of the mean", "Euclidean length of the mean's latest step."),
        Tag("search/noise_std", "Perturbation", "Standard deviation of the perturbations, after the generation."),
        Tag("search/steps_per_agent", "Training steps of an agent",
            "Mean number of steps that the generation's agents trained for."),
        Tag("search/episode_length", "Episode length on the proxy",
            "Mean length of the episodes that the generation's agents trained on."),
        Tag(SYNTHETIC_STEPS, "Training steps of all agents", "Steps of all agents in training so far."),
        Tag("search/real_steps", "Real steps",
            "Steps in the real environment so far: for tests, and to fill tables of first states."),
        Tag("train/policy_loss", "Policy loss",
            "Loss that the policy minimises: cross-entropy of commanded policies, policy gradient, clipped "
            "surrogate, or minus the critics' value.", "loss"),
        Tag("train/value_loss", "Value loss",
            "Squared error between values and their targets: of state values, of action values, or the sum of both "
            "critics.", "loss"),
        Tag("train/quantile_loss", "Quantile loss",
            "Pinball loss of the predicted quantiles of the return-to-go, mean over their levels.", "loss"),
        Tag("train/entropy_loss", "Entropy loss", "Minus `beta` times the entropy share.", "loss"),
        Tag("train/total_loss", "Total loss", "Sum of the losses as they are weighted.", "loss"),
        Tag("train/validation_loss", "Policy loss on new episodes",
            "The policy's loss on new episodes, before updates on them.", "loss"),
        Tag("train/baseline", "Baseline",
            "Mean of the baseline that is subtracted from returns, in units of `reward_scale` times reward.", "loss"),
        Tag("train/advantage_mean", "Advantage", "Mean of return minus value, before standardisation."),
        Tag("train/entropy", "Entropy of the policy", "Mean entropy of the policy in the latest batch."),
        Tag("train/entropy_share", "Entropy of the policy, share of the largest",
            "Entropy divided by the entropy of a uniform policy."),
        Tag("train/entropy_temperature", "Entropy temperature", "Weight of the entropy in the policy's objective."),
        Tag("train/q_mean", "Mean action value",
            "Mean value of actions: of the latest batch, of a table's entries, or, with imagined batches, of the "
            "best actions in the observations of the epoch."),
        Tag("train/explained_variance", "Explained variance of values",
            "Share of the targets' variance that the values explain: 1 is all, 0 no more than their mean."),
        Tag(LEARNING_RATE, "Learning rate",
            "Learning rate of the policy, or of the values if actions follow from values."),
        Tag("train/grad_norm", "Gradient norm",
            "Euclidean length of a gradient before clipping: of the policy, or, with replayed steps, of the values. "
            "Mean over the reported updates, or of the latest."),
        Tag("train/approx_kl", "Approximate KL divergence",
            "Mean of r - 1 - log r over the latest pass, with r the ratio of the new to the old policy."),
        Tag("train/clip_fraction", "Clipped ratios", "Share of the ratios outside `clip_range`."),
        Tag("train/epsilon", "Epsilon", "Probability of a random action at the end of the epoch."),
        Tag("train/buffer_size", "Replay buffer", "Steps in the replay buffer."),
        Tag(GRADIENT_STEPS, "Gradient steps", "Updates so far."),
        Tag("model/reward_loss", "Model loss: reward", "Loss of the model's rewards, mean over the epoch.", "loss"),
        Tag("model/termination_loss", "Model loss: end of the episode",
            "Loss of the model's terminations, mean over the epoch.", "loss"),
        Tag("model/obs_loss", "Model loss: observation",
            "Loss of the model's observations, mean over the epoch.", "loss"),
        Tag("model/kl_loss", "Model loss: next latent state",
            "Loss of the model's next latent states, mean over the epoch.", "loss"),
        Tag("model/kl_base_loss", "Model loss: prior",
            "Divergence of the model's latent states from the fixed prior, mean over the epoch."),
        Tag("model/heldout_obs_loss", "Held-out loss: observation",
            "Of a fitted synthetic environment, on held-out transitions: squared error of the next observation in "
            "standard deviations, mean over its numbers."),
        Tag("model/heldout_reward_loss", "Held-out loss: reward", "The same for the reward."),
        Tag("model/heldout_termination_loss", "Held-out loss: end of the episode",
            "Cross-entropy of the episode's end on held-out transitions."),
        Tag("model/heldout_ends_missed", "Missed ends",
            "Share of the held-out ends at which the fitted environment does not end the episode."),
        Tag("model/heldout_ends_false", "False ends",
            "Share of the other held-out steps at which it ends the episode."),
        Tag("model/heldout_rollout_error", "Error of rollouts",
            "Error of its state after a rollout of 50 steps, or to the end of an episode, with the recorded "
            "actions: root mean square over the numbers of the state, median over pieces of episodes."),
        Tag("model/heldout_rollout_ends", "Wrong ends of rollouts",
            "Share of these pieces that it ends at another step."),
        Tag(COMMAND, "Obtained against commanded return", "Mean commanded return of training episodes.", "command"),
        Tag(SMALLEST_SEEN, "Smallest return learned from",
            "The smallest return of the episodes in the replay buffer, discounted as commands are."),
        Tag(LARGEST_SEEN, "Largest return learned from", "The largest of these returns."),
        Tag("rollout/command_horizon", "Commanded horizon", "Mean commanded number of steps of training episodes."),
        Tag("rollout/command_advantage", "Commanded advantage", "Mean commanded advantage of steps."),
        Tag("rollout/command_rank", "Commanded rank", "Rank that is commanded in evaluations."),
        Tag(EPOCH, "Epoch", "The epoch, or a search's generation: column `epoch` in metrics.csv."),
        Tag(ENV_STEPS, "Environment steps",
            "The x axis itself, as a curve over time: column `env_steps` in metrics.csv."),
        Tag(SPEED, "Steps per second",
            "Environment steps of all seeds of the run per second of training, without evaluations."),
        Tag("time/rollout", "Time of rollouts", "Seconds of the epoch in rollouts."),
        Tag("time/update", "Time of updates", "Seconds of the epoch in updates."),
        Tag("time/train", "Time of training", "Seconds of the epoch in training."),
        Tag("time/eval", "Time of the evaluation", "Seconds of the evaluation after the epoch."),
        Tag("time/test", "Time of tests", "Seconds of the generation in tests of agents."),
        Tag("time/generation", "Time of the generation", "Seconds of the generation."),
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
