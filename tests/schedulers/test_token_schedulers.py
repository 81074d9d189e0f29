"""What schedulers that write tokens share: saving, loading, exchanging, prompts."""

import itertools

import pytest
import torch
from tiny import logged_warnings, make_pipeline, seeded

from diffusers_text_nfdm import (
    DraftVerifyScheduler,
    JumpScheduler,
    MarkovChainScheduler,
    NFDMTextPipeline,
    RefinementScheduler,
    TokenScheduler,
)
from diffusers_text_nfdm.schedulers import SCHEDULERS


LENGTH = 9
OPTIONS = {
    "prediction_type": "categorical", "predictor": "two_stream", "jumps": True, "max_length": LENGTH,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3,
}  # fmt: skip
TOKEN_SCHEDULERS = {
    "jump": JumpScheduler(jump_length=3, min_p=0.1),
    "refinement": RefinementScheduler(block_length=3, entropy_budget=0.5, temperature=0.8),
    "draft": DraftVerifyScheduler(block_size=3, min_p=0.1),
}


def pipeline(scheduler):
    return make_pipeline("nfdm", scheduler, torch.float32, **OPTIONS)


@pytest.mark.parametrize("scheduler", TOKEN_SCHEDULERS.values(), ids=TOKEN_SCHEDULERS)
def test_a_saved_pipeline_writes_the_same_texts(scheduler, tmp_path):
    pipe = pipeline(scheduler)
    pipe.save_pretrained(tmp_path)
    with logged_warnings() as messages:
        loaded = NFDMTextPipeline.from_pretrained(tmp_path)
    assert type(loaded.scheduler) is type(scheduler) and not messages
    expected = pipe(num_samples=5, generator=seeded(0)).sequences
    assert torch.equal(loaded(num_samples=5, generator=seeded(0)).sequences, expected)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(SCHEDULERS, SCHEDULERS)))
def test_all_schedulers_are_exchanged_by_their_configs_without_a_warning(old, new):
    with logged_warnings() as messages:
        exchanged = new.from_config(old().config)
    assert isinstance(exchanged, new) and not messages


@pytest.mark.parametrize("scheduler", TOKEN_SCHEDULERS.values(), ids=TOKEN_SCHEDULERS)
def test_beginnings_are_continued_and_gaps_filled(scheduler):
    pipe = pipeline(scheduler)
    texts = pipe(prompt=["Tom saw", "Tom ran [MASK] fox"], generator=seeded(0)).sequences
    ids = pipe.tokenizer("Tom saw", add_special_tokens=False)["input_ids"]
    assert texts[0, 1:3].tolist() == ids
    assert [texts[1, i].item() for i in (1, 2, 4)] == [
        pipe.tokenizer.convert_tokens_to_ids(word) for word in ("Tom", "ran", "fox")
    ]
    assert type(pipe.scheduler) is type(scheduler)


@pytest.mark.parametrize("prompt", [None, "Tom saw", "Tom ran [MASK] fox"])
@pytest.mark.parametrize(
    "scheduler",
    [*TOKEN_SCHEDULERS.values(), MarkovChainScheduler(prediction="tokens")],
    ids=[*TOKEN_SCHEDULERS, "chain"],
)
def test_the_knobs_of_a_call_act_on_what_is_drawn(scheduler, prompt):
    pipe, own = pipeline(scheduler), dict(scheduler.config)
    options = {"prompt": prompt, "num_samples": 6}
    options |= {} if isinstance(scheduler, TokenScheduler) else {"num_inference_steps": 4}

    def write(**knobs):
        return pipe(**options, **knobs, generator=seeded(0)).sequences

    # Of a chain the noise of later steps depends on whether random numbers were drawn before.
    best = write(temperature=0) if isinstance(scheduler, TokenScheduler) else write(temperature=1.0, top_k=1)
    for cut in ({"top_k": 1}, {"top_p": 1e-9}, {"top_p": 1e-320}, {"min_p": 0.999999}, {"temperature": 1e-320}):
        assert torch.equal(write(**{"temperature": 1.0, **cut}), best), cut
    assert not torch.equal(write(temperature=50.0, min_p=0.0), best)
    # What is the same as in the scheduler's config changes nothing, and the scheduler stays as it was.
    same = {name: own[name] for name in ("temperature", "top_k", "top_p", "min_p")}
    assert torch.equal(write(**same), write()) and dict(pipe.scheduler.config) == own


CONTRASTED = [
    DraftVerifyScheduler(block_size=3, min_p=0.01),
    RefinementScheduler(min_p=0.01),
    RefinementScheduler(min_p=0.01, candidates=16),
]


