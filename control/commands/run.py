"""`Run`, the result of `trainer.train` and `trainer.load` in Python."""

import base64
import contextlib
import dataclasses
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from control.cli.errors import one_line
from control.cli.settings import Settings
from control.commands.exports import FORMATS, write
from control.films.recording import film, new_film
from control.loops.build import build_loop, take_weights
from control.loops.loop import Loop, as_observations, first_member_actions
from control.loops.process import configure_process
from control.reports.verdict import read_verdict
from control.storage import checkpoints
from control.storage.checkpoints import Checkpoint
from control.storage.run_dir import read_metrics, run_folder_of
from envs.gymnasium_adapter import Converter
from envs.make import converter_of, spaces_of
from envs.names import resolve
from models.contract import Agent, Policy
from models.settings import INTEGER, SettingError, UserError, check_value
from models.spaces import Discrete
from models.streams import Streams
from understudy.policy import PARTS

if TYPE_CHECKING:
    from control.lightning.agent import AgentModule

# Maximum number of parallel environments in an evaluation, also of `--eval_agent`. The episodes depend on this number.
ENVS = 25


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation: E episodes for each of M seeds.

    :ivar ndarray returns: Returns ``[M, E]``.
    :ivar ndarray lengths: Lengths ``[M, E]`` in steps.
    """

    returns: np.ndarray
    lengths: np.ndarray

    @property
    def mean(self) -> float:
        """Mean return over all seeds and episodes."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the returns of all seeds and episodes."""
        return float(self.returns.std())


class Player:
    """Plays an episode with the agent of a run's first seed, the result of `Run.policy`. Takes the environment's
    observations and returns its actions.

    :param policy: The policies of all seeds.
    :param obs_shape: Shape of an agent's observation.
    :param converter: Converts observations and actions between the agent and the environment.
    """

    def __init__(self, policy: Policy, obs_shape: tuple[int, ...], converter: Converter):
        self._policy, self._obs_shape, self._converter = policy, obs_shape, converter
        self._frames = deque[np.ndarray](maxlen=obs_shape[0])  # latest grey frames of an agent that sees images

    def act(self, obs: Any) -> int | np.ndarray:
        """Choose the next action.

        :param obs: Observation of the environment, such as an array, a cell or a dictionary. The agent's form, a vector
            ``[O]`` or grey frames ``[C, H, W]``, is also allowed.
        :return: The action for ``env.step``, an int or an array.
        :raises SettingError: The observation is not of the environment's space.
        """
        obs = self._converter.observation(obs)
        if len(self._obs_shape) == 3 and np.ndim(obs) == 2:  # as Gymnasium's FrameStackObservation
            self._frames.extend([obs] * (1 if self._frames else self._obs_shape[0]))
            obs = np.stack(self._frames)
        observation = as_observations(obs, self._obs_shape)
        if observation.dim() > len(self._obs_shape):
            allowed = f"{list(self._obs_shape)}, one observation"
            raise SettingError(f"obs has shape {list(observation.shape)}; allowed: {allowed}")
        return self._converter.action(first_member_actions(self._policy, observation[None])[0])  # of a batch of one

    def advance(self, reward: float) -> None:
        """Pass a reward to the agent. Only agents that follow commands use it.

        :param reward: Reward of the last action.
        """
        self._policy.advance(torch.full((self._policy.members, 1), float(reward)))  # [M, 1]: an episode of each member


@dataclass(frozen=True)
class Film:
    """A film on disk. Notebooks display it as a video player.

    :ivar Path path: The mp4 file.
    :ivar tuple returns: Return of each episode.
    """

    path: Path
    returns: tuple[float, ...]

    def _repr_html_(self) -> str:
        """Return a video player with the film as a data URL."""
        data = base64.b64encode(self.path.read_bytes()).decode()
        return f'<video controls autoplay loop muted width="480" src="data:video/mp4;base64,{data}"></video>'


