"""Makes a synthetic environment or a reward from a policy (the teacher), for direct use or as the start of a search.

The policy is a checkpoint, an agent of stable-baselines3 or any function of observations, such as a manual controller.

Shapes: N is the number of observations, S the size of an observation, A the number of discrete actions or the size of a
continuous action, E the number of parallel environments, T the number of steps, and D the number of weights of a proxy
(a synthetic environment or a reward).
"""

import contextlib
import importlib
import itertools
import json
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from control.loops.build import build_loop, take_weights
from control.loops.loop import first_member_actions
from control.loops.rollout import LONG, FunctionPolicy, rollout
from control.storage import checkpoints
from control.storage.checkpoints import CheckpointError
from control.storage.run_dir import find_proxy
from envs.base import Environment
from envs.gymnasium_adapter import equals_spaces
from envs.make import ProxyFactory, converter_of, make_environment, spaces_of
from envs.names import first_line
from models.registry import agent_class, family
from models.settings import SettingError
from models.spaces import Discrete, Spaces
from models.streams import Streams, derive_seed, random_actions
from models.trajectory import Trajectory, discounted_returns
from understudy.files import SUFFIX

Teacher = Callable[[Tensor], Tensor]
"""A function from observations ``[N, S]`` to actions, ``[N]`` int64 or ``[N, A]``, or to action values ``[N, A]``."""

CountSteps = Callable[[int], None]
"""A function that counts steps in the real environment: its argument is a number of new steps."""

# Noise levels: for continuous actions, standard deviations relative to half of the range; for discrete actions,
# probabilities of a random action.
_NOISE_LEVELS = (0.0, 0.3, 1.0)
_ENVS_PER_LEVEL = 4
_RETURN_ENVS = 32  # number of parallel environments in `TeacherEpisodes.returns`
_SB3_VERSION_FILE = "_stable_baselines3_version"  # file in the archive of every agent of stable-baselines3
# Attribute that only files of one class of agents have -> this class. TD3 also loads files of DDPG.
_SB3_CLASSES = {
    "clip_range": "PPO",
    "gae_lambda": "A2C",
    "exploration_rate": "DQN",
    "target_entropy": "SAC",
    "target_policy_noise": "TD3",
}


def is_teacher(source: str) -> bool:
    """Return whether ``source`` names a policy and not a proxy (a learned environment or reward). Policies are
    functions ``module:function``, run folders and checkpoints of agents, and files of stable-baselines3."""
    path = Path(source)
    if path.exists():
        return path.suffix != SUFFIX and find_proxy(path) is None
    return ":" in source  # names of this project's proxies have no colon


def _start_error(source: str, problem: str, allowed: str) -> SettingError:
    """Return the error "start_from is SOURCE, ``problem``; allowed: ``allowed``". This setting names the policy."""
    return SettingError(f"start_from is {source!r}, {problem}; allowed: {allowed}", "start_from")


def teacher(source: str, game: str, spaces: Spaces, wants_values: bool = False) -> Teacher:
    """Load the policy ``source`` (`is_teacher`) as a function from observations ``[N, S]`` to actions or, with
    ``wants_values``, to action values ``[N, A]``. Continuous actions are clipped to their bounds. Raises SettingError
    if the policy cannot be used in ``game``; the returned function raises it for an invalid output of the policy."""
    if _is_sb3_agent(source):
        policy = load_sb3_policy(source, spaces, wants_values)
    elif Path(source).exists():
        policy = _agent_policy(source, game, wants_values)
    else:
        policy = _function_policy(source, game, wants_values)
    actions: Any = spaces.actions
    shape = (actions.n,) if wants_values else spaces.action_shape  # shape of the output for one observation

    def checked_policy(obs: Tensor) -> Tensor:
        """Return the policy's actions or action values for ``obs [N, S]``, after a check of their shape and range."""
        output = policy(obs)
        if shape == (1,) and output.shape == (len(obs),):  # one-dimensional actions without their axis
            output = output.unsqueeze(1)
        if output.shape != (len(obs), *shape):
            problem = f"which gives {list(output.shape)} numbers for {len(obs)} observations"
            raise _start_error(source, problem, str([len(obs), *shape]))
        if not output.float().isfinite().all():
            raise _start_error(source, "which gives numbers that are not finite", "finite numbers")
        if wants_values:
            return output.float()
        if not isinstance(actions, Discrete):
            return output.float().clamp(torch.tensor(actions.low), torch.tensor(actions.high))
        indices = output.long()
        is_valid = (output == indices) & (indices >= 0) & (indices < actions.n)
        if not is_valid.all():
            problem = f"which gives the action {output[~is_valid][0].item()}"
            raise _start_error(source, problem, f"whole numbers, 0 to {actions.n - 1}")
        return indices

    two_observations = torch.zeros(2, *spaces.obs_shape)
    checked_policy(two_observations)  # raises the errors of an unsuitable policy now
    return checked_policy


