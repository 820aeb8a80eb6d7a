"""Settings of the PPO family, with their defaults. Imports no torch.

Sources: [S] Schulman et al. 2017, "Proximal Policy Optimization Algorithms", arXiv 1707.06347. [G] Schulman et al.
2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation", arXiv 1506.02438. [H] Huang et al.
2022, "The 37 Implementation Details of Proximal Policy Optimization", ICLR blog track. [B] stable-baselines3 2.9, the
source of the defaults, and [Z] the tuned hyperparameters of its zoo. [F] Ferreira et al. 2022, "Learning Synthetic
Environments and Reward Networks", arXiv 2202.02790, with its public code. [A] Huang et al. 2022, "A2C is a special
case of PPO", arXiv 2205.09123.
"""

from dataclasses import dataclass

from models import varied
from models.family import Family, reasons_by_setting
from models.intrinsic import Intrinsic
from models.settings import nonlinearity, setting, width


@dataclass(frozen=True)
class Config(Intrinsic):
    """Hyperparameters of PPO and A2C. `FAMILY` has the overrides for A2C and for some environments."""

    # Network
    hidden_sizes: tuple[int, ...] = width((64, 64), "units of each hidden layer, of the policy and of the values [B]")
    activation: str = nonlinearity("tanh", "B")
    conv_channels: tuple[int, ...] = width(
        (32, 48, 96, 128),
        "channels of the 3x3 stride-2 convolutions in front of both networks, images only",
        only_with="images",
    )
    orthogonal: bool = setting(True, "orthogonal first weights, small in the policy's output layer [H]; off: torch's")
    action_std: float = setting(
        1.0,
        "first standard deviation of continuous actions, in units of the action or, with scale_actions, in half-widths "
        "of its bounds; it is learned [B]",
        above=0,
        maximum=1000,
        only_with="continuous actions",
    )
    scale_actions: bool = setting(
        False,
        "the network's outputs are actions in half-widths of their bounds from the middle; off: in units of the action",
        only_with="continuous actions",
    )

    # Collection
    num_envs: int = setting(1, "environments that an agent steps side by side [B]", minimum=1, maximum=4096)
    rollout_steps: int = setting(2048, "steps of each environment between updates [B]", minimum=1, maximum=1_000_000)
    normalize_obs: bool = setting(
        False, "shift and scale observations by their running mean and standard deviation [H]"
    )
    normalize_reward: bool = setting(
        False, "divide rewards by the running standard deviation of their discounted sum [H]"
    )

    # Learning
    lr: float = setting(3e-4, "Adam's learning rate [B]", above=0, perturbed=True)
    anneal_lr: bool = setting(False, "lower the learning rate linearly to 0 over the originally planned run [H]")
    adam_eps: float = setting(1e-5, "Adam's epsilon [H]", above=0)
    ppo_epochs: int = setting(10, "passes over the collected steps [B]", minimum=1, maximum=10_000)
    batch_size: int = setting(
        64, "steps in a minibatch, of all environments; if there are fewer, all of them [B]", minimum=1,
        maximum=100_000_000, perturbed=True)  # fmt: skip
    discount: float = setting(0.99, "discount of later rewards [B]", minimum=0, maximum=1)
    gae_lambda: float = setting(0.95, "lambda of generalised advantages [G]", minimum=0, maximum=1)
    clip_range: float = setting(0.2, "largest change of the ratio of new to old probability from 1 [S]", above=0)
    clip_range_vf: float | None = setting(
        None, "largest change of a value from the rollout's value, in units of normalised reward; null: no limit [H]",
        above=0,
    )  # fmt: skip
    target_kl: float | None = setting(
        None,
        "end the passes over a rollout before the first minibatch whose approximate KL divergence from the rollout's "
        "policy exceeds 1.5 times this, in nats; null: never [B]",
        above=0,
    )
    vf_coef: float = setting(0.5, "weight of the squared error of values [B]", minimum=0)
    ent_coef: float = setting(0.0, "weight of the policy's entropy, in nats [B]", minimum=0)
    max_grad_norm: float | None = setting(
        0.5, "largest norm of the gradient of both networks together; null: no limit [B]", above=0, perturbed=True
    )
    normalize_advantage: bool = setting(
        True, "shift and scale each minibatch's advantages to mean 0 and variance 1 [B]"
    )
    test_noise: bool = setting(False, "sample actions in tests and evaluations too, as in [F]")

    # Hyperparameters sampled for each agent
    vary_hp: bool = varied.vary_hp()
    vary: tuple[str, ...] = varied.vary(" [F]")

    @property
    def init_episodes(self) -> int:
        """Number of episodes before the first update."""
        return 0

    def validate(self) -> str | None:
        return varied.validate(self)

    def ineffective(self) -> dict[str, str]:
        # A batch holds all steps of a rollout. This is unknown with ``vary_hp``, which may sample a smaller batch_size.
        full_batch = self.batch_size >= self.num_envs * self.rollout_steps and not self.vary_hp
        reason = "ppo_epochs is 1 and a batch holds all steps, so the policy is that of the rollout"
        clips = ("clip_range", "clip_range_vf", "target_kl")
        return super().ineffective() | reasons_by_setting((self.ppo_epochs == 1 and full_batch, clips, reason))


_PRESETS: dict[str, dict[str, object]] = {
    "cartpole": {
        "num_envs": 8, "rollout_steps": 32, "batch_size": 256, "ppo_epochs": 20, "discount": 0.98, "gae_lambda": 0.8,
        "lr": 1e-3, "anneal_lr": True,
    },
    "lunarlander": {
        "num_envs": 4, "rollout_steps": 512, "discount": 0.995, "lr": 1e-3, "anneal_lr": True, "normalize_obs": True,
        "normalize_reward": True,
    },
    "takecover": {
        "num_envs": 16, "rollout_steps": 64, "batch_size": 256, "ppo_epochs": 4, "lr": 5e-4, "normalize_reward": True,
        "ent_coef": 0.01, "conv_channels": (16, 32, 32, 64),
    },
    "pendulum": {"num_envs": 4, "rollout_steps": 1024, "discount": 0.9, "lr": 1e-3},
    # With rewards and observations of one scale, and entropy, more seeds reach the goal by chance and learn from it.
    "mountaincar": {
        "num_envs": 16, "rollout_steps": 64, "batch_size": 256, "gae_lambda": 0.98, "lr": 1e-3,
        "ent_coef": 0.02, "normalize_obs": True, "normalize_reward": True,
    },
}  # fmt: skip

# One pass with one minibatch clips nothing [A]. The values are stable-baselines3's, but its optimiser is RMSprop.
_A2C: dict[str, object] = {
    "num_envs": 8, "rollout_steps": 5, "batch_size": 1_000_000, "ppo_epochs": 1, "gae_lambda": 1.0, "lr": 7e-4,
    "normalize_advantage": False,
}  # fmt: skip

FAMILY = Family(
    config=Config,
    implementations={"PPO": {}, "A2C": _A2C},
    learns_from="steps",
    environment_presets={("PPO", game): values for game, values in _PRESETS.items()},
    trains_on_proxies=True,
)
