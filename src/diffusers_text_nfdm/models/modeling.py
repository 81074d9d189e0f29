"""The models: a forward process, a predictor, token embeddings, and the bound computed in `forward`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .. import objective
from ..forward_processes import (
    DiffusionLMProcess,
    ForwardProcess,
    LearnedVolatility,
    MarkovianVolatility,
    MuLANProcess,
    NFDMProcess,
)
from ..time_samplers import BucketTimeSampler, UniformTimeSampler, stratify
from .block_predictor import BlockPredictor
from .configuration import DiffusionLMConfig, MuLANConfig, NFDMConfig, TextDiffusionConfig
from .context_encoder import ContextEncoder
from .outputs import Draws, TextDiffusionOutput
from .prediction import CategoricalPrediction, EmbeddingPrediction, gaussian_factors
from .predictor import Predictor, TokenLayer
from .transformer import Modulation, Transformer


class TextDiffusionModel(PreTrainedModel):
    """What the models share. A subclass builds its forward process and, if it has one, encodes the context."""

    config_class = TextDiffusionConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    # The modulations of a block are computed before it is called. A model has those of its parts.
    _no_split_modules = ["BertLayer", "PredictorLayer", "Block", "Modulation"]

    num_monitored_tokens = 256
    monitored_chunk = 4096

    def __init__(self, config: TextDiffusionConfig):
        super().__init__(config)
        self.context_encoder = self.build_context_encoder(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.token_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.forward_process = self.build_forward_process(config)
        self.predictor = (Predictor if config.num_blocks == 1 else BlockPredictor)(config, self.context_dim)
        if config.prediction_type == "categorical":
            self.prediction = CategoricalPrediction()
        else:
            self.prediction = EmbeddingPrediction(config.stabilized_prediction)
        self.time_sampler = (
            BucketTimeSampler(config.num_time_buckets) if config.time_sampler == "buckets" else UniformTimeSampler()
        )
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
            # Not in their own turn: transformers passes over modules that hold no parameter themselves.
            for child in self.modules():
                if isinstance(child, Modulation):
                    init.zeros_(child.linear.weight)
                elif isinstance(child, CategoricalPrediction):
                    init.zeros_(child.gate.weight)
        elif module is self.embeddings:
            init.normal_(module.weight)
        elif self.config.prediction_type == "categorical" and module in self._deviations():
            # The posterior inside the logits is exact at the start.
            init.zeros_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, TokenLayer):
            # Attention must tell tokens apart from the first step on.
            init.normal_(module.weight, std=module.in_features**-0.5)
        elif isinstance(module, BucketTimeSampler):
            init.zeros_(module.log_terms)

    def _deviations(self) -> tuple[nn.Module, ...]:
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
    def set_token_rows(self, rows: Tensor) -> None:
        """Start the rows by which categorical prediction reads and writes tokens at these directions, `(vocab, hidden_size)`."""
        self.predictor.output.weight.copy_(nn.functional.normalize(rows, dim=-1))

    def embedding_table(self) -> Tensor:
        """`Emb` of shape `(vocab, dim)`, on its sphere if the config says so."""
        table = self.embeddings.weight.to(self.latent_dtype)
        if self.config.embedding_sphere:
            table = nn.functional.normalize(table, dim=-1) * math.sqrt(self.config.embedding_dim)
        return table

    def embed(self, input_ids: Tensor) -> Tensor:
        """`E = Emb[x]`."""
        return nn.functional.embedding(input_ids, self.embedding_table())

    def decode(self, z_0: Tensor, context: Tensor | None = None) -> Tensor:
        """Logits of `p(x_i | z_0)`: `z_0 Embᵀ + b`, or with the Gaussian decoder `(α₀ z_0 Embᵀ - α₀² |Emb|²/2) / σ₀² + b`."""
        states, weight, bias = self.decoder_factors(z_0, context)
        with self._full_precision(z_0):
            return states @ weight.T + bias

    def decoder_factors(self, z_0: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """`(states, weight, bias)` with logits `states weightᵀ + bias`, so that a loss need not hold the logits."""
        table, bias = self.embedding_table(), self.token_bias.to(self.latent_dtype)
        if self.config.decoder == "linear":
            return z_0, table, bias
        base = self.forward_process.linear_base(z_0.new_zeros(len(z_0)), context)
        return *gaussian_factors(z_0, base, table), bias

    def predict(
        self,
        z: Tensor,
        t: Tensor,
        context: Tensor | None = None,
        previous: Tensor | None = None,
        estimate: Tensor | None = None,
    ) -> Tensor:
        """`Ê(z_t, t, c)`, the estimate of the clean embeddings.

        Args:
            z: latents of one block per text, `(texts, block_length, dim)`; the block is the text itself unless `block_size` is set.
            previous: what `encode_previous` gave for the tokens before the block. With several blocks of each text in `z`, one after the
                other, they are the last ones up to the first that is not in `previous`.
            estimate: with `self_conditioning`, the Ê that the predictor sees, zeros for none, instead of that of a first call without one.
        """
        if self.config.prediction_type == "embedding":
            estimate = self._estimate(z, t, context, previous, estimate)
            return self.prediction(self.predictor(z, t, context, None, estimate, *self._given(previous)), z, t)
        return self.mean_embedding(self.predict_logits(z, t, context, previous, estimate))

    def mean_embedding(self, logits: Tensor) -> Tensor:
        """Ê of predicted tokens."""
        with self._full_precision(logits):
            return self.prediction(logits, self.embedding_table())

    def predict_logits(
        self,
        z: Tensor,
        t: Tensor,
        context: Tensor | None = None,
        previous: Tensor | None = None,
        estimate: Tensor | None = None,
        hidden: Tensor | None = None,
    ) -> Tensor:
        """Logits of the clean tokens given `z_t`, whose mean embedding is Ê, for `prediction_type="categorical"`.

        The arguments are those of `predict`, and `hidden`: positions whose latent is not looked at, as if it were only noise, `(texts,
        block_length)`.
        """
        states, weight, bias = self.prediction_factors(z, t, context, previous, estimate, hidden)
        with self._full_precision(z):
            return states @ weight.T + bias

    def prediction_factors(
        self,
        z: Tensor,
        t: Tensor,
        context: Tensor | None = None,
        previous: Tensor | None = None,
        estimate: Tensor | None = None,
        hidden: Tensor | None = None,
        predictor_only: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`(states, weight, bias)` of `predict_logits`: what the predictor's output layer gets beside what z says of each token alone.

        With `predictor_only` no gradient goes to the embeddings and the forward process.
        """
        estimate = self._estimate(z, t, context, previous, estimate, hidden)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not predictor_only):
            table, base = self.embedding_table(), self.forward_process.linear_base(t, context)
        if hidden is not None:
            alpha, sigma = base
            base = torch.where(hidden[..., None], 0, alpha), sigma
        # Near t = 0 logits are small differences of large numbers, and the weight of the bound sees the rounding of Ê.
        with self._full_precision(z):
            evidence, evidence_weight = self.prediction.evidence_factors(z, t, base, table)
        features = None
        if self.config.posterior_features and self.predictor.reads_latents:
            features = self._posterior_features(evidence, evidence_weight)
        denoised = self.prediction.linear_estimate(z, base)
        states = self.predictor.states(denoised, t, context, features, estimate, *self._given(previous)).to(z.dtype)
        output = self.predictor.output
        weight = torch.cat([output.weight.to(z.dtype), evidence_weight], dim=-1)
        return torch.cat([states, evidence], dim=-1), weight, output.bias.to(z.dtype) + self.token_bias.to(z.dtype)

    def _posterior_features(self, evidence: Tensor, evidence_weight: Tensor) -> Tensor:
        """What the predictor reads of `p(x_i | z_i)`."""
        tokens, bias = self.predictor.output, self.token_bias.to(evidence.dtype)
        dtype = tokens.weight.dtype
        # Where z is only noise, at t = 1, the posterior is the prior, once for all. An accelerator would have to wait for the count.
        rows = evidence.flatten(1).any(1).nonzero()[:, 0] if evidence.device.type == "cpu" else slice(None)
        with torch.no_grad(), self._full_precision(evidence):
            prior = torch.softmax(bias, -1)
            posterior = torch.softmax(evidence[rows] @ evidence_weight.T + bias, -1)
        features = tokens.read(posterior.to(dtype))
        if len(features) == len(evidence):
            return features
        return tokens.read(prior.to(dtype)).expand(*evidence.shape[:-1], -1).index_put((rows,), features)

    def _estimate(
        self,
        z: Tensor,
        t: Tensor,
        context: Tensor | None,
        previous: Tensor | None,
        estimate: Tensor | None = None,
        hidden: Tensor | None = None,
    ) -> Tensor | None:
        """The Ê that the predictor sees: the given one or that of a first call, which is taken as it is; `None` without self-conditioning."""
        if not self.config.self_conditioning or estimate is not None:
            return estimate
        with torch.no_grad():
            inputs = z, t, context, previous, torch.zeros_like(z)
            if hidden is None:
                estimate = self.predict(*inputs)
            else:
                estimate = self.mean_embedding(self.predict_logits(*inputs, hidden))
        # Before torch 2.11 autocast used weights that it had cast without a graph in the second call, too (pytorch/pytorch#165068).
        torch.clear_autocast_cache()
        return estimate

    def _shown_estimate(self, draws: Draws, *inputs: Tensor | None) -> Tensor | None:
        """In training half of the texts show no Ê to the predictor, so that it learns the first call, too."""
        if not self.config.self_conditioning or not self.training:
            return None
        return self._estimate(*inputs) * self.per_block(draws.shown)[:, None, None]

    def _given(self, previous: Tensor | None) -> tuple[Tensor | None, ...]:
        """The argument that only the predictor of texts in several blocks has."""
        return () if self.config.num_blocks == 1 else (previous,)

    def encode_previous(self, input_ids: Tensor, predictor_only: bool = False) -> Tensor | None:
        """What the predictor needs of the clean tokens before a block, `(texts, positions)`; `None` if there are none."""
        if self.config.num_blocks == 1 or input_ids.shape[1] == 0:
            return None
        with torch.set_grad_enabled(torch.is_grad_enabled() and not predictor_only):
            embeddings = self.embed(input_ids)
        return self.predictor.encode(input_ids, embeddings)

    def split(self, texts: Tensor) -> Tensor:
        """`(texts, max_length, ...)` as blocks `(texts * num_blocks, block_length, ...)`."""
        return texts.unflatten(1, (-1, self.config.block_length)).flatten(0, 1)

    def per_block(self, values: Tensor | None) -> Tensor | None:
        """What belongs to a text, once for each of its blocks."""
        return None if values is None else values.repeat_interleave(self.config.num_blocks, 0)

    def per_text(self, values: Tensor) -> Tensor:
        """The sum over the blocks of each text."""
        return values.view(-1, self.config.num_blocks).sum(-1)

    def encode_all_previous(self, input_ids: Tensor, predictor_only: bool = False) -> Tensor | None:
        """`encode_previous` of all that some block of the text is given: everything but the last block."""
        return self.encode_previous(input_ids[:, : -self.config.block_length], predictor_only)

    @staticmethod
    def _full_precision(z: Tensor) -> torch.autocast:
        return torch.autocast(z.device.type, enabled=False)

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
        noise = torch.randn(batch_size, *self.latent_shape, **options)
        initial_noise = torch.randn(batch_size, *self.latent_shape, **options)
        context_noise = None if self.context_dim is None else torch.randn(batch_size, self.context_dim, **options)
        shown = torch.rand(batch_size, **options).round() if self.config.self_conditioning else None
        return Draws(uniforms, noise, initial_noise, context_noise, shown)

    def forward(
        self,
        input_ids: Tensor,
        t: Tensor | None = None,
        draws: Draws | None = None,
        generator: torch.Generator | None = None,
        context_weight: float = 1.0,
        cross_entropy: bool = False,
        hidden_share: float = 0.0,
        return_dict: bool = True,
    ) -> TextDiffusionOutput | tuple:
        """The bound of a batch of token ids `(batch, max_length)`, estimated at one random time per example, or per block.

        Args:
            input_ids: token ids, padding included: every position is modelled.
            t: times `(batch,)` at which the diffusion integrand is wanted, the same for all blocks of a text, instead of random ones.
            draws: the random numbers, instead of new ones from `generator`.
            context_weight: weight of the context's divergence in `loss` (KL warm-up); `bound` always has it whole.
            cross_entropy: instead of the bound, the cross-entropy of the predicted tokens at the random times, which trains no embedding and no
                forward process. It has the same optimum and, without the bound's weights, far less noise; steps of the two are mixed in training.
            hidden_share: share of the positions that `cross_entropy` hides, as if their latents were only noise. Tokens of equal noise become
                known at about the same time; hidden ones have to be learned from their neighbours, and what is learned there serves at all times.
        """
        self.check_inputs(input_ids, t)
        if cross_entropy and self.config.prediction_type != "categorical":
            raise ValueError(
                f"`cross_entropy` is True with `prediction_type` {self.config.prediction_type!r}; only 'categorical' has logits."
            )
        if hidden_share and not cross_entropy:
            raise ValueError(f"`hidden_share` is {hidden_share} without `cross_entropy`; the bound sees everything.")
        if draws is None:
            draws = self.draw(len(input_ids), generator, input_ids.device)
        if t is None:
            times, time_weight = self.time_sampler(self._block_uniforms(draws.uniforms))
        else:
            times = self.per_block(t.to(self.latent_dtype))
            time_weight = torch.ones_like(times)
        if cross_entropy:
            return self._cross_entropy(input_ids, times, draws, hidden_share, return_dict)

        embeddings = self.embed(input_ids)
        context, context_term = self.encode_context(embeddings, draws.context_noise)

        # Every block is an example of its own for the forward process, which knows of no other; the predictor knows those before.
        clean, block_context = self.split(embeddings), self.per_block(context)

        # Diffusion: how far the predicted reverse drift is from the true one at a random time.
        process = self.forward_process
        moving_marginal = process.moving_marginal_at(times, block_context)
        path = moving_marginal(clean)
        z = path.sample(self.split(draws.noise))
        inputs = z, times, block_context, self.encode_all_previous(input_ids)
        prediction = self.predict(*inputs, self._shown_estimate(draws, *inputs))
        diffusion = objective.diffusion(process, moving_marginal, path, clean, prediction, z, times, block_context)
        rescaled = objective.rescaled_diffusion(clean, prediction)

        # Reconstruction: what decoding z_0 costs. Without it the embeddings collapse.
        z_0 = process.initial_marginal(clean, block_context).sample(self.split(draws.initial_noise))
        with self._full_precision(z_0):
            factors = self.decoder_factors(z_0, block_context)
            reconstruction, accuracy = map(self.per_text, objective.reconstruction(*factors, self.split(input_ids)))

        # Prior: what is left of the data at t = 1.
        prior = self.per_text(objective.prior(process.terminal_marginal(clean, block_context)))

        weighted = self.per_text(time_weight * diffusion)
        trained = diffusion if self.config.objective == "bound" else rescaled
        loss = self.per_text(time_weight * trained) + reconstruction + prior + context_weight * context_term
        # Trains the time sampler and leaves the value of the loss as it is.
        fit = self.per_text(self.time_sampler.fitting_loss(times, trained))
        # A sum divided, not a mean, whose gradient is no expanded number: see `linear_cross_entropy`.
        loss = (loss + fit - fit.detach()).sum() / len(loss)

        output = TextDiffusionOutput(
            loss=loss,
            bound=reconstruction + weighted + prior + context_term,
            diffusion=weighted,
            reconstruction=reconstruction,
            prior=prior,
            context=context_term,
            rescaled_diffusion=self.per_text(rescaled),
            t=self._per_text_and_block(times),
            reconstruction_accuracy=accuracy / self.config.num_blocks,
            **self._embedding_monitors(embeddings, input_ids),
        )
        return output if return_dict else output.to_tuple()

    def _block_uniforms(self, uniforms: Tensor) -> Tensor:
        """A number for every block from that of its text: each is uniform, and those of a text are spread out (by the golden ratio)."""
        shifts = 0.6180339887498949 * torch.arange(
            self.config.num_blocks, device=uniforms.device, dtype=uniforms.dtype
        )
        return ((uniforms[:, None] + shifts) % 1).flatten()

    def _per_text_and_block(self, times: Tensor) -> Tensor:
        return times if self.config.num_blocks == 1 else times.view(-1, self.config.num_blocks)

    def _cross_entropy(
        self, input_ids: Tensor, times: Tensor, draws: Draws, hidden_share: float, return_dict: bool
    ) -> TextDiffusionOutput | tuple:
        """`-Σ_i log p(x_i | z_t)` at the times, as they fall: no weights, no gradient to the forward process and the embeddings."""
        with torch.no_grad():
            embeddings = self.embed(input_ids)
            context, _ = self.encode_context(embeddings, draws.context_noise)
            context = self.per_block(context)
            z = self.split(draws.noise)
            if hidden_share < 1:
                z = self.forward_process.marginal(self.split(embeddings), times, context).sample(z)
        inputs = z, times, context, self.encode_all_previous(input_ids, predictor_only=True)
        # There is no z_0 here that would need its noise.
        hidden = torch.special.ndtr(self.split(draws.initial_noise)[..., 0]) < hidden_share if hidden_share else None
        estimate = self._shown_estimate(draws, *inputs, None, hidden)
        factors = self.prediction_factors(*inputs, estimate, hidden, predictor_only=True)
        with self._full_precision(z):
            cross_entropy, _ = objective.reconstruction(*factors, self.split(input_ids))
        cross_entropy = self.per_text(cross_entropy)
        output = TextDiffusionOutput(
            # A sum divided, not a mean: see `forward`.
            loss=cross_entropy.sum() / len(cross_entropy),
            cross_entropy=cross_entropy,
            t=self._per_text_and_block(times),
        )
        return output if return_dict else output.to_tuple()

    @torch.no_grad()
    def _embedding_monitors(self, embeddings: Tensor, input_ids: Tensor) -> dict[str, Tensor]:
        # A fixed number of tokens against the table, part by part: the cost does not grow with the batch, nor the memory with the table.
        ids = input_ids.flatten()[: self.num_monitored_tokens]
        some, table = embeddings.flatten(0, 1)[: self.num_monitored_tokens], self.embedding_table()
        nearest = some.new_full((len(some),), math.inf)
        for others in torch.arange(len(table), device=table.device).split(self.monitored_chunk):
            distances = torch.cdist(some, table[others]).masked_fill_(ids[:, None] == others, math.inf)
            nearest = torch.minimum(nearest, distances.amin(-1))
        return {
            "embedding_norm": some.norm(dim=-1).mean(),
            "nearest_neighbor_distance": nearest.mean(),
        }

    def check_inputs(self, input_ids: Tensor, t: Tensor | None = None) -> None:
        """Raise a ValueError for token ids or times that the model cannot take."""
        if input_ids.ndim != 2 or input_ids.shape[1] != self.config.max_length:
            raise ValueError(
                f"`input_ids` has shape {tuple(input_ids.shape)}; it must be (batch, {self.config.max_length}): every sequence "
                "is padded to the model's `max_length`."
            )
        if t is not None and t.shape != input_ids.shape[:1]:
            raise ValueError(f"`t` has shape {tuple(t.shape)}; it must be ({len(input_ids)},), one time per example.")
        # Reading values would stall an accelerator at every step; there an id out of range is a device-side assertion.
        if input_ids.device.type == "cpu" and len(input_ids):
            low, high = input_ids.aminmax()
            if low < 0 or high >= self.config.vocab_size:
                raise ValueError(
                    f"`input_ids` has values from {int(low)} to {int(high)}; token ids must be in "
                    f"[0, {self.config.vocab_size - 1}]. Was the tokenizer built for another model?"
                )
        if t is not None and t.device.type == "cpu" and not ((t >= 0) & (t <= 1)).all():
            raise ValueError(f"`t` is {t.tolist()}; every time must be a number in [0, 1].")


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The model without dropout, and back in the mode it was in, whatever happens."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


