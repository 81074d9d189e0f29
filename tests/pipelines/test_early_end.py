"""Texts that end as soon as they are decided."""

import pytest
import torch
from tiny import VOCAB, make_pipeline, seeded

from diffusers_text_nfdm import (
    JumpScheduler,
    MarkovChainScheduler,
    RefinementScheduler,
    ReverseODEScheduler,
    ReverseSDEScheduler,
)
from diffusers_text_nfdm.models import Prediction
from diffusers_text_nfdm.pipelines.early_end import EarlyEnd


LENGTH, STEPS, SAMPLES = 6, 16, 8
MODEL = {
    "max_length": LENGTH, "predictor": "two_stream", "prediction_type": "categorical", "decoder": "gaussian",
}  # fmt: skip
END, PAD = 1, 3
# Thresholds at which some of the texts are decided early and some are not.
RUNS = [
    (lambda: MarkovChainScheduler(), "shared", 0.9),
    (lambda: MarkovChainScheduler(0.0), "shared", 0.9),
    (lambda: ReverseSDEScheduler(), "shared", 0.5),
    (lambda: MarkovChainScheduler(), "random:2", 0.9),
    (lambda: MarkovChainScheduler(), "ramp:2", 0.9),
    (lambda: ReverseODEScheduler("heun"), "ramp:2", 0.0),
    (lambda: MarkovChainScheduler(), "blocks:3", 0.9),
]


def early_pipeline(scheduler=None, name="nfdm", **overrides):
    return make_pipeline(name, scheduler, **{**MODEL, **overrides})


def watch(pipe, monkeypatch) -> list[Prediction]:
    """All predictions to come."""
    seen, denoise = [], pipe.model.denoise

    def spy(*args, **options):
        seen.append(denoise(*args, **options))
        return seen[-1]

    monkeypatch.setattr(pipe.model, "denoise", spy)
    return seen


@pytest.mark.parametrize("scheduler, clock, threshold", RUNS)
def test_it_never_changes_a_text_that_it_did_not_stop_and_reports_the_calls_really_made(
    scheduler, clock, threshold, monkeypatch
):
    pipe = early_pipeline(scheduler())
    options = {"num_samples": SAMPLES, "num_inference_steps": STEPS, "clock": clock}
    plain = pipe(generator=seeded(0), output_type="latent", **options)
    tokens = pipe(generator=seeded(0), output_type="seq", **options).sequences
    total = plain.num_function_evaluations
    seen = watch(pipe, monkeypatch)
    options["confidence_threshold"] = threshold
    early = pipe(generator=seeded(0), output_type="latent", **options)
    whole = early.calls == total
    assert 0 < whole.sum() < SAMPLES and early.calls.max() == len(seen) == total
    assert torch.equal(early.latents[whole], plain.latents[whole])
    sequences = pipe(generator=seeded(0), output_type="seq", **options).sequences
    assert torch.equal(sequences[whole], tokens[whole])

    # Alone, a text takes no part in calls after its end.
    seen.clear()
    alone = pipe(generator=seeded(0), batch_size=1, **options)
    assert alone.calls.sum() == len(seen) < SAMPLES * total


def test_a_text_ends_with_the_tokens_of_its_last_two_predictions(monkeypatch):
    pipe = early_pipeline(MarkovChainScheduler(0.0))
    seen = watch(pipe, monkeypatch)
    options = {"num_samples": SAMPLES, "num_inference_steps": STEPS, "clock": "shared", "confidence_threshold": 0.9}
    output = pipe(generator=seeded(0), return_trajectory=True, **options)
    probabilities = [torch.softmax(prediction.logits, -1) for prediction in seen]
    for row, calls in enumerate(output.calls.tolist()):
        if calls == STEPS:
            continue
        before, last = (probabilities[call - 1][row].max(-1) for call in (calls - 1, calls))
        assert torch.equal(before.indices, last.indices) and (last.values > 0.9).all()
        assert torch.equal(output.sequences[row], last.indices)
        assert (output.trajectory[calls - 1 :, row] == last.indices).all()
        # Not before.
        for call in range(2, calls):
            before, last = (probabilities[i - 1][row].max(-1) for i in (call - 1, call))
            assert not torch.equal(before.indices, last.indices) or (last.values <= 0.9).any()


@pytest.mark.parametrize("self_conditioning", [False, True])
def test_the_loop_ends_when_all_texts_are_decided(self_conditioning, monkeypatch):
    pipe = early_pipeline(self_conditioning=self_conditioning)
    sure = torch.full((VOCAB,), -50.0)
    sure[5] = 50.0
    factors = torch.zeros(3, LENGTH, 1), torch.zeros(VOCAB, 1), sure
    monkeypatch.setattr(
        pipe.model, "denoise", lambda *args, **options: Prediction(factors=factors, table=pipe.model.embedding_table())
    )
    known = torch.zeros(3, LENGTH, dtype=torch.bool)
    known[:, 2] = True
    output = pipe(
        input_ids=torch.full((3, LENGTH), 7), known=known, num_inference_steps=STEPS, confidence_threshold=0.9
    )
    assert output.sequences.tolist() == [[5, 5, 7, 5, 5, 5]] * 3
    assert output.calls.tolist() == [2] * 3 and output.num_function_evaluations == 2


