"""The training loop: `train(arguments)` is what `examples/train_nfdm.py` runs."""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import DistributedType, broadcast_object_list, set_seed
from tqdm.auto import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from .. import schedulers
from ..data import load_text_dataset, prepare_dataset
from ..likelihood import LikelihoodEstimate, estimate_likelihood
from ..models import TextDiffusionModel
from ..pipelines import NFDMTextPipeline
from ..tokenization import WordTokenizer
from .arguments import CONFIGS, TrainingArguments
from .batches import Partition, training_batches
from .checkpoints import SETTINGS_FILE, open_run, remove_old, step_of, write_whole
from .optimization import ExponentialMovingAverage, build_optimizers, learning_rate_factor
from .summary import finish


logger = logging.getLogger(__name__)

MODELS = {config.model_type: model for config, model in ((m.config_class, m) for m in TextDiffusionModel.__subclasses__())}


@dataclass
class Progress:
    """Where a run is; part of every checkpoint."""

    step: int = 0
    best_bound: float = float("inf")

    def state_dict(self) -> dict:
        return {"step": self.step, "best_bound": self.best_bound}

    def load_state_dict(self, state: dict) -> None:
        self.step, self.best_bound = state["step"], state["best_bound"]


class Trainer:
    """One training run. Every random number of a step is drawn from `(seed, step)`, so resuming needs no random states."""

    def __init__(self, arguments: TrainingArguments, name: str = "run"):
        self.arguments = arguments
        self.accelerator = self._accelerator(name)
        self.run, self.checkpoint = self._open_run(name)
        self._prepare_data()
        self._build_model()
        self.progress = Progress()
        self.accelerator.register_for_checkpointing(self.ema, self.progress)
        if self.checkpoint is not None:
            self.accelerator.load_state(str(self.checkpoint))
            self._say(f"Resumed from {self.checkpoint}.")
        self._stop_signal: int | None = None

    # ---- Set-up -----------------------------------------------------------------------------------------------------

    def _accelerator(self, name: str) -> Accelerator:
        arguments = self.arguments
        # With the rescaled objective, insisted on for NFDM, the volatility is in no gradient.
        unused = bool(arguments.model_config.get("allow_rescaled_objective"))
        accelerator = Accelerator(
            mixed_precision=arguments.mixed_precision,
            log_with=None if arguments.report_to == "none" else arguments.report_to,
            project_dir=arguments.output_dir or f"runs/{name}",
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=unused)],
        )
        if accelerator.distributed_type == DistributedType.DEEPSPEED and arguments.use_muon:
            raise ValueError(
                "`use_muon` needs two optimizers, of which Accelerate keeps only the last under DeepSpeed. Train with DDP or FSDP, or "
                "with `--no-use_muon`."
            )
        if accelerator.distributed_type == DistributedType.FSDP and arguments.use_muon:
            raise ValueError(
                "`use_muon` needs whole matrices, but FSDP shards them. Train with DDP, or with `--no-use_muon`."
            )
        return accelerator

    def _open_run(self, name: str) -> tuple[Path, Path | None]:
        # The main process decides for all, and all learn of its refusal.
        decision: list = [None, None, None]
        if self.accelerator.is_main_process:
            try:
                decision[:2] = open_run(self.arguments, name)
            except ValueError as error:
                decision[2] = str(error)
        broadcast_object_list(decision)
        run, checkpoint, refusal = decision
        if refusal is not None:
            raise ValueError(refusal)
        return run, checkpoint

    def _prepare_data(self) -> None:
        arguments = self.arguments
        source = arguments.dataset
        if arguments.validation_file is not None:
            source = {"train": arguments.dataset, "validation": arguments.validation_file}
        with self.accelerator.main_process_first():
            raw = load_text_dataset(
                source,
                config_name=arguments.dataset_config,
                column=arguments.text_column,
                streaming=arguments.streaming,
                seed=arguments.seed,
            )
            if "validation" not in raw:
                raise ValueError(f"The dataset {arguments.dataset!r} has the splits {list(raw)}; training needs a validation split too.")
            self.tokenizer = self._load_tokenizer(raw["train"])
            prepared, self.reports = prepare_dataset(raw, self.tokenizer, arguments.max_length)
        self.texts = raw
        self.train_data, self.validation_data = prepared["train"], prepared["validation"]
        if arguments.streaming:
            self.validation_data = list(self.validation_data.take(2 * arguments.evaluation_texts))
        self.partition = Partition(
            arguments.batch_size,
            self.accelerator.num_processes,
            self.accelerator.process_index,
            arguments.gradient_accumulation_steps,
        )
        if not arguments.streaming and len(self.train_data) < arguments.batch_size:
            raise ValueError(f"`batch_size` is {arguments.batch_size}, but there are only {len(self.train_data)} training texts.")
        for split, report in (self.reports or {}).items():
            self._say(f"{split}: {report}")

    def _load_tokenizer(self, train_texts) -> PreTrainedTokenizerBase:
        saved = self.run / "tokenizer"
        if self.checkpoint is not None:
            return WordTokenizer.from_pretrained(saved) if self.arguments.tokenizer is None else AutoTokenizer.from_pretrained(saved)
        if self.arguments.tokenizer is not None:
            return AutoTokenizer.from_pretrained(self.arguments.tokenizer)
        texts = (row["text"] for row in train_texts.take(100_000)) if self.arguments.streaming else train_texts["text"]
        return WordTokenizer.from_texts(texts, self.arguments.min_word_count, self.arguments.max_length)

    def _build_model(self) -> None:
        arguments, accelerator, tokenizer = self.arguments, self.accelerator, self.tokenizer
        set_seed(arguments.seed)
        config = CONFIGS[arguments.model_type](
            vocab_size=len(tokenizer),
            max_length=arguments.max_length,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            **arguments.model_config,
        )
        model = MODELS[arguments.model_type](config)
        if config.prediction_type == "categorical" and not arguments.streaming:
            model.set_token_frequencies(self._token_counts(len(tokenizer)))
        if arguments.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        if arguments.compile_predictor:
            model.predictor.compile()
        optimizers = build_optimizers(model, arguments)
        self.wrapped, *self.optimizers = accelerator.prepare(model, *optimizers)
        self.model: TextDiffusionModel = accelerator.unwrap_model(self.wrapped)
        self.ema = ExponentialMovingAverage(self.model, arguments.ema_decay)
        # The time sampler's gradients are of another kind, and must not use up the norm that the others are clipped to.
        sampler = {id(parameter) for parameter in self.model.time_sampler.parameters()}
        self.clipped_parameters = [parameter for parameter in self.model.parameters() if id(parameter) not in sampler]

    def _token_counts(self, vocab_size: int) -> torch.Tensor:
        counts = torch.zeros(vocab_size, dtype=torch.float64)
        for batch in self.train_data.select_columns(["input_ids"]).iter(batch_size=10_000):
            counts += torch.bincount(batch["input_ids"].flatten(), minlength=vocab_size)
        return counts

    # ---- The loop ---------------------------------------------------------------------------------------------------

    def train(self) -> dict | None:
        """Run to the end, or to a signal. Returns the summary, or `None` when the run was stopped before its end."""
        arguments, accelerator = self.arguments, self.accelerator
        if accelerator.is_main_process:
            self._write_run_files()
        accelerator.wait_for_everyone()
        if arguments.report_to != "none":
            accelerator.init_trackers("nfdm", config={k: str(v) for k, v in arguments.to_dict().items()})
        handlers = {number: signal.signal(number, self._note_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            finished = self._loop()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        summary = finish(self) if finished else None
        if arguments.report_to != "none":
            accelerator.end_training()
        return summary

    def _loop(self) -> bool:
        arguments, progress, partition = self.arguments, self.progress, self.partition
        first_step = progress.step
        last_step = arguments.max_steps
        if arguments.stop_after_steps is not None:
            last_step = min(last_step, first_step + arguments.stop_after_steps)
        batches = training_batches(
            self.train_data, partition, arguments.seed, start_step=progress.step, workers=arguments.dataloader_workers
        )
        self._clock, self._logged_step = time.perf_counter(), progress.step
        if progress.step == 0:
            self._evaluate()
        bar = tqdm(
            total=arguments.max_steps, initial=progress.step, unit="step", desc="training", disable=not self.accelerator.is_local_main_process
        )
        with bar:
            while progress.step < last_step:
                output, norm = self._step(batches)
                progress.step += 1
                bar.update()
                if progress.step % arguments.log_every == 0 or progress.step == arguments.max_steps:
                    bar.set_postfix(self._log(output, norm))
                if progress.step % arguments.evaluate_every == 0 or progress.step == arguments.max_steps:
                    self._evaluate()
                stop = self._stop_requested()
                due = progress.step % arguments.checkpoint_every == 0 or progress.step in (last_step, arguments.max_steps)
                if due or stop:
                    self._check_finite(output)
                    self._save_checkpoint()
                if stop:
                    self._say(f"Stopped by signal {self._stop_signal or ''} at step {progress.step}; continue with `--resume latest`.")
                    return False
        if progress.step < arguments.max_steps:
            self._say(f"Stopped at step {progress.step} of {arguments.max_steps}; continue with `--resume latest`.")
        return progress.step >= arguments.max_steps

    def _step(self, batches):
        """One optimizer step."""
        arguments, accelerator, partition = self.arguments, self.accelerator, self.partition
        step, model = self.progress.step, self.model
        factor = learning_rate_factor(step, arguments.warmup_steps, arguments.max_steps)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
        # Every process draws for the whole batch and takes its rows: the step is the same however the batch is shared out.
        generator = torch.Generator(accelerator.device).manual_seed(_mix(arguments.seed, step))
        draws = model.draw(partition.batch_size, generator)
        context_weight = min(1.0, (step + 1) / arguments.context_warmup_steps) if arguments.context_warmup_steps else 1.0
        self.wrapped.train()
        for part in range(partition.accumulation_steps):
            input_ids = next(batches).to(accelerator.device)
            # Dropout, the only other source of randomness.
            torch.manual_seed(_mix(arguments.seed, step, part, accelerator.process_index))
            last = part == partition.accumulation_steps - 1
            with accelerator.no_sync(self.wrapped) if not last else nullcontext():
                with accelerator.autocast():
                    output = self.wrapped(input_ids, draws=draws.slice(*partition.rows(part)), context_weight=context_weight)
                accelerator.backward(output.loss / partition.accumulation_steps)
        if accelerator.device.type == "cpu":
            # On an accelerator this would wait for the device at every step; there it is checked when logging and before saving.
            self._check_finite(output)
        limit = arguments.max_grad_norm if step >= arguments.clip_after_steps else float("inf")
        norm = accelerator.clip_grad_norm_(self.clipped_parameters, limit)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.ema.update(model)
        return output, norm

    def _check_finite(self, output) -> None:
        if bool(torch.isfinite(output.loss)):
            return
        where = output.non_finite_terms() or "the loss is not finite"
        raise FloatingPointError(
            f"Training stopped at step {self.progress.step}: {where}. The checkpoints in {self.run} are intact; resume from the last with "
            "a lower learning rate or earlier clipping."
        )

    # ---- Reporting --------------------------------------------------------------------------------------------------

    def _log(self, output, norm) -> dict[str, str]:
        self._check_finite(output)
        now, step = time.perf_counter(), self.progress.step
        rate = (step - self._logged_step) / max(now - self._clock, 1e-9)
        self._clock, self._logged_step = now, step
        tokens = self.mean_tokens
        means = {name: value.detach().float().mean() for name, value in output.items() if name != "t"}
        means = {name: self.accelerator.reduce(value, "mean").item() for name, value in means.items()}
        values = {f"train/{name}": value for name, value in means.items()}
        values |= {
            "train/nats_per_token": means["bound"] / tokens,
            "train/gradient_norm": float(norm) if norm is not None else float("nan"),
            "train/learning_rate": self.optimizers[0].param_groups[0]["lr"],
            "train/steps_per_second": rate,
            "train/tokens_per_second": rate * self.arguments.batch_size * tokens,
        }
        if self.reports:
            values["train/unknown_share"] = self.reports["train"].unknown_share
        self._record(values)
        return {"loss": f"{means['loss']:.2f}", "nats/token": f"{means['bound'] / tokens:.3f}", "tok/s": f"{values['train/tokens_per_second']:,.0f}"}

    @property
    def mean_tokens(self) -> float:
        """Real tokens per text."""
        return self.reports["train"].mean_tokens if self.reports else float(self.arguments.max_length)

    def _evaluate(self) -> None:
        """The validation bound and a few samples, with the averaged weights."""
        self.ema.swap(self.model)
        try:
            estimate = self.validation_bound(self.arguments.evaluation_texts)
            samples = self.sample(self.arguments.num_samples, seed=self.progress.step) if self.arguments.num_samples else []
            bound = estimate.nats_per_story.value
            is_best = bound < self.progress.best_bound
            if is_best:
                self.progress.best_bound = bound
                if self.progress.step > 0:
                    self._write_pipeline("best")
        finally:
            self.ema.swap(self.model)
        values = {f"validation/{name}": quantity.value for name, quantity in estimate.terms.items()}
        values |= {
            "validation/bound": bound,
            "validation/bound_error": estimate.nats_per_story.monte_carlo_error,
            "validation/nats_per_token": estimate.nats_per_token.value,
            "validation/bits_per_character": estimate.bits_per_character.value,
        }
        self._record(values)
        self._say(
            f"step {self.progress.step}: validation bound {bound:.2f} ± {estimate.nats_per_story.monte_carlo_error:.2f} nats per text, "
            f"{estimate.nats_per_token.value:.3f} per token" + "".join(f"\n    {text}" for text in samples)
        )

    def validation_bound(self, num_texts: int, draws: int | None = None) -> LikelihoodEstimate:
        """The bound of the present weights on the first validation texts."""
        rows = self.validation_data[:num_texts]
        if isinstance(rows, list):
            rows = {key: torch.stack([torch.as_tensor(row[key]) for row in rows]) for key in rows[0]}
        return estimate_likelihood(
            self.model,
            rows["input_ids"].long(),
            rows["num_tokens"],
            rows["num_chars"],
            num_draws=draws or self.arguments.evaluation_draws,
            batch_size=self.arguments.evaluation_batch_size,
            seed=self.arguments.seed,
        )

    def pipeline(self) -> NFDMTextPipeline:
        """A pipeline around the present weights."""
        scheduler = getattr(schedulers, self.arguments.scheduler)(**self.arguments.scheduler_config)
        return NFDMTextPipeline(self.model, self.tokenizer, scheduler)

    def sample(self, num_samples: int, seed: int, progress_bar: bool = False) -> list[str]:
        pipeline = self.pipeline()
        pipeline.set_progress_bar_config(disable=not (progress_bar and self.accelerator.is_local_main_process), desc="sampling")
        return pipeline(
            num_samples,
            self.arguments.sampling_steps,
            batch_size=self.arguments.evaluation_batch_size,
            generator=torch.Generator().manual_seed(seed),
        ).texts

    def _record(self, values: dict[str, float]) -> None:
        if self.arguments.report_to != "none":
            self.accelerator.log(values, step=self.progress.step)
        if self.accelerator.is_main_process:
            with open(self.run / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": self.progress.step, **values}) + "\n")

    def _say(self, message: str) -> None:
        if self.accelerator.is_local_main_process:
            tqdm.write(message, file=sys.stdout)

    # ---- Files ------------------------------------------------------------------------------------------------------

    def _write_run_files(self) -> None:
        self.run.mkdir(parents=True, exist_ok=True)
        (self.run / SETTINGS_FILE).write_text(json.dumps(self.arguments.to_dict(), indent=2) + "\n", encoding="utf-8")
        if self.checkpoint is None:
            self.tokenizer.save_pretrained(self.run / "tokenizer")
        metrics = self.run / "metrics.jsonl"
        if metrics.is_file():
            # What was logged after the checkpoint is logged again.
            lines = metrics.read_text(encoding="utf-8").splitlines()
            resumed = self.checkpoint is not None
            kept = [line for line in lines if resumed and _is_entry(line) and json.loads(line)["step"] <= self.progress.step]
            metrics.write_text("".join(line + "\n" for line in kept), encoding="utf-8")

    def _save_checkpoint(self) -> None:
        def write(folder: Path) -> None:
            self.accelerator.save_state(str(folder))
            if self.accelerator.is_main_process:
                settings = json.dumps(self.arguments.to_dict(), indent=2) + "\n"
                (folder / SETTINGS_FILE).write_text(settings, encoding="utf-8")

        target = self.run / f"checkpoint-{self.progress.step:08d}"
        write_whole(target, write, self.accelerator.is_main_process, self.accelerator.wait_for_everyone)
        if self.accelerator.is_main_process:
            remove_old(self.run, self.arguments.checkpoints_total_limit)

    def _write_pipeline(self, name: str) -> None:
        if self.accelerator.is_main_process:
            write_whole(self.run / name, lambda folder: self.pipeline().save_pretrained(folder))

    # ---- Signals ----------------------------------------------------------------------------------------------------

    def _note_signal(self, number: int, frame) -> None:
        if self._stop_signal is not None:
            raise KeyboardInterrupt
        self._stop_signal = number

    def _stop_requested(self) -> bool:
        """Whether any process got a signal: all stop at the same step."""
        mine = self._stop_signal is not None
        if self.accelerator.num_processes == 1:
            return mine
        flag = torch.tensor(float(mine), device=self.accelerator.device)
        return self.accelerator.reduce(flag, "sum").item() > 0


def train(arguments: TrainingArguments, name: str = "run") -> dict | None:
    """Train as the arguments say; returns the summary that is also printed and saved, or `None` if stopped early."""
    return Trainer(arguments, name).train()


def _mix(*numbers: int) -> int:
    """One seed out of several numbers, far apart for neighbouring ones (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return state >> 1


def _is_entry(line: str) -> bool:
    """A line may be cut short where a run was killed."""
    try:
        return "step" in json.loads(line)
    except json.JSONDecodeError:
        return False
