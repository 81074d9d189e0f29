"""Unconditional text generation with any of the models and any of the schedulers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from diffusers import DiffusionPipeline
from diffusers.utils import BaseOutput
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from ..models import TextDiffusionModel, evaluation_mode
from ..schedulers import TextDiffusionScheduler
from ..tokenization import special_ids
from .decoding import select_tokens
from .hub import HubCheckpointMixin
from .samples import check_samples, check_temperature, decode_texts, is_number, sample_generators


OUTPUT_TYPES = ("text", "seq", "latent")


@dataclass
class NFDMTextPipelineOutput(BaseOutput):
    """
    Args:
        texts: the generated texts (`output_type="text"`).
        sequences: token ids `(num_samples, max_length)` (`"text"` and `"seq"`).
        latents: z_0 `(num_samples, max_length, dim)` (`"latent"`).
        trajectory: best tokens of every Ê, `(predictions, num_samples, max_length)`, when asked for.
        trajectory_times: their times, `(predictions, num_samples)`.
        num_function_evaluations: predictor calls that each sample took, two for each time with self-conditioning (the most of any batch, for
            an adaptive scheduler).
    """

    texts: list[str] | None = None
    sequences: Tensor | None = None
    latents: Tensor | None = None
    trajectory: Tensor | None = None
    trajectory_times: Tensor | None = None
    num_function_evaluations: int = 0


@dataclass
class _Batch:
    """Texts in the making: how they are to be made, and what there is of them."""

    generators: list[torch.Generator]
    latents: Tensor | None
    choice: dict
    clamp_predictions: bool
    keep_trajectory: bool
    callback: Callable | None
    callback_inputs: Sequence[str]
    bar: tqdm
    tokens: Tensor | None = None
    previous: Tensor | None = None
    trajectory: list[Tensor] = field(default_factory=list)
    times: list[Tensor] = field(default_factory=list)
    calls: int = 0


class NFDMTextPipeline(HubCheckpointMixin, DiffusionPipeline):
    """Generates texts: noise, then for every time of the scheduler `Ê = model.predict(z, t)` and `z = scheduler.step(Ê, t, z)`, then decoding.

    A model with `block_size` does this for one block after the other, each given the tokens before it.

    Args:
        model: an `NFDMModel`, `MuLANModel` or `DiffusionLMModel`.
        tokenizer: the tokenizer that the model was trained with.
        scheduler: a `MarkovChainScheduler`, `ReverseSDEScheduler` or `ReverseODEScheduler`.

    ```python
    pipe = NFDMTextPipeline.from_pretrained("user/nfdm-rocstories")
    print(pipe(num_samples=4, num_inference_steps=64).texts)
    ```
    """

    _callback_tensor_inputs = ["latents", "prediction", "tokens"]

    def __init__(
        self, model: TextDiffusionModel, tokenizer: PreTrainedTokenizerBase, scheduler: TextDiffusionScheduler
    ):
        super().__init__()
        self.register_modules(model=model, tokenizer=tokenizer, scheduler=scheduler)

    @torch.no_grad()
    def __call__(
        self,
        num_samples: int | None = None,
        num_inference_steps: int | None = None,
        batch_size: int = 64,
        timesteps: Sequence[float] | None = None,
        generator: torch.Generator | list[torch.Generator] | None = None,
        latents: Tensor | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        clamp_predictions: bool = False,
        output_type: str = "text",
        return_trajectory: bool = False,
        return_dict: bool = True,
        callback_on_step_end: Callable[[DiffusionPipeline, int, Tensor, dict], dict] | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
    ) -> NFDMTextPipelineOutput | tuple:
        """Generate texts.

        Args:
            num_samples: number of texts, by default one, or as many as there are `latents`.
            num_inference_steps: steps of the scheduler, by default 64 or one for each block, shared out evenly to the blocks of a text if it has several. The
                paper uses 2000, and 64 and 32 in an ablation.
            batch_size: texts made at a time. A sample does not depend on it.
            timesteps: the times themselves, decreasing, in (0, 1], instead of a number of steps; the same for every block.
            generator: one generator, from which one per sample is derived, or a list with one per sample.
            latents: z at the first time, `(num_samples, max_length, dim)`, instead of noise.
            temperature, top_k, top_p: sample the tokens from the decoder's logits instead of taking the most probable ones.
            clamp_predictions: move each Ê to its nearest embedding before the step (the clamping trick of Diffusion-LM).
            output_type: `"text"`, `"seq"` (token ids) or `"latent"` (z_0).
            return_trajectory: also return the best tokens of every Ê; blocks to come are padding.
            callback_on_step_end: called as `callback(pipeline, step, timestep, tensors)` after every step with the tensors named in
                `callback_on_step_end_tensor_inputs`, out of `latents`, `prediction` (Ê) and `tokens` (its best tokens), each
                of the block in work. It may return a dict whose `latents` replace those of the pipeline. Between the stages of one step of Heun or
                of an adaptive method they only change where the drift is taken.
        """
        if num_samples is None:
            num_samples = 1 if latents is None else len(latents)
        if num_inference_steps is None and timesteps is None:
            num_inference_steps = max(64, self.model.config.num_blocks)
        self._check_call(
            num_samples, batch_size, generator, latents, temperature, top_k, top_p, clamp_predictions, output_type,
            callback_on_step_end_tensor_inputs,
        )  # fmt: skip
        steps = self._block_steps(num_inference_steps)
        starts = range(0, num_samples, batch_size)
        num_calls = len(starts) * self._count_calls(steps, timesteps)
        generators = sample_generators(num_samples, generator)
        batches = []
        with evaluation_mode(self.model), self.progress_bar(total=num_calls) as bar:
            for start in starts:
                batch = _Batch(
                    generators=generators[start : start + batch_size],
                    latents=None if latents is None else latents[start : start + batch_size],
                    choice={"temperature": temperature, "top_k": top_k, "top_p": top_p},
                    clamp_predictions=clamp_predictions,
                    keep_trajectory=return_trajectory,
                    callback=callback_on_step_end,
                    callback_inputs=callback_on_step_end_tensor_inputs,
                    bar=bar,
                )
                self._generate(batch, steps, timesteps)
                batches.append(batch)
        self.maybe_free_model_hooks()
        sequences = None if output_type == "latent" else torch.cat([batch.tokens for batch in batches]).cpu()
        trajectory, trajectory_times = _join_trajectories(batches) if return_trajectory else (None, None)
        output = NFDMTextPipelineOutput(
            texts=decode_texts(sequences, self.tokenizer) if output_type == "text" else None,
            sequences=sequences,
            latents=torch.cat([batch.latents for batch in batches]) if output_type == "latent" else None,
            trajectory=trajectory,
            trajectory_times=trajectory_times,
            num_function_evaluations=max(batch.calls for batch in batches) * self.model.config.calls_per_prediction,
        )
        return output if return_dict else output.to_tuple()

    def _generate(self, batch: _Batch, steps: list[int | None], timesteps: Sequence[float] | None) -> None:
        """Fill in the latents z_0 and the tokens of one batch, block by block."""
        model, n = self.model, len(batch.generators)
        options = {"device": self._execution_device, "dtype": model.latent_dtype}
        context = None
        if model.context_dim is not None:
            context = randn_tensor((n, model.context_dim), generator=batch.generators, **options)
        given, length = batch.latents, model.config.block_length
        batch.tokens = torch.zeros(n, 0, dtype=torch.long, device=self._execution_device)
        latents = []
        for block, num_steps in enumerate(steps):
            if given is None:
                z = randn_tensor((n, length, model.config.embedding_dim), generator=batch.generators, **options)
                z = z * self.scheduler.init_noise_sigma
            else:
                z = given[:, block * length : (block + 1) * length].to(**options)
            # A fresh start for every block and batch: schedulers carry state from step to step.
            self._set_timesteps(num_steps, timesteps)
            batch.previous = model.encode_previous(batch.tokens)
            z = self._generate_block(batch, z, context)
            chosen = select_tokens(model.decode(z, context), generators=batch.generators, **batch.choice)
            batch.tokens = torch.cat([batch.tokens, chosen], dim=1)
            latents.append(z)
        batch.latents = torch.cat(latents, dim=1)

    def _generate_block(self, batch: _Batch, z: Tensor, context: Tensor | None) -> Tensor:
        """One block from noise to z_0."""
        model, scheduler = self.model, self.scheduler
        for timestep in scheduler.timesteps:
            t = timestep.to(z.device, z.dtype).expand(len(z)).contiguous()
            prediction = self._predict(batch, scheduler.scale_model_input(z, timestep), t, context)
            if batch.keep_trajectory:
                seen = torch.cat([batch.tokens, model.decode(prediction, context).argmax(-1)], dim=1)
                padding = (0, model.config.max_length - seen.shape[1])
                batch.trajectory.append(nn.functional.pad(seen, padding, value=model.config.pad_token_id or 0).cpu())
                batch.times.append(t.cpu())
            z = scheduler.step(
                prediction,
                timestep,
                z,
                forward_process=model.forward_process,
                context=context,
                generator=batch.generators,
            ).prev_sample
            if batch.callback is not None:
                tensors = {"latents": z, "prediction": prediction}
                if "tokens" in batch.callback_inputs:
                    tensors["tokens"] = model.decode(prediction, context).argmax(-1)
                wanted = {name: tensors[name] for name in batch.callback_inputs}
                z = (batch.callback(self, batch.calls, timestep, wanted) or {}).get("latents", z)
            batch.calls += 1
            batch.bar.update()
        return z

    def _predict(self, batch: _Batch, z: Tensor, t: Tensor, context: Tensor | None) -> Tensor:
        """Ê: the mean of the predicted embeddings or, for a scheduler that wants it, tokens drawn from the prediction."""
        model, scheduler = self.model, self.scheduler
        if scheduler.samples_tokens:
            logits = model.predict_logits(z, t, context, batch.previous)
            options = {"temperature": scheduler.config.temperature, "min_p": scheduler.config.min_p}
            return model.embed(select_tokens(logits, generators=batch.generators, **options))
        prediction = model.predict(z, t, context, batch.previous)
        if batch.clamp_predictions:
            prediction = model.embed(self._nearest_tokens(prediction))
        return prediction

    def _block_steps(self, num_inference_steps: int | None) -> list[int | None]:
        """How many steps each block gets; `None` where the times are given."""
        blocks = self.model.config.num_blocks
        if blocks == 1 or not is_number(num_inference_steps):
            return [num_inference_steps] * blocks
        if num_inference_steps < blocks:
            raise ValueError(
                f"`num_inference_steps` is {num_inference_steps}; a text of this model has {blocks} blocks, and each needs at least one."
            )
        return [num_inference_steps // blocks + (block < num_inference_steps % blocks) for block in range(blocks)]

    def _count_calls(self, steps: list[int | None], timesteps: Sequence[float] | None) -> float:
        """How many Ê a batch takes."""
        calls = 0
        for num_steps in steps:
            self._set_timesteps(num_steps, timesteps)
            # An adaptive scheduler does not know how many calls it will take.
            calls += len(self.scheduler.timesteps) if hasattr(self.scheduler.timesteps, "__len__") else float("inf")
        return calls

    def _nearest_tokens(self, prediction: Tensor) -> Tensor:
        table = self.model.embedding_table()
        return torch.cdist(prediction.flatten(0, 1), table).argmin(-1).view(prediction.shape[:-1])

    def _set_timesteps(self, num_inference_steps: int | None, timesteps: Sequence[float] | None) -> None:
        # Times live on the CPU: schedulers read them as numbers.
        self.scheduler.set_timesteps(
            num_inference_steps, device="cpu", timesteps=timesteps, time_sampler=self.model.time_sampler
        )

    def _check_call(
        self, num_samples, batch_size, generator, latents, temperature, top_k, top_p, clamp_predictions, output_type,
        callback_inputs,
    ) -> None:  # fmt: skip
        check_samples(num_samples, batch_size, generator)
        shape = (num_samples, *self.model.latent_shape)
        if latents is not None and not isinstance(latents, Tensor):
            raise ValueError(f"`latents` is a {type(latents).__name__}; it must be a tensor of shape {shape}.")
        if latents is not None and tuple(latents.shape) != shape:
            raise ValueError(
                f"`latents` has shape {tuple(latents.shape)}; it must be {shape}: samples, positions, dimensions."
            )
        if latents is not None and not torch.isfinite(latents).all():
            raise ValueError("`latents` has values that are not finite.")
        check_temperature(temperature)
        if temperature == 0 and (top_k is not None or top_p is not None):
            raise ValueError(
                "`top_k` and `top_p` need a `temperature` above 0: at 0 the most probable token is taken."
            )
        if top_k is not None and (not is_number(top_k) or not isinstance(top_k, int) or top_k < 1):
            raise ValueError(f"`top_k` is {top_k!r}; it must be an integer of at least 1.")
        if top_p is not None and not (is_number(top_p) and 0 < top_p <= 1):
            raise ValueError(f"`top_p` is {top_p!r}; it must be in (0, 1].")
        if self.scheduler.samples_tokens and self.model.config.prediction_type != "categorical":
            raise ValueError(
                f"The scheduler has `prediction` 'tokens', but the model has `prediction_type` {self.model.config.prediction_type!r}; only "
                "'categorical' has a distribution to draw them from."
            )
        if self.scheduler.samples_tokens and clamp_predictions:
            raise ValueError(
                "`clamp_predictions` is True, but with the scheduler's `prediction` 'tokens' Ê is tokens already."
            )
        if output_type not in OUTPUT_TYPES:
            raise ValueError(
                f"`output_type` is {output_type!r}; it must be one of {', '.join(map(repr, OUTPUT_TYPES))}."
            )
        if output_type == "text":
            # Says what is missing in a tokenizer that cannot tell where a text ends.
            special_ids(self.tokenizer)
        unknown = set(callback_inputs) - set(self._callback_tensor_inputs)
        if unknown:
            raise ValueError(
                f"`callback_on_step_end_tensor_inputs` has {sorted(unknown)}; allowed are {self._callback_tensor_inputs}."
            )


def _join_trajectories(batches: list[_Batch]) -> tuple[Tensor, Tensor]:
    """Stack calls and join samples; a batch that an adaptive scheduler finished early stays at its last tokens."""
    longest = max(batch.calls for batch in batches)
    tokens, times = [], []
    for batch in batches:
        missing = longest - batch.calls
        tokens.append(torch.stack(batch.trajectory + batch.trajectory[-1:] * missing))
        times.append(torch.stack(batch.times + batch.times[-1:] * missing))
    return torch.cat(tokens, dim=1), torch.cat(times, dim=1)
