"""Runs with a vocabulary of their own: subwords, and words that a checkpoint lacked."""

import json

import pytest
import torch

from diffusers_text_nfdm import NFDMTextPipeline, WordTokenizer
from diffusers_text_nfdm.training import train
from diffusers_text_nfdm.training.preparation import TrainingData, build_model
from runs import arguments


TWO_STREAM = {"predictor": "two_stream", "prediction_type": "categorical", "clock": "ramp:8", "jumps": True}
SETTINGS = {
    "model_config": TWO_STREAM, "cross_entropy_steps": 1, "next_token_weight": 1.0, "clocks": {"ramp:8": 1.0},
    "jump_clocks": {"ramp:8": 1.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(data, tmp_path_factory):
    run = tmp_path_factory.mktemp("start") / "run"
    train(arguments(data, run, max_steps=2, **SETTINGS))
    return run / "pipeline"


@pytest.fixture(scope="module")
def new_data(data, tmp_path_factory):
    """The stories, in which a word is exchanged for one that the checkpoint has never seen."""
    folder = tmp_path_factory.mktemp("new")
    for name in ("train", "valid"):
        rows = [json.loads(line)["text"] for line in (data / f"{name}.jsonl").read_text().splitlines()]
        rows = [text.replace(" a ", " zorbled ") for text in rows]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    return folder


def test_a_run_on_subwords_releases_and_resumes_its_tokenizer(data, tmp_path):
    options = {"tokenizer": "subword", "vocab_size": 300, "max_length": 128, "checkpoint_every": 1}
    train(arguments(data, tmp_path / "run", max_steps=2, stop_after_steps=1, **options))
    train(arguments(data, tmp_path / "run", max_steps=2, resume="latest", **options))
    pipe = NFDMTextPipeline.from_pretrained(tmp_path / "run" / "pipeline")
    assert pipe.model.config.vocab_size == len(pipe.tokenizer) == 300
    text = "Any text, even naïve ones."
    assert pipe.tokenizer.unk_token_id not in pipe.tokenizer(text)["input_ids"]
    assert len(pipe(num_samples=2, num_inference_steps=2).texts) == 2


def test_a_grown_vocabulary_keeps_what_is_learned_and_adds_rows(new_data, checkpoint, tmp_path):
    options = {**SETTINGS, "model_name_or_path": str(checkpoint), "min_word_count": 5}
    start = NFDMTextPipeline.from_pretrained(checkpoint)
    old, texts = start.model.state_dict(), TrainingData(arguments(new_data, None, grow_vocabulary=True, **options))
    size, added = len(start.tokenizer), texts.tokenizer.convert_tokens_to_ids("zorbled")
    assert start.tokenizer.convert_tokens_to_ids("zorbled") == start.tokenizer.unk_token_id
    assert added >= size and texts.unknown_share < TrainingData(arguments(new_data, None, **options)).unknown_share
    model = build_model(arguments(new_data, None, grow_vocabulary=True, **options), texts)
    new = model.state_dict()
    for name, weight in old.items():
        kept = new[name][:size] if len(weight.shape) and len(weight) == size else new[name]
        assert torch.equal(kept, weight), name
    assert model.token_bias.shape == (len(texts.tokenizer),) and model.token_bias[added] < -1
    assert sorted(model.token_order.tolist()) == list(range(len(texts.tokenizer)))
    train(arguments(new_data, tmp_path / "run", max_steps=2, grow_vocabulary=True, **options))
    pipe = NFDMTextPipeline.from_pretrained(tmp_path / "run" / "pipeline")
    assert "zorbled" in pipe.tokenizer.get_vocab() and len(pipe(num_samples=2, num_inference_steps=2).texts) == 2


def test_a_grown_tokenizer_keeps_all_ids(tmp_path):
    tokenizer = WordTokenizer.from_texts(["a fox ran", "a fox"], min_count=0, max_length=16)
    grown = tokenizer.grown(["a dog ran", "the dog"], min_count=0)
    assert {word: grown.get_vocab()[word] for word in tokenizer.get_vocab()} == tokenizer.get_vocab()
    assert grown.get_vocab()["dog"] == len(tokenizer) and grown.get_vocab()["the"] == len(tokenizer) + 1
    grown.save_pretrained(tmp_path)
    loaded = WordTokenizer.from_pretrained(tmp_path)
    text = "a fox saw the dog."
    assert loaded(text)["input_ids"] == grown(text)["input_ids"] and loaded.model_max_length == 16
    assert loaded.decode(loaded("the dog ran")["input_ids"], skip_special_tokens=True) == "the dog ran"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grow_vocabulary": True}, "`grow_vocabulary` is for a run from `model_name_or_path`"),
        ({"grow_vocabulary": True, "model_name_or_path": "x", "streaming": True}, "needs the texts before training"),
        ({"vocab_size": 100}, "`vocab_size` is 100; it must be at least 260"),
    ],
)
def test_what_cannot_be_is_refused(data, options, message):
    with pytest.raises(ValueError, match=message):
        arguments(data, None, **options)
