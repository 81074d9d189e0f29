"""Conditions: how they are read, where they stand, and that no likelihood counts them."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import VOCAB, make_model, make_tokenizer, seeded
from tiny_baseline import END, PAD, START, make_baseline
from tiny_masked import make_masked

from diffusers_text_nfdm import estimate_likelihood, exact_likelihood
from diffusers_text_nfdm.conditions import (
    drop_condition,
    encode_conditions,
    placeholder,
    put_in,
    read_record,
    spread,
    take_out,
    text_tokens,
    with_condition,
)
from diffusers_text_nfdm.data import load_text_dataset, prepare_dataset
from diffusers_text_nfdm.likelihood import jump_likelihood, masked_likelihood, score_texts
from diffusers_text_nfdm.stories import StoryGrammar, load_stories


LENGTH, CONDITION = 8, 3
TWO_STREAM = {
    "max_length": LENGTH,
    "predictor": "two_stream",
    "prediction_type": "categorical",
    "bos_token_id": START,
    "eos_token_id": END,
    "pad_token_id": PAD,
}


def some_ids(n: int, vocab: int = VOCAB) -> torch.Tensor:
    """Texts of full length, with words only."""
    ids = torch.randint(4, vocab, (n, LENGTH), generator=seeded(1))
    ids[:, 0] = START
    return ids


# --- records and texts ---


def test_a_record_is_slots_and_values():
    record = "name[The Eagle], customer rating[3 out of 5], area[city centre]"
    assert read_record(record) == {"name": "The Eagle", "customer rating": "3 out of 5", "area": "city centre"}
    assert spread("area[city centre]").split() == ["area", "[", "city", "centre", "]"]


def test_values_are_taken_out_and_put_in():
    record, text = "name[Aromi], near[Aromi Hall]", "Aromi is near Aromi Hall, not Aromissimo."
    condition, bare = take_out(record, text, ["name", "near"])
    assert condition == "name[nameValue], near[nearValue]"
    assert bare == "nameValue is near nearValue, not Aromissimo."
    assert put_in(bare, record, ["name", "near"]) == text
    assert take_out(record, text, ["food"]) == (record, text)


WORDS = st.from_regex("[a-z]{1,4}( [a-z]{1,4})?", fullmatch=True)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from("name near food area".split()), WORDS))
def test_what_is_put_in_is_what_was_taken_out(record):
    condition = ", ".join(f"{slot}[{value}]" for slot, value in record.items())
    text = "XX " + " ZZ ".join(record.values()) + " YY"
    slots = list(record)[:2]
    assert put_in(take_out(condition, text, slots)[1], condition, slots) == text
    assert all(placeholder(slot) in take_out(condition, text, slots)[0] for slot in slots)


def test_a_condition_is_padded_and_may_be_missing():
    tokenizer = make_tokenizer()
    rows = encode_conditions(["red fox", None, ""], tokenizer, 3, PAD)
    assert rows == [tokenizer.convert_tokens_to_ids(["red", "fox"]) + [PAD], [PAD] * 3, [PAD] * 3]
    with pytest.raises(ValueError, match=r"The condition 'Tom saw a red' has 4 tokens; .* `condition_length` is 3"):
        encode_conditions(["Tom saw a red"], tokenizer, 3, PAD)


def test_places_of_condition_and_text():
    ids = some_ids(2)
    known = with_condition(None, ids, CONDITION)
    assert known[0].tolist() == [False] + [True] * CONDITION + [False] * (LENGTH - 1 - CONDITION)
    mine = torch.zeros_like(known)
    mine[:, -1] = True
    assert torch.equal(with_condition(mine, ids, CONDITION), known | mine) and mine.sum() == 2
    assert with_condition(None, ids, 0) is None
    assert torch.equal(text_tokens(ids, CONDITION), torch.cat([ids[:, :1], ids[:, 4:]], 1))
    dropped = drop_condition(ids, torch.tensor([True, False]), CONDITION, PAD)
    assert (dropped[0, 1:4] == PAD).all() and torch.equal(dropped[1], ids[1])
    assert torch.equal(text_tokens(dropped, CONDITION), text_tokens(ids, CONDITION))


# --- data ---


@pytest.fixture
def records(tmp_path):
    file = tmp_path / "records.csv"
    lines = [f'"a[{i // 3}]",text {i} of {i // 3}' for i in range(60)]
    file.write_text("mr,ref\n" + "\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize("streaming", [False, True])
def test_no_condition_is_in_two_splits(records, streaming):
    data = load_text_dataset(
        records, column="ref", condition_column="mr", validation_fraction=0.2, streaming=streaming
    )
    train, validation = (list(data[name]) for name in ("train", "validation"))
    assert len(train) == 48 and len(validation) == 12
    assert not {row["condition"] for row in train} & {row["condition"] for row in validation}
    assert all(row["text"].endswith(f"of {row['condition'][2:-1]}") for row in train + validation)


def test_a_missing_condition_column_is_named(records):
    with pytest.raises(ValueError, match="has no column 'record'; its columns are mr, ref"):
        load_text_dataset(records, column="ref", condition_column="record")
    with pytest.raises(ValueError, match="The corpus of embedded stories has no column 'plot'"):
        load_text_dataset("stories", condition_column="plot")


def test_rows_have_the_condition_between_start_and_text(tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": "Tom saw a", "condition": c}) + "\n" for c in ("red fox", "fox")))
    data = load_text_dataset(file, condition_column="condition", validation_fraction=0)
    tokenizer = make_tokenizer()
    prepared, _ = prepare_dataset(data["train"], tokenizer, LENGTH, condition_length=CONDITION)
    assert [tokenizer.convert_ids_to_tokens(row) for row in prepared["input_ids"][:].tolist()] == [
        "<START> red fox <PAD> Tom saw a <END>".split(),
        "<START> fox <PAD> <PAD> Tom saw a <END>".split(),
    ]
    assert prepared["num_tokens"][:].tolist() == [4, 4] and prepared["num_chars"][:].tolist() == [9, 9]
    with pytest.raises(ValueError, match="has no column 'condition'"):
        prepare_dataset(data["train"].remove_columns("condition"), tokenizer, LENGTH, condition_length=CONDITION)


# --- stories ---


def test_the_condition_of_a_story_is_its_plot_hero_and_thing():
    data = load_stories(num_train=40, num_validation=1, num_test=1, conditions=True)["train"]
    grammar = StoryGrammar()
    plain = load_stories(num_train=40, num_validation=1, num_test=1)["train"]
    assert data["text"][:] == plain["text"][:]
    for text, condition in zip(data["text"], data["condition"]):
        plot, hero, thing = condition.split()
        assert grammar.condition(grammar.derivation(text)) == condition
        assert f"{{{plot}}}" in grammar.choices["plot"] and hero in text and thing in text


def test_the_entropy_of_conditions_is_that_of_their_frequencies():
    """By counts of many draws, whose plug-in estimate is too small by about (kinds - 1) / 2n."""
    grammar, n = StoryGrammar(), 40_000
    counts: dict[str, int] = {}
    for _, derivation in grammar.sample_derivations(n, seed="entropy"):
        condition = grammar.condition(derivation)
        counts[condition] = counts.get(condition, 0) + 1
    shares = torch.tensor(list(counts.values()), dtype=torch.float64) / n
    estimate = -(shares * shares.log()).sum().item() + (len(counts) - 1) / (2 * n)
    assert abs(estimate - grammar.condition_entropy()) < 0.02


# --- likelihoods ---


@pytest.mark.parametrize("clock", ["shared", "ramp:2", "blocks:4", "blocks:4:random:9"])
def test_a_condition_is_known_tokens(clock):
    options = {**TWO_STREAM, "clock": clock}
    with_it, without = (make_model("nfdm", condition_length=n, **options) for n in (CONDITION, 0))
    ids = some_ids(3)
    draws, known = with_it.draw(3, seeded(0)), with_condition(None, ids, CONDITION)
    for call in ({}, {"cross_entropy": True}):
        mine, other = (model(ids, draws=draws, known=k, **call) for model, k in ((with_it, None), (without, known)))
        name = "cross_entropy" if call else "bound"
        torch.testing.assert_close(mine[name], other[name], rtol=1e-12, atol=1e-12)
    mine, other = (estimate_likelihood(m, ids, known=k, num_draws=2) for m, k in ((with_it, None), (without, known)))
    assert mine.nats_per_story.value == pytest.approx(other.nats_per_story.value, rel=1e-12)
    mine, other = (score_texts(m, ids, k, clock=clock).nats for m, k in ((with_it, None), (without, known)))
    torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_the_clean_stream_does_not_count_the_condition():
    with_it, without = (make_model("nfdm", condition_length=n, **TWO_STREAM) for n in (CONDITION, 0))
    ids = some_ids(3)
    mine = with_it(ids, next_token_weight=1.0, next_token_only=True).next_token
    every = without.clean_stream(ids, None, next_token=True)[1]
    torch.testing.assert_close(mine, every[:, CONDITION:].sum(-1))
    assert exact_likelihood(with_it, ids).nats_per_story.value == pytest.approx(mine.mean().item())


def test_no_likelihood_counts_the_positions_of_the_condition():
    size = {"vocab_size": VOCAB, "max_length": LENGTH, "condition_length": CONDITION}
    model = make_model("nfdm", condition_length=CONDITION, jumps=True, **TWO_STREAM)
    ids = some_ids(3)
    for estimate in (
        estimate_likelihood(model, ids, num_draws=2),
        exact_likelihood(model, ids),
        jump_likelihood(model, ids, num_inference_steps=2),
        masked_likelihood(make_masked(**size), ids, num_draws=2),
        exact_likelihood(make_baseline(**size), ids),
    ):
        positions = estimate.nats_per_story.value / estimate.nats_per_position.value
        assert positions == pytest.approx(LENGTH - CONDITION)


def test_jumps_begin_behind_the_condition():
    """Over one token they are the clean stream, and their likelihood is that of the text alone."""
    model = make_model("nfdm", condition_length=CONDITION, jumps=True, **TWO_STREAM)
    ids = some_ids(4)
    nats = model.clean_stream(ids, None, next_token=True)[1].sum(-1).mean().item()
    assert jump_likelihood(model, ids, num_inference_steps=ids.shape[1]).nats_per_story.value == pytest.approx(nats)
    output = model(ids, clock="blocks:1", jumps=True, next_token_weight=1.0, generator=seeded(0))
    torch.testing.assert_close(output.jump, output.next_token)
    longer = model(ids, clock="shared", jumps=True, next_token_weight=1.0, generator=seeded(0))
    assert longer.jump.shape == (4,) and not torch.allclose(longer.jump, longer.next_token)


@pytest.mark.parametrize("block_size", [4, 8])
def test_masked_diffusion_does_not_hide_the_condition(block_size):
    options = {"vocab_size": VOCAB, "max_length": LENGTH, "block_size": block_size}
    with_it, without = (make_masked(condition_length=n, **options) for n in (CONDITION, 0))
    ids = some_ids(3)
    draws, known = with_it.draw(3, seeded(0)), with_condition(None, ids, CONDITION)
    torch.testing.assert_close(with_it(ids, draws=draws).bound, without(ids, known, draws=draws).bound)
    tokens = torch.full((3,), LENGTH - 1 - CONDITION)
    mine = masked_likelihood(with_it, ids, tokens, num_draws=2)
    assert mine.nats_per_token.value == pytest.approx(mine.nats_per_story.value / tokens[0].item())


def test_the_autoregressive_model_does_not_count_the_condition():
    options = {"vocab_size": VOCAB, "max_length": LENGTH}
    model = make_baseline(condition_length=CONDITION, **options)
    ids = some_ids(3)
    logits = model.token_logits(ids[:, :-1])[0]
    every = -torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(model(ids).bound, every[:, CONDITION:].sum(-1))
    # A condition may be padded; a text may not.
    ids[:, 2:4] = PAD
    assert torch.isfinite(model(ids).bound).all()
    ids[:, 5] = PAD
    with pytest.raises(ValueError, match="START or PAD before END in row 0"):
        model(ids)


@pytest.mark.parametrize("length", [-1, 1.5, True, LENGTH - 2])
def test_lengths_that_cannot_be_are_refused(length):
    with pytest.raises(ValueError, match="`condition_length` is"):
        make_model("nfdm", condition_length=length, **TWO_STREAM)
