"""The last step with the joint decoder: a fixed point, in as many calls as are counted, whatever the batch."""

import pytest
import torch
from tiny import make_pipeline, seeded

from diffusers_text_nfdm import MarkovChainScheduler, ReverseSDEScheduler
from diffusers_text_nfdm.models import Prediction
from diffusers_text_nfdm.models.token_choice import draw_tokens
from diffusers_text_nfdm.networks.two_stream_predictor import TwoStreamPredictor
from diffusers_text_nfdm.pipelines.finishing import finish_texts


OPTIONS = {
    "prediction_type": "categorical", "predictor": "two_stream", "decoder": "gaussian", "self_conditioning": True,
    "lattice_candidates": 2, "joint_decoder": True, "forward_num_layers": 0, "max_length": 8, "bos_token_id": 0,
    "eos_token_id": 1, "pad_token_id": 3, "clock": "shared",
}  # fmt: skip
VOCAB, LENGTH = 11, 8


def pipeline(**options):
    pipe = make_pipeline("nfdm", **{**OPTIONS, **options})
    pipe.scheduler = MarkovChainScheduler(finish_time=0.6)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@torch.no_grad()
def random_prediction(model, batch):
    z = torch.randn(batch, *model.latent_shape, generator=seeded(0))
    return model.denoise(z, torch.full((batch, 1), 0.7))


@torch.no_grad()
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_changes_any_more(temperature):
    """And the text is a draw from the decoder, token by token."""
    model = pipeline().model.eval()
    prediction = random_prediction(model, 4)
    uniforms, choice = torch.rand(4, LENGTH, generator=seeded(1)), {"temperature": temperature}
    tokens, calls = finish_texts(model, prediction, uniforms, None, None, choice)
    # From left to right a token is right once those before it are.
    assert (calls <= LENGTH + 1).all() and calls.max() > 1
    written = torch.zeros_like(tokens)
    for i in range(LENGTH):
        joint = Prediction(factors=model.joint_factors(written, prediction)).logits
        written[:, i] = draw_tokens(joint, uniforms, **choice)[:, i]
    assert torch.equal(written, tokens)


def test_the_text_does_not_depend_on_its_batch_and_the_calls_are_counted(monkeypatch):
    pipe = pipeline()
    generators = [seeded(seed) for seed in range(3)]
    output = pipe(num_samples=3, num_inference_steps=4, generator=generators, output_type="seq")
    seen = []
    for name in ("forward", "read_windows", "read_jointly"):
        method = getattr(TwoStreamPredictor, name)

        def noted(*arguments, name=name, method=method, **options):
            seen.append(name)
            return method(*arguments, **options)

        monkeypatch.setattr(TwoStreamPredictor, name, noted)
    alone = pipe(num_samples=1, num_inference_steps=4, generator=[seeded(2)], output_type="seq")
    assert torch.equal(alone.sequences[0], output.sequences[2]) and alone.calls[0] == output.calls[2]
    assert alone.calls.item() == len(seen) > 6 and seen[:3] == ["read_windows"] * 2 + ["forward"]
    assert "read_jointly" in seen


@torch.no_grad()
def test_a_limit_of_calls_leaves_the_text_as_it_is():
    pipe = pipeline()
    pipe.scheduler = MarkovChainScheduler(finish_time=0.6, finish_calls=1)
    # A first step of three calls and three others, and one for the decoder.
    assert pipe(num_samples=4, num_inference_steps=4, generator=seeded(0)).calls.tolist() == [7] * 4
    model, choice = pipe.model, {"temperature": 1.0}
    prediction, uniforms = random_prediction(model, 4), torch.rand(4, LENGTH, generator=seeded(1))
    once, _ = finish_texts(model, prediction, uniforms, None, None, choice, 1)
    first = draw_tokens(prediction.logits, uniforms, **choice)
    joint = Prediction(factors=model.joint_factors(first, prediction)).logits
    assert torch.equal(once, draw_tokens(joint, uniforms, **choice))
    settled, calls = finish_texts(model, prediction, uniforms, None, None, choice)
    assert not torch.equal(once, settled)
    enough, _ = finish_texts(model, prediction, uniforms, None, None, choice, int(calls.max()))
    assert torch.equal(enough, settled)


def test_the_last_prediction_is_at_the_finish_time():
    scheduler = MarkovChainScheduler(finish_time=0.6)
    scheduler.set_timesteps(5)
    assert scheduler.timesteps.tolist() == pytest.approx([1, 0.9, 0.8, 0.7, 0.6])
    scheduler.set_timesteps(1)
    assert scheduler.timesteps.tolist() == [1]
    scheduler.set_timesteps(timesteps=[0.9, 0.2])
    assert scheduler.timesteps.tolist() == [0.9, 0.2]


def test_known_tokens_stay():
    pipe, ids = pipeline(), torch.tensor([[0, 5, 6, 7, 8, 9, 1, 3]])
    known = torch.tensor([[True, True, False, True, False, False, False, False]])
    output = pipe(input_ids=ids, known=known, num_inference_steps=3, generator=seeded(0), output_type="seq")
    assert torch.equal(output.sequences[known], ids[known])
    latents = pipe(input_ids=ids, known=known, num_inference_steps=3, generator=seeded(0), output_type="latent")
    decoded = pipe.model.decode(latents.latents).argmax(-1)
    assert torch.equal(decoded, output.sequences)


def test_another_scheduler_forgets_it():
    pipe = pipeline()
    pipe.scheduler = ReverseSDEScheduler.from_config(pipe.scheduler.config)
    assert len(pipe(num_samples=1, num_inference_steps=3).texts) == 1


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        ({"clock": "ramp:2"}, {}, "`finish_time` 0.6, which is for .* the clock is 'ramp:2'"),
        ({}, {"joint_decoder": False}, "`finish_time` 0.6, but this model has no `joint_decoder`"),
        ({"confidence_threshold": 0.5}, {}, "have no meaning with the scheduler's `finish_time`"),
        ({"clamp_predictions": True}, {}, "have no meaning with the scheduler's `finish_time`"),
    ],
)
def test_what_cannot_be_finished_is_refused(call, options, message):
    with pytest.raises(ValueError, match=message):
        pipeline(**options)(num_samples=1, num_inference_steps=2, **call)


@pytest.mark.parametrize("time", [0, 1, "soon", True])
def test_times_that_are_none_are_refused(time):
    with pytest.raises(ValueError, match="`finish_time` is .*; it must be a number in"):
        MarkovChainScheduler(finish_time=time)


@pytest.mark.parametrize(("time", "calls"), [(0.5, 0), (0.5, 2.5), (0.5, "few"), (None, 3)])
def test_limits_of_calls_that_are_none_are_refused(time, calls):
    with pytest.raises(ValueError, match="`finish_calls` is"):
        MarkovChainScheduler(finish_time=time, finish_calls=calls)
