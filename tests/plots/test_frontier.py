"""The picture of a run's frontier."""

from diffusers_text_nfdm.plots.frontier import plot_frontier


def row(name, sampling, calls, validity, clock, nats, error):
    quality = {"validity": validity, "distinct": 1.0}
    cost = {"clock": clock, "nats_per_text": nats, "nats_error": error}
    return {"name": name, "sampling": sampling, "calls": calls, **quality, **cost}


ROWS = [
    row("jumps, verified", "jump:64:min_p=0.02", 20.0, 1.0, "clean stream", 45.0, 0.0),
    row("jumps, 8 calls", "jump:8:min_p=0.02", 8.0, 0.25, "jumps, 8 calls", 130.0, 6.0),
    row("refinement, 8", "refine:64:min_p=0.02", 33.0, 0.5, "an order of its own", None, None),
    row("in motion, 64 steps", "star:64:clock=ramp:8", 65.0, 0.75, "ramp:8", 46.0, 0.5),
    row("in motion, 32 steps", "star:32:clock=ramp:8", 33.0, 0.5, "ramp:8", 46.0, 0.5),
]


def test_a_line_joins_what_differs_in_the_number_of_steps():
    left, _ = plot_frontier(ROWS, 44.2).axes
    drawn = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in left.get_lines()}
    assert drawn == {
        "jumps": ([8.0, 20.0], [25.0, 100.0]),
        "refinement, 8": ([33.0], [50.0]),
        "in motion": ([33.0, 65.0], [50.0, 75.0]),
    }


def test_what_texts_are_draws_of_has_one_bar_and_its_number_beside_the_error():
    _, right = plot_frontier(ROWS, 44.2).axes
    assert sorted(patch.get_width() for patch in right.patches) == [45.0, 46.0, 130.0]
    labels = {text.get_text().strip(): text.get_position()[0] for text in right.texts}
    assert labels == {"45.0 (1.02x)": 45.0, "130.0 (2.94x)": 136.0, "46.0 (1.04x)": 46.5, "none": 0}
    places = dict(zip([tick.get_text() for tick in right.get_yticklabels()], right.get_yticks()))
    by_place = {patch.get_y() + patch.get_height() / 2: patch.get_width() for patch in right.patches}
    assert by_place[places["ramp:8"]] == 46.0 and by_place[places["clean stream"]] == 45.0


def test_texts_whose_validity_is_not_known_are_shown_by_how_many_are_distinct():
    rows = [{name: value for name, value in row.items() if name != "validity"} for row in ROWS]
    left, right = plot_frontier(rows).axes
    assert left.get_title(loc="left") == "distinct texts, %"
    assert all(set(line.get_ydata()) == {100.0} for line in left.get_lines())
    assert not right.get_lines() and "45.0" in {text.get_text().strip() for text in right.texts}
