"""An instructor looks at graded work: nbgrader's formgrader on our gradebook, and a feedback page."""

import re

import pytest

from autograder.classroom.feedback import write_feedback
from autograder.classroom.grade import Classroom
from autograder.course.course import Course
from autograder.course.sample import render, submissions

from .conftest import WIDTHS, dashboard

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


@pytest.mark.thorough
def test_the_dashboards_links_lead_to_a_students_work_in_formgrader(room, new_page, lab, shoot):
    pytest.importorskip("voila", reason="no Voilà here: pip install 'mla-course[dashboard]'")
    page = new_page()
    page.goto(lab("lab"))  # where an instructor is logged in
    with dashboard(room.folder, "--formgrader", lab().partition("/?")[0]) as address:
        page.goto(address)
        page.get_by_label("Open").select_option("eli")

        def follow(name):
            with page.expect_popup() as opened:
                page.get_by_role("link", name=name).first.click()
            return opened.value

        work = follow("open")
        work.locator("input.score").first.wait_for()
        assert "these are elements" in work.locator("body").inner_text()  # what the judge says of eli's tensor_bytes
        shoot(work, "formgrader_from_dashboard")
        follow("This student in formgrader").get_by_text("Overall Score").first.wait_for()
        page.get_by_role("button", name="Exercise", exact=True).click()
        follow("Submissions in formgrader").get_by_role("link", name="Submission #2").wait_for()


@pytest.mark.thorough
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
