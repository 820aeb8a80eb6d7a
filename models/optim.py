"""Adam and gradient clipping on parameters ``[M, D]``, separately for each of M members (independent agents)."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from models.layers import BLOCK
from models.state import Stateful, check_like

BETA1, BETA2 = 0.9, 0.999  # Adam's decay rates for the mean of gradients and of squared gradients


def _undecorated(method: Callable[..., Any]) -> Any:
    """Return a method of torch without its decorator, which would load torch's compiler and take over a second."""
    return getattr(method, "__wrapped__", method)


class LeanOptimizer(Optimizer):
    """`torch.optim.Optimizer` that does not load torch's compiler."""

    add_param_group = _undecorated(Optimizer.add_param_group)
    zero_grad = _undecorated(Optimizer.zero_grad)
    state_dict = _undecorated(Optimizer.state_dict)
    load_state_dict = _undecorated(Optimizer.load_state_dict)


class Adam(LeanOptimizer):
    """Adam (Kingma & Ba 2015, algorithm 1). Results equal `torch.optim.Adam` up to rounding. Bias corrections are
    computed as Python floats. As tensors, ``beta ** step`` would differ by an ulp between SIMD and scalar code, so a
    member alone would differ from the same member among others."""

    def __init__(self, params: Iterable[Tensor], lr: float, eps: float = 1e-8):
        super().__init__(params, {"lr": lr, "betas": (BETA1, BETA2), "eps": eps, "step_count": 0})
        self.lr_factor: Tensor | None = None  # [M], factor on each member's learning rate

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Make one step with the gradients ``param.grad``. Parameters without a gradient do not change."""
        for group in self.param_groups:
            group["step_count"] += 1
            correction1 = 1 - BETA1 ** group["step_count"]
            root_correction2 = (1 - BETA2 ** group["step_count"]) ** 0.5
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]  # an empty dictionary before the parameter's first step
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(param), torch.zeros_like(param)
                update = _update_moments(param.grad, state["mean"], state["square"], root_correction2, group["eps"])
                update.mul_(group["lr"] / correction1)
                if self.lr_factor is not None:
                    trailing_ones = [1] * (update.dim() - 1)
                    update.mul_(self.lr_factor.to(update).view(-1, *trailing_ones))
                param.sub_(update)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`. Raises StateError if its parameter groups or shapes do not fit."""
        check_like(self.state_dict()["param_groups"], state_dict["param_groups"], "param_groups")
        params = [param for group in self.param_groups for param in group["params"]]
        for index, moments in state_dict["state"].items():
            check_like({"mean": params[index], "square": params[index]}, moments, f"moments of parameter {index}")
        super().load_state_dict(state_dict)


def _update_moments(grad: Tensor, mean: Tensor, square: Tensor, root_correction2: float | Tensor, eps: float) -> Tensor:
    """Update Adam's moments ``mean`` and ``square`` in place by ``grad``. Return ``mean / (sqrt(square) /
    root_correction2 + eps)``, the step without the learning rate and the first bias correction. ``root_correction2`` is
    the square root of the second bias correction."""
    mean.mul_(BETA1).add_(grad * (1 - BETA1))
    square.mul_(BETA2).add_(grad.square().mul_(1 - BETA2))
    denominator = square.sqrt().div_(root_correction2).add_(eps)
    return mean / denominator


@functools.cache
def _corrections() -> tuple[Tensor, Tensor]:
    """Return two tables of Adam's bias corrections by step count, computed in float64: 1 / (1 - beta1**count), and the
    square root of 1 - beta2**count. Entry 0 has no effect. At the end, both are 1 in float32, as for larger counts."""
    counts = range(1, math.ceil(math.log(2e-8, BETA2)) + 1)  # 1 ± 2e-8 is 1 in float32
    factor1 = [1 / (1 - BETA1**count) for count in counts]
    root_correction2 = [(1 - BETA2**count) ** 0.5 for count in counts]
    return torch.tensor([1.0, *factor1]), torch.tensor([1.0, *root_correction2])


class FlatOptimizer(Stateful):
    """Base class of Adam for one parameter ``param [M, D]``, with learning rates ``lr`` of M members::

        optimizer.zero_grad()
        loss.sum().backward()  # the loss [M] of each member
        optimizer.step()

    ``param`` requires a gradient only between `zero_grad` and `step`, so other code may change its memory. The class is
    no `torch.optim.Optimizer`, whose hooks take a tenth of the time of a step at these sizes.
    """

    saved = ("mean", "square", "count")
    count: Any  # number of steps: one number for all members, or one for each member
    update: Callable[..., None]  # makes a step with a gradient [M, D]

    def __init__(self, param: Tensor, lr: Any, eps: float = 1e-8):
        self.param, self.lr, self.eps = param, lr, eps
        self.mean, self.square = torch.zeros_like(param), torch.zeros_like(param)  # Adam's moments

    def zero_grad(self) -> None:
        """Begin a step: remove the gradient of ``param``, and let autograd record its use."""
        self.param.requires_grad_(True)
        self.param.grad = None

    def take_gradient(self) -> Tensor:
        """End the record of autograd that `zero_grad` began. Return the gradient of ``param``, ``[M, D]``."""
        gradient, self.param.grad = self.param.grad, None
        self.param.requires_grad_(False)
        assert gradient is not None, "no loss depends on the parameter"
        return gradient

    def step(self, *arguments: Any) -> None:
        """Make one step with the gradient since `zero_grad`. ``arguments`` are further arguments of `update`."""
        self.update(self.take_gradient(), *arguments)


