"""The training loop: `train(arguments)` is what `examples/train_nfdm.py` runs."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, PartialState
from accelerate.state import AcceleratorState
from accelerate.tracking import filter_trackers, get_available_trackers
from accelerate.utils import DistributedType, broadcast_object_list, set_seed
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tqdm.auto import tqdm
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from ..conditions import drop_condition
from ..devices import multiplies_bfloat16
from ..files import write_file, writing
from ..likelihood import LikelihoodEstimate, estimate_likelihood
from ..networks.compilation import compile_layers
from ..pipelines import NFDMTextPipelineOutput
from .arguments import CHANGEABLE_ON_RESUME, TrainingArguments
from .batches import Partition, mix_seeds, training_batches
from .checkpoints import (
    AVERAGE_FILE,
    PROGRESS_FILE,
    RESUME,
    SETTINGS_FILE,
    Progress,
    clear_leftovers,
    folder_checksums,
    open_run,
    read_settings,
    remove_old,
    write_folder,
)
from .families import model_family
from .known_tokens import draw_known
from .optimization import (
    ExponentialMovingAverage,
    build_optimizers,
    check_combination,
    learning_rate_factor,
    time_sampler_parameters,
    whole,
)
from .preparation import TrainingData, build_model
from .run_lock import RunLock, content, take
from .signals import StopSignal
from .summary import finish, open_repository, with_error


class Trainer:
    """One training run.

    Every random number of a step is drawn from `(seed, step)`, so resuming needs no random states.
    """

    def __init__(self, arguments: TrainingArguments):
        arguments.check_data()
        self.accelerator = self._accelerator(arguments)
        # What `accelerate launch` or the device decided is part of the run's settings.
        self.arguments = dataclasses.replace(arguments, mixed_precision=self.accelerator.mixed_precision)
        self.family = model_family(self.arguments)
        self.run, self.checkpoint = self._main_first(lambda: open_run(self.arguments, "run"), share=True)
        self._content = content(self.run)
        self.partition = Partition(
            arguments.batch_size,
            self.accelerator.num_processes,
            self.accelerator.process_index,
            arguments.gradient_accumulation_steps,
        )
        self.data = self._main_first(self._load_data)
        for split, report in (self.data.reports or {}).items():
            self._say(f"{split}: {report}")
        self._build_model()
        self.repository = self._main_first(lambda: open_repository(self.arguments, self.run), share=True)
        self.progress = Progress()
        if self.checkpoint is not None:
            self._load_checkpoint(self.checkpoint)
            self._say(f"Resumed from {self.checkpoint}.")
            for change in self.arguments.differences(read_settings(self.checkpoint)):
                self._say(f"Changed: {change}.")
        self.stop_signal = StopSignal(self.accelerator)
        # Of the main process.
        self.lock: RunLock | None = None

    # ---- Set-up -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _accelerator(arguments: TrainingArguments) -> Accelerator:
        if arguments.report_to not in ("none", "all", *map(str, get_available_trackers())):
            raise ValueError(
                f"`report_to` is {arguments.report_to!r}, which is not installed; `pip install {arguments.report_to}`."
            )
        # Steps on the cross-entropy, on jumps and on lattices train the predictor alone.
        unused = arguments.cross_entropy_steps > 0 or bool(arguments.jump_clocks or arguments.lattice_clocks)
        precision = arguments.mixed_precision or os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        if precision == "auto":
            precision = "bf16" if multiplies_bfloat16(PartialState().device) else "no"
        if AcceleratorState._shared_state and AcceleratorState().mixed_precision != precision:
            # That of a run before this one, in the same process, which Accelerate would keep.
            AcceleratorState._reset_state()
        accelerator = Accelerator(
            mixed_precision=precision,
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=unused)],
        )
        check_combination(
            accelerator.distributed_type, accelerator.is_fsdp2, accelerator.mixed_precision, arguments.use_muon
        )
        if accelerator.distributed_type == DistributedType.FSDP:
            # Sharded ones are pickles, which PyTorch reads without restriction.
            accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        return accelerator

    def _main_first(self, action: Callable[[], Any], share: bool = False) -> Any:
        """Run `action` in the main process, then in the others (with `share` they get its result instead).

        A refusal of the main process is raised there alone, and ends the others without a word.
        """
        outcome: list = [None, False]
        error = None
        if self.accelerator.is_main_process:
            try:
                outcome[0] = action()
            except Exception as raised:
                error, outcome[1] = raised, True
        result = outcome[0]
        outcome[0] = result if share else None
        broadcast_object_list(outcome)
        if error is not None:
            raise error
        if outcome[1]:
            raise SystemExit(1)
        if not self.accelerator.is_main_process:
            result = outcome[0] if share else action()
        return result

    def _load_data(self) -> TrainingData:
        if self.checkpoint is None:
            return TrainingData(self.arguments)
        settings, tokenizer = read_settings(self.checkpoint), self.checkpoint.parent / "tokenizer"
        # Checkpoints of older versions have no such checksum.
        if settings.get("tokenizer_checksums", found := folder_checksums(tokenizer)) != found:
            raise ValueError(f"The files of {tokenizer} are not those that {self.checkpoint} was made with.")
        data = TrainingData(self.arguments, tokenizer)
        if settings.get("data_fingerprint") != data.fingerprint:
            raise ValueError(
                f"The texts of {self.arguments.dataset!r} are not those that {self.checkpoint} was trained on. Resume "
                "with those, or start another run."
            )
        return data

    def _build_model(self) -> None:
        arguments, accelerator = self.arguments, self.accelerator
        set_seed(arguments.seed)
        model = build_model(arguments, self.data)
        self.data.start = None
        # The averaged weights are evaluated and released in a model of their own, whole even where training shards
        # them.
        self.released: PreTrainedModel = copy.deepcopy(model).requires_grad_(False).eval().to(accelerator.device)
        if arguments.compile:
            compile_layers(model)
        optimizers = build_optimizers(model, arguments, torch.distributed.group.WORLD)
        self.wrapped, *self.optimizers = accelerator.prepare(model, *optimizers)
        self.model: PreTrainedModel = accelerator.unwrap_model(self.wrapped)
        self.ema = ExponentialMovingAverage(self.model, arguments.ema_decay)
        # The time sampler's gradients are of another kind, and must not use up the norm that the others are clipped
        # to.
        sampler = {id(parameter) for parameter in time_sampler_parameters(self.model).values()}
        self.clipped_parameters = [parameter for parameter in self.model.parameters() if id(parameter) not in sampler]

    # ---- The loop ---------------------------------------------------------------------------------------------------

    def train(self) -> dict | None:
        """Run to the end, or to a signal. Returns the summary, or `None` when the run was stopped before its end."""
        arguments, accelerator = self.arguments, self.accelerator
        self._main_first(self._own_run, share=True)
        try:
            if accelerator.is_main_process:
                self._write_run_files()
            accelerator.wait_for_everyone()
            if arguments.report_to != "none":
                self._start_trackers()
            with self.stop_signal:
                finished = self._loop()
            summary = self._finish() if finished else None
            accelerator.end_training()
            return summary
        finally:
            if self.lock is not None:
                self.lock.release()

    def _finish(self) -> dict | None:
        try:
            with self.stop_signal.interrupting():
                if self.accelerator.is_main_process:
                    # A run that was killed between its last checkpoint and this has one too many.
                    remove_old(self.run, self.arguments.checkpoints_total_limit)
                return finish(self)
        except KeyboardInterrupt:
            self._say("Stopped by a signal after the last step; evaluate and release with `--resume latest`.")
            return None

    def _own_run(self) -> None:
        self.lock = take(self.run, self._content)

    def _start_trackers(self) -> None:
        accelerator, arguments = self.accelerator, self.arguments
        accelerator.project_configuration.set_directories(str(self.run))
        accelerator.log_with = filter_trackers(arguments.report_to, str(self.run))
        accelerator.init_trackers("logs", config={key: str(value) for key, value in arguments.to_dict().items()})

    def _loop(self) -> bool:
        arguments, progress, partition = self.arguments, self.progress, self.partition
        first_step = progress.step
        last_step = arguments.max_steps
        if arguments.stop_after_steps is not None:
            last_step = min(last_step, first_step + arguments.stop_after_steps)
        batches = training_batches(
            self.data.train, partition, arguments.seed, start_step=progress.step, workers=arguments.dataloader_workers
        )
        self._clock, self._cpu_clock, self._logged_step = time.perf_counter(), time.process_time(), progress.step
        bar = tqdm(
            total=arguments.max_steps,
            initial=progress.step,
            unit="step",
            desc="training",
            disable=not self.accelerator.is_local_main_process,
        )
        stop = False
        with bar:
            if progress.step == 0 and not self._evaluate_untrained():
                return False
            while progress.step < last_step:
                outputs, norm = self._step(batches)
                progress.step += 1
                bar.update()
                if progress.step % arguments.log_every == 0 or progress.step == arguments.max_steps:
                    bar.set_postfix(self._log(outputs, norm))
                if progress.step % arguments.evaluate_every == 0 or progress.step == arguments.max_steps:
                    self._evaluate()
                stop = self.stop_signal.requested(progress.step)
                due = progress.step % arguments.checkpoint_every == 0 or progress.step in (
                    last_step,
                    arguments.max_steps,
                )
                if due or stop:
                    self._check_finite(outputs, norm)
                    self._save_checkpoint()
                if stop:
                    break
        finished = progress.step >= arguments.max_steps and not stop
        if not finished:
            reason = "Stopped by a signal" if self.stop_signal.received else "Stopped"
            self._say(f"{reason} at step {progress.step} of {arguments.max_steps}; continue with `--resume latest`.")
        return finished

    def _evaluate_untrained(self) -> bool:
        """Evaluate before the first step; False where a signal came meanwhile, since there is nothing to save yet."""
        if self.accelerator.num_processes > 1:
            # All stop together, after a step.
            self._evaluate()
            return True
        try:
            with self.stop_signal.interrupting():
                self._evaluate()
                return True
        except KeyboardInterrupt:
            self._say("Stopped by a signal before the first step.")
            return False

    def _step(self, batches) -> tuple[list[ModelOutput], torch.Tensor]:
        """One optimizer step: the output for every part of the batch, and the norm of the gradient before clipping."""
        arguments, accelerator, partition = self.arguments, self.accelerator, self.partition
        step, model = self.progress.step, self.model
        factor = learning_rate_factor(step, arguments.warmup_steps, arguments.max_steps, arguments.decay_steps)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
        # Every process draws for the whole batch and takes its rows: the step is the same however the batch is shared
        # out.
        generator = torch.Generator(accelerator.device).manual_seed(mix_seeds(arguments.seed, step))
        options = self.family.forward_options(model, step, generator)
        dropped = None
        if arguments.condition_dropout:
            numbers = torch.rand(arguments.batch_size, generator=generator, device=accelerator.device)
            dropped = numbers < arguments.condition_dropout
        # Reading values makes an accelerator wait; there they are checked when logging and before saving.
        check = accelerator.device.type == "cpu"
        self.wrapped.train()
        outputs = []
        for part in range(partition.accumulation_steps):
            input_ids = next(batches).to(accelerator.device)
            if dropped is not None:
                rows = slice(*partition.rows(part))
                config = model.config
                input_ids = drop_condition(input_ids, dropped[rows], config.condition_length, config.pad_token_id)
            # Dropout, the only other source of randomness.
            torch.manual_seed(mix_seeds(arguments.seed, step, part, accelerator.process_index))
            last = part == partition.accumulation_steps - 1
            with accelerator.no_sync(self.wrapped) if not last else nullcontext():
                with accelerator.autocast():
                    output = self.wrapped(input_ids, **options(*partition.rows(part)))
                outputs.append(output)
                if check:
                    self._check_finite(outputs)
                accelerator.backward(output.loss / partition.accumulation_steps)
            output.loss = output.loss.detach()
        limit = arguments.max_grad_norm if step >= arguments.clip_after_steps else float("inf")
        norm = whole(accelerator.clip_grad_norm_(self.clipped_parameters, limit))
        if check:
            self._check_finite(outputs, norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.ema.update(model)
        return outputs, norm

    def _check_finite(self, outputs: list[ModelOutput], norm: torch.Tensor | None = None) -> None:
        where = None
        for output in outputs:
            if not torch.isfinite(output.loss):
                where = output.non_finite_terms() or f"the loss is {output.loss.item()}"
        # fp16 scales the loss, and skips the steps at which that was too much.
        if where is None and norm is not None and not torch.isfinite(norm) and self.accelerator.scaler is None:
            where = f"the norm of the gradient is {norm.item()}"
        if where is not None:
            raise FloatingPointError(
                f"Training stopped at step {self.progress.step}: {where}. The checkpoints in {self.run} are intact. "
                "Continue with `--resume latest` and a lower learning rate or earlier clipping: "
                f"{', '.join(CHANGEABLE_ON_RESUME)} may change."
            )

    # ---- Reporting --------------------------------------------------------------------------------------------------

    def _log(self, outputs: list[ModelOutput], norm: torch.Tensor) -> dict[str, str]:
        """Record the terms of this step's batch; returns what the progress bar shows."""
        self._check_finite(outputs, norm)
        now, cpu_now, step = time.perf_counter(), time.process_time(), self.progress.step
        steps = step - self._logged_step
        rate, cpu_seconds = steps / max(now - self._clock, 1e-9), (cpu_now - self._cpu_clock) / steps
        self._clock, self._cpu_clock, self._logged_step = now, cpu_now, step
        names = [name for name in outputs[0] if name != "t"]
        means = torch.stack(
            [torch.stack([output[name].detach().float().mean() for output in outputs]).mean() for name in names]
        )
        means = dict(zip(names, self.accelerator.reduce(means, "mean").tolist()))
        # A step on the cross-entropy has no bound to show.
        if "bound" in means:
            means["nats_per_token"] = means["bound"] / self.data.mean_tokens
        tokens_per_second = rate * self.arguments.batch_size * self.data.mean_tokens
        self._record(
            {
                **{f"train/{name}": value for name, value in means.items()},
                "train/gradient_norm": norm.item(),
                "train/learning_rate": self.optimizers[0].param_groups[0]["lr"],
                "train/unknown_share": self.data.unknown_share,
                "train/steps_per_second": rate,
                "train/tokens_per_second": tokens_per_second,
                "train/cpu_seconds_per_step": cpu_seconds,
            }
        )
        shown = {"loss": f"{means['loss']:.2f}", "tokens/s": f"{tokens_per_second:,.0f}"}
        if "bound" in means:
            shown["nats/token"] = f"{means['nats_per_token']:.3f}"
        return shown

    def _evaluate(self) -> None:
        """The validation bound and a few samples, with the averaged weights.

        Every process does all of it: the figures do not depend on their number, and none waits for longer than the
        others.
        """
        arguments, step = self.arguments, self.progress.step
        started, cpu_started = time.perf_counter(), time.process_time()
        self.ema.copy_to(self.released)
        estimate = self.validation_bound(arguments.evaluation_texts)
        samples = self.generate(arguments.num_samples, seed=step).texts if arguments.num_samples else []
        bound = estimate.nats_per_story.value
        # What has not been trained is no candidate.
        best = self.progress.best_bound
        if step > 0 and (best is None or bound < best):
            self.progress.best_bound = bound
            self._write_pipeline("best")
        self._record(
            {
                **{f"validation/{name}": quantity.value for name, quantity in estimate.terms.items()},
                "validation/bound": bound,
                "validation/bound_error": estimate.nats_per_story.monte_carlo_error,
                "validation/nats_per_token": estimate.nats_per_token.value,
                "validation/bits_per_character": estimate.bits_per_character.value,
                **self._bounds_of_known(),
            }
        )
        self._say(
            f"step {step}: validation {self.family.quantity} "
            f"{with_error(bound, estimate.nats_per_story.monte_carlo_error)} nats per text, "
            f"{estimate.nats_per_token.value:.3f} per token" + "".join(f"\n    {text}" for text in samples)
        )
        # The steps did not get slower meanwhile.
        self._clock += time.perf_counter() - started
        self._cpu_clock += time.process_time() - cpu_started

    def validation_bound(self, num_texts: int, draws: int | None = None) -> LikelihoodEstimate:
        """The bound of the released model on the first validation texts."""
        rows = self.data.validation_rows(num_texts)
        return self.family.likelihood(self.released, rows, draws or self.arguments.evaluation_draws)

    def _bounds_of_known(self) -> dict[str, float]:
        """The bound of validation texts of which tokens are given as in training, kind by kind, in nats per text."""
        arguments = self.arguments
        rows, bounds = self.data.validation_rows(arguments.evaluation_texts), {}
        ids = rows["input_ids"].long()
        for kind in arguments.known_texts:
            generator = torch.Generator().manual_seed(arguments.seed)
            known = draw_known({kind: 1.0}, *ids.shape, generator, arguments.condition_length)
            estimate = estimate_likelihood(
                self.released,
                ids,
                known=known,
                num_draws=arguments.evaluation_draws,
                time_sampler="learned",
                batch_size=arguments.evaluation_batch_size,
                seed=arguments.seed,
            )
            bounds[f"validation/bound_{kind}"] = estimate.nats_per_story.value
        return bounds

    def pipeline(self):
        """A pipeline around the released model."""
        return self.family.pipeline(self.released, self.data.tokenizer)

    def generate(self, num_samples: int, seed: int, progress_bar: bool = False) -> NFDMTextPipelineOutput:
        """Samples of the released model."""
        pipeline = self.pipeline()
        pipeline.set_progress_bar_config(
            disable=not (progress_bar and self.accelerator.is_local_main_process), desc="sampling"
        )
        given = self.data.conditions(num_samples)
        return self.family.generate(pipeline, num_samples, torch.Generator().manual_seed(seed), **given)

    def _record(self, values: dict[str, float]) -> None:
        if self.arguments.report_to != "none":
            self.accelerator.log(values, step=self.progress.step)
        if self.accelerator.is_main_process:
            path = self.run / "metrics.jsonl"
            with writing(path, RESUME), open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": self.progress.step, **values}) + "\n")

    def _say(self, message: str) -> None:
        if self.accelerator.is_local_main_process:
            tqdm.write(message, file=sys.stdout)

    # ---- Files ------------------------------------------------------------------------------------------------------

    def _write_run_files(self) -> None:
        clear_leftovers(self.run)
        if self.checkpoint is None or self.checkpoint.parent.resolve() != self.run.resolve():
            with writing(self.run / "tokenizer"):
                self.data.tokenizer.save_pretrained(self.run / "tokenizer")
        write_file(self.run / SETTINGS_FILE, self._settings())
        metrics = self.run / "metrics.jsonl"
        if metrics.is_file():
            # What was logged after the checkpoint is logged again.
            lines = metrics.read_text(encoding="utf-8").splitlines() if self.checkpoint is not None else []
            kept = [line for line in lines if _is_entry(line) and json.loads(line)["step"] <= self.progress.step]
            write_file(metrics, "".join(line + "\n" for line in kept))

    def _settings(self) -> str:
        settings = {
            **self.arguments.to_dict(),
            "data_fingerprint": self.data.fingerprint,
            "tokenizer_checksums": folder_checksums(self.run / "tokenizer"),
        }
        return json.dumps(settings, indent=2) + "\n"

    def _load_checkpoint(self, checkpoint: Path) -> None:
        """Nothing here runs code of the checkpoint: Accelerate reads its pickles with PyTorch's restricted loader."""
        rates = [group["base_lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        try:
            self.accelerator.load_state(str(checkpoint))
            self.progress = Progress.from_json((checkpoint / PROGRESS_FILE).read_text(encoding="utf-8"))
            self.ema.load_state_dict(load_file(checkpoint / AVERAGE_FILE), updates=self.progress.step)
        except UnpicklingError as error:
            # PyTorch's own advice is to load it all the same.
            raise ValueError(
                f"The checkpoint {checkpoint} has a pickle of objects, which are never loaded."
            ) from error
        except (OSError, RuntimeError, ValueError, KeyError, SafetensorError) as error:
            raise ValueError(f"The checkpoint {checkpoint} cannot be loaded: {error}.") from error
        # The learning rates are those of the settings, which a continuation may change.
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group, rate in zip(groups, rates, strict=True):
            group["base_lr"] = rate
        # They are no part of the average.
        for released, buffer in zip(self.released.buffers(), self.model.buffers(), strict=True):
            released.copy_(buffer)

    def _save_checkpoint(self) -> None:
        def write(folder: Path) -> None:
            self.accelerator.save_state(str(folder))
            # Gathered by all processes, where it is sharded.
            average = self.ema.state_dict()
            if self.accelerator.is_main_process:
                save_file({name: tensor.contiguous() for name, tensor in average.items()}, folder / AVERAGE_FILE)
                (folder / PROGRESS_FILE).write_text(self.progress.to_json(), encoding="utf-8")
                (folder / SETTINGS_FILE).write_text(self._settings(), encoding="utf-8")

        target = self.run / f"checkpoint-{self.progress.step:08d}"
        write_folder(
            target, write, self.accelerator.is_main_process, self.accelerator.wait_for_everyone, checksums=True
        )
        if self.accelerator.is_main_process:
            remove_old(self.run, self.arguments.checkpoints_total_limit)

    def _write_pipeline(self, name: str) -> None:
        if self.accelerator.is_main_process:
            write_folder(self.run / name, lambda folder: self.pipeline().save_pretrained(folder))


def train(arguments: TrainingArguments) -> dict | None:
    """Train as the arguments say; returns the summary that is also printed and saved, or `None` if stopped early."""
    return Trainer(arguments).train()


def _is_entry(line: str) -> bool:
    """A line may be cut short where a run was killed."""
    try:
        return "step" in json.loads(line)
    except json.JSONDecodeError:
        return False
