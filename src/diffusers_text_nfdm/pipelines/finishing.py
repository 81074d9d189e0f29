"""The last step of a text whose tokens were all in motion: they are drawn so that they agree."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models import Prediction, TextDiffusionModel
from ..models.token_choice import draw_tokens


@torch.no_grad()
def finish_texts(
    model: TextDiffusionModel,
    prediction: Prediction,
    uniforms: Tensor,
    known: Tensor | None,
    given: Tensor | None,
    choice: dict,
    most_calls: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Tokens of the joint decoder:

        x_i ~ p(x_i | x_<i, z).

    What a prediction says of a token is a mean over what the others may be; two places of one name may then be two
    names. The decoder reads the one and knows the other. All tokens are drawn in one call, each by a random number of
    its own, first from `p(x_i | z)`, and again until none changes. From left to right a token is right once those
    before it are, so this is a draw from the decoder, whatever the number of calls.

    Args:
        prediction: of all tokens at the finish time.
        uniforms: `(batch, seq)`.
        known, given: tokens that are given, and which.
        choice: how tokens are drawn.
        most_calls: after so many, tokens that may still change stay as they are.

    Returns:
        the tokens `(batch, seq)` and the calls that each text took.
    """

    def draw(logits: Tensor, rows: Tensor | slice) -> Tensor:
        drawn = draw_tokens(logits, uniforms[rows], **choice)
        return drawn if known is None else torch.where(known[rows], given[rows], drawn)

    tokens = draw(prediction.logits, slice(None))
    changing, calls = torch.ones_like(tokens[:, 0], dtype=torch.bool), torch.zeros_like(tokens[:, 0])
    # Token i does not change any more after i + 1 calls.
    for _ in range(tokens.shape[1] + 1 if most_calls is None else most_calls):
        rows = changing.nonzero()[:, 0]
        if not len(rows):
            break
        joint = Prediction(factors=model.joint_factors(tokens[rows], prediction, rows))
        drawn = draw(joint.without(None if prediction.excluded is None else prediction.excluded[rows]).logits, rows)
        changing[rows] = (drawn != tokens[rows]).any(-1)
        tokens[rows], calls[rows] = drawn, calls[rows] + 1
    return tokens, calls
