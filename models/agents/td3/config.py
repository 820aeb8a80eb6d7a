"""Settings of the TD3 family, with their defaults. Imports no torch.

Sources: [T] Fujimoto, van Hoof & Meger 2018, "Addressing Function Approximation Error in Actor-Critic Methods", arXiv
1802.09477. [F] Ferreira et al. 2022, "Learning Synthetic Environments and Reward Networks", arXiv 2202.02790, and its
public code. [L] Lillicrap et al. 2016, "Continuous Control with Deep Reinforcement Learning", arXiv 1509.02971. [S]
stable-baselines3 (noise; its settings are named as in rl-baselines3-zoo).
"""

from dataclasses import dataclass
from typing import Any

from models import varied
from models.family import Family, limit_error, reasons_by_setting
from models.intrinsic import Intrinsic
from models.settings import nonlinearity, setting, width

NOISE_TYPES = ("normal", "ornstein-uhlenbeck")


@dataclass(frozen=True)
class Config(Intrinsic):
    """Hyperparameters of TD3 and DDPG. Defaults are for TD3; `FAMILY` has the overrides for DDPG."""

    # Networks
    hidden_sizes: tuple[int, ...] = width((128, 128), "units of each hidden layer of actor and critics [F]")
    activation: str = nonlinearity("relu")

    # Learning
    lr: float = setting(1e-3, "Adam's learning rate of actor and critics [T]", above=0, perturbed=True)
    batch_size: int = setting(256, "transitions in a batch [F]", minimum=1, maximum=1_000_000, perturbed=True)
    discount: float = setting(0.99, "discount of later rewards [T]", minimum=0, maximum=1)
    tau: float = setting(
        0.005,
        "share of the networks mixed into the target networks, at each update of the actor [T]",
        minimum=0,
        maximum=1,
    )
    policy_delay: int = setting(
        2, "updates of the critics per update of the actor and of the target networks [T]", minimum=1, maximum=10_000
    )
    policy_std: float = setting(
        0.2, "noise on the target's action, a standard deviation in shares of half the range [T]", minimum=0
    )
    policy_std_clip: float = setting(0.5, "largest size of that noise [T]", minimum=0)
    twin_critics: bool = setting(True, "two critics, and the target is the smaller value [T]; off: one, as in [L]")
    buffer_size: int = setting(1_000_000, "capacity of the replay buffer, in transitions [T]", minimum=1, maximum=2**24)
    fill: int = setting(
        100, "transitions in the replay buffer before the first update; until then actions are random", minimum=0
    )
    init_episodes: int = setting(0, "episodes before the first update; until then actions are random", minimum=0)
    updates_per_step: int = setting(1, "gradient steps per step of the environments", minimum=1, maximum=10_000)

    # Exploration, collection and tests
    action_std: float = setting(
        0.1, "noise on the action, a standard deviation in shares of half the range [T]", minimum=0
    )
    noise_type: str = setting(
        "normal",
        "normal: independent noise at each step; ornstein-uhlenbeck: correlated along an episode, from 0 to about "
        "1.8 times action_std [L, S]",
        choices=NOISE_TYPES,
    )
    test_noise: bool = setting(False, "noise in tests as in training [F]; off: greedy")
    num_envs: int = setting(
        1, "environments that an agent steps side by side, with one update for all", minimum=1, maximum=4096
    )

    # Hyperparameters sampled for each agent
    vary_hp: bool = varied.vary_hp()
    vary: tuple[str, ...] = varied.vary(" [F]")

    def validate(self: Any) -> str | None:  # SAC has these settings too
        # None of these settings may be above ``buffer_size``.
        limits = dict.fromkeys(("batch_size", "fill", "num_envs"), "buffer_size")
        if error := limit_error(self, limits):
            return error
        if self.test_noise and self.noise_type != "normal":
            return f"test_noise is on, but noise_type is {self.noise_type!r}; allowed with test_noise: normal"
        return varied.validate(self)

    def ineffective(self) -> dict[str, str]:
        return super().ineffective() | reasons_by_setting(
            (self.action_std == 0, ("noise_type", "test_noise"), "action_std is 0"),
            (self.policy_std == 0, ("policy_std_clip",), "policy_std is 0"),
        )


# Large noise finds the goal by chance, before any learning. A single hidden layer makes large batches cheap.
_MOUNTAIN_CAR: dict[str, object] = {
    "noise_type": "ornstein-uhlenbeck", "action_std": 1.5, "hidden_sizes": (64,), "lr": 3e-3, "tau": 0.01,
    "policy_std": 0.05, "policy_std_clip": 0.1, "buffer_size": 200_000, "init_episodes": 0, "fill": 1000, "num_envs": 4,
}  # fmt: skip

# Small networks suffice, and take a tenth of the time. Also for SAC.
PENDULUM: dict[str, object] = {"hidden_sizes": (64, 64), "batch_size": 64, "lr": 1e-3, "discount": 0.98}

FAMILY = Family(
    config=Config,
    implementations={"TD3": {}, "DDPG": {"policy_delay": 1, "policy_std": 0.0, "twin_critics": False}},
    learns_from="steps",
    defaults_on_proxies={"init_episodes": 5},
    environment_presets={
        ("TD3", "mountaincar-continuous"): _MOUNTAIN_CAR,
        ("TD3", "pendulum"): PENDULUM,
        ("DDPG", "pendulum"): PENDULUM,
    },
    trains_on_proxies=True,
)
