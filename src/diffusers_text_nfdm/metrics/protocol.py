"""How scores are made: how many samples, against what, judged by whom. Saved beside every score."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

from .judge import DEFAULT_JUDGE
from .mauve_score import MauveSettings


DETOKENISATIONS = ("raw", "round_trip")


@dataclass(frozen=True)
class Protocol:
    """What two scores must share to be compared.

    Args:
        name: of the protocol; `resized` and `changed` change it.
        num_samples: samples of each repeat, and as many references.
        seeds: one repeat for each; scores are mean and standard deviation over them.
        reference_splits: splits that references, and the real texts of the "Dataset" row, are drawn from, without
            overlap within a repeat.
        memorization_texts: number of training texts that memorization is counted against; None is all of them.
        judge: language model for perplexity and MAUVE (see `Judge.from_pretrained`); None leaves both out.
        mauve: settings of MAUVE.
        detokenisation: form of the real texts. `"raw"`: as they are in the dataset. `"round_trip"`: through the
            checkpoint's tokenizer and back, cut at the model's length and with UNK, so that a perfect model could
            write exactly them.
        likelihood_texts: number of real texts, as they are in the dataset, for the likelihood; 0 leaves it out.
        likelihood_draws: draws of time and noise for each of them.
        assumptions: what is not known about the source of the protocol.
    """

    name: str
    num_samples: int = 1000
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    reference_splits: tuple[str, ...] = ("validation", "test")
    memorization_texts: int | None = None
    judge: str | None = DEFAULT_JUDGE
    mauve: MauveSettings = field(default_factory=MauveSettings)
    detokenisation: str = "raw"
    likelihood_texts: int = 1000
    likelihood_draws: int = 8
    assumptions: str = ""

    def __post_init__(self):
        for name, minimum in (("num_samples", 2), ("likelihood_texts", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise ValueError(f"`{name}` is {value!r}; it must be an integer of at least {minimum}.")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"`seeds` is {self.seeds!r}; it must hold at least one seed, and none twice.")
        if self.memorization_texts is not None and not self.memorization_texts >= 1:
            raise ValueError(
                f"`memorization_texts` is {self.memorization_texts!r}; it must be None or an integer of at least 1."
            )
        if self.detokenisation not in DETOKENISATIONS:
            raise ValueError(
                f"`detokenisation` is {self.detokenisation!r}; it must be one of "
                f"{', '.join(map(repr, DETOKENISATIONS))}."
            )
        if self.likelihood_draws < 2 or self.likelihood_draws % 2:
            raise ValueError(
                f"`likelihood_draws` is {self.likelihood_draws!r}; it must be an even number of at least 2."
            )

    def resized(self, num_samples: int | None = None, num_repeats: int | None = None) -> Protocol:
        """The same at another size, under a name that says so: `ld4lg` with 200 samples and 2 repeats is
        `ld4lg-200x2`.
        """
        num_samples = self.num_samples if num_samples is None else num_samples
        num_repeats = len(self.seeds) if num_repeats is None else num_repeats
        if not isinstance(num_repeats, int) or num_repeats < 1:
            raise ValueError(f"`num_repeats` is {num_repeats!r}; it must be an integer of at least 1.")
        if (num_samples, num_repeats) == (self.num_samples, len(self.seeds)):
            return self
        return replace(
            self,
            name=f"{self.name}-{num_samples}x{num_repeats}",
            num_samples=num_samples,
            seeds=tuple(range(num_repeats)),
            likelihood_texts=min(self.likelihood_texts, num_samples),
        )

    def changed(self, **settings) -> Protocol:
        """The same with other settings, under a name that says so: `ld4lg` with another judge is
        `ld4lg-judge=smollm2`.
        """
        settings = {name: value for name, value in settings.items() if value != getattr(self, name)}
        said = "".join(f"-{name}={str(value).rstrip('/').split('/')[-1].lower()}" for name, value in settings.items())
        return replace(self, name=self.name + said, **settings) if settings else self

    def to_dict(self) -> dict:
        """As JSON would have it."""
        values = asdict(self)
        values["mauve"]["seeds"] = list(self.mauve.seeds)
        return {**values, "seeds": list(self.seeds), "reference_splits": list(self.reference_splits)}


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("ld4lg"),
        Protocol(
            "paper",
            reference_splits=("test",),
            memorization_texts=5000,
            detokenisation="round_trip",
            assumptions="The paper's text gives the metrics after LD4LG, GPT-2 Large as judge, 2,000 sampling "
            "steps, the test set for the row Dataset, and samples whose tokens are joined to words. It "
            "leaves open the split of the data, the numbers of samples and repeats, what its errors are, "
            "which mean its perplexity is, the texts and draws of its likelihood, the references of "
            "MAUVE, its settings, and the training texts of memorization. Here: 1,000 samples and five "
            "repeats as in LD4LG; real texts of the test set in the form of the tokenizer, as in the "
            "published code; 5,000 training texts, because of real texts the paper has 0.141, and all "
            "training texts give twice as much.",
        ),
    )
}


def get_protocol(name: str) -> Protocol:
    """A protocol by name.

    `"ld4lg"`: Latent Diffusion for Language Generation (Lovelace et al. 2023), 1,000 samples, five seeds, the whole
    training set.

    `"paper"`: Towards Latent Diffusion Suitable For Text. Its text gives the metrics, the judge, 2,000 steps, the test
    set and joined tokens. Open are

    * the number of samples and of repeats, and whether an error is a standard error or a deviation between repeats
      (the published code cuts 5,000 samples into five parts and takes the deviation between them);
    * how the 90,000 stories are split, and whether perplexity is a mean over texts;
    * the references of MAUVE and its settings;
    * the number of training texts of memorization, and of texts and draws of the likelihood.

    `assumptions` says what stands here instead.
    """
    if not isinstance(name, str) or name not in PROTOCOLS:
        raise ValueError(f"`protocol` is {name!r}; it must be one of {', '.join(map(repr, PROTOCOLS))}.")
    return PROTOCOLS[name]
