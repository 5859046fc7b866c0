"""The course as a site: what cells put out, and no solutions."""

import json
import re

import pytest
from bs4 import BeautifulSoup

from autograder import site
from autograder.classroom.build import release
from autograder.course.course import Course

from .tiny_course import LESSON, NAME, write

pytestmark = pytest.mark.xdist_group("site")  # which is built once

OWN = 'print("the lesson\'s own words")'
WORDS = 'print("own words", double(torch.ones(1)).item())\nimport sys\nprint("a", "warning", file=sys.stderr)'
TEXT = "# Some words on the matter."


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A course, and its site."""
    folder = tmp_path_factory.mktemp("site")
    text = "# The length of $x$.\n#\n# <details><summary>Hint 1</summary>\n#\n# Say `_twice`.\n#\n# </details>"
    course = write(folder, "lesson", {TEXT: text, 'check("double")\n': f'check("double")\n\n# %%\n{WORDS}\n'})
    site.build(course, folder / "site")
    return course, folder / "site"


def page(folder, name=NAME):
    return BeautifulSoup((folder / f"{name}.html").read_text(), "html.parser")


def test_a_lesson_shows_what_its_cells_put_out(built):
    text = page(built[1]).article.get_text()
    assert "own words 2.0" in text
    assert "✓ passed 3 of 3 points" in text and "✓ passed 2 of 2 points" in text
    assert "a warning" not in text and "Traceback" not in text


def test_no_file_holds_a_solution(built):
    course, folder = built
    assert "raise NotImplementedError" in page(folder).article.get_text()
    hidden = [source.split("### BEGIN SOLUTION")[1].split("### END")[0] for source in LESSON.solutions.values()]
    lines = {line.strip() for text in hidden for line in text.splitlines() if line.strip()}
    assert {"return _twice(x)", "return double(double(x))"} <= lines
    files = [path for place in (folder, course.root / site.CACHE) for path in place.rglob("*") if path.is_file()]
    for path in files:
        if path.suffix in (".html", ".js", ".json", ".txt", ".ipynb", ".md") and "mathjax" not in path.parts:
            text = BeautifulSoup(path.read_text(), "html.parser").get_text()
            assert not [line for line in lines if line in text], path
            assert "SOLUTION" not in text
    assert not [path for path in files if path.suffix in (".ipynb", ".doctree", ".pickle")]


def test_the_students_cells_are_those_of_the_course(built, tmp_path):
    cells = json.loads(release(built[0], NAME, tmp_path).read_text())["cells"]
    sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    shown = [each.get_text().strip() for each in page(built[1]).select(".cell_input .highlight")]
    assert shown == ["".join(source).strip() for source in sources]


def test_pages_name_no_other_host(built):
    for path in built[1].glob("*.html"):
        soup = BeautifulSoup(path.read_text(), "html.parser")
        fetched = [each.get("src") or each.get("href") for each in soup.select("script[src], link[href], img[src]")]
        assert fetched
        assert not [url for url in fetched if re.match(r"(https?:)?//", url)], path


def test_the_first_page_lists_the_lessons(built):
    (link,) = page(built[1], "index").article.select("td a")
    assert (link.get_text(), link["href"]) == ("Lesson 90: twice", f"{NAME}.html")


@pytest.mark.thorough
def test_what_has_run_does_not_run_again_until_something_changes(built, tmp_path, monkeypatch):
    course, _ = built
    before = site.outputs(course, course.lesson(NAME))
    monkeypatch.setattr(site, "_run", lambda course, lesson: {"ran": []})
    assert site.outputs(course, course.lesson(NAME)) == before
    script = course.solutions / NAME / "lesson.py"
    script.write_text(script.read_text().replace("own words", "other words"))
    try:
        assert site.outputs(Course(course.root), Course(course.root).lesson(NAME)) == {"ran": []}
        assert len(list((course.root / site.CACHE).iterdir())) == 1, "what is out of date is removed"
    finally:
        script.write_text(script.read_text().replace("other words", "own words"))


@pytest.mark.thorough
def test_a_lesson_that_does_not_run_is_named_and_the_old_site_stays(tmp_path):
    course = write(tmp_path, "lesson", {OWN: "1 / 0"})
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "searchindex.js").write_text("old")
    with pytest.raises(site.SiteError, match=rf"(?s)lesson {NAME} does not run.*ZeroDivisionError"):
        site.build(course, folder)
    assert (folder / "searchindex.js").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["course", "site"]


def test_a_folder_with_something_else_in_it_is_left_alone(tiny, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="give another folder"):
        site.build(tiny, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_widget_is_replaced_by_words():
    widget = {"output_type": "display_data", "metadata": {}, "data": {site.WIDGET: {}, "text/plain": "interactive()"}}
    (shown,) = site._shown([widget])
    assert shown.data == {"text/html": site.SLIDERS}
