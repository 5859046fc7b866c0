"""The dashboard in a browser: who is lost, which exercise is broken and who copied, each found in three clicks."""

import json
import os
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ..autograder.dashboard import simulated
from .conftest import dashboard

pytest.importorskip("voila", reason="no Voilà here: pip install 'mla-course[dashboard]'")

VIEWS = "Class", "Exercise", "Student", "Integrity", "Operations"
SHOTS = os.environ.get("MLA_SCREENSHOTS")


@pytest.fixture(scope="module")
def made():
    """A class of 100 with five bad exercises, a copied pair and a lost student."""
    return simulated.make(100, 24, 4, seed=1)


@pytest.fixture(scope="module")
def address(made, tmp_path_factory):
    """The address of a dashboard of that class, token and all, as `mla-course dashboard` prints it."""
    with dashboard(simulated.write(made, tmp_path_factory.mktemp("class"))) as found:
        yield found


@pytest.fixture
def board(new_page, address):
    """A function that opens the dashboard in a window of a width."""

    def opened(width=1280):
        page = new_page(width)
        page.goto(address)
        page.get_by_role("heading", name="Students who need a look").wait_for()
        return page

    return opened


def _view(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def test_a_lost_student_is_found_in_a_click(board, made):
    page = board()
    page.get_by_role("button", name=re.compile(f"{made.lost[1:]}: has not handed in the last")).click()
    page.get_by_role("heading", name=f"Made Up {made.lost[1:]}").wait_for()
    page.get_by_text("has not handed in the last").wait_for()


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", simulated.KINDS)
def test_a_broken_exercise_is_found_in_a_click(board, made, kind):
    page = board()
    name = next(exercise for (_, exercise), its in made.bad.items() if its == kind)
    page.get_by_role("button", name=f"⚑ {name}").click()
    page.get_by_text(f"⚑ {kind}.").first.wait_for()
    assert page.get_by_role("img").count() >= 1


def test_a_copied_pair_is_found_in_a_click(board, made):
    page = board()
    one, two = (student[1:] for student in made.copied[0])
    page.get_by_role("button", name=re.compile(f"({one}.*{two}|{two}.*{one}).*(likely|certain)")).click()
    page.get_by_role("heading", name="Integrity").wait_for()
    assert page.locator(".pair > div").count() == 2


def test_a_search_leaves_who_fits(board):
    page = board()
    page.get_by_label("Search").fill("0042")
    page.get_by_text("1 students; page 1 of 1").wait_for()
    assert page.get_by_role("cell", name="Made Up 0042").count() == 1


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("width", [1280, 800])
def test_every_view_is_accessible_and_fits_the_window(board, serious, width, tmp_path):
    page = board(width)
    for view in VIEWS:
        _view(page, view)
        page.wait_for_timeout(700)
        page.screenshot(path=Path(SHOTS or tmp_path) / f"dashboard-{view.lower()}-{width}.png", full_page=True)
        assert serious(page) == [], view
        wide = page.evaluate("document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth")
        assert wide <= 0, f"{view} is {wide} pixels wider than the window"


def test_nothing_is_asked_of_another_host(board):
    page = board()
    for view in VIEWS:
        _view(page, view)
    assert [url for url in page.asked if not re.match(r"(http|ws)://127\.0\.0\.1:|data:|blob:", url)] == []


def test_without_the_token_there_is_nothing(address):
    """Neither the page, nor a kernel, nor what a kernel says."""
    base, token = address.split("/?token=")
    for path in ("/", "/api/kernels", "/voila/render/dashboard.ipynb"):
        try:
            with urllib.request.urlopen(base + path) as answer:
                assert "/login" in answer.url, path
                assert "Made Up" not in answer.read().decode()
        except urllib.error.HTTPError as error:
            assert error.code in (403, 404), path
    with urllib.request.urlopen(address) as answer:
        kernel = re.search(r'"kernelId": "([\w-]+)"', answer.read().decode())[1]
    for wrong in ("", "?token=x"):
        request = urllib.request.Request(
            f"{base}/api/kernels/{kernel}/channels{wrong}",
            headers={
                "Upgrade": "websocket",
                "Connection": "Upgrade",
                "Sec-WebSocket-Key": "x3JJHMbDL1EzLkh9GBhXDw==",
                "Sec-WebSocket-Version": "13",
            },
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        assert refused.value.code == 403
    assert json.dumps(token)
