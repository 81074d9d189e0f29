"""Sampling with lattices: calls, batches, prompts, gaps and guidance."""

import pytest
import torch
from tiny import make_model, make_pipeline, seeded

from diffusers_text_nfdm import MarkovChainScheduler


LATTICE = {
    "predictor": "two_stream",
    "prediction_type": "categorical",
    "decoder": "gaussian",
    "self_conditioning": True,
    "lattice_candidates": 3,
    "forward_num_layers": 0,
    "max_length": 8,
    "pad_token_id": 0,
}
STEPS = 12


def pipeline(prediction="tokens", **options):
    scheduler = MarkovChainScheduler(prediction=prediction, temperature=1.0)
    return make_pipeline("nfdm", scheduler, dtype=torch.float64, **{**LATTICE, "clock": "ramp:4", **options})


def sample(pipe, number=3, **options):
    generators = [seeded(seed) for seed in range(number)]
    return pipe(num_samples=number, num_inference_steps=STEPS, generator=generators, output_type="seq", **options)


def test_a_step_is_one_call_and_the_first_two():
    assert sample(pipeline()).calls.tolist() == [STEPS + 1] * 3
    # In blocks every block begins with nothing shown.
    assert sample(pipeline(clock="blocks:4")).calls.tolist() == [STEPS + 2] * 3


@pytest.mark.parametrize("prediction", ["mean", "tokens"])
@pytest.mark.parametrize("clock", ["ramp:4", "blocks:4"])
def test_a_text_does_not_depend_on_its_batch(prediction, clock):
    pipe = pipeline(prediction, clock=clock)
    together = sample(pipe).sequences
    for seed in range(3):
        alone = pipe(num_inference_steps=STEPS, generator=[seeded(seed)], output_type="seq").sequences
        assert torch.equal(alone[0], together[seed])


def test_a_beginning_is_kept_and_continued_in_a_lattice(monkeypatch):
    pipe = pipeline()
    lattices = []
    denoise = type(pipe.model).denoise

    def noted(self, *arguments, **options):
        prediction = denoise(self, *arguments, **options)
        lattices.append(prediction.lattice is not None)
        return prediction

    monkeypatch.setattr(type(pipe.model), "denoise", noted)
    ids = torch.randint(2, 11, (1, 8), generator=seeded(0))
    known = torch.arange(8)[None] < 3
    out = pipe(input_ids=ids, known=known, num_inference_steps=STEPS, generator=seeded(1), output_type="seq")
    assert torch.equal(out.sequences[:, :3], ids[:, :3]) and all(lattices)
    # What is given behind a window is seen by the noisy stream alone.
    lattices.clear()
    gap = (torch.arange(8)[None] < 3) | (torch.arange(8)[None] == 7)
    out = pipe(input_ids=ids, known=gap, num_inference_steps=STEPS, generator=seeded(1), output_type="seq")
    assert torch.equal(out.sequences[gap], ids[gap]) and not any(lattices)


def test_guided_tokens_are_inferred_by_themselves():
    pipe = pipeline()
    weaker = make_model("nfdm", **{**LATTICE, "clock": "ramp:4"})
    out = sample(pipe, guidance_scale=1.5, guidance_model=weaker)
    assert out.sequences.shape == (3, 8)
