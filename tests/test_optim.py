"""Adam and clipping against torch's own, and each member by itself."""

import pytest
import torch
from torch import Tensor

from models.optim import Adam, AdamW, MemberAdam, clip_gradients


def gradients(steps: int, *shape: int) -> list[Tensor]:
    """Of very different sizes, as in training, and exactly zero here and there."""
    g = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=g) * 10.0 ** (step % 5 - 3) for step in range(steps)]
    return [grad * (torch.rand(shape, generator=g) > 0.1) for grad in drawn]


def descend(optimizer: torch.optim.Optimizer, param: Tensor, grads: list[Tensor]) -> Tensor:
    for grad in grads:
        param.grad = grad.clone()
        optimizer.step()
    return param.detach()


def test_equals_torch() -> None:
    start, grads = torch.randn(3, 37), gradients(50, 3, 37)
    ours, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    descend(Adam([ours], 1e-2, betas=(0.8, 0.99), eps=1e-6), ours, grads)
    descend(torch.optim.Adam([theirs], 1e-2, betas=(0.8, 0.99), eps=1e-6), theirs, grads)
    assert (start - ours).abs().max() > 0.1
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


def test_a_step_size_per_member_is_each_alone_with_its_own() -> None:
    rates, start, grads = [1e-1, 1e-3, 0.0], torch.randn(3, 37), gradients(20, 3, 37)
    together = start.clone().requires_grad_()
    descend(Adam([together], torch.tensor(rates)), together, grads)
    for m, rate in enumerate(rates):
        alone = start[m : m + 1].clone().requires_grad_()
        descend(Adam([alone], torch.tensor([rate])), alone, [grad[m : m + 1] for grad in grads])
        assert torch.equal(together[m], alone[0])
    assert torch.equal(together[2], start[2]) and not torch.equal(together[1], start[1])


def test_a_number_is_the_same_for_all() -> None:
    start, grads = torch.randn(5, 33), gradients(20, 5, 33)
    together = start.clone().requires_grad_()
    descend(Adam([together], 1e-2), together, grads)
    for m in range(5):
        alone = start[m : m + 1].clone().requires_grad_()
        descend(Adam([alone], 1e-2), alone, [grad[m : m + 1] for grad in grads])
        assert torch.equal(together[m], alone[0])


def test_a_parameter_without_gradient_is_left() -> None:
    used, unused = torch.ones(1, 2, requires_grad=True), torch.ones(1, 2, requires_grad=True)
    used.grad = torch.ones(1, 2)
    Adam([used, unused], 1.0).step()
    assert used.max() < 0.5 and torch.equal(unused.detach(), torch.ones(1, 2))


def test_goes_on_from_its_state() -> None:
    start, grads = torch.randn(2, 5), gradients(10, 2, 5)
    whole = start.clone().requires_grad_()
    descend(Adam([whole], 1e-2), whole, grads)
    half = start.clone().requires_grad_()
    first = Adam([half], 1e-2)
    descend(first, half, grads[:5])
    second = Adam([half], 0.5)
    second.load_state_dict(first.state_dict())
    descend(second, half, grads[5:])
    assert torch.equal(whole, half)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_clipping_equals_torch_for_one_member(size: float) -> None:
    ours = [torch.zeros(1, 7, requires_grad=True), torch.zeros(1, 4, 3, requires_grad=True)]
    theirs = [param.clone().detach().requires_grad_() for param in ours]
    for mine, other in zip(ours, theirs, strict=True):
        mine.grad = size * torch.randn(mine.shape)
        other.grad = mine.grad.clone()
    norm, expected = clip_gradients(ours, 0.5), torch.nn.utils.clip_grad_norm_(theirs, 0.5)
    torch.testing.assert_close(norm[0], expected)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


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


BEGINS = [0, 7, 29]  # each member's first update


