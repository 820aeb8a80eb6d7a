"""Settings of the command-conditioned family. This file is the only home of their defaults; it imports no torch.

Sources: [U] Srivastava et al. 2019, "Training Agents using Upside-Down Reinforcement Learning", arXiv 1912.02877.
[R] Kumar et al. 2019, "Reward-Conditioned Policies", arXiv 1912.13465. [C] the public code of both, whose tuned
values for LunarLander come from correspondence with the authors. [S] after Strupl et al. 2025, "On the Convergence and
Stability of Upside-Down Reinforcement Learning, Goal-Conditioned Supervised Learning, and Online Decision
Transformers", arXiv 2502.05672, who mix the policies of eUDRL with the uniform policy.
"""

import functools
from dataclasses import dataclass
from itertools import pairwise

from models.family import EpisodeSchedule, Family, Hyperparameters, reasons_by_setting
from models.settings import names_with, nonlinearity, setting, width

_advantage_setting = functools.partial(setting, part="advantages")
_rank_setting = functools.partial(setting, part="ranks")
_value_setting = functools.partial(setting, part="values")


@dataclass(frozen=True)
class Config(Hyperparameters):
    """Hyperparameters of UDRL, RCP-R and RCP-A. Defaults are UDRL's; `FAMILY` holds the other defaults."""

    preset: str = setting(
        "published",
        "published: the values of the papers and the public code; ranks: UDRL or RCP-R with ranks as commands; "
        "obedient: UDRL with ranks, low ones too, so that the agent obtains commanded returns; averaged: RCP-A that "
        "acts with averaged weights",
        choices=("published", "ranks", "obedient", "averaged"),
        chooses=True,
    )

    # Network
    network: str = setting(
        "behavior",
        "behavior (UDRL's product of embeddings), hypernetwork, or gated (RCP)",
        choices=("behavior", "hypernetwork", "gated"),
    )
    hidden_sizes: tuple[int, ...] = width((32, 128, 128, 128), "units of each hidden layer [C]")
    activation: str = nonlinearity("relu", "C", (), ", except tanh in the layers that embed observation and command")
    conv_channels: tuple[int, ...] = width(
        (32, 48, 96, 128),
        "channels of the 3x3 stride-2 convolutions in front of the network, images only [U]",
        only_with="images",
    )
    reward_scale: float | None = setting(
        None, "factor on returns (or advantages) in the command; null: estimated from the data", above=0
    )
    horizon_scale: float | None = setting(
        None, "factor on the horizon in the command; null: estimated from the data", above=0
    )

    # Commands, in the order in which they enter the network
    desire_rtg: bool = setting(True, "command the return-to-go")
    desire_cum_rew: bool = setting(False, "command the episode's whole return (excludes desire_rtg)")
    desire_horizon: bool = setting(True, "command the number of remaining steps")
    desire_advantage: bool = setting(False, "command the advantage of the action (RCP-A)")
    desire_rank: bool = setting(
        False,
        "command the rank of the return-to-go among the returns that are likely from the state (preset ranks)",
        usual=False,
    )
    command_source: str = setting(
        "best",
        "best: U(mean, mean + standard deviation) of the best episodes, counted down (UDRL); "
        "latest: N(max, standard deviation) of the latest rollouts, held constant (RCP)",
        choices=("best", "latest"),
    )
    last_few: int = setting(
        75, "number of best episodes from which exploration commands are computed [C, U]", minimum=1, perturbed=True
    )
    desire_mu_minus_std: bool = setting(False, "lower the mean of the commanded return by one standard deviation")
    eval_command: str = setting(
        "lower_bound",
        "evaluate at the lower bound of the command distribution [U] (ranks: at eval_rank) or at a sample from it [C]",
        choices=("lower_bound", "sampled"),
    )
    advantage_command: str = _advantage_setting(
        "max", "mean of the advantage command: the largest advantage [C] or a quantile", choices=("max", "quantile")
    )
    advantage_quantile: float = _advantage_setting(
        0.9, "quantile of advantages for that command", above=0, maximum=1, perturbed=True
    )
    advantage_spread: float = _advantage_setting(
        1.0, "spread of the advantage command, in standard deviations of the advantages [C]", minimum=0, perturbed=True
    )

    rank_min: float = _rank_setting(0.8, "smallest rank commanded in training", above=0, below=1)
    rank_max: float = _rank_setting(0.95, "largest rank commanded in training", above=0, below=1)
    rank_low_share: float = _rank_setting(
        0.0, "share of training episodes that command a rank below rank_min (preset obedient)", minimum=0, below=1
    )
    eval_rank: float = _rank_setting(0.9, "rank commanded in evaluations", above=0, below=1)
    quantile_levels: tuple[float, ...] = _rank_setting(
        (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98),
        "levels of the quantiles of the return-to-go that a network predicts, in ascending order; ranks are "
        "interpolated between them",
        above=0,
        below=1,
    )

    # Learning
    lr: float = setting(3.5e-4, "Adam's learning rate [C]", above=0, perturbed=True)
    batch_size: int = setting(768, "steps in a batch [C]", minimum=1, maximum=1_000_000, perturbed=True)
    num_grad_steps: int = setting(100, "gradient steps per epoch [C]", minimum=1, perturbed=True)
    max_grad_norm: float = setting(100.0, "largest norm of a member's gradient [C]", above=0, perturbed=True)
    sample_by: str = setting(
        "step",
        "every step equally likely [C], or an episode first and then a step of it [U]",
        choices=("step", "episode"),
    )
    discount: float = setting(1.0, "discount of the return-to-go", minimum=0, maximum=1)
    average_decay: float = setting(
        0.0,
        "the policy acts with an exponential moving average of its weights, which keeps this share at a gradient step; "
        "0: with the latest weights",
        minimum=0,
        below=1,
        usual=False,
    )
    num_val_batches: int = setting(
        2, "batches of new steps for the validation loss, before updates on them; 0: none [C]", minimum=0
    )

    # Replay buffer and collection
    dataset: str | None = setting(
        None,
        "learn from the episodes of this dataset of Minari, minari:ID or a folder, and play none in training; null: "
        "learn from new episodes",
    )
    online: bool = setting(False, "with dataset: also play episodes in training, as without it")
    buffer_order: str = setting(
        "sorted", "keep the best episodes or the most recent ones", choices=("sorted", "recent")
    )
    buffer_unit: str = setting("steps", "unit of buffer_size", choices=("steps", "episodes"))
    buffer_size: int = setting(100_000, "capacity of the replay buffer [C: 500 episodes of 200 steps]", minimum=1)
    num_rand_action_rollouts: int = setting(50, "random episodes before training [C]", minimum=1)
    random_action_epochs: int = setting(1, "number of first epochs whose rollouts use random actions [C]", minimum=0)
    training_rollouts_per_worker: int = setting(
        20, "episodes per epoch, side by side [C]", minimum=1, maximum=4096, perturbed=True
    )
    action_noise: float = setting(
        1.0,
        "factor on the logits before sampling; continuous actions: standard deviation is 0.3 of it [C]",
        above=0,
        perturbed=True,
    )
    policy_floor: float = setting(
        0.0,
        "share of the uniform policy in sampled actions, only for discrete actions [S]",
        minimum=0,
        maximum=1,
        only_with="discrete actions",
    )

    # Reward-conditioned policies
    expo_weighting: bool = setting(False, "weight losses by min(exp(z / beta), max_weight) [R]")
    beta: float = setting(1.0, "temperature of the exponential weights [C]", above=0, perturbed=True)
    max_weight: float = setting(20.0, "largest exponential weight [R]", above=0, perturbed=True)
    use_lambda_td: bool = _advantage_setting(False, "value targets are TD(lambda) returns, not the discounted return")
    td_lambda: float = _value_setting(
        0.95,
        "lambda of the value targets [C]; of the return-to-go, if ranks are commanded",
        minimum=0,
        maximum=1,
        perturbed=True,
    )
    advantage_target: str = _advantage_setting(
        "return", "advantage = discounted return - V [C], or TD(lambda) return - V", choices=("return", "lambda")
    )
    bootstrap_truncation: bool = _value_setting(
        True, "at a time limit bootstrap from the value of the final observation; off: from 0 [C]"
    )
    val_func_update_interval: int = _value_setting(5, "policy updates per value update [C]", minimum=1)
    value_hidden_sizes: tuple[int, ...] = width(
        (128, 64), "units of the hidden layers of the value or quantile network [C]", part="values"
    )
    value_lr: float | None = _value_setting(
        None, "Adam's learning rate for the value or quantile network; null: lr", above=0, perturbed=True
    )
    clamp_adv_to_max: bool = _advantage_setting(False, "clip advantages from above")
    max_adv_clamp_val: float = _advantage_setting(50.0, "bound of clamp_adv_to_max, in units of reward")

    @property
    def schedule(self) -> EpisodeSchedule:
        """The schedule of training (`EpisodeSchedule`)."""
        return EpisodeSchedule(
            episodes=0 if self.is_offline else self.training_rollouts_per_worker,
            gradient_steps=self.num_grad_steps,
            warm_up=0 if self.dataset else self.num_rand_action_rollouts,
            random_epochs=0 if self.dataset else self.random_action_epochs,
            dataset=self.dataset,
            minibatch_steps=self.num_grad_steps * self.batch_size,
        )

    @property
    def return_discount(self) -> float:
        """Discount of commanded returns."""
        return 1.0 if self.desire_cum_rew else self.discount

    @property
    def is_offline(self) -> bool:
        """Whether the agent learns from recorded episodes alone."""
        return self.dataset is not None and not self.online

    def validate(self) -> str | None:
        if self.desire_rtg and self.desire_cum_rew:
            return "desire_rtg and desire_cum_rew exclude each other: switch one of them off"
        desired = [name for name in ("desire_rtg", "desire_cum_rew", "desire_advantage") if getattr(self, name)]
        if self.desire_rank and desired:
            return f"desire_rank and {desired[0]} exclude each other: switch {desired[0]} off (--preset ranks does)"
        if not (desired or self.desire_horizon or self.desire_rank):
            names = "desire_rtg, desire_cum_rew, desire_horizon, desire_advantage, desire_rank"
            return f"no command is on: switch on one of {names}"
        if self.desire_rank and not self.discount:
            return "discount is 0, but desire_rank is on; allowed: above 0"
        if self.rank_min > self.rank_max:
            return f"rank_min is {self.rank_min}, but rank_max is {self.rank_max}; allowed: at most rank_max"
        levels = self.quantile_levels
        if len(levels) < 2 or any(low >= high for low, high in pairwise(levels)):
            return f"quantile_levels is {','.join(map(str, levels))}; allowed: two or more, in ascending order"
        return None

    def ineffective(self) -> dict[str, str]:
        by_advantage, by_rank = self.desire_advantage, self.desire_rank
        by_return, has_values = self.desire_rtg or self.desire_cum_rew, by_advantage or by_rank
        uses_lambda = self.use_lambda_td or self.advantage_target == "lambda" or by_rank
        # No hidden layer except the first, which embeds the observation with tanh.
        only_embeddings = self.network != "gated" and len(self.hidden_sizes) == 1 and not has_values
        evaluates_samples = self.eval_command == "sampled"  # rank_min etc. then have an effect in evaluations
        return reasons_by_setting(
            (self.dataset is None, ("online",), "dataset is null"),
            (self.dataset is not None, ("num_rand_action_rollouts", "random_action_epochs"), "dataset replaces them"),
            (self.is_offline, ("buffer_size", "buffer_unit"), "the whole dataset is kept"),
            (
                self.is_offline,
                ("training_rollouts_per_worker", "num_val_batches"),
                "no episodes are played in training",
            ),
            (self.is_offline and not evaluates_samples, _RANK_RANGE, "no episodes are played in training"),
            (only_embeddings, ("activation",), "hidden_sizes has one layer, which embeds the observation and has tanh"),
            (not by_advantage, tuple(names_with(Config, "part", "advantages")), "desire_advantage is off"),
            (not has_values, tuple(names_with(Config, "part", "values")), "desire_advantage and desire_rank are off"),
            (not by_rank, tuple(names_with(Config, "part", "ranks")), "desire_rank is off"),
            (by_advantage, ("desire_mu_minus_std", "num_val_batches"), "desire_advantage is on"),
            (by_rank, ("desire_mu_minus_std", "reward_scale"), "desire_rank is on"),
            (by_rank and not self.desire_horizon, ("command_source", "last_few"), "only a rank is commanded"),
            (not (by_return or by_advantage), ("reward_scale", "desire_mu_minus_std"), "only the horizon is commanded"),
            (not self.desire_horizon, ("horizon_scale",), "desire_horizon is off"),
            (self.command_source == "latest", ("last_few",), "command_source is 'latest'"),
            (not self.expo_weighting, ("beta", "max_weight"), "expo_weighting is off"),
            (self.advantage_command == "max", ("advantage_quantile",), "advantage_command is 'max'"),
            (not uses_lambda, ("td_lambda",), "use_lambda_td is off, and advantage_target is 'return'"),
            (not self.clamp_adv_to_max, ("max_adv_clamp_val",), "clamp_adv_to_max is off"),
        )


