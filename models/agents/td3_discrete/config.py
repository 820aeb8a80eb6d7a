"""Settings of TD3 for discrete actions, in addition to TD3's (``td3/config.py``). Imports no torch.

Sources: [F] Ferreira et al. 2022, "Learning Synthetic Environments and Reward Networks", arXiv 2202.02790, and its
public code. [J] Jang, Gu & Poole 2017, "Categorical Reparameterization with Gumbel-Softmax", arXiv 1611.01144.
"""

from dataclasses import dataclass

from models.agents.td3 import config as td3
from models.family import Family
from models.settings import setting


@dataclass(frozen=True)
class Config(td3.Config):
    """Hyperparameters of TD3Discrete."""

    gumbel_softmax_temp: float = setting(
        1.0, "temperature of the Gumbel-softmax; if it changes, its first value [F]", above=0, maximum=1000
    )
    gumbel_softmax_hard: bool = setting(
        False, "one-hot vectors with the gradient of soft vectors [J]; off: soft vectors"
    )
    gumbel_temperature: str = setting(
        "fixed",
        "fixed; annealed: linearly to a twentieth within 2,000 updates [F]; learned: together with the actor [F]",
        choices=("fixed", "annealed", "learned"),
    )


FAMILY = Family(
    config=Config,
    implementations={"TD3Discrete": {"policy_delay": 1}},
    learns_from="steps",
    defaults_on_proxies={"init_episodes": 5},
    trains_on_proxies=True,
)