def _function_policy(source: str, game: str, wants_values: bool) -> Teacher:
    """Import the user's function ``source``, ``module:function``, and return it as a policy on tensors. Its results are
    action values if ``wants_values``, else actions of the environment ``game``. Discrete actions are converted to
    indices from 0. Raises SettingError if the import fails; the returned policy raises it if the function fails."""
    module, _, name = source.rpartition(":")
    try:
        function: Any = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # an unknown module may raise anything while it is imported
        reason = first_line(error) if module else "no such file or folder"
        allowed = "a run, a checkpoint, an agent of stable-baselines3, a proxy, or module:function"
        raise SettingError(f"start_from is {source!r}: {reason}; allowed: {allowed}", "start_from") from error

    converter = None if wants_values else converter_of(game)

    def act(obs: Tensor) -> Tensor:
        """Call the user's function with an array, and return its result as a tensor."""
        try:
            output = np.asarray(function(obs.numpy()))
            return torch.as_tensor(output if converter is None else converter.action_indices(output))
        except (Exception, SystemExit) as error:  # the user's function may raise anything
            problem = f"which failed: {first_line(error)}"
            raise _start_error(source, problem, "a function of observations [N, S]") from error

    return act


def _agent_policy(source: str, game: str, wants_values: bool) -> Teacher:
    """Load the agent of the first seed in the run folder or checkpoint ``source``. Return its greedy policy or, with
    ``wants_values``, the function from observations to its action values. Raises SettingError if there is no checkpoint
    of an agent, if it was trained on another environment than ``game``, or has no action values."""
    try:
        checkpoint = checkpoints.load(source)
    except CheckpointError as error:
        problem = f"neither a proxy nor a policy: {str(error).partition('; allowed')[0]}"
        allowed = "a proxy's file, run folder or name; a policy, for a proxy that can be made from one"
        raise _start_error(source, problem, allowed) from error
    run = checkpoint.settings.run
    if family(run.implementation).learns_from == "evolution":  # the checkpoint of a search has no trained agent
        raise _start_error(source, "a search without a winner", "a proxy, or an agent's checkpoint")
    if run.gamename.partition(",")[0] != game.partition(",")[0]:
        raise _start_error(source, f"an agent on {run.gamename}", f"one on {game}")
    if wants_values and not hasattr(agent_class(run.implementation), "values"):
        raise _start_error(source, f"but {run.implementation} has no value of each action", "clone_of actions")
    with contextlib.closing(build_loop(checkpoint.settings, for_training=False)) as loop:
        take_weights(loop.agents, checkpoint)
    agent: Any = loop.agents[0]

    @torch.no_grad()
    def act(obs: Tensor) -> Tensor:
        """Return the action values ``[N, A]`` or the greedy actions for ``obs [N, S]``."""
        if wants_values:
            return agent.values(obs.expand(agent.members, *obs.shape))[0]  # values [M, N, A] of the first member
        policy = agent.begin(len(obs), Streams.from_name(agent.seeds, "cloning"), sample=False, evaluate=True)
        return first_member_actions(policy, obs)

    return act


def _is_sb3_agent(source: str) -> bool:
    """Return whether ``source`` is the file of an agent of stable-baselines3."""
    try:
        with zipfile.ZipFile(source) as archive:
            return _SB3_VERSION_FILE in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def load_sb3_policy(source: str, spaces: Spaces, wants_values: bool = False) -> Callable[[Tensor], Tensor]:
    """Load the agent of stable-baselines3 in the file ``source``, and return its greedy policy: a function from
    observations ``[N, S]`` to actions or, with ``wants_values``, to action values (DQN only). Loading the file can run
    any code in it. Raises SettingError if the agent cannot be loaded, or if its spaces are not ``spaces``."""
    model = _load_sb3_model(source)
    obs_space, action_space = model.observation_space, model.action_space
    is_cell = type(obs_space).__name__ == "Discrete"  # observations are indices of cells, one-hot in ``spaces``
    has_shape = is_cell or obs_space.shape == spaces.obs_shape  # `predict` takes no flattened observations
    if not has_shape or not equals_spaces(obs_space, action_space, spaces):
        problem = f"an agent of stable-baselines3 for {obs_space} and {action_space}"
        allowed = f"one for observations {list(spaces.obs_shape)} and actions {spaces.actions}"
        raise _start_error(source, problem, allowed)
    if wants_values and not hasattr(model, "q_net"):  # only DQN has action values
        problem = f"an agent of stable-baselines3, but {type(model).__name__} has no value of each action"
        raise _start_error(source, problem, "clone_of actions")

    @torch.no_grad()
    def act(obs: Tensor) -> Tensor:
        """Return the action values ``[N, A]`` or the actions, ``[N]`` or ``[N, A]``, for ``obs [N, S]``."""
        observations = (obs.argmax(1) if is_cell else obs).numpy()
        if wants_values:
            inputs, _ = model.policy.obs_to_tensor(observations)
            return model.q_net(inputs)
        actions, _ = model.predict(observations, deterministic=True)
        return torch.as_tensor(np.asarray(actions)).reshape(len(obs), *spaces.action_shape)

    return act


