"""Transitions of the real environment, to which a synthetic one is fitted: of random play, of a policy with and without
noise, or of agents while they learn."""

import contextlib
import dataclasses
import itertools
from typing import Any

import torch
from torch import Tensor

from control.evolution.inner_loop import InnerLoop, fresh_seeds
from control.evolution.teachers import LADDER, Teacher, played, teacher
from models.proxies.synthetic.supervised import Transitions
from models.registry import agent_class
from models.replaying import Replaying
from models.settings import SettingError
from models.spaces import Discrete, Spaces
from models.streams import Streams, derive_seed

_AGENTS = 8  # whose transitions are recorded


def check_agents(agent: str) -> None:
    """Raises SettingError for agents that keep no transitions."""
    if not issubclass(agent_class(agent), Replaying):
        line = f"transitions_from is 'agents', but {agent} has no replay buffer"
        raise SettingError(f"{line}; allowed: random, policy, or an agent such as DDQN or TD3", "transitions_from")


def recorded(loop: InnerLoop, seed: int) -> Transitions:
    """``transitions`` of the real environment as the settings of ``loop`` say where from. Raises SettingError for a
    policy that cannot be used."""
    config: Any = loop.config
    spaces = loop.stages.spaces
    source, count = config.transitions_from, config.transitions
    if source == "agents":
        return _of_agents(loop.alone(loop.kinds[0]), count, seed)
    if source == "policy":
        return _of_policy(teacher(config.start_from, loop.game, spaces), loop.game, LADDER, count, seed)
    return _of_policy(_resting(spaces), loop.game, LADDER[-1:], count, seed)


def _resting(spaces: Spaces) -> Teacher:
    """Action 0, or the middle of the bounds: what noise of full size makes random play of."""
    actions = spaces.actions
    if isinstance(actions, Discrete):
        return lambda obs: torch.zeros(len(obs), dtype=torch.int64)
    middle = (torch.tensor(actions.low) + torch.tensor(actions.high)) / 2
    return lambda obs: middle.expand(len(obs), -1)


def _of_policy(act: Teacher, game: str, ladder: tuple[float, ...], count: int, seed: int) -> Transitions:
    streams, rounds = Streams([derive_seed(seed, "transitions")]), []
    with contextlib.closing(played(act, game, streams, ladder)) as steps:
        for obs, action, step in itertools.islice(steps, -(-count // (4 * len(ladder)))):
            ended = step.terminated[0].float()
            rounds.append((obs, action, step.reward[0].float(), step.obs[0].float(), ended))
    # One environment after another, so that episodes are whole.
    columns = [torch.stack(column, 1).flatten(0, 1) for column in zip(*rounds, strict=True)]
    return Transitions(*columns)[:count]


def _of_agents(loop: InnerLoop, count: int, seed: int) -> Transitions:
    """What the replay buffers of eight agents hold that learn on the real environment, each for as many steps."""
    each = -(-count // _AGENTS)
    limits: dict[str, Any] = {"inner_rule": "budget", "inner_steps": each, "train_episodes": None, "test_every": None}
    loop.config = dataclasses.replace(loop.config, **limits)
    agents: Any = loop.agent_config
    size = max(agents.buffer_size, each + agents.num_envs)
    loop.agent_config = dataclasses.replace(agents, buffer_size=size)
    seeds, parts = fresh_seeds(seed, "transitions", _AGENTS), []
    for group in loop.agent_class.groups(loop.agent_config, seeds):
        training = loop.begin(None, [seeds[i] for i in group])
        loop.finish(training)
        agent: Any = training.agent
        rows = agent.replay.rows()
        if "pair" in rows:  # actions in shares of half their range, or one number for each of them
            rows["obs"], vector = rows["pair"].split([agent.obs_size, agent.action_size], -1)
            discrete = isinstance(agent.spaces.actions, Discrete)
            rows["action"] = vector.argmax(-1) if discrete else agent.centre + agent.reach * vector
        elif isinstance(agent.spaces.actions, Discrete):
            rows["action"] = rows["action"].long()
        rows["ended"] = (rows["discount"] == 0).float()

        def in_order(column: Tensor, envs: int = agent.envs) -> Tensor:
            """``[T E, M, ...]`` -> ``[M E T, ...]``: one environment after another."""
            return column.unflatten(0, (-1, envs)).movedim(0, 2).transpose(0, 1).flatten(0, 2)

        parts.append([in_order(rows[name]) for name in ("obs", "action", "reward", "next_obs", "ended")])
    return Transitions(*map(torch.cat, zip(*parts, strict=True)))[:count]
