"""TD3, its discrete form and SAC: distributions and gradients against torch, delayed updates and exploration."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from helpers import torch_mlp
from models.agents.sac.agent import Agent as SacAgent
from models.agents.sac.agent import sample
from models.agents.sac.config import Config as SacConfig
from models.agents.td3.agent import Agent
from models.agents.td3.config import Config
from models.agents.td3_discrete.agent import Agent as DiscreteAgent
from models.agents.td3_discrete.config import Config as DiscreteConfig
from models.off_policy import TwinCriticAgent
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams
from rounding import assert_near

OBS, LOW, HIGH = 4, (-2.0, 0.0), (2.0, 10.0)
SMALL: dict[str, Any] = {"hidden_sizes": (9, 9), "batch_size": 7, "init_episodes": 0, "fill": 0}
NOW, DISCRETE = Config(**SMALL), DiscreteConfig(**SMALL)
SAC = SacConfig(hidden_sizes=(9, 9), batch_size=7, fill=0)  # its first steps are random


def make_agent(config: Any = NOW, seeds: Any = (0, 1, 2)) -> TwinCriticAgent:
    if isinstance(config, DiscreteConfig):
        return DiscreteAgent(config, Spaces((OBS,), Discrete(3)), list(seeds))
    kind: Any = SacAgent if isinstance(config, SacConfig) else Agent
    return kind(config, Spaces((OBS,), Continuous(LOW, HIGH)), list(seeds))


def live(agent: Any, steps: int, learns: bool = True, first: int = 0) -> Tensor:
    """So many random steps, each member with separate random numbers. Half of the ends are terminations. Returns the
    ends ``[M, E]`` of the last step."""
    for step in range(first, first + steps):
        alone = []
        for seed in agent.seeds:
            g = torch.Generator().manual_seed(1000 * seed + step)
            alone.append((*torch.randn(2, agent.envs, OBS, generator=g), *torch.rand(2, agent.envs, generator=g)))
        obs, next_obs, reward, end = (torch.stack(parts) for parts in zip(*alone, strict=True))
        agent.observe(obs, agent.act(obs), next_obs, reward, (end >= 0.05).float(), end < 0.1)
        if learns:
            agent.learn()
    return end < 0.1


def perturb_targets(agent: TwinCriticAgent) -> None:
    """Moves target networks away from online networks."""
    g = torch.Generator().manual_seed(0)
    for target in (agent.critics.target_parameters, getattr(agent, "target_parameters", None)):
        if target is not None:
            target.data += 0.3 * torch.randn(target.shape, generator=g)


def learned(agent: Any) -> dict[str, Tensor]:
    parts = {"actor": agent.optimizer} | ({"critics": agent.critics.optimizer} if hasattr(agent, "critics") else {})
    states = {
        f"{part} {name}": value for part, optimizer in parts.items() for name, value in optimizer.state_dict().items()
    }
    return {name: value.clone() for name, value in (states | dict(agent.state_dict())).items()}


def assert_descended(optimizer: Any, m: int, parameters: Tensor) -> None:
    """The first Adam step of member ``m`` was along the gradient of ``parameters``."""
    gradient = parameters.grad
    assert gradient is not None and gradient.abs().max() > 1e-4
    assert_near(optimizer.mean[m], 0.1 * gradient, rtol=1e-3, atol=1e-6)


def numbers_of(agent: TwinCriticAgent, m: int) -> dict[str, Tensor]:
    return {name: agent.random_numbers[name][m, 0] for name in agent.random_number_names}


def rows_of(agent: TwinCriticAgent, m: int) -> tuple[Tensor, ...]:
    """Batch of member ``m``'s next update: obs, action, next obs, reward, discount."""
    rows = agent.replay_buffer.sample(agent.random_numbers["replay"][:, 0])
    return tuple(rows[name][m] for name in ("obs", "action", "next_obs", "reward", "discount"))


def torch_actor(agent: TwinCriticAgent, weights: Tensor, obs: Tensor, gumbel: Tensor) -> Tensor:
    """Actions ``[B, A]`` of one member's actor."""
    outputs, config = torch_mlp(agent.network, weights[: agent.network.size], obs), agent.config
    if not isinstance(config, DiscreteConfig):
        return outputs.tanh()
    heat = {"fixed": config.gumbel_softmax_temp, "learned": weights[-1].exp()}[config.gumbel_temperature]
    soft = F.softmax((outputs + gumbel.T) / heat, 1)
    hard = F.one_hot(soft.argmax(1), 3) - soft.detach() + soft  # its value is hard, its gradient soft
    return hard if config.gumbel_softmax_hard else soft