class NFDMModel(TextDiffusionModel):
    """Neural Flow Diffusion Model for text."""

    config_class = NFDMConfig

    def build_forward_process(self, config: NFDMConfig) -> NFDMProcess:
        network = Transformer(
            input_dim=config.embedding_dim,
            output_dim=2 * config.embedding_dim,
            hidden_size=config.forward_hidden_size,
            num_layers=config.forward_num_layers,
            num_heads=config.forward_num_heads,
            intermediate_size=config.forward_intermediate_size,
            max_length=config.block_length,
            time_conditioning=config.time_conditioning,
            time_dim=config.forward_time_dim,
        )
        if config.volatility == "markovian":
            volatility = MarkovianVolatility(config.volatility_hidden_size, config.delta)
        else:
            volatility = LearnedVolatility(config.volatility_hidden_size, config.volatility_floor)
        return NFDMProcess(network, volatility, config.delta)

    def _deviations(self) -> tuple[nn.Module, ...]:
        process = self.forward_process
        return process.network.output, process.volatility.mlp[-1]


class MuLANModel(TextDiffusionModel):
    """MuLAN, and with `rescaled_schedule` MuLAN-Rescaled, for text."""

    config_class = MuLANConfig

    def build_context_encoder(self, config: MuLANConfig) -> ContextEncoder:
        return ContextEncoder(config)

    def build_forward_process(self, config: MuLANConfig) -> MuLANProcess:
        return MuLANProcess(
            context_dim=config.context_dim,
            max_length=config.block_length,
            hidden_size=config.schedule_hidden_size,
            gamma_min=config.gamma_min,
            gamma_max=config.gamma_max,
            rescaled=config.rescaled_schedule,
        )


class DiffusionLMModel(TextDiffusionModel):
    """Diffusion-LM in continuous time."""

    config_class = DiffusionLMConfig

    def build_forward_process(self, config: DiffusionLMConfig) -> DiffusionLMProcess:
        return DiffusionLMProcess()
