"""How exact numbers can be on a device, and how coarse they may be."""

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


def multiplies_bfloat16(device: str | torch.device) -> bool:
    """Whether products in bfloat16 are fast on this device: CUDA from Ampere on, CPUs with AVX512-BF16 or AMX.

    Others emulate them, which is slower than float32, or are not known to have them.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu" and hasattr(torch.cpu, "get_capabilities"):
        capabilities = torch.cpu.get_capabilities()
        return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
    return False


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