def torch_critics(agent: TwinCriticAgent, weights: Tensor, obs: Tensor, action: Tensor) -> Tensor:
    """Both values ``[2, B]`` of one member."""
    pair = torch.cat([obs, action], 1)
    return torch.stack([torch_mlp(agent.critics.network, flat, pair)[:, 0] for flat in weights.chunk(2)])


def torch_sample(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Action ``[B, A]`` and log-probability ``[B]`` of one member's SAC, by torch's distributions."""
    mean, level = outputs.chunk(2, 1)
    normal = Normal(mean, level.clamp(-20, 2).exp())
    pre_tanh = mean + normal.stddev * noise
    squashed = TransformedDistribution(normal, [TanhTransform(cache_size=1)])
    action = squashed.transforms[0](pre_tanh)
    return action, squashed.log_prob(action).sum(1)


def next_values(agent: Any, actor: Tensor, m: int, next_obs: Tensor) -> Tensor:
    """Values ``[B]`` of next observations (Fujimoto et al. 2018, algorithm 1; Haarnoja et al. 2018, equation 3)."""
    config, numbers = agent.config, numbers_of(agent, m)
    if isinstance(config, SacConfig):
        outputs = torch_mlp(agent.network, actor[:-1], next_obs)
        next_action, log_prob = torch_sample(outputs, numbers["next"].T)
        bonus = -actor[-1].exp() * log_prob
    else:
        next_action = torch_actor(agent, agent.target_parameters[m], next_obs, numbers.get("next_gumbel", next_obs))
        noise = config.policy_std * numbers["next"].T
        next_action = next_action + noise.clamp(-config.policy_std_clip, config.policy_std_clip)
        next_action = next_action if isinstance(config, DiscreteConfig) else next_action.clamp(-1, 1)
        bonus = torch.zeros(())
    return torch_critics(agent, agent.critics.target_parameters[m], next_obs, next_action).min(0).values + bonus


def critic_loss(agent: Any, critics: Tensor, actor: Tensor, m: int) -> Tensor:
    """The critics' loss of member ``m``."""
    obs, action, next_obs, reward, discount = rows_of(agent, m)
    target = reward + agent.config.discount * discount * next_values(agent, actor, m, next_obs).detach()
    return (torch_critics(agent, critics, obs, action) - target).square().mean(1).sum()


def actor_losses(agent: Any, critics: Tensor, actor: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The losses of actor and temperature of member ``m`` (Haarnoja et al. 2018, equations 9 and 18)."""
    config, obs, numbers = agent.config, rows_of(agent, m)[0], numbers_of(agent, m)
    if not isinstance(config, SacConfig):
        action = torch_actor(agent, actor, obs, numbers.get("gumbel", obs))
        return -torch_critics(agent, critics, obs, action)[0].mean(), torch.zeros(())
    action, log_prob = torch_sample(torch_mlp(agent.network, actor[:-1], obs), numbers["now"].T)
    smaller = torch_critics(agent, critics, obs, action).min(0).values
    target_entropy = -2.0 if config.target_entropy is None else config.target_entropy
    temperature_loss = -actor[-1] * (log_prob.detach().mean() + target_entropy) * config.learn_temperature
    return (actor[-1].exp().detach() * log_prob - smaller).mean(), temperature_loss


GRADIENTS = {
    "continuous": dataclasses.replace(NOW, hidden_sizes=(9, 9), policy_std=0.4, policy_std_clip=0.3),
    "continuous-prelu": dataclasses.replace(NOW, hidden_sizes=(9, 9), activation="prelu"),
    "continuous-narrow": dataclasses.replace(NOW, hidden_sizes=(5,), activation="leakyrelu"),
    "soft": dataclasses.replace(DISCRETE, gumbel_softmax_temp=0.7, activation="tanh"),
    "hard": dataclasses.replace(DISCRETE, gumbel_softmax_hard=True, gumbel_softmax_temp=1.4),
    "learned": dataclasses.replace(DISCRETE, gumbel_temperature="learned", gumbel_softmax_temp=0.6, hidden_sizes=(9,)),
    "SAC": dataclasses.replace(SAC, entropy_temperature=0.4),
    "SAC, one layer, target entropy": dataclasses.replace(SAC, hidden_sizes=(9,), activation="tanh", target_entropy=.7),
    "SAC, fixed": dataclasses.replace(SAC, learn_temperature=False, entropy_temperature=0.2),
}  # fmt: skip


@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients_equal_autograd(case: str) -> None:
    """The critics' gradients, then the actor's by the critics after their step."""
    changes = {} if "SAC" in case else {"policy_delay": 1}
    agent: Any = make_agent(dataclasses.replace(GRADIENTS[case], **changes))
    perturb_targets(agent)
    live(agent, 30, learns=False)
    actors = [agent.flat_parameters[m].clone().requires_grad_() for m in range(3)]
    critics = [agent.critics.flat_parameters[m].clone().requires_grad_() for m in range(3)]
    losses = [critic_loss(agent, critics[m], actors[m], m) for m in range(3)]
    agent_losses = agent.learn()
    for m in range(3):
        losses[m].backward()
        assert agent_losses[m].item() == pytest.approx(losses[m].item(), rel=1e-4)
        assert_descended(agent.critics.optimizer, m, critics[m])
        sum(actor_losses(agent, agent.critics.flat_parameters[m], actors[m], m)).backward()
        assert_descended(agent.optimizer, m, actors[m])
    if "SAC" in case:
        assert (agent.optimizer.mean[:, -1] != 0).all() == agent.config.learn_temperature


@pytest.mark.parametrize("config", [NOW, DISCRETE], ids=["continuous", "discrete"])
def test_actor_is_updated_after_every_delay_of_its_member(config: Any) -> None:
    """Member m starts to learn at step 2 m and counts its updates."""
    agent: Any = make_agent(dataclasses.replace(config, policy_delay=3, init_episodes=1))
    perturb_targets(agent)
    obs, updates = torch.randn(3, 1, OBS, generator=torch.Generator().manual_seed(1)), [0, 0, 0]
    for tick in range(10):
        old_values = learned(agent)
        done = torch.tensor([[tick == 2 * m] for m in range(3)])
        agent.observe(obs, agent.act(obs), 0.9 * obs, torch.ones(3, 1), torch.ones(3, 1), done)
        loss, now = agent.learn(), learned(agent)
        for m in range(3):
            active = tick >= 2 * m
            updates[m] += active
            assert loss[m].isnan() == (not active) == agent.metrics()["train/q_mean"][m].isnan()
            is_due = active and updates[m] % 3 == 0
            for name, value in now.items():
                moves = active if name.startswith("critics") and "target" not in name else is_due
                if name.rpartition(" ")[2] != "lr":
                    assert torch.equal(value[m], old_values[name][m]) == (not moves), (tick, m, name)
            if is_due:
                target, online = old_values["target_parameters"][m], now["flat_parameters"][m]
                assert_near(now["target_parameters"][m], 0.995 * target + 0.005 * online)
    assert agent.critics.optimizer.count.tolist() == [10, 8, 6] and agent.optimizer.count.tolist() == [3, 2, 2]


def test_gumbel_temperature_is_annealed_per_member() -> None:
    """Linear from 2 to 0.1 over 2,000 updates of each member."""
    agent: Any = make_agent(dataclasses.replace(DISCRETE, gumbel_softmax_temp=2.0, gumbel_temperature="annealed"))
    for counts, expected in (([0, 1000, 2000], [2.0, 1.05, 0.1]), ([500, 9000, 1], [1.525, 0.1, 1.99905])):
        agent.critics.optimizer.count = torch.tensor(counts)
        assert agent.temperature(agent.flat_parameters).view(-1).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("config", [NOW, DISCRETE, SAC], ids=["continuous", "discrete", "SAC"])
def test_evaluation_is_greedy_unless_noisy(config: Any) -> None:
    obs = torch.randn(3, 50, OBS)
    std = {} if config is SAC else {"action_std": 0.5}
    calm, noisy = (make_agent(dataclasses.replace(config, test_noise=noise, **std)) for noise in (False, True))
    policies = [agent.begin(50, Streams([5, 6, 7]), sample=False) for agent in (calm, noisy, noisy)]
    greedy_action, action, same = (policy.act(obs) for policy in policies)
    outputs = torch.stack(
        [torch_mlp(calm.network, calm.flat_parameters[m, : calm.network.size], obs[m]) for m in range(3)]
    )
    best = outputs.argmax(2) if config is DISCRETE else calm.clip(outputs[..., :2].tanh())  # SAC's others are log_std
    torch.testing.assert_close(greedy_action, best)
    assert torch.equal(action, same) and not torch.equal(action, greedy_action)
    assert not torch.equal(policies[1].act(obs), action)
    assert torch.equal(calm.with_weights(calm.flat_parameters[:2]).act(obs[:2]), greedy_action[:2])


# -- SAC ---------------------------------------------------------------------------------------------------------------


def test_log_prob_of_saturated_action() -> None:
    """Mean 30, deviation 1, noise 0: -log(2 pi) / 2 - log(1 - tanh(30)^2), and 1 - tanh(x)^2 is 4 e^(-2 x) there; its
    slope by the mean is 2."""
    for mean in (30.0, -30.0):
        outputs = torch.tensor([[[mean, 0.0]]], requires_grad=True)
        _, log_prob = sample(outputs, torch.zeros(1, 1, 1))
        assert log_prob.item() == pytest.approx(-0.9189385 - 1.3862944 + 60, rel=1e-6)
        (gradient,) = torch.autograd.grad(log_prob.sum(), outputs)
        assert gradient.view(-1).tolist() == pytest.approx([2.0 if mean > 0 else -2.0, -1.0])


@pytest.mark.parametrize("config", [NOW, DISCRETE, SAC], ids=["continuous", "discrete", "SAC"])
def test_metrics_by_current_weights(config: Any) -> None:
    """On the minibatch of the latest update, sampled again; NaN before learning, and they change nothing."""
    agent: Any = make_agent(dataclasses.replace(config, fill=25, init_episodes=0))
    live(agent, 24)
    assert all(values.isnan().all() for values in agent.metrics().values())
    live(agent, 6, first=24)
    old_state, metrics = learned(agent), agent.metrics()
    assert ("train/entropy" in metrics) == (config is not NOW)
    for m in range(3):
        critics, actor = agent.critics.flat_parameters[m].clone().requires_grad_(), agent.flat_parameters[m]
        obs, action, *_ = rows_of(agent, m)
        critic_loss(agent, critics, actor, m).backward()
        expected = {"policy_loss": actor_losses(agent, critics, actor, m)[0]}
        expected |= {"grad_norm": critics.grad.norm(), "q_mean": torch_critics(agent, critics, obs, action).mean()}
        outputs = torch_mlp(agent.network, actor[: agent.network.size], obs)
        if config is SAC:
            entropy = -torch_sample(outputs, numbers_of(agent, m)["now"].T)[1].mean()
            expected |= {"entropy": entropy, "entropy_temperature": actor[-1].exp()}
        if config is DISCRETE:
            expected["entropy"] = torch.distributions.Categorical(logits=outputs).entropy().mean()
        for name, value in expected.items():
            assert metrics[f"train/{name}"][m].item() == pytest.approx(value.item(), rel=1e-4, abs=1e-5), name
    for name, value in learned(agent).items():
        assert torch.equal(value, old_state[name]) and not value.requires_grad, name


# -- Ornstein-Uhlenbeck noise ------------------------------------------------------------------------------------------


def by_hand(normal: np.ndarray, done: np.ndarray, sigma: float) -> np.ndarray:
    """The noise of ``normal [T]`` as stable-baselines3 computes it, reset after each ``done [T]``."""
    levels, level = [], 0.0
    for number, end in zip(normal, done, strict=True):
        level = level + 0.15 * (0.0 - level) * 0.01 + sigma * np.sqrt(0.01) * number
        levels.append(level)
        level = 0.0 if end else level
    return np.array(levels)


@pytest.mark.parametrize("name", ["TD3", "SAC"])
def test_agents_explore_with_noise(name: str) -> None:
    """With weights of 0 TD3's action is the noise and SAC's is tanh of it."""
    config = SAC if name == "SAC" else dataclasses.replace(NOW, action_std=0.7)
    drifting, white = (
        make_agent(dataclasses.replace(config, num_envs=2, noise_type=kind))
        for kind in ("ornstein-uhlenbeck", "normal")
    )
    drifting.flat_parameters.data.zero_()
    raw_actions, normal, ends = [], [], []
    for step in range(120):
        live(white, 1, learns=False, first=step)
        ends.append(live(drifting, 1, learns=False, first=step))
        raw_actions.append(drifting.action_vectors)
        normal.append(white.random_numbers["explore"])
    actions, numbers, done = (torch.stack(series).double().numpy() for series in (raw_actions, normal, ends))
    for m, e, a in np.ndindex(actions.shape[1:]):
        noise = by_hand(numbers[:, m, e, a], done[:, m, e] > 0, 0.7 if name == "TD3" else 1.0)
        expected = np.clip(noise, -1, 1) if name == "TD3" else np.tanh(noise)
        # The first step, before anything is remembered, is at random.
        assert_near(actions[1:, m, e, a], expected[1:], atol=1e-3)
    assert done.any(0).all()
