"""Generation block by block, and with tokens drawn in place of their mean."""

import pytest
import torch
from tiny import DIM, MODELS, VOCAB, make_pipeline, seeded

from diffusers_text_nfdm import MarkovChainScheduler, ReverseODEScheduler, ReverseSDEScheduler


LENGTH, BLOCK = 6, 2
CATEGORICAL = {
    "prediction_type": "categorical",
    "posterior_features": True,
    "neighbor_mixing": 1,
    "decoder": "gaussian",
}
SCHEDULERS = {
    "star": MarkovChainScheduler(),
    "tokens": MarkovChainScheduler(0.5, prediction="tokens"),
    "sde": ReverseSDEScheduler(),
    "heun": ReverseODEScheduler("heun"),
    "adaptive": ReverseODEScheduler("adaptive"),
}


def block_pipeline(name: str = "nfdm", scheduler: str = "star", **overrides):
    """A pipeline for texts of three blocks."""
    return make_pipeline(
        name, SCHEDULERS[scheduler], max_length=LENGTH, block_size=BLOCK, **{**CATEGORICAL, **overrides}
    )


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_and_scheduler_makes_whole_texts(name, scheduler):
    output = block_pipeline(name, scheduler)(num_samples=3, num_inference_steps=7, generator=seeded(0))
    assert output.sequences.shape == (3, LENGTH)
    if scheduler in ("star", "tokens", "sde"):
        assert output.num_function_evaluations == 7


@pytest.mark.parametrize("scheduler", ["star", "tokens", "adaptive"])
def test_a_sample_does_not_depend_on_its_batch(scheduler):
    # In double precision: the adaptive method decides on the error of a step, and a rounding may turn it.
    pipe = block_pipeline("mulan", scheduler, dtype=torch.float64)
    together = pipe(
        num_samples=3, num_inference_steps=6, generator=[seeded(i) for i in range(3)], output_type="latent"
    )
    alone = pipe(num_inference_steps=6, generator=[seeded(1)], output_type="latent")
    assert torch.allclose(together.latents[1:2], alone.latents, atol=1e-9)


def test_steps_are_shared_out_to_the_blocks_and_later_ones_see_earlier_ones():
    pipe, seen = block_pipeline(), []
    predict = pipe.model.predict

    def spy(z, t, context, previous):
        seen.append((tuple(z.shape), previous))
        return predict(z, t, context, previous)

    pipe.model.predict = spy
    output = pipe(num_samples=2, num_inference_steps=7, generator=seeded(0), output_type="seq")
    assert [0 if previous is None else previous.shape[1] for _, previous in seen] == [0, 0, 0, 2, 2, 4, 4]
    assert all(shape == (2, BLOCK, DIM) for shape, _ in seen)
    # The tokens before a block are encoded once for all its steps.
    assert seen[-1][1] is seen[-2][1]
    expected = pipe.model.encode_previous(output.sequences[:, : LENGTH - BLOCK])
    assert torch.allclose(seen[-1][1], expected, atol=1e-6)


def test_given_latents_start_the_blocks():
    pipe = block_pipeline(scheduler="heun")
    latents = torch.randn(2, LENGTH, DIM, generator=seeded(0))
    once = pipe(latents=latents, num_inference_steps=6, output_type="latent").latents
    latents[:, -1] += 1
    other = pipe(latents=latents, num_inference_steps=6, output_type="latent").latents
    moved = (once - other).abs().amax((0, 2)) > 0
    assert moved.tolist() == [False] * (LENGTH - BLOCK) + [True] * BLOCK


def test_trajectory_has_the_texts_so_far():
    pipe = block_pipeline(pad_token_id=3)
    output = pipe(num_samples=2, num_inference_steps=6, generator=seeded(0), return_trajectory=True)
    assert output.trajectory.shape == (6, 2, LENGTH)
    assert (output.trajectory[:2, :, BLOCK:] == 3).all() and (output.trajectory[2:4, :, 2 * BLOCK :] == 3).all()
    assert torch.equal(output.trajectory[-1, :, : LENGTH - BLOCK], output.sequences[:, : LENGTH - BLOCK])


def test_fewer_steps_than_blocks_are_refused():
    with pytest.raises(ValueError, match="`num_inference_steps` is 2; a text of this model has 3 blocks"):
        block_pipeline()(num_inference_steps=2)


@pytest.mark.parametrize("noise_fraction", [0.0, 0.5, 1.0, "snr"])
@pytest.mark.parametrize("steps", [1, 3])
def test_drawn_tokens_have_their_distribution_after_any_number_of_steps(steps, noise_fraction):
    """One-token texts whose posterior is exact: tokens keep the distribution, which their means miss."""
    samples = 4000
    torch.manual_seed(0)
    frequencies = torch.distributions.Dirichlet(torch.full((VOCAB,), 2.0)).sample()

    def chi_squared(prediction: str) -> float:
        scheduler = MarkovChainScheduler(noise_fraction, prediction=prediction)
        pipe = make_pipeline(
            "diffusion-lm", scheduler, max_length=1, prediction_type="categorical", decoder="gaussian"
        )
        with torch.no_grad():
            pipe.model.token_bias.copy_(torch.log(frequencies))
            for parameter in (*pipe.model.predictor.output.parameters(), *pipe.model.prediction.gate.parameters()):
                parameter.zero_()
        sequences = pipe(
            num_samples=samples, num_inference_steps=steps, batch_size=samples, generator=seeded(1), output_type="seq"
        ).sequences
        counts = torch.bincount(sequences[:, 0], minlength=VOCAB)
        return ((counts - samples * frequencies).square() / (samples * frequencies)).sum().item()

    # 29.6 is the quantile of 0.999 for ten degrees of freedom.
    assert chi_squared("tokens") < 29.6
    assert chi_squared("mean") > 29.6


@pytest.mark.parametrize(
    "options, message",
    [
        ({"prediction": "both"}, "`prediction` is 'both'"),
        ({"temperature": -1.0}, "`temperature` is -1.0"),
        ({"min_p": 1.0}, "`min_p` is 1.0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MarkovChainScheduler(**options)


def test_with_the_largest_min_p_tokens_are_the_most_probable_ones():
    pipe = block_pipeline(scheduler="tokens")
    drawn = []
    for options in ({"temperature": 0.0}, {"min_p": 0.999999}, {}):
        pipe.scheduler = MarkovChainScheduler(prediction="tokens", **options)
        drawn.append(pipe(num_samples=3, num_inference_steps=LENGTH // BLOCK, generator=seeded(3)).sequences)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_tokens_need_a_distribution_and_no_clamping():
    with pytest.raises(ValueError, match="`prediction_type` 'embedding'"):
        make_pipeline("nfdm", SCHEDULERS["tokens"])(num_inference_steps=2)
    with pytest.raises(ValueError, match="`clamp_predictions` is True"):
        block_pipeline(scheduler="tokens")(num_inference_steps=6, clamp_predictions=True)
