"""Masked diffusion: an absorbing state, MDLM's bound, and the two-stream trunk of our models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.utils import ModelOutput

from ..checks import check_finite, check_is_tensor, check_token_ids, pad_rows
from ..clocks import GOLDEN_RATIO, check_known
from ..models.loading import SafetensorsModel
from ..models.prediction import Prediction
from ..networks.linear_cross_entropy import linear_cross_entropy
from ..networks.two_stream_predictor import CleanTokens, Places, TwoStreamPredictor
from ..time_samplers import stratify
from .masked_configuration import MaskedDiffusionConfig, check_block_size


@dataclass
class MaskedDraws:
    """The random numbers of one evaluation, so that a caller may fix, share or split them.

    Args:
        uniforms: `(batch,)` in [0, 1): how many tokens are hidden.
        order: `(batch, seq)` in [0, 1): which ones.
    """

    uniforms: Tensor
    order: Tensor

    def slice(self, start: int, stop: int) -> MaskedDraws:
        """The draws of examples `start` to `stop`."""
        return MaskedDraws(self.uniforms[start:stop], self.order[start:stop])


class Masking(NamedTuple):
    """What is hidden of a batch.

    Args:
        hidden: `(batch, seq)`, True for hidden tokens.
        weights: `(batch, seq)`, `n/m` of a token's block: n tokens of which m are hidden.
        mean_hidden: `(batch,)`, how many tokens of a text are hidden on average.
    """

    hidden: Tensor
    weights: Tensor
    mean_hidden: Tensor


def mask_tokens(unknown: Tensor, draws: MaskedDraws, block_size: int | None, largest_share: float = 1.0) -> Masking:
    """Hide m of the n unknown tokens of every block, m uniform in 1..n, which ones at random.

    Args:
        unknown: `(batch, seq)`, the tokens that may be hidden.
        largest_share: m is uniform in 1..⌈share n⌉ instead.
    """
    size, dtype = block_size or unknown.shape[1], draws.uniforms.dtype
    in_blocks = unknown.unflatten(1, (-1, size))
    n = in_blocks.sum(-1).to(dtype)
    largest = (largest_share * n).ceil()
    # A number for every block: each is uniform, and those of a text are spread out.
    shifts = GOLDEN_RATIO * torch.arange(n.shape[1], dtype=dtype, device=n.device)
    uniforms = (draws.uniforms[:, None] + shifts) % 1
    m = 1 + (uniforms * largest).floor().minimum(largest - 1)
    keys = draws.order.unflatten(1, (-1, size)).masked_fill(~in_blocks, torch.inf)
    ranks = keys.argsort(dim=-1, stable=True).argsort(-1)
    hidden = in_blocks & (ranks < m[..., None])
    weights = (n / m.clamp_min(1))[..., None].expand(hidden.shape)
    mean_hidden = torch.where(n > 0, (1 + largest) / 2, 0).sum(-1)
    return Masking(hidden.flatten(1), weights.flatten(1), mean_hidden)


@dataclass
class MaskedDiffusionOutput(ModelOutput):
    """What a batch costs. All but the loss are per example, in nats, summed over its unknown tokens.

    Args:
        loss: what training minimises: the mean of `bound`, or without weights that of `cross_entropy`, and the
            next-token loss by its weight.
        bound: an estimate of an upper bound of `-log p(x)`; None where not all numbers of hidden tokens may occur.
        cross_entropy: the sum over hidden tokens by their mean number, times the number of unknown ones.
        next_token: `-log p(x)` of the clean stream, exact, where `forward` was asked for it.
        accuracy: share of the hidden tokens that were the most probable ones.
    """

    loss: Tensor | None = None
    bound: Tensor | None = None
    cross_entropy: Tensor | None = None
    next_token: Tensor | None = None
    accuracy: Tensor | None = None

    def non_finite_terms(self) -> str | None:
        """What is not finite; `None` when everything is."""
        for name in ("bound", "cross_entropy", "next_token"):
            values = getattr(self, name)
            if values is not None and not torch.isfinite(values).all():
                return f"{name} is {values[~torch.isfinite(values)][0].item()}"
        return None


class MaskedDiffusionModel(SafetensorsModel):
    """Masked diffusion in its any-order form, block by block:

        -log p(x) <= Σ_blocks E_m E_hidden [n/m Σ_{i hidden} -log p(x_i | tokens shown, clean tokens before)].

    n tokens of a block are unknown and m of them hidden, m uniform in 1..n and every set of m tokens as probable as
    another. This is MDLM's integral over the masking rate, whatever its schedule. START is given; every token after it
    is counted, padding included.

    A token that is shown is read as its row at time 0, a hidden one as the mean row under `softmax(b)` at time 1: what
    our diffusion models read of text and of noise.
    """

    config_class = MaskedDiffusionConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["PredictorLayer"]

    def __init__(self, config: MaskedDiffusionConfig):
        super().__init__(config)
        self.token_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.predictor = TwoStreamPredictor(config)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self:
            init.zeros_(self.token_bias)
            self.predictor.init_weights()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.predictor.token_rows

    @property
    def latent_dtype(self) -> torch.dtype:
        """Times and logits are at least float32, whatever the weights are."""
        return torch.promote_types(self.dtype, torch.float32)

    @torch.no_grad()
    def set_token_frequencies(self, counts: Tensor) -> None:
        """Start the bias b at the log of the (smoothed) token frequencies."""
        self.token_bias.copy_(torch.log((counts + 1) / (counts + 1).sum()))

    @torch.no_grad()
    def set_embeddings(self, embeddings: Tensor) -> None:
        """Start the token rows at the given ones, `(vocab, hidden_size)`."""
        self.predictor.set_token_rows(embeddings)

    def block_size(self, block_size: int | None = None) -> int | None:
        """Tokens of a block, by default those of the config; `None` where that is the whole text."""
        block_size = self.config.block_size if block_size is None else block_size
        check_block_size(block_size, self.config.max_length)
        return None if block_size == self.config.max_length else block_size

    def draw(
        self, batch_size: int, generator: torch.Generator | None = None, device: torch.device | None = None
    ) -> MaskedDraws:
        """Random numbers for a batch, whose shares of hidden tokens are spread evenly."""
        options = {"generator": generator, "device": device or self.device, "dtype": self.latent_dtype}
        uniforms = stratify(torch.rand(batch_size, **options))
        return MaskedDraws(uniforms, torch.rand(batch_size, self.config.max_length, **options))

    def unknown(self, input_ids: Tensor, known: Tensor | None = None) -> Tensor:
        """The tokens that are modelled: all after START and the condition that are not known."""
        unknown = torch.ones_like(input_ids, dtype=torch.bool) if known is None else ~known
        return unknown & (torch.arange(input_ids.shape[1], device=input_ids.device) > self.config.condition_length)

    def predict(
        self,
        input_ids: Tensor,
        hidden: Tensor,
        clean: CleanTokens | None = None,
        block_size: int | None = None,
        window: slice | None = None,
    ) -> Prediction:
        """What the trunk says of the tokens `(batch, tokens)`, given those of them that are not hidden.

        Args:
            clean: what is seen of clean tokens, where the text is in blocks.
            block_size: tokens of a block; None where the text is one.
            window: where the tokens stand, if they are not the whole text.
        """
        positions = torch.arange(self.config.max_length, device=input_ids.device)[window or slice(None)]
        starts = positions - positions % (block_size or self.config.max_length)
        places = Places(positions, starts, settled=~hidden)
        rows = self.predictor.token_rows
        prior = torch.softmax(self.token_bias.detach(), -1).to(rows.weight.dtype) @ rows.weight
        tokens = torch.where(hidden[..., None], prior, rows(input_ids))
        times = hidden.to(self.latent_dtype)
        return Prediction(factors=self._factors(self.predictor(tokens, times, None, tokens, None, clean, places)))

    def read_clean(self, input_ids: Tensor, before: CleanTokens | None = None) -> tuple[Tensor, CleanTokens]:
        """States of clean tokens that follow those of `before`, and what noisy tokens see of all of them."""
        return self.predictor.read_clean(input_ids, self.predictor.token_rows(input_ids), before)

    def clean_stream(
        self, input_ids: Tensor, block_size: int | None, next_token: bool = False
    ) -> tuple[CleanTokens | None, Tensor | None]:
        """What noisy tokens see of the clean text, and with `next_token` `-log p(x_i | x_<i)` of it,
        `(batch, seq - 1)`, that of the condition left out.
        """
        if block_size is None and not next_token:
            return None, None
        states, clean = self.read_clean(input_ids)
        losses = None
        if next_token:
            first = self.config.condition_length
            losses, _ = linear_cross_entropy(*self._factors(states[:, first:-1]), input_ids[:, first + 1 :])
        return (None if block_size is None else clean), losses

    def _factors(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`(states, weight, bias)` of the logits `states weightᵀ + bias`."""
        output, dtype = self.predictor.output, self.latent_dtype
        return states.to(dtype), output.weight.to(dtype), output.bias.to(dtype) + self.token_bias.to(dtype)

    def forward(
        self,
        input_ids: Tensor,
        known: Tensor | None = None,
        block_size: int | None = None,
        draws: MaskedDraws | None = None,
        generator: torch.Generator | None = None,
        weighted: bool = True,
        largest_share: float = 1.0,
        next_token_weight: float = 0.0,
        next_token_only: bool = False,
        attention_mask: Tensor | None = None,
        return_dict: bool = True,
    ) -> MaskedDiffusionOutput | tuple:
        """The bound of a batch of token ids `(batch, max_length)`, estimated for one random mask per text.

        Args:
            known: `(batch, max_length)`, True for tokens that are given, as START is.
            block_size: tokens of a block, instead of the config's; `max_length` is the whole text.
            draws: the random numbers, instead of new ones from `generator`.
            weighted: the loss is the bound; without weights it is the plain mean of the hidden tokens'
                cross-entropies, in nats per text.
            largest_share: largest share of the tokens of a block that is hidden, without weights.
            next_token_weight: weight in `loss` of the clean stream's `-log p(x_i | x_<i)`.
            next_token_only: nothing else.
            attention_mask: not used, as padding is part of a text: `model(**tokenizer(texts, ...))` passes it.
        """
        input_ids = pad_rows(input_ids, self.config)
        self.check_inputs(input_ids, known)
        block_size = self.block_size(block_size)
        check_finite(largest_share=largest_share, next_token_weight=next_token_weight)
        if draws is not None and not isinstance(draws, MaskedDraws):
            raise ValueError(f"`draws` is a {type(draws).__name__}; it must be `MaskedDraws`, as `draw` makes them.")
        if not 0 < largest_share <= 1:
            raise ValueError(f"`largest_share` is {largest_share!r}; it must be in (0, 1].")
        if weighted and largest_share < 1:
            raise ValueError(f"`largest_share` is {largest_share}; a bound needs all shares: give `weighted=False`.")
        if next_token_only and not next_token_weight:
            raise ValueError("`next_token_only` needs a `next_token_weight` above 0; without it there is no loss.")
        clean, next_token = self.clean_stream(input_ids, block_size, next_token_weight > 0)
        terms = {}
        if not next_token_only:
            draws = self.draw(len(input_ids), generator, input_ids.device) if draws is None else draws
            unknown = self.unknown(input_ids, known)
            masking = mask_tokens(unknown, draws, block_size, largest_share)
            terms = self._masked_terms(input_ids, masking, unknown, clean, block_size)
            losses = terms["bound" if weighted else "cross_entropy"]
            terms["loss"] = losses.sum() / len(losses)
            if largest_share < 1:
                del terms["bound"]
        if next_token is not None:
            terms["next_token"] = next_token.sum(-1)
            terms["loss"] = terms.get("loss", 0) + next_token_weight * next_token.sum() / len(next_token)
        output = MaskedDiffusionOutput(**terms)
        return output if return_dict else output.to_tuple()

    def _masked_terms(
        self, input_ids: Tensor, masking: Masking, unknown: Tensor, clean: CleanTokens | None, block_size: int | None
    ) -> dict[str, Tensor]:
        """Bound, cross-entropy and accuracy of each text."""
        hidden, texts = masking.hidden, masking.hidden.nonzero()[:, 0]
        states, weight, bias = self.predict(input_ids, hidden, clean, block_size).factors
        nats, correct = linear_cross_entropy(states[hidden], weight, bias, input_ids[hidden])

        def per_text(values: Tensor) -> Tensor:
            return values.new_zeros(len(input_ids)).index_add(0, texts, values)

        return {
            "bound": per_text(masking.weights[hidden] * nats),
            "cross_entropy": per_text(nats) * (unknown.sum(-1) / masking.mean_hidden),
            "accuracy": per_text(correct.to(nats.dtype)) / hidden.sum(-1),
        }

    def check_inputs(self, input_ids: Tensor, known: Tensor | None = None) -> None:
        """Raise a ValueError for token ids or known tokens that the model cannot take."""
        config = self.config
        check_is_tensor("input_ids", input_ids)
        if input_ids.ndim != 2 or not len(input_ids) or input_ids.shape[1] != config.max_length:
            raise ValueError(
                f"`input_ids` has shape {tuple(input_ids.shape)}; it must be (batch, {config.max_length}), with at "
                "least one sequence: every one is padded to the model's `max_length`, and a longer text cut to it, as "
                "tokenizers do with `truncation=True`."
            )
        if known is not None:
            check_known(known, input_ids.shape)
            if known.device.type == "cpu" and known[:, config.condition_length + 1 :].all(-1).any():
                raise ValueError("`known` is True for every token after START of a text; nothing is left to model.")
        check_token_ids(input_ids, config.vocab_size)
        # As there, values are read on the CPU only.
        if input_ids.device.type == "cpu" and (input_ids[:, 0] != config.bos_token_id).any():
            raise ValueError(
                f"`input_ids` has rows that begin with {input_ids[:, 0].unique().tolist()[:5]}; every row must begin "
                f"with START, {config.bos_token_id}."
            )
