"""Where in time the bound is estimated: t = T(u) for uniform u, with the weight `1 / p(t)` that keeps the estimate unbiased."""

from __future__ import annotations

import torch
from torch import Tensor, nn


# Added to a term before its logarithm is taken.
SMALLEST_TERM = 0.01


def stratify(uniforms: Tensor) -> Tensor:
    """Spread a batch of uniform numbers over [0, 1): one in each of n equal cells, in a shared random shift.

    `u_i = (u_1 + i/n) mod 1` (Kingma et al., Variational Diffusion Models): each is uniform, together they have far less variance.
    """
    n = len(uniforms)
    return (uniforms[:1] + torch.arange(n, dtype=uniforms.dtype, device=uniforms.device) / n) % 1


class UniformTimeSampler(nn.Module):
    """`t = u`, weight 1."""

    def forward(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        return uniforms, torch.ones_like(uniforms)

    def fitting_loss(self, t: Tensor, term: Tensor) -> Tensor:
        return torch.zeros_like(t)

    def time_grid(self, num_steps: int) -> Tensor:
        """`num_steps + 1` times from 1 to 0, equally spaced."""
        return torch.linspace(1, 0, num_steps + 1, dtype=torch.float64)


class BucketTimeSampler(nn.Module):
    """A piecewise constant density over equal buckets of [0, 1], learned to follow the diffusion term.

    `a_k` estimates the log of the diffusion term in bucket k and `p(t) ∝ (1-ε) exp(a_k) + ε·mean`, close to the density of least
    variance. The uniform share ε bounds the weights `1/p` by `1/ε`. The same buckets place more sampling steps where the bound
    has more mass: `time_grid` gives each step an equal share of p.
    """

    def __init__(self, num_buckets: int = 100, uniform_share: float = 0.1):
        super().__init__()
        self.uniform_share = uniform_share
        self.log_terms = nn.Parameter(torch.zeros(num_buckets))

    @torch.no_grad()
    def set_terms(self, t: Tensor, term: Tensor) -> None:
        """Start at the mean of the diffusion terms `term` seen at the times `t`, of which every bucket must have one."""
        bucket = self._bucket(t)
        sums = torch.zeros(len(self.log_terms), dtype=torch.float64).index_add_(0, bucket.cpu(), term.double().cpu())
        means = sums / torch.bincount(bucket.cpu(), minlength=len(self.log_terms))
        self.log_terms.copy_(torch.log(means + SMALLEST_TERM))

    def probabilities(self) -> Tensor:
        """Probability of each bucket (they sum to one)."""
        # Not below float32: bfloat16 would move the edges of the buckets.
        log_terms = self.log_terms.detach().to(torch.promote_types(self.log_terms.dtype, torch.float32))
        return (1 - self.uniform_share) * torch.softmax(log_terms, 0) + self.uniform_share / len(log_terms)

    def forward(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """`t` by the inverse of the cumulative distribution, and `1 / p(t)`. No gradient flows through either."""
        probabilities = self.probabilities().to(uniforms.dtype)
        n = len(probabilities)
        upper = torch.cumsum(probabilities, 0)
        bucket = torch.searchsorted(upper, uniforms, right=True).clamp_max(n - 1)
        p = probabilities[bucket]
        inside = ((uniforms - (upper[bucket] - p)) / p).clamp(0, 1)
        return (bucket + inside) / n, 1 / (p * n)

    def fitting_loss(self, t: Tensor, term: Tensor) -> Tensor:
        """`½ (a_k - log(term + 0.01))²` per example, for the bucket k of t. Scale-free, and zero gradient to the model."""
        return 0.5 * (self.log_terms[self._bucket(t)] - torch.log(term.detach() + SMALLEST_TERM)).square()

    def _bucket(self, t: Tensor) -> Tensor:
        return (t * len(self.log_terms)).long().clamp_max(len(self.log_terms) - 1)

    def time_grid(self, num_steps: int) -> Tensor:
        """`num_steps + 1` times from 1 to 0 with equal shares of p between neighbours."""
        grid, _ = self(torch.linspace(1, 0, num_steps + 1, dtype=torch.float64, device=self.log_terms.device))
        grid = grid.cpu()
        grid[0], grid[-1] = 1, 0
        return grid
