import base64
import itertools
import math

import matplotlib
import matplotlib.pyplot as plt
import pytest
from bs4 import BeautifulSoup
from matplotlib.figure import Figure

from mla_ref import DEVICES, MLAConfig, attention_cost, attention_mask, plots

V3 = MLAConfig.preset("deepseek_v3")


@pytest.fixture(autouse=True)
def headless():
    backend = matplotlib.get_backend()
    plt.switch_backend("agg")
    yield
    plt.switch_backend(backend)


def drawn(figure):
    assert isinstance(figure, Figure)
    assert not plt.get_fignums(), "a notebook would show the figure twice"
    figure.canvas.draw()
    return figure.axes[0]


def test_roofline_places_modelled_work_on_the_roof_and_measured_work_below():
    cost = attention_cost("absorb", V3, batch=64, context=4096)
    h100 = DEVICES["h100"]
    axes = drawn(
        plots.roofline([h100, DEVICES["t4"]], {"model": cost, "run": (cost, 2 * cost.time(h100))}, dtype="float16")
    )
    lines = {line.get_label(): line for line in axes.lines}
    assert set(lines) == {h100.name, "T4", "model", "run"}
    (modelled,), (measured,) = (lines[name].get_ydata() for name in ("model", "run"))
    assert modelled == pytest.approx(h100.attainable(cost.intensity) / 1e12)
    assert measured == pytest.approx(modelled / 2)


def test_roofline_takes_one_device_and_no_points():
    axes = drawn(plots.roofline(DEVICES["a100_80gb"], {}, title="A100"))
    assert axes.get_title(loc="left") == "A100"


@pytest.mark.parametrize("log", [False, True])
def test_bars_show_every_label_and_value(log):
    axes = drawn(plots.bars({"mha": 32768, "mla": 0.5625}, unit="words", log=log, reference=100))
    assert [text.get_text() for text in axes.get_yticklabels()] == ["mha", "mla"]
    assert [text.get_text().strip() for text in axes.texts] == ["32,768", "0.5625"]
    assert axes.get_xlabel() == "words"


def test_matrix_draws_a_mask():
    axes = drawn(plots.matrix(attention_mask(2, 3)[0], annotate=True, title="causal"))
    assert [text.get_text() for text in axes.texts] == ["1", "1", "0", "1", "1", "1"]
    with pytest.raises(ValueError, match="values has 1 dimensions"):
        plots.matrix([1, 2, 3])


def test_squares_are_coloured_by_number_and_hold_their_text():
    figure = plots.squares(
        {"one": [[0, 1, 1]], "two": [[1, 2], [0, 0]]}, ("masked", "program 0", "program 1"), texts={"one": [[7, 8, 9]]}
    )
    one = drawn(figure)
    assert [text.get_text() for text in one.texts] == ["7", "8", "9"]
    colors = one.images[0].to_rgba(one.images[0].get_array())
    assert tuple(colors[0, 0]) == (1, 1, 1, 1) != tuple(colors[0, 1]) == tuple(colors[0, 2])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["masked", "program 0", "program 1"]


def test_flow_connects_boxes_by_name():
    figure = plots.flow(
        {"h": (0, 0, "hidden"), "c": (2, 1, "latent")}, [("h", "c", "W")], groups={"cached": ["c"]}, title="a layer"
    )
    axes = drawn(figure)
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["hidden", "latent", "W"]
    plain, cached = (text.get_bbox_patch().get_facecolor() for text in axes.texts[:2])
    assert plain == (1, 1, 1, 1) != cached
    with pytest.raises(KeyError):
        plots.flow({"h": (0, 0, "hidden")}, [("h", "nowhere")])


def test_page_table_colours_a_slot_for_every_token_on_both_sides():
    figure = plots.page_table([[5, 0], [], [2]], [7, 0, 4], page_size=4, num_pages=6, title="three sequences")
    left = drawn(figure)
    assert left.get_title(loc="left") == "three sequences"
    assert [text.get_text() for text in left.texts] == [
        *("sequence 0, length 7", "5", "0"), "sequence 1, length 0", *("sequence 2, length 4", "2")
    ]  # fmt: skip
    for axes in figure.axes:
        colors = [tuple(slot.get_facecolor()) for slot in axes.patches]
        assert sum(color != (1, 1, 1, 1) for color in colors) == 11
        assert len(set(colors)) == 3
    with pytest.raises(ValueError, match=r"sequence 1 holds pages \[6\], expected 0 <= page < 6"):
        plots.page_table([[5], [6]], [1, 1], page_size=4, num_pages=6)
    with pytest.raises(ValueError, match="sequence 0 has 5 tokens and 1 pages of 4"):
        plots.page_table([[5]], [5], page_size=4, num_pages=6)


