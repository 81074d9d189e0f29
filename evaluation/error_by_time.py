"""How well a model with all tokens of a story at one time predicts them, beside the exact posterior.

    python evaluation/error_by_time.py checkpoints/nfdm-stories-parallel

The stories have a known distribution, and where noise is strong a sample of it is enough for the posterior of a text:

    Ê = Σ_n w_n E(x_n),    w_n ∝ q(z | x_n),    x_n ~ p(x).

Printed is the mean of Σ_i |E_i - Ê_i|² over test stories, for several times: of this posterior, of each token by
itself given the frequencies at its place, of the model's prototypes, and of the model. Few effective stories, the last
column, mean that the sample does not tell.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from diffusers_text_nfdm import NFDMTextPipeline
from diffusers_text_nfdm.checks import check_integers
from diffusers_text_nfdm.data import prepare_dataset
from diffusers_text_nfdm.models import TextDiffusionModel, evaluation_mode
from diffusers_text_nfdm.models.prediction import gaussian_factors
from diffusers_text_nfdm.stories import load_stories


TIMES = (0.97, 0.95, 0.93, 0.91, 0.89, 0.87, 0.85, 0.8, 0.7)


def sample_posterior(evidence: Tensor, stories: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Ê `(texts, length, dim)` and the effective number of stories `(texts,)`.

    Args:
        evidence: `log q(z_i | v)` up to a constant, `(texts, length, vocab)`.
        stories: a sample of the prior, `(stories, length)`.
    """
    log_weights = sum(evidence[:, i][:, stories[:, i]] for i in range(stories.shape[1]))
    weights = torch.softmax(log_weights, -1)
    marginals = torch.zeros_like(evidence)
    for i in range(stories.shape[1]):
        marginals[:, i].index_add_(1, stories[:, i], weights)
    return marginals @ table, 1 / weights.square().sum(-1)


@torch.no_grad()
def errors_by_time(model: TextDiffusionModel, texts: Tensor, stories: Tensor, times: tuple[float, ...]) -> list[dict]:
    """One row for each time."""
    E, table = model.embed(texts), model.embedding_table()
    generator, rows = torch.Generator().manual_seed(0), []
    counts = torch.stack([torch.bincount(column, minlength=len(table)) for column in stories.T])
    frequencies = (counts.to(E.dtype) / len(stories)).clamp_min(1e-9).log()

    def error(predicted: Tensor) -> float:
        return (E - predicted).square().sum((1, 2)).mean().item()

    with evaluation_mode(model):
        for time in times:
            t = torch.full((len(texts), 1), time, dtype=E.dtype)
            z = model.forward_process.marginal(E, t).sample(torch.randn(E.shape, generator=generator, dtype=E.dtype))
            alpha_sigma = model.forward_process.alpha_sigma(t, None)
            states, weight = gaussian_factors(z, alpha_sigma, table)
            evidence = states @ weight.T
            exact, effective = sample_posterior(evidence, stories, table)
            row = {
                "t": time,
                "sample": error(exact),
                "tokens alone": error((evidence + frequencies).softmax(-1) @ table),
            }
            if model.config.num_prototypes:
                row["prototypes"] = error(model.predictor.prototypes(z, alpha_sigma))
            rows.append({**row, "model": error(model.denoise(z, t).embeddings), "stories": effective.median().item()})
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="folder or Hub name of a pipeline whose forward process is not deformed")
    parser.add_argument("--texts", type=int, default=64, help="test stories (default: 64)")
    parser.add_argument("--stories", type=int, default=50_000, help="stories of the sample (default: 50000)")
    args = parser.parse_args(arguments)
    try:
        check_integers(1, texts=args.texts, stories=args.stories)
        pipe = NFDMTextPipeline.from_pretrained(args.checkpoint)
        if pipe.model.context_dim is not None or getattr(pipe.model.config, "forward_num_layers", 0):
            raise ValueError(f"{args.checkpoint!r} has a forward process with a network; its posterior is not known.")
    except (ValueError, OSError) as error:
        parser.error(str(error))
    torch.set_flush_denormal(True)
    data = load_stories(num_train=args.stories, num_validation=1, num_test=args.texts)
    test, sample = (
        torch.as_tensor(prepare_dataset(data[name], pipe.tokenizer, pipe.model.config.max_length)[0][:]["input_ids"])
        for name in ("test", "train")
    )
    rows = errors_by_time(pipe.model, test.long(), sample.long(), TIMES)
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print(f"| {row['t']} | " + " | ".join(f"{value:,.0f}" for name, value in row.items() if name != "t") + " |")


if __name__ == "__main__":
    main()
