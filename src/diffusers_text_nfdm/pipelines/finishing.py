"""The last step of a text whose tokens were all in motion: they are drawn so that they agree."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models import Prediction, TextDiffusionModel
from ..models.token_choice import draw_tokens


# Of 100 stories none takes more than six.
MOST_CALLS = 16


@torch.no_grad()
def finish_texts(
    model: TextDiffusionModel,
    prediction: Prediction,
    uniforms: Tensor,
    known: Tensor | None,
    given: Tensor | None,
    choice: dict,
) -> tuple[Tensor, Tensor]:
    """Tokens in proportion to what the latents say of each and what the clean stream says of it behind the others:

        x_i ~ p(x_i | z) p(x_i | x_<i) / Z_i.

    What a prediction says of a token is a mean over what the others may be; two places of one name may then be two
    names. The clean stream reads the one and knows the other. All tokens are drawn in one call, each by a random
    number of its own, and again until none changes.

    Args:
        prediction: of all tokens, `p(x_i | z)`.
        uniforms: `(batch, seq)`.
        known, given: tokens that are given, and which.
        choice: how tokens are drawn.

    Returns:
        the tokens `(batch, seq)` and the calls that each text took.
    """
    log_p = torch.log_softmax(prediction.logits, -1)

    def draw(logits: Tensor, rows: Tensor | slice) -> Tensor:
        drawn = draw_tokens(logits, uniforms[rows], **choice)
        return drawn if known is None else torch.where(known[rows], given[rows], drawn)

    tokens = draw(log_p, slice(None))
    changing, calls = torch.ones_like(tokens[:, 0], dtype=torch.bool), torch.zeros_like(tokens[:, 0])
    for _ in range(MOST_CALLS):
        rows = changing.nonzero()[:, 0]
        if not len(rows):
            break
        states, _ = model.read_clean(tokens[rows])
        following = torch.log_softmax(Prediction(factors=model.next_token_factors(states[:, :-1])).logits, -1)
        drawn = draw(log_p[rows] + torch.nn.functional.pad(following, (0, 0, 1, 0)), rows)
        changing[rows] = (drawn != tokens[rows]).any(-1)
        tokens[rows], calls[rows] = drawn, calls[rows] + 1
    return tokens, calls
