"""Verdicts on a page: readable in a light and in a dark theme, without colour, and by ear."""

import re

import pytest
import torch

from autograder.classroom import report
from autograder.judging.verdict import Outcome, PartVerdict, Verdict
from autograder.kernels.report import roofline_picture

PAGES = "#ffffff", "#111111"  # of JupyterLab's themes
SPEED = dict(flops=1e9, bytes=1e7, rate=1e15, bandwidth=3e12, floor=4e-6, seconds=9e-6)


def contrast(one, other):
    """Return the contrast of two colours, as WCAG 2 defines it."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour):
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(share * c for share, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def verdict(outcome):
    parts = (PartVerdict("small", 1, 0, "halved", "B=1"), PartVerdict("large", 2, 2))
    return Verdict("double", 3, None if outcome is Outcome.FAULT else 2, outcome, "halved", parts=parts)


def pages(outcome):
    row = {"name": "double", "cell": "check-double", "points": 3, "counts": 2, "outcome": str(outcome), "reason": "x"}
    picture = report.error_picture(torch.ones(3, 4), torch.zeros(3, 4, dtype=torch.float64), "out")
    return report.as_html(verdict(outcome), picture + roofline_picture(SPEED)), report.summary_html([row])


@pytest.mark.parametrize("outcome", Outcome)
def test_text_has_contrast_in_both_themes(outcome):
    for html in pages(outcome):
        coloured = [style for style in re.findall(r"style='([^']*)'", html) if re.search(r"(^|;)color:", style)]
        assert coloured
        for style in coloured:
            text, ground = (re.search(rf"(?:^|;){key}:(#\w{{6}})", style)[1] for key in ("color", "background"))
            assert contrast(text, ground) >= 4.5, style
        assert set(re.findall(r"<text [^>]*?fill='([^']*)'", html)) <= {"currentColor"}


@pytest.mark.parametrize("outcome", Outcome)
def test_what_is_no_text_stands_out_in_both_themes(outcome):
    for html in pages(outcome):
        colours = set(re.findall(r"(?:background:|solid |fill='|stroke=')(#\w{6})", html))
        assert colours
        for colour in colours:
            assert all(contrast(colour, page) >= 3 for page in PAGES), colour


def test_outcomes_are_told_apart_by_a_word_and_a_sign():
    shown = {outcome: re.sub("<[^>]+>", "", report.chip(outcome)) for outcome in Outcome}
    assert len(set(shown.values())) == len(Outcome)
    assert len({text[0] for text in shown.values()}) == 4
    for outcome, text in shown.items():
        assert str(outcome) in text
        assert all(text in re.sub("<[^>]+>", "", html) for html in pages(outcome))


def test_pictures_say_what_they_show():
    labels = re.findall(r"<svg [^>]*aria-label='([^']+)'", pages(Outcome.WRONG)[0])
    assert len(labels) == 2
    assert "error of out" in labels[0]
    assert "250 TFLOP/s" in labels[1] and "111 TFLOP/s" in labels[1]


@pytest.mark.parametrize("share", [1.0, 0.95, 0.01])
def test_under_the_roofline_both_marks_are_seen_and_no_label_runs_over_an_axis(share):
    picture = roofline_picture(SPEED | {"seconds": SPEED["floor"] / share})
    last = [re.search(f"<{mark} [^>]*", picture[: picture.rindex("<text x=")]) for mark in ("rect", "circle")]
    assert "fill='none'" in last[1][0] and last[0].start() < last[1].start()  # the one is seen through the other
    labels = re.findall(r"<text x='(\d+)[^>]*text-anchor='(\w+)'|<text x='(\d+)'", picture)
    assert "floor: " in picture and all(int(at or start) > 20 for at, _, start in labels)
    assert ">FLOP/s<" in picture
