"""Pictures of the forward process and of the learned times."""

from __future__ import annotations

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..models import TextDiffusionModel
from ..networks.dual import Dual
from ..time_samplers import BucketTimeSampler
from .style import STYLE, asinh_scale, log_scale, make_figure


@matplotlib.rc_context(STYLE)
@torch.no_grad()
def plot_schedule(model: TextDiffusionModel, input_ids: Tensor, num_times: int = 101) -> Figure:
    """How the forward process destroys texts.

    For MuLAN and Diffusion-LM: `γ_j(t) = -log SNR` of every token position, averaged over the texts' contexts. For
    NFDM, which has no signal-to-noise ratio: norm of the mean relative to that of the embeddings, and the standard
    deviation, each averaged over the elements of all texts with its 10-90% range, beside the process without the
    network (`m = s = 0`).
    """
    process, embeddings, context = _inputs(model, input_ids)
    times = _times(embeddings, num_times)
    if hasattr(process, "gamma"):
        gamma = torch.stack([process.gamma(Dual(t), context).value.squeeze(-1).mean(0) for t in times]).cpu()
        return _plot_gamma(times[:, 0, 0].cpu(), gamma)
    figure, panels = make_figure(1, 2, (10, 4))
    means, stds, base = [], [], []
    scale, axis = embeddings.norm(dim=-1), times[:, 0, 0].cpu()
    for t in times:
        marginal = process.marginal(embeddings, t, context)
        means.append((marginal.mean.norm(dim=-1) / scale).flatten().cpu())
        stds.append(marginal.std.flatten().cpu())
        base.append([factor.mean().item() for factor in process.alpha_sigma(t, context)])
    titles = ("Mean: |mean(E, t)| / |E|", "Standard deviation")
    for axes, values, reference, title in zip(panels, (means, stds), zip(*base), titles):
        values = torch.stack(values)
        # Of many elements a sample tells the range.
        low, high = values[:, :: max(1, values.shape[1] // 10_000)].quantile(torch.tensor([0.1, 0.9]), dim=1)
        axes.fill_between(axis, low, high, color="#4477aa", alpha=0.2, linewidth=0, label="10–90%")
        axes.plot(axis, values.mean(1), color="#4477aa", label="learned, mean")
        axes.plot(axis, reference, color="#222222", linestyle="--", linewidth=1.2, label="without the network")
        axes.set(xlabel="t", title=title)
        axes.legend()
    return figure


def _plot_gamma(times: Tensor, gamma: Tensor) -> Figure:
    figure, axes = make_figure(1, 1, (7, 4.4))
    _draw_positions(figure, axes, times, gamma)
    title = "γ_j(t) of every token position" if gamma.shape[1] > 1 else "γ(t), the same for every token"
    axes.set(xlabel="t", ylabel="γ = −log SNR", title=title)
    return figure


def _draw_positions(figure: Figure, axes, times: Tensor, values: Tensor) -> None:
    """A curve for each column of `(times, positions)`, coloured by position."""
    positions = values.shape[1]
    colormap = matplotlib.colormaps["viridis"]
    for position in range(positions):
        color = colormap(position / max(positions - 1, 1)) if positions > 1 else "#4477aa"
        axes.plot(times, values[:, position], color=color, linewidth=0.9 if positions > 1 else 1.8, alpha=0.8)
    if positions > 1:
        scale = matplotlib.cm.ScalarMappable(matplotlib.colors.Normalize(0, positions - 1), colormap)
        figure.colorbar(scale, ax=axes, label="token position j")


@matplotlib.rc_context(STYLE)
@torch.no_grad()
def plot_gamma(model: TextDiffusionModel, input_ids: Tensor, num_times: int = 201) -> Figure:
    """`γ_j(t)` and its rate of every token position, averaged over the texts' contexts, of a process that has them.

    With a context a third panel has the standard deviation of `γ_j(t)` between texts: 0 where the context says
    nothing. The ends of the interval are left out: there the rate of Diffusion-LM is that of a square root.
    """
    process, embeddings, context = _inputs(model, input_ids)
    if not hasattr(process, "gamma"):
        raise ValueError(f"{type(model).__name__} has no γ; plot_schedule draws its mean and standard deviation.")
    times = _times(embeddings, num_times)[1:-1]
    schedules = [process.gamma(Dual(t, torch.ones_like(t)), context) for t in times]
    # (times, batch, seq or 1)
    gamma, rate = (torch.stack([part.squeeze(-1) for part in parts]).cpu() for parts in zip(*schedules))
    panels = {"γ = −log SNR": gamma.mean(1), "dγ/dt (asinh scale)": rate.mean(1)}
    if context is not None:
        panels["standard deviation of γ between texts"] = gamma.std(1, correction=0)
    titles = ("γ_j(t)" if gamma.shape[-1] > 1 else "γ(t), the same for every token", "Its rate", "Said by the context")
    figure, all_axes = make_figure(1, len(panels), (5.6 * len(panels), 4.4))
    for axes, title, (label, values) in zip(all_axes, titles, panels.items()):
        _draw_positions(figure, axes, times[:, 0, 0].cpu(), values)
        axes.set(xlabel="t", ylabel=label, title=title)
    # Rates of many sizes; that of a rescaled schedule may be negative for some tokens.
    asinh_scale(all_axes[1])
    return figure


@matplotlib.rc_context(STYLE)
@torch.no_grad()
def plot_volatility(
    model: TextDiffusionModel, input_ids: Tensor, num_times: int = 201, squared: bool = False
) -> Figure:
    """`g(t)` of the reverse SDE, or `g²(t)`: its mean over positions and texts and, where it varies, its 10-90%
    range.
    """
    process, embeddings, context = _inputs(model, input_ids)
    times = _times(embeddings, num_times)[1:-1]
    volatility = torch.stack(
        [process.squared_volatility(Dual(t, torch.ones_like(t)), context).flatten().cpu() for t in times]
    )
    volatility, name = (volatility, "g²(t)") if squared else (volatility.sqrt(), "g(t)")
    figure, axes = make_figure(1, 1, (6.5, 4))
    axis = times[:, 0, 0].cpu()
    low, high = volatility.quantile(torch.tensor([0.1, 0.9], dtype=volatility.dtype), dim=1)
    if (high - low).max() > 1e-3 * high.max():
        axes.fill_between(axis, low, high, color="#aa3377", alpha=0.2, linewidth=0, label="10–90%")
        axes.plot(axis, volatility.mean(1), color="#aa3377", label="mean over tokens and texts")
        axes.legend()
    else:
        axes.plot(axis, volatility.mean(1), color="#aa3377")
    axes.set(xlabel="t", ylabel=name, title="Volatility")
    if volatility.max() > 10 * volatility.min():
        log_scale(axes)
    return figure


@matplotlib.rc_context(STYLE)
@torch.no_grad()
def plot_time_density(sampler: BucketTimeSampler) -> Figure:
    """The learned density p(t) of the times at which training estimates the bound, beside the uniform one."""
    probabilities = sampler.probabilities().cpu()
    edges = torch.linspace(0, 1, len(probabilities) + 1)
    figure, axes = make_figure(1, 1, (6.5, 4))
    axes.stairs(probabilities * len(probabilities), edges, fill=True, color="#228833", alpha=0.4, label="learned")
    axes.axhline(1, color="#222222", linestyle="--", linewidth=1.2, label="uniform")
    axes.set(xlabel="t", ylabel="p(t)", title=f"Density of the times, {len(probabilities)} buckets", xlim=(0, 1))
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


@torch.no_grad()
def successive_similarity(model: TextDiffusionModel, input_ids: Tensor, num_steps: int = 50) -> tuple[Tensor, Tensor]:
    """Cosine similarity of `mean(E, t_i)` and `mean(E, t_{i+1})` on a uniform grid from 0 to 1.

    Returns the midpoints `(num_steps - 1,)` of the intervals and the similarity in each, averaged over texts and token
    positions (of each token the vectors of dimension `embedding_dim` are compared). The interval that ends at t = 1 is
    left out: there NFDM's mean is 0, which has no direction.
    """
    process, embeddings, context = _inputs(model, input_ids)
    times = _times(embeddings, num_steps + 1)[:-1]
    means = [process.marginal(embeddings, t, context).mean for t in times]
    pairs = zip(means[:-1], means[1:])
    similarity = torch.stack([torch.cosine_similarity(a, b, dim=-1).mean() for a, b in pairs])
    axis = times[:, 0, 0].cpu()
    return (axis[:-1] + axis[1:]) / 2, similarity.cpu()


@matplotlib.rc_context(STYLE)
def plot_similarity(model: TextDiffusionModel, input_ids: Tensor, num_steps: int = 50) -> Figure:
    """The paper's figure of successive transformations: the cosine similarity of `mean(E, t_i)` and `mean(E, t_{i+1})`
    over t.

    Drawn is `successive_similarity` on a grid of `num_steps` intervals, beside a linear process `α(t) E`, which scales
    the data and never
    turns it: exactly 1. Below 1 the forward process moves embeddings in other directions than towards 0.
    """
    times, similarity = successive_similarity(model, input_ids, num_steps)
    figure, axes = make_figure(1, 1, (6.5, 4))
    axes.axhline(1, color="#222222", linestyle="--", linewidth=1.2, label="linear process, α(t) E")
    axes.plot(times, similarity, color="#4477aa", marker="o", markersize=3, label=type(model).__name__)
    # A process that is linear up to rounding is shown as such.
    axes.set_ylim(
        top=1 + 0.05 * max(1 - similarity.min().item(), 1e-3), bottom=min(similarity.min().item(), 0.999) - 1e-4
    )
    axes.set(xlabel="t", ylabel="cosine similarity", xlim=(0, 1))
    axes.set_title(f"Successive transformations, Δt = 1/{num_steps}")
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.legend()
    return figure


@torch.no_grad()
def transformation_similarity(
    model: TextDiffusionModel, input_ids: Tensor, num_steps: int = 10
) -> tuple[Tensor, Tensor, Tensor]:
    """Cosine similarity of what NFDM's network says, `m(E, t_i)` and `m(E, t_{i+1})`, for `t_i = i / num_steps` from
    i = 1 on.

    Returns `t_i`, the mean over texts and token positions, and the standard deviation between texts. A network that
    ignores t has 1 throughout.
    """
    process, embeddings, _ = _inputs(model, input_ids)
    if not hasattr(process, "deformation"):
        raise ValueError(f"{type(model).__name__} scales the data and has no network that transforms them.")
    times = _times(embeddings, num_steps + 1)[1:]
    outputs = [process.deformation(embeddings, t)[0] for t in times]
    pairs = zip(outputs[:-1], outputs[1:])
    by_text = torch.stack([torch.cosine_similarity(a, b, dim=-1).mean(-1) for a, b in pairs]).cpu()
    return times[:-1, 0, 0].cpu(), by_text.mean(1), by_text.std(1)


@matplotlib.rc_context(STYLE)
def plot_transformations(models: dict[str, tuple[TextDiffusionModel, Tensor]], num_steps: int = 10) -> Figure:
    """The paper's figure of time conditioning: `transformation_similarity` of NFDM models, each with texts in its own
    vocabulary, side by side.
    """
    figure, panels = make_figure(1, len(models), (5.2 * len(models), 4))
    panels = [panels] if len(models) == 1 else list(panels)
    for axes, (name, (model, input_ids)) in zip(panels, models.items()):
        times, mean, deviation = transformation_similarity(model, input_ids, num_steps)
        axes.errorbar(times, mean, yerr=deviation, color="#4477aa", marker="o", markersize=4, capsize=3)
        axes.axhline(1, color="#222222", linestyle="--", linewidth=1.2)
        axes.set(xlabel="t", ylabel=f"cosine similarity of m(E, t) and m(E, t + 1/{num_steps})", title=name)
    low = min(axes.get_ylim()[0] for axes in panels)
    for axes in panels:
        # One scale for all; a network that ignores t up to rounding is shown as such.
        axes.set_ylim(min(low, 0.99), 1 + 0.05 * (1 - min(low, 0.99)))
    return figure


def _inputs(model: TextDiffusionModel, input_ids: Tensor) -> tuple[torch.nn.Module, Tensor, Tensor | None]:
    """The forward process, embeddings of the texts, and their context, at the mean of `q(c | x)`."""
    embeddings = model.embed(input_ids.to(model.device))
    noise = None if model.context_dim is None else embeddings.new_zeros(len(embeddings), model.context_dim)
    context, _ = model.encode_context(embeddings, noise)
    return model.forward_process, embeddings, context


def _times(embeddings: Tensor, number: int) -> Tensor:
    """Times from 0 to 1, `(number, batch, 1)`."""
    times = torch.linspace(0, 1, number, dtype=embeddings.dtype, device=embeddings.device)
    return times[:, None, None].expand(-1, len(embeddings), 1)
