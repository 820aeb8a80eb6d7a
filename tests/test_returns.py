"""Returns against hand-computed tables and their limits."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from models.trajectory import discounted_returns, lambda_returns

REWARD = torch.tensor([[1.0, 5.0], [2.0, 7.0], [4.0, 100.0]])  # [T, E]; the second episode has two steps
VALID = torch.tensor([[True, True], [True, True], [True, False]])


def ragged(seed: int, steps: int = 6, episodes: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards, next values and validity of episodes of 1 to ``steps`` steps."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, steps + 1, (episodes,), generator=g)
    valid = torch.arange(steps).unsqueeze(1) < lengths
    return torch.randn(steps, episodes, generator=g), torch.randn(steps, episodes, generator=g), valid


def test_discounted_returns_by_hand() -> None:
    table = torch.tensor([[1 + 0.5 * (2 + 0.5 * 4), 5 + 0.5 * 7], [2 + 0.5 * 4, 7.0], [4.0, 0.0]])
    assert torch.equal(discounted_returns(REWARD, VALID, 0.5), table)


def test_bootstrap_by_hand() -> None:
    out = discounted_returns(REWARD, VALID, 0.5, bootstrap=torch.tensor([16.0, 8.0]))
    table = torch.tensor([[1 + 0.5 * (2 + 0.5 * (4 + 8)), 5 + 0.5 * (7 + 4)], [2 + 0.5 * 12, 7 + 4.0], [12.0, 0.0]])
    assert torch.equal(out, table)


def test_discount_per_member() -> None:
    reward, valid = REWARD.unsqueeze(1).repeat(1, 2, 1), VALID.unsqueeze(1).repeat(1, 2, 1)
    out = discounted_returns(reward, valid, torch.tensor([[0.5], [1.0]]))
    assert torch.equal(out[:, 0], discounted_returns(REWARD, VALID, 0.5))
    assert torch.equal(out[:, 1], discounted_returns(REWARD, VALID, 1.0))


def test_lambda_returns_by_hand() -> None:
    next_value = torch.tensor([[10.0, 20.0], [30.0, 6.0], [0.0, 99.0]])  # first episode terminated, second truncated
    # discount 0.5, lambda 0.25: G_t = r_t + 0.5 (0.75 V_{t+1} + 0.25 G_{t+1})
    last, cut = 4.0, 7 + 0.5 * 6
    middle = 2 + 0.5 * (0.75 * 30 + 0.25 * last)
    table = torch.tensor(
        [[1 + 0.5 * (0.75 * 10 + 0.25 * middle), 5 + 0.5 * (0.75 * 20 + 0.25 * cut)], [middle, cut], [last, 0.0]]
    )
    torch.testing.assert_close(lambda_returns(REWARD, next_value, VALID, 0.5, 0.25), table)


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_lambda_one_equals_bootstrapped_return(seed: int, discount: float) -> None:
    reward, next_value, valid = ragged(seed)
    bootstrap = next_value.gather(0, valid.sum(0, keepdim=True) - 1)[0]
    expected = discounted_returns(reward, valid, discount, bootstrap=bootstrap)
    torch.testing.assert_close(lambda_returns(reward, next_value, valid, discount, 1.0), expected)


def test_padding_is_ignored() -> None:
    reward, next_value, valid = ragged(4)
    padding = torch.full((3, reward.shape[1]), float("nan"))
    longer = torch.cat([reward, padding]), torch.cat([next_value, padding]), torch.cat([valid, padding > 0])
    padded = lambda_returns(longer[0], longer[1], longer[2], 0.9, 0.95)
    assert torch.equal(padded[:6], lambda_returns(reward, next_value, valid, 0.9, 0.95))
    assert torch.equal(discounted_returns(longer[0], longer[2], 0.9)[:6], discounted_returns(reward, valid, 0.9))
