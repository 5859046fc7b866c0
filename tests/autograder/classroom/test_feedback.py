"""A feedback page is the one that `nbgrader generate_feedback` writes."""

import re

import pytest
from bs4 import BeautifulSoup

from autograder.classroom.feedback import write_feedback
from autograder.classroom.grade import Classroom

LESSON = "00_start_here"


@pytest.fixture
def pages(records, entry):
    """Return two functions: write a student's page, given cells of their own; have nbgrader itself write it."""

    def ours(*own):
        ada = entry("ada", *own)
        with records.staged([ada]) as recorder:
            assert records.enter(recorder, ada, [job.settled for job in ada.jobs]).problem is None
        (page,), problems = write_feedback(Classroom(records.course, records.folder))
        assert problems == []
        return page.read_text()

    def nbgraders():
        from nbgrader.apps import NbGraderAPI
        from nbgrader.coursedir import CourseDirectory

        config = records.config()
        assert NbGraderAPI(CourseDirectory(config=config), config=config).generate_feedback(LESSON, "ada")["success"]
        return (records.folder / "feedback" / "ada" / LESSON / f"{LESSON}.html").read_text()

    return ours, nbgraders


def _parsed(page):
    """Return a page as nbconvert writes it again after it has parsed it, without the id of the table's cell."""
    return re.sub(r'id="cell-id=[0-9a-f]{8}"', "", str(BeautifulSoup(page, features="html.parser")))


def test_a_page_is_nbgraders_own(pages):
    ours, nbgraders = pages
    assert _parsed(ours("some *words*, a <b>tag</b> and $a<b$", "```python\nx = 1\n```")) == _parsed(nbgraders())


def test_the_instructors_settings_hold(pages, tmp_path):
    ours, nbgraders = pages
    (tmp_path / "nbgrader_config.py").write_text('c = get_config()\nc.HTMLExporter.anchor_link_text = "§§"\n')
    page = ours()
    assert "§§" in page
    assert _parsed(page) == _parsed(nbgraders())


def test_an_image_without_a_description_gets_one_as_nbconvert_has_it(pages):
    ours, nbgraders = pages
    page = ours('<img src="picture.png">')
    assert "No description has been provided" in page
    assert _parsed(page) == _parsed(nbgraders())


def test_a_tag_that_is_left_open_ends_with_its_cell(pages):
    ours, _ = pages
    assert "<div><b>bold</b></div>" in ours("</div></div></div>\n\n<div><b>bold").replace("\n", "")


def test_a_second_run_writes_no_page(pages, records, monkeypatch):
    from autograder.classroom.converters import Pages

    pages[0]()
    monkeypatch.setattr(Pages, "convert", lambda *args: pytest.fail("a page was written again"))
    assert len(write_feedback(Classroom(records.course, records.folder))[0]) == 1
