import matplotlib
import matplotlib.pyplot as plt
import pytest
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


def test_lines_are_drawn_with_what_was_predicted_beside_them():
    figure = plots.lines(
        (1, 2, 4),
        {"naive": (3, 5, 9), "absorb": (1, 4, 16)},
        xlabel="S",
        ylabel="ms",
        log="x",
        predicted={"absorb": (1, 2, 4)},
        points={"a kernel": ([2], [3])},
        horizontal={"median": 2.5},
        vertical={"break-even": 3},
    )
    axes = drawn(figure)
    found = {line.get_label(): line for line in axes.lines}
    assert list(found) == ["naive", "absorb", "absorb, predicted", "a kernel", "median: 2.5", "break-even: 3"]
    assert list(found["naive"].get_ydata()) == [3, 5, 9]
    assert found["absorb"].get_color() == found["absorb, predicted"].get_color() != found["naive"].get_color()
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "4"]
    assert axes.get_ylim()[0] == 0


def test_stacked_bars_stand_one_behind_the_other():
    parts = {"mul": {"read": 4, "written": 2}, "to": {"read": 1, "written": 3}}
    axes = drawn(plots.stacked(parts, unit="bytes"))
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 4), (0, 1), (4, 2), (1, 3)]


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


def test_global_style_is_left_alone():
    before = dict(matplotlib.rcParams)
    plots.bars({"a": 1}, unit="x")
    assert dict(matplotlib.rcParams) == before
