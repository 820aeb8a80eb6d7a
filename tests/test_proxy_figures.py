"""What the figures of a synthetic environment are drawn from."""

import dataclasses
from pathlib import Path

import pytest
import torch

from control.cli import parse as config
from control.cli.settings import Settings
from control.evolution.inner_loop import InnerLoop
from control.loops.rollout import play_episodes
from control.reports.synthetic import action_rewards, behaviour, bin_means
from envs.make import make_environment
from models.proxies.files import Proxy
from models.streams import Streams

pytestmark = pytest.mark.draws

DDQN = "--gamename cartpole --hidden_sizes 8 --batch_size 8 --proxy_hidden_size 7"
EARLY = "--inner_rule plateau --early_out_num 2 --early_out_virtual_diff 0.1 --inner_steps 160 --max_steps 25"


def random_proxy(argv: str) -> tuple[Proxy, Settings, InnerLoop]:
    """A random synthetic environment. Under the rule of ``EARLY``, ten agents on it end at 8 different times."""
    settings = config.parse(["--implementation", "SE", *argv.split()])
    game = settings.run.gamename
    config_in_use = dataclasses.replace(settings.proxy, inner_steps=settings.proxy.steps_in_use)
    loop = InnerLoop(config_in_use, settings.run.agent, settings.replace(vary_hp=False).agent, game)
    flat = 2 * loop.factory.initial(Streams([8]))[0]
    return Proxy(Path("drawn"), settings.proxy, loop.factory.spaces, game, flat, {}), settings, loop


@pytest.mark.parametrize("argv", ["--inner_steps 60 --deploy_steps 90 --max_steps 25", EARLY], ids=["budget", "early"])
def test_real_episodes_are_played_by_the_trained_agents(argv: str) -> None:
    proxy, settings, loop = random_proxy(f"{DDQN} {argv}")
    samples = behaviour(proxy, settings)
    trained = loop.train_to_end(loop.begin(proxy.parameters.expand(10, -1), list(range(10))))
    episodes = play_episodes(trained.policy, make_environment("cartpole", 10, 10), torch.arange(100).view(10, 10))
    steps = int(episodes.lengths.sum())
    assert samples["real"][:, 4].tolist() == [1.0] * steps  # a step is a point
    assert samples["real"].shape == samples["synthetic on real"].shape == (steps, 5)
    if argv != EARLY:
        assert samples["synthetic"].shape == (10 * 90, 5)


def test_a_bandit_shows_the_states_that_agents_are_paid_for() -> None:
    proxy, settings, loop = random_proxy(f"{DDQN} --proxy bandit --inner_steps 40 --deploy_steps 40")
    states, rewards = torch.from_numpy(behaviour(proxy, settings)["synthetic"]).split([4, 1], 1)
    program = loop.factory.parameters.with_weights(proxy.parameters[None])
    assert states.shape == (400, 4)
    pays = [program.step(states[None], torch.full((1, 400), action)).reward[0] for action in (0, 1)]
    assert torch.stack([(rewards[:, 0] - pay).abs() for pay in pays]).amin(0).max() < 1e-5


def test_what_a_bandit_pays_for() -> None:
    """By a target, minus the distance from it: of each action as much as by hand, and in bins their means."""
    words = "--proxy bandit --preset two_stage --agent TD3 --gamename pendulum --table_size 30 --proxy_hidden_size 4"
    proxy, _, loop = random_proxy(words)
    networks, flat = loop.factory.parameters, proxy.parameters
    flat[: networks.num_searched] += torch.randn(networks.num_searched)
    states = networks.fixed_tensors(flat[None])["states.table"][0]
    values, reward = action_rewards(proxy, states)
    aims = networks.target(flat[None]).act(states[None])[0, :, 0]
    assert values.min() == -2 and values.max() == 2 and reward.shape == (len(values), 30)
    torch.testing.assert_close(reward, -(values[:, None] - aims).abs() / 2)
    edges, means = bin_means(torch.tensor([[1.0, 2.0, 3.0, 7.0]]), torch.tensor([0.0, 0.0, 10.0, 10.0]))
    assert (
        edges[0] == 0 and edges[-1] == 10 and means[0, 0] == 1.5 and means[0, -1] == 5 and means[0, 1:-1].isnan().all()
    )


@pytest.mark.parametrize("kind", ["mdp", "bandit"])
def test_agents_without_a_replay_buffer_are_seen_in_episodes_after_their_training(kind: str) -> None:
    """PPO's keeps nothing of what it saw. The states of a bandit are its first ones, those of an MDP come after."""
    argv = "--agent PPO --gamename cartpole --hidden_size 8 --num_envs 2 --rollout_steps 8 --batch_size 8"
    short = "" if kind == "bandit" else "--max_steps 5"
    proxy, settings, _ = random_proxy(f"{argv} --inner_steps 32 --deploy_steps 32 --proxy {kind} {short}")
    samples = behaviour(proxy, settings)
    steps = len(samples["synthetic"])
    assert steps == 20 if kind == "bandit" else 20 < steps <= 100, "two episodes of each of ten agents"
    assert samples["synthetic"].shape == (steps, 5) and len(samples["real"]) > 100
