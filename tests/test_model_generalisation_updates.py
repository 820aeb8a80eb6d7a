"""Updates of the model-generalisation family against a second writing of them: one member, row-major, plain autograd.

The oracle follows Young et al. 2023 and its public code. It takes the agent's random numbers and first weights, and
keeps a memory, optimisers and a target network of its own.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical, Normal, kl_divergence

from envs.buttongrid import ButtonGrid
from envs.procmaze import ProcMaze
from models.agents.model_generalisation.agent import Agent
from models.mlp import MlpNetwork
from models.registry import default_config
from models.spaces import Discrete, Spaces

OBS, ACTIONS, SEEDS, ME = 6, 3, [3, 4], 1  # of worlds that are random bits; the oracle is the second member
# Steps large enough to see, a memory that goes round, copies to the target network in the midst of learning.
SMALL: dict[str, Any] = {
    "hidden_sizes": (11, 11), "batch_size": 9, "buffer_size": 8, "rollout_length": 4,
    "num_features": 3, "feature_width": 4, "lr": 2e-3, "model_lr": 3e-3, "weight_decay": 1e-3, "softmax_temp": 0.3,
    "training_start_time": 9, "steps_per_epoch": 5, "target_update_frequency": 3,
}  # fmt: skip
FIRST, TICKS = 10, 14  # the first update comes with the 11th step, the last with the 14th
WEIGHTS = {"reward_weight": 0.5, "termination_weight": 2.0, "obs_prediction_weight": 0.3}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ER": ("ER", {}),
    "ER-double": ("ER", {"double_DQN": True, "activation": "relu"}),
    "ER-no-target": ("ER", {"use_target": False}),
    "ER-epsilon": ("ER", {"exploration_strat": "epsilon_greedy", "epsilon": 0.5, "activation": "silu"}),
    "ER-two-updates": ("ER", {"updates_per_step": 2}),
    "perfect": ("PerfectModel", {}),
    "perfect-continuing": ("PerfectModel", {"episodic_env": False, "double_DQN": True}),
    "perfect-certain": ("PerfectModel", {"exploration_strat": "epsilon_greedy", "epsilon": 0.5}),
    "simple": ("SimpleModel", {}),
    "simple-continuing": ("SimpleModel", {"episodic_env": False} | WEIGHTS),
    "simple-faithful": ("SimpleModel", {"bernoulli_logits": True, "double_DQN": True}),
    "simple-apart": ("SimpleModel", {"rollout_batch_size": 5, "updates_per_step": 2}),
    "simple-no-bits": ("SimpleModel", {"binary_obs": False, "use_target": False}),
    "simple-unweighted": ("SimpleModel", {"termination_weight": 0.0, "activation": "silu"}),
    "categorical": ("CategoricalLatent", {}),
    "categorical-continuing": ("CategoricalLatent", {"episodic_env": False} | WEIGHTS),
    "categorical-apart": ("CategoricalLatent", {"rollout_batch_size": 5, "posterior_entropy_weight": 0.4}),
    "categorical-double": ("CategoricalLatent", {"double_DQN": True, "KL_prior_weight": 0.3, "updates_per_step": 2}),
    "categorical-no-bits": ("CategoricalLatent", {"binary_obs": False, "KL_posterior_weight": 0.0}),
    "gaussian": ("GaussianLatent", {}),
    "gaussian-softplus": ("GaussianLatent", {"std_act": "softplus", "posterior_entropy_weight": 0.4} | WEIGHTS),
    "gaussian-sigmoid": ("GaussianLatent", {"std_act": "sigmoid", "min_std": 0.0, "rollout_batch_size": 5}),
    "gaussian-deviations": ("GaussianLatent", {"binary_obs": False, "learn_obs_variance": True}),
    "tanh": ("GaussianLatent", {"latent_type": "tanh_gaussian", "posterior_entropy_weight": 0.4}),
    "tanh-silu": ("GaussianLatent", {"latent_type": "tanh_gaussian", "episodic_env": False, "activation": "silu"}),
}  # fmt: skip

Rows = dict[str, Tensor]


class Oracle:
    """One member. Batches are ``[B, ...]``; ``now`` are the random numbers of a tick without the member axis."""

    def __init__(self, agent: Agent, m: int, world: Any):
        self.config, self.world, self.t, self.actions = agent.config, world, -1, agent.num_actions
        self.bits = agent.config.binary_obs is not False
        self.nets = {name: [self._layer(w[m].T, b[m]) for w, b in net.layers()] for name, net in nets(agent).items()}
        self.target = self._copy()
        self.rows: list[Rows] = []
        self.means, self.squares = ({name: self._zeros(name) for name in self.nets} for _ in range(2))
        self.updates = 0

    @staticmethod
    def _layer(weight: Tensor, bias: Tensor) -> list[Tensor]:
        return [part.detach().clone().requires_grad_() for part in (weight, bias)]

    def _zeros(self, name: str) -> list[list[Tensor]]:
        return [[torch.zeros_like(part) for part in layer] for layer in self.nets[name]]

    def _copy(self) -> list[list[Tensor]]:
        return [[part.detach().clone() for part in layer] for layer in self.nets["values"]]

    # -- networks ----------------------------------------------------------------------------------------------------

    def net(self, name: str, x: Tensor) -> Tensor:
        return self._through(self.nets[name], x)

    def _through(self, layers: list[list[Tensor]], x: Tensor) -> Tensor:
        activation = {"elu": F.elu, "relu": F.relu, "silu": F.silu}[self.config.activation]
        for weight, bias in layers[:-1]:
            x = activation(F.linear(x, weight, bias))
        return F.linear(x, *layers[-1])

    def descend(self, names: list[str], loss: Tensor, step_size: float) -> None:
        """``x <- x - lr m / (sqrt(v) + eps) - wd x`` for all ``names`` together."""
        c, count = self.config, self.updates + 1
        parts = [(name, i, j) for name in names for i, layer in enumerate(self.nets[name]) for j in range(len(layer))]
        params = [self.nets[name][i][j] for name, i, j in parts]
        grads = torch.autograd.grad(loss, params, allow_unused=True)
        for (name, i, j), x, maybe in zip(parts, params, grads, strict=True):
            grad = torch.zeros_like(x) if maybe is None else maybe
            mean = c.adam_beta1 * self.means[name][i][j] + (1 - c.adam_beta1) * grad
            square = c.adam_beta2 * self.squares[name][i][j] + (1 - c.adam_beta2) * grad**2
            self.means[name][i][j], self.squares[name][i][j] = mean, square
            m, v = mean / (1 - c.adam_beta1**count), square / (1 - c.adam_beta2**count)
            x.data = x.data - step_size * m / (v.sqrt() + c.adam_eps) - c.weight_decay * x.data

    # -- acting ------------------------------------------------------------------------------------------------------

    def explore(self, values: Tensor, numbers: Tensor) -> Tensor:
        if self.config.exploration_strat == "softmax":
            # The first of exponential clocks whose rates are the probabilities: of Gumbel numbers they are exp(-G).
            return ((-numbers).exp() / F.softmax(values / self.config.softmax_temp, -1)).argmin(-1)
        any_action = (numbers[:, 1] * self.actions).long()
        return torch.where(numbers[:, 0] < self.config.epsilon, any_action, values.argmax(-1))

    def act(self, obs: Tensor, now: Rows) -> Tensor:
        self.t += 1
        with torch.no_grad():
            features = obs[None]
            if self.config.model == "latent":
                features = self.sample(self.encoded(features), now["encode"])
            return self.explore(self.net("values", features), now["act"])[0]

    # -- latents -----------------------------------------------------------------------------------------------------

    def encoded(self, obs: Tensor) -> Categorical | Normal:
        return self.latent(self.net("encoder", obs), self.config.min_std)

    def latent(self, outputs: Tensor, min_std: float = 0.0) -> Categorical | Normal:
        c = self.config
        if c.latent_type == "categorical":
            return Categorical(logits=outputs.view(len(outputs), c.num_features, c.feature_width))
        mean, raw = outputs[:, : c.num_features], outputs[:, c.num_features :]
        positive = {
            "softplus": F.softplus, "sigmoid": torch.sigmoid, "sigmoid2": lambda x: 2 * torch.sigmoid(x / 2),
        }  # fmt: skip
        return Normal(mean, positive[c.std_act](raw).clip(1e-6) + min_std)

    def sample(self, latent: Categorical | Normal, noise: Tensor) -> Tensor:
        """Straight through, or reparameterised."""
        if isinstance(latent, Normal):
            value = latent.mean + latent.stddev * noise
            return torch.tanh(value) if self.config.latent_type == "tanh_gaussian" else value
        one_hot = F.one_hot(inverse(latent.probs, noise), self.config.feature_width)
        return (one_hot + latent.probs - latent.probs.detach()).flatten(1)

    def base(self, latent: Categorical | Normal) -> Categorical | Normal:
        if isinstance(latent, Normal):
            return Normal(torch.zeros_like(latent.mean), torch.ones_like(latent.mean))
        return Categorical(logits=torch.zeros_like(latent.logits))

    # -- learning ----------------------------------------------------------------------------------------------------

    def remember(self, **row: Tensor) -> None:
        """The oldest row makes room."""
        self.rows, at = self.rows[: self.config.buffer_size], self.t % self.config.buffer_size
        self.rows[at : at + 1] = [row]

    def batch(self, uniform: Tensor) -> Rows:
        rows = [self.rows[int(u * len(self.rows))] for u in uniform.tolist()]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def learn(self, now: Rows) -> list[dict[str, Tensor]]:
        if self.t < FIRST:
            return []
        if self.t % self.config.target_update_frequency == 0:
            self.target = self._copy()
        losses = []
        for update in range(self.config.updates_per_step):
            update_draws = {name: part[update] for name, part in now.items() if name not in ("act", "encode")}
            losses.append(self.update(update_draws))
            self.updates += 1
        return losses

    def update(self, now: Rows) -> dict[str, Tensor]:
        c = self.config
        batch = self.batch(now["rows"])
        if c.model == "none":
            columns = [batch[name] for name in ("obs", "action", "reward", "next_obs", "going")]
            return {"loss": self.fit_values(*columns, torch.ones(c.batch_size))}
        losses = {"perfect": lambda *_: {}, "simple": self.fit_simple, "latent": self.fit_latent}[c.model](batch, now)
        start = batch if c.rollout_batch_size is None else self.batch(now["starts"])
        with torch.no_grad():
            parts = [torch.cat(column) for column in zip(*self.imagine(start, now), strict=True)]
        assert len(parts[0]) == c.rollout_length * (c.rollout_batch_size or c.batch_size)
        return losses | {"loss": self.fit_values(*parts)}

    def fit_values(
        self, x: Tensor, action: Tensor, reward: Tensor, next_x: Tensor, going: Tensor, weight: Tensor
    ) -> Tensor:
        c = self.config
        with torch.no_grad():
            target = self._through(self.target if c.use_target else self.nets["values"], next_x)
            best = self.net("values", next_x).argmax(1) if c.double_DQN else target.argmax(1)
            goal = reward + c.discount * going * target[torch.arange(len(x)), best]
        values = self.net("values", x)[torch.arange(len(x)), action]
        loss = (weight * (values - goal) ** 2).sum() / len(x)
        self.explained = 1 - spread(values - goal, weight) / spread(goal, weight)
        self.descend(["values"], loss, c.lr)
        return loss.detach()

    def heads(self, x: Tensor, batch: Rows) -> Rows:
        reward, logit = self.net("reward", x)[:, 0], self.net("termination", x)[:, 0]
        return {
            "reward": -Normal(reward, 1.0).log_prob(batch["reward"]).mean(),
            "termination": F.binary_cross_entropy_with_logits(logit, batch["going"]),
        }

    def fit_model(self, losses: Rows, kl_weights: dict[str, float]) -> Rows:
        c = self.config
        weights = {"reward": c.reward_weight, "termination": c.termination_weight, "obs": c.obs_prediction_weight}
        total = sum(weight * losses[name] for name, weight in (weights | kl_weights).items() if weight)
        self.descend([name for name in self.nets if name != "values"], total, c.model_lr)
        return {name: loss.detach() for name, loss in losses.items() if name != "kl_posterior"}

    def fit_simple(self, batch: Rows, now: Rows) -> Rows:
        x = self.with_action(batch["obs"], batch["action"])
        losses = self.heads(x, batch)
        losses["obs"] = (self.surprise(self.net("following", x), batch["next_obs"]) * batch["going"]).mean()
        return self.fit_model(losses, {})

    def fit_latent(self, batch: Rows, now: Rows) -> Rows:
        c = self.config
        first = self.encoded(batch["obs"])
        z = self.sample(first, now["fit"])
        x = self.with_action(z, batch["action"])
        losses = self.heads(x, batch)
        losses["obs"] = (self.surprise(self.net("decoder", z), batch["obs"]) * batch["going"]).mean()
        # Each held fast by being made of outputs that were.
        with torch.no_grad():
            fixed_next, fixed_predicted = self.encoded(batch["next_obs"]), self.latent(self.net("following", x))
        next_latent, predicted = self.encoded(batch["next_obs"]), self.latent(self.net("following", x))
        losses["kl"] = kl_divergence(fixed_next, predicted).sum(1).mean()
        losses["kl_posterior"] = kl_divergence(next_latent, fixed_predicted).sum(1).mean()
        if c.posterior_entropy_weight:
            losses["kl_base"] = kl_divergence(first, self.base(first)).sum(1).mean()
        kl_weights = {
            "kl": c.KL_prior_weight,
            "kl_posterior": c.KL_posterior_weight,
            "kl_base": c.posterior_entropy_weight,
        }
        return self.fit_model(losses, kl_weights)

    def surprise(self, outputs: Tensor, obs: Tensor) -> Tensor:
        """Minus the log-probability of observations, ``[B]``."""
        if self.bits:
            return F.binary_cross_entropy_with_logits(outputs, obs, reduction="none").sum(1)
        if self.config.learn_obs_variance:
            return -Normal(outputs[:, :OBS], F.softplus(outputs[:, OBS:])).log_prob(obs).sum(1)
        return -Normal(outputs, 1.0).log_prob(obs).sum(1)

    def with_action(self, x: Tensor, action: Tensor) -> Tensor:
        return torch.cat((x, F.one_hot(action, self.actions)), 1)

    # -- imagination -------------------------------------------------------------------------------------------------

    def imagine(self, start: Rows, now: Rows) -> list[tuple[Tensor, ...]]:
        """A row of x, action, reward, next x, continuation and weight for each step."""
        state, x = self.begin(start, now)
        steps: list[tuple[Tensor, ...]] = []
        weight = going = torch.ones(len(x))
        for step in range(self.config.rollout_length):
            action = self.explore(self.net("values", x), now["imagined"][step])
            if self.config.episodic_env or self.config.model == "perfect":
                weight = weight * going
            noise = now["step"][step] if "step" in now else torch.zeros(len(x), 0)
            state, next_x, reward, going = self.step(state, x, action, noise)
            steps.append((x, action, reward, next_x, going, weight))
            x = next_x
        return steps

    def begin(self, start: Rows, now: Rows) -> tuple[Any, Tensor]:
        if self.config.model == "perfect":
            return start["state"], self.world.observe(start["state"])
        if self.config.model == "simple":
            return None, start["obs"]
        return None, self.sample(self.encoded(start["obs"]), now["begin"])

    def step(self, state: Any, x: Tensor, action: Tensor, numbers: Tensor) -> tuple[Any, Tensor, Tensor, Tensor]:
        c = self.config
        if c.model == "perfect":
            state, reward, terminated, _ = self.world.advance(state, action, numbers)
            return state, self.world.observe(state), reward, 1 - terminated.float()
        pair = self.with_action(x, action)
        reward, going = self.net("reward", pair)[:, 0], torch.sigmoid(self.net("termination", pair)[:, 0])
        outputs = self.net("following", pair)
        if c.model == "latent":
            return None, self.sample(self.latent(outputs), numbers), reward, going
        if not self.bits:
            return None, outputs + numbers, reward, going
        return None, (numbers < (outputs if c.bernoulli_logits else torch.sigmoid(outputs))).float(), reward, going


def inverse(probability: Tensor, uniform: Tensor) -> Tensor:
    """The class whose share of [0, 1) a number falls into."""
    ends = probability.cumsum(-1).contiguous()
    return torch.searchsorted(ends, uniform[..., None].contiguous(), right=True)[..., 0].clip(max=ends.shape[-1] - 1)


def spread(x: Tensor, weight: Tensor) -> float:
    return float(np.cov(x.detach().double(), aweights=weight.double(), ddof=0))


# -- both side by side -------------------------------------------------------------------------------------------------


def experience(agent: Agent, world: Any) -> Rows:
    """What both members live through, ``[TICKS, M, 1, ...]``: random transitions of which a third end an episode."""
    g, shape = torch.Generator().manual_seed(0), (TICKS, len(SEEDS), 1)
    obs, next_obs = (torch.randn(*shape, agent.obs_size, generator=g) for _ in range(2))
    if agent.config.binary_obs is not False:
        obs, next_obs = (obs > 0).float(), (next_obs > 0).float()
    columns = {"obs": obs, "next_obs": next_obs, "reward": torch.randn(shape, generator=g)}
    if world:
        states = world.initial(torch.randint(1000, shape, generator=g))
        columns |= {"state": states, "obs": world.observe(states)}
    return columns | {"going": (torch.rand(shape, generator=g) > 0.3).float()}


def make_agent(case: str) -> tuple[Agent, Any]:
    name, changes = CASES[case]
    world: Any = None
    if name == "PerfectModel":
        # One where rewards and chance differ from state to state, and one where nothing is random.
        world = ButtonGrid(grid_size=2) if "continuing" in case else ProcMaze(grid_size=3)
        world = ProcMaze(grid_size=3, spontaneous_termination=False) if "certain" in case else world
    spaces = world.spaces if world else Spaces((OBS,), Discrete(ACTIONS), binary=True)
    return Agent(dataclasses.replace(default_config(name, ""), **(SMALL | changes)), spaces, SEEDS, world), world


def lived(case: str) -> Iterator[tuple[Agent, Oracle, list[Rows], Tensor]]:
    """Both after each step, with the oracle's losses and the agent's."""
    agent, world = make_agent(case)
    oracle, columns = Oracle(agent, ME, world), experience(agent, world)
    for t in range(TICKS):
        row = {name: part[t] for name, part in columns.items()}
        action = agent.act(row["obs"])
        now = {name: part[ME] for name, part in agent.random_numbers.items()}
        assert action[ME, 0] == oracle.act(row["obs"][ME, 0], now)
        if world:
            agent.visit(row["state"])
        going = row["going"]
        agent.observe(row["obs"], action, row["next_obs"], row["reward"], going, going == 0)
        oracle.remember(**{name: part[ME, 0] for name, part in row.items()}, action=action[ME, 0])
        loss = agent.learn()
        yield agent, oracle, oracle.learn(now), loss


def nets(agent: Agent) -> dict[str, MlpNetwork]:
    """All networks by name, the model's as its attributes."""
    return {"values": agent.values.flat_parameters} | dict(agent.model.named_children() if agent.model else ())


