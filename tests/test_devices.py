"""What runs on a device without float64, such as Apple's MPS, shown on the CPU; which devices multiply bfloat16."""

import pytest
import torch
from judges import judge_model, judge_tokenizer
from tiny import LENGTH, VOCAB, make_model, make_pipeline, seeded
from tiny_baseline import END, PAD, START
from tiny_baseline import make_pipeline as make_autoregressive_pipeline
from tiny_masked import make_pipeline as make_masked_pipeline
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from diffusers_text_nfdm import (
    DraftVerifyScheduler,
    JumpScheduler,
    MarkovChainScheduler,
    RefinementScheduler,
    ReverseODEScheduler,
    ReverseSDEScheduler,
    devices,
)
from diffusers_text_nfdm.likelihood import (
    estimate_likelihood,
    exact_likelihood,
    jump_likelihood,
    masked_likelihood,
    score_texts,
)
from diffusers_text_nfdm.likelihood.importance_weighting import importance_weighted_bound
from diffusers_text_nfdm.metrics.judge import Judge
from diffusers_text_nfdm.networks.token_order import order_by_likeness


TWO_STREAM = {
    "predictor": "two_stream", "prediction_type": "categorical", "jumps": True, "bos_token_id": START,
    "eos_token_id": END, "pad_token_id": PAD,
}  # fmt: skip


class NoFloat64(TorchFunctionMode):
    """Some tensors, and all that is computed with them, are on a device without float64 until `cpu` takes them off."""

    def __init__(self, *tensors: Tensor):
        super().__init__()
        for tensor in tensors:
            tensor.on_device = True

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is Tensor.cpu:
            return args[0].clone()
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        output = function(*args, **kwargs)
        if any(hasattr(x, "on_device") for x in inputs):
            outputs = [x for x in tree_leaves(output) if isinstance(x, Tensor)]
            for x in outputs:
                x.on_device = True
            # Between devices a copy changes the type where it can.
            if function is not Tensor.copy_ and any(x.dtype == torch.float64 for x in inputs + outputs):
                raise TypeError(f"float64 in {function}")
        return output


def without_float64(model: torch.nn.Module) -> NoFloat64:
    return NoFloat64(*model.state_dict(keep_vars=True).values())


@pytest.fixture(autouse=True)
def _cpu_without_float64(monkeypatch):
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", ("cpu", "meta"))


@pytest.mark.parametrize(
    "scheduler",
    [
        MarkovChainScheduler(),
        MarkovChainScheduler(prediction="tokens"),
        ReverseSDEScheduler(),
        ReverseODEScheduler(),
        RefinementScheduler(block_length=3),
        RefinementScheduler(block_length=3, candidates=2),
        DraftVerifyScheduler(block_size=2),
        JumpScheduler(jump_length=3),
        JumpScheduler(jump_length=3, min_p=0.5),
    ],
    ids=lambda scheduler: type(scheduler).__name__,
)
def test_samplers_need_no_float64(scheduler):
    pipeline = make_pipeline("nfdm", scheduler, **TWO_STREAM)
    steps = None if isinstance(scheduler, (RefinementScheduler, DraftVerifyScheduler, JumpScheduler)) else 4
    with without_float64(pipeline.model):
        output = pipeline(num_samples=3, num_inference_steps=steps, generator=seeded(0))
    assert output.sequences.shape == (3, LENGTH)


@pytest.mark.parametrize("make", [make_autoregressive_pipeline, make_masked_pipeline], ids=["left to right", "masked"])
def test_baselines_need_no_float64(make):
    pipeline = make(torch.float32)
    with without_float64(pipeline.model):
        assert len(pipeline(num_samples=3, generator=seeded(0)).texts) == 3


ESTIMATES = {
    "bound": lambda model, ids: estimate_likelihood(model, ids, num_tokens=[3, 3], num_draws=2),
    "known": lambda model, ids: estimate_likelihood(model, ids, known=ids == START, num_draws=2),
    "exact": exact_likelihood,
    "jumps": lambda model, ids: jump_likelihood(model, ids, num_inference_steps=2),
    "weighted": lambda model, ids: importance_weighted_bound(model, ids, num_draws=2, num_steps=2),
    "scores": score_texts,
    "scores along a clock": lambda model, ids: score_texts(model, ids, clock="ramp:2", num_draws=2),
}


def some_ids(length: int = LENGTH) -> Tensor:
    return torch.cat([torch.full((2, 1), START), torch.randint(4, VOCAB, (2, length - 1))], dim=1)


@pytest.mark.parametrize("estimate", ESTIMATES.values(), ids=ESTIMATES)
def test_likelihoods_need_no_float64(estimate):
    model, ids = make_model("nfdm", torch.float32, **TWO_STREAM), some_ids()
    ids.on_device = True
    with without_float64(model):
        estimate(model, ids)


def test_likelihoods_of_masked_diffusion_need_no_float64():
    model, ids = make_masked_pipeline(torch.float32).model, some_ids(8)
    with without_float64(model):
        masked_likelihood(model, ids, num_draws=2)
        score_texts(model, ids)


def test_a_judge_needs_no_float64():
    texts = ["Tom saw a red fox .", "a fox ran ."]
    tokenizer = judge_tokenizer(texts)
    judge = Judge(judge_model(len(tokenizer)), tokenizer, "tiny")
    with without_float64(judge.model):
        judge.negative_log_probabilities(texts)


def test_what_training_starts_from_needs_no_float64():
    model, t = make_model("nfdm", torch.float32), torch.linspace(0, 1, 50)
    t.on_device = True
    with without_float64(model):
        model.time_sampler.set_terms(t, t + 1)
        order_by_likeness(model.embeddings.weight)


def test_uniform_numbers_from_the_cpu_for_another_device(monkeypatch):
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", ("meta",))
    assert devices.wide_uniforms([seeded(0)], 4, "meta").dtype == torch.float32
    assert devices.wide_uniforms([seeded(0)], 4, "cpu").dtype == torch.float64


def test_uniform_numbers_stay_below_one_when_they_are_rounded(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor([0.5, 1 - 2**-53], dtype=torch.float64))
    below = devices.wide_uniforms([seeded(0)], 2, "cpu")
    assert below.dtype == torch.float32 and below.tolist() == [[0.5, 1 - 2**-24]]
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", ())
    assert devices.wide_uniforms([seeded(0)], 2, "cpu").tolist() == [[0.5, 1 - 2**-53]]


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_float64_where_there_is_one(monkeypatch, device):
    monkeypatch.undo()
    assert devices.widest_float(device) == torch.float64
    assert devices.widest_float("mps") == devices.widest_float(torch.device("mps", 0)) == torch.float32


@pytest.mark.parametrize("capability", ["avx512_bf16", "amx_bf16", "avx512_f", None])
def test_cpus_that_multiply_bfloat16_say_so(monkeypatch, capability):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {capability: True, "avx2": True}, raising=False)
    assert devices.multiplies_bfloat16("cpu") == (capability in ("avx512_bf16", "amx_bf16"))
    # Of a release of PyTorch that cannot tell.
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert not devices.multiplies_bfloat16("cpu")


@pytest.mark.parametrize("native", [True, False])
def test_gpus_that_emulate_bfloat16_do_not_count(monkeypatch, native):
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or native
    )
    assert devices.multiplies_bfloat16("cuda:1") == native
    assert not devices.multiplies_bfloat16("mps")
