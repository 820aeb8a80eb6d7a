"""What every tensor program that ``--gamename`` takes must keep to (`envs.tensor.Dynamics`). It gets this test by being
there."""

import pytest
import torch

from envs.make import make_dynamics
from envs.names import GAMES
from models.contract import RandomPolicy
from models.streams import Streams


@pytest.mark.parametrize("name", [name for name, game in GAMES.items() if game.dynamics])
def test_a_tensor_program_keeps_to_the_protocol(name: str) -> None:
    """Starts are functions of their seeds, steps write into nothing, a member steps alone as in company, and all has
    the shapes and dtypes of the spaces."""
    dynamics = make_dynamics(name)
    assert dynamics is not None
    spaces, seeds = dynamics.spaces, torch.arange(24).view(4, 3, 2) * 7919
    block = dynamics.initial(seeds)
    assert all(torch.equal(dynamics.initial(single), state) for single, state in zip(seeds, block, strict=True))
    assert torch.equal(dynamics.initial(seeds[1:2, 2:3, 1:2]), block[1:2, 2:3, 1:2])
    state, policy = block[0], RandomPolicy(spaces, 2, Streams([1, 2, 3]))
    for _ in range(30):
        obs, old_state = dynamics.observe(state), state.clone()
        action = policy.act(obs)
        next_state, reward, terminated, discount = dynamics.step(state, action)
        assert torch.equal(state, old_state) and next_state.shape == state.shape and next_state.dtype == state.dtype
        assert obs.shape == (3, 2, *spaces.obs_shape) and obs.dtype == spaces.obs_dtype
        assert reward.dtype == torch.float32 and reward.isfinite().all() and terminated.dtype == torch.bool
        assert reward.shape == terminated.shape == (3, 2) and (discount is None or discount.shape == (3, 2))
        alone = dynamics.step(state[1:2], action[1:2])
        joint_step = (next_state, reward, terminated)
        assert all(
            torch.equal(single, joint_value[1:2]) for single, joint_value in zip(alone, joint_step, strict=False)
        )
        state = torch.where(terminated[..., None], block[1], next_state)
