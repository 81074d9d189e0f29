"""Ancestral sampling from the autoregressive baseline."""

from __future__ import annotations

import torch
from diffusers import DiffusionPipeline
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..checks import check_one_of
from ..conditions import absent_placeholders
from ..devices import wide_uniforms, widened
from ..models import evaluation_mode
from ..models.token_choice import check_cuts, complete_choice, draw_tokens, exclude
from ..pipelines.hub import HubCheckpointMixin
from ..pipelines.pipeline_nfdm_text import NFDMTextPipelineOutput
from ..pipelines.prompts import write_prompts
from ..pipelines.samples import check_given, check_samples, count_rows, decode_texts, sample_generators
from ..pipelines.token_writing import begins
from .modeling import AutoregressiveModel


class AutoregressivePipeline(HubCheckpointMixin, DiffusionPipeline):
    """Generates texts token by token: `x_i ~ p(x_i | x_<i)`, with the keys and values of earlier tokens kept.

    Args:
        model: an `AutoregressiveModel`.
        tokenizer: the tokenizer that the model was trained with.

    ```python
    pipe = AutoregressivePipeline.from_pretrained("user/autoregressive-rocstories")
    print(pipe(num_samples=4).texts)
    ```
    """

    def __init__(self, model: AutoregressiveModel, tokenizer: PreTrainedTokenizerBase):
        super().__init__()
        self.register_modules(model=model, tokenizer=tokenizer)

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str] | None = None,
        condition: str | list[str] | None = None,
        num_samples: int | None = None,
        input_ids: Tensor | None = None,
        known: Tensor | None = None,
        batch_size: int = 64,
        generator: torch.Generator | list[torch.Generator] | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        contrast: float | None = None,
        output_type: str = "text",
        return_dict: bool = True,
    ) -> NFDMTextPipelineOutput | tuple:
        """Generate texts.

        Args:
            prompt: the beginning of a text, or of each.
            condition: what a text is to obey, or each, for a model that was trained with conditions.
            num_samples: number of texts, 1 unless prompts or `input_ids` say how many.
            input_ids, known: token ids `(num_samples, max_length)` and which of them are given, from START on.
            batch_size: texts made at a time. A sample does not depend on it.
            generator: one generator, from which one per sample is derived, or a list with one per sample.
            temperature, top_k, top_p, min_p, contrast: how tokens are drawn from the logits, see
                `token_probabilities`; by default as the model has them, at temperature 1. At 0 the most probable
                ones are taken.
            output_type: `"text"` or `"seq"` (token ids alone).
        """
        config = self.model.config
        if prompt is not None or condition is not None or (config.condition_length and input_ids is None):
            options = {
                "batch_size": batch_size, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
                "contrast": contrast, "output_type": output_type,
            }  # fmt: skip
            output = write_prompts(self, prompt, condition, num_samples, generator, {}, options)
            return output if return_dict else output.to_tuple()
        if num_samples is None:
            num_samples = 1 if input_ids is None else count_rows("input_ids", input_ids)
        check_samples(num_samples, batch_size, generator)
        choice = {
            "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "contrast": contrast
        }  # fmt: skip
        choice = {"temperature": 1.0, **{name: value for name, value in choice.items() if value is not None}}
        check_cuts(**choice)
        choice = complete_choice(choice, self.model)
        check_one_of("output_type", output_type, ("text", "seq"))
        if check_given(num_samples, input_ids, known):
            if not begins(known).all():
                raise ValueError(
                    "An autoregressive model continues a beginning; the `prompt`, or `known`, has tokens to write "
                    "before given ones."
                )
            self.model.check_rows(input_ids)
            if input_ids.shape[1] != config.max_length:
                raise ValueError(
                    f"`input_ids` has shape {tuple(input_ids.shape)}; it must be (num_samples, {config.max_length})."
                )
        generators = sample_generators(num_samples, generator)
        starts = range(0, num_samples, batch_size)
        sequences = []
        with (
            evaluation_mode(self.model),
            self.progress_bar(total=len(starts) * (self.model.config.max_length - 1)) as bar,
        ):
            for start in starts:
                rows = slice(start, start + batch_size)
                given = [None if x is None else x[rows].to(self._execution_device) for x in (input_ids, known)]
                sequences.append(self._generate(generators[rows], choice, bar, *given))
        self.maybe_free_model_hooks()
        sequences = torch.cat(sequences).cpu()
        ended = (sequences == config.eos_token_id).cumsum(-1) > 0
        written = ~ended[:, :-1] if known is None else ~ended[:, :-1] & ~known[:, 1:].cpu()
        # One for each token up to END.
        calls = written.sum(-1)
        output = NFDMTextPipelineOutput(
            texts=decode_texts(sequences, self.tokenizer, config.condition_length) if output_type == "text" else None,
            sequences=sequences,
            num_function_evaluations=int(calls.max()),
            calls=calls,
        )
        return output if return_dict else output.to_tuple()

    def _generate(
        self,
        generators: list[torch.Generator],
        choice: dict,
        bar,
        given: Tensor | None = None,
        known: Tensor | None = None,
    ) -> Tensor:
        """One batch of sequences `(batch, max_length)`."""
        model, config, device = self.model, self.model.config, self._execution_device
        positions = config.max_length - 1
        # All numbers of a sample beforehand: how far the others of its batch get does not matter.
        uniforms = wide_uniforms(generators, positions, device)
        sequences = torch.full((len(generators), config.max_length), config.pad_token_id, device=device)
        sequences[:, 0] = config.bos_token_id
        ended, cache = torch.zeros(len(generators), dtype=torch.bool, device=device), None
        # What is given in all texts is read in one call.
        begun, read, excluded = 1, 0, None
        if known is not None:
            excluded = absent_placeholders(given, known, self.tokenizer, config)
            sequences, begun = torch.where(known, given, sequences), int(known.sum(-1).min())
        for calls, position in enumerate(range(begun - 1, positions), 1):
            logits, cache = model.token_logits(sequences[:, read : position + 1], cache, use_cache=True)
            read = position + 1
            logits = exclude(widened(logits[:, -1:]), excluded)[:, 0]
            tokens = draw_tokens(logits, uniforms[:, position], **choice)
            if known is not None:
                tokens = torch.where(known[:, position + 1], given[:, position + 1], tokens)
            sequences[:, position + 1] = tokens.masked_fill(ended, config.pad_token_id)
            ended |= tokens == config.eos_token_id
            bar.update()
            if ended.all():
                bar.update(positions - calls)
                break
        return sequences
