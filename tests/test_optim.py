"""Adam and clipping against torch's own, and each member by itself."""

from typing import Any

import pytest
import torch
from torch import Tensor

from models.optim import Adam, AdamW, LockstepAdam, MemberAdam, clip_gradients
from rounding import FUNCTION, assert_near, gamma

KINDS: list[Any] = [Adam, MemberAdam, AdamW]
RATES, BETAS, EPS, DECAY = [1e-2, 3e-2, 1e-3], (0.8, 0.99), 1e-6, 1e-3
BEGINS = [0, 7, 29]  # the first update of members that start at different times


def gradients(steps: int, *shape: int) -> list[Tensor]:
    """Of very different sizes, as in training, and exactly zero here and there."""
    g = torch.Generator().manual_seed(0)
    grads = [torch.randn(shape, generator=g) * 10.0 ** (step % 5 - 3) for step in range(steps)]
    return [grad * (torch.rand(shape, generator=g) > 0.1) for grad in grads]


def make_optimizer(kind: type, start: Tensor, rates: list[float] | float = 1e-2) -> Any:
    """An optimiser of one parameter, which begins as ``start [M, D]``; a list of rates is for `MemberAdam` alone."""
    if kind is Adam:
        return Adam([start.clone().requires_grad_()], rates if isinstance(rates, float) else 1e-2, BETAS, EPS)
    if kind is MemberAdam:
        return MemberAdam(start.clone(), torch.tensor(rates).expand(len(start)), BETAS, EPS)
    return AdamW([start.clone()], 1e-2, BETAS, EPS, DECAY)


def state(optimizer: Any) -> list[Tensor]:
    """The parameter and its moments, all ``[M, D]``."""
    if isinstance(optimizer, torch.optim.Optimizer):
        (param,) = optimizer.param_groups[0]["params"]
        return [param, *optimizer.state[param].values()]
    if isinstance(optimizer, MemberAdam):
        return [optimizer.param, optimizer.mean, optimizer.square]
    return [*optimizer.params, *optimizer.means, *optimizer.squares]


def descend(optimizer: Any, grads: list[Tensor]) -> Tensor:
    """Updates by all ``grads``; the parameter."""
    for grad in grads:
        if isinstance(optimizer, torch.optim.Optimizer):
            state(optimizer)[0].grad = grad.clone()
            optimizer.step()
        else:
            optimizer.update(grad if isinstance(optimizer, MemberAdam) else [grad.clone()])
    return state(optimizer)[0].detach()


def weight_error(updates: int, start: Tensor, rate: float) -> Tensor:
    """Error bound of weights after some updates of Adam, each of which moves them by about ``rate``. Each
    rounds the weight once, and its step some `FUNCTION` times more."""
    return gamma(updates) * (start.abs() + updates * rate) + updates * rate * gamma(updates + 2 * FUNCTION)


def torchs(start: Tensor, lr: float) -> torch.optim.Adam:
    return torch.optim.Adam([start.clone().requires_grad_()], lr, betas=BETAS, eps=EPS)


@pytest.mark.parametrize(("kind", "rates"), [(Adam, 1e-2), (MemberAdam, 1e-2), (MemberAdam, RATES)])
def test_adam_equals_torchs(kind: type, rates: list[float] | float) -> None:
    start, grads = torch.randn(3, 37), gradients(50, 3, 37)
    weights = descend(make_optimizer(kind, start, rates), grads)
    for m, rate in enumerate(rates if isinstance(rates, list) else [rates] * 3):
        expected = descend(torchs(start[m], rate), [grad[m] for grad in grads])
        assert (start[m] - weights[m]).abs().max() > 0.01
        assert_near(weights[m], expected, weight_error(50, start[m], rate))


# Those with decay fill whole vector blocks, as the rows of networks that use it do.
@pytest.mark.parametrize(("kind", "size"), [(Adam, 37), (MemberAdam, 37), *((AdamW, size) for size in (64, 192, 8256))])
def test_a_member_alone_is_itself_in_company_to_the_bit(kind: type, size: int) -> None:
    """Weights and moments."""
    start, grads, rates = torch.randn(5, size), gradients(30, 5, size), [1e-1, 1e-2, 0.0, 1e-3, 1e-3]
    company = make_optimizer(kind, start, rates)
    descend(company, grads)
    for members in ([0], [1], [4], [1, 2, 4]):
        alone = make_optimizer(kind, start[members], [rates[m] for m in members])
        descend(alone, [grad[members] for grad in grads])
        for actual, all_ in zip(state(alone), state(company), strict=True):
            assert torch.equal(actual, all_[members])
    assert (kind is MemberAdam) == torch.equal(state(company)[0][2], start[2])  # whose rate is 0


