"""Along a steep clock in random order our bound is the any-order formula of masked diffusion, on the same logits."""

from itertools import combinations, product

import pytest
import torch
from tiny import make_model, seeded
from tiny_masked import SIZES

from diffusers_text_nfdm import MaskedDiffusionConfig, MaskedDiffusionModel
from diffusers_text_nfdm.networks.dual import Dual
from diffusers_text_nfdm.objective import bound


VOCAB, DIM, SIZE, WIDTH = 6, 8, 4, 1000
PROCESSES = {"diffusion-lm": {}, "nfdm": {"volatility": "markovian", "delta": 0.3}}
CLOCKS = {"random:1000": SIZE, "blocks:4:random:1000": 2 * SIZE}


def exact_model(name, length):
    """A model of random predictions with an undeformed process, so that the one-token posterior in its logits is
    exact.
    """
    model = make_model(
        name,
        vocab_size=VOCAB,
        max_length=length,
        embedding_dim=DIM,
        embedding_sphere=True,
        prediction_type="categorical",
        predictor="two_stream",
        decoder="gaussian",
        time_sampler="uniform",
        **PROCESSES[name],
    )
    with torch.no_grad():
        # Tokens that no noise at t = 0 confuses.
        model.embeddings.weight.copy_(torch.linalg.qr(torch.randn(DIM, DIM, generator=seeded(1)))[0][:VOCAB])
        for module in (*model.zero_initialized(), model.prediction.gate):
            module.weight.zero_()
            module.bias.zero_()
    return model


def windows_of(model, clock):
    """Those of the tokens along the clock, `None` where the whole text is one."""
    return model.token_times(model.clock(clock), model.draw(1, seeded(0)))[1]


def logits_of_hidden(model, input_ids, hidden, windows):
    """Our logits with hidden tokens as noise at time 1 and the others as text at time 0."""
    E, t = model.embed(input_ids), hidden.double()
    z = torch.where(hidden[..., None], 0, model.forward_process.initial_marginal(E, None).mean)
    clean, _ = model.clean_stream(input_ids, windows)
    return model.denoise(z, t, None, clean, windows=windows).logits


def any_order(model, input_ids, windows):
    """`Σ_blocks E_m E_hidden [n/m Σ_hidden CE]`; all blocks have the same mask, which changes nothing."""
    total = torch.zeros(len(input_ids), dtype=torch.float64)
    for m in range(1, SIZE + 1):
        sets = list(combinations(range(SIZE), m))
        for one in sets:
            hidden = torch.isin(torch.arange(input_ids.shape[1]) % SIZE, torch.tensor(one)).expand(input_ids.shape)
            log_p = torch.log_softmax(logits_of_hidden(model, input_ids, hidden, windows), -1)
            nats = -log_p.gather(-1, input_ids[..., None])[..., 0] * hidden
            total += nats.sum(1) / (m * len(sets))
    return total


def where_tokens_move(u: Dual) -> Dual:
    """Global times of a steep ramp at which one of its tokens moves; at all others the integrand is zero."""
    place = (u.value * SIZE).floor().clamp_max(SIZE - 1)
    inside = u.value * SIZE - place
    return Dual((WIDTH * place / (SIZE - 1) + inside) / (1 + WIDTH), u.rate * SIZE / (1 + WIDTH))


@torch.no_grad()
@pytest.mark.parametrize("name, clock", [*product(["diffusion-lm"], CLOCKS), ("nfdm", "random:1000")])
def test_the_bound_along_a_steep_random_ramp_is_the_any_order_formula(name, clock):
    length, repeats = CLOCKS[clock], 8192
    model = exact_model(name, length)
    input_ids = torch.randint(VOCAB, (8, length), generator=seeded(2))
    expected = any_order(model, input_ids, windows_of(model, clock))

    means, generator = [], seeded(3)
    for _ in range(32):
        draws = model.draw(8 * repeats // 32, generator)
        ids = input_ids.repeat(repeats // 32, 1)
        times, windows = model.token_times(model.clock(clock), draws, None, where_tokens_move)
        terms = bound(model, ids, times, draws, None, windows)
        nats = (terms.diffusion + terms.reconstruction + terms.prior).sum(-1)
        means.append(nats.view(-1, 8).mean(0))
    estimates = torch.stack(means)
    error = estimates.mean(1).std() / len(estimates) ** 0.5
    assert error < 0.03 * expected.mean() and expected.std() > 5 * error
    assert estimates.mean().item() == pytest.approx(expected.mean().item(), abs=4 * error.item() + 3e-3)


@torch.no_grad()
@pytest.mark.parametrize("clock", ["shared", "blocks:4"])
@pytest.mark.parametrize("name", PROCESSES)
def test_with_our_weights_masked_diffusion_has_our_logits(name, clock):
    length = 2 * SIZE
    model = exact_model(name, length)
    block_size = model.clock(clock).block_size
    config = MaskedDiffusionConfig(vocab_size=VOCAB, max_length=length, **SIZES)
    masked = MaskedDiffusionModel(config).double().eval()
    masked.predictor.load_state_dict(model.predictor.state_dict())
    masked.token_bias.copy_(model.token_bias)
    input_ids = torch.randint(VOCAB, (5, length), generator=seeded(2))
    hidden = torch.rand(5, length, generator=seeded(3)) < 0.5
    clean, next_token = masked.clean_stream(input_ids, block_size, next_token=True)
    theirs = masked.predict(input_ids, hidden, clean, block_size)
    windows = windows_of(model, clock)
    ours = logits_of_hidden(model, input_ids, hidden, windows)
    # Of a token that is shown our logits have the evidence of its latent, too.
    log_p, log_q = (torch.log_softmax(logits[hidden], -1) for logits in (theirs.logits, ours))
    assert torch.allclose(log_p, log_q, atol=1e-6)
    assert torch.allclose(next_token, model.clean_stream(input_ids, windows, next_token=True)[1], atol=1e-12)