_RCP = {
    "network": "gated",
    "hidden_sizes": (64, 64),
    "lr": 1e-3,
    "batch_size": 256,
    "num_grad_steps": 1000,
    "discount": 0.99,
    "buffer_order": "recent",
    "command_source": "latest",
    "expo_weighting": True,
    "desire_horizon": False,
}
_RCP_A = _RCP | {
    "desire_rtg": False,
    "desire_advantage": True,
    "use_lambda_td": True,
    "advantage_target": "lambda",
    "advantage_command": "quantile",
    "advantage_spread": 0.0,
}
_IMAGES = {"conv_channels": (16, 32, 32, 64), "batch_size": 256, "num_grad_steps": 60}
_RANKS = {
    "desire_rtg": False,
    "desire_horizon": False,
    "desire_rank": True,
    "discount": 0.99,
    "buffer_order": "recent",
    "lr": 1e-3,
    "average_decay": 0.99,
    "value_hidden_sizes": (64, 64),
    "val_func_update_interval": 1,
}
# RCP-R learns from fewer, larger batches than in its published form, because the quantile network needs as many.
_RCP_R_RANKS = _RANKS | {"num_grad_steps": 100, "batch_size": 768}
_OBEDIENT = _RANKS | {
    "rank_low_share": 0.25,
    "quantile_levels": (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98),
    "sample_by": "episode",
}
_SPARSE = {"reward_scale": 0.015, "horizon_scale": 0.015, "batch_size": 512, "lr": 5e-4, "last_few": 25}