def flat(net: MlpNetwork, layers: list[list[Tensor]]) -> Tensor:
    """The oracle's layers, whose weights are ``[out, in]``, as the agent has them, ``[D]``; the rest of a row is 0."""
    parts = torch.cat([part.detach().t().reshape(-1) for layer in layers for part in layer])
    return F.pad(parts, (0, net.mlp.size - len(parts)))


def means(agent: Agent, net: MlpNetwork) -> Tensor:
    optimizer = agent.values.optimizer if net is agent.values.flat_parameters else agent.model.optimizer
    (place,) = (i for i, param in enumerate(optimizer.params) if param is net.flat)
    return optimizer.means[place][ME]


@pytest.mark.parametrize("case", CASES)
def test_updates_are_those_of_the_oracle(case: str) -> None:
    """All that was learned, after every step: actions, losses, weights, the target network, and the means of gradients
    (the steps of Adam hardly tell a gradient from its double)."""
    start = make_agent(case)[0].values.flat_parameters.flat[ME].detach()
    learned = 0
    for agent, oracle, oracle_losses, loss in lived(case):
        learned += len(oracle_losses)
        assert loss.isnan().all() == (not oracle_losses)
        for name, net in nets(agent).items():
            close(net.flat[ME], flat(net, oracle.nets[name]), 1e-5)
            close(means(agent, net), flat(net, oracle.means[name]), 1e-5)
        if oracle_losses:
            close(loss[ME], oracle_losses[-1]["loss"], 1e-5)
            close(agent.values.target[ME], flat(agent.values.flat_parameters, oracle.target), 1e-5)
            logged = agent.metrics()
            assert logged["train/explained_variance"][ME].item() == pytest.approx(oracle.explained, rel=1e-3, abs=1e-4)
            of_model = {tag: value for tag, value in logged.items() if tag.startswith("model/")}
            assert of_model.keys() == {f"model/{name}_loss" for name in oracle_losses[0] if name != "loss"}
            for tag, value in of_model.items():
                mean = torch.stack(
                    [losses[tag.removeprefix("model/").removesuffix("_loss")] for losses in oracle_losses]
                ).mean()
                close(value[ME], mean, 1e-5)
    assert learned == (TICKS - FIRST) * agent.config.updates_per_step
    assert (agent.values.flat_parameters.flat[ME] - start).abs().max() > 4e-3


def close(actual: Tensor, expected: Tensor, atol: float) -> None:
    torch.testing.assert_close(actual.detach(), expected, rtol=1e-5, atol=atol)
