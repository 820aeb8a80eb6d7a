"""Settings of the DDQN family, with their defaults. Imports no torch.

Sources: [H] van Hasselt, Guez & Silver 2016, "Deep Reinforcement Learning with Double Q-learning", arXiv 1509.06461.
[W] Wang et al. 2016, "Dueling Network Architectures", arXiv 1511.06581. [F] Ferreira et al. 2022, "Learning Synthetic
Environments and Reward Networks", arXiv 2202.02790, [C] its public code.
"""

from dataclasses import dataclass

from models import varied
from models.family import Family, limit_error, reasons_by_setting
from models.intrinsic import Intrinsic
from models.settings import nonlinearity, setting, width


@dataclass(frozen=True)
class Config(Intrinsic):
    """Hyperparameters of DDQN and DuelingDDQN. Defaults are for DDQN; `FAMILY` has the overrides for DuelingDDQN."""

    # Network
    head: str = setting(
        "plain",
        "plain: one network; dueling: features, then a value and an advantage [W]",
        choices=("plain", "dueling"),
    )
    hidden_sizes: tuple[int, ...] = width((64,), "units of each hidden layer [F]")
    activation: str = nonlinearity("relu")
    feature_dim: int = width(128, "width of features and of both streams, only dueling [F]")
    dueling_mean: str = setting(
        "row",
        "subtract the mean of the advantages over the actions of each row [W], or over the whole batch too [F]",
        choices=("row", "batch"),
    )

    # Learning
    lr: float = setting(1e-3, "Adam's learning rate [C]", above=0, perturbed=True)
    batch_size: int = setting(32, "transitions in a batch", minimum=1, maximum=1_000_000, perturbed=True)
    discount: float = setting(0.99, "discount of later rewards", minimum=0, maximum=1)
    tau: float = setting(
        0.01, "share of the online network mixed into the target network per update", minimum=0, maximum=1
    )
    buffer_size: int = setting(100_000, "capacity of the replay buffer, in transitions", minimum=1, maximum=2**24)
    fill: int = setting(0, "transitions in the replay buffer before the first update", minimum=0)
    init_episodes: int = setting(1, "episodes before the first update [F]", minimum=0)
    updates_per_step: int = setting(1, "gradient steps per step of the environments", minimum=1, maximum=10_000)

    # Exploration and collection
    eps_init: float = setting(1.0, "probability of a random action in the first episode", minimum=0, maximum=1)
    eps_min: float = setting(0.01, "lower bound of that probability", minimum=0, maximum=1)
    eps_decay: float = setting(0.9, "factor on that probability from episode to episode [F]", minimum=0, maximum=1)
    eps_fraction: float | None = setting(
        None,
        "lower the probability linearly from eps_init to eps_min over this share of the training; null: per "
        "episode, by eps_decay",
        above=0,
        maximum=1,
    )
    num_envs: int = setting(
        1, "environments that an agent steps side by side, with one update for all", minimum=1, maximum=4096
    )

    # Hyperparameters sampled for each agent
    vary_hp: bool = varied.vary_hp()
    vary: tuple[str, ...] = varied.vary(" [F]")

    def validate(self) -> str | None:
        # The value of each setting may not exceed the value of the setting beside it.
        limits = {"batch_size": "buffer_size", "fill": "buffer_size", "num_envs": "buffer_size", "eps_min": "eps_init"}
        return limit_error(self, limits) or varied.validate(self)

    def ineffective(self) -> dict[str, str]:
        return super().ineffective() | reasons_by_setting(
            (self.head == "plain", ("feature_dim", "dueling_mean"), "head is 'plain'"),
            (self.eps_fraction is not None, ("eps_decay",), "eps_fraction is given"),
        )


# The defaults suit the short trainings of agents on proxies [F], for which presets in the proxy's config override them.
# On these real environments, DDQN needs larger networks, larger batches and slower exploration.
_PRESETS: dict[str, dict[str, object]] = {
    "cartpole": {"hidden_sizes": (128, 128), "batch_size": 64, "eps_decay": 0.99, "eps_min": 0.04},
    "acrobot": {"hidden_sizes": (64, 64), "batch_size": 128, "eps_decay": 0.97, "eps_min": 0.02},
    "lunarlander": {
        "hidden_sizes": (64, 64), "batch_size": 128, "lr": 6.3e-4, "tau": 0.005, "eps_decay": 0.99, "eps_min": 0.05,
        "num_envs": 4, "updates_per_step": 2,
    },
}  # fmt: skip

FAMILY = Family(
    config=Config,
    implementations={"DDQN": {}, "DuelingDDQN": {"head": "dueling"}},
    learns_from="steps",
    environment_presets={("DDQN", game): values for game, values in _PRESETS.items()},
    trains_on_proxies=True,
)
