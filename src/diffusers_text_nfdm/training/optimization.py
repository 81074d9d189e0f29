"""Optimizers, learning rates and averaged weights."""

from __future__ import annotations

import torch
import torch.distributed as dist
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.pytorch_utils import Conv1D

from .arguments import TrainingArguments
from .muon import Muon


# The matrices inside these modules are those of the transformer trunks.
TRUNKS = (
    "predictor.encoder.",
    "predictor.layers.",
    "predictor.h.",
    "forward_process.network.layers.",
    "context_encoder.transformer.layers.",
)


def trunk_matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """Weight matrices of the transformer trunks, without the modulations, which are no maps between hidden states."""
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if name.startswith(TRUNKS) and parameter.ndim == 2 and ".modulation." not in name
    }


def time_sampler_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The learned time density of a diffusion model, where it has one."""
    return {name: parameter for name, parameter in model.named_parameters() if name.startswith("time_sampler.")}


def build_optimizers(
    model: nn.Module, arguments: TrainingArguments, process_group: dist.ProcessGroup | None = None
) -> list[torch.optim.Optimizer]:
    """Adam for everything, or Muon for the trunks' matrices and Adam for the rest. No weight decay.

    The processes of `process_group`, which train the same model, share the work of Muon.
    """
    # Logarithms of loss terms, of order one to ten, which Adam moves by its learning rate a step.
    apart = {"time_sampler.": arguments.time_sampler_learning_rate}
    if arguments.forward_learning_rate is not None:
        apart["forward_process."] = arguments.forward_learning_rate
    matrices = trunk_matrices(model) if arguments.use_muon else {}
    matrices = {name: matrix for name, matrix in matrices.items() if not name.startswith(tuple(apart))}
    groups = [
        {
            "params": [
                p for name, p in model.named_parameters() if name not in matrices and not name.startswith(tuple(apart))
            ]
        }
    ]
    for prefix, learning_rate in apart.items():
        parameters = [p for name, p in model.named_parameters() if name.startswith(prefix)]
        if parameters:
            groups.append({"params": parameters, "lr": learning_rate})
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adam(groups, lr=arguments.learning_rate, betas=(0.9, arguments.adam_beta2), foreach=True)
    ]
    if matrices:
        muon = Muon(
            _by_layout(model, matrices),
            lr=arguments.muon_learning_rate,
            momentum=arguments.muon_momentum,
            weight_decay=0.0,
        )
        muon.process_group = process_group
        optimizers.append(muon)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return optimizers


def _by_layout(model: nn.Module, matrices: dict[str, nn.Parameter]) -> list[dict]:
    """Parameter groups for Muon: matrices stored as (out, in), and those that GPT-2 stores as (in, out)."""
    convolutions = {id(module.weight) for module in model.modules() if isinstance(module, Conv1D)}
    groups = [
        {"params": [p for p in matrices.values() if (id(p) in convolutions) == transposed], "transposed": transposed}
        for transposed in (False, True)
    ]
    return [group for group in groups if group["params"]]


def check_combination(distributed_type: DistributedType, is_fsdp2: bool, mixed_precision: str, use_muon: bool) -> None:
    """Refuse what would train something else than it seems to."""
    if distributed_type == DistributedType.FSDP and not is_fsdp2:
        raise ValueError(
            "FSDP 1 flattens the parameters, of which an average is kept here. Launch with `--fsdp_version 2`."
        )
    if not use_muon:
        return
    if distributed_type == DistributedType.DEEPSPEED:
        raise ValueError(
            "`use_muon` needs two optimizers, of which Accelerate keeps only the last under DeepSpeed. Train with "
            "DDP, or with "
            "`--no-use_muon`."
        )
    if mixed_precision == "fp16":
        raise ValueError(
            "`mixed_precision` is 'fp16', under which Accelerate divides the gradients of the second optimizer by "
            "the loss scale twice, "
            "and `use_muon` needs two optimizers. Train with 'bf16', or with `--no-use_muon`."
        )


def learning_rate_factor(step: int, warmup_steps: int, max_steps: int, decay_steps: int | None = None) -> float:
    """Linear growth over the warm-up, then 1, then a linear fall to 0 over the last `decay_steps`, all that are left
    by default.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    falling = max_steps - warmup_steps if decay_steps is None else decay_steps
    return min(1.0, max(0, max_steps - step) / max(1, falling))


class ExponentialMovingAverage:
    """Averaged weights `ē <- d ē + (1-d) w`, with `d = min(decay, (1+n)/(10+n))` at update n, so that early averages
    forget the start.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.updates = 0
        self.names = [name for name, _ in model.named_parameters()]
        self.average = [parameter.detach().clone() for parameter in model.parameters()]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        torch._foreach_lerp_(self.average, [parameter.detach() for parameter in model.parameters()], 1 - decay)

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Give an unsharded model the averaged weights."""
        for average, parameter in zip(self.average, model.parameters(), strict=True):
            parameter.copy_(whole(average))

    def state_dict(self) -> dict[str, Tensor]:
        """The averaged weights by name, unsharded. `updates` is not among them."""
        return {name: whole(average) for name, average in zip(self.names, self.average, strict=True)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor], updates: int) -> None:
        self.updates = updates
        for name, mine in zip(self.names, self.average, strict=True):
            saved = state.get(name)
            if saved is None or saved.shape != mine.shape:
                found = "missing" if saved is None else f"of shape {tuple(saved.shape)}"
                raise ValueError(f"the average of {name!r} is {found}, where the model has {tuple(mine.shape)}")
            if isinstance(mine, DTensor):
                saved = distribute_tensor(saved.to(mine.device), mine.device_mesh, mine.placements)
            mine.copy_(saved)


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, gathered from all processes where FSDP shards it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