@pytest.mark.parametrize("kind", KINDS)
def test_goes_on_from_its_state(kind: type) -> None:
    start, grads = torch.randn(3, 5), gradients(20, 3, 5)
    half = make_optimizer(kind, start)
    resumed = make_optimizer(kind, descend(half, grads[:12]))
    resumed.load_state_dict(half.state_dict())
    assert torch.equal(descend(resumed, grads[12:]), descend(make_optimizer(kind, start), grads))


@pytest.mark.parametrize("rates", [[1e-2] * 3, RATES])
def test_members_in_lockstep_equal_torchs_adam_each_with_its_rate(rates: list[float]) -> None:
    """And are themselves alone, after leaving the others and after a break, to the bit."""
    start, grads = torch.randn(3, 192), gradients(50, 3, 192)
    optimizer = LockstepAdam(start.clone(), rates, BETAS, EPS)
    for grad in grads[:30]:
        optimizer.update(grad)
    last = torch.tensor([2])
    alone, stopped, resumed = (LockstepAdam(start[2:].clone(), rates[2:], BETAS, EPS) for _ in range(3))
    for grad in grads[:30]:
        alone.update(grad[2:])
        stopped.update(grad[2:])
    resumed.param.copy_(stopped.param)
    resumed.load_state_dict({name: value.clone() if name != "count" else value
                             for name, value in stopped.state_dict().items()})  # fmt: skip
    for grad in grads[30:]:
        optimizer.update(grad)
        for single in (alone, resumed):
            single.update(grad[2:])
    assert torch.equal(optimizer.param[2:], alone.param) and torch.equal(alone.param, resumed.param)
    for m, rate in enumerate(rates):
        expected = descend(torchs(start[m], rate), [grad[m] for grad in grads])
        assert_near(optimizer.param[m], expected, weight_error(50, start[m], rate))
    optimizer.select(optimizer.param[last], last)
    optimizer.update(grads[0][2:])
    alone.update(grads[0][2:])
    assert torch.equal(optimizer.param, alone.param)
    previous_param = optimizer.param.clone()
    optimizer.update(grads[1][2:], lr_factor=0.0)
    assert torch.equal(optimizer.param, previous_param)
    with pytest.raises(ValueError, match="63 numbers a member are no multiple of 64"):
        LockstepAdam(torch.zeros(1, 63), [0.1])


def test_a_parameter_without_gradient_is_left() -> None:
    used, unused = torch.ones(1, 2, requires_grad=True), torch.ones(1, 2, requires_grad=True)
    used.grad = torch.ones(1, 2)
    Adam([used, unused], 1.0).step()
    assert used.max() < 0.5 and torch.equal(unused.detach(), torch.ones(1, 2))


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_clipping_equals_torch_for_one_member(size: float) -> None:
    params = [torch.zeros(1, 7, requires_grad=True), torch.zeros(1, 4, 3, requires_grad=True)]
    torch_params = [param.clone().detach().requires_grad_() for param in params]
    for clipped_param, other in zip(params, torch_params, strict=True):
        clipped_param.grad = size * torch.randn(clipped_param.shape)
        other.grad = clipped_param.grad.clone()
    norm, expected = clip_gradients(params, 0.5), torch.nn.utils.clip_grad_norm_(torch_params, 0.5)
    torch.testing.assert_close(norm[0], expected)
    for clipped_param, other in zip(params, torch_params, strict=True):
        torch.testing.assert_close(clipped_param.grad, other.grad)


@pytest.mark.parametrize("huge", [1e6, float("inf"), float("nan")])
def test_a_huge_member_leaves_the_others_alone(huge: float) -> None:
    param = torch.zeros(3, 6, requires_grad=True)
    param.grad = torch.full((3, 6), 0.1)
    param.grad[1] = huge
    norm = clip_gradients([param], 1.0)
    assert torch.equal(param.grad[[0, 2]], torch.full((2, 6), 0.1))
    assert norm[0] == pytest.approx(0.1 * 6**0.5)
    if huge == 1e6:
        assert param.grad[1].norm() == pytest.approx(1.0, rel=1e-4)


