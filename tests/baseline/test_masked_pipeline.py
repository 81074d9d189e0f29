"""Sampling from masked diffusion, and its checkpoints."""

import math
from collections import Counter

import pytest
import torch
from hub_server import card_metadata
from test_masked import nats_of_orders
from tiny import logged_warnings, make_tokenizer, seeded
from tiny_baseline import START
from tiny_masked import TEXTS, make_masked, make_pipeline
from transformers import AutoModel

from diffusers_text_nfdm import MaskedDiffusionModel, MaskedDiffusionPipeline
from diffusers_text_nfdm.baseline.pipeline_masked import REMASKING, steps_of_blocks


@pytest.mark.parametrize("block_size", [None, 2])
def test_a_token_at_a_time_in_random_order_samples_the_mean_over_orders(block_size):
    """Chi-square over all texts."""
    model, number = make_masked(), 6000
    pipe = MaskedDiffusionPipeline(model, make_tokenizer())
    pipe.set_progress_bar_config(disable=True)
    nats = nats_of_orders(model, block_size)
    probabilities = torch.exp(torch.logsumexp(-nats, 0) - math.log(len(nats)))
    # Steps are shared out evenly: two for a block of one token and START, two for the other.
    options = {"num_inference_steps": 4 if block_size else 3, "block_size": block_size, "remasking": "random"}
    drawn = pipe(num_samples=number, batch_size=2000, generator=seeded(0), **options)
    assert set(drawn.calls.tolist()) == {3}
    counts = Counter(tuple(row) for row in drawn.sequences.tolist())
    observed = torch.tensor([counts[tuple(row)] for row in TEXTS.tolist()]).double()
    assert observed.sum() == number
    common = probabilities * number > 5
    expected = torch.cat([probabilities[common], 1 - probabilities[common].sum()[None]]) * number
    observed = torch.cat([observed[common], number - observed[common].sum()[None]])
    freedom = len(expected) - 1
    statistic = ((observed - expected) ** 2 / expected.clamp_min(1)).sum().item()
    assert freedom > 10 and statistic < freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("remasking", REMASKING)
@pytest.mark.parametrize(
    ("steps", "block_size", "calls", "shown"),
    [
        (1, None, 1, [7]),
        (3, None, 3, [2, 2, 3]),
        (7, None, 7, [1] * 7),
        (64, None, 7, [1] * 7),
        (2, 4, 2, [3, 4]),
        (5, 4, 5, [1, 1, 1, 2, 2]),
        (8, 1, 7, [1] * 7),
    ],
)
def test_every_step_shows_equal_numbers_of_tokens(remasking, steps, block_size, calls, shown, monkeypatch):
    pipe, seen = make_pipeline(), []
    predict = MaskedDiffusionModel.predict

    def spy(model, input_ids, hidden, *where):
        seen.append(hidden.sum(1).tolist())
        return predict(model, input_ids, hidden, *where)

    monkeypatch.setattr(MaskedDiffusionModel, "predict", spy)
    output = pipe(
        num_samples=3, num_inference_steps=steps, block_size=block_size, remasking=remasking, generator=seeded(0)
    )
    assert output.num_function_evaluations == calls == len(seen) and output.calls.tolist() == [calls] * 3
    size, left, expected = block_size or 8, 0, []
    # What is hidden before each call: the rest of the block.
    queue = list(shown)
    for block in range(8 // size):
        left = size - (block == 0)
        while left:
            expected.append([left] * 3)
            left -= queue.pop(0)
    assert seen == expected and not queue
    assert (output.sequences[:, 0] == START).all() and len(output.texts) == 3


def test_steps_are_shared_out_evenly():
    assert steps_of_blocks(8, 3) == [3, 3, 2] and steps_of_blocks(3, 3) == [1, 1, 1]


def test_confidence_keeps_the_surest_tokens():
    pipe = make_pipeline()
    model = pipe.model
    output = pipe(num_samples=4, num_inference_steps=7, remasking="confidence", generator=seeded(0), temperature=0.0)
    for sequence in output.sequences:
        text, hidden = torch.full((1, 8), START), torch.arange(8)[None] > 0
        while hidden.any():
            probabilities = torch.softmax(model.predict(text, hidden).logits, -1).amax(-1)
            place = probabilities.masked_fill(~hidden, 0).argmax()
            text[0, place] = model.predict(text, hidden).logits[0, place].argmax()
            hidden[0, place] = False
        assert torch.equal(sequence, text[0])


@pytest.mark.parametrize("remasking", REMASKING)
@pytest.mark.parametrize("block_size", [None, 4])
def test_a_sample_does_not_depend_on_its_batch(remasking, block_size):
    pipe = make_pipeline()
    options = {"num_inference_steps": 5, "block_size": block_size, "remasking": remasking}
    ids = torch.randint(4, 11, (7, 8), generator=seeded(1))
    ids[:, 0] = START
    known = torch.rand(7, 8, generator=seeded(2)) < torch.linspace(0, 0.8, 7)[:, None]
    for given in ({}, {"input_ids": ids, "known": known}):
        together = pipe(num_samples=7, generator=seeded(3), **options, **given)
        apart = pipe(num_samples=7, batch_size=2, generator=seeded(3), **options, **given)
        assert torch.equal(together.sequences, apart.sequences) and together.texts == apart.texts
        assert torch.equal(together.calls, apart.calls)
    alone = pipe(num_samples=1, generator=[seeded(5)], **options)
    three = pipe(num_samples=3, generator=[seeded(s) for s in (4, 5, 6)], **options)
    assert torch.equal(three.sequences[1:2], alone.sequences)
    assert len({tuple(row.tolist()) for row in three.sequences}) == 3


@pytest.mark.parametrize("remasking", REMASKING)
@pytest.mark.parametrize("block_size", [None, 2])
def test_known_tokens_come_back_as_they_are(remasking, block_size):
    pipe = make_pipeline()
    ids = torch.randint(4, 11, (5, 8), generator=seeded(1))
    ids[:, 0] = START
    known = torch.rand(5, 8, generator=seeded(2)) < 0.5
    output = pipe(
        num_inference_steps=8,
        block_size=block_size,
        remasking=remasking,
        input_ids=ids,
        known=known,
        generator=seeded(0),
    )
    assert torch.equal(output.sequences[known], ids[known])
    assert not torch.equal(output.sequences, ids)
    if block_size is None:
        assert output.calls.tolist() == (~known[:, 1:]).sum(1).tolist()


def test_cuts_reach_the_draws():
    pipe = make_pipeline()
    options = {"num_samples": 3, "num_inference_steps": 7, "remasking": "random"}
    best = pipe(temperature=0.0, generator=seeded(0), **options).sequences
    for cut in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 0.999999}, {"temperature": 1e-6}):
        assert torch.equal(pipe(generator=seeded(0), **options, **cut).sequences, best)
    assert not torch.equal(pipe(generator=seeded(0), **options).sequences, best)


