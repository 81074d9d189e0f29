"""Models whose prediction is exact, and texts whose probability is known."""

import torch
from tiny import LENGTH, VOCAB, make_model


# Starting this noisy, z_0 leaves something to decode (the start of Diffusion-LM and of MuLAN-Rescaled is fixed).
# Over a small range of γ' the rescaled rates stay positive.
SCHEDULES = {
    "nfdm": {"delta": 0.6, "volatility": "markovian"},
    "nfdm-additive": {"delta": 0.6, "volatility": "markovian"},
    "nfdm-head": {"delta": 0.6, "volatility": "markovian"},
    "mulan": {"gamma_min": -1.0, "gamma_max": 12.0},
    "mulan-rescaled": {"gamma_min": 0.0, "gamma_max": 5.0},
    "diffusion-lm": {},
}


def silence(*layers):
    with torch.no_grad():
        for layer in layers:
            layer.weight.zero_()
            layer.bias.zero_()


def exact_model(name, **options):
    """A model whose prediction is the exact posterior mean of independent tokens; and their log frequencies."""
    options = {"prediction_type": "categorical", "decoder": "gaussian", "num_hidden_layers": 1, **options}
    model = make_model(name, **SCHEDULES[name], **options)
    log_frequencies = torch.log_softmax(torch.randn(VOCAB, dtype=torch.float64), 0)
    silence(model.predictor.output, model.prediction.gate)
    if name.startswith("nfdm"):
        silence(model.forward_process.network.output, model.forward_process.volatility.mlp[2])
    if name.startswith("mulan"):
        # Nothing about x in c, and one fixed schedule.
        silence(model.context_encoder.head, model.forward_process.coefficients[2])
    with torch.no_grad():
        model.token_bias.copy_(log_frequencies)
    return model, log_frequencies.expand(LENGTH, VOCAB)


def sample_tokens(log_frequencies, n):
    """Texts of independent tokens, position j from row j, and their true `-log p`."""
    ids = torch.multinomial(log_frequencies.exp(), n, replacement=True).T
    return ids, -log_frequencies[torch.arange(LENGTH), ids].sum(-1)
