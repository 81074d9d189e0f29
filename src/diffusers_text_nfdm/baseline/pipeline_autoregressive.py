"""Ancestral sampling from the autoregressive baseline."""

from __future__ import annotations

import torch
from diffusers import DiffusionPipeline
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..models import evaluation_mode
from ..models.token_choice import draw_tokens
from ..pipelines.hub import HubCheckpointMixin
from ..pipelines.pipeline_nfdm_text import NFDMTextPipelineOutput
from ..pipelines.samples import check_samples, check_temperature, decode_texts, sample_generators
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
        num_samples: int = 1,
        batch_size: int = 64,
        generator: torch.Generator | list[torch.Generator] | None = None,
        temperature: float = 1.0,
    ) -> NFDMTextPipelineOutput:
        """Generate texts.

        Args:
            num_samples: number of texts.
            batch_size: texts made at a time. A sample does not depend on it.
            generator: one generator, from which one per sample is derived, or a list with one per sample.
            temperature: tokens are drawn from `softmax(logits / temperature)`; 1 samples the model's distribution, 0
                takes the most probable token.
        """
        check_samples(num_samples, batch_size, generator)
        check_temperature(temperature)
        generators = sample_generators(num_samples, generator)
        starts = range(0, num_samples, batch_size)
        sequences, calls = [], 0
        with (
            evaluation_mode(self.model),
            self.progress_bar(total=len(starts) * (self.model.config.max_length - 1)) as bar,
        ):
            for start in starts:
                batch, taken = self._generate(generators[start : start + batch_size], temperature, bar)
                sequences.append(batch)
                calls = max(calls, taken)
        self.maybe_free_model_hooks()
        sequences = torch.cat(sequences).cpu()
        ended = (sequences == self.model.config.eos_token_id).cumsum(-1) > 0
        return NFDMTextPipelineOutput(
            texts=decode_texts(sequences, self.tokenizer),
            sequences=sequences,
            num_function_evaluations=calls,
            # One for each token up to END.
            calls=(~ended[:, :-1]).sum(-1),
        )

    def _generate(self, generators: list[torch.Generator], temperature: float, bar) -> tuple[Tensor, int]:
        """One batch of sequences `(batch, max_length)`, and the number of network calls it took."""
        model, config, device = self.model, self.model.config, self._execution_device
        positions = config.max_length - 1
        # All numbers of a sample beforehand: how far the others of its batch get does not matter.
        uniforms = torch.stack(
            [torch.rand(positions, generator=g, device=g.device, dtype=torch.float64) for g in generators]
        ).to(device)
        sequences = torch.full((len(generators), config.max_length), config.pad_token_id, device=device)
        sequences[:, 0] = config.bos_token_id
        ended, cache, calls = torch.zeros(len(generators), dtype=torch.bool, device=device), None, 0
        for position in range(positions):
            logits, cache = model.token_logits(sequences[:, position : position + 1], cache, use_cache=True)
            tokens = draw_tokens(logits[:, -1].double(), uniforms[:, position], temperature)
            sequences[:, position + 1] = tokens.masked_fill(ended, config.pad_token_id)
            ended |= tokens == config.eos_token_id
            calls += 1
            bar.update()
            if ended.all():
                bar.update(positions - calls)
                break
        return sequences, calls
