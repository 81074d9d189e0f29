"""How exact numbers can be on a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


# As in the models of diffusers.
WITHOUT_FLOAT64 = ("mps", "npu")


def widest_float(device: str | torch.device) -> torch.dtype:
    """float64, or float32 on a device that does not have it."""
    return torch.float32 if torch.device(device).type in WITHOUT_FLOAT64 else torch.float64


def widened(values: Tensor) -> Tensor:
    """The values in the widest type of their device."""
    return values.to(widest_float(values.device))


def wide_uniforms(
    generators: Sequence[torch.Generator], shape: int | Sequence[int], device: str | torch.device
) -> Tensor:
    """Random numbers in [0, 1) of this shape from each generator, `(generators, *shape)`, in the device's widest type.

    They are drawn where the generators are: one on the CPU gives the same numbers, but for rounding, to every device.
    """
    numbers = [torch.rand(shape, generator=g, device=g.device, dtype=widest_float(g.device)) for g in generators]
    dtype = widest_float(device)
    # A number just below 1 must not be rounded to it.
    return torch.stack(numbers).to(device, dtype).clamp_max(1 - torch.finfo(dtype).eps / 2)
