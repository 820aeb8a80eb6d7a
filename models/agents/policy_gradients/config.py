"""Settings of the policy-gradient family. This file is the only home of their defaults; it imports no torch.

Sources: [N] the notebook "Policy gradients on the 300-step lander" (a course's fourth homework) with the skeleton it
came with, [W] Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement
learning", [M] Mnih et al. 2016, arXiv 1602.01783 (entropy; advantage actor-critic), [G] Schulman et al. 2016, arXiv
1506.02438 (GAE). Other values were tuned in this project: docs/policy_gradients.md.
"""

from dataclasses import dataclass

from models.family import EpisodeSchedule, Family, Hyperparameters, reasons_by_setting
from models.settings import nonlinearity, setting, width


@dataclass(frozen=True)
class Config(Hyperparameters):
    """Hyperparameters of VPG, EPG, BPG, CPG and AAC. Defaults are VPG's; `IMPLEMENTATIONS` holds the other agents'."""

    preset: str = setting(
        "published",
        "published: the notebook's values, as far as it prints them [N]; skeleton: the values of its skeleton [N]; "
        "aac_tuned: AAC with its improvements on",
        choices=("published", "skeleton", "aac_tuned"),
        chooses=True,
    )

    # Network
    hidden_sizes: tuple[int, ...] = width((512, 256), "units of the policy's hidden layers [N]")
    value_hidden_sizes: tuple[int, ...] = width(
        (32, 32), "AAC: units of the hidden layers of the separate value network [N]"
    )
    shared_trunk: bool = setting(False, "AAC: policy and value are two heads on the policy's hidden layers")
    activation: str = nonlinearity("relu", "N", ("prelu", "elu", "silu"))
    conv_channels: tuple[int, ...] = width(
        (32, 48, 96, 128),
        "channels of the 3x3 stride-2 convolutions in front of the network, images only",
        only_with="images",
    )

    # Losses
    baseline: str = setting(
        "none",
        "subtracted from the return-to-go: none [W], batch_mean, the mean over the batch [N], or value, a learned "
        "function of the state (AAC) [M]",
        choices=("none", "batch_mean", "value"),
    )
    beta: float = setting(
        0.0, "weight of the entropy, as a share of the largest possible entropy [N]; 0: none", minimum=0, perturbed=True
    )
    delta: float = setting(1.0, "AAC: weight of the value loss [N]", minimum=0)
    discount: float = setting(0.995, "discount of later rewards [N]", minimum=0, maximum=1)

    # Learning
    lr: float = setting(1e-3, "Adam's learning rate [N]", above=0, perturbed=True)
    value_lr: float | None = setting(
        None, "AAC: Adam's learning rate for the separate value network; null: lr", above=0, perturbed=True
    )
    adam_eps: float = setting(1e-8, "Adam's epsilon [N]", above=0)
    batch_episodes: int = setting(32, "episodes per update, side by side, each to its end [N]", minimum=1, maximum=4096)

    # The end
    max_episodes: int | None = setting(
        6000,
        "episodes to train, rounded up to whole batches; null (the default with total_steps): no limit [N]",
        minimum=1,
    )
    target_running_mean: float | None = setting(
        None, "stop early once the mean return of the latest training episodes reaches this; null: never [N]"
    )
    running_mean_len: int = setting(
        100, "number of episodes in that mean; if there are fewer, all of them [N]", minimum=1, maximum=1_000_000
    )

    # Improvements, all off as published
    normalize_advantage: bool = setting(False, "shift and scale each batch's advantages to mean 0 and variance 1")
    gae_lambda: float | None = setting(
        None,
        "AAC: lambda of generalised advantage estimates [G]; null: the return-to-go minus the value",
        minimum=0,
        maximum=1,
    )
    bootstrap_truncation: bool = setting(
        False, "AAC: at a time limit bootstrap from the value of the final observation; off: from 0"
    )
    value_steps: int = setting(0, "AAC: further gradient steps of the separate value network on each batch", minimum=0)
    reward_scale: float = setting(1.0, "factor on rewards before anything is learned from them", above=0)
    max_grad_norm: float | None = setting(
        None, "largest norm of a network's gradient; null: no limit", above=0, perturbed=True
    )
    anneal_lr: bool = setting(
        False, "lower the learning rates linearly to 0 over the originally planned run (max_episodes, total_steps)"
    )

    @property
    def schedule(self) -> EpisodeSchedule:
        """The schedule of training (`EpisodeSchedule`)."""
        return EpisodeSchedule(
            episodes=self.batch_episodes,
            gradient_steps=1 + self.value_steps,
            on_policy=True,
            running_mean=self.running_mean_len,
            target=self.target_running_mean,
        )

    @property
    def epochs(self) -> int | None:
        """Number of epochs of a run, rounded up; None if ``max_episodes`` does not limit it."""
        return None if self.max_episodes is None else -(-self.max_episodes // self.batch_episodes)

    def validate(self) -> str | None:
        if self.baseline != "value":
            # Settings that need a value network, with the values that switch them off.
            off_values = {"shared_trunk": False, "gae_lambda": None, "bootstrap_truncation": False, "value_steps": 0}
            for name, value in off_values.items():
                if getattr(self, name) != value:
                    problem = f"{name} is {getattr(self, name)!r}, but baseline is {self.baseline!r}"
                    return f"{problem}; allowed: a baseline of 'value' (AAC)"
        elif self.shared_trunk and self.value_steps:
            return (
                f"value_steps is {self.value_steps}, but shared_trunk is on, so that there is one network; allowed: 0"
            )
        return None

    def ineffective(self) -> dict[str, str]:
        reason = f"baseline is {self.baseline!r}, so there is no value network"
        value_settings = ("value_lr", "value_hidden_sizes")
        critic_settings = ("delta", "shared_trunk", "gae_lambda", "value_steps", "bootstrap_truncation")
        return reasons_by_setting(
            (self.shared_trunk, value_settings, "shared_trunk is on, so there is one network"),
            (self.baseline != "value", (*value_settings, *critic_settings), reason),
        )


IMPLEMENTATIONS: dict[str, dict[str, object]] = {
    "VPG": {},
    "EPG": {"beta": 0.7},
    "BPG": {"baseline": "batch_mean"},
    "CPG": {"baseline": "batch_mean", "beta": 0.7},
    # The notebook prints AAC's networks but no hyperparameters: these were tuned in this project.
    "AAC": {
        "baseline": "value", "hidden_sizes": (32, 32), "beta": 0.1, "discount": 0.99, "lr": 4e-3, "value_lr": 1e-2,
        "batch_episodes": 8,
    },
}  # fmt: skip

_SKELETON: dict[str, object] = {"discount": 0.99}
PRESETS: dict[str, dict[str, dict[str, object]]] = {
    "skeleton": {
        "VPG": _SKELETON,
        "EPG": _SKELETON | {"beta": 0.5},
        "BPG": _SKELETON,
        "CPG": _SKELETON | {"beta": 0.5},
        "AAC": _SKELETON | {"beta": 1.0, "lr": 1e-3, "value_lr": None, "batch_episodes": 32},
    },
    "aac_tuned": {
        "AAC": {
            "batch_episodes": 4, "hidden_sizes": (256, 128), "value_hidden_sizes": (64, 64), "discount": 0.995,
            "lr": 2e-3, "value_lr": 1e-3, "beta": 0.01, "gae_lambda": 0.97, "normalize_advantage": True,
            "reward_scale": 0.05, "value_steps": 20,
        }
    },
}  # fmt: skip


def changeable(config: Config) -> tuple[str, ...]:
    """Return the settings that a resumed run may change: the run's end, unless learning rates depend on it."""
    return ("target_running_mean",) if config.anneal_lr else ("max_episodes", "target_running_mean")


FAMILY = Family(
    config=Config,
    implementations=IMPLEMENTATIONS,
    learns_from="episodes",
    presets=PRESETS,
    replaced={"epochs": "max_episodes"},
    changeable=changeable,
)