def _load_sb3_model(source: str) -> Any:
    """Return the agent in the file ``source``, an object of stable-baselines3. Raises SettingError if it cannot be
    loaded, or if stable-baselines3 is not installed."""
    try:
        library: Any = importlib.import_module("stable_baselines3")
        with zipfile.ZipFile(source) as archive:
            attributes = json.loads(archive.read("data"))
        # The first attribute of `_SB3_CLASSES` that the agent has determines its class.
        class_name = next(name for attribute, name in _SB3_CLASSES.items() if attribute in attributes)
        # The greedy policy needs neither a replay buffer, which may hold a million steps, nor schedules, which may be
        # pickled functions of an older version of Python.
        schedules = ("lr_schedule", "clip_range", "exploration_schedule")
        custom_objects: dict[str, Any] = {"buffer_size": 1, **dict.fromkeys(schedules, lambda progress: 0.0)}
        return getattr(library, class_name).load(source, device="cpu", custom_objects=custom_objects)
    except (Exception, SystemExit) as error:  # a damaged or foreign file may raise anything
        problem, allowed = f"which cannot be loaded: {first_line(error)}", "PPO, A2C, DQN, SAC, TD3, DDPG"
        if isinstance(error, ModuleNotFoundError):
            problem, allowed = f"which needs the module {error.name}", "pip install stable-baselines3"
        raise _start_error(source, f"an agent of stable-baselines3, {problem}", allowed) from error


def visited_states(
    act: Teacher, count: int, limit: int | None, game: str, seed: int, count_steps: CountSteps = lambda steps: None
) -> Tensor:
    """Return ``count`` observations ``[count, S]``, a random sample from episodes of the policy ``act`` in the
    environment ``game``, which have about twice as many steps.

    In a third of the parallel environments, the actions have no noise. In the others they have noise, so that agents
    also learn to act in states that the policy does not reach. ``limit`` is the time limit of the episodes; None means
    the environment's limit.
    """
    # The environment and the streams have one member: [0] removes the member axis, and [None] adds it.
    envs = _ENVS_PER_LEVEL * len(_NOISE_LEVELS)
    streams = Streams([derive_seed(seed, "states of a teacher")])
    noise_levels = torch.tensor(_NOISE_LEVELS).repeat_interleave(_ENVS_PER_LEVEL)  # [E]
    observations: list[Tensor] = []
    with contextlib.closing(make_environment(game, 1, envs, time_limit=limit)) as real:
        # The first pass of the loop resets all environments again, because ``done`` is True. This first reset is
        # necessary, because it takes seeds from the stream: without it, the same ``seed`` would lead to other episodes.
        real.reset(streams.episode_seeds(envs))
        done = torch.ones(1, envs, dtype=torch.bool)
        space = real.spaces.actions
        while len(observations) * envs < 2 * count:
            obs = real.reset(streams.episode_seeds(envs), done)[0].float()  # [E, S]
            observations.append(obs)
            action = act(obs)  # [E] or [E, A]
            if isinstance(space, Discrete):
                random_action = (streams.uniform(envs)[0] * space.n).long()
                is_random = streams.uniform(envs)[0] < noise_levels
                action = torch.where(is_random, random_action, action)
            else:
                low, high = torch.tensor(space.low), torch.tensor(space.high)
                noise = streams.normal(envs, space.size)[0] * noise_levels[:, None] * (high - low) / 2
                action = (action + noise).clamp(low, high)
            step = real.step(action[None])
            done = step.terminated | step.truncated
    count_steps(len(observations) * envs)
    all_observations = torch.cat(observations)
    sample = streams.uniform(len(all_observations))[0].argsort()[:count]  # random indices, without replacement
    return all_observations[sample]