def test_other_blocks_than_in_training_are_warned_of():
    pipe = make_pipeline(trained_block_sizes=[None, 4])
    with logged_warnings() as messages:
        pipe(num_samples=1, num_inference_steps=8, generator=seeded(0))
        pipe(num_samples=1, num_inference_steps=8, block_size=4, generator=seeded(0))
    assert messages == []
    with pytest.warns(UserWarning, match="not trained on blocks of 2 .* trained on the whole text, blocks of 4"):
        pipe(num_samples=1, num_inference_steps=8, block_size=2, generator=seeded(0))


IDS = torch.tensor([[START, 4, 5, 6, 7, 8, 9, 10]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "`num_samples` is 0; it must be an integer of at least 1"),
        ({"batch_size": 1.5}, "`batch_size` is 1.5"),
        ({"num_samples": 2, "generator": [seeded(0)]}, "`generator` is a list of 1 for 2 samples"),
        ({"num_inference_steps": 0}, "`num_inference_steps` is 0"),
        ({"num_inference_steps": 3, "block_size": 2}, "3; in blocks of 2 a text has 4 of them"),
        ({"block_size": 3}, "`block_size` is 3"),
        ({"remasking": "none"}, "`remasking` is 'none'; it must be one of 'confidence', 'random'"),
        ({"temperature": -1.0}, "`temperature` is -1.0; it must be at least 0"),
        ({"temperature": 0.0, "min_p": 0.1}, "need a `temperature` above 0"),
        ({"top_k": 0}, "`top_k` is 0"),
        ({"top_p": 2.0}, "`top_p` is 2.0"),
        ({"min_p": 1.0}, "`min_p` is 1.0"),
        ({"input_ids": IDS}, "`input_ids` and `known` go together"),
        ({"num_samples": 2, "input_ids": IDS, "known": IDS > 5}, "`input_ids` has 1 rows for 2 samples"),
        ({"input_ids": IDS, "known": IDS}, "`known` is of type torch.int64"),
        ({"input_ids": IDS, "known": IDS > 0}, "nothing is left to model"),
        ({"input_ids": IDS.flip(1), "known": IDS > 5}, "every row must begin with START"),
    ],
)
def test_bad_calls_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_pipeline()(**options)


def test_saved_and_loaded_it_writes_the_same_texts(tmp_path):
    pipe = make_pipeline(torch.float32, block_size=4, trained_block_sizes=[None, 4])
    pipe.save_pretrained(tmp_path / "saved")
    loaded = MaskedDiffusionPipeline.from_pretrained(tmp_path / "saved")
    loaded.set_progress_bar_config(disable=True)
    for one, other in zip(pipe.model.parameters(), loaded.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert loaded.model.config.block_size == 4 and loaded.model.config.trained_block_sizes == [None, 4]
    texts = [one(num_samples=4, num_inference_steps=6, generator=seeded(1)).texts for one in (loaded, pipe)]
    assert texts[0] == texts[1]
    assert isinstance(AutoModel.from_pretrained(tmp_path / "saved" / "model"), MaskedDiffusionModel)


def test_the_card_tells_what_it_is_and_its_code_runs(tmp_path, capsys):
    make_pipeline(torch.float32).save_pretrained(tmp_path / "saved", repo_id=str(tmp_path / "saved"))
    card = (tmp_path / "saved" / "README.md").read_text()
    metadata, errors = card_metadata(card)
    assert errors == [] and "masked-diffusion-baseline" in metadata["tags"]
    assert "# Masked diffusion for text" in card and "is an upper bound" in card and "$" not in card
    (code,) = card.split("```python\n")[1:]
    exec(code.split("```")[0], {})
    assert capsys.readouterr().out.startswith("[")
