"""The reverse side of a model: what the predictor says of the clean tokens, given noisy and clean ones."""

from __future__ import annotations

import torch
from torch import Tensor

from ..clocks import Windows
from ..networks.linear_cross_entropy import linear_cross_entropy
from ..networks.two_stream_predictor import CleanTokens, Places, TextReader
from .outputs import Draws
from .prediction import Prediction, full_precision


# Share of the texts whose first Ê training shows to the predictor, with self-conditioning; and of those that training
# reads twice, where a second call sees tokens.
SELF_CONDITIONED_SHARE = 0.25
SECOND_CALL_SHARE = 0.75
# Where the whole text is in motion, share of the texts to which training shows the states of a step before, as
# sampling does, and the largest such step, as a share of the time to noise.
STEP_BEFORE_SHARE = 0.5
LARGEST_STEP_BEFORE = 0.35


Factors = tuple[Tensor, Tensor, Tensor]


class Denoiser:
    """The part of `TextDiffusionModel` that calls the predictor."""

    def denoise(
        self,
        z: Tensor,
        t: Tensor,
        context: Tensor | None = None,
        clean: CleanTokens | None = None,
        self_condition: Tensor | None = None,
        windows: Windows | None = None,
        known: Tensor | None = None,
        window: slice | None = None,
        detach_process: bool = False,
        second_call: bool | Tensor = True,
    ) -> Prediction:
        """What the predictor says of the clean tokens behind `z`.

        Args:
            z: latents, `(batch, seq, dim)`.
            t: their times, `(batch, seq)`, or `(batch, 1)` where all tokens of a text have the same.
            context: MuLAN's c.
            clean: what `read_clean` gave for the tokens before, for a text with windows.
            self_condition: with self-conditioning, what the predictor is shown in place of a first call: Ê, or where
                it reads tokens the states of its network (`Prediction.shown_next`).
            windows: of the tokens, each given the clean tokens before it; `None` where all see each other.
            known: `(batch, seq)`, the tokens that are given.
            window: the tokens to predict. Without it all windows of a text are predicted at once.
            detach_process: no gradient goes to the embeddings and the forward process.
            second_call: with self-conditioning by tokens, whether there is one, or for which texts, `(batch,)`.
        """
        part, places = window or slice(None), None
        if self._sees_embeddings and self_condition is None:
            self_condition = self.first_prediction(z, t, context, clean, windows, known, window)
        if self_condition is not None:
            self_condition = self_condition[:, part]
        if self.config.predictor == "two_stream":
            places = self._places(t, windows, known).part(part)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not detach_process):
            table, bias = self.embedding_table(), self.token_bias.to(z.dtype)
            alpha_sigma = tuple(_at(x, part) for x in self.forward_process.alpha_sigma(t, context))
        # Off a sphere the table is the parameter itself.
        table = table.detach() if detach_process else table
        inputs = self.predictor, z[:, part], _at(t, part), alpha_sigma, table, bias
        outline = self.outline(z, alpha_sigma) if windows is None else None
        if self.is_lattice(windows, known):
            # In training what is inferred from left to right is enough: the network learns nothing on the way back.
            candidates = 0 if self.training else self.config.lattice_candidates
            clean = self.predictor.nothing_read(len(z)) if clean is None else clean
            prediction, _ = self.prediction.along_lattice(
                *inputs, clean, places, self_condition, second_call, candidates
            )
        else:
            if self.reads_first(windows):
                second_call = True
                if self_condition is None:
                    self_condition = self._read_first(z, t, context, known)
            options = {} if second_call is True else {"second_call": second_call}
            if outline is not None:
                options["outline"] = outline
            prediction = self.prediction(*inputs, context, self_condition, clean, places, **options)
        prediction.window, prediction.length = window, z.shape[1]
        return prediction

    def follow(
        self,
        input_ids: Tensor,
        z: Tensor,
        t: Tensor,
        context: Tensor | None,
        clean: CleanTokens,
        windows: Windows,
        second_call: bool | Tensor,
    ) -> tuple[Tensor, Tensor]:
        """States that predict each token from what is seen before it in its window, and from that and the very token
        before it, `(batch, seq, hidden_size)` each; those of the second kind predict the token behind.
        """
        with torch.no_grad():
            alpha_sigma, table = self.forward_process.alpha_sigma(t, context), self.embedding_table()
            bias = self.token_bias.to(z.dtype)
        inputs = self.predictor, z, t, alpha_sigma, table, bias, clean, self._places(t, windows, None)
        outline = self.outline(z, alpha_sigma) if windows.mixing is None else None
        prediction, following = self.prediction.along_lattice(
            *inputs, second_call=second_call, tokens=input_ids, outline=outline
        )
        return prediction.states, following[:, 0]

    def joint_factors(self, input_ids: Tensor, prediction: Prediction, rows: Tensor | slice = slice(None)) -> Factors:
        """`(states, weight, bias)` of the logits of `p(x_i | x_<i, z)`, for texts that were predicted as a whole.

        The network is shown all latents, and the tokens before each one; what the token's own latent says of it is in
        the logits, as it is in those of `p(x_i | z)`.

        Args:
            input_ids: the texts, of which those before token i are seen.
            rows: which texts of the prediction they are.
        """
        states, weight, bias = prediction.factors
        inputs = self.predictor.clean_inputs(input_ids, self.embed(input_ids))
        read = self.predictor.read_jointly(inputs, prediction.noisy.rows(rows)).to(states.dtype)
        return torch.cat([read, states[rows, :, read.shape[-1] :]], dim=-1), weight, bias

    def is_lattice(self, windows: Windows | None, known: Tensor | None) -> bool:
        """Whether tokens in motion are inferred in a lattice: the model has one, and what is given is the beginning of
        each text.
        """
        if not self.config.lattice_candidates or windows is None:
            return False
        return known is None or not (known[:, 1:] & ~known[:, :-1]).any()

    def reads_first(self, windows: Windows | None) -> bool:
        """Whether the first call is the reading from left to right that lattices are made of: where the whole text is
        in motion. What the second one, in which all tokens see each other, adds is what is behind a token.
        """
        return self.config.lattice_candidates > 0 and windows is None

    def outline(self, z: Tensor, alpha_sigma: tuple[Tensor, Tensor]) -> Tensor | None:
        """Ê of the prototypes, for a model that has some."""
        if not self.config.num_prototypes:
            return None
        with full_precision(z):
            return self.predictor.prototypes(z, alpha_sigma)

    def nothing_shown(self, z: Tensor) -> Tensor | None:
        """With self-conditioning, what the first step of a text is shown: zeros."""
        if not self.config.self_conditioning:
            return None
        size = z.shape[-1] if self._sees_embeddings else self.config.hidden_size
        return z.new_zeros(*z.shape[:-1], size)

    @property
    def _sees_embeddings(self) -> bool:
        """Whether a second call is shown the Ê of the first; else tokens, which the prediction sees to."""
        return self.config.self_conditioning and getattr(self.predictor, "second_call", None) is None

    def _places(self, t: Tensor, windows: Windows | None, known: Tensor | None) -> Places:
        """All tokens of a text, and which of them stand still as text."""
        places = Places.whole(self.config.max_length, t.device)
        if windows is not None:
            places = places._replace(starts=windows.starts)
        if known is None and t.shape[1] == 1:
            return places
        settled = t == 0 if known is None else (t == 0) | known
        # Reading a value would stall an accelerator.
        if known is None and t.device.type == "cpu" and not settled.any():
            return places
        starts = places.starts.expand(settled.shape)
        return Places(places.positions.expand(settled.shape), starts, settled, known)

    def predict_unseen(self, clean: CleanTokens, places: Places, context: Tensor | None = None) -> Prediction:
        """What one call of the predictor says of tokens of which nothing is seen, at places of their own: those of
        time 1.
        """
        inputs, n = clean.inputs, places.positions.shape[-1]
        z = inputs.new_zeros(len(inputs), n, self.config.embedding_dim, dtype=self.latent_dtype)
        t, nothing = z.new_ones(len(z), 1), (z.new_zeros(1, 1, 1), z.new_ones(1, 1, 1))
        shown = torch.zeros_like(z) if self._sees_embeddings else None
        inputs = z, t, nothing, self.embedding_table(), self.token_bias.to(z.dtype), context, shown, clean, places
        return self.prediction(self.predictor, *inputs, second_call=False)

    def jump(self, noise: Tensor, clean: CleanTokens, places: Places) -> Prediction:
        """`p(x_i | clean tokens before the window, noise of its tokens before i)`, for all tokens in one call."""
        states = self.predictor.jump(noise.to(self.latent_dtype), clean, places)
        return Prediction(factors=self.next_token_factors(states))

    def text_reader(self, noise: Tensor, num_texts: int) -> TextReader:
        """Reads texts of which every token has its noise, `(batch, room)`."""
        return TextReader(self.predictor, noise.to(self.latent_dtype), self.embedding_table(), num_texts)

    @torch.no_grad()
    def first_prediction(
        self,
        z: Tensor,
        t: Tensor,
        context: Tensor | None,
        clean: CleanTokens | None,
        windows: Windows | None,
        known: Tensor | None = None,
        window: slice | None = None,
    ) -> Tensor:
        """Ê of a call that is shown none."""
        first = self.denoise(z, t, context, clean, torch.zeros_like(z), windows, known, window).embeddings
        # Before torch 2.11 autocast used weights that it had cast without a graph in the second call, too
        # (pytorch/pytorch#165068).
        torch.clear_autocast_cache()
        return first

    def shown_prediction(
        self,
        draws: Draws,
        E: Tensor,
        z: Tensor,
        t: Tensor,
        context: Tensor | None,
        clean: CleanTokens | None,
        windows: Windows | None,
        known: Tensor | None = None,
    ) -> Tensor | None:
        """In training, the first Ê of a share of the texts and zeros for the others: the predictor learns both
        calls. Where it reads first, the states of that reading, or of a step before.
        """
        if self.training and self.reads_first(windows):
            return self._first_or_before(draws, E, z, t, context, known)
        if not self._sees_embeddings or not self.training:
            return None
        rows = (draws.self_conditioned < SELF_CONDITIONED_SHARE).nonzero()[:, 0]
        shown = torch.zeros_like(z)
        if len(rows):
            clean = None if clean is None else clean.rows(rows)
            context, known = (None if x is None else x[rows] for x in (context, known))
            if windows is not None and len(windows.starts) > 1:
                windows = windows._replace(starts=windows.starts[rows])
            shown[rows] = self.first_prediction(z[rows], t[rows], context, clean, windows, known)
        return shown

    @torch.no_grad()
    def _first_or_before(
        self, draws: Draws, E: Tensor, z: Tensor, t: Tensor, context: Tensor | None, known: Tensor | None
    ) -> Tensor:
        """What a call is shown whose text is in motion as a whole: the reading from left to right at its own times, or
        the states of a step before, at later times and by other noise.
        """
        before = draws.self_conditioned < STEP_BEFORE_SHARE
        step = LARGEST_STEP_BEFORE * (draws.self_conditioned / STEP_BEFORE_SHARE)[:, None]
        later = t + step * (1 - t)
        if known is not None:
            later = torch.where(known, t, later)
        z_later = self.forward_process.marginal(E, later, context).sample(draws.initial_noise)
        if known is not None:
            z_later = torch.where(known[..., None], z, z_later)
        shown = z.new_zeros(*z.shape[:-1], self.config.hidden_size)
        for rows, latents, times in ((before, z_later, later), (~before, z, t)):
            if rows.any():
                given = (None if x is None else x[rows] for x in (context, known))
                shown[rows] = self._read_first(latents[rows], times[rows], *given)
        if before.any():
            given = tuple(None if x is None else x[before] for x in (context, known))
            prediction = self.denoise(
                z_later[before], later[before], given[0], self_condition=shown[before], known=given[1]
            )
            shown[before] = prediction.states
        torch.clear_autocast_cache()
        return shown

    def _read_first(self, z: Tensor, t: Tensor, context: Tensor | None, known: Tensor | None) -> Tensor:
        """States of a text in motion that is read from left to right."""
        alpha_sigma = self.forward_process.alpha_sigma(t, context)
        inputs = self.predictor, z, t, alpha_sigma, self.embedding_table(), self.token_bias.to(z.dtype)
        return self.prediction.read(*inputs, self._places(t, None, known), self.outline(z, alpha_sigma))

    def second_calls(self, draws: Draws) -> bool | Tensor:
        """Which texts have a second call: in training a share of them, since the predictor learns both calls."""
        if self.training and self.config.self_conditioning and not self._sees_embeddings:
            return draws.self_conditioned < SECOND_CALL_SHARE
        return True

    def read_clean(
        self, input_ids: Tensor, before: CleanTokens | None = None, detach_process: bool = False
    ) -> tuple[Tensor, CleanTokens]:
        """States of clean tokens `(batch, tokens)` that follow those of `before`, and what noisy tokens see of all of
        them.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not detach_process):
            embeddings = self.embed(input_ids)
        return self.predictor.read_clean(input_ids, embeddings, before)

    def read_later(self, input_ids: Tensor, before: CleanTokens) -> CleanTokens:
        """Clean tokens that follow those of `before`, to be read by the next call of `denoise`, along with the noisy
        ones.
        """
        return before.append(self.predictor.clean_inputs(input_ids, self.embed(input_ids)))

    def next_token_factors(self, states: Tensor) -> Factors:
        """`(states, weight, bias)` of the logits of the token that follows each clean one."""
        output, dtype = self.predictor.output, self.latent_dtype
        return states.to(dtype), output.weight.to(dtype), output.bias.to(dtype) + self.token_bias.to(dtype)

    def linked_factors(self, states: Tensor, before: Tensor) -> Factors:
        """`(states, weight, bias)` of the logits of unseen tokens, for the network's states of `predict_unseen`, given
        the very token before each, `(batch, tokens)`.
        """
        rows = self.predictor.token_rows(before)
        return self.next_token_factors(self.predictor.token_link(states.to(rows.dtype), rows))

    def clean_stream(
        self, input_ids: Tensor, windows: Windows | None, next_token: bool = False, detach_process: bool = False
    ) -> tuple[CleanTokens | None, Tensor | None]:
        """What noisy tokens see of the clean text, and with `next_token` `-log p(x_i | x_<i)` of it,
        `(batch, seq - 1)`, that of the condition left out.
        """
        if windows is None and not next_token:
            return None, None
        states, clean = self.read_clean(input_ids, None, detach_process)
        losses = None
        if next_token:
            first = self.config.condition_length
            losses, _ = linear_cross_entropy(*self.next_token_factors(states[:, first:-1]), input_ids[:, first + 1 :])
        return (None if windows is None else clean), losses


def _at(values: Tensor, part: slice) -> Tensor:
    """Values `(batch, seq or 1, ...)` of some positions."""
    return values if values.shape[1] == 1 else values[:, part]
