"""Settings of the model-generalisation family. This file is the only home of their defaults; it imports no torch.

Sources: [Y] Young, Ramesh, Kirsch & Schmidhuber 2023, "The Benefits of Model-Based Generalization in Reinforcement
Learning", arXiv 2211.02222, and its public code.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

from models.family import Family, Hyperparameters, StepSchedule, reasons_by_setting
from models.settings import names_with, nonlinearity, setting, width

# Settings of an environment, for all agents.
GAMES: dict[str, dict[str, Any]] = {
    "procmaze": {"episodic_env": True},
    "buttongrid": {"episodic_env": False},  # never ends
    "panflute": {"episodic_env": False},  # never ends
}

# Settings of a regime. High data is one update per step, the default in config.py. Low data has the same number of
# updates over a tenth of the steps, and the same number of updates between two copies to the target network.
REGIMES: dict[str, dict[str, Any]] = {
    "high": {},
    "low": {"updates_per_step": 10, "target_update_frequency": 10, "total_steps": 100_000, "steps_per_epoch": 50},
}

# lr and softmax_temp of each agent: for procmaze high and low, buttongrid high and low, panflute high and low.
_TUNED_VALUES: dict[str, tuple[tuple[float, float], ...]] = {
    "ER": ((5e-5, 0.1), (2.5e-5, 1.6), (5e-5, 0.0125), (2.5e-5, 0.1), (1e-4, 0.1), (3.125e-6, 0.8)),
    "PerfectModel": ((1e-4, 0.4), (4e-4, 0.4), (2e-4, 0.0125), (2e-4, 0.0125), (2e-4, 0.1), (1e-4, 0.1)),
    "SimpleModel": ((2e-4, 0.8), (2.5e-5, 0.4), (2e-4, 1.6), (5e-5, 0.4), (1e-4, 0.4), (2e-4, 0.2)),
    "CategoricalLatent": ((2e-4, 1.6), (1e-4, 0.8), (1e-4, 0.05), (2e-4, 0.1), (8e-4, 0.05), (1.6e-3, 0.05)),
    "GaussianLatent": ((3.125e-6, 12.8), (3.125e-6, 0.8), (1.25e-5, 0.1), (2.5e-5, 0.8), (2e-4, 0.1), (2e-4, 0.1)),
}

# Preset -> agent -> settings: the best values of the paper's sweep (figure 4), from the public code.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {}
for _column, (_game, _regime) in enumerate(itertools.product(GAMES, REGIMES)):
    PRESETS[f"{_game}_{_regime}"] = {}
    for _agent, _values in _TUNED_VALUES.items():
        _lr, _softmax_temp = _values[_column]
        _tuned = {"lr": _lr, "softmax_temp": _softmax_temp}
        PRESETS[f"{_game}_{_regime}"][_agent] = GAMES[_game] | REGIMES[_regime] | _tuned


# Defaults if neither the game nor a preset has a value.
_DEFAULT_PRESET = PRESETS["procmaze_high"]


_model_setting = functools.partial(setting, part="learned model")
_latent_setting = functools.partial(setting, part="latent states")


@dataclass(frozen=True)
class Config(Hyperparameters):
    """Hyperparameters of ER, PerfectModel, SimpleModel, CategoricalLatent and GaussianLatent. Defaults are ER's
    in the high-data regime on ProcMaze. `IMPLEMENTATIONS` holds the other agents' defaults, `PRESETS` the values for
    other environments and regimes.
    """

    num_envs: ClassVar[int] = 1  # environments per member

    preset: str = setting(
        "shipped",
        "shipped: the environment's values for one update per step; <environment>_high: the same, by name; "
        "<environment>_low: its values for ten updates per step and a tenth of the steps [Y]",
        choices=("shipped", *PRESETS),
        chooses=True,
    )

    # Networks
    model: str = setting(
        "none",
        "model that imagines steps. none: values learn from replayed steps (ER); perfect: the environment itself; "
        "simple: a learned model of observations; latent: a learned model of latent states [Y]",
        choices=("none", "perfect", "simple", "latent"),
    )
    hidden_sizes: tuple[int, ...] = width((200, 200, 200), "units of each hidden layer of each network [Y]")
    activation: str = nonlinearity("elu", "Y", ("prelu", "elu", "silu"))

    # Values
    lr: float = setting(
        _DEFAULT_PRESET["ER"]["lr"], "Adam's learning rate for the action values [Y]", above=0, perturbed=True
    )
    adam_beta1: float = setting(0.9, "Adam's decay rate for the gradient's mean [Y]", minimum=0, below=1)
    adam_beta2: float = setting(0.99, "Adam's decay rate for the gradient's square [Y]", minimum=0, below=1)
    adam_eps: float = setting(1e-5, "Adam's epsilon, added outside the square root [Y]", above=0)
    weight_decay: float = setting(
        1e-6, "share of each weight subtracted per update, independent of the learning rate [Y]", minimum=0, maximum=1
    )
    discount: float = setting(0.9, "discount of later rewards [Y]", minimum=0, maximum=1)
    double_DQN: bool = setting(False, "target: the target network's value of the online network's best action [Y]")
    use_target: bool = setting(True, "use a target network; off: targets come from the online network [Y]")
    target_update_frequency: int = setting(100, "environment steps between copies to the target network [Y]", minimum=1)
    batch_size: int = setting(
        320,
        "transitions per update; with a model, starts of imagined rollouts [Y]",
        minimum=1,
        maximum=1_000_000,
        perturbed=True,
    )
    updates_per_step: int = setting(1, "updates per environment step [Y]", minimum=1, maximum=10_000)
    buffer_size: int = setting(100_000, "capacity of the replay buffer, in transitions [Y]", minimum=1, maximum=2**24)
    training_start_time: int = setting(
        1000, "environment steps before the first update, rounded up to whole epochs [Y]", minimum=0
    )

    # Exploration
    exploration_strat: str = setting(
        "softmax", "how actions are chosen, also in imagination [Y]", choices=("softmax", "epsilon_greedy")
    )
    softmax_temp: float = setting(
        _DEFAULT_PRESET["ER"]["softmax_temp"],
        "temperature of the softmax over action values [Y]",
        above=0,
        perturbed=True,
    )
    epsilon: float = setting(0.1, "epsilon_greedy: probability of a random action", minimum=0, maximum=1)

    # Imagination
    rollout_length: int = setting(10, "steps of each imagined rollout [Y]", minimum=1, maximum=1000)
    rollout_batch_size: int | None = setting(
        None,
        "starts of imagined rollouts, sampled separately from the model's batch; null: that batch [Y]",
        minimum=1,
        maximum=10**6,
    )
    episodic_env: bool = setting(
        True,
        "episodes end: weight imagined steps by the probability that the episode continues, and evaluate by returns; "
        "off: evaluate by the reward per step [Y]",
    )

    # Models that are learned
    model_lr: float = _model_setting(2e-4, "Adam's learning rate for the model [Y]", above=0, perturbed=True)
    binary_obs: bool | None = _model_setting(
        None, "observations are bits, 0 or 1; null: as the environment declares [Y]"
    )
    reward_weight: float = _model_setting(1.0, "weight of the reward loss [Y]", minimum=0)
    termination_weight: float = _model_setting(1.0, "weight of the termination loss [Y]", minimum=0)
    obs_prediction_weight: float = _model_setting(1.0, "weight of the observation loss [Y]", minimum=0)

    # Latent models
    latent_type: str = _latent_setting(
        "categorical", "distribution of the latent state [Y]", choices=("categorical", "gaussian", "tanh_gaussian")
    )
    num_features: int = _latent_setting(32, "variables of a latent state [Y]", minimum=1, maximum=4096)
    feature_width: int = _latent_setting(32, "classes of each categorical variable [Y]", minimum=2, maximum=4096)
    KL_prior_weight: float = _latent_setting(
        0.8, "weight of KL(encoded || predicted) for the prediction [Y]", minimum=0
    )
    KL_posterior_weight: float = _latent_setting(
        0.2, "weight of KL(encoded || predicted) for the encoder [Y]", minimum=0
    )
    posterior_entropy_weight: float = _latent_setting(0.0, "weight of KL(encoded || uniform or normal) [Y]", minimum=0)
    min_std: float = _latent_setting(0.0, "Gaussian: added to the encoder's standard deviations [Y]", minimum=0)
    std_act: str = _latent_setting(
        "softplus",
        "Gaussian: maps raw outputs to standard deviations; sigmoid2 is 2 sigmoid(x / 2) [Y]",
        choices=("softplus", "sigmoid", "sigmoid2"),
    )
    learn_obs_variance: bool = _latent_setting(
        False, "also decode standard deviations, if observations are not bits [Y]"
    )

    compile: bool = setting(
        False,
        "fuse the update of the values by torch.compile: needs a C++ compiler and half a minute, and rounds "
        "differently",
        hparam=False,
    )

    # Steps and evaluation
    total_steps: int = setting(
        1_000_000, "environment steps per seed after which training ends, rounded up to whole epochs [Y]", minimum=1
    )
    steps_per_epoch: int = setting(500, "environment steps per epoch [Y]", minimum=1)
    eval_every: int = setting(1, "epochs between evaluations [Y]", minimum=1)
    eval_steps: int = setting(100, "largest number of steps of an evaluation episode [Y]", minimum=1)
    eval_episodes: int = setting(32, "episodes per evaluation [Y]", minimum=1, maximum=1_000_000)

    # Mistakes of the original
    faithful_to_paper: bool = setting(False, "repeat the original's mistakes: stale_observation and bernoulli_logits")
    stale_observation: bool | None = setting(
        None, "after an episode act on its last observation once more, and store that step; null: as faithful_to_paper"
    )
    bernoulli_logits: bool | None = setting(
        None,
        "SimpleModel: the probability of an imagined bit is its logit, not the sigmoid of the logit; null: as "
        "faithful_to_paper",
    )

    @property
    def acts_on_stale(self) -> bool:
        """Whether the agent also acts on the last observation of an episode, after its end."""
        return self.faithful_to_paper if self.stale_observation is None else self.stale_observation

    @property
    def logit_is_probability(self) -> bool:
        """Whether `SimpleModel` takes the logit of a bit for its probability."""
        return self.faithful_to_paper if self.bernoulli_logits is None else self.bernoulli_logits

    @property
    def epochs(self) -> int:
        """Number of epochs of a run, rounded up."""
        return -(-self.total_steps // self.steps_per_epoch)

    @property
    def first_update(self) -> int:
        """Number of environment steps before the first update, rounded up to whole epochs."""
        return -(-self.training_start_time // self.steps_per_epoch) * self.steps_per_epoch

    @property
    def schedule(self) -> StepSchedule:
        """The schedule of training (`StepSchedule`)."""
        return StepSchedule(
            steps_per_epoch=self.steps_per_epoch,
            eval_every=self.eval_every,
            eval_episodes=self.eval_episodes,
            eval_steps=self.eval_steps,
            endless=True,
            continuing=not self.episodic_env,
        )

    def validate(self) -> str | None:
        if self.model == "latent" and self.binary_obs and self.learn_obs_variance:
            return "learn_obs_variance is true, but binary_obs is too, and bits have no variance; allowed: one of them"
        return None

    def ineffective(self) -> dict[str, str]:
        model = f"model is {self.model!r}"
        latent_type = f"latent_type is {self.latent_type!r}"
        strategy = f"exploration_strat is {self.exploration_strat!r}"
        learns_model = self.model in ("simple", "latent")
        model_settings = names_with(Config, "part", "learned model")
        latent_settings = tuple(names_with(Config, "part", "latent states"))
        target_settings = ("target_update_frequency", "double_DQN")
        return reasons_by_setting(
            (self.model == "none", ("rollout_length",), f"{model}, so nothing is imagined"),
            (not learns_model, (*model_settings, "rollout_batch_size"), f"{model}, so no model is learned"),
            (self.model != "latent", latent_settings, f"{model}, so there are no latent states"),
            (self.model != "simple", ("bernoulli_logits",), f"{model}, so no bits are imagined"),
            (self.binary_obs is False, ("bernoulli_logits",), "binary_obs is off, so no bits are imagined"),
            (self.latent_type != "categorical", ("feature_width",), latent_type),
            (self.latent_type == "categorical", ("min_std", "std_act"), latent_type),
            (self.exploration_strat != "epsilon_greedy", ("epsilon",), strategy),
            (self.exploration_strat != "softmax", ("softmax_temp",), strategy),
            (not self.use_target, target_settings, "use_target is off, so there is only one network of values"),
        )


_AGENT_SETTINGS: dict[str, dict[str, object]] = {
    "ER": {},
    "PerfectModel": {"model": "perfect", "batch_size": 32},
    "SimpleModel": {"model": "simple", "batch_size": 32},
    "CategoricalLatent": {"model": "latent", "batch_size": 32},
    "GaussianLatent": {
        "model": "latent",
        "batch_size": 32,
        "latent_type": "gaussian",
        "min_std": 0.1,
        "std_act": "sigmoid2",
    },
}
IMPLEMENTATIONS = {name: overrides | _DEFAULT_PRESET[name] for name, overrides in _AGENT_SETTINGS.items()}


def preset_game(preset: str) -> str | None:
    """Return the environment that a preset is for: ``procmaze`` for ``procmaze_high``, None for ``shipped``."""
    return preset.rpartition("_")[0] if preset in PRESETS else None


FAMILY = Family(
    config=Config,
    implementations=IMPLEMENTATIONS,
    learns_from="steps",
    environment_presets={(name, game): PRESETS[f"{game}_high"][name] for game in GAMES for name in IMPLEMENTATIONS},
    presets=PRESETS,
    preset_game=preset_game,
    replaced={"model": "implementation", "epochs": "total_steps"},
    changeable=lambda config: ("accelerator",),  # because all random numbers are from the CPU
    accelerators=("cpu", "gpu"),
)
