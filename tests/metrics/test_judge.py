"""Perplexity against one token at a time, and a judge's cache, files and errors."""

import math

import numpy as np
import pytest
import torch

from diffusers_text_nfdm.metrics import Judge, perplexity


@pytest.fixture(scope="module")
def texts(grammar):
    stories = grammar.sample(9, seed=3)
    # Of very different lengths, one of them a single token.
    return [*stories, stories[0][:25], "Tom", stories[1][:60], stories[0]]


def one_token_at_a_time(judge, text):
    """`-log p` of each token by a call of its own, without padding."""
    ids = [judge.tokenizer.bos_token_id, *judge.tokenizer.encode(text, add_special_tokens=False)]
    nats = []
    for place in range(1, len(ids)):
        logits = judge.model(torch.tensor([ids[:place]])).logits[0, -1].double()
        nats.append((logits.logsumexp(0) - logits[ids[place]]).item())
    return nats


@torch.no_grad()
def test_perplexities_are_those_of_single_tokens(judge, texts):
    nats = [one_token_at_a_time(judge, text) for text in texts]
    result = perplexity(texts, judge)
    tokens = sum(map(len, nats))
    assert result["perplexity"] == pytest.approx(math.exp(sum(map(sum, nats)) / tokens), rel=1e-5)
    assert result["mean_text_perplexity"] == pytest.approx(np.mean([math.exp(np.mean(one)) for one in nats]), rel=1e-5)
    assert abs(result["perplexity"] / result["mean_text_perplexity"] - 1) > 0.01
    settings = result["settings"]
    assert (settings["texts"], settings["predicted_tokens"], settings["start_token"]) == (
        len(texts),
        tokens,
        "<|endoftext|>",
    )


def test_neither_batch_nor_padding_nor_order_matters(judge_folder, texts):
    alone = Judge.from_pretrained(judge_folder, device="cpu", batch_size=1)
    together = Judge.from_pretrained(judge_folder, device="cpu", batch_size=len(texts))
    nats, tokens = alone.negative_log_probabilities(texts)
    others = together.negative_log_probabilities(texts[::-1])
    np.testing.assert_allclose(nats, others[0][::-1], rtol=1e-5)
    assert tokens.tolist() == others[1][::-1].tolist()
    np.testing.assert_allclose(alone.features(texts), together.features(texts), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_without_a_start_token_the_first_token_is_given(judge, texts):
    bare = judge.tokenizer
    bare.bos_token = bare.eos_token = None
    judge = Judge(judge.model, bare, "bare")
    text, ids = texts[0], bare.encode(texts[0], add_special_tokens=False)
    nats, tokens = judge.negative_log_probabilities([text])
    loss = judge.model(torch.tensor([ids]), labels=torch.tensor([ids])).loss.item()
    assert tokens.tolist() == [len(ids) - 1] and nats[0] == pytest.approx(loss * (len(ids) - 1), rel=1e-5)
    assert judge.settings["start_token"] is None
    unknown = Judge(judge.model, bare, "unknown", start_token="<unk>")
    assert unknown.settings["start_token"] == "<unk>" and unknown.negative_log_probabilities([text])[1] == len(ids)
    with pytest.raises(ValueError, match="`start_token` is '<s>', which is no token"):
        Judge(judge.model, bare, "bare", start_token="<s>")
    with pytest.raises(ValueError, match="no token to predict in 'Tom'"):
        judge.negative_log_probabilities(["Tom"])


def test_what_was_judged_is_not_judged_again(judge_folder, texts, tmp_path, monkeypatch):
    first = Judge.from_pretrained(judge_folder, device="cpu", cache_dir=tmp_path)
    expected = perplexity(texts, first)
    # A run that is killed leaves half a line.
    (cache,) = tmp_path.glob("*.jsonl")
    cache.write_text(cache.read_text() + '\n{"text": "Half')
    second = Judge.from_pretrained(judge_folder, device="cpu", cache_dir=tmp_path)
    calls = []
    monkeypatch.setattr(second, "_forward", lambda rows, *rest: calls.append(len(rows)) or first._forward(rows, *rest))
    assert perplexity(texts, second) == expected and calls == []
    assert perplexity([*texts, "Ella ran."], second)["perplexity"] != expected["perplexity"] and calls == [1]


def test_judges_with_other_weights_do_not_share_a_cache(judge_folder, texts, tmp_path):
    one = Judge.from_pretrained(judge_folder, device="cpu", cache_dir=tmp_path)
    perplexity(texts, one)
    with torch.no_grad():
        one.model.transformer.h[1].mlp.c_fc.weight.mul_(1.5)
    other = Judge(one.model, one.tokenizer, one.name, cache_dir=tmp_path)
    assert perplexity(texts, other)["perplexity"] != perplexity(texts, one)["perplexity"]


@pytest.mark.parametrize("texts", [[], [" "], "Tom"], ids=["none", "blank", "string"])
def test_texts_that_cannot_be_judged(judge, texts):
    with pytest.raises(ValueError, match="`texts"):
        perplexity(texts, judge)


def test_a_text_longer_than_the_judge_reads(judge):
    with pytest.raises(ValueError, match="101 tokens is longer than the 96"):
        perplexity(["Tom " * 100], judge)


def test_a_judge_that_is_not_there_says_how_to_get_one(tmp_path):
    with pytest.raises(
        ValueError, match="judge 'no-such/model' cannot be loaded.*give the folder of a downloaded model"
    ):
        Judge.from_pretrained("no-such/model")
    with pytest.raises(ValueError, match="0 GGUF files"):
        Judge.from_pretrained(tmp_path)
    (tmp_path / "weights.bin").touch()
    with pytest.raises(ValueError, match="no .gguf file"):
        Judge.from_pretrained(tmp_path / "weights.bin")
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match="2 GGUF files"):
        Judge.from_pretrained(tmp_path)


@pytest.mark.slow
def test_smollm2_prefers_stories_to_their_words_in_disorder():
    pytest.importorskip("gguf", reason="pip install gguf")
    try:
        judge = Judge.from_pretrained("smollm2", device="cpu")
    except ValueError as error:
        pytest.skip(str(error))
    text = "Tom went to the lake with his dog. The dog jumped into the water. Tom laughed and called it back."
    disorder = " ".join(sorted(text.split()))
    assert perplexity([text], judge)["perplexity"] < 40 < 200 < perplexity([disorder], judge)["perplexity"]
    assert judge.settings["start_token"] == "<|endoftext|>"
    assert judge.features([text, disorder]).shape == (2, 576)
