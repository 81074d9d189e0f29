"""Unconditional text generation with any of the models and any of the schedulers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from diffusers import DiffusionPipeline
from diffusers.utils import BaseOutput
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..models import TextDiffusionModel, evaluation_mode
from ..schedulers import TextDiffusionScheduler
from ..tokenization import content_ids, special_ids
from .decoding import select_tokens
from .hub import HubCheckpointMixin


OUTPUT_TYPES = ("text", "seq", "latent")


@dataclass
class NFDMTextPipelineOutput(BaseOutput):
    """
    Args:
        texts: the generated texts (`output_type="text"`).
        sequences: token ids `(num_samples, max_length)` (`"text"` and `"seq"`).
        latents: z_0 `(num_samples, max_length, dim)` (`"latent"`).
        trajectory: best tokens at every predictor call, `(num_calls, num_samples, max_length)`, when asked for.
        trajectory_times: the times of these calls, `(num_calls, num_samples)`.
        num_function_evaluations: predictor calls that each sample took (the most of any batch, for an adaptive scheduler).
    """

    texts: list[str] | None = None
    sequences: Tensor | None = None
    latents: Tensor | None = None
    trajectory: Tensor | None = None
    trajectory_times: Tensor | None = None
    num_function_evaluations: int = 0


class NFDMTextPipeline(HubCheckpointMixin, DiffusionPipeline):
    """Generates texts: noise, then for every time of the scheduler `Ê = model.predict(z, t)` and `z = scheduler.step(Ê, t, z)`, then decoding.

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
            num_inference_steps: steps of the scheduler, 64 by default. The paper uses 2000, and 64 and 32 in an ablation.
            batch_size: texts made at a time. A sample does not depend on it.
            timesteps: the times themselves, decreasing, in (0, 1], instead of a number of steps.
            generator: one generator, from which one per sample is derived, or a list with one per sample.
            latents: z at the first time, `(num_samples, max_length, dim)`, instead of noise.
            temperature, top_k, top_p: sample the tokens from the decoder's logits instead of taking the most probable ones.
            clamp_predictions: move each Ê to its nearest embedding before the step (the clamping trick of Diffusion-LM).
            output_type: `"text"`, `"seq"` (token ids) or `"latent"` (z_0).
            return_trajectory: also return the best tokens at every predictor call.
            callback_on_step_end: called as `callback(pipeline, step, timestep, tensors)` after every step with the tensors named in
                `callback_on_step_end_tensor_inputs`, out of `latents`, `prediction` (Ê) and `tokens` (its best tokens). It
                may return a dict whose `latents` replace those of the pipeline. Between the stages of one step of Heun or
                of an adaptive method they only change where the drift is taken.
        """
        if num_samples is None:
            num_samples = 1 if latents is None else len(latents)
        if num_inference_steps is None and timesteps is None:
            num_inference_steps = 64
        self._check_call(
            num_samples, batch_size, generator, latents, temperature, top_k, top_p, output_type,
            callback_on_step_end_tensor_inputs,
        )  # fmt: skip
        self._set_timesteps(num_inference_steps, timesteps)
        generators = self._generators(num_samples, generator)
        starts = range(0, num_samples, batch_size)
        # An adaptive scheduler does not know how many calls it will take.
        known = hasattr(self.scheduler.timesteps, "__len__")
        num_calls = len(self.scheduler.timesteps) * len(starts) if known else float("inf")
        batches = []
        with evaluation_mode(self.model), self.progress_bar(total=num_calls) as bar:
            for start in starts:
                # A fresh start for every batch: schedulers carry state from step to step.
                self._set_timesteps(num_inference_steps, timesteps)
                batches.append(
                    self._generate(
                        generators[start : start + batch_size],
                        None if latents is None else latents[start : start + batch_size],
                        clamp_predictions,
                        return_trajectory,
                        callback_on_step_end,
                        callback_on_step_end_tensor_inputs,
                        bar,
                    )
                )
        z_0 = torch.cat([batch["latents"] for batch in batches])
        sequences = None
        if output_type != "latent":
            sequences = torch.cat(
                [
                    select_tokens(
                        self.model.decode(batch["latents"], batch["context"]), temperature, top_k, top_p, chosen
                    )
                    for batch, chosen in zip(batches, (generators[start : start + batch_size] for start in starts))
                ]
            ).cpu()
        self.maybe_free_model_hooks()
        trajectory, trajectory_times = _join_trajectories(batches) if return_trajectory else (None, None)
        output = NFDMTextPipelineOutput(
            texts=self._texts(sequences) if output_type == "text" else None,
            sequences=sequences,
            latents=z_0 if output_type == "latent" else None,
            trajectory=trajectory,
            trajectory_times=trajectory_times,
            num_function_evaluations=max(batch["calls"] for batch in batches),
        )
        return output if return_dict else output.to_tuple()

    def _generate(
        self,
        generators: list[torch.Generator],
        latents: Tensor | None,
        clamp_predictions: bool,
        return_trajectory: bool,
        callback: Callable | None,
        callback_inputs: Sequence[str],
        bar,
    ) -> dict:
        """One batch from noise to z_0."""
        model, scheduler, device, n = self.model, self.scheduler, self._execution_device, len(generators)
        options = {"device": device, "dtype": model.latent_dtype}
        context = None
        if model.context_dim is not None:
            context = randn_tensor((n, model.context_dim), generator=generators, **options)
        if latents is None:
            z = randn_tensor((n, *model.latent_shape), generator=generators, **options) * scheduler.init_noise_sigma
        else:
            z = latents.to(**options)
        tokens, times, calls = [], [], 0
        for step, timestep in enumerate(scheduler.timesteps):
            t = timestep.to(**options).expand(n).contiguous()
            prediction = model.predict(scheduler.scale_model_input(z, timestep), t, context)
            if clamp_predictions:
                prediction = model.embed(self._nearest_tokens(prediction))
            if return_trajectory:
                tokens.append(model.decode(prediction, context).argmax(-1).cpu())
                times.append(t.cpu())
            z = scheduler.step(
                prediction, timestep, z, forward_process=model.forward_process, context=context, generator=generators
            ).prev_sample
            calls += 1
            if callback is not None:
                tensors = {"latents": z, "prediction": prediction}
                if "tokens" in callback_inputs:
                    tensors["tokens"] = model.decode(prediction, context).argmax(-1)
                changed = callback(self, step, timestep, {name: tensors[name] for name in callback_inputs})
                z = (changed or {}).get("latents", z)
            bar.update()
        return {"latents": z, "context": context, "tokens": tokens, "times": times, "calls": calls}

    def _texts(self, sequences: Tensor) -> list[str]:
        # Most tokenizers would drop UNK with the other special tokens and would not stop at END, which flatters a model.
        return [self.tokenizer.decode(content_ids(ids, self.tokenizer)) for ids in sequences.tolist()]

    def _nearest_tokens(self, prediction: Tensor) -> Tensor:
        table = self.model.embedding_table()
        return torch.cdist(prediction.flatten(0, 1), table).argmin(-1).view(prediction.shape[:-1])

    def _set_timesteps(self, num_inference_steps: int | None, timesteps: Sequence[float] | None) -> None:
        # Times live on the CPU: schedulers read them as numbers.
        self.scheduler.set_timesteps(
            num_inference_steps, device="cpu", timesteps=timesteps, time_sampler=self.model.time_sampler
        )

    @staticmethod
    def _generators(
        num_samples: int, generator: torch.Generator | list[torch.Generator] | None
    ) -> list[torch.Generator]:
        """One generator per sample, so that a sample is the same alone and in any batch."""
        if isinstance(generator, list):
            return generator
        device = "cpu" if generator is None else generator.device
        seeds = torch.randint(2**62, (num_samples,), generator=generator, device=device).tolist()
        return [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def _check_call(
        self, num_samples, batch_size, generator, latents, temperature, top_k, top_p, output_type, callback_inputs
    ) -> None:
        for name, value in (("num_samples", num_samples), ("batch_size", batch_size)):
            if not _is_number(value) or not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}` is {value!r}; it must be an integer of at least 1.")
        if isinstance(generator, list) and len(generator) != num_samples:
            raise ValueError(
                f"`generator` is a list of {len(generator)} for {num_samples} samples; it must be one generator, or one per sample."
            )
        for one in generator if isinstance(generator, list) else [generator] * (generator is not None):
            if not isinstance(one, torch.Generator):
                raise ValueError(
                    f"`generator` has {one!r}; it must be a `torch.Generator` or a list of them: "
                    "`torch.Generator().manual_seed(0)`."
                )
        shape = (num_samples, *self.model.latent_shape)
        if latents is not None and not isinstance(latents, Tensor):
            raise ValueError(f"`latents` is a {type(latents).__name__}; it must be a tensor of shape {shape}.")
        if latents is not None and tuple(latents.shape) != shape:
            raise ValueError(
                f"`latents` has shape {tuple(latents.shape)}; it must be {shape}: samples, positions, dimensions."
            )
        if latents is not None and not torch.isfinite(latents).all():
            raise ValueError("`latents` has values that are not finite.")
        if not _is_number(temperature) or not temperature >= 0:
            raise ValueError(
                f"`temperature` is {temperature!r}; it must be at least 0 (0 takes the most probable token)."
            )
        if temperature == 0 and (top_k is not None or top_p is not None):
            raise ValueError(
                "`top_k` and `top_p` need a `temperature` above 0: at 0 the most probable token is taken."
            )
        if top_k is not None and (not _is_number(top_k) or not isinstance(top_k, int) or top_k < 1):
            raise ValueError(f"`top_k` is {top_k!r}; it must be an integer of at least 1.")
        if top_p is not None and not (_is_number(top_p) and 0 < top_p <= 1):
            raise ValueError(f"`top_p` is {top_p!r}; it must be in (0, 1].")
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


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _join_trajectories(batches: list[dict]) -> tuple[Tensor, Tensor]:
    """Stack calls and join samples; a batch that an adaptive scheduler finished early stays at its last tokens."""
    longest = max(batch["calls"] for batch in batches)
    tokens, times = [], []
    for batch in batches:
        missing = longest - batch["calls"]
        tokens.append(torch.stack(batch["tokens"] + batch["tokens"][-1:] * missing))
        times.append(torch.stack(batch["times"] + batch["times"][-1:] * missing))
    return torch.cat(tokens, dim=1), torch.cat(times, dim=1)
