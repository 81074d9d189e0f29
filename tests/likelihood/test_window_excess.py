"""What the tokens of a window cost beyond the clean stream, by place."""

import pytest
import torch
from tiny import VOCAB, make_model, seeded

from diffusers_text_nfdm.likelihood import window_excess
from diffusers_text_nfdm.likelihood.estimation import stratified_draws
from diffusers_text_nfdm.objective import bound


LENGTH, DRAWS = 6, 4
OPTIONS = {"max_length": LENGTH, "predictor": "two_stream", "prediction_type": "categorical", "decoder": "gaussian"}


def texts(number: int = 8) -> torch.Tensor:
    return torch.randint(VOCAB, (number, LENGTH), generator=seeded(0))


@torch.no_grad()
def diffusion_by_position(model, ids, clock, known=None):
    """The diffusion terms of the same draws, nats per text and position."""
    total = torch.zeros(LENGTH, dtype=torch.float64)
    for _, _, batch, given, draws in stratified_draws(model, ids, known, DRAWS, 3, seeded(0), progress=False):
        times, windows = model.token_times(model.clock(clock), draws, given)
        total += bound(model, batch, times, draws, given, windows).diffusion.sum(0) / DRAWS / len(ids)
    return total


@pytest.mark.parametrize("name", ["nfdm", "mulan", "diffusion-lm"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_alone_and_excess_are_the_diffusion_terms_of_a_place(name, size):
    model, clock = make_model(name, **OPTIONS), f"blocks:{size}"
    found = window_excess(model, texts(), clock=clock, num_draws=DRAWS, batch_size=3)
    expected = diffusion_by_position(model, texts(), clock)
    # START is not counted.
    expected[0] = 0
    for place, both in enumerate(zip(found.alone, found.excess, strict=True)):
        assert sum(both) == pytest.approx(expected[place::size].sum().item(), rel=1e-9)
    assert len(found.alone) == len(found.error) == size and all(error > 0 for error in found.error)


def test_along_a_ramp_all_tokens_but_start_have_a_place():
    model = make_model("nfdm", **OPTIONS)
    found = window_excess(model, texts(), clock="ramp:3", num_draws=DRAWS, batch_size=3)
    expected = diffusion_by_position(model, texts(), "ramp:3")[1:].sum().item()
    assert sum(found.alone) + sum(found.excess) == pytest.approx(expected, rel=1e-9)


def test_a_condition_is_not_counted():
    model = make_model("nfdm", **OPTIONS, condition_length=2)
    positions = torch.arange(LENGTH)
    known = ((positions > 0) & (positions < 3)).expand(8, -1)
    found = window_excess(model, texts(), clock="blocks:3", num_draws=DRAWS, batch_size=3)
    expected = diffusion_by_position(model, texts(), "blocks:3", known)[3:].sum().item()
    assert sum(found.alone) + sum(found.excess) == pytest.approx(expected, rel=1e-9)


def test_its_table_has_a_row_for_every_place_and_the_sum():
    lines = str(window_excess(make_model("nfdm", **OPTIONS), texts(), clock="blocks:2", num_draws=2)).splitlines()
    assert [line.split()[0] for line in lines] == ["place", "0", "1", "sum"]


def test_texts_without_windows_are_refused():
    with pytest.raises(ValueError, match="Along the clock 'shared' this model has no windows"):
        window_excess(make_model("nfdm", **OPTIONS), texts(), clock="shared")