def staggered(start: Tensor, grads: list[Tensor], rates: list[float]) -> MemberAdam:
    optimizer = MemberAdam(start.clone(), torch.tensor(rates), betas=(0.8, 0.99), eps=1e-6)
    for step, grad in enumerate(grads):
        learning = torch.tensor([step >= begin for begin in BEGINS])
        before = [optimizer.param.clone(), optimizer.mean.clone(), optimizer.square.clone()]
        optimizer.update(grad, None if learning.all() else learning)
        for now, then in zip((optimizer.param, optimizer.mean, optimizer.square), before, strict=True):
            assert torch.equal(now[~learning], then[~learning])
    return optimizer


def test_staggered_members_equal_torch_from_their_own_start() -> None:
    start, grads, rates = torch.randn(3, 37), gradients(60, 3, 37), [1e-2, 3e-2, 1e-3]
    ours = staggered(start, grads, rates)
    assert ours.count.tolist() == [60, 53, 31]
    for m, begin in enumerate(BEGINS):
        theirs = start[m].clone().requires_grad_()
        descend(
            torch.optim.Adam([theirs], rates[m], betas=(0.8, 0.99), eps=1e-6), theirs, [g[m] for g in grads[begin:]]
        )
        assert (start[m] - ours.param[m]).abs().max() > 0.01
        torch.testing.assert_close(ours.param[m], theirs.detach(), rtol=0, atol=2e-6)


def test_a_staggered_member_alone_is_itself_in_company_to_the_bit() -> None:
    start, grads, rates = torch.randn(3, 37), gradients(40, 3, 37), [1e-2, 3e-2, 1e-3]
    company = staggered(start, grads, rates)
    for m, begin in enumerate(BEGINS):
        alone = MemberAdam(start[m : m + 1].clone(), torch.tensor([rates[m]]), betas=(0.8, 0.99), eps=1e-6)
        for grad in grads[begin:]:
            alone.update(grad[m : m + 1])
        assert torch.equal(alone.param[0], company.param[m])


def test_a_waiting_member_takes_no_harm_of_a_gradient_that_is_no_number() -> None:
    param = torch.ones(2, 3)
    optimizer = MemberAdam(param, torch.full((2,), 0.1))
    optimizer.update(torch.tensor([[torch.nan] * 3, [1.0] * 3]), torch.tensor([False, True]))
    assert torch.equal(param[0], torch.ones(3)) and not optimizer.mean[0].any()
    optimizer.update(torch.ones(2, 3))
    assert param[0].tolist() == pytest.approx([0.9] * 3, rel=1e-6)  # the first step of Adam is its step size


def test_a_staggered_optimizer_counts_past_its_tables() -> None:
    """Tables of bias corrections grow; the numbers at both sides of every growth are those of one that never grew."""
    ours, steps = MemberAdam(torch.zeros(1, 1), torch.tensor([1e-3])), 2500
    theirs = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([theirs], 1e-3)
    for step in range(steps):
        grad = 1.0 if step % 3 else -1.5
        ours.update(torch.full((1, 1), grad))
        theirs.grad = torch.full((1,), grad, dtype=torch.float64)
        adam.step()
    assert ours.count.item() == steps
    assert ours.param.item() == pytest.approx(theirs.item(), rel=1e-4)


def test_staggered_goes_on_from_its_state_and_keeps_members() -> None:
    start, grads, rates = torch.randn(3, 37), gradients(60, 3, 37), [1e-2, 3e-2, 1e-3]
    whole, half = staggered(start, grads, rates), staggered(start, grads[:40], rates)
    resumed = MemberAdam(half.param.clone(), torch.tensor(rates), betas=(0.8, 0.99), eps=1e-6)
    resumed.load_state_dict({name: value.clone() for name, value in half.state_dict().items()})
    for grad in grads[40:]:
        resumed.update(grad)
    assert torch.equal(resumed.param, whole.param)
    two = torch.tensor([2, 0])
    half.select(half.param[two], two)
    for grad in grads[40:]:
        half.update(grad[two])
    assert torch.equal(half.param, whole.param[two])


# -- decay that the step size does not scale -------------------------------------------------------------------------

PUBLISHED = {"lr": 2e-4, "betas": (0.9, 0.99), "eps": 1e-5, "decay": 1e-6}  # Young et al. 2023


def decaying(start: Tensor, grads: list[Tensor], **changes: object) -> AdamW:
    optimizer = AdamW([start.clone()], **(PUBLISHED | changes))  # type: ignore[arg-type]
    for grad in grads:
        optimizer.update([grad.clone()])
    return optimizer


