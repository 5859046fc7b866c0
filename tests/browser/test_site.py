"""The static site as a visitor meets it."""

import re

import pytest

from autograder import site
from autograder.course.course import Course

from .conftest import WIDTHS

LESSON = "00_start_here"


@pytest.fixture(scope="module")
def address(checkout, served):
    """Where the site of a quick lesson is served."""
    site.build(Course.at(checkout), checkout / "site", [LESSON])
    return served(checkout / "site")


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_are_accessible_and_ask_no_other_host(address, new_page, serious, shoot, width, theme):
    page = new_page(width, theme)
    for name in ("index", LESSON, "search"):
        page.goto(f"{address}/{name}.html")
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        if name == LESSON:
            page.locator(".MathJax math").first.wait_for(state="attached")
        shoot(page, f"site_{name}_{theme}")
        assert serious(page) == []
        assert page.locator("img:not([alt]), img[alt='']").count() == 0
    assert [url for url in page.asked if not url.startswith((address, "data:", "about:"))] == []


def test_a_picture_is_told_and_its_code_opens(address, new_page):
    page = new_page()
    page.goto(f"{address}/{LESSON}.html")
    assert "flat at 989 TFLOP/s" in page.locator("img[alt*='H100']").first.get_attribute("alt")
    code = page.get_by_text("plots.roofline(h100, ways")
    assert not code.is_visible()
    page.get_by_text("Show code cell source").first.click()
    code.wait_for()


def test_the_search_finds_a_word_of_a_lesson(address, new_page, shoot):
    page = new_page()
    page.goto(f"{address}/index.html")
    page.keyboard.press("Control+K")
    page.keyboard.type("itemsize")
    page.keyboard.press("Enter")
    found = page.locator("#search-results a").first
    found.wait_for()
    assert "Lesson 00" in found.inner_text()
    shoot(page, "site_search_results")
    found.click()
    page.wait_for_url(re.compile(rf"{LESSON}\.html"))


def test_the_theme_changes_by_a_button_and_stays(address, new_page):
    page = new_page()
    page.goto(f"{address}/index.html")
    for theme in ("Dark", "Light", "Dark"):
        page.get_by_role("button", name="Color mode").click()
        page.get_by_role("button", name=theme, exact=True).click()
        assert page.evaluate("document.documentElement.dataset.theme") == theme.lower()
    page.goto(f"{address}/{LESSON}.html")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
