"""Guidance: logits that lie beyond those of a model, seen from a weaker one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..models import Prediction, TextDiffusionModel
from ..networks.two_stream_predictor import CleanTokens, Places, TextReader


Factors = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class GuidedTokens:
    """What is seen of clean tokens, by the model and by the weaker one."""

    own: CleanTokens
    weaker: CleanTokens

    def rows(self, rows: Tensor) -> GuidedTokens:
        """Those of some texts."""
        return GuidedTokens(self.own.rows(rows), self.weaker.rows(rows))

    def __len__(self) -> int:
        return len(self.own)


@dataclass(frozen=True)
class GuidedReader:
    """`TextReader`s of both models."""

    guided: GuidedModel
    own: TextReader
    weaker: TextReader

    def read(self, tokens: Tensor, clean: Tensor, at: tuple[Tensor, Tensor]) -> Tensor:
        unseen = self.guided.in_condition(at[1])
        others = self.weaker.read(tokens.masked_fill(unseen, self.guided.config.pad_token_id), clean, at)
        return self.guided.join(self.own.read(tokens, clean, at), others)

    def keep(self, rows: Tensor) -> None:
        self.own.keep(rows)
        self.weaker.keep(rows)


class GuidedModel:
    """What samplers ask of a model, with guidance:

        logits = w logits_model + (1 - w) logits_weaker.

    The weaker one is the same model without its condition (classifier-free guidance, Ho & Salimans 2022), or another
    model of the same vocabulary (autoguidance, Karras et al. 2024). Logits are `s Wᵀ + b`, so the guided ones are
    `(w s, (1 - w) s') (W, W')ᵀ + w b + (1 - w) b'`.

    Args:
        model: the model, which has all other attributes.
        scale: w.
        weaker: another model; `None` for the same one without its condition.
    """

    def __init__(self, model: TextDiffusionModel, scale: float, weaker: TextDiffusionModel | None = None):
        self.model, self.scale, self.weaker = model, scale, model if weaker is None else weaker
        self.drops_condition = weaker is None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def read_clean(self, input_ids: Tensor, before: GuidedTokens | None = None) -> tuple[Tensor, GuidedTokens]:
        """As in `Denoiser`; the states are those of both models."""
        own, weaker = (None, None) if before is None else (before.own, before.weaker)
        states, own = self.model.read_clean(input_ids, own)
        others, weaker = self.weaker.read_clean(self._as_weaker(input_ids, before), weaker)
        return self.join(states, others), GuidedTokens(own, weaker)

    def read_later(self, input_ids: Tensor, before: GuidedTokens) -> GuidedTokens:
        """As in `Denoiser`."""
        others = self._as_weaker(input_ids, before)
        return GuidedTokens(
            self.model.read_later(input_ids, before.own), self.weaker.read_later(others, before.weaker)
        )

    def _as_weaker(self, input_ids: Tensor, before: GuidedTokens | None) -> Tensor:
        """The tokens that follow those of `before`, as the weaker model sees them."""
        start = 0 if before is None else len(before)
        unseen = self.in_condition(torch.arange(start, start + input_ids.shape[1], device=input_ids.device))
        return input_ids.masked_fill(unseen, self.config.pad_token_id)

    def text_reader(self, noise: Tensor, num_texts: int) -> GuidedReader:
        """As in `Denoiser`."""
        return GuidedReader(self, *(model.text_reader(noise, num_texts) for model in (self.model, self.weaker)))

    def next_token_factors(self, states: Tensor) -> Factors:
        own, weaker = states.chunk(2, -1)
        own, weaker = self.model.next_token_factors(own), self.weaker.next_token_factors(weaker)
        return torch.cat([own[0], weaker[0]], -1), torch.cat([own[1], weaker[1]], -1), self._mix(own[2], weaker[2])

    def denoise(
        self,
        z: Tensor,
        t: Tensor,
        context: Tensor | None = None,
        clean: GuidedTokens | None = None,
        self_condition: Tensor | None = None,
        **options: Any,
    ) -> Prediction:
        """As in `Denoiser`; both models are shown their own states."""
        own, weaker = (None, None) if clean is None else (clean.own, clean.weaker)
        shown, others_shown = (None, None) if self_condition is None else self_condition.chunk(2, -1)
        unseen = self.in_condition(torch.arange(z.shape[1], device=z.device))[:, None]
        padding = torch.full((1, 1), self.config.pad_token_id, device=z.device)
        nothing = self.forward_process.initial_marginal(self.weaker.embed(padding), context).mean
        own = self.model.denoise(z, t, context, own, shown, **options)
        weaker = self.weaker.denoise(torch.where(unseen, nothing, z), t, context, weaker, others_shown, **options)
        guided = self._guided(own, weaker)
        if self_condition is not None:
            guided.shown_next = torch.cat([own.shown_next, weaker.shown_next], -1)
        return guided

    def is_lattice(self, *_: Any) -> bool:
        """Two predictions are mixed token by token."""
        return False

    def reads_first(self, *_: Any) -> bool:
        """A model with a condition has no lattice."""
        return False

    def nothing_shown(self, z: Tensor) -> Tensor | None:
        """As in `Denoiser`, for both models."""
        shown = [model.nothing_shown(z) for model in (self.model, self.weaker)]
        return None if shown[0] is None else torch.cat(shown, -1)

    def predict_unseen(self, clean: GuidedTokens, places: Places, context: Tensor | None = None) -> Prediction:
        """As in `Denoiser`."""
        own = self.model.predict_unseen(clean.own, places, context)
        return self._guided(own, self.weaker.predict_unseen(clean.weaker, places, context))

    def jump(self, noise: Tensor, clean: GuidedTokens, places: Places) -> Prediction:
        """As in `Denoiser`."""
        own = self.model.jump(noise, clean.own, places)
        return self._guided(own, self.weaker.jump(noise, clean.weaker, places))

    def in_condition(self, positions: Tensor) -> Tensor:
        """Which of the positions the weaker model does not see."""
        return self.drops_condition & (positions > 0) & (positions <= self.config.condition_length)

    def join(self, states: Tensor, others: Tensor) -> Tensor:
        """States of both models, by their share."""
        return torch.cat([self.scale * states, (1 - self.scale) * others], -1)

    def _mix(self, own: Tensor, weaker: Tensor) -> Tensor:
        return self.scale * own + (1 - self.scale) * weaker

    def _guided(self, own: Prediction, weaker: Prediction) -> Prediction:
        if not own.is_categorical:
            return Prediction(self._mix(own.embeddings, weaker.embeddings))
        (states, weight, bias), (other_states, other_weight, other_bias) = own.factors, weaker.factors
        factors = (
            self.join(states, other_states),
            torch.cat([weight, other_weight], -1),
            self._mix(bias, other_bias),
        )
        return Prediction(factors=factors, table=own.table, window=own.window, length=own.length)
