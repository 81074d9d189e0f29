"""The loss of NFDM as one would write it down from the paper: the yardstick for speed, with the weights of a given
model.

The time derivative of mean and log standard deviation comes from `torch.autograd.functional.jvp`, for the data and for
the prediction each; attention and logits are computed whole.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.functional import jvp

from diffusers_text_nfdm import NFDMModel
from diffusers_text_nfdm.models.outputs import Draws
from diffusers_text_nfdm.networks.dual import Dual
from diffusers_text_nfdm.networks.time_embedding import TimeEmbedding
from diffusers_text_nfdm.networks.transformer import Layer, Transformer


def plain_loss(model: NFDMModel, input_ids: Tensor, draws: Draws) -> Tensor:
    """`model(input_ids, draws=draws).loss` for embedding prediction, the linear decoder and AdaLN.

    For attention computed whole in the predictor too, call `model.set_attn_implementation("eager")`.
    """
    process, table = model.forward_process, model.embeddings.weight
    times = model.time_sampler(Dual(draws.uniforms[:, None], torch.ones_like(draws.uniforms)[:, None]))
    t, time_weight = times.value[:, 0], times.rate[:, 0]
    embeddings = table[input_ids]

    def moving_marginal(embeddings: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        def mean_and_log_std(t: Tensor) -> tuple[Tensor, Tensor]:
            m, s = forward_network(process.network, embeddings, t).chunk(2, dim=-1)
            t = t[:, None, None]
            return (1 - t) * embeddings + t * (1 - t) * m, (1 - t) * math.log(model.config.delta) + t * (1 - t) * s

        return jvp(mean_and_log_std, t, torch.ones_like(t), create_graph=torch.is_grad_enabled())

    def reverse_drift(z: Tensor, g2: Tensor, marginal) -> Tensor:
        (mean, log_std), (mean_rate, log_std_rate) = marginal
        score = (mean - z) / torch.exp(log_std) ** 2
        return mean_rate + log_std_rate * (z - mean) - 0.5 * g2 * score

    marginal = moving_marginal(embeddings)
    mean, log_std = marginal[0]
    z = mean + torch.exp(log_std) * draws.noise
    net = model.predictor.output(model.predictor(z, t[:, None]))
    prediction = (1 - t[:, None, None]) * z + (t[:, None, None] + 0.01) * net
    g2 = process.volatility(t[:, None])
    difference = reverse_drift(z, g2, marginal) - reverse_drift(z, g2, moving_marginal(prediction))
    diffusion = (difference**2 / (2 * g2)).sum(2)

    z_0 = embeddings + model.config.delta * draws.initial_noise
    logits = z_0 @ table.T + model.token_bias
    reconstruction = F.cross_entropy(logits.transpose(1, 2), input_ids, reduction="none").sum(1)

    fit = model.time_sampler.fitting_loss(Dual(t[:, None], torch.ones_like(t)[:, None]), diffusion)
    return (time_weight * diffusion.sum(1) + reconstruction + fit - fit.detach()).mean()


def forward_network(network: Transformer, embeddings: Tensor, t: Tensor) -> Tensor:
    x = network.input(embeddings) + network.positions.weight[: embeddings.shape[1]]
    time = time_embedding(network.time_embedding, t)
    for layer in network.layers:
        x = transformer_layer(layer, x, time)
    shift, scale = network.film.linear(F.silu(time))[:, None].chunk(2, dim=-1)
    return network.output(layer_norm(x) * (1 + scale) + shift)


def transformer_layer(layer: Layer, x: Tensor, time: Tensor) -> Tensor:
    shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = layer.modulation.linear(F.silu(time))[:, None].chunk(
        6, dim=-1
    )
    x = x + gate_1 * attention(layer.attention, layer_norm(x) * (1 + scale_1) + shift_1)
    hidden = F.gelu(layer.mlp.linear_1(layer_norm(x) * (1 + scale_2) + shift_2))
    return x + gate_2 * layer.mlp.linear_2(hidden)


def attention(layer, x: Tensor) -> Tensor:
    batch, length, width = x.shape
    heads = layer.query_key_value(x).view(batch, length, 3, layer.num_heads, -1).permute(2, 0, 3, 1, 4)
    q, k, v = heads
    probabilities = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1)
    return layer.output((probabilities @ v).transpose(1, 2).reshape(batch, length, width))


def layer_norm(x: Tensor) -> Tensor:
    # Written out: the third derivatives of torch 2.13's own layer norm, which training through jvp needs, are wrong.
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)


def time_embedding(layer: TimeEmbedding, t: Tensor) -> Tensor:
    half = layer.fourier_dim // 2
    frequencies = torch.exp(-math.log(10_000.0) / half * torch.arange(half, dtype=t.dtype))
    angles = 1000.0 * t[:, None] * frequencies
    features = torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)
    return layer.linear_2(F.silu(layer.linear_1(features)))
