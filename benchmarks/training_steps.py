"""A training step of NFDM against the plain implementation of the same loss, and the estimate of the likelihood."""

from __future__ import annotations

from collections.abc import Callable

import step_profile
import torch
from plain_nfdm import plain_loss
from sizes import BATCH_SIZES, make_model
from timing import interleaved, matrix_operations, measured_peak, medians

from diffusers_text_nfdm import NFDMModel
from diffusers_text_nfdm.networks.compilation import compile_layers
from diffusers_text_nfdm.training import TrainingArguments
from diffusers_text_nfdm.training.optimization import build_optimizers


def measure(size: str, repeats: int, compiled: bool) -> dict[str, float]:
    """CPU seconds of each contestant, how many times as fast as the plain one ours are, and shares of the machine's
    peak.

    With `compiled`, ours with compiled blocks too; generating the code, up to a minute, is not in its seconds.
    """
    ours, plain, head = make_model(size), make_model(size, "eager"), make_model(size, time_conditioning="head")
    batch_size = BATCH_SIZES[size]
    input_ids = torch.randint(ours.config.vocab_size, (batch_size, ours.config.max_length))
    draws = ours.draw(batch_size)

    def step(model: NFDMModel, loss: Callable[[NFDMModel], torch.Tensor]) -> None:
        model.zero_grad(set_to_none=True)
        loss(model).backward()

    def our_loss(model: NFDMModel) -> torch.Tensor:
        return model(input_ids, draws=draws).loss

    steps = {
        "plain": lambda: step(plain, lambda model: plain_loss(model, input_ids, draws)),
        "ours": lambda: step(ours, our_loss),
        "time in the head": lambda: step(head, our_loss),
        "plain likelihood": torch.no_grad()(lambda: plain_loss(plain, input_ids, draws)),
        "our likelihood": torch.no_grad()(lambda: our_loss(ours)),
    }
    if compiled:
        torch.compiler.reset()  # After another size, code would be made for all shapes, and be slower.
        compiled_model = make_model(size)
        compile_layers(compiled_model)
        steps["compiled"] = lambda: step(compiled_model, our_loss)
    seconds = medians(interleaved(steps, repeats))
    optimizers = build_optimizers(ours, TrainingArguments.from_config("rocstories-nfdm"))
    # Seconds to tens of seconds at the largest size, the same for both.
    seconds |= medians(interleaved({"optimizer": lambda: [optimizer.step() for optimizer in optimizers]}, 1))
    peak = measured_peak(repeats)
    shares = {
        f"{name}, share of peak": matrix_operations(steps[name]) / seconds[name] / peak
        for name in ("plain", "ours", "time in the head")
    }
    speedups = {
        "step": seconds["plain"] / seconds["ours"],
        "step with optimizer": (seconds["plain"] + seconds["optimizer"]) / (seconds["ours"] + seconds["optimizer"]),
        "step, time in the head": seconds["plain"] / seconds["time in the head"],
        "likelihood": seconds["plain likelihood"] / seconds["our likelihood"],
    }
    if "compiled" in seconds:
        speedups["step, compiled"] = seconds["plain"] / seconds["compiled"]
    profiles = {name: step_profile.measure(steps[name], 2) for name in steps if "likelihood" not in name}
    return {
        "seconds": seconds,
        "speedups": speedups,
        "shares": shares,
        "peak_gflops": peak / 1e9,
        "profiles": profiles,
    }
