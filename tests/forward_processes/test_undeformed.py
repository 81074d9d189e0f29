"""Without layers of its network NFDM is what a network that says `m = s = 0` makes of it."""

import torch
from tiny import make_ids, make_inputs, make_model, seeded

from diffusers_text_nfdm.networks.dual import Dual


def pair():
    """The same weights, with a network that says 0 and with none."""
    zero, none = make_model("nfdm"), make_model("nfdm", forward_num_layers=0)
    with torch.no_grad():
        for parameter in zero.forward_process.network.output.parameters():
            parameter.zero_()
    zero.load_state_dict(none.state_dict(), strict=False)
    return zero, none


def test_marginals_and_rates():
    zero, none = (model.forward_process for model in pair())
    embeddings, _ = make_inputs("nfdm", 3)
    t, rate = torch.rand(2, 3, embeddings.shape[1], dtype=torch.float64, generator=seeded(0))
    for one, other in (
        (zero.marginal(embeddings, t), none.marginal(embeddings, t)),
        (zero.path(Dual(t, rate))(embeddings), none.path(Dual(t, rate))(embeddings)),
    ):
        for name, value in vars(one).items():
            torch.testing.assert_close(getattr(other, name), value, rtol=1e-12, atol=1e-12)


def test_bound():
    zero, none = pair()
    ids = make_ids(4)
    one, other = (model(ids, generator=seeded(1)).bound for model in (zero, none))
    torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-10)


def test_signal_to_noise_ratio():
    process = pair()[1].forward_process
    t = torch.tensor([[0.0, 0.3, 0.9, 1.0]], dtype=torch.float64)
    alpha, sigma = process.alpha_sigma(t)
    torch.testing.assert_close(process.snr(t)[:, :-1], (alpha / sigma).square()[:, :-1])
    assert (process.snr(t) > 0).all()


def test_it_has_no_network_to_train():
    _, none = pair()
    assert not any("forward_process.network" in name for name, _ in none.named_parameters())