_RANK_RANGE = ("rank_min", "rank_max", "rank_low_share")


FAMILY = Family(
    config=Config,
    implementations={"UDRL": {}, "RCP-R": _RCP, "RCP-A": _RCP_A},
    presets={
        "ranks": {"UDRL": _RANKS, "RCP-R": _RCP_R_RANKS},
        "obedient": {"UDRL": _OBEDIENT},
        "averaged": {"RCP-A": {"average_decay": 0.99}},
    },
    learns_from="episodes",
    environment_presets={
        ("UDRL", "lunarlander"): {"reward_scale": 0.025, "horizon_scale": 0.01},
        ("UDRL", "lunarlander-sparse"): _SPARSE,
        # With a discount, agents would postpone a bad return, which is paid in the last step, until the time limit.
        ("UDRL", "lunarlander-sparse", "ranks"): {"discount": 1.0},
        ("RCP-R", "lunarlander-sparse", "ranks"): {"discount": 1.0},
        ("UDRL", "takecover"): _IMAGES | {"lr": 1e-3, "buffer_unit": "episodes", "buffer_size": 300, "last_few": 50},
        ("RCP-A", "takecover"): _IMAGES | {"lr": 5e-4, "buffer_size": 8000, "val_func_update_interval": 2},
    },
)
