"""Updates of the model-generalisation agents against a second implementation: one member, batch first, plain autograd.

The reference follows Young et al. 2023 and its public code. It uses the agent's random numbers and initial weights.
"""

import copy
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence

from envs.gridworld import ButtonGrid, ProcMaze
from helpers import torch_network
from models.agents.model_generalisation.agent import Agent
from models.mlp import MlpNetwork
from models.registry import default_config
from models.spaces import Discrete, Spaces

OBS, ACTIONS, SEEDS, ME = 6, 3, [3, 4], 1  # the reference is the second member
# The replay buffer wraps around, and the target network changes between updates.
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
    "perfect-deterministic": ("PerfectModel", {"exploration_strat": "epsilon_greedy", "epsilon": 0.5}),
    "simple": ("SimpleModel", {}),
    "simple-continuing": ("SimpleModel", {"episodic_env": False} | WEIGHTS),
    "simple-faithful": ("SimpleModel", {"bernoulli_logits": True, "double_DQN": True}),
    "simple-apart": ("SimpleModel", {"rollout_batch_size": 5, "updates_per_step": 2}),
    "simple-no-bits": ("SimpleModel", {"binary_obs": False, "use_target": False}),
    "simple-unweighted": ("SimpleModel", {"termination_weight": 0.0}),
    "categorical": ("CategoricalLatent", {}),
    "categorical-apart": ("CategoricalLatent", {"rollout_batch_size": 5, "posterior_entropy_weight": 0.4}),
    "categorical-double": ("CategoricalLatent", {"double_DQN": True, "KL_prior_weight": 0.3, "updates_per_step": 2}),
    "categorical-no-bits": ("CategoricalLatent", {"binary_obs": False, "KL_posterior_weight": 0.0}),
    "gaussian": ("GaussianLatent", {}),
    "gaussian-softplus": ("GaussianLatent", {"std_act": "softplus", "posterior_entropy_weight": 0.4} | WEIGHTS),
    "gaussian-sigmoid": ("GaussianLatent", {"std_act": "sigmoid", "min_std": 0.0, "rollout_batch_size": 5}),
    "gaussian-deviations": ("GaussianLatent", {"binary_obs": False, "learn_obs_variance": True}),
    "tanh": ("GaussianLatent", {"latent_type": "tanh_gaussian", "posterior_entropy_weight": 0.4}),
}  # fmt: skip

Rows = dict[str, Tensor]


