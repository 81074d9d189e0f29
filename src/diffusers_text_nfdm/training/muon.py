"""Muon with matrices of equal shape orthogonalised together."""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor


def orthogonalize(matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Newton-Schulz iteration `X <- a X + (b G + c G²) X`, `G = X Xᵀ`, on a stack `(n, rows, columns)` with
    `rows <= columns`.
    """
    a, b, c = coefficients
    x = matrices / matrices.norm(dim=(-1, -2), keepdim=True).clamp_min(eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon(torch.optim.Muon):
    """`torch.optim.Muon` at a fair price: one batched iteration for all matrices of a shape (or its transpose), in
    bfloat16 on accelerators and in float32 on CPUs, most of which emulate bfloat16. A group with `transposed` holds
    matrices (in, out) instead of (out, in)."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_shape: dict[tuple, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter.grad)
                buffer = state["momentum_buffer"].lerp_(parameter.grad, 1 - group["momentum"])
                update = parameter.grad.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer
                rows, columns = sorted(parameter.shape)
                by_shape[rows, columns, parameter.device].append((parameter, update))
            for (_, _, device), entries in by_shape.items():
                dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
                stack = torch.stack([_wide(update) for _, update in entries]).to(dtype)
                stack = orthogonalize(stack, group["ns_coefficients"], group["ns_steps"], group["eps"])
                for (parameter, _), update in zip(entries, stack):
                    rows, columns = parameter.shape
                    outputs, inputs = (columns, rows) if group.get("transposed") else (rows, columns)
                    # As in torch.optim.Muon with `adjust_lr_fn="original"`.
                    rate = group["lr"] * math.sqrt(max(1, outputs / inputs))
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_((update.T if rows > columns else update).to(parameter.dtype), alpha=-rate)
        return loss


def _wide(matrix: Tensor) -> Tensor:
    return matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