class Run:
    """A training run: its metrics, and the agent of its best checkpoint (of its last checkpoint if there was no
    evaluation). `trainer.train` and `trainer.load` return it.

    >>> import trainer
    >>> run = trainer.load("exp_dir/cartpole/debug/PPO/seed_25/version_0")
    >>> run.evaluate(episodes=20).mean
    500.0

    :param path: Folder of the run, or a checkpoint.
    :param finished: False if Ctrl-C ended the training.
    """

    def __init__(self, path: str | Path, finished: bool = True):
        self.path, self.finished = Path(path), finished

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return checkpoints.load(self.path)

    @property
    def folder(self) -> Path:
        """The run folder, also if ``path`` is a checkpoint."""
        if self.path.is_dir() and (self.path / "metrics.csv").exists():
            return self.path
        return run_folder_of(self._checkpoint.path)

    @property
    def settings(self) -> Settings:
        """The settings of the run. ``settings.value("lr")`` is the value of one."""
        return self._checkpoint.settings

    @property
    def verdict(self) -> dict[str, Any]:
        """The verdict of a search as a dictionary: whether it has ``passed``, a ``sentence``, and the scores of fresh
        ``agents``, ``random`` play, the best ``constant`` action and a ``teacher``. Empty for other runs."""
        return read_verdict(self.folder)

    @cached_property
    def metrics(self) -> dict[str, np.ndarray]:
        """The columns of metrics.csv by name, such as ``metrics["eval/return_greedy"]``, with NaN for missing numbers.
        A row is an epoch of a seed."""
        return {tag: np.array(column) for tag, column in read_metrics(self.folder / "metrics.csv").items()}

    @cached_property
    def module(self) -> "AgentModule":
        """The LightningModule with the trained weights. Imports Lightning."""
        from control.lightning.agent import AgentModule

        return AgentModule.load_from_checkpoint(self._checkpoint.path, num_workers=1)

    @cached_property
    def _converter(self) -> Converter:
        return converter_of(self.settings.run.gamename)

    def evaluate(
        self, episodes: int = 100, sample: bool = False, seed: int = 25, gamename: str | None = None
    ) -> Evaluation:
        """Play episodes with the agent of every seed of the run. Results equal ``--eval_agent`` with the same
        ``--evaluation``.

        :param episodes: Number of episodes of each seed.
        :param sample: Whether actions are sampled and not greedy.
        :param seed: Seed of the episodes.
        :param gamename: Another environment with the same spaces. None: the environment of the run.
        :return: Returns and lengths of the episodes.
        :raises SettingError: An argument is not possible with this run.
        """
        check_value("episodes", episodes, INTEGER, {"minimum": 1})
        with self._loop(episodes, seed, gamename) as loop:
            if sample and "sampled" not in loop.evaluation_modes:
                implementation = self.settings.run.implementation
                raise SettingError(f"sample is True, but evaluations of {implementation} are greedy", "sample")
            episode_results = loop.evaluate(episodes, sample)
        return Evaluation(episode_results.returns.double().numpy(), episode_results.lengths.numpy())

    def film(self, episodes: int = 1, sample: bool = False, seed: int = 25) -> Film:
        """Film episodes of the first seed's agent. Writes a new file in the run's folder ``videos``.

        :param episodes: Number of episodes.
        :param sample: Whether actions are sampled and not greedy.
        :param seed: Seed of the episodes.
        :return: The file, and the returns of its episodes.
        :raises UserError: The environment cannot be rendered.
        """
        path = new_film(self._checkpoint.path, "film")
        with self._loop(1, seed) as loop:
            return Film(path, tuple(film(loop, self.settings.run, path, f"video {seed}", sample, episodes)))

    def policy(self, sample: bool = False, seed: int = 25) -> Player:
        """Prepare the first seed's agent for one episode.

        >>> import gymnasium
        >>> env, player = gymnasium.make("CartPole-v1"), run.policy()
        >>> obs, info = env.reset(seed=0)
        >>> obs, reward, terminated, truncated, info = env.step(player.act(obs))
        >>> player.advance(reward)

        :param sample: Whether actions are sampled and not greedy.
        :param seed: Seed of the sampled actions.
        :return: The player. Call ``action = player.act(obs)``, and ``player.advance(reward)`` after each step.
        """
        loop, streams = self.module.loop, Streams.from_name([seed] * len(self.module.seeds), "playing")
        return Player(loop.policy(streams, sample), loop.agents[0].spaces.obs_shape, self._converter)

    def export(self, path: str | Path) -> Path:
        """Write the greedy policy of the first seed's agent to a new file.

        >>> run.export("agent.safetensors").name
        'agent.safetensors'

        :param path: The file. Its ending selects the format: .safetensors for `understudy.Policy`, .js or .onnx.
        :return: The file.
        :raises SettingError: The file exists, or the policy is not a single network.
        """
        with self._loop(episodes=1, seed=0) as loop:  # no episode is played
            return export_policy(loop.agents[0], self.settings, Path(path))

    def predict(self, obs: Any) -> int | np.ndarray:
        """Choose the greedy action of the first seed's agent at the start of an episode. An agent with a memory or a
        command begins anew with each call.

        >>> run.predict([0.0, 0.0, 0.05, 0.5])
        1

        :param obs: Observation, as for `Player.act`.
        :return: The action, an int or an array.
        :raises SettingError: The observation is not of the environment's space.
        """
        return self.policy().act(obs)

    @contextlib.contextmanager
    def _loop(self, episodes: int, seed: int, gamename: str | None = None) -> Iterator[Loop]:
        """Context manager that yields a loop, which plays ``episodes`` episodes with the agent of every seed of the
        run, in the environment ``gamename``, by default the run's environment. ``seed`` determines the episodes."""
        settings = settings_to_play(self.settings.replace(num_workers=1), episodes)
        configure_process(settings.run)
        if gamename:
            settings = settings_in_environment(settings, resolve(gamename).name)
        with contextlib.closing(trained_loop(self._checkpoint, settings, seed)) as loop:
            yield loop

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def settings_to_play(settings: Settings, episodes: int) -> Settings:
    """Return ``settings`` for an evaluation of ``episodes`` episodes in at most `ENVS` parallel environments."""
    # An evaluation has ``eval_episodes`` parallel environments. Only the run's setting changes: an agent whose config
    # has a setting of this name keeps its value.
    run = dataclasses.replace(settings.run, eval_episodes=min(ENVS, episodes))
    return dataclasses.replace(settings, run=run)


