"""Adam and gradient clipping on flat parameters ``[M, D]``, each member by itself."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015, algorithm 1) with a learning rate per member, if wanted.

    ``lr`` is a number or an ``[M]`` tensor. The bias corrections are Python floats from ``beta ** step``: a tensor
    power differs by an ulp between SIMD and scalar code, and with it a member alone from the same member in a batch.
    Equals `torch.optim.Adam` up to rounding.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "step_count": 0})

    @torch.no_grad()
    def step(self, closure=None):  # type: ignore[override]  # a closure has no use here: gradients are ready
        for group in self.param_groups:
            group["step_count"] += 1
            beta1, beta2 = group["betas"]
            correction1 = 1 - beta1 ** group["step_count"]
            root2 = (1 - beta2 ** group["step_count"]) ** 0.5
            lr = group["lr"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                mean, square = self._moments(param)
                mean.mul_(beta1).add_(param.grad * (1 - beta1))
                square.mul_(beta2).add_(param.grad.square().mul_(1 - beta2))
                update = mean / square.sqrt().div_(root2).add_(group["eps"])
                param.sub_(update.mul_(_per_member(lr, param) / correction1))

    def _moments(self, param: Tensor) -> tuple[Tensor, Tensor]:
        state = self.state[param]
        if not state:
            state["mean"] = torch.zeros_like(param)
            state["square"] = torch.zeros_like(param)
        return state["mean"], state["square"]


def _per_member(value: float | Tensor, like: Tensor) -> float | Tensor:
    """A number as it is; an ``[M]`` tensor shaped to broadcast over ``like [M, ...]``."""
    return value.view(-1, *[1] * (like.dim() - 1)) if isinstance(value, Tensor) else value


@torch.no_grad()
def clip_gradients(params: Sequence[Tensor], max_norm: float) -> Tensor:
    """Scale each member's gradient over all `params` (``[M, ...]``) to at most `max_norm`; returns the norms ``[M]``.

    `torch.nn.utils.clip_grad_norm_` would take one norm over all members and so couple them.
    """
    grads = [p.grad.flatten(1) for p in params if p.grad is not None]
    norm = torch.stack([g.square().sum(1) for g in grads]).sum(0).sqrt()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0).unsqueeze(1)
    for grad in grads:
        grad.mul_(scale)
    return norm