# --- what decides a text ---


def prediction(tokens: list[int], probability: float = 0.95, window: slice | None = None) -> Prediction:
    """Each token has this probability, the others share the rest."""
    probabilities = torch.full((1, len(tokens), VOCAB), (1 - probability) / (VOCAB - 1))
    probabilities[0, range(len(tokens)), tokens] = probability
    factors = probabilities.log(), torch.eye(VOCAB), torch.zeros(VOCAB)
    return Prediction(factors=factors, window=window, length=4)


def look(*predictions: Prediction, open_tokens=(1, 1, 1, 1), written=(0, 0, 0, 0), known=None, end=END) -> EarlyEnd:
    early = EarlyEnd(0.9, end, PAD, (1, 4), torch.device("cpu"))
    for one in predictions:
        known_tokens = None if known is None else torch.tensor([known]).bool()
        early.look(one, torch.tensor([written]), torch.tensor([open_tokens]).bool(), known_tokens)
    return early


def test_one_prediction_does_not_decide():
    assert not look(prediction([5, 6, 7, 8])).decided.any()
    early = look(prediction([5, 6, 7, 8]), prediction([5, 6, 7, 8]))
    assert early.decided.all() and early.tokens.tolist() == [[5, 6, 7, 8]] and early.chosen.all()


def test_neither_do_tokens_that_change_or_are_not_sure():
    assert not look(prediction([5, 6, 7, 8]), prediction([5, 6, 7, 9])).decided.any()
    assert not look(prediction([5, 6, 7, 8]), prediction([5, 6, 7, 8], 0.85)).decided.any()
    # Only the second of two has to be sure.
    assert look(prediction([5, 6, 7, 8], 0.85), prediction([5, 6, 7, 8])).decided.all()


def test_a_text_that_is_decided_stays_so():
    early = look(prediction([5, 6, 7, 8]), prediction([5, 6, 7, 8]), prediction([9, 9, 9, 9]))
    assert early.decided.all() and early.tokens.tolist() == [[5, 6, 7, 8]]


def test_tokens_that_are_not_open_stay_as_they_are():
    changing = prediction([5, 6, 7, 8]), prediction([9, 6, 7, 8])
    early = look(*changing, open_tokens=(0, 1, 1, 1), written=(4, 0, 0, 0))
    assert early.decided.all() and early.tokens.tolist() == [[4, 6, 7, 8]]
    assert early.chosen.tolist() == [[False, True, True, True]]


def test_what_is_behind_a_window_is_not_decided_unless_the_text_has_ended():
    last, other = slice(2, 4), slice(1, 3)
    settled = {"open_tokens": (0, 0, 1, 1), "written": (4, 5, 0, 0)}
    assert look(prediction([7, 8], window=last), prediction([7, 8], window=last), **settled).decided.all()
    settled = {"open_tokens": (0, 1, 1, 1), "written": (4, 0, 0, 0)}
    assert not look(prediction([7, 8], window=other), prediction([7, 8], window=other), **settled).decided.any()
    early = look(prediction([7, END], window=other), prediction([7, END], window=other), **settled)
    assert early.decided.all() and early.tokens.tolist() == [[4, 7, END, PAD]]
    # A token that has come into the window was not predicted before.
    assert not look(prediction([7, 8], window=other), prediction([8, 0], window=last), **settled).decided.any()


def test_behind_end_is_padding_around_what_is_known():
    ends = prediction([5, END, 7, 8]), prediction([5, END, 9, 8], 0.95)
    assert look(*ends).tokens.tolist() == [[5, END, PAD, PAD]]
    early = look(*ends, open_tokens=(1, 1, 1, 0), written=(0, 0, 0, 6), known=(0, 0, 0, 1))
    assert early.decided.all() and early.tokens.tolist() == [[5, END, PAD, 6]]
    assert early.chosen.tolist() == [[True, True, True, False]]
    assert not look(*ends, end=None).decided.any()


# --- bad input ---


@pytest.mark.parametrize("threshold", [-0.1, 1.0, float("nan"), "high", True])
def test_a_bad_threshold_is_refused(threshold):
    with pytest.raises(
        ValueError, match=f"`confidence_threshold` is {threshold!r}; it must be a number in \\[0, 1\\)"
    ):
        early_pipeline()(confidence_threshold=threshold)


@pytest.mark.parametrize(
    "scheduler, overrides, options, message",
    [
        (None, {"prediction_type": "embedding"}, {}, "has `prediction_type` 'embedding'; only 'categorical' has"),
        (None, {}, {"clamp_predictions": True}, "`clamp_predictions` leaves no probabilities"),
        (ReverseODEScheduler("adaptive"), {}, {"clock": "shared"}, "method 'adaptive' has a time for every sample"),
        (RefinementScheduler(), {}, {}, "`confidence_threshold` has no meaning for RefinementScheduler"),
        (JumpScheduler(), {"jumps": True}, {}, "`confidence_threshold` has no meaning for JumpScheduler"),
    ],
)
def test_where_it_has_no_meaning_it_is_refused(scheduler, overrides, options, message):
    with pytest.raises(ValueError, match=message):
        early_pipeline(scheduler, **overrides)(confidence_threshold=0.9, **options)
