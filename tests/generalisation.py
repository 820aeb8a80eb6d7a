"""Agents of the model-generalisation family in their worlds, as several test files need them."""

import dataclasses
from typing import Any, Self

import torch
from torch import Tensor

from control.loops.rollout import rollout
from control.loops.steps import StepLoop
from envs.make import make_environment
from envs.tensor import TensorEnvironment
from helpers import load_state, state_of
from models.agents.model_generalisation.agent import Agent
from models.registry import default_config
from models.streams import Streams

CPU = torch.device("cpu")
NAMES = ["ER", "PerfectModel", "SimpleModel", "CategoricalLatent", "GaussianLatent"]
GAMES = ["procmaze,grid_size=3", "buttongrid,grid_size=4", "panflute,num_pipes=3"]
# Odd sizes, so that vector tails are exercised; a memory that goes round; learning from the sixth step on.
TINY: dict[str, Any] = {
    "num_hidden_layers": 2, "num_hidden_units": 11, "batch_size": 9, "rollout_length": 3, "num_features": 3,
    "feature_width": 5, "buffer_size": 23, "training_start_time": 3, "eval_frequency": 5, "target_update_frequency": 7,
    "Q_alpha": 3e-3, "model_alpha": 3e-3,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in NAMES} | {
    "ER-silu": ("ER", {"activation": "silu", "updates_per_step": 2, "double_DQN": True}),
    "ER-epsilon": ("ER", {"exploration_strat": "epsilon_greedy", "activation": "relu", "batch_size": 1}),
    "perfect-relu": ("PerfectModel", {"activation": "relu", "use_target": False, "num_hidden_units": 7}),
    "simple-silu": ("SimpleModel", {"activation": "silu", "rollout_batch_size": 5, "num_hidden_units": 17}),
    "simple-faithful": ("SimpleModel", {"faithful_to_paper": True, "activation": "relu", "batch_size": 1}),
    "simple-no-bits": ("SimpleModel", {"binary_obs": False, "double_DQN": True}),
    "categorical-silu": ("CategoricalLatent", {"activation": "silu", "posterior_entropy_weight": 0.3}),
    "categorical-wide": ("CategoricalLatent", {"num_hidden_units": 33, "feature_width": 17, "rollout_batch_size": 1}),
    "gaussian-softplus": ("GaussianLatent", {"std_act": "softplus", "posterior_entropy_weight": 0.3}),
    "gaussian-deviations": ("GaussianLatent", {"binary_obs": False, "learn_obs_variance": True, "num_features": 7}),
    "tanh-sigmoid": ("GaussianLatent", {"latent_type": "tanh_gaussian", "std_act": "sigmoid", "activation": "silu"}),
}  # fmt: skip


class Life:
    """Members of one agent in a world, tick by tick."""

    def __init__(self, case: str, game: str, seeds: list[int], **changes: Any):
        name, own = CASES[case]
        config = dataclasses.replace(default_config(name, game), **(TINY | own | changes))
        environment = make_environment(game, len(seeds), 1, time_limit=0)
        assert isinstance(environment, TensorEnvironment)
        self.game, self.environment = game, environment
        self.agent = Agent(config, environment.spaces, seeds, environment.on_device)
        self.interaction = StepLoop(self.agent, environment, Streams.named(seeds, "episodes"))
        self.losses: list[Tensor] = []

    def live(self, ticks: int) -> Self:
        for _ in range(ticks):
            self.interaction.step()
            self.losses.append(self.interaction.loss)
        return self

    def evaluate(self, episodes: int = 3) -> Tensor:
        """Returns and lengths ``[M, 2 K]`` of greedy episodes of at most 40 steps."""
        environment = make_environment(self.game, self.agent.members, episodes, time_limit=40)
        seeds = torch.arange(episodes).expand(self.agent.members, -1)
        policy = self.agent.begin(episodes, Streams.named(self.agent.seeds, "latents"), sample=False)
        played = rollout(policy, environment, seeds, keep=False)
        return torch.cat((played.returns, played.lengths), 1)

    def everything(self) -> dict[str, Tensor]:
        """What belongs to members, ``[M, ...]``."""
        agent = self.agent
        optimizers = [agent.values.optimizer, *([agent.model.optimizer] if hasattr(agent.model, "optimizer") else [])]
        moments = [part for optimizer in optimizers for part in (*optimizer.means, *optimizer.squares)]
        found = dict(agent.state_dict()) | {f"moment {i}": part for i, part in enumerate(moments)}
        found |= {f"memory {name}": rows[:, : agent.memory.size] for name, rows in agent.memory.tables.items()}
        found |= {"losses": torch.stack(self.losses, 1), "state": self.environment.state, "episodes": agent.episodes}
        return {name: value.detach().clone() for name, value in (found | agent.measured()).items()}

    def state(self) -> dict[str, Any]:
        return state_of(self.interaction)

    def load(self, state: dict[str, Any]) -> Self:
        load_state(self.interaction, state)
        return self


def of(numbers: dict[str, Tensor], members: list[int]) -> dict[str, Tensor]:
    return {name: value[members] for name, value in numbers.items()}
