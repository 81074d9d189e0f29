"""Draft and verify: whatever the drafts are worth, the texts have the clean stream's distribution."""

import pytest
import torch
from scipy.stats import chisquare
from tiny import logged_warnings, make_model, make_pipeline, seeded

from diffusers_text_nfdm import DraftVerifyScheduler, MarkovChainScheduler
from diffusers_text_nfdm.models.token_choice import draw_from


VOCAB, N = 4, 100_000


def distributions(*shape, seed):
    return torch.softmax(torch.randn(*shape, VOCAB, dtype=torch.float64, generator=seeded(seed)), -1)


def assert_drawn_from(tokens, probabilities):
    counts = torch.bincount(tokens, minlength=VOCAB).double()
    assert chisquare(counts, probabilities * counts.sum()).pvalue > 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_every_token_has_the_distribution_of_the_clean_stream_given_those_before_it(seed):
    """Drafts of two tokens from q, verified by a p whose second token depends on the first."""
    q, first, second = distributions(2, seed=seed), distributions(seed=10 + seed), distributions(VOCAB, seed=20 + seed)
    after = distributions(VOCAB, seed=30 + seed)
    uniforms = torch.rand(N, 5, dtype=torch.float64, generator=seeded(40 + seed))
    draft = draw_from(q.expand(N, -1, -1), uniforms[:, :2])
    p = torch.stack([first.expand(N, -1), second[draft[:, 0]], after[draft[:, 1]]], dim=1)
    accepted, token = DraftVerifyScheduler().step(draft, q.expand(N, -1, -1), p, uniforms[:, 2:])
    one = torch.where(accepted > 0, draft[:, 0], token)
    assert_drawn_from(one, first)
    for kind in range(VOCAB):
        rows = (accepted > 0) & (draft[:, 0] == kind)
        two = torch.where(accepted > 1, draft[:, 1], token)[rows]
        assert_drawn_from(two, second[kind])
    # More of a draft is accepted the closer it is.
    assert accepted.double().mean() < 2


def test_a_draft_of_the_clean_stream_itself_is_accepted_whole():
    p = distributions(4, seed=0).expand(100, -1, -1)
    draft = draw_from(p[:, :3], torch.rand(100, 3, dtype=torch.float64, generator=seeded(1)))
    uniforms = torch.rand(100, 4, dtype=torch.float64, generator=seeded(2))
    assert (DraftVerifyScheduler().step(draft, p[:, :3], p, uniforms).accepted == 3).all()


def two_stream_pipeline(**options):
    tokens = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3}
    options = {"prediction_type": "categorical", "predictor": "two_stream", **tokens, **options}
    return make_pipeline("nfdm", DraftVerifyScheduler(block_size=3), torch.float64, **options)


def test_texts_of_the_pipeline_have_the_distribution_of_the_clean_stream():
    pipe = two_stream_pipeline()
    output = pipe(num_samples=4000, batch_size=1000, generator=seeded(0), output_type="seq")
    assert (output.sequences[:, 0] == 0).all()
    states, _ = pipe.model.read_clean(torch.zeros(1, 1, dtype=torch.long))
    states, weight, bias = pipe.model.next_token_factors(states)
    expected = torch.softmax(states @ weight.T + bias, -1)[0, 0].detach()
    counts = torch.bincount(output.sequences[:, 1], minlength=len(expected)).double()
    assert chisquare(counts, expected * 4000).pvalue > 1e-4
    # After END there is padding.
    ended = (output.sequences == 1).cumsum(1) - (output.sequences == 1).long() > 0
    assert (output.sequences[ended] == 3).all()


def test_a_text_does_not_depend_on_its_batch_and_a_call_writes_at_most_a_block():
    pipe = two_stream_pipeline()
    together = pipe(num_samples=12, batch_size=12, generator=[seeded(i) for i in range(12)], output_type="seq")
    alone = [pipe(num_samples=1, generator=[seeded(i)], output_type="seq") for i in range(12)]
    assert torch.equal(together.sequences, torch.cat([output.sequences for output in alone]))
    assert torch.equal(together.calls, torch.cat([output.calls for output in alone]))
    assert together.num_function_evaluations == together.calls.max()
    written = (together.sequences != 3).sum(1) - 1
    assert (together.calls * 3 >= written).all() and (together.calls < together.sequences.shape[1]).all()


def test_a_text_that_is_not_finished_is_cut_off():
    pipe = two_stream_pipeline()
    output = pipe(num_samples=20, num_inference_steps=1, generator=seeded(1), output_type="seq")
    assert (output.calls == 1).all() and ((output.sequences != 3).sum(1) <= 2).all()


def test_schedulers_are_exchanged_by_their_configs():
    pipe = two_stream_pipeline()
    with logged_warnings() as messages:
        pipe.scheduler = MarkovChainScheduler.from_config(pipe.scheduler.config, prediction="tokens")
        assert len(pipe(num_samples=2, num_inference_steps=4, generator=seeded(0)).texts) == 2
        pipe.scheduler = DraftVerifyScheduler.from_config(pipe.scheduler.config)
        assert len(pipe(num_samples=2, generator=seeded(0)).texts) == 2
    assert messages == []


@pytest.mark.parametrize(
    "options, message",
    [
        ({"block_size": 1}, "`block_size` is 1; it must be an integer of at least 2"),
        ({"temperature": -1}, "`temperature` is -1; it must be at least 0"),
        ({"min_p": 1.0}, "`min_p` is 1.0; it must be in"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DraftVerifyScheduler(**options)


def test_what_has_no_meaning_for_it_is_refused():
    pipe = two_stream_pipeline()
    for options in ({"clock": "shared"}, {"timesteps": [0.5]}, {"output_type": "latent"}):
        with pytest.raises(ValueError, match=f"`{next(iter(options))}` has no meaning for DraftVerifyScheduler"):
            pipe(num_samples=2, **options)
    pipe = make_pipeline("nfdm", DraftVerifyScheduler())
    with pytest.raises(ValueError, match="needs a clean stream.*'bert'"):
        pipe(num_samples=2)


def test_a_model_without_a_clean_stream_has_no_next_token():
    with pytest.raises(ValueError, match="`next_token_only` needs"):
        make_model("nfdm")(torch.zeros(1, 5, dtype=torch.long), next_token_only=True)
