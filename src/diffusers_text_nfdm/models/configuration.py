"""Configurations. The defaults are the paper's sizes; every size is a field."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from ..checks import check_finite, check_integers, check_one_of, check_positive, is_number
from ..clocks import make_clock
from ..conditions import check_condition_length


# Raised when a checkpoint of today could no longer be read by the code of yesterday.
CHECKPOINT_FORMAT = 2
PREDICTORS = ("bert", "two_stream")
PREDICTION_TYPES = ("embedding", "categorical")
OBJECTIVES = ("bound", "rescaled")
DECODERS = ("linear", "gaussian")
TIME_SAMPLERS = ("uniform", "buckets")


def check_format(checkpoint_format: int) -> None:
    """Raise a ValueError for a checkpoint of another format than this code knows."""
    check_integers(0, checkpoint_format=checkpoint_format)
    if checkpoint_format < CHECKPOINT_FORMAT:
        raise ValueError(
            f"`checkpoint_format` is {checkpoint_format}; this version of diffusers_text_nfdm reads format "
            f"{CHECKPOINT_FORMAT} "
            "only. Train the model again."
        )
    if checkpoint_format > CHECKPOINT_FORMAT:
        raise ValueError(
            f"`checkpoint_format` is {checkpoint_format}; this version of diffusers_text_nfdm reads formats up to "
            f"{CHECKPOINT_FORMAT}. Upgrade it."
        )


class TextDiffusionConfig(PreTrainedConfig):
    """What all models share: vocabulary, latent size, the predictor, the clock and the objective.

    Args:
        vocab_size: number of tokens.
        max_length: number of positions of every sequence, padding included.
        condition_length: tokens of a condition, which stands between START and the text (`conditions`); 0 for none.
        condition_dropout: share of the texts from which training took the condition, so that guidance is possible.
        copied_slots: slots of a condition whose values are copied to the text.
        clock: the clock of the bound and of sampling, unless another one is given: see `clocks`. The paper's is
            `"shared"`.
        trained_clocks: the clocks that the model was trained on, if that is known; sampling along another one warns.
        embedding_dim: dimension of the token embeddings, which is that of the latents z.
        embedding_sphere: embeddings are normalised to length `sqrt(embedding_dim)`, so that noise means the same for
            every word.
        predictor: `"bert"`, the paper's: a BERT encoder trained from scratch. `"two_stream"`: a pre-norm trunk that
            also reads clean tokens, which texts in blocks need.
        hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, hidden_act, hidden_dropout_prob,
            attention_probs_dropout_prob, layer_norm_eps, initializer_range: the predictor, as in `BertConfig`.
        prediction_type: `"embedding"`, the paper's: the predictor's output is Ê. `"categorical"`: it gives logits over
            the vocabulary around the posterior of a single token, exact for MuLAN and Diffusion-LM and that of the
            undeformed process for NFDM; Ê is the mean embedding under them.
        self_conditioning: the predictor is called twice and sees its first Ê in the second call. No gradient goes
            through the first call. In sampling a step is one call, which sees the Ê of the step before (Chen et al.
            2022).
        jumps: the predictor can write several tokens in one call from the noise that decides them; for the clean
            stream of `"two_stream"` (`objective.jump_losses`).
        lattice_candidates: the tokens of a window are inferred together, in a lattice (`models/lattice.py`), each by
            so many candidates; 0 infers each by itself. For the clean stream of `"two_stream"`.
        num_prototypes: where a whole text is in motion it is compared with so many learned ones
            (`networks/prototypes.py`); for a model with `lattice_candidates`.
        joint_decoder: a text that is in motion as a whole can be decoded at any time by `Π p(x_i | x_<i, z_t)`, with
            the network (`finish_time` of the Markov chain); for a model with `lattice_candidates`.
        token_link: drafts are drawn token by token from one call, each given the one before it
            (`networks/token_link.py`); `training.fit_token_link` adds it to a trained model with a clean stream.
        stabilized_prediction: `Ê = (1-t) z + (t + 0.01) net(z, t)` instead of `Ê = net(z, t)`, for `"embedding"`.
        decoder: `p(x_i | z_0)`: `"linear"`, `softmax(z_0 Embᵀ + b)`, the paper's; `"gaussian"`, the exact posterior of
            `z_0 ~ N(α_0 Emb, σ_0²)`.
        objective: `"bound"`, or `"rescaled"`: the diffusion term without its weight, which is not for NFDM.
        time_sampler: `"uniform"`, or `"buckets"`: a learned importance density with `num_time_buckets` pieces.
        stratified_times: the times of a batch are spread evenly over the density.
        checkpoint_format: format of the checkpoint; another one than the code knows is refused.
    """

    model_type = "text_diffusion"

    vocab_size: int = 10767
    max_length: int = 64
    condition_length: int = 0
    condition_dropout: float = 0.0
    copied_slots: list | None = None
    clock: str | dict = "shared"
    trained_clocks: list | None = None
    embedding_dim: int = 128
    embedding_sphere: bool = False
    predictor: str = "bert"
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    prediction_type: str = "embedding"
    self_conditioning: bool = False
    jumps: bool = False
    lattice_candidates: int = 0
    num_prototypes: int = 0
    joint_decoder: bool = False
    token_link: bool = False
    stabilized_prediction: bool = True
    decoder: str = "linear"
    objective: str = "bound"
    time_sampler: str = "buckets"
    num_time_buckets: int = 100
    stratified_times: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    checkpoint_format: int = CHECKPOINT_FORMAT
    # Read by transformers' BERT layers.
    is_decoder: bool = False
    add_cross_attention: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        check_format(self.checkpoint_format)
        check_integers(2, vocab_size=self.vocab_size)
        check_integers(
            1,
            max_length=self.max_length,
            embedding_dim=self.embedding_dim,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=self.intermediate_size,
            num_time_buckets=self.num_time_buckets,
        )
        self._check_heads("hidden_size", "num_attention_heads")
        check_condition_length(self.condition_length, self.max_length)
        if not is_number(self.condition_dropout) or not 0 <= self.condition_dropout < 1:
            raise ValueError(f"`condition_dropout` is {self.condition_dropout!r}; it must be in [0, 1).")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            value = getattr(self, name)
            if not is_number(value) or not 0 <= value <= 1:
                raise ValueError(f"`{name}` is {value!r}; it must be in [0, 1].")
        check_positive(layer_norm_eps=self.layer_norm_eps, initializer_range=self.initializer_range)
        if self.initializer_range > 1:
            raise ValueError(f"`initializer_range` is {self.initializer_range}; it must be at most 1.")
        check_one_of("hidden_act", self.hidden_act, ACT2FN)
        for name in ("is_decoder", "add_cross_attention"):
            if getattr(self, name) is not False:
                raise ValueError(f"`{name}` is {getattr(self, name)!r}; it must be False.")
        for name in ("copied_slots", "trained_clocks"):
            if not isinstance(getattr(self, name), list | None):
                raise ValueError(f"`{name}` is {getattr(self, name)!r}; it must be a list.")
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            token = getattr(self, name)
            if token is not None and (type(token) is not int or not 0 <= token < self.vocab_size):
                raise ValueError(f"`{name}` is {token!r}; it must be a token id below {self.vocab_size}.")
        check_one_of("predictor", self.predictor, PREDICTORS)
        check_one_of("prediction_type", self.prediction_type, PREDICTION_TYPES)
        if self.jumps and (self.predictor, self.prediction_type) != ("two_stream", "categorical"):
            raise ValueError(
                f"`jumps` is True with `predictor` {self.predictor!r} and `prediction_type` {self.prediction_type!r}; "
                "they follow a clean stream, which only 'two_stream' with 'categorical' has."
            )
        if self.token_link and (self.predictor, self.prediction_type) != ("two_stream", "categorical"):
            raise ValueError(
                f"`token_link` is True with `predictor` {self.predictor!r} and `prediction_type` "
                f"{self.prediction_type!r}; it is for drafts, which only 'two_stream' with 'categorical' verifies."
            )
        check_integers(0, lattice_candidates=self.lattice_candidates, num_prototypes=self.num_prototypes)
        for name, what in (("num_prototypes", "prototypes are"), ("joint_decoder", "a joint decoder is")):
            if getattr(self, name) and not self.lattice_candidates:
                raise ValueError(
                    f"`{name}` is {getattr(self, name)} without `lattice_candidates`; {what} for a model that first "
                    "reads from left to right, as lattices do."
                )
        if self.lattice_candidates and (self.predictor, self.prediction_type) != ("two_stream", "categorical"):
            raise ValueError(
                f"`lattice_candidates` is {self.lattice_candidates} with `predictor` {self.predictor!r} and "
                f"`prediction_type` {self.prediction_type!r}; candidates follow a clean stream, which only "
                "'two_stream' with 'categorical' has."
            )
        if self.lattice_candidates and not self.self_conditioning:
            raise ValueError(
                f"`lattice_candidates` is {self.lattice_candidates}, but a first call has to name them: it needs "
                "`self_conditioning: true`."
            )
        if self.lattice_candidates and self.condition_length:
            raise ValueError(
                f"`lattice_candidates` is {self.lattice_candidates} with `condition_length` {self.condition_length}; "
                "a model with a condition infers each token by itself, with 0."
            )
        clock = make_clock(self.clock, self.max_length)
        if clock.block_size is not None and self.predictor != "two_stream":
            raise ValueError(
                f"`clock` is {str(clock)!r} with `predictor` {self.predictor!r}; texts in blocks need 'two_stream', "
                "which reads the "
                "clean tokens before a block."
            )
        check_one_of("decoder", self.decoder, DECODERS)
        check_one_of("objective", self.objective, OBJECTIVES)
        check_one_of("time_sampler", self.time_sampler, TIME_SAMPLERS)

    def _check_heads(self, size_name: str, heads_name: str) -> None:
        size, heads = getattr(self, size_name), getattr(self, heads_name)
        if size % (2 * heads):
            raise ValueError(
                f"`{size_name}` is {size} with `{heads_name}` {heads}; it must be a multiple of {2 * heads}, "
                "so that all heads have the same even size."
            )


class NFDMConfig(TextDiffusionConfig):
    """Neural Flow Diffusion Model: mean, standard deviation and volatility of the forward process are learned.

    Args:
        delta: standard deviation at t = 0. The paper states 0.01; its published code has 0.1.
        time_conditioning: how the forward network gets its times: `"adaln"` (NFDM), `"additive"` (NFDM-Additive), or
            `"head"`: only behind its transformer layers, which then need no time derivative.
        forward_hidden_size, forward_num_layers, forward_num_heads, forward_intermediate_size: the forward network.
            Without layers there is none, and the process is not deformed: `(1-t) E + δ^(1-t) ε`.
        forward_time_dim: size of its time embedding with `"adaln"` and `"head"`.
        volatility: g(t): `"free"`, the paper's softplus network; or `"markovian"`: a learned factor on the volatility
            that makes the undeformed process Markov, which is where the bound is least at the start.
        volatility_hidden_size, volatility_floor: size of its network, and with `"free"` the smallest g.
    """

    model_type = "nfdm"

    delta: float = 0.01
    time_conditioning: str = "adaln"
    forward_hidden_size: int = 256
    forward_num_layers: int = 5
    forward_num_heads: int = 8
    forward_intermediate_size: int = 1024
    forward_time_dim: int = 640
    volatility: str = "free"
    volatility_hidden_size: int = 64
    volatility_floor: float = 0.01

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        check_positive(delta=self.delta, volatility_floor=self.volatility_floor)
        check_integers(
            1,
            forward_hidden_size=self.forward_hidden_size,
            forward_num_heads=self.forward_num_heads,
            forward_intermediate_size=self.forward_intermediate_size,
            forward_time_dim=self.forward_time_dim,
            volatility_hidden_size=self.volatility_hidden_size,
        )
        check_integers(0, forward_num_layers=self.forward_num_layers)
        self._check_heads("forward_hidden_size", "forward_num_heads")
        check_one_of("time_conditioning", self.time_conditioning, ("adaln", "additive", "head"))
        check_one_of("volatility", self.volatility, ("free", "markovian"))
        if self.delta >= 1:
            raise ValueError(f"`delta` is {self.delta}; it must be below 1, the standard deviation at t = 1.")
        if self.objective == "rescaled":
            raise ValueError(
                "`objective` is 'rescaled', but for NFDM ||E - Ê||² has no term that the learned volatility enters "
                "and rewards "
                "a forward process that never hides the data, so that nothing is learned about noise. Use 'bound'."
            )


class MuLANConfig(TextDiffusionConfig):
    """MuLAN: one learned noise schedule per token position, conditioned on a latent context c.

    Args:
        gamma_min, gamma_max: range of γ' = -log SNR. The paper has [-10, 10], and [-4.6, 13.8] for MuLAN-Rescaled.
        rescaled_schedule: MuLAN-Rescaled: the mean SNR over positions is that of Diffusion-LM's schedule.
        schedule_hidden_size: hidden size of the network from c to the schedules.
        context_dim: dimension of c.
        context_hidden_size, context_num_layers, context_num_heads, context_intermediate_size: the encoder q(c | x).
    """

    model_type = "mulan"

    gamma_min: float = -10.0
    gamma_max: float = 10.0
    rescaled_schedule: bool = False
    schedule_hidden_size: int = 256
    context_dim: int = 128
    context_hidden_size: int = 256
    context_num_layers: int = 12
    context_num_heads: int = 8
    context_intermediate_size: int = 1024

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        check_integers(
            1,
            schedule_hidden_size=self.schedule_hidden_size,
            context_dim=self.context_dim,
            context_hidden_size=self.context_hidden_size,
            context_num_layers=self.context_num_layers,
            context_num_heads=self.context_num_heads,
            context_intermediate_size=self.context_intermediate_size,
        )
        self._check_heads("context_hidden_size", "context_num_heads")
        check_finite(gamma_min=self.gamma_min, gamma_max=self.gamma_max)
        # Below, the variance is 0 in float32; above, nothing is left of a token in any precision.
        if not -80 <= self.gamma_min < self.gamma_max <= 1000:
            raise ValueError(
                f"`gamma_min` is {self.gamma_min} and `gamma_max` {self.gamma_max}; they must increase, in "
                "[-80, 1000]."
            )


class DiffusionLMConfig(TextDiffusionConfig):
    """Diffusion-LM in continuous time: the static sqrt schedule, no learned forward process."""

    model_type = "diffusion_lm"

    stabilized_prediction: bool = False
    objective: str = "rescaled"
