from matplotlib.colors import to_hex

from diffusers_text_nfdm.plots.few_calls import plot_few_calls


def row(checkpoint, sampling, calls, validity, seconds):
    return {
        "checkpoint": checkpoint, "sampling": sampling, "calls": calls, "validity": validity, "seconds_1": seconds,
        "seconds_64": seconds,
    }  # fmt: skip


def test_a_checkpoint_has_one_colour_and_a_line_goes_from_few_calls_to_many():
    # Four calls were slower than six: times are noisy.
    rows = [
        row("ours", "jump:6", 6, 0.7, 0.02), row("ours", "jump:4", 4, 0.5, 0.03),
        row("ours", "refine:64", 32, 0.9, 0.1),
        row("masked", "masked:16", 16, 0.0, 0.05), row("masked", "masked:16:remasking=random", 16, 0.1, 0.05),
    ]  # fmt: skip
    for axes in plot_few_calls(rows).axes:
        jump, refine, masked, random = axes.get_lines()
        assert list(jump.get_ydata()) == [50, 70]
        assert to_hex(jump.get_color()) == to_hex(refine.get_color()) != to_hex(masked.get_color())
        assert to_hex(masked.get_color()) == to_hex(random.get_color())
        assert len({line.get_marker() for line in (jump, refine, masked, random)}) == 4
