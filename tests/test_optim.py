"""Adam and gradient clipping against torch, and independence of members."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from models.optim import Adam, LockstepAdam, MemberAdam, clip_gradients
from rounding import assert_near

RATES, EPS = [1e-2, 3e-2, 1e-3], 1e-6
STARTS = [0, 7, 29]  # the first update of members that start at different times


def gradients(steps: int, *shape: int) -> list[Tensor]:
    """Of very different sizes, with some exact zeros."""
    g = torch.Generator().manual_seed(0)
    grads = [torch.randn(shape, generator=g) * 10.0 ** (step % 5 - 3) for step in range(steps)]
    return [grad * (torch.rand(shape, generator=g) > 0.1) for grad in grads]


def make_optimizer(kind: type, start: Tensor, rates: list[float] | float = 1e-2) -> Any:
    """An optimizer of one parameter ``start [M, D]``; only `MemberAdam` takes a list of rates."""
    if kind is Adam:
        return Adam([start.clone().requires_grad_()], rates if isinstance(rates, float) else 1e-2)
    return MemberAdam(start.clone(), torch.tensor(rates).expand(len(start)))


def state(optimizer: Any) -> list[Tensor]:
    """The parameter and its moments, all ``[M, D]``."""
    if isinstance(optimizer, torch.optim.Optimizer):
        (param,) = optimizer.param_groups[0]["params"]
        return [param, *optimizer.state[param].values()]
    return [optimizer.param, optimizer.mean, optimizer.square]


def descend(optimizer: Any, grads: list[Tensor]) -> Tensor:
    """Updates by all ``grads``; the parameter."""
    for grad in grads:
        if isinstance(optimizer, torch.optim.Optimizer):
            state(optimizer)[0].grad = grad.clone()
            optimizer.step()
        else:
            optimizer.update(grad)
    return state(optimizer)[0].detach()


def torch_adam(start: Tensor, lr: float, eps: float = 1e-8) -> torch.optim.Adam:
    return torch.optim.Adam([start.clone().requires_grad_()], lr, eps=eps)


@pytest.mark.parametrize(("kind", "rates"), [(Adam, 1e-2), (MemberAdam, 1e-2), (MemberAdam, RATES)])
def test_adam_equals_torch(kind: type, rates: list[float] | float) -> None:
    start, grads = torch.randn(3, 37), gradients(50, 3, 37)
    weights = descend(make_optimizer(kind, start, rates), grads)
    for m, rate in enumerate(rates if isinstance(rates, list) else [rates] * 3):
        expected = descend(torch_adam(start[m], rate), [grad[m] for grad in grads])
        assert (start[m] - weights[m]).abs().max() > 0.01
        assert_near(weights[m], expected)


@pytest.mark.parametrize("rates", [[1e-2] * 3, RATES])
def test_lockstep_adam_equals_torch_and_the_member_alone(rates: list[float]) -> None:
    """Equals torch with the rate of each member, and bit for bit the member alone or resumed."""
    start, grads = torch.randn(3, 192), gradients(50, 3, 192)
    optimizer = LockstepAdam(start.clone(), rates, EPS)
    alone, resumed = (LockstepAdam(start[2:].clone(), rates[2:], EPS) for _ in range(2))
    for grad in grads[:30]:
        optimizer.update(grad)
        alone.update(grad[2:])
    resumed.param.copy_(alone.param)
    resumed.load_state_dict(copy.deepcopy(alone.state_dict()))
    for grad in grads[30:]:
        optimizer.update(grad)
        alone.update(grad[2:])
        resumed.update(grad[2:])
    assert torch.equal(optimizer.param[2:], alone.param) and torch.equal(alone.param, resumed.param)
    for m, rate in enumerate(rates):
        expected = descend(torch_adam(start[m], rate, EPS), [grad[m] for grad in grads])
        assert_near(optimizer.param[m], expected)
    previous_param = optimizer.param.clone()
    optimizer.update(grads[0], lr_factor=0.0)
    assert torch.equal(optimizer.param, previous_param)
    with pytest.raises(ValueError, match="63 numbers a member are no multiple of 64"):
        LockstepAdam(torch.zeros(1, 63), [0.1])


@pytest.mark.parametrize("huge", [1e6, float("inf"), float("nan")])
def test_clipping_is_per_member(huge: float) -> None:
    params = [torch.zeros(3, size, requires_grad=True) for size in (6, 3)]
    for param in params:
        param.grad = torch.full(param.shape, 0.1)
        param.grad[1] = huge
    norm, grads = clip_gradients(params, 1.0), torch.cat([param.grad for param in params], 1)  # type: ignore[misc]
    assert torch.equal(grads[[0, 2]], torch.full((2, 9), 0.1))
    assert norm[0] == pytest.approx(0.1 * 9**0.5)
    if huge == 1e6:
        assert grads[1].norm() == pytest.approx(1.0, rel=1e-4)


def test_member_with_a_later_start_equals_the_member_alone() -> None:
    """Each equals the member alone bit for bit, although gradients are NaN before its start."""
    start, grads = torch.randn(3, 37), gradients(60, 3, 37)
    optimizer = make_optimizer(MemberAdam, start, RATES)
    for step, grad in enumerate(grads):
        learning = torch.tensor([step >= begin for begin in STARTS])
        optimizer.update(torch.where(learning[:, None], grad, torch.nan), None if learning.all() else learning)
    assert optimizer.count.tolist() == [60, 53, 31]
    for m, begin in enumerate(STARTS):
        alone = make_optimizer(MemberAdam, start[m : m + 1], RATES[m])
        assert torch.equal(descend(alone, [grad[m : m + 1] for grad in grads[begin:]])[0], optimizer.param[m])


def test_bias_correction_beyond_first_table() -> None:
    """Tables of bias corrections grow with the number of updates."""
    grads = [torch.full((1, 1), 1.0 if step % 3 else -1.5) for step in range(2500)]
    weight = descend(make_optimizer(MemberAdam, torch.zeros(1, 1), 1e-3), grads)
    expected = descend(torch_adam(torch.zeros(1, 1).double(), 1e-3), [grad.double() for grad in grads])
    assert weight.item() == pytest.approx(expected.item(), rel=1e-4)