@pytest.mark.parametrize("scheduler", CONTRASTED, ids=["drafts", "refinement", "candidates"])
def test_contrast_favours_rare_tokens(scheduler):
    pipe, word = pipeline(scheduler), 5
    with torch.no_grad():
        pipe.model.token_bias[word] += 3
    shares = []
    for contrast in (0.0, 1.0, 2.0):
        # A setting of the call, and one of the scheduler.
        called = pipe(num_samples=60, contrast=contrast, generator=seeded(2)).sequences
        pipe.scheduler = type(scheduler).from_config(scheduler.config, contrast=contrast)
        assert torch.equal(pipe(num_samples=60, generator=seeded(2)).sequences, called)
        pipe.scheduler = scheduler
        shares.append((called == word).float().mean())
    assert shares[0] > shares[1] > shares[2]


def test_contrast_is_refused_where_it_has_no_meaning():
    with pytest.raises(ValueError, match="`contrast` is 0.5, which favours rare tokens; it needs `min_p`"):
        DraftVerifyScheduler(contrast=0.5)
    with pytest.raises(ValueError, match="`contrast` is 0.5, which favours rare tokens; it needs `min_p`"):
        pipeline(DraftVerifyScheduler())(contrast=0.5)
    for scheduler in (JumpScheduler(min_p=0.1), MarkovChainScheduler(prediction="tokens", min_p=0.1)):
        with pytest.raises(ValueError, match=f"`contrast` has no meaning for {type(scheduler).__name__}"):
            pipeline(scheduler)(contrast=0.5)
    # The call takes the cut away that the setting needs.
    with pytest.raises(ValueError, match="`contrast` is 0.5, which favours rare tokens; it needs `min_p`"):
        pipeline(DraftVerifyScheduler(min_p=0.1, contrast=0.5))(min_p=0.0)
    # At temperature 0 the settings of a draw have no effect, and are not in the way.
    for knobs in ({"min_p": 0.0, "contrast": 0.0}, {"temperature": 0.0}):
        plain, pipe = pipeline(DraftVerifyScheduler()), pipeline(DraftVerifyScheduler(min_p=0.1, contrast=0.5))
        expected = plain(**{**knobs, "contrast": None}, generator=seeded(0)).sequences
        assert torch.equal(pipe(**knobs, generator=seeded(0)).sequences, expected)
    scheduler, logits = DraftVerifyScheduler(contrast=0.5, min_p=0.1), torch.zeros(1, 4)
    with pytest.raises(ValueError, match="`contrast` is 0.5, which needs `log_frequencies`"):
        scheduler.probabilities(logits)


@pytest.mark.parametrize("scheduler", TOKEN_SCHEDULERS.values(), ids=TOKEN_SCHEDULERS)
def test_cuts_of_the_config_are_those_of_the_call(scheduler):
    pipe = pipeline(scheduler)
    called = pipe(num_samples=6, temperature=3.0, top_k=2, top_p=0.9, min_p=0.0, generator=seeded(1)).sequences
    pipe.scheduler = type(scheduler).from_config(scheduler.config, temperature=3.0, top_k=2, top_p=0.9, min_p=0.0)
    assert torch.equal(pipe(num_samples=6, generator=seeded(1)).sequences, called)


@pytest.mark.parametrize("scheduler", TOKEN_SCHEDULERS.values(), ids=TOKEN_SCHEDULERS)
def test_what_has_no_meaning_is_refused_by_name(scheduler):
    pipe, name = pipeline(scheduler), type(scheduler).__name__
    for options in ({"clock": "ramp:2"}, {"timesteps": [1.0, 0.5]}, {"output_type": "latent"}):
        with pytest.raises(ValueError, match=f"`{next(iter(options))}` has no meaning for {name}"):
            pipe(**options)


@pytest.mark.parametrize("scheduler", TOKEN_SCHEDULERS.values(), ids=TOKEN_SCHEDULERS)
def test_a_callback_sees_the_tokens_of_every_call(scheduler):
    pipe, seen = pipeline(scheduler), []
    options = {"num_samples": 2, "callback_on_step_end": lambda *call: seen.append(call[1:])}
    with pytest.raises(ValueError, match="has only 'tokens' and 'known' for a callback"):
        pipe(**options)
    output = pipe(
        **options, callback_on_step_end_tensor_inputs=["tokens"], return_trajectory=True, generator=seeded(0)
    )
    steps, to_write, tensors = zip(*seen)
    assert steps == tuple(range(len(output.trajectory)))
    assert torch.equal(torch.stack(to_write), output.trajectory_times)
    assert torch.equal(torch.stack([one["tokens"] for one in tensors]), output.trajectory)
