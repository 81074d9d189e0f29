"""Sampling from masked diffusion: all tokens are hidden at first, and shown a few at a time."""

from __future__ import annotations

import warnings

import torch
from diffusers import DiffusionPipeline
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..checks import check_integers, check_one_of, is_number
from ..conditions import absent_placeholders
from ..devices import wide_uniforms, widened
from ..models import evaluation_mode
from ..models.token_choice import check_cuts, complete_choice, draw_tokens
from ..pipelines.hub import HubCheckpointMixin
from ..pipelines.pipeline_nfdm_text import NFDMTextPipelineOutput
from ..pipelines.prompts import write_prompts
from ..pipelines.samples import check_given, check_samples, count_rows, decode_texts, sample_generators
from .masked_modeling import MaskedDiffusionModel


REMASKING = ("confidence", "random")


def steps_of_blocks(num_steps: int, num_blocks: int) -> list[int]:
    """The steps, shared out evenly to the blocks of a text."""
    return [num_steps // num_blocks + (block < num_steps % num_blocks) for block in range(num_blocks)]


class MaskedDiffusionPipeline(HubCheckpointMixin, DiffusionPipeline):
    """Generates texts: in every step tokens are drawn for all hidden positions, some are kept and the rest stays
    hidden.

    Of n tokens of a block and K steps for it, step k ends with `⌊n k/K⌋` of them shown.

    Args:
        model: a `MaskedDiffusionModel`.
        tokenizer: the tokenizer that the model was trained with.

    ```python
    pipe = MaskedDiffusionPipeline.from_pretrained("user/masked-rocstories")
    print(pipe(num_samples=4, num_inference_steps=64).texts)
    ```
    """

    def __init__(self, model: MaskedDiffusionModel, tokenizer: PreTrainedTokenizerBase):
        super().__init__()
        self.register_modules(model=model, tokenizer=tokenizer)

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str] | None = None,
        condition: str | list[str] | None = None,
        num_samples: int | None = None,
        num_inference_steps: int = 64,
        block_size: int | None = None,
        remasking: str = "confidence",
        gen_length: int | None = None,
        max_gap_length: int = 16,
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
            prompt, condition, gen_length, max_gap_length: see `NFDMTextPipeline`.
            num_samples: number of texts, 1 unless prompts or `input_ids` say how many.
            num_inference_steps: steps of a text, shared out to its blocks. A step that shows no token, of more steps
                than there are tokens, is no call of the model.
            block_size: tokens of a block, instead of the model's own; `max_length` is the whole text.
            remasking: which tokens are kept: `"confidence"`, those that the model is surest of, or `"random"` ones,
                ancestral sampling of MDLM.
            input_ids, known: token ids `(num_samples, max_length)` and which of them are given; the others are
                written, and those that are known come back as they are.
            batch_size: texts made at a time. A sample does not depend on it.
            generator: one generator, from which one per sample is derived, or a list with one per sample.
            temperature, top_k, top_p, min_p, contrast: how tokens are drawn from the logits, see
                `token_probabilities`; by default as the model has them, at temperature 1. At 0 the most probable
                ones are taken.
            output_type: `"text"` or `"seq"` (token ids alone).
        """
        config = self.model.config
        if prompt is not None or condition is not None or (config.condition_length and input_ids is None):
            lengths = {"gen_length": gen_length, "max_gap_length": max_gap_length}
            options = {
                "num_inference_steps": num_inference_steps, "block_size": block_size, "remasking": remasking,
                "batch_size": batch_size, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
                "contrast": contrast, "output_type": output_type,
            }  # fmt: skip
            output = write_prompts(self, prompt, condition, num_samples, generator, lengths, options)
            return output if return_dict else output.to_tuple()
        check_integers(1, max_gap_length=max_gap_length)
        if gen_length is not None:
            raise ValueError("`gen_length` needs a `prompt`, which it continues.")
        if num_samples is None:
            num_samples = 1 if input_ids is None else count_rows("input_ids", input_ids)
        model = self.model
        check_samples(num_samples, batch_size, generator)
        check_one_of("remasking", remasking, REMASKING)
        choice = {
            "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "contrast": contrast
        }  # fmt: skip
        choice = {"temperature": 1.0, **{name: value for name, value in choice.items() if value is not None}}
        check_cuts(**choice)
        choice = complete_choice(choice, self.model)
        check_one_of("output_type", output_type, ("text", "seq"))
        if check_given(num_samples, input_ids, known):
            model.check_inputs(input_ids, known)
        size = model.block_size(block_size) or model.config.max_length
        steps = self._steps(num_inference_steps, size)
        trained = model.config.trained_block_sizes
        if trained and size not in [one or model.config.max_length for one in trained]:
            warnings.warn(
                f"The model was not trained on blocks of {size} tokens, with which it may be worse. It was trained on "
                f"{', '.join('the whole text' if one is None else f'blocks of {one}' for one in trained)}.",
                stacklevel=2,
            )
        generators = sample_generators(num_samples, generator)
        starts = range(0, num_samples, batch_size)
        sequences, calls = [], []
        with evaluation_mode(model), self.progress_bar(total=len(starts) * num_inference_steps) as bar:
            for start in starts:
                rows = slice(start, start + batch_size)
                text, unknown, excluded = self._start(
                    len(generators[rows]), *(None if x is None else x[rows] for x in (input_ids, known))
                )
                calls.append(
                    self._write(text, unknown, excluded, generators[rows], size, steps, remasking, choice, bar)
                )
                sequences.append(text)
        self.maybe_free_model_hooks()
        sequences, calls = torch.cat(sequences).cpu(), torch.cat(calls).cpu()
        output = NFDMTextPipelineOutput(
            texts=decode_texts(sequences, self.tokenizer, config.condition_length) if output_type == "text" else None,
            sequences=sequences,
            num_function_evaluations=int(calls.max()),
            calls=calls,
        )
        return output if return_dict else output.to_tuple()

    def _steps(self, num_steps: int, size: int) -> list[int]:
        if not is_number(num_steps) or not isinstance(num_steps, int) or num_steps < 1:
            raise ValueError(f"`num_inference_steps` is {num_steps!r}; it must be an integer of at least 1.")
        blocks = self.model.config.max_length // size
        if num_steps < blocks:
            raise ValueError(
                f"`num_inference_steps` is {num_steps}; in blocks of {size} a text has {blocks} of them, and each "
                "needs at least one step."
            )
        return steps_of_blocks(num_steps, blocks)

    def _start(self, n: int, input_ids: Tensor | None, known: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Texts of which START and what is known stand, what is to be written, and tokens that each must not have."""
        config, device = self.model.config, self._execution_device
        text = torch.full((n, config.max_length), config.pad_token_id, device=device)
        text[:, 0] = config.bos_token_id
        excluded = None
        if known is not None:
            known = known.to(device)
            text = torch.where(known, input_ids.to(device), text)
            excluded = absent_placeholders(text, known, self.tokenizer, config)
        return text, self.model.unknown(text, known), excluded

    def _write(
        self,
        text: Tensor,
        hidden: Tensor,
        excluded: Tensor | None,
        generators: list[torch.Generator],
        size: int,
        steps: list[int],
        remasking: str,
        choice: dict,
        bar,
    ) -> Tensor:
        """Write the hidden tokens, in place, block by block; returns the calls of the model for each text."""
        model, length = self.model, text.shape[1]
        calls, clean = torch.zeros(len(text), dtype=torch.long, device=text.device), None

        for block, num_steps in enumerate(steps):
            window = slice(block * size, (block + 1) * size)
            tokens, masked = text[:, window], hidden[:, window]
            number, order = masked.sum(-1), wide_uniforms(generators, size, text.device)
            for step in range(num_steps):
                # Drawn even where nothing is shown, so that a sample does not depend on the others.
                uniforms = wide_uniforms(generators, size, text.device)
                shown = number * (step + 1) // num_steps - number * step // num_steps
                bar.update()
                if not shown.any():
                    continue
                logits = widened(model.predict(tokens, masked, clean, size, window).without(excluded).logits)
                drawn = draw_tokens(logits, uniforms, **choice)
                if remasking == "confidence":
                    order = torch.log_softmax(logits, -1).gather(-1, drawn[..., None])[..., 0]
                ranks = (
                    order.masked_fill(~masked, -torch.inf).argsort(dim=-1, descending=True, stable=True).argsort(-1)
                )
                kept = masked & (ranks < shown[:, None])
                tokens, masked = torch.where(kept, drawn, tokens), masked & ~kept
                calls += shown > 0
            text[:, window] = tokens
            if window.stop < length:
                _, clean = model.read_clean(tokens, clean)
        return calls
