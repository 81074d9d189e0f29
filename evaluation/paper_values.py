"""What the paper and its sources publish, as far as it is known to us, and what may be compared with it."""

from __future__ import annotations

from dataclasses import dataclass


UNKNOWN = "not known to us"
PAPER = '"Towards Latent Diffusion Suitable For Text" (arXiv 2601.16220)'
DIFFUSION_LM = '"Diffusion-LM Improves Controllable Text Generation" (Li et al. 2022)'


@dataclass(frozen=True)
class PublishedValue:
    """A figure with its source, and what it is: the paper's own column is headed bits per character."""

    value: float
    source: str
    meaning: str

    def __str__(self) -> str:
        return f"{self.value:g} ({self.meaning}; {self.source})"


LIKELIHOOD = {
    "NFDM": PublishedValue(
        3.12, PAPER, "nats per padded position at t = 0.1 and ε = 0.5 by its published code: no bound"
    ),
    "Diffusion-LM": PublishedValue(3.88, f"{DIFFUSION_LM}, quoted by the paper", "nats per token"),
    "Autoregressive": PublishedValue(3.05, f"{DIFFUSION_LM}, quoted by the paper", "nats per token"),
}
OTHER_PAPER_MODELS = ("NFDM-Additive", "MuLAN", "MuLAN-Rescaled")
LIKELIHOOD_NOTE = (
    "The published column is on ROCStories with models of 90 to 100 million parameters. Only the two figures in nats "
    "per token have the unit of a "
    "column here; the paper's 3.12 is neither a bound nor in bits per character, so it is no target. "
    "Another dataset, vocabulary or size is another quantity: at a small scale compare the rows here with each "
    "other, and with the truth where it is known."
)
QUALITY_NOTE = (
    f"The paper's figures for sample quality, for ρ, for SDE and ODE, and for the number of steps are {UNKNOWN}. A "
    "score may be compared with another "
    "only under the same protocol: number of samples, references, judge, form of the texts. The rows Dataset, real "
    "texts in the place of samples, show what each "
    "score would be for a perfect model."
)


def published_likelihood(model: str) -> str:
    """The published figure of a row, or that it is not known. Rows that the paper does not have, have none."""
    if model in LIKELIHOOD:
        return str(LIKELIHOOD[model])
    return UNKNOWN if model in OTHER_PAPER_MODELS else "-"