@pytest.mark.parametrize("changes", [{}, {"lr": 3.125e-6}, {"lr": 1e-2, "decay": 1e-3}, {"decay": 0.0}], ids=str)
def test_decaying_equals_its_formula_and_torch_s_adamw(changes: dict[str, float]) -> None:
    """``x <- x - lr m / (sqrt(v) + eps) - decay x``; AdamW multiplies its decay by the step size."""
    start, grads = 0.1 * torch.randn(3, 37), gradients(50, 3, 37)
    given = PUBLISHED | changes
    ours = decaying(start, grads, **changes).params[0]
    x, mean, square = start.double(), torch.zeros(3, 37).double(), torch.zeros(3, 37).double()
    for count, grad in enumerate(grads, 1):
        mean, square = 0.9 * mean + 0.1 * grad, 0.99 * square + 0.01 * grad**2
        corrected = (square / (1 - 0.99**count)).sqrt() + given["eps"]
        x = x - given["lr"] * mean / (1 - 0.9**count) / corrected - given["decay"] * x
    torch.testing.assert_close(ours.double(), x, rtol=0, atol=1e-6)
    theirs = start.clone().requires_grad_()
    adamw = torch.optim.AdamW(
        [theirs], given["lr"], betas=(0.9, 0.99), eps=1e-5, weight_decay=given["decay"] / given["lr"]
    )
    descend(adamw, theirs, grads)
    torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-6)


def test_decay_is_the_same_share_whatever_the_step_size() -> None:
    """Without gradient nothing but the decay is left: 0.9 ** 3 of what there was."""
    for lr in (1e-6, 1.0):
        found = decaying(torch.full((2, 5), 8.0), [torch.zeros(2, 5)] * 3, lr=lr, decay=0.1).params[0]
        torch.testing.assert_close(found, torch.full((2, 5), 8 * 0.729))


@pytest.mark.parametrize("size", [64, 128, 192, 832, 8256])
def test_a_decaying_member_alone_is_itself_in_company_to_the_bit(size: int) -> None:
    """Weights and moments, for rows of whole vector blocks, as networks that use it have them."""
    start, grads = torch.randn(5, size), gradients(30, 5, size)
    company = decaying(start, grads, lr=1e-3)
    for members in ([0], [1], [4], [1, 2, 4]):
        alone = decaying(start[members], [grad[members] for grad in grads], lr=1e-3)
        for name in ("params", "means", "squares"):
            assert torch.equal(getattr(alone, name)[0], getattr(company, name)[0][members]), name


def test_decaying_updates_several_parameters_and_goes_on_from_its_state() -> None:
    """Each as if it were alone; they count together."""
    starts, grads = [torch.randn(2, 5), torch.randn(2, 3)], [gradients(20, 2, size) for size in (5, 3)]
    whole, half, resumed = (AdamW([start.clone() for start in starts], **PUBLISHED) for _ in range(3))
    for step in range(20):
        whole.update([grad[step] for grad in grads])
        if step < 12:
            half.update([grad[step] for grad in grads])
    resumed.load_state_dict(half.state_dict())
    for here, there in zip(resumed.params, half.params, strict=True):
        here.copy_(there)
    for step in range(12, 20):
        resumed.update([grad[step] for grad in grads])
    for i in range(2):
        assert torch.equal(whole.params[i], resumed.params[i])
        assert torch.equal(whole.params[i], decaying(starts[i], grads[i]).params[0])


def test_a_decaying_optimizer_changes_the_tensors_it_was_given() -> None:
    """In place, so that views of them stay valid; and not the gradients."""
    param, grad = torch.ones(2, 3), torch.full((2, 3), 0.5)
    view = param.view(-1)
    AdamW([param], 0.1, (0.9, 0.99), 1e-5, 0.0).update([grad])
    torch.testing.assert_close(
        view, torch.full((6,), 0.9), rtol=0, atol=1e-5
    )  # the first step of Adam is its step size
    assert torch.equal(grad, torch.full((2, 3), 0.5))
