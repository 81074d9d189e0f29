import numpy as np
import pytest
import torch
from tiny import MODELS, make_ids, make_model

from diffusers_text_nfdm.plots.process import (
    plot_gamma,
    plot_schedule,
    plot_similarity,
    plot_time_density,
    plot_transformations,
    plot_volatility,
    successive_similarity,
    transformation_similarity,
)


@pytest.mark.parametrize("name", MODELS)
def test_figures_of_every_model_are_drawn(name, tmp_path):
    model, ids = make_model(name, torch.float32), make_ids(6)
    for plot in (plot_schedule, plot_volatility, plot_similarity):
        figure = plot(model, ids)
        for axes in figure.axes:
            for line in axes.get_lines():
                assert np.isfinite(np.asarray(line.get_ydata(), dtype=float)).all()
        figure.savefig(tmp_path / "figure.png", dpi=40)
        assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"


def test_schedule_draws_gamma_of_every_position_or_mean_and_std():
    mulan = make_model("mulan", torch.float32)
    curves = plot_schedule(mulan, make_ids(6)).axes[0].get_lines()
    assert len(curves) == mulan.config.max_length
    for curve in curves:
        assert curve.get_ydata()[0] == pytest.approx(-10, abs=1e-4) and curve.get_ydata()[-1] == pytest.approx(
            10, abs=1e-4
        )
    mean, std = plot_schedule(make_model("nfdm", torch.float32), make_ids(6)).axes
    learned, base = mean.get_lines()
    assert learned.get_ydata()[0] == pytest.approx(1) and learned.get_ydata()[-1] == pytest.approx(0)
    assert list(base.get_ydata()) == pytest.approx(list(1 - np.linspace(0, 1, 101)), abs=1e-6)
    assert std.get_lines()[0].get_ydata()[0] == pytest.approx(0.2) and std.get_lines()[0].get_ydata()[-1] == 1


def test_successive_similarity():
    ids = make_ids(6)
    for name in ("mulan", "diffusion-lm"):
        _, similarity = successive_similarity(make_model(name), ids, num_steps=10)
        torch.testing.assert_close(similarity, torch.ones(9, dtype=similarity.dtype))
    model = make_model("nfdm")
    times, similarity = successive_similarity(model, ids, num_steps=10)
    torch.testing.assert_close(times, torch.arange(9, dtype=times.dtype) / 10 + 0.05)
    assert similarity.min() < 0.999
    # By hand for one interval.
    embeddings = model.embed(ids)
    a, b = (
        model.forward_process.marginal(embeddings, torch.full((6, 1), t, dtype=times.dtype)).mean for t in (0.3, 0.4)
    )
    by_hand = ((a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))).mean()
    torch.testing.assert_close(similarity[3], by_hand)


def test_time_density_integrates_to_one():
    model = make_model("nfdm", torch.float32)
    patch = plot_time_density(model.time_sampler).axes[0].patches[0]
    values, edges, _ = patch.get_data()
    assert np.sum(np.asarray(values) * np.diff(edges)) == pytest.approx(1)
    assert len(values) == 7 and values.max() > 1


def test_similarity_of_transformations_is_that_of_the_network():
    model, ids = make_model("nfdm"), make_ids(6)
    times, mean, deviation = transformation_similarity(model, ids, num_steps=10)
    torch.testing.assert_close(times, torch.arange(1, 10, dtype=times.dtype) / 10)
    embeddings = model.embed(ids)
    a, b = (
        model.forward_process.deformation(embeddings, torch.full((6, 1), t, dtype=times.dtype))[0] for t in (0.4, 0.5)
    )
    by_text = ((a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))).mean(-1)
    torch.testing.assert_close((mean[3], deviation[3]), (by_text.mean(), by_text.std()))
    panels = plot_transformations({"NFDM": (model, ids), "NFDM-Additive": (make_model("nfdm-additive"), ids)}).axes
    assert [axes.get_title(loc="left") or axes.get_title() for axes in panels] == ["NFDM", "NFDM-Additive"]
    with pytest.raises(ValueError, match="no network that transforms them"):
        transformation_similarity(make_model("mulan"), ids)


def test_gamma_is_drawn_with_its_rate():
    ids = make_ids(6)
    levels, rates = (axes.get_lines() for axes in plot_gamma(make_model("mulan-rescaled"), ids, 401).axes[:2])
    assert len(levels) == len(rates) > 1
    for level, rate in zip(levels, rates):
        times, gamma = level.get_xdata(), level.get_ydata()
        inner = slice(40, -40)
        np.testing.assert_allclose(np.gradient(gamma, times)[inner], rate.get_ydata()[inner], rtol=2e-2, atol=1e-2)
    with pytest.raises(ValueError, match="has no γ"):
        plot_gamma(make_model("nfdm"), ids)


def test_what_the_context_says_is_drawn_as_the_deviation_between_texts():
    model, ids = make_model("mulan"), make_ids(6)
    for parameter in model.forward_process.parameters():
        torch.nn.init.normal_(parameter, std=0.5)

    def deviations(texts):
        (axes,) = (axes for axes in plot_gamma(model, texts, 21).axes if "between texts" in axes.get_ylabel())
        return np.stack([line.get_ydata() for line in axes.get_lines()])

    assert deviations(ids).max() > 1e-3
    np.testing.assert_allclose(deviations(ids[:1].expand(4, -1)), 0, atol=1e-5)
    fixed = plot_gamma(make_model("diffusion-lm"), ids, 21).axes
    assert [axes.get_title(loc="left") for axes in fixed] == ["γ(t), the same for every token", "Its rate"]


def test_the_square_of_the_volatility():
    model, ids = make_model("nfdm"), make_ids(6)
    g, square = (plot_volatility(model, ids, squared=squared).axes[0].get_lines()[-1] for squared in (False, True))
    np.testing.assert_allclose(np.square(g.get_ydata()), square.get_ydata())
