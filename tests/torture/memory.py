"""Many calls in a process: its memory must come to rest."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import psutil
from tiny import make_ids, make_pipeline, make_tokenizer, seeded

from diffusers_text_nfdm import NFDMTextPipeline, RefinementScheduler, estimate_likelihood

from .tally import Campaign, Tally


CALLS = 60
# Allocators keep some memory for themselves; what leaks is lost in every call.
ALLOWED_BYTES, ALLOWED_BYTES_PER_CALL = 2**22, 2**14
CATEGORICAL = {
    "prediction_type": "categorical", "predictor": "two_stream", "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 3,
}  # fmt: skip


def workloads(folder: Path) -> dict[str, Callable[[], object]]:
    pipe = make_pipeline()
    writer = make_pipeline("nfdm", RefinementScheduler(), **CATEGORICAL)
    pipe.save_pretrained(folder / "pipeline")
    tokenizer, ids = make_tokenizer(), make_ids(4)
    return {
        "sampling latents": lambda: pipe(num_samples=4, num_inference_steps=4, generator=seeded(0)),
        "writing tokens": lambda: writer(num_samples=4, generator=seeded(0)),
        "the bound": lambda: estimate_likelihood(pipe.model, ids, num_draws=2),
        "loading": lambda: NFDMTextPipeline.from_pretrained(folder / "pipeline"),
        "tokenizing": lambda: tokenizer.batch_decode(tokenizer(["Tom saw a red fox."] * 200)["input_ids"]),
    }


def run(campaign: Campaign) -> Tally:
    tally = Tally("memory")
    for name, call in workloads(campaign.folder).items():
        half, end = resting_memory(call, CALLS // 2), resting_memory(call, CALLS)
        grown = end - half
        leaks = grown > max(ALLOWED_BYTES, ALLOWED_BYTES_PER_CALL * CALLS)
        tally.judge(name, ("silent", f"{grown / 2**20:.1f} MB more after {CALLS} further calls") if leaks else None)
    tally.note = f"Each is {CALLS} calls, after {CALLS // 2} to warm up."
    return tally


def resting_memory(call: Callable[[], object], calls: int) -> int:
    for _ in range(calls):
        call()
    gc.collect()
    return psutil.Process().memory_info().rss
