"""Generation block by block, and with tokens drawn in place of their mean."""

import pytest
import torch
from tiny import DIM, MODELS, VOCAB, make_pipeline, seeded

from diffusers_text_nfdm import MarkovChainScheduler, ReverseODEScheduler, ReverseSDEScheduler
from diffusers_text_nfdm.networks.two_stream_predictor import CleanTokens


LENGTH, BLOCK = 6, 2
BLOCKS = {"clock": f"blocks:{BLOCK}", "predictor": "two_stream"}
CATEGORICAL = {"prediction_type": "categorical", "decoder": "gaussian"}
SCHEDULERS = {
    "star": MarkovChainScheduler(),
    "tokens": MarkovChainScheduler(0.5, prediction="tokens"),
    "sde": ReverseSDEScheduler(),
    "heun": ReverseODEScheduler("heun"),
}


def block_pipeline(name: str = "nfdm", scheduler: str = "star", **overrides):
    """A pipeline for texts of three blocks."""
    return make_pipeline(name, SCHEDULERS[scheduler], max_length=LENGTH, **{**BLOCKS, **CATEGORICAL, **overrides})


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_and_scheduler_makes_whole_texts(name, scheduler):
    output = block_pipeline(name, scheduler)(num_samples=3, num_inference_steps=7, generator=seeded(0))
    assert output.sequences.shape == (3, LENGTH)
    if scheduler in ("star", "tokens", "sde"):
        assert output.num_function_evaluations == 7


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_sample_does_not_depend_on_its_batch(scheduler):
    pipe = block_pipeline("mulan", scheduler, dtype=torch.float64)
    together = pipe(
        num_samples=3, num_inference_steps=6, generator=[seeded(i) for i in range(3)], output_type="latent"
    )
    alone = pipe(num_inference_steps=6, generator=[seeded(1)], output_type="latent")
    assert torch.allclose(together.latents[1:2], alone.latents, atol=1e-9)


@pytest.mark.parametrize("clock", ["blocks:2", "ramp:3"])
def test_the_adaptive_method_is_not_for_windows(clock):
    pipe = block_pipeline()
    pipe.scheduler = ReverseODEScheduler("adaptive", rtol=1.0, atol=1.0)
    with pytest.raises(ValueError, match=f"Method 'adaptive' has a time for every sample; along the clock '{clock}'"):
        pipe(num_inference_steps=6, clock=clock)
    # Without a clean stream a ramp has none.
    other = make_pipeline("nfdm", pipe.scheduler, max_length=LENGTH)
    assert other(num_inference_steps=6, clock="ramp:3").sequences.shape == (1, LENGTH)


def clean_length(clean) -> int:
    """How many clean tokens are seen."""
    return 0 if clean is None else len(clean)


def watch_denoise(pipe, monkeypatch) -> list[tuple]:
    """The latents, times, clean tokens and windows of all predictions to come."""
    seen, denoise = [], pipe.model.denoise

    def spy(z, t, context, clean, shown, *, windows, known, window):
        assert windows.starts.tolist() == [[0, 0, 2, 2, 4, 4]] and windows.mixing == BLOCK and known is None
        seen.append((z, t, clean, window))
        return denoise(z, t, context, clean, shown, windows=windows, known=known, window=window)

    monkeypatch.setattr(pipe.model, "denoise", spy)
    return seen


