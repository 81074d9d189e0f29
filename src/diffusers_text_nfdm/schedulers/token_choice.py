"""What schedulers share that draw tokens: the knobs of their config."""

from __future__ import annotations

from torch import Tensor

from ..models.token_choice import CHOICE, check_choice


# Of schedulers that draw a token more than once, or by its noise.
WITHOUT_CONTRAST = tuple(name for name in CHOICE if name != "contrast")


class DrawsTokens:
    """A scheduler with `temperature`, `top_k`, `top_p`, `min_p` and `contrast` in its config, or some of them
    (`token_probabilities`).

    Attributes:
        log_frequencies: how frequent tokens are, `(vocab,)`, which a contrast needs; a pipeline sets it.
    """

    knobs = CHOICE
    log_frequencies: Tensor | None = None

    def _check_choice(self) -> None:
        check_choice(**self._knobs())

    def _knobs(self) -> dict:
        return {name: self.config[name] for name in self.knobs}

    @property
    def choice(self) -> dict:
        """How tokens are drawn: the options of `token_probabilities`."""
        choice = self._knobs()
        if not choice.get("contrast"):
            return choice
        if self.log_frequencies is None:
            raise ValueError(
                f"`contrast` is {choice['contrast']}, which needs `log_frequencies`: those of the model, by "
                "`models.token_choice.log_frequencies`."
            )
        return {**choice, "log_frequencies": self.log_frequencies}
