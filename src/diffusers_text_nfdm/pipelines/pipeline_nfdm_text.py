"""Text generation with any of the models, schedulers and clocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

import torch
from diffusers import DiffusionPipeline
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..checks import check_integers
from ..clocks import BatchClock, Clock
from ..conditions import absent_placeholders
from ..models import Prediction, TextDiffusionModel, evaluation_mode
from ..models.token_choice import complete_choice, draw_tokens, draw_uniforms, exclude
from ..networks.two_stream_predictor import CleanTokens
from ..schedulers import TextDiffusionScheduler, TokenScheduler
from .batches import NFDMTextPipelineOutput, Options, TextBatch, join_outputs, join_trajectories, read_before
from .checks import (
    check_call,
    check_finish,
    check_guidance,
    check_latents,
    check_token_scheduler,
    draws_tokens,
    finish_time,
    warn_of_untrained,
)
from .early_end import EarlyEnd
from .finishing import finish_texts
from .guidance import GuidedModel
from .hub import HubCheckpointMixin
from .prompts import write_prompts
from .samples import check_given, check_samples, count_rows, decode_texts, fork, sample_generators
from .token_writing import begins, filling_scheduler, needs_filling, with_choice, write_tokens


class Interruption(Exception):
    """Ends the writing of tokens where a call is interrupted."""


class NFDMTextPipeline(HubCheckpointMixin, DiffusionPipeline):
    """Generates texts: noise, then for every time of the scheduler a prediction of the model and a step of the
    scheduler, then decoding.

    Args:
        model: an `NFDMModel`, `MuLANModel` or `DiffusionLMModel`.
        tokenizer: the tokenizer that the model was trained with.
        scheduler: a `TextDiffusionScheduler`, which moves latents, or a `TokenScheduler`, which writes tokens.

    ```python
    pipe = NFDMTextPipeline.from_pretrained("user/nfdm-rocstories")
    print(pipe(num_samples=4, num_inference_steps=64).texts)
    ```
    """

    _callback_tensor_inputs = ["latents", "prediction", "tokens", "known"]
    # A call for prompts or gaps makes calls of its own, by a copy of the pipeline that knows it is one.
    _is_part = False

    def __init__(
        self,
        model: TextDiffusionModel,
        tokenizer: PreTrainedTokenizerBase,
        scheduler: TextDiffusionScheduler | TokenScheduler,
    ):
        super().__init__()
        self.register_modules(model=model, tokenizer=tokenizer, scheduler=scheduler)
        # Copies share it.
        self._interruption = {"wanted": False}

    @property
    def interrupt(self) -> bool:
        return self._interrupt

    @property
    def _interrupt(self) -> bool:
        """Set by a callback or another thread: calls take no further step and return the texts as they are."""
        return self._interruption["wanted"]

    @_interrupt.setter
    def _interrupt(self, wanted: bool) -> None:
        self._interruption["wanted"] = wanted

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str] | None = None,
        condition: str | list[str] | None = None,
        num_samples: int | None = None,
        num_inference_steps: int | None = None,
        clock: str | dict | Clock | None = None,
        gen_length: int | None = None,
        max_gap_length: int = 16,
        guidance_scale: float = 1.0,
        guidance_model: TextDiffusionModel | None = None,
        input_ids: Tensor | None = None,
        known: Tensor | None = None,
        batch_size: int = 64,
        timesteps: Sequence[float] | None = None,
        generator: torch.Generator | list[torch.Generator] | None = None,
        latents: Tensor | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        contrast: float | None = None,
        clamp_predictions: bool = False,
        confidence_threshold: float | None = None,
        output_type: str = "text",
        return_dict: bool = True,
        return_trajectory: bool = False,
        callback_on_step_end: Callable | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
    ) -> NFDMTextPipelineOutput | tuple:
        """Generate texts.

        Args:
            prompt: what is known of a text, or of each: a beginning, which is continued, or a whole text with tokens
                to fill in, `[MASK]` for each, or one `[GAP]` of unknown length (`prompts.py`).
            condition: what a text is to obey, or each, for a model that was trained with conditions.
            num_samples: number of texts, 1 unless prompts, `latents` or `input_ids` say how many.
            num_inference_steps: sampling steps, by default 64, of the reverse SDE and ODE 512, or one per block where
                there are more of them. The paper uses 2000, and 64 and 32 in an ablation. Of a scheduler that writes
                tokens the most calls, by default as many as it takes.
            clock: which tokens are written when, instead of the model's own: see `clocks`.
            gen_length: tokens that continue a beginning; END follows them. By default END is left to the model.
            max_gap_length: a gap is filled with every number of tokens up to this, and of these texts the most
                probable one is taken: by the clean stream, which is exact, or else by the bound.
            guidance_scale: w of `w logits + (1 - w) logits of a weaker model`; above 1 conditions are obeyed more, at
                the cost of variety. Every call is then two.
            guidance_model: the weaker model, an earlier checkpoint of the same run, whose latents mean the same; by
                default the model without condition.
            input_ids, known: token ids `(num_samples, max_length)` and which of them are given; the others are
                written, and those that are known come back as they are.
            batch_size: texts made at a time. A sample does not depend on it.
            timesteps: the global times themselves, decreasing, in (0, 1], instead of a number of steps.
            generator: one generator, from which one per sample is derived, or a list with one per sample.
            latents: z at the first time, `(num_samples, max_length, dim)`, instead of noise. Jumps read the first
                coordinate: it decides the text.
            temperature, top_k, top_p, min_p, contrast: how tokens are drawn (`token_probabilities`), instead of the
                settings of a scheduler that draws them; temperature 0 takes the most probable ones. Schedulers that
                move latents along a mean Ê draw tokens only at the end, from the decoder, by default the most probable
                ones.
            clamp_predictions: move each Ê to its nearest embedding before the step (the clamping trick of
                Diffusion-LM).
            confidence_threshold: end a text as soon as it is decided: two predictions in a row have the same most
                probable tokens, and each has a probability above this, in [0, 1). What is behind END is padding. Along
                a clock with windows a text is decided in its last window at the earliest, or by END. Texts that are
                not decided early are those without this option, bit for bit. `calls` counts up to there; the loop
                ends when all texts of a batch are decided. For schedulers that move latents.
            output_type: `"text"`, `"seq"` (token ids) or `"latent"` (z_0).
            return_trajectory: also return the best tokens of every Ê; tokens to come are padding.
            callback_on_step_end: called as `callback(pipeline, step, timestep, tensors)` after every step with the
                tensors named in `callback_on_step_end_tensor_inputs`, out of `latents`, `prediction` (Ê), `tokens`
                (its best tokens) and `known` (which of them were given). It may return a dict whose `latents` replace
                those of the pipeline. Between the stages of one step of Heun or of an adaptive method they only change
                where the drift is taken. Schedulers that write tokens have only `tokens` and `known`, and as timestep
                the share of each text that is to be written, `(num_samples,)`.
        """
        config = self.model.config
        if not self._is_part:
            self._interrupt = False
        prompted = prompt is not None or condition is not None
        prompted |= bool(config.condition_length) and input_ids is None
        if prompted or needs_filling(self.scheduler, known):
            options = {
                "num_inference_steps": num_inference_steps, "clock": clock, "batch_size": batch_size,
                "guidance_scale": guidance_scale, "guidance_model": guidance_model,
                "timesteps": timesteps, "latents": latents, "temperature": temperature, "top_k": top_k,
                "top_p": top_p, "min_p": min_p, "contrast": contrast, "clamp_predictions": clamp_predictions,
                "confidence_threshold": confidence_threshold,
                "output_type": output_type, "return_trajectory": return_trajectory,
                "callback_on_step_end": callback_on_step_end,
                "callback_on_step_end_tensor_inputs": callback_on_step_end_tensor_inputs,
            }  # fmt: skip
            if prompted and any(given is not None for given in (input_ids, known, latents)):
                raise ValueError(
                    "`prompt` and `condition` say what is known; leave out `input_ids`, `known` and `latents`."
                )
            part = copy(self)
            part._is_part = True
            if prompted:
                lengths = {"gen_length": gen_length, "max_gap_length": max_gap_length}
                output = write_prompts(part, prompt, condition, num_samples, generator, lengths, options)
            else:
                output = part._fill(input_ids, known, generator, options)
            return output if return_dict else output.to_tuple()
        check_integers(1, max_gap_length=max_gap_length)
        if gen_length is not None:
            raise ValueError("`gen_length` needs a `prompt`, which it continues.")
        if num_samples is None:
            num_samples = 1 if input_ids is None else count_rows("input_ids", input_ids)
            # What are no latents is refused by their shape.
            num_samples = len(latents) if isinstance(latents, Tensor) and latents.ndim else num_samples
        choice = {
            "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "contrast": contrast
        }  # fmt: skip
        choice = {name: value for name, value in choice.items() if value is not None}
        check_token_scheduler(
            self,
            num_inference_steps,
            clock=clock,
            timesteps=timesteps,
            latents=latents,
            clamp_predictions=clamp_predictions or None,
            confidence_threshold=confidence_threshold,
            output_type="latent" if output_type == "latent" else None,
            callback_inputs=None if callback_on_step_end is None else callback_on_step_end_tensor_inputs,
        )
        check_guidance(config, self.scheduler, guidance_scale, guidance_model)
        clock = self.model.clock(clock)
        check_finish(self.model, self.scheduler, clock, guidance_scale != 1)
        warn_of_untrained(self.model.config, clock)
        if num_inference_steps is None and timesteps is None and not isinstance(self.scheduler, TokenScheduler):
            blocks = config.max_length // (clock.block_size or config.max_length)
            num_inference_steps = max(self.scheduler.default_steps, blocks)
        check_call(
            self, num_samples, batch_size, generator, latents, input_ids, known, choice, clamp_predictions,
            confidence_threshold, output_type, callback_on_step_end, callback_on_step_end_tensor_inputs,
        )  # fmt: skip
        starts = range(0, num_samples, batch_size)
        guided = guidance_scale != 1
        options = Options(
            model=GuidedModel(self.model, guidance_scale, guidance_model) if guided else self.model,
            # It carries state from step to step, and other threads may use the pipeline.
            scheduler=with_choice(self.scheduler, choice, self.model),
            num_steps=num_inference_steps,
            timesteps=timesteps,
            clock=clock,
            # Of tokens that a scheduler has drawn the decoder takes the most probable ones.
            choice={"temperature": 0.0}
            if draws_tokens(self.scheduler)
            else complete_choice({"temperature": 0.0, **choice}, self.model),
            clamp_predictions=clamp_predictions,
            confidence_threshold=confidence_threshold,
            keep_trajectory=return_trajectory,
            callback=callback_on_step_end,
            callback_inputs=callback_on_step_end_tensor_inputs,
            bar=None,
        )
        batches = []
        num_calls = len(starts) * self._count_calls(options)
        # Behind all that refuses a call: it takes from the generator.
        generators = sample_generators(num_samples, generator)
        weaker = guidance_model or self.model
        with evaluation_mode(self.model), evaluation_mode(weaker), self.progress_bar(total=num_calls) as options.bar:
            for start in starts:
                rows = slice(start, start + batch_size)
                batch = self._start(
                    generators[rows], *(None if x is None else x[rows] for x in (latents, input_ids, known))
                )
                self._generate(batch, options)
                batches.append(batch)
        self.maybe_free_model_hooks()
        calls = torch.cat([torch.as_tensor(batch.calls).expand(len(batch.z)) for batch in batches]).cpu()
        if guided:
            calls = 2 * calls
        sequences = None if output_type == "latent" else torch.cat([batch.written for batch in batches]).cpu()
        trajectory, trajectory_times = join_trajectories(batches) if return_trajectory else (None, None)
        output = NFDMTextPipelineOutput(
            texts=decode_texts(sequences, self.tokenizer, config.condition_length) if output_type == "text" else None,
            sequences=sequences,
            latents=torch.cat([batch.z for batch in batches]) if output_type == "latent" else None,
            trajectory=trajectory,
            trajectory_times=trajectory_times,
            num_function_evaluations=int(calls.max()),
            calls=calls,
        )
        return output if return_dict else output.to_tuple()

    def _fill(
        self,
        input_ids: Tensor,
        known: Tensor,
        generator: torch.Generator | list[torch.Generator] | None,
        options: dict,
    ) -> NFDMTextPipelineOutput:
        """Texts with gaps, for a scheduler that writes from left to right and would not see what follows. It writes
        the texts of which a beginning is known.
        """
        check_given(len(known), input_ids, known)
        check_samples(len(known), options["batch_size"], generator)
        generators = sample_generators(len(known), generator)
        options, latents = dict(options), options["latents"]
        del options["latents"]
        # On the CPU, where the texts end up, whatever device `known` is on.
        begun, parts = begins(known).cpu(), {}
        for rows in (begun.nonzero()[:, 0], (~begun).nonzero()[:, 0]):
            if not len(rows):
                continue
            given = {"input_ids": input_ids[rows], "known": known[rows], "generator": [generators[i] for i in rows]}
            given["latents"] = None if latents is None else latents[rows]
            pipeline = self
            if not begun[rows[0]]:
                # A number of calls was meant for what it writes itself.
                pipeline, options = copy(self), {**options, "num_inference_steps": None}
                pipeline.scheduler = filling_scheduler(self.scheduler)
            parts[rows] = pipeline(**given, **options)
        return join_outputs(parts)

    def _start(
        self,
        generators: list[torch.Generator],
        latents: Tensor | None,
        input_ids: Tensor | None,
        known: Tensor | None,
    ) -> TextBatch:
        """Noise, and what is known."""
        model, n, device = self.model, len(generators), self._execution_device
        options = {"device": device, "dtype": model.latent_dtype}
        context = None
        if model.context_dim is not None:
            context = randn_tensor((n, model.context_dim), generator=generators, **options)
        if latents is None:
            z = (
                randn_tensor((n, *model.latent_shape), generator=generators, **options)
                * self.scheduler.init_noise_sigma
            )
        else:
            z = latents.to(**options)
        if known is not None:
            input_ids, known = input_ids.to(device), known.to(device)
            clean = model.forward_process.initial_marginal(model.embed(input_ids), context).mean
            z = torch.where(known[..., None], clean, z)
        excluded = None if known is None else absent_placeholders(input_ids, known, self.tokenizer, model.config)
        written = torch.zeros(n, 0, dtype=torch.long, device=device)
        return TextBatch(generators, z, context, input_ids, known, excluded, written)

    def _generate(self, batch: TextBatch, options: Options) -> None:
        """From noise to z_0 and tokens."""
        model, scheduler = self.model, options.scheduler
        if isinstance(scheduler, TokenScheduler):
            self._write_tokens(batch, options)
            return
        clock = BatchClock(
            options.clock,
            model.config.max_length,
            batch.known,
            self._order(batch, options.clock),
            in_windows=model.has_windows(options.clock),
        )
        if options.choice["temperature"]:
            # By other numbers than the noise, so that latents do not depend on the temperature.
            choosing = [fork(generator) for generator in batch.generators]
            batch.uniforms = draw_uniforms(len(batch.z), model.config.max_length, choosing, batch.z.device)
        # A fresh start for every batch.
        self._set_timesteps(options, clock)
        early, config = None, model.config
        if options.confidence_threshold is not None:
            ids = config.eos_token_id, config.pad_token_id or 0
            early = EarlyEnd(options.confidence_threshold, *ids, batch.z.shape[:2], batch.z.device)
        for step, timestep in enumerate(scheduler.timesteps):
            if self._interrupt:
                break
            prediction, calls = self._predict(batch, timestep, clock, options)
            batch.calls = batch.calls + calls * (1 if early is None else (~early.decided).long())
            # The last step is taken by all that come to it.
            if early is not None and step + 1 < len(scheduler.timesteps):
                self._look(early, batch, prediction, timestep, options)
            if options.keep_trajectory:
                tokens = self._best_tokens(batch, prediction)
                if early is not None:
                    tokens = torch.where(early.decided[:, None], early.tokens, tokens)
                batch.trajectory.append(tokens.cpu())
                batch.times.append(torch.as_tensor(timestep).expand(len(batch.z)).cpu())
            batch.z = scheduler.step(
                prediction,
                timestep,
                batch.z,
                forward_process=model.forward_process,
                context=batch.context,
                generator=batch.generators,
            ).prev_sample
            if options.callback is not None:
                self._call_back(batch, step, timestep, prediction, options)
            options.bar.update()
            if early is not None and early.decided.all():
                break
        if finish_time(scheduler) is not None and not self._interrupt:
            self._finish(batch, prediction, options)
        if early is not None:
            clean = model.forward_process.initial_marginal(model.embed(early.tokens), batch.context).mean
            batch.z = torch.where(early.chosen[..., None], clean, batch.z)
            # Later windows have written over texts that were decided before. Other tokens are chosen as they were.
            batch.written = batch.written[:, :0]
        if not torch.isfinite(batch.z).all():
            raise ValueError("The latents are not finite: the model's weights are damaged, or their type too narrow.")
        self._write(batch, model.config.max_length, options)

    def _finish(self, batch: TextBatch, prediction: Prediction, options: Options) -> None:
        """Decode the text at the last prediction."""
        model = options.model
        uniforms = draw_uniforms(*batch.z.shape[:2], batch.generators, batch.z.device)
        batch.written, calls = finish_texts(
            model,
            prediction,
            uniforms,
            batch.known,
            batch.given,
            options.scheduler.choice,
            options.scheduler.config.finish_calls,
        )
        batch.calls = batch.calls + calls
        batch.z = model.forward_process.initial_marginal(model.embed(batch.written), batch.context).mean

    def _write_tokens(self, batch: TextBatch, options: Options) -> None:
        latest, calls = None, 0

        def note(tokens: Tensor, written: Tensor) -> None:
            nonlocal latest, calls
            to_write = 1 - written.cpu() / tokens.shape[1]
            if options.keep_trajectory:
                batch.trajectory.append(tokens.cpu().clone())
                batch.times.append(to_write)
            if options.callback is not None:
                tensors = {"tokens": tokens.clone(), "known": batch.known_tokens(tokens)}
                options.callback(self, calls, to_write, {name: tensors[name] for name in options.callback_inputs})
            options.bar.update()
            latest, calls = tokens, calls + 1
            if self._interrupt:
                raise Interruption

        try:
            # A batch that is begun takes one call at least.
            batch.written, batch.calls = write_tokens(options.model, options.scheduler, batch, options.num_steps, note)
        except Interruption:
            batch.written, batch.calls = latest.clone(), calls

    def _predict(
        self, batch: TextBatch, timestep: Tensor, clock: BatchClock, options: Options
    ) -> tuple[Prediction | Tensor, int]:
        """What the model says of the tokens, or of those of the window, and in how many calls."""
        model, scheduler = options.model, options.scheduler
        z = scheduler.scale_model_input(batch.z, timestep)
        windows, window, clean = None, None, None
        if clock.has_windows:
            begin, end = scheduler.step_bounds(timestep)
            t, s = (scheduler.token_times(u, z).value for u in (begin, end))
            # A lattice is shown what will move next, so that the next step has candidates for it.
            ahead = scheduler.token_times(max(0.0, 2 * end - begin), z).value if model.config.lattice_candidates else s
            step = clock.step_windows(begin, t, ahead)
            windows, window, clean = step.windows, step.tokens, self._read(batch, step.written, step.seen, options)
        # One call a step: it is shown the prediction of the step before.
        shown, calls = model.nothing_shown(z) if batch.shown is None else batch.shown, 1
        if model.is_lattice(windows, batch.known) and not (shown.any(-1) | (s == t)).all():
            shown, calls = None, 2
        elif batch.shown is None and model.reads_first(windows):
            # The reading from left to right is two.
            shown, calls = None, 3
        t = scheduler.token_times(timestep, z).value
        prediction = model.denoise(
            z, t, batch.context, clean, shown, windows=windows, known=batch.known, window=window
        )
        batch.shown = prediction.shown_next if model.config.self_conditioning else None
        prediction = prediction.without(batch.excluded)
        if not options.clamp_predictions:
            return prediction, calls
        distances = torch.cdist(prediction.embeddings, model.embedding_table())
        clamped = model.embed(exclude(-distances, batch.excluded).argmax(-1))
        return Prediction(clamped if window is None else clamped[:, window], window=window, length=z.shape[1]), calls

    def _look(
        self, early: EarlyEnd, batch: TextBatch, prediction: Prediction, timestep: Tensor, options: Options
    ) -> None:
        """Which texts the prediction decides."""
        length, scheduler = self.model.config.max_length, options.scheduler
        # Between the stages of a step a token that will have settled has not yet.
        begin, _ = scheduler.step_bounds(timestep)
        open_tokens = (scheduler.token_times(begin, batch.z).value > 0).expand(-1, length)
        early.look(prediction, self._choose(batch, slice(0, length), options), open_tokens, batch.known)

    def _read(self, batch: TextBatch, written: int, seen: int, options: Options) -> CleanTokens | None:
        """What noisy tokens see of the text before their windows, of which `written` tokens are finished in all texts.

        Texts in which other tokens are known are ahead of one another; what not all have is read anew.
        """
        self._write(batch, written, options)
        unfinished = batch.written[:, :0] if seen == written else self._choose(batch, slice(written, seen), options)
        batch.clean, clean = read_before(options.model, batch.clean, batch.written, unfinished)
        return clean

    def _write(self, batch: TextBatch, stop: int, options: Options) -> None:
        """Choose the tokens up to `stop` from z_0."""
        start = batch.written.shape[1]
        if start < stop:
            tokens = self._choose(batch, slice(start, stop), options)
            batch.written = torch.cat([batch.written, tokens], dim=1)

    def _choose(self, batch: TextBatch, part: slice, options: Options) -> Tensor:
        """Some tokens from z_0. Whenever a token is chosen, it is the same."""
        logits = exclude(self.model.decode(batch.z, batch.context)[:, part], batch.excluded)
        uniforms = None if batch.uniforms is None else batch.uniforms[:, part]
        tokens = draw_tokens(logits, uniforms, **options.choice)
        return tokens if batch.known is None else torch.where(batch.known[:, part], batch.given[:, part], tokens)

    def _best_tokens(self, batch: TextBatch, prediction: Prediction | Tensor) -> Tensor:
        """The text as the prediction has it; tokens to come are padding."""
        window = getattr(prediction, "window", None)
        embeddings = prediction.embeddings if isinstance(prediction, Prediction) else prediction
        tokens = exclude(self.model.decode(embeddings, batch.context), batch.excluded).argmax(-1)
        if window is not None:
            tokens[:, : batch.written.shape[1]] = batch.written
            tokens[:, window.stop :] = self.model.config.pad_token_id or 0
        return tokens if batch.known is None else torch.where(batch.known, batch.given, tokens)

    def _call_back(
        self, batch: TextBatch, step: int, timestep: Tensor, prediction: Prediction | Tensor, options: Options
    ) -> None:
        tensors = {"latents": batch.z}
        if "prediction" in options.callback_inputs:
            tensors["prediction"] = prediction.embeddings if isinstance(prediction, Prediction) else prediction
        if "tokens" in options.callback_inputs:
            tensors["tokens"] = self._best_tokens(batch, prediction)
        tensors["known"] = batch.known_tokens(batch.z[..., 0])
        wanted = {name: tensors[name] for name in options.callback_inputs}
        result = options.callback(self, step, timestep, wanted)
        if not isinstance(result, dict | None):
            raise ValueError(f"The callback returned a {type(result).__name__}; it must return a dict or nothing.")
        latents = (result or {}).get("latents", batch.z)
        batch.z = check_latents("The callback's `latents`", latents, batch.z.shape).to(batch.z)

    def _order(self, batch: TextBatch, clock: Clock) -> Tensor | None:
        """Random numbers from which a clock in random order takes that of each text."""
        if not clock.draws_order:
            return None
        return torch.stack(
            [torch.rand(self.model.config.max_length, generator=g, device=g.device) for g in batch.generators]
        ).to(batch.z.device, batch.z.dtype)

    def _count_calls(self, options: Options) -> float:
        """How many predictions a batch takes."""
        scheduler = options.scheduler
        if isinstance(scheduler, TokenScheduler):
            return float("inf")
        in_windows = self.model.has_windows(options.clock)
        self._set_timesteps(options, BatchClock(options.clock, self.model.config.max_length, in_windows=in_windows))
        # An adaptive scheduler does not know how many calls it will take.
        return len(scheduler.timesteps) if hasattr(scheduler.timesteps, "__len__") else float("inf")

    def _set_timesteps(self, options: Options, clock: BatchClock) -> None:
        # Times live on the CPU: schedulers read them as numbers.
        options.scheduler.set_timesteps(
            options.num_steps,
            device="cpu",
            timesteps=options.timesteps,
            time_sampler=self.model.time_sampler,
            clock=clock,
        )
