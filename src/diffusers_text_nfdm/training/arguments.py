"""All settings of a training run: one dataclass, from the command line, a YAML file, or Python."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from transformers import PreTrainedConfig

from .. import schedulers
from ..baseline import AutoregressiveConfig, MaskedDiffusionConfig
from ..checks import check_one_of, check_positive
from ..clocks import make_clock
from ..conditions import check_condition_length
from ..metrics.sampling import ANCESTRAL, DIFFUSION, MASKED, Sampling
from ..models import DiffusionLMConfig, MuLANConfig, NFDMConfig
from ..subwords import SMALLEST_VOCABULARY
from .baseline_checks import check_baseline
from .known_tokens import KINDS
from .recipe_files import DEFAULT_RECIPE, read_config, scalar, suggest


CONFIGS: dict[str, type[PreTrainedConfig]] = {
    config.model_type: config
    for config in (NFDMConfig, MuLANConfig, DiffusionLMConfig, AutoregressiveConfig, MaskedDiffusionConfig)
}
# Datasets of recipes that are not distributed with this package, and what to do.
NOT_HERE = {
    "rocstories": "The recipe is for ROCStories, which is not distributed with this package. Ask for a copy at "
    "https://cs.rochester.edu/nlp/rocstories and pass it: `--dataset train.jsonl --validation_file valid.jsonl` (or "
    "any other dataset).",
    "e2e": "The recipe is for the E2E data, which is not distributed with this package. Take it from "
    "https://github.com/tuetschek/e2e-dataset and pass a file of it: `--dataset devset.csv` (or any other with the "
    "columns mr and ref).",
}
# How baselines are sampled from.
KINDS_OF_BASELINES = {AutoregressiveConfig.model_type: ANCESTRAL, MaskedDiffusionConfig.model_type: MASKED}
SCHEDULERS = tuple(scheduler.__name__ for scheduler in schedulers.SCHEDULERS)
# Settings that are shares.
MIXTURES = ("clocks", "jump_clocks", "lattice_clocks", "known_texts")
TRACKERS = ("none", "tensorboard", "wandb", "trackio", "all")
# What may differ between a run and its continuation: where and how it runs, not what it computes.
FREE_ON_RESUME = (
    "output_dir",
    "resume",
    "checkpoint_every",
    "checkpoints_total_limit",
    "gradient_accumulation_steps",
    "log_every",
    "num_samples",
    "final_samples",
    "sampling_steps",
    "scheduler",
    "scheduler_config",
    "frontier",
    "frontier_samples",
    "report_to",
    "push_to_hub",
    "hub_model_id",
    "hub_private",
    "stop_after_steps",
    "compile",
    "gradient_checkpointing",
    "dataloader_workers",
    "save_plots",
)
# What may differ besides, in answer to a loss that diverged: from there on it is another run.
CHANGEABLE_ON_RESUME = (
    "learning_rate",
    "muon_learning_rate",
    "time_sampler_learning_rate",
    "max_grad_norm",
    "clip_after_steps",
    "link_steps",
)


def setting(default: Any, group: str, help: str) -> Any:
    metadata = {"group": group, "help": help}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


# Fields of a model's configuration that have settings of their own.
FROM_SETTINGS = {"vocab_size", "max_length", "condition_length", "condition_dropout", "copied_slots"}


@dataclass
class TrainingArguments:
    """Settings of a run, grouped by purpose. `--help` shows them all."""

    model_type: str = setting("nfdm", "model", "nfdm, mulan, diffusion_lm, or a baseline: autoregressive, masked")
    model_name_or_path: str | None = setting(
        None, "model", "folder or Hub name of a pipeline whose weights and tokenizer training starts from"
    )
    model_config: dict = setting(
        {}, "model", "fields of the model's configuration, as key=value; the rest keep their defaults"
    )

    cooccurrence_embeddings: bool = setting(
        False, "model", "start the embeddings from the words' neighbours in the training texts instead of at random"
    )
    cooccurrence_rows: bool = setting(
        False, "model", "start the rows by which a two-stream predictor reads and predicts tokens in the same way"
    )

    dataset: str = setting(
        "stories", "data", "'stories' (embedded), a local file or folder, or the name of a Hub dataset"
    )
    dataset_config: str | None = setting(None, "data", "configuration of a Hub dataset")
    validation_file: str | None = setting(
        None, "data", "local validation file; otherwise a share of the data is held out"
    )
    validation_fraction: float = setting(
        0.05, "data", "share of the texts, or of the conditions, that is held out where there is no validation split"
    )
    text_column: str = setting("text", "data", "column that holds the text")
    condition_column: str | None = setting(
        None, "data", "column that holds a condition: attributes, a question, a record; by default there is none"
    )
    condition_length: int = setting(0, "data", "places for the tokens of a condition, between START and the text")
    copied_slots: list = setting(
        [], "data", "slots of conditions like name[Aromi] whose values are copied to the text, whatever they are"
    )
    streaming: bool = setting(False, "data", "read a Hub dataset while training instead of downloading it")
    tokenizer: str | None = setting(
        None,
        "data",
        "'subword' for byte-level BPE trained from the data, or folder or name of a tokenizer; otherwise a word "
        "tokenizer is built from the data",
    )
    vocab_size: int = setting(4000, "data", "tokens of a 'subword' tokenizer, 260 at least")
    min_word_count: int = setting(10, "data", "words seen more often than this get an id of their own")
    grow_vocabulary: bool = setting(
        False, "data", "add words of the data to the word tokenizer of a `model_name_or_path`, which lacks them"
    )
    max_length: int = setting(64, "data", "positions of every text, START, END and padding included")
    dataloader_workers: int = setting(0, "data", "processes that read ahead")

    max_steps: int = setting(800_000, "optimisation", "optimizer steps")
    batch_size: int = setting(
        512, "optimisation", "texts of one optimizer step, over all processes and accumulation steps"
    )
    gradient_accumulation_steps: int = setting(
        1, "optimisation", "parts that each process makes of its share of the batch"
    )
    learning_rate: float = setting(1e-4, "optimisation", "of Adam")
    adam_beta2: float = setting(0.999, "optimisation", "of Adam")
    use_muon: bool = setting(
        False, "optimisation", "Muon for the matrices of the transformer trunks, Adam for the rest"
    )
    muon_learning_rate: float = setting(2e-3, "optimisation", "of Muon")
    forward_learning_rate: float | None = setting(
        None, "optimisation", "of Adam for the forward process, then without Muon; by default that of everything else"
    )
    time_sampler_learning_rate: float = setting(0.01, "optimisation", "of Adam for the learned time buckets")
    muon_momentum: float = setting(0.95, "optimisation", "of Muon")
    warmup_steps: int = setting(0, "optimisation", "steps of linear growth of the learning rates")
    decay_steps: int | None = setting(
        None, "optimisation", "steps of their linear fall to 0 at the end; by default all after the warm-up"
    )
    max_grad_norm: float = setting(1.5, "optimisation", "gradients are clipped to this norm")
    clip_after_steps: int = setting(10_000, "optimisation", "step at which clipping begins")
    ema_decay: float = setting(
        0.9999, "optimisation", "decay of the averaged weights, which are those evaluated and released"
    )
    cross_entropy_steps: int = setting(
        0,
        "optimisation",
        "steps on the predictor's cross-entropy before each step on the bound, for categorical prediction",
    )
    clocks: dict = setting(
        {},
        "optimisation",
        "mixture of the clocks that training follows, as clock=share, such as shared=0.5 blocks:8=0.5; a share "
        "of 0 takes one out of the recipe's; by default the model's own",
    )
    known_texts: dict = setting(
        {},
        "optimisation",
        "shares of the texts of which steps on the cross-entropy give some tokens, as kind=share, of prefix, span and "
        "scattered",
    )
    condition_dropout: float = setting(
        0.0, "optimisation", "share of the texts that are trained without their condition, for guidance"
    )
    growth_steps: int = setting(
        0,
        "optimisation",
        "steps over which the largest global time of steps on the cross-entropy grows to 1: few tokens are in motion "
        "first",
    )
    first_largest_time: float = setting(0.2, "optimisation", "largest global time at the beginning of that growth")
    next_token_weight: float = setting(
        0.0, "optimisation", "weight of the clean stream's next-token loss in steps on texts in blocks"
    )
    next_token_steps: int = setting(
        0, "optimisation", "steps at the beginning that train the clean stream alone, on its next-token loss"
    )
    jump_clocks: dict = setting(
        {},
        "optimisation",
        "mixture of the clocks over whose windows steps on jumps go, as clock=share, for a model with jumps",
    )
    jump_share: float = setting(
        0.5, "optimisation", "share of the steps that are on jumps, where there are jump_clocks"
    )
    lattice_clocks: dict = setting(
        {},
        "optimisation",
        "mixture of the clocks of steps on lattices, as clock=share, for a model with lattice_candidates",
    )
    lattice_share: float = setting(
        0.5, "optimisation", "share of the steps that are on lattices, where there are lattice_clocks"
    )
    prototype_steps: int = setting(
        0, "optimisation", "steps that fit the prototypes of a model with num_prototypes before all others"
    )
    link_steps: int = setting(
        0, "optimisation", "steps after all others that fit the link of tokens that are drafted side by side"
    )
    straightness_weight: float = setting(
        0.0, "optimisation", "weight of the curvature of NFDM's paths from text to noise in steps on the bound"
    )
    context_warmup_steps: int = setting(
        0, "optimisation", "steps over which the weight of MuLAN's context divergence grows to 1"
    )
    mixed_precision: str | None = setting(
        None,
        "optimisation",
        "no, fp16, bf16, or auto: bf16 where the device multiplies it; by default what `accelerate launch` was told",
    )
    gradient_checkpointing: bool = setting(
        False, "optimisation", "recompute the predictor's activations to save memory"
    )
    compile: bool = setting(
        False, "optimisation", "torch.compile the blocks of predictor and forward network, where there is a compiler"
    )
    seed: int = setting(0, "optimisation", "seed of everything random")

    output_dir: str | None = setting(None, "run", "folder of the run; by default a fresh one under runs/")
    resume: str | None = setting(None, "run", "'latest', or the folder of a checkpoint")
    checkpoint_every: int = setting(10_000, "run", "steps between checkpoints")
    checkpoints_total_limit: int | None = setting(3, "run", "checkpoints that are kept")
    stop_after_steps: int | None = setting(
        None, "run", "stop, with a checkpoint, after this many steps of this session"
    )

    log_every: int = setting(100, "reporting", "steps between log entries")
    evaluate_every: int = setting(10_000, "reporting", "steps between evaluations on the validation texts")
    evaluation_texts: int = setting(
        512, "reporting", "validation texts of an evaluation; the last one uses twice as many"
    )
    evaluation_draws: int = setting(
        4, "reporting", "draws of time and noise per text, an even number, for a diffusion model"
    )
    evaluation_batch_size: int = setting(64, "reporting", "texts at a time in evaluation and sampling")
    num_samples: int = setting(4, "reporting", "texts that are sampled and shown at every evaluation")
    final_samples: int = setting(200, "reporting", "texts that are sampled at the end")
    sampling_steps: int = setting(64, "reporting", "steps of the sampler of a diffusion model")
    scheduler: str = setting("MarkovChainScheduler", "reporting", "scheduler that is released with a diffusion model")
    scheduler_config: dict = setting({}, "reporting", "its settings, as key=value")
    frontier: dict = setting(
        {},
        "reporting",
        "samplings to compare at the end, as name=sampling, such as few=star:16:clock=ramp:4",
    )
    frontier_samples: int = setting(200, "reporting", "texts of each of them")
    report_to: str = setting("none", "reporting", f"tracker: {', '.join(TRACKERS)}")
    save_plots: bool = setting(True, "reporting", "save plots as PNG at the end")

    push_to_hub: bool = setting(False, "hub", "push the pipeline with its card at the end")
    hub_model_id: str | None = setting(None, "hub", "repository, by default the name of the output folder")
    hub_private: bool = setting(False, "hub", "make the repository private")

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            setattr(self, f.name, _coerce(f.name, getattr(self, f.name), setting_types()[f.name]))
        check_one_of("model_type", self.model_type, tuple(CONFIGS))
        self._check_model_config()
        try:
            self._check()
        except (TypeError, AttributeError) as error:
            raise ValueError(f"A setting holds a value of a wrong kind: {error}.") from error

    def _check(self) -> None:
        if self.mixed_precision is not None:
            check_one_of("mixed_precision", self.mixed_precision, ("no", "fp16", "bf16", "auto"))
        check_one_of("report_to", self.report_to, TRACKERS)
        check_one_of("scheduler", self.scheduler, SCHEDULERS)
        positive = (
            "max_steps batch_size gradient_accumulation_steps learning_rate muon_learning_rate "
            "time_sampler_learning_rate max_grad_norm checkpoint_every frontier_samples log_every evaluate_every "
            "evaluation_texts evaluation_draws evaluation_batch_size sampling_steps max_length final_samples"
        ).split()
        if self.forward_learning_rate is not None:
            positive.append("forward_learning_rate")
        for name in positive:
            if not getattr(self, name) > 0:
                raise ValueError(f"`{name}` is {getattr(self, name)!r}; it must be above 0.")
        for name in (
            "warmup_steps",
            "clip_after_steps",
            "cross_entropy_steps",
            "growth_steps",
            "next_token_steps",
            "prototype_steps",
            "link_steps",
            "straightness_weight",
            "context_warmup_steps",
            "min_word_count",
            "num_samples",
            "dataloader_workers",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` is {getattr(self, name)!r}; it must be at least 0.")
        for name in ("ema_decay", "adam_beta2", "muon_momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`{name}` is {getattr(self, name)!r}; it must be in [0, 1).")
        masked_diffusion = self.model_type == MaskedDiffusionConfig.model_type
        prediction_type = self.model_config.get("prediction_type", "categorical" if masked_diffusion else "embedding")
        if not 0 < self.first_largest_time <= 1:
            raise ValueError(f"`first_largest_time` is {self.first_largest_time!r}; it must be in (0, 1].")
        if self.growth_steps and not self.cross_entropy_steps:
            raise ValueError(f"`growth_steps` is {self.growth_steps}; it needs `cross_entropy_steps` above 0.")
        two_stream = masked_diffusion or self.model_config.get("predictor") == "two_stream"
        if self.next_token_weight and not (two_stream and prediction_type == "categorical"):
            raise ValueError(
                f"`next_token_weight` is {self.next_token_weight}; only the clean stream of 'two_stream' with "
                "`prediction_type` 'categorical' predicts the next token."
            )
        if self.prototype_steps and (self.streaming or not self.model_config.get("num_prototypes")):
            raise ValueError(
                f"`prototype_steps` is {self.prototype_steps}; it needs `num_prototypes` in the `model_config`, and "
                "texts that are at hand, not `streaming`."
            )
        if self.model_config.get("token_link"):
            raise ValueError(
                "`token_link` is True in the `model_config`; a link is fitted after all else, by `link_steps`, which "
                "sets it."
            )
        drafts = two_stream and prediction_type == "categorical" and not masked_diffusion
        if self.link_steps and (self.streaming or not drafts):
            raise ValueError(
                f"`link_steps` is {self.link_steps}; it needs `predictor` 'two_stream' with `prediction_type` "
                "'categorical', and texts that are at hand, not `streaming`."
            )
        if self.next_token_steps and not self.next_token_weight:
            raise ValueError(f"`next_token_steps` is {self.next_token_steps}; it needs a `next_token_weight` above 0.")
        if self.straightness_weight and self.model_type != NFDMConfig.model_type:
            raise ValueError(
                f"`straightness_weight` is {self.straightness_weight} with `model_type` {self.model_type!r}; only "
                "'nfdm' learns paths that can be straight."
            )
        self._check_clocks()
        self._check_condition()
        check_baseline(self)
        self._check_known_texts()
        if self.cross_entropy_steps and prediction_type != "categorical":
            raise ValueError(
                f"`cross_entropy_steps` is {self.cross_entropy_steps} with `prediction_type` {prediction_type!r}; "
                "only 'categorical' has "
                "logits to take it of."
            )
        if self.scheduler_config.get("prediction") == "tokens" and prediction_type != "categorical":
            raise ValueError(
                f"`scheduler_config` has `prediction` 'tokens' with `prediction_type` {prediction_type!r}; only "
                "'categorical' has tokens to draw."
            )
        if self.model_name_or_path is not None:
            for name in ("tokenizer", "cooccurrence_embeddings", "cooccurrence_rows"):
                if getattr(self, name):
                    raise ValueError(
                        f"`{name}` is {getattr(self, name)!r}, but a run from `model_name_or_path` has those of the "
                        "checkpoint; leave it out."
                    )
        elif self.grow_vocabulary:
            raise ValueError("`grow_vocabulary` is for a run from `model_name_or_path`, whose vocabulary can grow.")
        if self.grow_vocabulary and self.streaming:
            raise ValueError("`grow_vocabulary` needs the texts before training, which a stream does not have.")
        if self.vocab_size < SMALLEST_VOCABULARY:
            raise ValueError(f"`vocab_size` is {self.vocab_size}; it must be at least {SMALLEST_VOCABULARY}.")
        for name in ("cooccurrence_embeddings", "cooccurrence_rows"):
            if self.streaming and getattr(self, name):
                raise ValueError(f"`{name}` needs the texts before training, which a stream does not have.")
        if self.cooccurrence_rows and not (two_stream and prediction_type == "categorical"):
            raise ValueError(
                "`cooccurrence_rows` is for `predictor` 'two_stream' with `prediction_type` 'categorical'."
            )
        if self.evaluation_draws % 2:
            raise ValueError(f"`evaluation_draws` is {self.evaluation_draws}; it must be an even number.")
        if self.checkpoints_total_limit is not None and self.checkpoints_total_limit < 1:
            raise ValueError(
                f"`checkpoints_total_limit` is {self.checkpoints_total_limit}; it must be at least 1, or null for no "
                "limit."
            )

    def _check_model_config(self) -> None:
        config = CONFIGS[self.model_type]
        known = {f.name: str(f.type) for f in dataclasses.fields(config) if f.name not in FROM_SETTINGS}
        for key, value in self.model_config.items():
            if key not in known:
                raise ValueError(
                    f"`model_config` has {key!r}, which {config.__name__} does not have{suggest(key, known)}"
                )
            # What was meant for a number and is none comes as a string.
            if isinstance(value, str) and not any(kind in known[key] for kind in ("str", "Literal", "Any", "dtype")):
                raise ValueError(f"`model_config` has {key} {value!r}; it must be of type {known[key]}.")

    @property
    def min_sampling_steps(self) -> int:
        """Steps that sampling takes at least: one for each block of a text."""
        clock = make_clock(self.model_config.get("clock", "shared"), self.max_length)
        return self.max_length // (self.model_config.get("block_size") or clock.block_size or self.max_length)

    def _check_clocks(self) -> None:
        for name in ("clocks", "jump_clocks", "lattice_clocks"):
            mixture = getattr(self, name)
            for clock, share in mixture.items():
                make_clock(clock, self.max_length)
                check_positive(**{f"{name}[{clock}]": share})
            if mixture and abs(sum(mixture.values()) - 1) > 1e-6:
                raise ValueError(f"`{name}` is {mixture}; the shares must add up to 1, not {sum(mixture.values()):g}.")
        for name, sampling in self.frontier.items():
            if not isinstance(sampling, str):
                raise ValueError(f"`frontier[{name}]` is {sampling!r}; it must be a sampling such as star:16.")
            # A mistake is found now, not after the training.
            kind = KINDS_OF_BASELINES.get(self.model_type, DIFFUSION)
            if Sampling.parse(sampling).kind != kind:
                raise ValueError(
                    f"`frontier[{name}]` is {sampling!r}, which is no way to sample from a model of `model_type` "
                    f"{self.model_type!r}."
                )
        needs = {
            "jumps": {
                "jump_clocks": bool(self.jump_clocks),
                "scheduler": self.scheduler == "JumpScheduler",
                "frontier": any("jump" in sampling for sampling in self.frontier.values()),
            },
            "joint_decoder": {
                "scheduler_config": self.scheduler_config.get("finish_time") is not None,
                "frontier": any("finish_time" in sampling for sampling in self.frontier.values()),
            },
        }
        for part, users in needs.items():
            for name in (name for name, needed in users.items() if needed and not self.model_config.get(part)):
                raise ValueError(
                    f"`{name}` is {getattr(self, name)!r}; the `model_config` needs `{part}: true` for it."
                )
        if self.lattice_clocks and not self.model_config.get("lattice_candidates"):
            raise ValueError(
                f"`lattice_clocks` is {self.lattice_clocks!r}; the `model_config` needs `lattice_candidates` for it."
            )
        for name in ("jump_share", "lattice_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"`{name}` is {getattr(self, name)!r}; it must be in (0, 1].")
        if self.jump_clocks and self.lattice_clocks and self.jump_share + self.lattice_share > 1:
            raise ValueError(
                f"`jump_share` is {self.jump_share} and `lattice_share` {self.lattice_share}; together they must "
                "be at most 1."
            )
        if self.model_type != AutoregressiveConfig.model_type and self.sampling_steps < self.min_sampling_steps:
            along = f"along the clock {self.model_config['clock']!r}" if "clock" in self.model_config else "in blocks"
            raise ValueError(
                f"`sampling_steps` is {self.sampling_steps}; {along} texts take at least {self.min_sampling_steps}."
            )

    def _check_condition(self) -> None:
        check_condition_length(self.condition_length, self.max_length)
        if (self.condition_column is None) != (self.condition_length == 0):
            raise ValueError(
                f"`condition_column` is {self.condition_column!r} with `condition_length` {self.condition_length}; a "
                "condition needs both: its column, and places for its tokens."
            )
        if not 0 <= self.condition_dropout < 1:
            raise ValueError(f"`condition_dropout` is {self.condition_dropout!r}; it must be in [0, 1).")
        for name in ("condition_dropout", "copied_slots"):
            if getattr(self, name) and self.condition_column is None:
                raise ValueError(f"`{name}` is {getattr(self, name)!r}; it needs a `condition_column`.")

    def _check_known_texts(self) -> None:
        for kind, share in self.known_texts.items():
            if kind not in KINDS:
                raise ValueError(f"`known_texts` has {kind!r}; a kind must be one of {', '.join(map(repr, KINDS))}.")
            check_positive(**{f"known_texts[{kind}]": share})
        total = sum(self.known_texts.values())
        if total > 1 + 1e-6:
            raise ValueError(
                f"`known_texts` is {self.known_texts}; the shares must add up to at most 1, not {total:g}."
            )
        if self.known_texts and not self.cross_entropy_steps:
            raise ValueError(
                f"`known_texts` is {self.known_texts}; it needs `cross_entropy_steps` above 0, which give tokens."
            )

    def check_data(self) -> None:
        """Whether the texts can be those of the dataset that is meant."""
        if self.dataset in NOT_HERE and not Path(self.dataset).exists():
            raise ValueError(NOT_HERE[self.dataset])
        if self.validation_file is not None and not Path(self.dataset).expanduser().is_file():
            raise ValueError(
                f"`validation_file` is {self.validation_file!r}, but `dataset` is {self.dataset!r}, which is no "
                "local file; the two go together."
            )

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_yaml(self) -> str:
        """The whole configuration, grouped, as a YAML file that `--config` reads."""
        lines, group = [], None
        for f in dataclasses.fields(self):
            if f.metadata["group"] != group:
                group = f.metadata["group"]
                lines += ["", f"# {group}"]
            lines.append(yaml.safe_dump({f.name: getattr(self, f.name)}, sort_keys=False).rstrip())
        return "\n".join(lines).strip() + "\n"

    def differences(self, other: dict[str, Any], free: Collection[str] = FREE_ON_RESUME) -> list[str]:
        """Settings in which a saved run differs from this one, apart from those that are free to."""
        mine = self.to_dict()
        return [
            f"{key}: {other.get(key)!r} in the checkpoint, {mine[key]!r} here"
            for key in mine
            if key not in free and mine[key] != other.get(key)
        ]

    @classmethod
    def from_config(cls, name_or_path: str = DEFAULT_RECIPE, **overrides: Any) -> TrainingArguments:
        """The settings of a recipe or a YAML file, some of them overridden. A share of 0 leaves a mixture."""
        values = read_config(name_or_path, [f.name for f in dataclasses.fields(cls)])
        for key, value in overrides.items():
            if isinstance(value, dict):
                value = {**values.get(key, {}), **value}
                if key in MIXTURES:
                    value = {part: share for part, share in value.items() if share != 0}
            values[key] = value
        return cls(**values)


_TYPES: dict[str, Any] = {}


def setting_types() -> dict[str, Any]:
    if not _TYPES:
        _TYPES.update(typing.get_type_hints(TrainingArguments))
    return _TYPES


def _coerce(name: str, value: Any, kind: Any) -> Any:
    """The value as its declared type; a ValueError where it is none."""
    if isinstance(kind, types.UnionType):
        if value is None or value in ("null", "none", "None"):
            return None
        kind = next(option for option in typing.get_args(kind) if option is not type(None))
    if kind in (int, float) and isinstance(value, str):
        value = scalar(value)
    if kind is int and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ValueError(f"`{name}` is {value!r}; it must be of type {kind.__name__}.")
    return value
