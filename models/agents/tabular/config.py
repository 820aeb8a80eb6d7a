"""Settings of the tabular family, with their defaults. Imports no torch.

Sources: [W] Watkins 1989, "Learning from Delayed Rewards" (Q-learning). [R] Rummery & Niranjan 1994, "On-Line
Q-Learning Using Connectionist Systems" (SARSA). [S] Sutton & Barto 2018, "Reinforcement Learning", sections 6.4 and
6.5. [F] Ferreira et al. 2022, "Learning Synthetic Environments and Reward Networks", arXiv 2202.02790; its values for
Cliff are the defaults on its maps. [C] its public code. [B] Strehl & Littman 2008, "An analysis of model-based Interval
Estimation for Markov Decision Processes" (count bonus).
"""

from dataclasses import dataclass

from models.family import Family, limit_error, reasons_by_setting
from models.intrinsic import Intrinsic
from models.settings import setting

VARIED = ("lr", "discount")
# Maps with published results, or with results of this project that are compared with them. On other maps, an agent that
# takes the first of equal actions may never see a reward: if only the goal pays, all values begin equal.
_PUBLISHED_MAPS = (
    "cliff", "cliffwalking", "emptyroom22", "emptyroom23", "emptyroom33", "wallroom", "holeroom", "holeroomlarge",
    "holeroomlargeshifted",
)  # fmt: skip
_PUBLISHED = {"lr": 1.0, "discount": 0.8}  # values of [F]


@dataclass(frozen=True)
class Config(Intrinsic):
    """Hyperparameters of QLearning and SARSA. Defaults are for QLearning; `FAMILY` has the overrides for SARSA."""

    # Learning
    backup: str = setting(
        "max",
        "action whose value at the next state is the target. max: the best action [W]; redrawn: an exploring "
        "action, sampled only for the update [C]; executed: the agent's next action [R, S]",
        choices=("max", "redrawn", "executed"),
    )
    lr: float = setting(
        0.1,
        "alpha, the share of its error that is added to a value (1 if moves are not random)",
        above=0,
        maximum=1,
        perturbed=True,
    )
    anneal_lr: bool = setting(
        False, "lower lr linearly to 0 over the originally planned run; helps if moves are random"
    )
    discount: float = setting(0.99, "discount of later rewards", minimum=0, maximum=1)
    count_bonus: float = setting(
        0.0, "b of the bonus b / sqrt(n) on a reward, with n the visits of state and action [B]", minimum=0
    )
    truncation_ends: bool = setting(False, "a time limit is a termination, as in [C]; off: bootstrap there")
    init_episodes: int = setting(0, "episodes before the first update", minimum=0)

    # Exploration and collection
    eps_init: float = setting(0.1, "probability of a random action in the first episode [F]", minimum=0, maximum=1)
    eps_min: float = setting(0.1, "lower bound of that probability [F]", minimum=0, maximum=1)
    eps_decay: float = setting(0.9, "factor on that probability from episode to episode", minimum=0, maximum=1)
    eps_fraction: float | None = setting(
        None,
        "lower the probability linearly from eps_init to eps_min over this share of the training; null: per "
        "episode, by eps_decay",
        above=0,
        maximum=1,
    )
    random_ties: bool = setting(
        True, "break ties between best actions at random in training; off, and in tests: the first of them"
    )
    num_envs: int = setting(
        1, "environments that an agent steps side by side, with one update for each", minimum=1, maximum=4096
    )

    # Hyperparameters sampled for each agent
    vary_hp: bool = setting(False, "sample the settings in `vary` for each agent, uniformly in [0.1, 1] [F]")
    vary: tuple[str, ...] = setting(VARIED, "hyperparameters that vary_hp samples [F]", choices=VARIED)

    def validate(self) -> str | None:
        return limit_error(self, {"eps_min": "eps_init"})

    def ineffective(self) -> dict[str, str]:
        return super().ineffective() | reasons_by_setting(
            (self.eps_fraction is not None, ("eps_decay",), "eps_fraction is given")
        )


FAMILY = Family(
    config=Config,
    implementations={"QLearning": {}, "SARSA": {"backup": "redrawn"}},
    learns_from="steps",
    game_defaults=dict.fromkeys(_PUBLISHED_MAPS, {**_PUBLISHED, "random_ties": False}),
    default_epochs=400,  # tables learn in fewer steps than networks
    trains_on_proxies=True,
)
