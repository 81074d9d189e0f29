"""One pipeline in several threads writes what it writes in one."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import tiny_baseline
import tiny_masked
import torch
from tiny import make_pipeline, seeded

from diffusers_text_nfdm import (
    DraftVerifyScheduler,
    JumpScheduler,
    MarkovChainScheduler,
    RefinementScheduler,
    ReverseODEScheduler,
    ReverseSDEScheduler,
)
from diffusers_text_nfdm.models import evaluation_mode


LENGTH = 9
OPTIONS = {
    "prediction_type": "categorical", "predictor": "two_stream", "jumps": True, "max_length": LENGTH,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3, "clock": "ramp:4",
}  # fmt: skip
SCHEDULERS = {
    "chain": MarkovChainScheduler,
    "sde": ReverseSDEScheduler,
    "heun": lambda: ReverseODEScheduler(method="heun"),
    "jump": JumpScheduler,
    "refine": RefinementScheduler,
    "draft": DraftVerifyScheduler,
}


def requests(number):
    """Other numbers of steps and texts, so that a shared state would show; some with a beginning, some with a gap."""
    for i in range(number):
        known = torch.zeros(1 + i % 3, LENGTH, dtype=torch.bool)
        known[:, 0] = True
        known[:, 1 : 1 + i % 4] = True
        known[:, 7] = i % 5 == 0
        ids = torch.randint(4, 11, known.shape, generator=seeded(i))
        ids[:, 0] = 0
        yield {"input_ids": ids, "known": known, "num_inference_steps": 3 + i % 7, "seed": i}


def answer(pipe, request):
    options = {name: value for name, value in request.items() if name != "seed"}
    return pipe(**options, generator=seeded(request["seed"]), output_type="seq").sequences


def check(pipe, wanted, times=1):
    """Each request is made so many times in threads and compared with its answer in one."""
    alone = [answer(pipe, request) for request in wanted]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda request: answer(pipe, request), wanted * times))
    assert all(torch.equal(a, b) for a, b in zip(alone * times, together, strict=True))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_texts_do_not_depend_on_other_threads(name):
    pipe = make_pipeline("nfdm", SCHEDULERS[name](), torch.float64, **OPTIONS)
    scheduler = pipe.scheduler
    check(pipe, list(requests(12)))
    assert pipe.scheduler is scheduler and not hasattr(scheduler, "_grid")


@pytest.mark.parametrize("baseline", [tiny_baseline, tiny_masked])
def test_texts_of_the_baselines_do_not_depend_on_other_threads(baseline):
    pipe, numbers = baseline.make_pipeline(), [1 + i % 3 for i in range(24)]

    def write(i):
        return pipe(num_samples=numbers[i], generator=seeded(i)).sequences

    alone = [write(i) for i in range(len(numbers))]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(write, range(len(numbers))))
    assert all(torch.equal(a, b) for a, b in zip(alone, together))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chain", "jump"])
def test_ten_thousand_requests(name):
    # Few steps: an hour is too long even on a slow machine.
    wanted = [{**request, "num_inference_steps": 2 + request["seed"] % 3} for request in requests(250)]
    check(make_pipeline("nfdm", SCHEDULERS[name](), torch.float64, **OPTIONS), wanted, times=40)


def test_the_last_to_leave_brings_a_model_back_to_its_mode():
    model = make_pipeline("nfdm", MarkovChainScheduler(), torch.float64, **OPTIONS).model.train()
    first, second = evaluation_mode(model), evaluation_mode(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not model.training
    second.__exit__(None, None, None)
    assert model.training
