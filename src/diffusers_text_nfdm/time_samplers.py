"""Where in time the bound is estimated: t = T(s) for uniform s, with the rate `dT/ds = 1 / p(t)` that keeps the
estimate unbiased.

The rate of a token's time is its weight in the bound, so a time density is one more monotone map behind a clock.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .networks.dual import Dual


# Added to a token's term, so that its logarithm is finite.
SMALLEST_TERM = 2e-4


def stratify(uniforms: Tensor) -> Tensor:
    """Spread a batch of uniform numbers over [0, 1): one in each of n equal cells, in a shared random shift.

    `u_i = (u_1 + i/n) mod 1` (Kingma et al., Variational Diffusion Models): each is uniform, together they have far
    less variance.
    """
    n = len(uniforms)
    return (uniforms[:1] + torch.arange(n, dtype=uniforms.dtype, device=uniforms.device) / n) % 1


def piecewise_times(uniforms: Tensor, edges: Tensor, masses: Tensor) -> tuple[Tensor, Tensor]:
    """`t` by the inverse of the cumulative distribution, and `1 / p(t)`, for a density that is constant between
    `edges`.

    Args:
        uniforms: any shape.
        edges: `(n + 1,)`, from 0 to 1.
        masses: `(n,)`, the probability of each interval; they sum to one.
    """
    upper = torch.cumsum(masses, 0)
    interval = torch.searchsorted(upper, uniforms.contiguous(), right=True).clamp_max(len(masses) - 1)
    mass, width = masses[interval], edges.diff()[interval]
    inside = ((uniforms - (upper[interval] - mass)) / mass).clamp(0, 1)
    t = edges[interval] + inside * width
    # Text and noise themselves, whatever the rounding.
    return torch.where((uniforms == 0) | (uniforms == 1), uniforms, t), width / mass


class UniformTimeSampler(nn.Module):
    """`t = s`."""

    def forward(self, times: Dual) -> Dual:
        return times

    def fitting_loss(self, times: Dual, terms: Tensor) -> Tensor:
        return terms.new_zeros(len(terms))


class BucketTimeSampler(nn.Module):
    """A piecewise constant density over equal buckets of [0, 1], learned to follow the diffusion term.

    `a_k` estimates the log of a token's diffusion term in bucket k and `p(t) ∝ (1-ε) exp(a_k) + ε·mean`, close to the
    density of least variance. The uniform share ε bounds the weights `1/p` by `1/ε`. The same density places more
    sampling steps where the bound has more mass.
    """

    def __init__(self, num_buckets: int = 100, uniform_share: float = 0.1):
        super().__init__()
        self.uniform_share = uniform_share
        self.log_terms = nn.Parameter(torch.zeros(num_buckets))

    @torch.no_grad()
    def set_terms(self, t: Tensor, term: Tensor) -> None:
        """Start at the mean of a token's diffusion terms `term` seen at the times `t`, of which every bucket must have
        one.
        """
        bucket = self._bucket(t)
        sums = torch.zeros(len(self.log_terms), dtype=torch.float64).index_add_(0, bucket.cpu(), term.cpu().double())
        means = sums / torch.bincount(bucket.cpu(), minlength=len(self.log_terms))
        self.log_terms.copy_(torch.log(means + SMALLEST_TERM))

    def probabilities(self) -> Tensor:
        """Probability of each bucket (they sum to one)."""
        # Not below float32: bfloat16 would move the edges of the buckets.
        log_terms = self.log_terms.detach().to(torch.promote_types(self.log_terms.dtype, torch.float32))
        return (1 - self.uniform_share) * torch.softmax(log_terms, 0) + self.uniform_share / len(log_terms)

    def forward(self, times: Dual) -> Dual:
        """`T(s)` and its rate. No gradient flows through either."""
        s = times.value
        masses = self.probabilities().to(s.dtype)
        edges = torch.linspace(0, 1, len(masses) + 1, dtype=s.dtype, device=s.device)
        t, slope = piecewise_times(s, edges, masses)
        return Dual(t, None if times.rate is None else times.rate * slope)

    def fitting_loss(self, times: Dual, terms: Tensor) -> Tensor:
        """`Σ_k a_k + e^{-a_k} (mean term in bucket k + floor)` over the buckets of a text's tokens, by their share of
        the tokens.

        Its minimum in expectation is the log of the mean term, however rare the tokens are that make it up: near t = 0
        one token in hundreds does.

        Args:
            times: `(batch, seq)` or `(batch, 1)`; tokens that do not move are left out.
            terms: `(batch, seq)`, of which rates are taken out. No gradient goes to the model.
        """
        terms = terms.detach()
        t, rate = (x.expand(terms.shape) for x in times)
        moving = rate > 0
        terms = torch.where(moving, terms / rate + SMALLEST_TERM, 0)
        bucket = self._bucket(t)
        counts, sums = (
            terms.new_zeros(len(terms), len(self.log_terms)).scatter_add_(1, bucket, x)
            for x in (moving.to(terms.dtype), terms)
        )
        return (counts * self.log_terms + sums * torch.exp(-self.log_terms)).sum(-1) / terms.shape[1]

    def _bucket(self, t: Tensor) -> Tensor:
        return (t * len(self.log_terms)).long().clamp_max(len(self.log_terms) - 1)
