"""Prompts: what is read from them, what comes back, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import make_pipeline, make_tokenizer, seeded

from diffusers_text_nfdm import DraftVerifyScheduler, MarkovChainScheduler, RefinementScheduler, score_texts
from diffusers_text_nfdm.pipelines.prompts import GAP, MASK, read_prompts


LENGTH = 9
TWO_STREAM = {"max_length": LENGTH, "predictor": "two_stream", "prediction_type": "categorical"}
SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3}


def pipeline(scheduler=None, name="diffusion-lm", **options):
    return make_pipeline(name, scheduler, **{**TWO_STREAM, **SPECIAL, **options})


def words(row) -> list[str]:
    return make_tokenizer().convert_ids_to_tokens(row.tolist())


def test_a_beginning_leaves_the_rest_to_the_model():
    prompts = read_prompts(["Tom saw"], make_tokenizer(), LENGTH)
    assert words(prompts.input_ids[0, :3]) == ["<START>", "Tom", "saw"]
    assert prompts.known[0].tolist() == [True] * 3 + [False] * 6


def test_a_beginning_of_fixed_length_ends_with_end():
    prompts = read_prompts(["Tom saw"], make_tokenizer(), LENGTH, gen_length=3)
    assert prompts.known[0].tolist() == [True] * 3 + [False] * 3 + [True] * 3
    assert words(prompts.input_ids[0, 6:]) == ["<END>", "<PAD>", "<PAD>"]


def test_masks_are_one_token_each_wherever_they_stand():
    prompts = read_prompts([f"{MASK} saw {MASK}{MASK} fox ."], make_tokenizer(), LENGTH)
    assert prompts.known[0].tolist() == [True, False, True, False, False, True, True, True, True]
    assert words(prompts.input_ids[0])[2] == "saw"
    assert words(prompts.input_ids[0])[5:8] == ["fox", ".", "<END>"]


def test_a_gap_is_tried_with_every_length_that_fits():
    tokenizer = make_tokenizer()
    assert read_prompts([f"Tom {GAP} ."], tokenizer, LENGTH).candidates == [5]
    prompts = read_prompts([f"Tom {GAP} .", "Tom"], tokenizer, LENGTH, max_gap_length=2)
    assert prompts.candidates == [2, 1]
    assert [(~row).sum().item() for row in prompts.known] == [1, 2, 7]


def test_words_outside_of_the_vocabulary_are_named_once():
    with pytest.warns(UserWarning, match=r"unknown words: 'zebra'\.$"):
        read_prompts(["Tom saw zebra", "a zebra"], make_tokenizer(), LENGTH)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "Tom saw a red fox . Tom saw"}, "takes 9 tokens with START and leaves none to write"),
        ({"prompt": f"Tom saw a red fox . Tom {MASK}"}, "takes 10 tokens with START and END; the model has 9"),
        ({"prompt": f"Tom saw a red fox . Tom {GAP}"}, "takes 10 tokens with START and END; the model has 9"),
        ({"prompt": "Tom", "gen_length": 7}, "takes 10 tokens with START and END and the 7 of `gen_length`"),
        ({"prompt": f"{GAP} saw {GAP}"}, "has 2 gaps; one"),
        ({"prompt": f"Tom {MASK}", "gen_length": 2}, "`gen_length` is for a beginning"),
        ({"prompt": "Tom", "gen_length": 0}, "`gen_length` is 0; it must be an integer of at least 1"),
        ({"prompt": f"Tom {GAP}", "max_gap_length": 1.5}, "`max_gap_length` is 1.5"),
        ({"prompt": 3}, "`prompt` is 3; it must be a text or a list of texts"),
        ({"prompt": []}, r"`prompt` is \[\]"),
        ({"prompt": ["Tom", 3]}, "`prompt` is a int"),
        ({"prompt": ["Tom", "a"], "num_samples": 3}, "There are 2 of `prompt` for 3 texts"),
        ({"prompt": "Tom", "input_ids": torch.zeros(1, LENGTH)}, "`prompt` and `condition` say what is known"),
        ({"gen_length": 3}, "`gen_length` needs a `prompt`"),
        ({"prompt": f"Tom {GAP}", "output_type": "latent"}, "A gap needs `output_type` 'text' or 'seq'"),
    ],
)
def test_bad_prompts_are_refused_in_a_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        pipeline()(**options)


@pytest.mark.parametrize("scheduler", [None, DraftVerifyScheduler(3)], ids=["chain", "draft"])
@pytest.mark.parametrize("clock", [None, "ramp:3", "blocks:3"])
def test_what_is_known_comes_back(scheduler, clock):
    pipe = pipeline(scheduler)
    prompts = ["Tom saw", f"Tom {MASK} a {MASK} fox .", f"{MASK} ran ."]
    options = {"num_inference_steps": 9, "output_type": "seq"}
    if scheduler is None:
        options["clock"] = clock
    for prompt in prompts:
        given_tokens = read_prompts([prompt], pipe.tokenizer, LENGTH)
        sequences = pipe(prompt=prompt, num_samples=3, generator=seeded(0), **options).sequences
        known = given_tokens.known.expand(3, -1)
        assert torch.equal(sequences[known], given_tokens.input_ids.expand(3, -1)[known])


@settings(max_examples=20, deadline=None)
@given(
    mask=st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH).filter(lambda mask: not all(mask)),
    clock=st.sampled_from(["shared", "ramp:2", "ramp:20", "random:3", "blocks:3", "blocks:3:ramp:2"]),
    name=st.sampled_from(["nfdm", "mulan", "diffusion-lm"]),
    seed=st.integers(0, 2**31),
)
def test_known_tokens_are_bit_equal_for_any_mask(mask, clock, name, seed):
    pipe = pipeline(MarkovChainScheduler(0.5), name)
    ids = torch.randint(4, 11, (2, LENGTH), generator=seeded(seed))
    known = torch.tensor(mask).expand(2, -1)
    output = pipe(
        input_ids=ids, known=known, clock=clock, num_inference_steps=5, generator=seeded(seed), output_type="seq"
    )
    assert torch.equal(output.sequences[known], ids[known])


def test_a_prompt_alone_and_in_a_batch_gives_the_same_text():
    pipe = pipeline(MarkovChainScheduler(prediction="tokens"))
    prompts = ["Tom saw", f"Tom {MASK} a {MASK} fox .", f"Tom {GAP} ."]
    options = {"num_inference_steps": 6, "max_gap_length": 3}
    together = pipe(prompt=prompts, generator=[seeded(i) for i in range(3)], **options).texts
    alone = [pipe(prompt=prompt, generator=[seeded(i)], **options).texts[0] for i, prompt in enumerate(prompts)]
    assert together == alone


def test_drafts_continue_beginnings_of_different_lengths():
    pipe = pipeline(DraftVerifyScheduler(3))
    prompts = ["Tom", "Tom saw a red fox", "Tom saw"]
    together = pipe(prompt=prompts, generator=[seeded(i) for i in range(3)])
    for i, prompt in enumerate(prompts):
        assert together.texts[i].startswith(prompt)
        assert pipe(prompt=prompt, generator=[seeded(i)]).texts == [together.texts[i]]


def test_drafts_fill_gaps_by_refinement_and_keep_their_scheduler():
    pipe = pipeline(DraftVerifyScheduler(3, temperature=0.7, min_p=0.1))
    options = {"prompt": f"Tom {MASK} a fox .", "num_inference_steps": 5}
    filled = pipe(generator=seeded(0), **options)
    assert isinstance(pipe.scheduler, DraftVerifyScheduler)
    pipe.scheduler = RefinementScheduler(temperature=0.7, min_p=0.1)
    assert pipe(generator=seeded(0), **options).texts == filled.texts


@pytest.mark.parametrize("options", [{}, {"predictor": "bert"}], ids=["clean-stream", "bound"])
def test_of_a_gap_the_most_probable_text_is_kept(options):
    pipe = pipeline(MarkovChainScheduler(prediction="tokens"), **options)
    call = {"num_inference_steps": 6, "output_type": "seq"}
    candidates = read_prompts([f"Tom {GAP} ."], pipe.tokenizer, LENGTH, max_gap_length=4)
    rows = pipe(
        input_ids=candidates.input_ids, known=candidates.known, generator=[seeded(5) for _ in range(4)], **call
    )
    best = rows.sequences[score_texts(pipe.model, rows.sequences).nats.argmin()]
    output = pipe(prompt=f"Tom {GAP} .", max_gap_length=4, generator=[seeded(5)], **call)
    assert torch.equal(output.sequences[0], best)
    assert output.calls.tolist() == [int(rows.calls.sum())]