# -- members that start at different times ---------------------------------------------------------------------------


def staggered(start: Tensor, grads: list[Tensor]) -> MemberAdam:
    optimizer = make_optimizer(MemberAdam, start, RATES)
    for step, grad in enumerate(grads):
        learning = torch.tensor([step >= begin for begin in BEGINS])
        previous_state = [tensor.clone() for tensor in state(optimizer)]
        optimizer.update(torch.where(learning[:, None], grad, torch.nan), None if learning.all() else learning)
        for now, previous in zip(state(optimizer), previous_state, strict=True):
            assert torch.equal(now[~learning], previous[~learning])
    return optimizer


def test_staggered_members_are_each_alone_from_their_own_start() -> None:
    """To the bit, though their gradient was no number before; and so that of torch."""
    start, grads = torch.randn(3, 37), gradients(60, 3, 37)
    optimizer = staggered(start, grads)
    assert optimizer.count.tolist() == [60, 53, 31]
    for m, begin in enumerate(BEGINS):
        alone = make_optimizer(MemberAdam, start[m : m + 1], RATES[m])
        assert torch.equal(descend(alone, [grad[m : m + 1] for grad in grads[begin:]])[0], optimizer.param[m])


def test_a_staggered_optimizer_counts_past_its_tables() -> None:
    """Tables of bias corrections grow; the numbers at both sides of every growth are those of one that never grew."""
    grads = [torch.full((1, 1), 1.0 if step % 3 else -1.5) for step in range(2500)]
    weight = descend(make_optimizer(MemberAdam, torch.zeros(1, 1), 1e-3), grads)
    expected = descend(torchs(torch.zeros(1, 1).double(), 1e-3), [grad.double() for grad in grads])
    assert weight.item() == pytest.approx(expected.item(), rel=1e-4)


# -- decay that the step size does not scale -------------------------------------------------------------------------

PUBLISHED = {"lr": 2e-4, "betas": (0.9, 0.99), "eps": 1e-5, "decay": 1e-6}  # Young et al. 2023


@pytest.mark.parametrize("changes", [{}, {"lr": 3.125e-6}, {"lr": 1e-2, "decay": 1e-3}, {"decay": 0.0}], ids=str)
def test_decaying_equals_its_formula_and_torch_s_adamw(changes: dict[str, float]) -> None:
    """``x <- x - lr m / (sqrt(v) + eps) - decay x``; AdamW multiplies its decay by the step size."""
    start, grads = 0.1 * torch.randn(3, 37), gradients(50, 3, 37)
    settings: Any = PUBLISHED | changes
    weights = descend(AdamW([start.clone()], **settings), grads)
    x, mean, square = start.double(), torch.zeros(3, 37).double(), torch.zeros(3, 37).double()
    for count, grad in enumerate(grads, 1):
        mean, square = 0.9 * mean + 0.1 * grad, 0.99 * square + 0.01 * grad**2
        corrected = (square / (1 - 0.99**count)).sqrt() + settings["eps"]
        x = x - settings["lr"] * mean / (1 - 0.9**count) / corrected - settings["decay"] * x
    error = weight_error(50, start, settings["lr"])
    assert_near(weights, x, error)
    adamw_settings = {"lr": settings["lr"], "betas": settings["betas"], "eps": settings["eps"]}
    torch_optimizer = torch.optim.AdamW(
        [start.clone().requires_grad_()], **adamw_settings, weight_decay=settings["decay"] / settings["lr"]
    )
    assert_near(weights, descend(torch_optimizer, grads), error)


def test_decaying_updates_several_parameters_in_place_each_as_if_alone() -> None:
    """So that views of them stay valid; and not the gradients."""
    starts, grads = [torch.randn(2, 5), torch.randn(2, 3)], [gradients(20, 2, size) for size in (5, 3)]
    params, grad_copies = (
        [start.clone() for start in starts],
        [[grad.clone() for grad in param_grads] for param_grads in grads],
    )
    optimizer = AdamW(params, 1e-2, BETAS, EPS, DECAY)
    for step in range(20):
        optimizer.update([param_grads[step] for param_grads in grad_copies])
    for i in range(2):
        assert torch.equal(params[i], descend(make_optimizer(AdamW, starts[i]), grads[i]))
        assert all(torch.equal(now, original) for now, original in zip(grad_copies[i], grads[i], strict=True))
