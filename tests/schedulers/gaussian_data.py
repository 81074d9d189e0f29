"""Gaussian data under a linear Gaussian process: a problem whose prediction, flow and marginals are known exactly.

With `E ~ N(mu, s²)` and `z_t = α E + σ ε`, z_t is `N(M, S²)`, `M = α mu`, `S² = α² s² + σ²`; the best prediction is
`E[E | z_t] = mu + (α s² / S²) (z_t - M)`; and since the drifts are linear in E, they are with this prediction those of
the marginal: the ODE carries `(z - M) / S` unchanged and the SDE keeps `N(M, S²)`, for every volatility.
"""

from __future__ import annotations

import torch
from tiny import make_inputs, make_process
from torch import Tensor


class GaussianData:
    """MuLAN's process with γ in [-3, 3], so that nothing is stiff; every position has its own schedule."""

    mean, std = 0.7, 0.5

    def __init__(self):
        self.process = make_process("mulan", gamma_min=-3.0, gamma_max=3.0).requires_grad_(False)
        self._context = make_inputs("mulan", 1)[1]

    def context(self, z: Tensor) -> Tensor:
        return self._context.expand(len(z), -1)

    def marginal(self, t: float | Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """α, M and S, broadcastable to z, at one time or at those of the tokens."""
        times = torch.as_tensor(t, dtype=z.dtype)
        times = times.expand(len(z), 1) if times.ndim == 0 else times
        alpha, sigma = self.process.alpha_sigma(times, self.context(z))
        return alpha, alpha * self.mean, (alpha.square() * self.std**2 + sigma.square()).sqrt()

    def predict(self, z: Tensor, t: float | Tensor) -> Tensor:
        alpha, mean, std = self.marginal(t, z)
        return self.mean + alpha * self.std**2 / std.square() * (z - mean)

    def flow(self, z: Tensor, t: float, s: float) -> Tensor:
        """Where the exact ODE carries z from t to s."""
        (_, mean_t, std_t), (_, mean_s, std_s) = self.marginal(t, z), self.marginal(s, z)
        return mean_s + std_s / std_t * (z - mean_t)

    def run(self, scheduler, z: Tensor, num_steps: int, clock=None, **options) -> Tensor:
        scheduler.set_timesteps(num_steps, clock=clock)
        options.update(forward_process=self.process, context=self.context(z))
        for u in scheduler.timesteps:
            prediction = self.predict(z, scheduler.token_times(u, z).value)
            z = scheduler.step(prediction, u, z, **options).prev_sample
        return z


def order_of_convergence(errors: list[float], step_counts: list[int]) -> float:
    """Slope of log error over log h."""
    h = -torch.tensor(step_counts, dtype=torch.float64).log()
    e = torch.tensor(errors, dtype=torch.float64).log()
    return (((h - h.mean()) * (e - e.mean())).sum() / (h - h.mean()).square().sum()).item()
