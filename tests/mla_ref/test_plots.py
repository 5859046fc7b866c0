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


def test_global_style_is_left_alone():
    before = dict(matplotlib.rcParams)
    plots.bars({"a": 1}, unit="x")
    assert dict(matplotlib.rcParams) == before