def settings_in_environment(settings: Settings, game: str) -> Settings:
    """Return the ``settings`` of a run with another environment, ``game``. Raises SettingError if its spaces differ."""
    trained_on = settings.run.gamename
    trained_spaces, game_spaces = spaces_of(trained_on), spaces_of(game)
    for name in ("obs_shape", "obs_dtype", "actions"):
        trained_value, game_value = getattr(trained_spaces, name), getattr(game_spaces, name)
        if trained_value != game_value:
            problem = f"gamename is {game!r}, whose {name} is {game_value}"
            allowed = f"allowed with a checkpoint of {trained_on}: {trained_value}"
            raise SettingError(f"{problem}; {allowed}", "gamename")
    return settings.replace(gamename=game)


def trained_loop(checkpoint: Checkpoint, settings: Settings, seed: int) -> Loop:
    """Build the loop that plays episodes with the agents of a checkpoint, for an evaluation. ``settings`` are the
    settings of the checkpoint's run, with changes that do not affect the networks. ``seed`` determines the episodes.
    Raises UserError for the checkpoint of a search for a proxy, which has no agent."""
    if settings.proxy is not None:
        problem = f"{str(checkpoint.path)!r} is a search"
        raise UserError(f"{problem}: its result is a proxy that agents train on, not an agent")
    loop = build_loop(settings, for_training=False)
    take_weights(loop.agents, checkpoint)
    seeds = [seed + member for member in range(len(loop.seeds))]
    loop.evaluation_streams = Streams.from_name(seeds, "evaluating a checkpoint")
    return loop


def export_policy(agent: Agent, settings: Settings, path: Path) -> Path:
    """Write the greedy policy of the first seed of ``agent`` to the new file ``path``, and return the path. Its ending
    selects the format (`FORMATS`). Raises SettingError if that fails, or if the policy is not a single network."""
    run, actions = settings.run, agent.spaces.actions
    network = None if agent.spaces.is_image else agent.greedy_network(0, settings.command)  # 0: the first seed
    if network is None:
        problem = f"a single network does not describe the policy of {run.implementation} on {run.gamename}"
        allowed = "observations that are vectors or cells, and with desire_rank no command.return"
        raise SettingError(f"export: {problem}; allowed: {allowed}", "export")
    if path.suffix not in FORMATS or path.exists():
        allowed = f"a new file that ends with {', '.join(FORMATS)}"
        raise SettingError(f"export is {str(path)!r}; allowed: {allowed}", "export")
    header: dict[str, Any] = {
        "game": run.gamename,
        "implementation": run.implementation,
        "actions": {"n": actions.n} if isinstance(actions, Discrete) else {"low": actions.low, "high": actions.high},
        "cells": agent.spaces.one_hot,
        "activations": network.activations,
        "head": network.head,
    }
    tensors: dict[str, torch.Tensor] = {}
    for i, layer in enumerate(network.layers):
        # The tensors of a layer are weight, bias and, only in some layers, weight and bias of a gate.
        for name, tensor in zip(PARTS, layer, strict=False):  # such as "layers.{}.weight"
            tensors[name.format(i)] = tensor
    if network.moments is not None:
        tensors["mean"], tensors["scale"] = network.moments
    if network.command:
        header["command"] = list(network.command)
        tensors["command"] = torch.stack(list(network.command.values()), 1)  # [7, commands], rows as `COMMAND_ROWS`
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, {name: tensor.cpu().numpy() for name, tensor in tensors.items()}, header)
    except (ValueError, ModuleNotFoundError, OSError) as error:
        # The message of an OSError would name the temporary file. `one_line` returns None for a ValueError.
        reason = getattr(error, "strerror", None) or one_line(error) or error
        raise SettingError(f"export is {str(path)!r}, which cannot be written: {reason}", "export") from error
    return path