class TeacherEpisodes:
    """Plays the policy ``act`` in the environment ``game``, for data about it. Every call of a method plays new
    episodes, which ``seed`` determines, and calls ``count_steps`` with the number of their steps."""

    def __init__(self, act: Teacher, game: str, seed: int, count_steps: CountSteps = lambda steps: None):
        self.act, self.game, self.seed, self.count_steps = act, game, seed, count_steps
        self._calls = itertools.count()

    def states(self, count: int, limit: int | None, clone: Teacher | None = None) -> Tensor:
        """Return observations ``[count, S]`` that the policy visits or, if ``clone`` is not None, that the clone
        visits. ``limit`` is the time limit of the episodes, None for the environment's limit."""
        seed = derive_seed(self.seed, f"states of a clone {next(self._calls)}")
        return visited_states(clone or self.act, count, limit, self.game, seed, self.count_steps)

    def returns(self, discount: float, episodes: int) -> tuple[Tensor, Tensor]:
        """Play ``episodes`` episodes. Return the observations ``[N, S]`` of the policy's steps, and its discounted
        returns ``[N]`` from each observation on. So that the observations differ, each episode begins with a random
        number of random actions: at most 1.5 times the mean length of random play, or half of the time limit."""
        streams = Streams([derive_seed(self.seed, f"returns of a teacher {next(self._calls)}")])
        observations, returns = [], []
        limit = spaces_of(self.game).max_episode_steps
        time_limit = LONG if limit is None else None  # replaces the environment's limit
        with contextlib.closing(make_environment(self.game, 1, _RETURN_ENVS, time_limit=time_limit)) as real:
            random_play = self._play(real, streams, torch.full((_RETURN_ENVS,), LONG))  # only random actions
            max_random_steps = 1.5 * float(random_play.lengths.float().mean())
            if limit is not None:
                max_random_steps = min(max_random_steps, limit / 2)
            for _ in range(math.ceil(episodes / _RETURN_ENVS)):
                random_steps = (streams.uniform(_RETURN_ENVS)[0] * (max_random_steps + 1)).long()  # [E]
                trajectory = self._play(real, streams, random_steps)
                steps = torch.arange(len(trajectory.reward))[:, None, None]  # [T, 1, 1]
                # The return after a truncation is the sum of mean_reward * discount ** t over all t, as if the episode
                # continued with the mean reward of its last tenth. For a discount near 1, it has about 1,000 terms.
                is_last_tenth = trajectory.valid & (steps >= (0.9 * trajectory.lengths).floor())  # [T, 1, E]
                mean_reward = (trajectory.reward * is_last_tenth).sum(0) / is_last_tenth.sum(0)
                later_return = mean_reward / max(1 - discount, 1e-3) * trajectory.truncated.any(0)  # [1, E]
                # The return from each step on, [T, 1, E].
                all_returns = discounted_returns(trajectory.reward, trajectory.valid, discount, later_return)
                follows_policy = trajectory.valid & (steps >= random_steps)
                observations.append(trajectory.obs[follows_policy])
                returns.append(all_returns[follows_policy])
        return torch.cat(observations), torch.cat(returns)

    def _play(self, real: Environment, streams: Streams, random_steps: Tensor) -> Trajectory:
        """Play an episode in each of the E environments ``real``: first ``random_steps [E]`` random actions, then the
        policy's actions. ``streams`` determine the seeds of the episodes and the random actions."""
        seeds = streams.episode_seeds(real.envs)
        step_numbers = itertools.count()

        def act(obs: Tensor) -> Tensor:
            """Return the actions ``[E]`` or ``[E, A]`` of the next step for ``obs [E, S]``."""
            random_action = random_actions(real.spaces.actions, streams, real.envs)[0]  # [E] or [E, A]
            is_random = next(step_numbers) < random_steps  # [E]
            if random_action.dim() == 2:
                is_random = is_random.unsqueeze(1)
            return torch.where(is_random, random_action, self.act(obs))

        trajectory = rollout(FunctionPolicy(act), real, seeds)
        self.count_steps(int(trajectory.valid.sum()))
        return trajectory


def cloned_proxy(source: str, factory: ProxyFactory, seed: int, count_steps: CountSteps = lambda steps: None) -> Tensor:
    """Make a proxy from the policy ``source`` (`is_teacher`), and return its parameters ``[D]``. Raises SettingError if
    its settings do not allow this.

    ``factory`` has the settings of the proxy, a bandit or a reward. A bandit is a synthetic environment in which every
    step is an episode. In the states that the policy visits, its rewards are highest for the policy's actions, or equal
    the policy's action values. A reward has the policy's returns as potential.
    """
    needs_values = factory.check_policy(source)  # raises SettingError if the settings allow no proxy from a policy
    act = teacher(source, factory.game, factory.spaces)
    policy = teacher(source, factory.game, factory.spaces, needs_values) if needs_values else act
    episodes = TeacherEpisodes(act, factory.game, seed, count_steps)
    streams = Streams([derive_seed(seed, "initial stand-in 0")])
    return factory.clone_policy(policy, episodes, streams)[0]  # 0 is the index of the only stream
