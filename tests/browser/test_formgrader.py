"""An instructor looks at graded work: nbgrader's formgrader on our gradebook, and a feedback page."""

import re

import pytest

from autograder.classroom.feedback import write_feedback
from autograder.classroom.grade import Classroom
from autograder.course.course import Course
from autograder.course.sample import render, submissions

from .conftest import WIDTHS

LESSON = "00_start_here"
STUDENTS = "ada", "eli"


@pytest.fixture(scope="module")
def room(checkout):
    """A class of two students, graded, in the checkout that JupyterLab shows."""
    course = Course.at(checkout)
    room = Classroom(course, checkout / "classroom", isolation="process")
    for each in submissions(course, LESSON):
        if each.student in STUDENTS:
            path = room.submitted / each.student / LESSON / f"{LESSON}.ipynb"
            path.parent.mkdir(parents=True)
            path.write_bytes(render(course.lesson(LESSON), each))
    room.grade()
    _, problems = write_feedback(room)
    assert problems == []
    return room


def test_formgrader_shows_the_class_and_a_verdict(room, new_page, lab, shoot):
    page = new_page()
    page.goto(lab("lab"))  # where one comes from; formgrader itself does not log in
    page.goto(lab(f"formgrader/gradebook/{LESSON}"))
    page.get_by_role("link", name=LESSON).last.click()
    page.get_by_role("link", name="Submission #1").click()
    page.locator("iframe, #notebook-container").first.wait_for()
    text = page.locator("body").inner_text()
    assert re.search(r"tensor_bytes: ✓ passed 3 of 3 points|tensor_bytes: . (wrong|partial) ", text)
    assert page.locator("input.score").count() >= 5
    shoot(page, "formgrader_submission")
    page.goto(lab("formgrader/manage_students"))
    for student in STUDENTS:
        page.get_by_text(student).first.wait_for()
    shoot(page, "formgrader_students")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_feedback_page_is_accessible(room, new_page, served, shoot, serious, width):
    page = new_page(width)
    page.goto(f"{served(room.folder)}/feedback/eli/{LESSON}/{LESSON}.html")
    table = page.locator("table").first
    table.get_by_text("partial").wait_for()
    assert "◐ partial" in table.inner_text() and "✗ wrong" in table.inner_text()
    shoot(page, "feedback")
    assert serious(page, ".tex2jax_ignore") == []
    assert page.locator("img:not([alt]), svg[role=img]:not([aria-label])").count() == 0
