"""Muon with matrices of equal shape orthogonalised together, each process a share of them."""

from __future__ import annotations

import math
from collections import defaultdict

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard


# Odd polynomials `a s + b s³ + c s⁵`, one for each step, each the nearest to 1 on the interval that the one before
# leaves singular values in, the first on [0.003, 1]: composed, they map that into [0.779, 1.221]. The best choice step
# by step is the best composition (Polar Express, Amsel et al. 2025). Every interval ends 2% higher, which is what
# bfloat16 may add by rounding; beyond, these polynomials grow fast.
COEFFICIENTS = (
    (8.2217627716, -23.3468578046, 16.6337550104),
    (3.9727567732, -2.8449368233, 0.5170148452),
    (3.4734739721, -2.5057462151, 0.4810177350),
    (2.5043668180, -1.7907244309, 0.4070605462),
)


def orthogonalize(matrices: Tensor, eps: float) -> Tensor:
    """Newton-Schulz iteration `X <- a X + (b G + c G²) X`, `G = X Xᵀ`, on a stack `(n, rows, columns)` with
    `rows <= columns`, from an X whose singular values are at most 1.
    """
    x = matrices / _norms(matrices).clamp_min(eps)
    gram = x @ x.mT
    # `‖G‖`, the root of the sum of s⁴ of the singular values s, bounds the largest s² more closely than `‖X‖²` does.
    scale = _norms(gram).clamp_min(eps).rsqrt()
    x, gram = scale * x, scale.square() * gram
    for step, (a, b, c) in enumerate(COEFFICIENTS):
        if step > 0:
            gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _norms(matrices: Tensor) -> Tensor:
    return matrices.norm(dim=(-1, -2), keepdim=True)


class Muon(torch.optim.Muon):
    """`torch.optim.Muon` at a fair price: four steps of the iteration that end nearer to an orthogonal matrix than its
    five, batched over all matrices of a shape (or its transpose), in bfloat16 on accelerators and in float32 on CPUs,
    most of which emulate bfloat16. A group with `transposed` holds matrices (in, out) instead of (out, in).

    Several processes share the work. Each orthogonalises some of the matrices:

    * where all of them hold the whole matrices and equal gradients (DDP), those of `process_group` send one another
      their results;
    * where FSDP2 shards the rows, a process gathers the rows of its matrices and sends the orthogonal rows back. No
      process holds more than its share of whole matrices.
    """

    process_group: dist.ProcessGroup | None = None

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        eps: float = 1e-7,
    ):
        iteration = {"ns_coefficients": COEFFICIENTS, "ns_steps": len(COEFFICIENTS)}
        super().__init__(params, lr, weight_decay, momentum, nesterov, eps=eps, **iteration)

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
                gradient = _local(parameter.grad)
                buffer = _local(state["momentum_buffer"]).lerp_(gradient, 1 - group["momentum"])
                update = gradient.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer
                # Rows are what FSDP2 shards, so there a matrix and its transpose are not alike.
                shape = parameter.shape if isinstance(parameter, DTensor) else sorted(parameter.shape)
                by_shape[(*shape, parameter.device)].append((parameter, update))
            for entries in by_shape.values():
                for (parameter, _), update in zip(entries, self._orthogonal(entries, group)):
                    rows, columns = parameter.shape
                    outputs, inputs = (columns, rows) if group.get("transposed") else (rows, columns)
                    # As in torch.optim.Muon with `adjust_lr_fn="original"`.
                    rate = group["lr"] * math.sqrt(max(1, outputs / inputs))
                    matrix = _local(parameter)
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(update.to(matrix.dtype), alpha=-rate)
        return loss

    def _orthogonal(self, entries: list[tuple[Tensor, Tensor]], group: dict) -> list[Tensor]:
        """What the updates of matrices of one shape become; of sharded ones the rows of this process."""
        first, _ = entries[0]
        dtype = torch.float32 if first.device.type == "cpu" else torch.bfloat16
        if isinstance(first, DTensor):
            return _orthogonalize_sharded(first, [update.to(dtype) for _, update in entries], group["eps"])
        stack = torch.stack([_wide(update) for _, update in entries]).to(dtype)
        if self.process_group is None or self.process_group.size() == 1:
            stack = orthogonalize(stack, group["eps"])
        else:
            _orthogonalize_shared(stack, self.process_group, group["eps"])
        return [x.T if _is_tall(parameter) else x for (parameter, _), x in zip(entries, stack)]


def _orthogonalize_shared(stack: Tensor, process_group: dist.ProcessGroup, eps: float) -> None:
    """Orthogonalise a stack that all processes hold, in place: each a share of it, which the others get from it."""
    size, rank = process_group.size(), process_group.rank()
    shares = stack.split(math.ceil(len(stack) / size))
    if rank < len(shares):
        shares[rank].copy_(orthogonalize(shares[rank], eps))
    sent = [
        dist.broadcast(share, group=process_group, group_src=owner, async_op=True)
        for owner, share in enumerate(shares)
    ]
    for work in sent:
        work.wait()


def _orthogonalize_sharded(like: DTensor, updates: list[Tensor], eps: float) -> list[Tensor]:
    """Orthogonalise matrices of which every process has some rows, as in `like`, to the same rows of the result."""
    if like.device_mesh.ndim != 1 or tuple(like.placements) != (Shard(0),):
        raise ValueError(
            f"`use_muon` needs parameters whose rows are sharded over one axis of devices; a parameter is "
            f"{like.placements} over {like.device_mesh}. Shard fully, or train with `--no-use_muon`."
        )
    process_group = like.device_mesh.get_group()
    size, rank = process_group.size(), process_group.rank()
    rows, columns = like.shape
    # DTensor shards as `torch.chunk` does: the last processes may have fewer rows, or none.
    rows_each, matrices_each = math.ceil(rows / size), math.ceil(len(updates) / size)
    shards = updates[0].new_zeros(size * matrices_each, rows_each, columns)
    for shard, update in zip(shards, updates):
        shard[: len(update)] = update
    # From every matrix's rows of this process to all rows of the matrices of this process.
    shards = shards.view(size, matrices_each, rows_each, columns)
    received = torch.empty_like(shards)
    dist.all_to_all_single(received, shards, group=process_group)
    whole = received.transpose(0, 1).reshape(matrices_each, size * rows_each, columns)
    mine = whole[: max(0, len(updates) - rank * matrices_each), :rows]
    if len(mine):
        mine.copy_(orthogonalize(mine.mT, eps).mT if rows > columns else orthogonalize(mine, eps))
    # And back.
    orthogonal = whole.view(matrices_each, size, rows_each, columns).transpose(0, 1).contiguous()
    returned = torch.empty_like(orthogonal)
    dist.all_to_all_single(returned, orthogonal, group=process_group)
    return [shard[: len(update)] for shard, update in zip(returned.flatten(0, 1), updates)]


def _local(x: Tensor) -> Tensor:
    """The rows of this process, or the tensor itself where it is not sharded."""
    return x.to_local() if isinstance(x, DTensor) else x


def _is_tall(matrix: Tensor) -> bool:
    return matrix.shape[0] > matrix.shape[1]


def _wide(matrix: Tensor) -> Tensor:
    return matrix.T if _is_tall(matrix) else matrix
