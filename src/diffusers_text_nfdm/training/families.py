"""What the trainer asks of a model, besides `model(input_ids, ...)`: one class for each way of modelling text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .. import schedulers
from ..baseline import (
    AutoregressiveConfig,
    AutoregressiveModel,
    AutoregressivePipeline,
    MaskedDiffusionConfig,
    MaskedDiffusionModel,
    MaskedDiffusionPipeline,
)
from ..clocks import make_clock
from ..likelihood import LikelihoodEstimate, estimate_likelihood, exact_likelihood, masked_likelihood
from ..models import Draws, TextDiffusionModel
from ..pipelines import NFDMTextPipeline, NFDMTextPipelineOutput
from ..time_samplers import BucketTimeSampler
from .arguments import TrainingArguments
from .known_tokens import draw_known


if TYPE_CHECKING:
    from matplotlib.figure import Figure


SMALL_ESTIMATE = 1000


class ModelFamily(Protocol):
    """How models of one kind are trained, measured, sampled and drawn."""

    # What the estimated likelihood is.
    quantity: str

    def forward_options(
        self, model: PreTrainedModel, step: int, generator: torch.Generator
    ) -> Callable[[int, int], dict[str, Any]]:
        """Draw for the whole batch of a step; the result gives what `forward` gets, besides the ids, for rows `start`
        to `stop`.
        """

    def likelihood(
        self, model: PreTrainedModel, rows: dict[str, Tensor], num_draws: int, clock: str | None = None
    ) -> LikelihoodEstimate:
        """The likelihood of prepared texts, or a bound of it, for a diffusion model along a clock, with the
        `finish_time` of a joint decoder.
        """

    def along(self, model: PreTrainedModel, clock: str | None = None) -> str:
        """What the likelihood along a clock is that of, by name."""

    def pipeline(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        """The pipeline that is released."""

    def generate(
        self, pipeline, num_samples: int, generator: torch.Generator, **given: Tensor
    ) -> NFDMTextPipelineOutput:
        """Samples, of which some tokens may be given."""

    def figures(self, model: PreTrainedModel, input_ids: Tensor) -> dict[str, Figure]:
        """Pictures of the model, by name."""


class DiffusionFamily:
    """NFDM, MuLAN and Diffusion-LM: a bound at random times, schedulers, a forward process to look at."""

    quantity = "bound"

    def __init__(self, arguments: TrainingArguments):
        self.arguments = arguments

    def forward_options(
        self, model: TextDiffusionModel, step: int, generator: torch.Generator
    ) -> Callable[[int, int], dict[str, Any]]:
        arguments, device = self.arguments, generator.device
        if step < arguments.next_token_steps:
            return lambda start, stop: {"next_token_weight": 1.0, "next_token_only": True}
        batch_size, length = arguments.batch_size, model.config.max_length
        draws = model.draw(batch_size, generator, device)
        if arguments.jump_clocks or arguments.lattice_clocks:
            kind = self._special(torch.rand((), generator=generator, device=device).item())
            if kind is not None:
                return self._special_options(model, draws, generator, kind)
        warmup = arguments.context_warmup_steps
        cross_entropy = (step + 1) % (arguments.cross_entropy_steps + 1) != 0
        # Where the two are mixed the bound, which trains the forward process, follows the model's own clock: steep
        # ones have hardly any motion to show.
        own = arguments.cross_entropy_steps and not cross_entropy
        clock = model.clock(None if own else draw_clock(arguments.clocks, generator))
        shared = {
            "clock": clock,
            "context_weight": min(1.0, (step + 1) / warmup) if warmup else 1.0,
            # Without windows the clean stream would be read for this alone.
            "next_token_weight": arguments.next_token_weight if model.has_windows(clock) else 0.0,
        }
        known = None
        if not cross_entropy:
            shared["straightness_weight"] = arguments.straightness_weight
        else:
            shared["cross_entropy"] = True
            draws.uniforms = draws.uniforms * largest_time(arguments, step)
            if arguments.known_texts:
                shares, condition_length = arguments.known_texts, arguments.condition_length
                known = draw_known(shares, batch_size, length, generator, condition_length)

        def options(start: int, stop: int) -> dict[str, Any]:
            given = None if known is None else known[start:stop]
            return {"draws": draws.slice(start, stop), "known": given, **shared}

        return options

    def _special(self, number: float) -> str | None:
        """Which steps a uniform number stands for: `"jumps"`, `"lattices"`, or `None` for those at noisy times."""
        arguments = self.arguments
        for kind, clocks, share in (
            ("jumps", arguments.jump_clocks, arguments.jump_share),
            ("lattices", arguments.lattice_clocks, arguments.lattice_share),
        ):
            if clocks and number < share:
                return kind
            number -= share if clocks else 0
        return None

    def _special_options(
        self, model: TextDiffusionModel, draws: Draws, generator: torch.Generator, kind: str
    ) -> Callable[[int, int], dict[str, Any]]:
        """A step on jumps over the windows of a clock, or on the parts of its lattices."""
        arguments = self.arguments
        clocks = arguments.jump_clocks if kind == "jumps" else arguments.lattice_clocks
        shared = {
            "clock": model.clock(draw_clock(clocks, generator)),
            "next_token_weight": arguments.next_token_weight,
            kind: True,
        }
        return lambda start, stop: {"draws": draws.slice(start, stop), **shared}

    def likelihood(
        self,
        model: TextDiffusionModel,
        rows: dict[str, Tensor],
        num_draws: int,
        clock: str | None = None,
        finish_time: float | None = None,
    ) -> LikelihoodEstimate:
        # The pilot would cost more than a small estimate. The model's own density follows the bound only where that is
        # the objective.
        small = len(rows["input_ids"]) * num_draws < SMALL_ESTIMATE and model.config.objective == "bound"
        return estimate_likelihood(
            model,
            rows["input_ids"].long(),
            rows["num_tokens"],
            rows["num_chars"],
            clock=clock,
            finish_time=finish_time,
            num_draws=num_draws,
            time_sampler="learned" if small else "pilot",
            batch_size=self.arguments.evaluation_batch_size,
            seed=self.arguments.seed,
        )

    def along(self, model: TextDiffusionModel, clock: str | None = None) -> str:
        return str(model.clock(clock))

    def pipeline(self, model: TextDiffusionModel, tokenizer: PreTrainedTokenizerBase) -> NFDMTextPipeline:
        scheduler = getattr(schedulers, self.arguments.scheduler)(**self.arguments.scheduler_config)
        return NFDMTextPipeline(model, tokenizer, scheduler)

    def generate(
        self, pipeline: NFDMTextPipeline, num_samples: int, generator: torch.Generator, **given: Tensor
    ) -> NFDMTextPipelineOutput:
        arguments = self.arguments
        return pipeline(
            **given,
            num_samples=num_samples,
            num_inference_steps=arguments.sampling_steps,
            batch_size=arguments.evaluation_batch_size,
            generator=generator,
        )

    def figures(self, model: TextDiffusionModel, input_ids: Tensor) -> dict[str, Figure]:
        from ..plots.process import plot_schedule, plot_similarity, plot_time_density, plot_volatility

        figures = {
            "schedule": plot_schedule(model, input_ids),
            "volatility": plot_volatility(model, input_ids),
            "similarity": plot_similarity(model, input_ids),
        }
        if isinstance(model.time_sampler, BucketTimeSampler):
            figures["times"] = plot_time_density(model.time_sampler)
        return figures


class AutoregressiveFamily:
    """The baseline: an exact likelihood without random numbers, and ancestral sampling."""

    quantity = "exact -log p(x)"

    def __init__(self, arguments: TrainingArguments):
        self.arguments = arguments

    def forward_options(
        self, model: AutoregressiveModel, step: int, generator: torch.Generator
    ) -> Callable[[int, int], dict[str, Any]]:
        return lambda start, stop: {}

    def likelihood(
        self, model: AutoregressiveModel, rows: dict[str, Tensor], num_draws: int, clock: str | None = None
    ) -> LikelihoodEstimate:
        return exact_likelihood(
            model,
            rows["input_ids"].long(),
            rows["num_tokens"],
            rows["num_chars"],
            batch_size=self.arguments.evaluation_batch_size,
        )

    def along(self, model: AutoregressiveModel, clock: str | None = None) -> str:
        return "left to right"

    def pipeline(self, model: AutoregressiveModel, tokenizer: PreTrainedTokenizerBase) -> AutoregressivePipeline:
        return AutoregressivePipeline(model, tokenizer)

    def generate(
        self, pipeline: AutoregressivePipeline, num_samples: int, generator: torch.Generator, **given: Tensor
    ) -> NFDMTextPipelineOutput:
        return pipeline(
            num_samples=num_samples, batch_size=self.arguments.evaluation_batch_size, generator=generator, **given
        )

    def figures(self, model: AutoregressiveModel, input_ids: Tensor) -> dict[str, Figure]:
        return {}


class MaskedFamily:
    """Masked diffusion: a bound for random masks. Of a clock only the blocks matter."""

    quantity = "bound"

    def __init__(self, arguments: TrainingArguments):
        self.arguments = arguments

    def forward_options(
        self, model: MaskedDiffusionModel, step: int, generator: torch.Generator
    ) -> Callable[[int, int], dict[str, Any]]:
        arguments = self.arguments
        if step < arguments.next_token_steps:
            return lambda start, stop: {"next_token_weight": 1.0, "next_token_only": True}
        draws = model.draw(arguments.batch_size, generator, generator.device)
        size = self._block_size(model, draw_clock(arguments.clocks, generator))
        weighted = (step + 1) % (arguments.cross_entropy_steps + 1) == 0
        shared = {
            "block_size": size,
            "weighted": weighted,
            "largest_share": 1.0 if weighted else largest_time(arguments, step),
            # Where the text is not in blocks, the clean stream would be read for this alone.
            "next_token_weight": 0.0 if size == model.config.max_length else arguments.next_token_weight,
        }
        return lambda start, stop: {"draws": draws.slice(start, stop), **shared}

    def _block_size(self, model: MaskedDiffusionModel, clock: str | None) -> int:
        """Tokens of a block, along a clock or by the model's config."""
        length = model.config.max_length
        if clock is None:
            return model.config.block_size or length
        return make_clock(clock, length).block_size or length

    def likelihood(
        self, model: MaskedDiffusionModel, rows: dict[str, Tensor], num_draws: int, clock: str | None = None
    ) -> LikelihoodEstimate:
        return masked_likelihood(
            model,
            rows["input_ids"].long(),
            rows["num_tokens"],
            rows["num_chars"],
            block_size=self._block_size(model, clock),
            num_draws=num_draws,
            batch_size=self.arguments.evaluation_batch_size,
            seed=self.arguments.seed,
        )

    def along(self, model: MaskedDiffusionModel, clock: str | None = None) -> str:
        size = self._block_size(model, clock)
        return "masks, whole text" if size == model.config.max_length else f"masks in blocks of {size}"

    def pipeline(self, model: MaskedDiffusionModel, tokenizer: PreTrainedTokenizerBase) -> MaskedDiffusionPipeline:
        return MaskedDiffusionPipeline(model, tokenizer)

    def generate(
        self, pipeline: MaskedDiffusionPipeline, num_samples: int, generator: torch.Generator, **given: Tensor
    ) -> NFDMTextPipelineOutput:
        arguments = self.arguments
        return pipeline(
            **given,
            num_samples=num_samples,
            num_inference_steps=arguments.sampling_steps,
            batch_size=arguments.evaluation_batch_size,
            generator=generator,
            **arguments.scheduler_config,
        )

    def figures(self, model: MaskedDiffusionModel, input_ids: Tensor) -> dict[str, Figure]:
        return {}


def draw_clock(clocks: dict[str, float], generator: torch.Generator) -> str | None:
    """One of a mixture's clocks; `None`, the model's own, where there is none."""
    if not clocks:
        return None
    shares = torch.tensor(list(clocks.values()), device=generator.device)
    return list(clocks)[torch.multinomial(shares, 1, generator=generator).item()]


def largest_time(arguments: TrainingArguments, step: int) -> float:
    """Grows linearly to 1 after the steps on the next token alone."""
    if not arguments.growth_steps:
        return 1.0
    first, grown = arguments.first_largest_time, (step - arguments.next_token_steps) / arguments.growth_steps
    return min(1.0, first + (1 - first) * grown)


FAMILIES = {AutoregressiveConfig.model_type: AutoregressiveFamily, MaskedDiffusionConfig.model_type: MaskedFamily}


def model_family(arguments: TrainingArguments) -> ModelFamily:
    """The family of the model that the settings name."""
    return FAMILIES.get(arguments.model_type, DiffusionFamily)(arguments)
