"""What a training step spends its time on, by kind of operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from profiling import recorded


# By the name of the operation. What is in none is with the rest: views, the autograd engine, Python.
KINDS = {
    "matrix products": ("mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_"),
    "fused attention": (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    ),
    "softmax": ("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data", "logsumexp"),
    "layer norm": ("native_layer_norm", "native_layer_norm_backward", "rms_norm", "_fused_rms_norm"),
    "activation": ("gelu", "gelu_backward", "tanh", "tanh_", "tanh_backward", "relu", "threshold_backward"),
    "arithmetic": (
        *("add", "add_", "sub", "sub_", "rsub", "mul", "mul_", "div", "div_", "neg", "pow", "square", "exp", "log"),
        *("addcmul", "addcmul_", "addcdiv_", "where", "masked_fill", "masked_fill_", "sqrt", "rsqrt", "reciprocal"),
        *("sum", "mean", "linalg_vector_norm", "lerp_", "clamp", "clamp_min", "sigmoid", "softplus", "sin", "cos"),
    ),
    "copies": (
        *("copy_", "cat", "clone", "fill_", "zero_", "index", "index_select", "gather", "scatter_", "index_put_"),
        *("embedding", "embedding_dense_backward", "_index_put_impl_", "constant_pad_nd", "stack", "repeat"),
    ),
}
KIND_OF = {f"aten::{name}": kind for kind, names in KINDS.items() for name in names}
REST = "the rest"


def measure(step: Callable[[], object], repeats: int) -> dict[str, float]:
    """Shares of the time of `step`, by kind."""
    step()
    with recorded() as record:
        for _ in range(repeats):
            step()
    times: dict[str, float] = defaultdict(float)
    for event in record.key_averages():
        times[KIND_OF.get(event.key, REST)] += event.self_cpu_time_total
    total = sum(times.values())
    return {kind: times[kind] / total for kind in (*KINDS, REST)}