def test_stacked_bars_end_at_their_sum():
    axes = drawn(plots.stacked({"eager": {"cache": 2.0, "scores": 3.0}, "fused": {"cache": 1.5}}, unit="bytes"))
    assert [text.get_text().strip() for text in axes.texts] == ["5", "1.5"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["cache", "scores"]


def test_parts_beside_each_other_on_a_logarithmic_axis():
    figure = plots.stacked({"naive": {"weights": 0.5, "made": 300.0}, "fused": {"weights": 0.5}}, unit="GB", log=True)
    axes = drawn(figure)
    assert axes.get_xscale() == "log" and all(bar.get_x() == 0 for bar in axes.patches)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["naive\nin all 300.5", "fused\nin all 0.5"]
    tops = sorted((bar.get_y(), bar.get_y() + bar.get_height()) for bar in axes.patches)
    assert all(below >= end - 1e-9 for (_, end), (below, _) in itertools.pairwise(tops))


def test_a_dotted_line_is_seen_on_top_of_others():
    lines = {"exact": ([1, 2], [1, 2]), "rounded": ([1, 2], [1, 2])}
    axes = drawn(plots.curves({"": lines}, xlabel="x", ylabel="y", dotted=["exact"]))
    exact, rounded = axes.lines
    assert exact.zorder > rounded.zorder and exact.get_markerfacecolor() == "none"


def test_curves_of_one_name_have_one_colour_in_every_panel():
    x = [1, 2, 4]
    panels = {
        "a": {"naive, model": (x, x), "naive, measured": (x, x)},
        "b": {"absorb": (x, x), "naive": (x, [1, 1, 9])},
    }
    figure = plots.curves(
        panels, xlabel="B", ylabel="µs", log="xy", dotted=["naive, model"], verticals={"break-even": 3}
    )
    drawn(figure)
    left, right = figure.axes
    colors = {line.get_label(): line.get_color() for axes in figure.axes for line in axes.lines}
    assert colors["naive, model"] == colors["naive, measured"] == colors["naive"] != colors["absorb"]
    assert left.lines[0].get_linestyle() == ":" and left.get_xscale() == right.get_yscale() == "log"
    assert left.get_ylim() == right.get_ylim()
    assert [line.get_xdata()[0] for axes in figure.axes for line in axes.lines if line.get_label() == "break-even"] == [
        3, 3
    ]  # fmt: skip


def test_matrices_place_blocks_from_the_upper_left_corner():
    axes = drawn(plots.matrices({"x": (4, 6, []), "out": (4, 4, [(1, 2, 1, 2, "red", "tile")])}))
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["x", "out", "tile"]
    assert [(p.get_x(), p.get_y(), p.get_width(), p.get_height()) for p in axes.patches] == [
        (0, 0, 6, 4), (8, 0, 4, 4), (10, 1, 2, 1)
    ]  # fmt: skip


def test_processors_with_a_program_are_coloured():
    figure = plots.processors({"B = 1": 1, "B = 200": 200}, total=132)
    drawn(figure)
    free = [sum(patch.get_facecolor()[0] > 0.9 for patch in axes.patches) for axes in figure.axes]
    assert free == [131, 0]
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["B = 1\n1 program", "B = 200\n200 programs"]


def test_rescaling_shrinks_older_weights_by_alpha():
    figure = plots.rescaling([0.0, 1.0, 3.0], 2, title="three tokens")
    drawn(figure)
    first, last = ([patch.get_height() for patch in axes.patches] for axes in figure.axes)
    assert first == pytest.approx([math.exp(-1), 1])
    assert last == pytest.approx([math.exp(-1), 1, math.exp(-3), math.exp(-2), 1])  # two dashed ones before
    assert figure.axes[1].texts[0].get_text() == "m = 3.00, α = 0.14, ℓ = 1.19"


def test_timeline_draws_every_bar_where_it_runs():
    axes = drawn(
        plots.timeline({"in turn": [("load\n0", 0, 0, 2), ("load\n1", 0, 2, 2)], "ahead": [("look", 1, 1, 1)]})
    )
    assert [(p.get_x(), p.get_width()) for p in axes.patches] == [(0, 2), (2, 2), (1, 1)]
    assert axes.patches[0].get_facecolor() == axes.patches[1].get_facecolor() != axes.patches[2].get_facecolor()


EACH = {
    "roofline": lambda: plots.roofline(DEVICES["t4"], {"a <b>": attention_cost("absorb", V3, batch=1, context=9)}),
    "bars": lambda: plots.bars({"mha": 3, "a <b>": 2}, unit="GB", title="bytes"),
    "matrix": lambda: plots.matrix([[1, 2], [3, 4]], title="a <b>", annotate=True),
    "squares": lambda: plots.squares({"a <b>": [[0, 1, 1]]}, ("masked", "seen")),
    "flow": lambda: plots.flow(
        {"h": (0, 0, "a <b>"), "c": (2, 1, "latent")}, [("h", "c", "$W^{Q}$")], groups={"cached": ["c"]}
    ),
    "page_table": lambda: plots.page_table([[1], []], [3, 0], page_size=4, num_pages=3, title="a <b>"),
    "stacked": lambda: plots.stacked({"a <b>": {"cache": 2.0, "scores": 3.0}}, unit="bytes"),
    "curves": lambda: plots.curves({"": {"a <b>": ([1, 2, 3], [4, 9, 5])}}, xlabel="B", ylabel="us"),
    "matrices": lambda: plots.matrices({"a <b>": (4, 6, [(0, 0, 1, 1, "red", "tile")])}),
    "processors": lambda: plots.processors({"a <b>": 17}),
    "rescaling": lambda: plots.rescaling([0.0, 1.0, 3.0], 2, title="a <b>"),
    "timeline": lambda: plots.timeline({"a <b>": [("load", 0, 0, 2)]}),
}
SAYS = {
    "roofline": "flat at 65 TFLOP/s",
    "bars": "mha: 3.",
    "matrix": "Row 1: 3, 4.",
    "squares": "1 masked, 2 seen",
    "flow": "a <b> → latent (W^Q). cached: latent",
    "page_table": "Sequence 0, length 3: pages 1. Sequence 1, length 0: no page. Pool of 3 pages of 4 tokens, free: 0",
    "stacked": "cache 2, scores 3; in all 5",
    "curves": "4 at 1, 9 at 2, 5 at 3",
    "matrices": "1 × 1 at (0, 0) tile",
    "processors": "17 of 132",
    "rescaling": "After 3 tokens m = 3.00",
    "timeline": "load 0 to 2",
}


def test_every_picture_of_the_module_is_told():
    drawing = {name for name, each in vars(plots).items() if getattr(each, "__module__", "") == plots.__name__}
    assert {name for name in drawing if name[0] != "_"} == set(EACH)


@pytest.mark.parametrize("name", EACH)
def test_a_notebook_shows_a_picture_once_with_what_it_shows_in_words(name):
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    figure = EACH[name]()
    assert SAYS[name] in figure.alt
    assert "a <b>" in figure.alt
    shell = InteractiveShell.instance()
    with capture_output() as captured:
        assert shell.display_formatter.format(figure) == ({}, {}), "it would be shown twice"
    (output,) = captured.outputs
    assert output.data["text/plain"] == figure.alt
    (image,) = BeautifulSoup(output.data["text/html"], "html.parser").find_all(True)
    assert image.name == "img" and image["alt"] == figure.alt
    assert base64.b64decode(image["src"].partition("base64,")[2]).startswith(b"\x89PNG")


def test_lines_are_told_apart_without_colour():
    names = [f"form {n}" for n in range(8)] + [f"form 0, variant {n}" for n in range(2)]
    lines = {name: ([1, 2], [n, n]) for n, name in enumerate(names)}
    special = dict(dotted=["form 1, model", "form 2, model"], points=["form 3, run", "form 4, run"])
    lines |= {name: ([1, 2], [3, 3]) for names in special.values() for name in names}
    axes = drawn(
        plots.curves({"": lines}, xlabel="x", ylabel="y", **special, verticals={"one": 1, "two": 2, "three": 1})
    )
    assert len(axes.lines) == len(lines) + 3
    assert len({(line.get_linestyle(), str(line._dash_pattern), line.get_marker()) for line in axes.lines}) == len(
        axes.lines
    )
    roofs = drawn(plots.roofline(list(DEVICES.values())[:4], {})).lines
    assert len({line.get_linestyle() for line in roofs}) == 4


def test_areas_are_told_apart_without_colour():
    stacked = drawn(plots.stacked({"row": dict.fromkeys("abcdef", 1.0)}, unit="bytes"))
    assert len({bar.get_hatch() for bar in stacked.patches}) == 6
    squares = drawn(plots.squares({"": [[0, 1, 2, 3, 4]]}, "abcde"))
    assert len({line.get_marker() for line in squares.lines}) == 4
    boxes = {name: (n, 0, name) for n, name in enumerate("abc")}
    flow = drawn(plots.flow(boxes, [], groups={name: [name] for name in "abc"}))
    assert len({text.get_bbox_patch().get_linestyle() for text in flow.texts}) == 3


def test_global_style_is_left_alone():
    before = dict(matplotlib.rcParams)
    plots.bars({"a": 1}, unit="x")
    assert dict(matplotlib.rcParams) == before