class MemberAdam(FlatOptimizer):
    """Adam for one parameter ``[M, D]`` of members that may start at different times. Each member has a learning rate
    (``lr [M]``) and a step count, and so a separate bias correction."""

    def __init__(self, param: Tensor, lr: Tensor):
        super().__init__(param, lr)
        self.count = torch.zeros(param.shape[0], dtype=torch.int64)

    @torch.no_grad()
    def update(self, grad: Tensor, mask: Tensor | None = None) -> None:
        """Make one step with ``grad [M, D]``, in the members ``mask [M]`` bool (None: all). Others remain unchanged."""
        state = (self.param, self.mean, self.square)
        old_state = [] if mask is None else [tensor.clone() for tensor in state]
        self.count += 1 if mask is None else mask
        factors1, root_corrections2 = _corrections()
        index = self.count.clamp(max=len(factors1) - 1)  # [M]; the last entries are for all later counts
        update = _update_moments(grad, self.mean, self.square, root_corrections2[index].unsqueeze(1), self.eps)
        self.param.sub_(update.mul_((self.lr * factors1[index]).unsqueeze(1)))
        if mask is not None:
            for tensor, old_tensor in zip(state, old_state, strict=True):
                tensor.copy_(torch.where(mask.unsqueeze(1), tensor, old_tensor))


class AdamW(LeanOptimizer, torch.optim.AdamW):
    """`torch.optim.AdamW` that does not load torch's compiler."""

    step = torch.no_grad()(_undecorated(torch.optim.AdamW.step))


class LockstepAdam(FlatOptimizer):
    """Adam for one parameter ``[M, D]`` of members that make all steps together, with learning rates ``lr`` (M floats).
    With ``separate_steps``, a step may leave out members, so ``count`` is a tensor ``[M]`` int64 and not one integer.

    The fused kernel of `torch.optim.AdamW` is called directly, because the class around it takes longer than a small
    update. It is called once for all members if they have one learning rate and one step count, otherwise once per
    member. Raises ValueError unless D is a multiple of `BLOCK`, because the kernel rounds the last numbers
    differently."""

    def __init__(self, param: Tensor, lr: Sequence[float], eps: float = 1e-8, separate_steps: bool = False):
        if param.shape[1] % BLOCK:
            raise ValueError(f"{param.shape[1]} numbers a member are no multiple of {BLOCK}")
        super().__init__(param, list(lr), eps)
        self.count: int | Tensor = torch.zeros(len(param), dtype=torch.int64) if separate_steps else 0

    @torch.no_grad()
    def update(self, grad: Tensor, lr_factor: float = 1.0, mask: Tensor | None = None) -> None:
        """Make one step with ``grad [M, D]`` and learning rates times ``lr_factor``, in the members ``mask [M]`` bool
        (None: all). With ``mask``, the optimizer must have ``separate_steps``."""
        has_one_lr = len(set(self.lr)) == 1
        if isinstance(self.count, int) and has_one_lr:
            self._call_kernel(slice(None), grad, lr_factor * self.lr[0], self.count)
        else:
            for m, lr in enumerate(self.lr):
                if mask is None or mask[m]:
                    count = self.count if isinstance(self.count, int) else int(self.count[m])
                    self._call_kernel(m, grad, lr_factor * lr, count)
        self.count = self.count + (1 if mask is None else mask)

    def _call_kernel(self, member: int | slice, grad: Tensor, lr: float, count: int) -> None:
        """Make step ``count + 1`` by ``grad [M, D]``, of one member (its index) or of all members (``slice(None)``)."""
        param, mean, square = self.param[member], self.mean[member], self.square[member]  # views
        counts = [torch.tensor(float(count))]
        no_maxima: list[Tensor] = []  # maxima of squares, which only AMSGrad uses
        # Without weight decay this is Adam. Parameters, moments and counts are updated in place.
        rates = {"lr": lr, "beta1": BETA1, "beta2": BETA2, "eps": self.eps, "weight_decay": 0.0}
        options = {"fused": True, "amsgrad": False, "maximize": False}
        adamw([param], [grad[member]], [mean], [square], no_maxima, counts, **rates, **options)  # type: ignore[arg-type]


@torch.no_grad()
def clip_gradients(params: Sequence[Tensor], max_norm: float | None) -> Tensor:
    """Scale the gradients of ``params [M, ...]`` in place, so that each member has a gradient norm of at most
    ``max_norm`` (None: no limit). The norm is over all parameters that have a gradient. Return the norms ``[M]`` before
    scaling. (`torch.nn.utils.clip_grad_norm_` would compute one norm over all members.)"""
    grads = [param.grad.flatten(1) for param in params if param.grad is not None]  # views of the gradients
    member_norms = norms(grads)
    if max_norm is None:
        return member_norms
    scale = (max_norm / (member_norms + 1e-6)).clamp(max=1.0).unsqueeze(1)  # 1e-6 as in torch
    for grad in grads:
        grad.mul_(scale)
    return member_norms


def norms(grads: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of each member's gradient, ``[M]``, over all of ``grads`` (``[M, D]`` each)."""
    return torch.stack([grad.square().sum(1) for grad in grads]).sum(0).sqrt()


@torch.no_grad()
def polyak_update(
    target_parameters: Tensor, flat_parameters: Tensor, tau: float, members: Tensor | None = None
) -> None:
    """Update the weights of target networks in place, in the ``members [M]`` bool (None: all): ``target <- (1 - tau)
    target + tau weights``. Both are ``[M, D]``."""
    if members is None:
        target_parameters.lerp_(flat_parameters, tau)
    else:
        new_parameters = target_parameters.lerp(flat_parameters, tau)
        target_parameters.copy_(torch.where(members.unsqueeze(1), new_parameters, target_parameters))
