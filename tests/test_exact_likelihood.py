"""A toy whose posterior is known: along every clock the bound is the true -log p, and given known tokens the true
conditional one.
"""

from itertools import product

import pytest
import torch
from tiny import make_model, seeded

from diffusers_text_nfdm import estimate_likelihood
from diffusers_text_nfdm.models.prediction import Prediction


VOCAB, LENGTH, DIM = 3, 4, 4
TEXTS = torch.tensor(list(product(range(VOCAB), repeat=LENGTH)))
# How well 16 draws for each of 1,024 texts know the bound, in nats. In windows a draw sees every token move once.
CLOCKS = {
    "shared": 0.15,
    "ramp:0.5": 0.15,
    "ramp:2": 0.15,
    "ramp:30": 0.15,
    "random:2": 0.25,
    "blocks:1": 0.15,
    "blocks:2": 0.15,
    "blocks:2:ramp:1": 0.25,
}
PROCESSES = {
    "diffusion-lm": {},
    "nfdm": {"volatility": "markovian", "delta": 0.2},
    "mulan": {"gamma_min": -2.5, "gamma_max": 9.0},
}


def log_probabilities() -> torch.Tensor:
    """A distribution of texts with no structure: all tokens depend on each other."""
    return torch.log_softmax(1.5 * torch.randn(len(TEXTS), dtype=torch.float64, generator=seeded(0)), 0)


def exact_model(name: str):
    """A model with an undeformed process whose predictor is the exact posterior
    `p(x_i | z of the window, clean tokens before it, what is given)`.
    """
    model = make_model(
        name,
        vocab_size=VOCAB,
        max_length=LENGTH,
        embedding_dim=DIM,
        embedding_sphere=True,
        prediction_type="categorical",
        predictor="two_stream",
        decoder="gaussian",
        time_sampler="uniform",
        **PROCESSES[name],
    )
    with torch.no_grad():
        # Tokens that no noise at t = 0 confuses, each as probable as the others before anything is seen.
        model.embeddings.weight.copy_(torch.linalg.qr(torch.randn(DIM, DIM, generator=seeded(1)))[0][:VOCAB])
        model.token_bias.zero_()
        for module in model.zero_initialized():
            module.weight.zero_()
            module.bias.zero_()
        if model.context_encoder is not None:
            # A context that says nothing of the text.
            model.context_encoder.head.weight.zero_()
            model.context_encoder.head.bias.zero_()

    def denoise(z, t, context=None, clean=None, shown=None, windows=None, known=None, second_call=True):
        alpha, sigma = model.forward_process.alpha_sigma(t, context)
        table = model.embedding_table()
        squared = (z[:, None] - alpha[:, None] * table[TEXTS]).square().sum(-1) / (2 * sigma[:, None, :, 0].square())
        scores = -squared
        logits, starts = [], torch.zeros(1, LENGTH).long() if windows is None else windows.starts
        for position in range(LENGTH):
            start = starts[:, position, None]
            seen = starts == start if known is None else (starts == start) | known
            joint = log_probabilities() + (scores * seen[:, None]).sum(-1)
            if windows is not None:
                agrees = (TEXTS == clean[:, None]) | (torch.arange(LENGTH) >= start)[:, None]
                joint = joint.masked_fill(~agrees.all(-1), -torch.inf)
            of_token = [joint[:, TEXTS[:, position] == token].logsumexp(1) for token in range(VOCAB)]
            logits.append(torch.stack(of_token, -1))
        states = torch.stack(logits, 1)
        return Prediction(factors=(states, torch.eye(VOCAB).double(), torch.zeros(VOCAB).double()), table=table)

    def clean_stream(input_ids, windows, *_, **__):
        return (None if windows is None else input_ids), None

    model.denoise, model.clean_stream = denoise, clean_stream
    return model


def assert_equals_truth(model, clock, known=None, num_texts=1024, num_draws=16):
    """The mean bound of texts drawn from the distribution against their mean -log p, by the Monte-Carlo error."""
    log_p = log_probabilities()
    drawn = torch.multinomial(log_p.exp(), num_texts, replacement=True, generator=seeded(2))
    ids, true = TEXTS[drawn], -log_p[drawn]
    if known is not None:
        agrees = ((TEXTS == ids[:, None]) | ~known).all(-1)
        true = true + log_p.expand(num_texts, -1).masked_fill(~agrees, -torch.inf).logsumexp(1)
        known = known.expand(num_texts, -1)
    estimate = estimate_likelihood(model, ids, clock=clock, known=known, num_draws=num_draws, batch_size=num_texts)
    bound = estimate.nats_per_story
    assert bound.monte_carlo_error < CLOCKS[clock]
    assert bound.value == pytest.approx(true.mean().item(), abs=4 * bound.monte_carlo_error + 3e-3)


@pytest.mark.parametrize("name, clock", [*product(("diffusion-lm", "nfdm"), CLOCKS), ("mulan", "random:2")])
def test_with_the_exact_posterior_the_bound_is_the_truth_along_every_clock(name, clock):
    assert_equals_truth(exact_model(name), clock)


@pytest.mark.parametrize("known", [[1, 0, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0]], ids=["prefix", "suffix", "scattered"])
@pytest.mark.parametrize(
    "name, clock",
    [
        ("diffusion-lm", "shared"),
        ("nfdm", "ramp:2"),
        ("diffusion-lm", "ramp:0.5"),
        ("diffusion-lm", "ramp:30"),
        ("diffusion-lm", "random:2"),
        ("diffusion-lm", "blocks:2"),
    ],
)
def test_given_known_tokens_the_bound_is_the_true_conditional_one(name, clock, known):
    assert_equals_truth(exact_model(name), clock, torch.tensor(known, dtype=torch.bool))


@pytest.mark.parametrize("known", [[1, 0, 0, 0], [1, 1, 1, 0]], ids=["half a block", "a block and a half"])
def test_in_blocks_a_known_prefix_gives_the_true_conditional_bound(known):
    assert_equals_truth(exact_model("diffusion-lm"), "blocks:2", torch.tensor(known, dtype=torch.bool))
