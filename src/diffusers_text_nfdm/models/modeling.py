"""What the models share: token embeddings, a forward process, a predictor, a clock, and the bound in `forward`."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .. import objective
from ..checks import check_finite, check_is_tensor, check_token_ids, pad_rows
from ..clocks import Clock, Density, Windows, check_known, hold_known, make_clock
from ..conditions import with_condition
from ..forward_processes import ForwardProcess
from ..networks.bert_predictor import BertPredictor
from ..networks.context_encoder import ContextEncoder
from ..networks.dual import Dual
from ..networks.token_link import TokenLink
from ..networks.token_order import order_by_likeness
from ..networks.transformer import Modulation
from ..networks.two_stream_predictor import TwoStreamPredictor
from ..time_samplers import BucketTimeSampler, UniformTimeSampler, stratify
from .configuration import TextDiffusionConfig
from .denoiser import Denoiser
from .loading import SafetensorsModel
from .outputs import Draws, TextDiffusionOutput, embedding_monitors
from .prediction import CategoricalPrediction, EmbeddingPrediction, Prediction, gaussian_factors


# Weight of the prototypes' squared error in steps on the cross-entropy.
OUTLINE_WEIGHT = 0.02


class TextDiffusionModel(Denoiser, SafetensorsModel):
    """What the models share. A subclass builds its forward process and, if it has one, encodes the context."""

    config_class = TextDiffusionConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    # The modulations of a layer are computed before it is called. A model has those of its parts.
    _no_split_modules = ["BertLayer", "PredictorLayer", "Layer", "Modulation"]

    def __init__(self, config: TextDiffusionConfig):
        super().__init__(config)
        self.context_encoder = self.build_context_encoder(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.token_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.forward_process = self.build_forward_process(config)
        predictor = TwoStreamPredictor if config.predictor == "two_stream" else BertPredictor
        self.predictor = predictor(config, self.context_dim)
        if config.prediction_type == "categorical":
            self.prediction = CategoricalPrediction()
        else:
            self.prediction = EmbeddingPrediction(config.stabilized_prediction)
        self.time_sampler = (
            BucketTimeSampler(config.num_time_buckets) if config.time_sampler == "buckets" else UniformTimeSampler()
        )
        if config.jumps:
            # In which the probabilities of tokens add up to the noise that decides one.
            self.register_buffer("token_order", torch.arange(config.vocab_size))
        present = {type(module).__name__ for module in self.modules()}
        self._no_split_modules = [name for name in type(self)._no_split_modules if name in present]
        self.post_init()

    @abstractmethod
    def build_forward_process(self, config: TextDiffusionConfig) -> ForwardProcess:
        """The forward process `q(z_t | x)` of this model."""

    def build_context_encoder(self, config: TextDiffusionConfig) -> ContextEncoder | None:
        """The encoder `q(c | x)`, for a model with a latent context."""
        return None

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self:
            init.zeros_(self.token_bias)
            if self.config.jumps:
                init.copy_(self.token_order, torch.arange(self.config.vocab_size))
            # Not in their own turn: transformers passes over modules that hold no parameter themselves.
            for child in self.modules():
                if isinstance(child, Modulation):
                    init.zeros_(child.linear.weight)
                elif isinstance(child, CategoricalPrediction):
                    init.zeros_(child.gate.weight)
                elif isinstance(child, TwoStreamPredictor):
                    child.init_weights()
        elif module is self.embeddings:
            init.normal_(module.weight)
        elif self.config.prediction_type == "categorical" and module in self.zero_initialized():
            # The posterior inside the logits is exact at the start.
            init.zeros_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, BucketTimeSampler):
            init.zeros_(module.log_terms)

    def zero_initialized(self) -> tuple[nn.Module, ...]:
        """Layers whose output is how far the forward process is from one with a known posterior of a single token."""
        return ()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings

    @property
    def latent_dtype(self) -> torch.dtype:
        """Latents and times are at least float32, whatever the weights are."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def context_dim(self) -> int | None:
        """Dimension of the latent context c, `None` for a model without one."""
        return None if self.context_encoder is None else self.config.context_dim

    @property
    def latent_shape(self) -> tuple[int, int]:
        """`(seq, dim)` of z."""
        return self.config.max_length, self.config.embedding_dim

    @torch.no_grad()
    def set_token_frequencies(self, counts: Tensor) -> None:
        """Start the bias b at the log of the (smoothed) token frequencies."""
        self.token_bias.copy_(torch.log((counts + 1) / (counts + 1).sum()))

    @torch.no_grad()
    def set_embeddings(self, embeddings: Tensor) -> None:
        """Start the token embeddings at the given ones, `(vocab, dim)`."""
        self.embeddings.weight.copy_(embeddings)

    @torch.no_grad()
    def add_token_link(self) -> None:
        """A link that changes nothing yet, for a model with a clean stream (`training.fit_token_link`)."""
        self.config.token_link = True
        link = TokenLink(self.config.hidden_size).to(self.device, self.dtype)
        nn.init.zeros_(link.output.weight)
        nn.init.zeros_(link.output.bias)
        self.predictor.token_link = link

    @torch.no_grad()
    def set_prototypes(self, input_ids: Tensor) -> None:
        """Start the prototypes at the given texts, `(num_prototypes, max_length)`."""
        self.predictor.prototypes.texts.copy_(self.embed(input_ids))

    @torch.no_grad()
    def set_token_order(self) -> None:
        """For jumps, let like tokens follow one another, by the present embeddings: their noise is then close, too."""
        self.token_order.copy_(order_by_likeness(self.embedding_table()))

    def embedding_table(self) -> Tensor:
        """`Emb` of shape `(vocab, dim)`, on its sphere if the config says so."""
        table = self.embeddings.weight.to(self.latent_dtype)
        if self.config.embedding_sphere:
            table = nn.functional.normalize(table, dim=-1) * math.sqrt(self.config.embedding_dim)
        return table

    def embed(self, input_ids: Tensor) -> Tensor:
        """`E = Emb[x]`."""
        return nn.functional.embedding(input_ids, self.embedding_table())

    def decoder_factors(self, z_0: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """`(states, weight, bias)` of the logits of `p(x_i | z_0) = softmax(states weightᵀ + bias)`.

        The logits are `z_0 Embᵀ + b`, or with the Gaussian decoder `(α₀ z_0 Embᵀ - α₀² |Emb|²/2) / σ₀² + b`.
        """
        table, bias = self.embedding_table(), self.token_bias.to(self.latent_dtype)
        if self.config.decoder == "linear":
            return z_0, table, bias
        alpha_sigma = self.forward_process.alpha_sigma(z_0.new_zeros(len(z_0), 1), context)
        return *gaussian_factors(z_0, alpha_sigma, table), bias

    def decode(self, z_0: Tensor, context: Tensor | None = None) -> Tensor:
        """Logits of `p(x_i | z_0)`."""
        return Prediction(factors=self.decoder_factors(z_0, context)).logits

    def encode_context(self, embeddings: Tensor, noise: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """`c ~ q(c | x)` and `KL(q(c | x) || N(0, I))` per example; `(None, 0)` for a model without context."""
        if self.context_encoder is None:
            return None, embeddings.new_zeros(len(embeddings))
        mean, log_variance = self.context_encoder(embeddings)
        context = mean + torch.exp(0.5 * log_variance) * noise
        return context, objective.context_divergence(mean, log_variance)

    def draw(
        self, batch_size: int, generator: torch.Generator | None = None, device: torch.device | None = None
    ) -> Draws:
        """Random numbers for a batch."""
        options = {"generator": generator, "device": device or self.device, "dtype": self.latent_dtype}
        uniforms = torch.rand(batch_size, **options)
        if self.config.stratified_times:
            uniforms = stratify(uniforms)
        return Draws(
            uniforms=uniforms,
            noise=torch.randn(batch_size, *self.latent_shape, **options),
            initial_noise=torch.randn(batch_size, *self.latent_shape, **options),
            context_noise=None if self.context_dim is None else torch.randn(batch_size, self.context_dim, **options),
            order=torch.rand(batch_size, self.config.max_length, **options),
            self_conditioned=torch.rand(batch_size, **options) if self.config.self_conditioning else None,
        )

    def clock(self, clock: str | dict | Clock | None = None) -> Clock:
        """The given clock, or that of the config, if the model can follow it."""
        clock = make_clock(self.config.clock if clock is None else clock, self.config.max_length)
        if clock.block_size is not None and self.config.predictor != "two_stream":
            raise ValueError(
                f"The clock {str(clock)!r} is one of blocks, for which the predictor must read clean tokens; this "
                "model has "
                f"`predictor` {self.config.predictor!r}, not 'two_stream'."
            )
        return clock

    @property
    def has_clean_stream(self) -> bool:
        """Whether the predictor is an autoregressive model of clean tokens, too."""
        return self.config.predictor == "two_stream" and self.config.prediction_type == "categorical"

    def has_windows(self, clock: Clock) -> bool:
        """Whether the tokens in motion along the clock are given the clean tokens before them."""
        whole = clock.block_size == self.config.max_length
        return self.config.predictor == "two_stream" and clock.has_windows and not whole

    def calls_per_prediction(self, clock: Clock) -> int:
        """How often a bound along the clock calls the predictor for one Ê."""
        if not self.config.self_conditioning:
            return 1
        # The reading from left to right is two.
        return 3 if not self.has_windows(clock) and self.reads_first(None) else 2

    def forward(
        self,
        input_ids: Tensor,
        known: Tensor | None = None,
        clock: str | dict | Clock | None = None,
        t: Tensor | None = None,
        draws: Draws | None = None,
        generator: torch.Generator | None = None,
        context_weight: float = 1.0,
        next_token_weight: float = 0.0,
        next_token_only: bool = False,
        straightness_weight: float = 0.0,
        cross_entropy: bool = False,
        jumps: bool = False,
        lattices: bool = False,
        attention_mask: Tensor | None = None,
        return_dict: bool = True,
    ) -> TextDiffusionOutput | tuple:
        """The bound of a batch of token ids `(batch, max_length)`, estimated at one random time per text, or per
        window.

        Args:
            input_ids: token ids, padding included: every position is modelled. Shorter rows are padded.
            known: `(batch, max_length)`, True for tokens that are given. The bound is then that of the others given
                them.
            clock: instead of the config's; see `clocks`.
            t: times `(batch,)` or `(batch, max_length)` at which the diffusion integrand is wanted, instead of random
                ones; in blocks if the clock has them, else with all tokens in one window.
            draws: the random numbers, instead of new ones from `generator`.
            context_weight: weight of the context's divergence in `loss` (KL warm-up); `bound` always has it whole.
            next_token_weight: weight in `loss` of the clean stream's `-log p(x_i | x_<i)`.
            next_token_only: nothing else.
            straightness_weight: weight in `loss` of the curvature of the forward process's paths
                (`objective.path_curvature`). The bound is without it.
            cross_entropy: instead of the bound, the cross-entropy of the predicted tokens at the random times, and
                that of a joint decoder. It trains no embedding and no forward process; steps of the two are mixed in
                training.
            jumps: instead of the bound, what jumps over the windows of the clock cost (`objective.jump_losses`).
            lattices: instead of the bound, what the parts of a lattice cost along the clock
                (`objective.lattice_losses`).
            attention_mask: not used, as padding is part of a text: `model(**tokenizer(texts, ...))` passes it.
        """
        input_ids = pad_rows(input_ids, self.config)
        self.check_inputs(input_ids, known, t)
        check_finite(
            context_weight=context_weight,
            next_token_weight=next_token_weight,
            straightness_weight=straightness_weight,
        )
        self._check_options(
            cross_entropy, next_token_weight, next_token_only, straightness_weight, jumps, lattices, known
        )
        if draws is not None and not isinstance(draws, Draws):
            raise ValueError(f"`draws` is a {type(draws).__name__}; it must be `Draws`, as `draw` makes them.")
        known = with_condition(known, input_ids, self.config.condition_length)
        if next_token_only:
            return self._next_token_output(input_ids, next_token_weight, return_dict)
        clock = self.clock(clock)
        draws = self.draw(len(input_ids), generator, input_ids.device) if draws is None else draws
        if jumps:
            return self._jump_output(input_ids, clock, draws, next_token_weight, return_dict)
        if t is None:
            times, windows = self.token_times(clock, draws, known)
        else:
            times, windows = self.given_times(t, known), clock.fixed_windows(self.config.max_length, input_ids.device)
        if lattices:
            windows = Windows(torch.zeros_like(input_ids[:1]), None) if windows is None else windows
            return self._lattice_output(input_ids, times, windows, draws, next_token_weight, return_dict)
        options = draws, known, windows, next_token_weight > 0

        if cross_entropy:
            losses, next_token, joint = objective.cross_entropy(self, input_ids, times.value, *options)
            output = TextDiffusionOutput(cross_entropy=losses.sum(-1), t=times.value)
            # A sum divided, not a mean, whose gradient is no expanded number: see `linear_cross_entropy`.
            output.loss = losses.sum() / len(losses)
            if joint is not None:
                output.joint = joint.sum(-1)
                output.loss = output.loss + joint.sum() / len(joint)
            if self.training and windows is None and self.config.num_prototypes:
                errors = objective.outline_errors(self, input_ids, times.value, draws, known)
                output.loss = output.loss + OUTLINE_WEIGHT * errors.sum() / len(errors)
        else:
            terms = objective.bound(self, input_ids, times, *options, curvature=straightness_weight > 0)
            next_token = terms.next_token
            output = self._output(terms, input_ids, times, context_weight, known)
            if terms.curvature is not None:
                output.curvature = terms.curvature.sum(-1)
                output.loss = output.loss + straightness_weight * terms.curvature.sum() / len(input_ids)
        if next_token is not None:
            output.next_token = next_token.sum(-1)
            output.loss = output.loss + next_token_weight * next_token.sum() / len(next_token)
        return output if return_dict else output.to_tuple()

    def _next_token_output(self, input_ids: Tensor, weight: float, return_dict: bool) -> TextDiffusionOutput | tuple:
        _, losses = self.clean_stream(input_ids, None, next_token=True, detach_process=True)
        output = TextDiffusionOutput(loss=weight * losses.sum() / len(losses), next_token=losses.sum(-1))
        return output if return_dict else output.to_tuple()

    def _jump_output(
        self, input_ids: Tensor, clock: Clock, draws: Draws, weight: float, return_dict: bool
    ) -> TextDiffusionOutput | tuple:
        windows = self.token_times(clock, draws)[1]
        starts = torch.zeros_like(input_ids[:1]) if windows is None else windows.starts
        jump, next_token = objective.jump_losses(self, input_ids, starts, draws.order)
        loss = (jump.sum() + weight * next_token.sum()) / len(input_ids)
        output = TextDiffusionOutput(loss=loss, jump=jump.sum(-1), next_token=next_token.sum(-1))
        return output if return_dict else output.to_tuple()

    def _lattice_output(
        self, input_ids: Tensor, times: Dual, windows: Windows, draws: Draws, weight: float, return_dict: bool
    ) -> TextDiffusionOutput | tuple:
        seen, followed, next_token = objective.lattice_losses(self, input_ids, times.value, draws, windows)
        loss = (seen.sum() + followed.sum() + weight * next_token.sum()) / len(input_ids)
        terms = {"lattice": (seen.sum(-1) + followed.sum(-1)), "next_token": next_token.sum(-1)}
        output = TextDiffusionOutput(loss=loss, **terms)
        return output if return_dict else output.to_tuple()

    def token_times(
        self, clock: Clock, draws: Draws, known: Tensor | None = None, density: Density | None = None
    ) -> tuple[Dual, Windows | None]:
        """Token times and their rates, along the clock and by the learned density, and a further one of global
        times; and the windows of the tokens.
        """
        arguments = draws.uniforms[:, None], self.config.max_length, known, draws.order, density
        if self.has_windows(clock):
            times, windows = clock.parallel_times(*arguments)
        else:
            times, windows = clock.single_times(*arguments), None
        return hold_known(self.time_sampler(times), known), windows

    def given_times(self, t: Tensor, known: Tensor | None = None) -> Dual:
        """The given times, `(batch,)` or `(batch, max_length)`, at rate 1."""
        t = t.to(self.latent_dtype).view(len(t), -1)
        return hold_known(Dual(t, torch.ones_like(t)), known)

    def _output(
        self, terms: objective.BoundTerms, input_ids: Tensor, times: Dual, context_weight: float, known: Tensor | None
    ) -> TextDiffusionOutput:
        """The terms of each text, and the loss."""
        trained = terms.diffusion if self.config.objective == "bound" else times.rate * terms.squared_error
        loss = (trained + terms.reconstruction + terms.prior).sum(-1) + context_weight * terms.context
        # Trains the time sampler and leaves the value of the loss as it is.
        fit = self.time_sampler.fitting_loss(times, trained)
        diffusion, reconstruction, prior = (
            term.sum(-1) for term in (terms.diffusion, terms.reconstruction, terms.prior)
        )
        return TextDiffusionOutput(
            # A sum divided, not a mean, whose gradient is no expanded number: see `linear_cross_entropy`.
            loss=(loss + fit - fit.detach()).sum() / len(loss),
            bound=reconstruction + diffusion + prior + terms.context,
            diffusion=diffusion,
            reconstruction=reconstruction,
            prior=prior,
            context=terms.context,
            rescaled_diffusion=terms.squared_error.sum(-1),
            t=times.value,
            reconstruction_accuracy=terms.correct.to(diffusion.dtype).mean(-1),
            **embedding_monitors(input_ids, self.embedding_table()),
        )

    def _check_options(
        self,
        cross_entropy: bool,
        next_token_weight: float,
        next_token_only: bool,
        straightness_weight: float,
        jumps: bool,
        lattices: bool,
        known: Tensor | None,
    ) -> None:
        config = self.config
        if straightness_weight and (cross_entropy or next_token_only or jumps or lattices):
            raise ValueError(
                f"`straightness_weight` is {straightness_weight}, but only the bound has paths to straighten, not "
                "`cross_entropy`, `next_token_only`, `jumps` or `lattices`."
            )
        if jumps and not config.jumps:
            raise ValueError("`jumps` is True, but this model has no `jumps` in its config.")
        if lattices and not config.lattice_candidates:
            raise ValueError("`lattices` is True, but this model has no `lattice_candidates` in its config.")
        if (jumps or lattices) and known is not None:
            raise ValueError(
                "`known` has no meaning for jumps and lattices, which go from left to right; leave it out."
            )
        if cross_entropy and config.prediction_type != "categorical":
            raise ValueError(
                f"`cross_entropy` is True with `prediction_type` {config.prediction_type!r}; only 'categorical' has "
                "logits."
            )
        if next_token_only and not next_token_weight:
            raise ValueError("`next_token_only` needs a `next_token_weight` above 0; without it there is no loss.")
        if next_token_weight and (config.predictor != "two_stream" or config.prediction_type != "categorical"):
            raise ValueError(
                f"`next_token_weight` is {next_token_weight}; only the clean stream of `predictor` 'two_stream' with "
                "`prediction_type` 'categorical' predicts the next token."
            )

    def check_inputs(self, input_ids: Tensor, known: Tensor | None = None, t: Tensor | None = None) -> None:
        """Raise a ValueError for token ids, known tokens or times that the model cannot take."""
        length = self.config.max_length
        check_is_tensor("input_ids", input_ids)
        if t is not None:
            check_is_tensor("t", t)
        if input_ids.ndim != 2 or not len(input_ids) or input_ids.shape[1] != length:
            raise ValueError(
                f"`input_ids` has shape {tuple(input_ids.shape)}; it must be (batch, {length}), with at least one "
                "sequence: every one is padded to the model's `max_length`, and a longer text cut to it, as "
                "tokenizers do with `truncation=True`."
            )
        if known is not None:
            check_known(known, input_ids.shape)
        n = len(input_ids)
        if t is not None and tuple(t.shape) not in ((n,), (n, 1), (n, length)):
            raise ValueError(
                f"`t` has shape {tuple(t.shape)}; it must be ({n},), one time per text, or ({n}, {length}), one per "
                "token."
            )
        check_token_ids(input_ids, self.config.vocab_size)
        if t is not None and t.device.type == "cpu" and not ((t >= 0) & (t <= 1)).all():
            raise ValueError(f"`t` is {t.tolist()}; every time must be a number in [0, 1].")