class Oracle:
    """One member. Batches are ``[B, ...]``; ``now`` holds the random numbers of a step without the member axis."""

    def __init__(self, agent: Agent, m: int, world: Any):
        self.config, self.world, self.t, self.actions = agent.config, world, -1, agent.num_actions
        self.bits = agent.config.binary_obs is not False
        activation = {"elu": nn.ELU(), "relu": nn.ReLU(), "silu": nn.SiLU()}[self.config.activation]
        self.nets = {name: torch_network(network, m, activation) for name, network in nets(agent).items()}
        self.target = copy.deepcopy(self.nets["values"])
        self.rows: list[Rows] = []
        model = [parameter for name, net in self.nets.items() if name != "values" for parameter in net.parameters()]
        c = self.config
        self.value_optimizer = self.adamw(list(self.nets["values"].parameters()), c.lr)
        self.model_optimizer = self.adamw(model, c.model_lr) if model else None

    def adamw(self, parameters: list[Any], lr: float) -> torch.optim.AdamW:
        """torch multiplies the decay by the learning rate; the public code does not."""
        c = self.config
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)  # torch skips parameters without a gradient
        betas = (c.adam_beta1, c.adam_beta2)
        return torch.optim.AdamW(parameters, lr, betas=betas, eps=c.adam_eps, weight_decay=c.weight_decay / lr)

    def descend(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()

    def mean_gradient(self, name: str) -> Tensor:
        """Adam's mean of a network's gradients, in the agent's order."""
        optimizer = self.value_optimizer if name == "values" else self.model_optimizer
        assert optimizer is not None
        return flat([optimizer.state[parameter]["exp_avg"] for parameter in self.nets[name].parameters()])

    def explore(self, values: Tensor, numbers: Tensor) -> Tensor:
        if self.config.exploration_strat == "softmax":
            # The Gumbel-max trick, written as the first of exponential clocks exp(-G).
            return ((-numbers).exp() / F.softmax(values / self.config.softmax_temp, -1)).argmin(-1)
        any_action = (numbers[:, 1] * self.actions).long()
        return torch.where(numbers[:, 0] < self.config.epsilon, any_action, values.argmax(-1))

    def act(self, obs: Tensor, now: Rows) -> Tensor:
        self.t += 1
        with torch.no_grad():
            features = obs[None]
            if self.config.model == "latent":
                features = self.sample(self.encoded(features), now["encode"])
            return self.explore(self.nets["values"](features), now["act"])[0]

    def encoded(self, obs: Tensor) -> Categorical | Normal:
        return self.latent(self.nets["encoder"](obs), self.config.min_std)

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

    def remember(self, **row: Tensor) -> None:
        self.rows, at = self.rows[: self.config.buffer_size], self.t % self.config.buffer_size
        self.rows[at : at + 1] = [row]

    def batch(self, uniform: Tensor) -> Rows:
        rows = [self.rows[int(u * len(self.rows))] for u in uniform.tolist()]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def learn(self, now: Rows) -> list[dict[str, Tensor]]:
        if self.t < FIRST:
            return []
        if self.t % self.config.target_update_frequency == 0:
            self.target = copy.deepcopy(self.nets["values"])
        losses = []
        for update in range(self.config.updates_per_step):
            update_draws = {name: part[update] for name, part in now.items() if name not in ("act", "encode")}
            losses.append(self.update(update_draws))
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
            target = (self.target if c.use_target else self.nets["values"])(next_x)
            best = self.nets["values"](next_x).argmax(1) if c.double_DQN else target.argmax(1)
            goal = reward + c.discount * going * target[torch.arange(len(x)), best]
        values = self.nets["values"](x)[torch.arange(len(x)), action]
        loss = (weight * (values - goal) ** 2).sum() / len(x)
        self.explained = 1 - spread(values - goal, weight) / spread(goal, weight)
        self.descend(self.value_optimizer, loss)
        return loss.detach()

    def heads(self, x: Tensor, batch: Rows) -> Rows:
        reward, logit = self.nets["reward"](x)[:, 0], self.nets["termination"](x)[:, 0]
        return {
            "reward": -Normal(reward, 1.0).log_prob(batch["reward"]).mean(),
            "termination": F.binary_cross_entropy_with_logits(logit, batch["going"]),
        }

    def fit_model(self, losses: Rows, kl_weights: dict[str, float]) -> Rows:
        c = self.config
        weights = {"reward": c.reward_weight, "termination": c.termination_weight, "obs": c.obs_prediction_weight}
        total = sum(weight * losses[name] for name, weight in (weights | kl_weights).items() if weight)
        assert self.model_optimizer is not None
        self.descend(self.model_optimizer, total)
        return {name: loss.detach() for name, loss in losses.items() if name != "kl_posterior"}

    def fit_simple(self, batch: Rows, now: Rows) -> Rows:
        x = self.with_action(batch["obs"], batch["action"])
        losses = self.heads(x, batch)
        losses["obs"] = (self.surprise(self.nets["following"](x), batch["next_obs"]) * batch["going"]).mean()
        return self.fit_model(losses, {})

    def fit_latent(self, batch: Rows, now: Rows) -> Rows:
        c = self.config
        first = self.encoded(batch["obs"])
        z = self.sample(first, now["fit"])
        x = self.with_action(z, batch["action"])
        losses = self.heads(x, batch)
        losses["obs"] = (self.surprise(self.nets["decoder"](z), batch["obs"]) * batch["going"]).mean()
        with torch.no_grad():
            fixed_next, fixed_predicted = self.encoded(batch["next_obs"]), self.latent(self.nets["following"](x))
        next_latent, predicted = self.encoded(batch["next_obs"]), self.latent(self.nets["following"](x))
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

    def imagine(self, start: Rows, now: Rows) -> list[tuple[Tensor, ...]]:
        """A row of x, action, reward, next x, continuation and weight for each step."""
        state, x = self.begin(start, now)
        steps: list[tuple[Tensor, ...]] = []
        weight = going = torch.ones(len(x))
        for step in range(self.config.rollout_length):
            action = self.explore(self.nets["values"](x), now["imagined"][step])
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
        reward, going = self.nets["reward"](pair)[:, 0], torch.sigmoid(self.nets["termination"](pair)[:, 0])
        outputs = self.nets["following"](pair)
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


def experience(agent: Agent, world: Any) -> Rows:
    """Random transitions ``[TICKS, M, 1, ...]``; a third of them end an episode."""
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
        world = ButtonGrid(grid_size=2) if "continuing" in case else ProcMaze(grid_size=3)
        world = ProcMaze(grid_size=3, spontaneous_termination=False) if "deterministic" in case else world
    spaces = world.spaces if world else Spaces((OBS,), Discrete(ACTIONS), binary=True)
    return Agent(dataclasses.replace(default_config(name, ""), **(SMALL | changes)), spaces, SEEDS, world), world


def steps(case: str) -> Iterator[tuple[Agent, Oracle, list[Rows], Tensor]]:
    """Yields agent, reference and their losses after each step."""
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
    return {"values": agent.values.q_network} | dict(agent.model.named_children() if agent.model else ())


def flat(parameters: Iterable[Tensor]) -> Tensor:
    """Weights ``[out, in]`` and biases in the agent's order, ``[D]``."""
    return torch.cat([parameter.detach().t().reshape(-1) for parameter in parameters])


def mean_gradient(agent: Agent, net: MlpNetwork) -> Tensor:
    optimizer = agent.values.optimizer if net is agent.values.q_network else agent.model.optimizer
    return optimizer.state[net.flat]["exp_avg"][ME]


@pytest.mark.parametrize("case", CASES)
def test_updates_equal_reference(case: str) -> None:
    """Adam's means are compared too: its steps hardly tell a gradient from its double."""
    start = make_agent(case)[0].values.q_network.flat[ME].detach()
    updates = 0
    for agent, oracle, oracle_losses, loss in steps(case):
        updates += len(oracle_losses)
        assert loss.isnan().all() == (not oracle_losses)
        for name, net in nets(agent).items():
            weights = flat(oracle.nets[name].parameters())
            close(net.flat[ME, : len(weights)], weights)
            assert not net.flat[ME, len(weights) :].any()
            if oracle_losses:
                close(mean_gradient(agent, net)[: len(weights)], oracle.mean_gradient(name))
        if oracle_losses:
            close(loss[ME], oracle_losses[-1]["loss"])
            target = flat(oracle.target.parameters())
            close(agent.values.target_parameters[ME, : len(target)], target)
            logged = agent.metrics()
            assert logged["train/explained_variance"][ME].item() == pytest.approx(oracle.explained, rel=1e-3, abs=1e-4)
            model_losses = {tag: value for tag, value in logged.items() if tag.startswith("model/")}
            assert model_losses.keys() == {f"model/{name}_loss" for name in oracle_losses[0] if name != "loss"}
            for tag, value in model_losses.items():
                name = tag.removeprefix("model/").removesuffix("_loss")
                close(value[ME], torch.stack([losses[name] for losses in oracle_losses]).mean())
    assert updates == (TICKS - FIRST) * agent.config.updates_per_step
    assert (agent.values.q_network.flat[ME] - start).abs().max() > 4e-3


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.detach(), expected, rtol=1e-5, atol=1e-5)
