"""What is written for our pipeline can be written for those of the baselines."""

import inspect

import pytest
import tiny_baseline
import tiny_masked
import torch
from tiny import seeded

from diffusers_text_nfdm import AutoregressivePipeline, MaskedDiffusionPipeline, NFDMTextPipeline


SHARED = [
    "prompt", "condition", "num_samples", "input_ids", "known", "batch_size", "generator", "temperature", "top_k",
    "top_p", "min_p", "contrast", "output_type", "return_dict",
]  # fmt: skip
BASELINES = {"autoregressive": tiny_baseline.make_pipeline, "masked": tiny_masked.make_pipeline}


@pytest.mark.parametrize("kind", [AutoregressivePipeline, MaskedDiffusionPipeline])
def test_arguments_have_one_order_and_one_default(kind):
    ours, theirs = (inspect.signature(pipeline.__call__).parameters for pipeline in (NFDMTextPipeline, kind))
    assert [name for name in theirs if name in SHARED] == [name for name in ours if name in SHARED] == SHARED
    assert all(theirs[name].default == ours[name].default for name in SHARED)


@pytest.mark.parametrize("name", BASELINES)
def test_a_prompt_comes_first_and_the_output_is_of_the_type_asked_for(name):
    pipe = BASELINES[name]()
    whole = pipe("Tom saw", num_samples=2, generator=seeded(0))
    assert all(text.startswith("Tom saw") for text in whole.texts)
    ids = pipe("Tom saw", num_samples=2, generator=seeded(0), output_type="seq")
    assert ids.texts is None and torch.equal(ids.sequences, whole.sequences)
    texts, sequences, *_ = pipe("Tom saw", num_samples=2, generator=seeded(0), return_dict=False)
    assert texts == whole.texts and torch.equal(sequences, whole.sequences)
    with pytest.raises(ValueError, match="`output_type` is 'latent'; it must be one of 'text', 'seq'"):
        pipe(output_type="latent")


@pytest.mark.parametrize("name", BASELINES)
def test_knobs_that_are_not_given_are_those_of_the_model(name):
    pipe = BASELINES[name]()
    plain, same = (
        pipe(num_samples=4, generator=seeded(1), **knobs).sequences
        for knobs in ({}, {"temperature": 1.0, "min_p": 0.0, "contrast": 0.0})
    )
    assert torch.equal(plain, same)


@pytest.mark.parametrize("name", BASELINES)
def test_contrast_favours_rare_tokens(name):
    pipe, word = BASELINES[name](), 5
    with torch.no_grad():
        pipe.model.token_bias[word] += 1
    shares = [
        (pipe(num_samples=60, generator=seeded(2), min_p=1e-3, contrast=c).sequences == word).float().mean()
        for c in (0.0, 1.0, 2.0)
    ]
    assert shares[0] > shares[1] > shares[2]