@pytest.mark.parametrize("scheduler, calls", [("star", [3, 2, 2]), ("sde", [3, 2, 2]), ("heun", [5, 3, 3])])
def test_steps_are_shared_out_to_the_blocks_and_later_ones_see_earlier_ones(scheduler, calls, monkeypatch):
    pipe = block_pipeline(scheduler=scheduler)
    seen = watch_denoise(pipe, monkeypatch)
    output = pipe(num_samples=2, num_inference_steps=7, generator=seeded(0), output_type="seq")
    blocks = [block for block in range(3) for _ in range(calls[block])]
    assert [window.start // BLOCK for *_, window in seen] == blocks
    assert [clean_length(clean) for _, _, clean, _ in seen] == [block * BLOCK for block in blocks]
    assert all(z.shape == (2, LENGTH, DIM) and window.stop - window.start == BLOCK for z, _, _, window in seen)
    for _, t, _, window in seen:
        t = t.expand(2, LENGTH)
        assert not t[:, : window.start].any() and (t[:, window.stop :] > 0.99).all() and (t[:, window] > 0).all()
    # What is kept of the tokens before a block is the same in all its steps: that of the tokens that were written.
    assert seen[-1][2] is seen[-2][2]
    _, expected = pipe.model.read_clean(output.sequences[:, : LENGTH - BLOCK])
    torch.testing.assert_close(seen[-1][2].inputs, expected.inputs, rtol=1e-5, atol=1e-5)
    for actual, wanted in zip(seen[-1][2].keys_values, expected.keys_values, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("self_conditioning", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_no_prefix_is_encoded_twice(scheduler, size, self_conditioning, monkeypatch):
    pipe = block_pipeline(scheduler=scheduler, self_conditioning=self_conditioning)
    read, read_clean, note = [], pipe.model.predictor.read_clean, CleanTokens.note

    def spy(ids, embeddings, before=None):
        if before is None:
            read.append((0, ids.shape[1]))
        return read_clean(ids, embeddings, before)

    def spy_on_notes(clean, keys_values):
        read.append((clean.num_read, keys_values[0][0].shape[-2]))
        note(clean, keys_values)

    monkeypatch.setattr(pipe.model.predictor, "read_clean", spy)
    monkeypatch.setattr(CleanTokens, "note", spy_on_notes)
    pipe(num_samples=2, num_inference_steps=13, clock=f"blocks:{size}", generator=seeded(0))
    # Each block but the last is read once, behind those before it.
    assert read == [(start, size) for start in range(0, LENGTH - size, size)]
    assert sum(tokens for _, tokens in read) == LENGTH - size
    # Along a ramp what has settled, one token or more at a time.
    read.clear()
    pipe(num_samples=2, num_inference_steps=13, clock=f"ramp:{size}", generator=seeded(0))
    assert [start for start, _ in read] == [sum(tokens for _, tokens in read[:i]) for i in range(len(read))]
    assert 0 < sum(tokens for _, tokens in read) < LENGTH


def test_a_block_as_long_as_the_text_is_the_shared_clock(monkeypatch):
    pipe = block_pipeline()
    monkeypatch.setattr(pipe.model.predictor, "read_clean", None)
    options = {"num_samples": 3, "num_inference_steps": 5, "output_type": "latent"}
    clocks = (f"blocks:{LENGTH}", "shared")
    one, shared = (pipe(clock=clock, generator=seeded(0), **options).latents for clock in clocks)
    torch.testing.assert_close(one, shared, rtol=1e-4, atol=1e-4)


def test_given_latents_start_the_blocks():
    pipe = block_pipeline(scheduler="heun")
    latents = torch.randn(2, LENGTH, DIM, generator=seeded(0))
    once = pipe(latents=latents, num_inference_steps=6, output_type="latent").latents
    latents[:, -1] += 1
    other = pipe(latents=latents, num_inference_steps=6, output_type="latent").latents
    moved = (once - other).abs().amax((0, 2)) > 0
    assert moved.tolist() == [False] * (LENGTH - BLOCK) + [True] * BLOCK


@pytest.mark.parametrize("clamp", [False, True])
def test_trajectory_has_the_texts_so_far(clamp):
    pipe = block_pipeline(pad_token_id=3)
    options = {"num_samples": 2, "num_inference_steps": 6, "clamp_predictions": clamp}
    output = pipe(**options, generator=seeded(0), return_trajectory=True)
    assert output.trajectory.shape == (6, 2, LENGTH)
    assert (output.trajectory[:2, :, BLOCK:] == 3).all() and (output.trajectory[2:4, :, 2 * BLOCK :] == 3).all()
    assert torch.equal(output.trajectory[-1, :, : LENGTH - BLOCK], output.sequences[:, : LENGTH - BLOCK])


def test_fewer_steps_than_blocks_are_refused():
    with pytest.raises(ValueError, match="`num_inference_steps` is 2; along the clock 'blocks:2' a text has 3 blocks"):
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
