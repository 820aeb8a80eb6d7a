"""Recorded episodes as datasets of Minari (https://minari.farama.org): read for training, written by evaluations."""

import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector.utils import batch_space, iterate
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from envs.gymnasium_adapter import equals_spaces, gymnasium_spaces
from envs.names import Game, first_line
from models.settings import SettingError
from models.spaces import Discrete, Spaces
from models.trajectory import Trajectory

PREFIX = "minari:"
_CHUNK = 64  # episodes read at a time


class Recording:
    """Reads a Minari dataset of episodes. ``source`` is a folder or ``minari:ID``, which is downloaded if it is not on
    this machine. Raises SettingError if there is no such dataset, or if it does not fit the ``spaces`` of ``game``."""

    def __init__(self, source: str, game: str, spaces: Spaces):
        import minari  # slow to import

        self.source, self.spaces = source, spaces
        name = source.removeprefix(PREFIX)
        try:
            if source.startswith(PREFIX):
                if not re.search(r"-v\d+$", name):
                    raise ValueError("the ID has no version, such as -v0")
                self.dataset: Any = minari.load_dataset(name, download=True)  # downloads a missing dataset
            else:
                folder = Path(source).expanduser()
                self.dataset = minari.MinariDataset(folder / "data" if (folder / "data").is_dir() else folder)
        except Exception as error:  # files of others, and the network, can raise anything
            problem = f"which cannot be read: {first_line(error)}"
            raise self._error(problem, "minari:ID, or the folder of a dataset of Minari") from error
        obs_space, action_space = self.dataset.observation_space, self.dataset.action_space
        if spaces.is_image:
            raise self._error(f"but {game} shows images", "an environment that shows vectors")
        if not self.dataset.total_episodes:
            raise self._error("which has no episodes", "one or more episodes")
        if not equals_spaces(obs_space, action_space, spaces):
            problem = f"which has observations of {gym.spaces.flatdim(obs_space)} numbers and {action_space}"
            raise self._error(problem, f"{spaces.obs_shape[0]} numbers and {spaces.actions}, as {game} has")

    def _error(self, problem: str, allowed: str) -> SettingError:
        """Return the error "dataset is SOURCE, ``problem``; allowed: ``allowed``"."""
        return SettingError(f"dataset is {self.source!r}, {problem}; allowed: {allowed}", "dataset")

    def trajectories(self, members: int) -> Iterator[Trajectory]:
        """Yield all episodes, `_CHUNK` at a time. All M = ``members`` members get the same episodes. Raises
        SettingError for a damaged episode."""
        indices = list(range(self.dataset.total_episodes))
        for start in range(0, len(indices), _CHUNK):
            try:
                chunk = list(self.dataset.iterate_episodes(indices[start : start + _CHUNK]))
            except Exception as error:  # a damaged file can raise anything
                raise self._error(f"which cannot be read: {first_line(error)}", "a complete dataset") from error
            yield self._trajectory(chunk, members)

    def _trajectory(self, episodes: Sequence[Any], members: int) -> Trajectory:
        """Convert E episodes of Minari to a trajectory ``[T, M, E, ...]``, padded with zeros to the length T of the
        longest episode. All M = ``members`` members get the same numbers. An episode that was cut off in the recording
        counts as truncated."""
        steps = [self._steps(episode) for episode in episodes]  # observations, actions and rewards of each episode
        terminated = torch.tensor([bool(episode.terminations[-1]) for episode in episodes])  # [E]
        truncated = torch.tensor([bool(episode.truncations[-1]) for episode in episodes]) | ~terminated
        lengths = torch.tensor([len(rewards) for _, _, rewards in steps])
        time = torch.arange(int(lengths.max())).unsqueeze(1)  # [T, 1]
        is_last = time == lengths - 1  # [T, E]
        reward = pad_sequence([rewards for _, _, rewards in steps])  # [T, E]

        def for_members(tensor: Tensor) -> Tensor:
            """Insert the member axis: ``[T, E, ...]`` becomes ``[T, M, E, ...]``."""
            return tensor.unsqueeze(1).expand(-1, members, *tensor.shape[1:])

        return Trajectory(
            obs=for_members(pad_sequence([obs[:-1] for obs, _, _ in steps])),
            action=for_members(pad_sequence([actions for _, actions, _ in steps]).to(self.spaces.action_dtype)),
            reward=for_members(reward),
            terminated=for_members(is_last & terminated),
            truncated=for_members(is_last & truncated),
            valid=for_members(time < lengths),
            final_obs=torch.stack([obs[-1] for obs, _, _ in steps]).expand(members, -1, -1),
            returns=reward.sum(0).expand(members, -1),
        )

    def _steps(self, episode: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Convert an episode of Minari to observations ``[T + 1, O]``, actions ``[T]`` or ``[T, A]`` and rewards
        ``[T]``. Raises SettingError if they do not fit the spaces of the environment."""
        obs_shape, space = self.spaces.obs_shape, self.spaces.actions
        try:
            # Observations may be dictionaries, for example; each becomes a vector.
            obs_space = self.dataset.observation_space
            observations = iterate(batch_space(obs_space, len(episode) + 1), episode.observations)
            vectors: list[Any] = [gym.spaces.flatten(obs_space, observation) for observation in observations]
            obs = torch.from_numpy(np.stack(vectors).astype(np.float32))
            recorded = np.asarray(episode.actions)
            if isinstance(space, Discrete):  # agents count actions from 0, the dataset from its ``start``
                actions = torch.as_tensor(recorded.reshape(-1).astype(np.int64) - int(self.dataset.action_space.start))
            else:
                actions = torch.as_tensor(recorded.reshape(len(recorded), -1).astype(np.float32))
            rewards = torch.from_numpy(np.asarray(episode.rewards)).float()
            length = len(rewards)
            has_one_length = obs.shape == (length + 1, *obs_shape) and len(actions) == length
            problem = ""
            if length == 0 or rewards.ndim != 1 or not has_one_length:
                problem = f"observations {list(obs.shape)}, {len(actions)} actions and rewards {list(rewards.shape)}"
            elif not all(tensor.isfinite().all() for tensor in (obs, actions, rewards.sum())):
                problem = "numbers, or a sum of rewards, that are not finite"
            elif isinstance(space, Discrete) and not ((actions >= 0) & (actions < space.n)).all():
                problem = "other actions"
            if problem:
                raise ValueError(problem)
        except Exception as error:  # values that do not fit the dataset's spaces may raise anything
            problem = f"whose episode {episode.id} cannot be read: {first_line(error)}"
            allowed = f"observations [T + 1, {obs_shape[0]}], T finite rewards, and T actions of {space}"
            raise self._error(problem, allowed) from error
        return obs, actions, rewards


def check_new(name: str) -> None:
    """Raise SettingError if no new dataset can be written with the id ``name``, such as "lander/ppo-v0". Raises
    ModuleNotFoundError if Minari is not installed."""
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.storage.datasets_root_dir import get_dataset_path

    rules = "an id such as lander/ppo-v0: letters, digits, _ and -, two or more before the /, and a version"
    try:
        parse_dataset_id(name)  # raises ValueError for a malformed id
        path = get_dataset_path(name)
        # The id lander/ppo-v0 is a folder in the folder lander. Neither may be a dataset already, because a dataset
        # cannot contain another dataset.
        exists = any((folder / "data").exists() for folder in (path, *path.parents[: name.count("/")]))
    except (TypeError, ValueError, OSError) as error:
        line = f"save_dataset is {name!r}, which cannot be written; allowed: {rules}"
        raise SettingError(line, "save_dataset") from error
    if exists:
        line = f"save_dataset is {name!r}, which exists or is inside another dataset; allowed: a new id"
        raise SettingError(line, "save_dataset")


def save(name: str, trajectories: Sequence[Trajectory], spaces: Spaces, game: Game, algorithm: str) -> Path:
    """Write all episodes of all members as the new dataset ``name``, and return its folder. The dataset names the
    ``algorithm`` that played. It also names the environment, if its Gymnasium id is enough to make it, without options
    or wrappers."""
    import minari

    obs_space, action_space = gymnasium_spaces(spaces)
    # An id such as module:Env-v0 cannot be made without an import of the module.
    has_plain_id = bool(game.gym_id) and ":" not in game.gym_id
    is_described_by_id = has_plain_id and not game.kwargs and not game.wrappers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about omitted fields, such as an author
        dataset = minari.create_dataset_from_buffers(
            name,
            _episode_buffers(trajectories, spaces.one_hot),
            env=gym.spec(game.gym_id) if is_described_by_id else None,
            observation_space=obs_space,
            action_space=action_space,
            algorithm_name=algorithm,
            description=f"{game.name}, recorded by Understudy",
        )
    return Path(dataset.storage.data_path).parent


def _episode_buffers(trajectories: Sequence[Trajectory], one_hot: bool) -> list[Any]:
    """Return an `EpisodeBuffer` of Minari for each episode of each member in ``trajectories``. If observations are
    ``one_hot``, the index of the 1 is written instead."""
    from minari.data_collector import EpisodeBuffer

    buffers: list[EpisodeBuffer] = []
    for trajectory in trajectories:
        for m, e in np.ndindex(*trajectory.lengths.shape):
            length = int(trajectory.lengths[m, e])
            steps = (slice(length), m, e)  # index of the episode's steps in tensors [T, M, E, ...]
            obs = torch.cat([trajectory.obs[steps], trajectory.final_obs[m, e].unsqueeze(0)])
            buffers.append(
                EpisodeBuffer(
                    id=len(buffers),
                    observations=(obs.argmax(1) if one_hot else obs).numpy(),
                    actions=trajectory.action[steps].numpy(),
                    rewards=trajectory.reward[steps].tolist(),
                    terminations=trajectory.terminated[steps].tolist(),
                    truncations=trajectory.truncated[steps].tolist(),
                )
            )
    return buffers
