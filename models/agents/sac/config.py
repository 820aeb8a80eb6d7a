"""Settings of the SAC family, with their defaults. Imports no torch.

Sources: [H] Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", arXiv 1812.05905. [O] Haarnoja et
al. 2018, "Soft Actor-Critic: Off-Policy Maximum Entropy Deep Reinforcement Learning with a Stochastic Actor", arXiv
1801.01290. [E] Eberhard et al. 2023, "Pink Noise Is All You Need: Colored Noise Exploration in Deep Reinforcement
Learning", ICLR. [S] stable-baselines3 (Ornstein-Uhlenbeck process). Settings are named as in TD3.
"""

from dataclasses import dataclass

from models import varied
from models.agents.td3 import config as td3
from models.family import Family, reasons_by_setting
from models.intrinsic import Intrinsic
from models.settings import nonlinearity, setting, width


@dataclass(frozen=True)
class Config(Intrinsic):
    """Hyperparameters of SAC."""

    # Networks
    hidden_sizes: tuple[int, ...] = width((256, 256), "units of each hidden layer of actor and critics [H]")
    activation: str = nonlinearity("relu", "H")

    # Learning
    lr: float = setting(3e-4, "Adam's learning rate of actor and critics and temperature [H]", above=0, perturbed=True)
    batch_size: int = setting(256, "transitions in a batch [H]", minimum=1, maximum=1_000_000, perturbed=True)
    discount: float = setting(0.99, "discount of later rewards [H]", minimum=0, maximum=1)
    tau: float = setting(
        0.005, "share of the critics mixed into their target networks per update [H]", minimum=0, maximum=1
    )
    buffer_size: int = setting(1_000_000, "capacity of the replay buffer, in transitions [H]", minimum=1, maximum=2**24)
    fill: int = setting(
        100, "transitions in the replay buffer before the first update; until then actions are random", minimum=0
    )
    init_episodes: int = setting(0, "episodes before the first update; until then actions are random", minimum=0)
    updates_per_step: int = setting(1, "gradient steps per step of the environments [H]", minimum=1, maximum=10_000)

    # Entropy
    entropy_temperature: float = setting(
        1.0, "weight of the entropy, in reward per nat; if it is learned, its first value", above=0, maximum=1000
    )
    learn_temperature: bool = setting(
        True, "adapt that weight so that the entropy is `target_entropy` [H]; off: fixed [O]"
    )
    target_entropy: float | None = setting(
        None,
        "target of the entropy, in nats, for actions in shares of half the range; null: minus the number of action "
        "coordinates [H]",
    )

    # Exploration, collection and tests
    noise_type: str = setting(
        "normal",
        "noise that is multiplied by the policy's standard deviation. normal: independent at each step [H]; "
        "ornstein-uhlenbeck: correlated along an episode, from 0 to about 1.8 in size [E, S]",
        choices=td3.NOISE_TYPES,
    )
    test_noise: bool = setting(False, "sample actions in tests too; off: greedy [H]")
    num_envs: int = setting(
        1, "environments that an agent steps side by side, with one update for all", minimum=1, maximum=4096
    )

    # Hyperparameters sampled for each agent
    vary_hp: bool = varied.vary_hp()
    vary: tuple[str, ...] = varied.vary()

    validate = td3.Config.validate

    def ineffective(self) -> dict[str, str]:
        return super().ineffective() | reasons_by_setting(
            (not self.learn_temperature, ("target_entropy",), "learn_temperature is off")
        )


# A fixed temperature keeps exploration large until the first reward. A single hidden layer makes large batches cheap.
_MOUNTAIN_CAR: dict[str, object] = {
    "noise_type": "ornstein-uhlenbeck", "learn_temperature": False, "entropy_temperature": 0.3, "hidden_sizes": (64,),
    "lr": 3e-3, "tau": 0.01, "buffer_size": 200_000, "fill": 1000, "num_envs": 8, "updates_per_step": 2,
}  # fmt: skip

FAMILY = Family(
    config=Config,
    implementations={"SAC": {}},
    learns_from="steps",
    environment_presets={("SAC", "mountaincar-continuous"): _MOUNTAIN_CAR, ("SAC", "pendulum"): td3.PENDULUM},
    trains_on_proxies=True,
)
