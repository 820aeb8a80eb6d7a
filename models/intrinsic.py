"""Settings of intrinsic rewards for novelty (`models.curiosity`), with their defaults. Imports no torch.

Sources: [P] Pathak et al. 2017, "Curiosity-driven Exploration by Self-supervised Prediction", arXiv 1705.05363 (ICM).
[B] Burda et al. 2019, "Exploration by Random Network Distillation", arXiv 1810.12894 (RND). [F] Ferreira et al. 2022,
"Learning Synthetic Environments and Reward Networks", arXiv 2202.02790, which uses ICM as a baseline with
the default values below; [C] its public code.
"""

import functools
from dataclasses import dataclass, fields

from models.family import Hyperparameters
from models.settings import setting, width

_curiosity = functools.partial(setting, section="curiosity")


@dataclass(frozen=True)
class Intrinsic(Hyperparameters):
    """Base class for the settings of agents that can have intrinsic rewards."""

    intrinsic: str = _curiosity(
        "none",
        "reward for novelty, added to the reward. icm: error of a forward model in learned features [P]; rnd: error "
        "of a network that predicts a random network's outputs at the next observation [B]",
        choices=("none", "icm", "rnd"),
    )
    icm_lr: float = _curiosity(1e-4, "Adam's learning rate of the networks [F]", above=0)
    icm_beta: float = _curiosity(
        0.2, "weight of the forward model's loss; the inverse model's is 1 - icm_beta [F]", minimum=0, maximum=1
    )
    icm_eta: float = _curiosity(0.5, "factor on the reward for novelty [F]", minimum=0)
    icm_feature_dim: int = width(32, "features of an observation [F]", section="curiosity")
    icm_hidden_size: int = width(128, "units of each hidden layer [F]", section="curiosity")
    rnd_lr: float = _curiosity(1e-4, "Adam's learning rate of the predictor [B]", above=0)
    rnd_scale: float = _curiosity(
        0.5, "factor on the reward for novelty, after division by its standard deviation [B]", minimum=0
    )
    rnd_feature_dim: int = width(64, "outputs of both networks", section="curiosity")
    rnd_hidden_size: int = width(128, "units of each of the two hidden layers of both networks", section="curiosity")
    rnd_clip: float = _curiosity(5.0, "standardised observations are clipped to this size [B]", above=0)

    def ineffective(self) -> dict[str, str]:
        # With "icm", these are the settings that begin with ``rnd_``, and vice versa; with "none", all.
        names = [field.name for field in fields(Intrinsic) if field.name != "intrinsic"]
        ineffective_names = [name for name in names if not name.startswith(f"{self.intrinsic}_")]
        return dict.fromkeys(ineffective_names, f"intrinsic is {self.intrinsic!r}")
