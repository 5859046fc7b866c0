"""A feedback page is the one that `nbgrader generate_feedback` writes."""

import errno
import re
import shutil

import pytest
from bs4 import BeautifulSoup
from sqlalchemy.exc import OperationalError

from autograder.classroom.converters import POLICY
from autograder.classroom.export import rows, unentered
from autograder.classroom.feedback import write_feedback
from autograder.classroom.grade import Classroom
from autograder.classroom.preprocessors import GetVerdicts, SaveVerdicts
from autograder.classroom.scoreboard import remarks

from ..tiny_course import NAME, RIGHT, WRONG, hand_in, notebook

LESSON = "00_start_here"


def times(entries):
    return {(entry.student, entry.lesson.name): entry.timestamp for entry in entries}


@pytest.fixture
def pages(records, entry):
    """Return two functions: write a student's page, given cells of their own; have nbgrader itself write it."""

    def ours(*own, code=""):
        ada = entry("ada", *own, code=code)
        with records.staged(times([ada])) as recorder:
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
    """Return a page as nbconvert writes it again after it has parsed it, without the id of the table's cell and our
    policy on what it may fetch."""
    page = page.replace(f"\n{POLICY}", "")
    return re.sub(r'id="cell-id=[0-9a-f]{8}"', "", str(BeautifulSoup(page, features="html.parser")))


def test_a_page_is_nbgraders_own(pages):
    ours, nbgraders = pages
    assert _parsed(ours("some *words*, a <b>tag</b> and $a<b$", "```python\nx = 1\n```")) == _parsed(nbgraders())


def test_the_instructors_settings_hold(pages, tmp_path):
    ours, nbgraders = pages
    (tmp_path / "nbgrader_config.py").write_text('c = get_config()\nc.HTMLExporter.anchor_link_text = "§§"\n')
    page = ours()
    assert "§§" in _parsed(page)
    assert _parsed(page) == _parsed(nbgraders())


HOSTILE = """</pre></code></div></div></div><script>document.title = 'mine'</script>
<style>table {display: none}</style><base href="https://example.org/"><meta http-equiv="refresh" content="0;url=/">

<img src=x onerror=alert(1)> <svg onload=alert(1)></svg> <iframe src="/"></iframe> <form action="/"><button>ok</form>

[a link](javascript:alert(1)) [another](..%2f..%2fsubmitted%2feve%2fpage.html) ![](https://example.org/seen.png)

<div style="position:fixed;top:0;left:0;width:100%;height:100%" id="comment-tensor_bytes">passed, 15 of 15</div>

$$\\rlap{\\kern-50em\\raise90em{\\Huge passed}}$$ `````</code> ![](attachment:none.png)
```
<script>alert(2)</script>"""


def _student_text(page):
    soup = BeautifulSoup(page, features="html.parser")
    (own,) = [c for c in soup.select(".text_cell_render") if c.get_text().strip().startswith("The student's own text")]
    return own


def test_what_a_student_writes_is_shown_and_nothing_of_it_is_markup(pages):
    ours, nbgraders = pages
    for page in (ours(HOSTILE), nbgraders()):
        own = _student_text(page)
        assert own.pre.get_text().strip() == HOSTILE
        assert {tag.name for tag in own.find_all(True)} <= {"p", "strong", "div", "pre", "span", "code"}
        assert not own.find_all(attrs={"style": True}) + own.find_all(id=True)


def test_code_and_text_are_shown_in_the_order_in_which_they_are_read(pages):
    turned, joined = "\u202etxet\u2066 a\u200bb \u3164", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
    page = pages[0](f"{turned} {joined}", code=f"\n# {turned} {joined}")
    assert page.count(f"\ufffdtxet\ufffd a\ufffdb \ufffd {joined}") == 2
    assert not set("\u202e\u2066\u200b\u3164") & set(page)


def test_formgrader_shows_it_as_text_too(pages, records):
    from nbconvert.exporters import HTMLExporter
    from nbgrader.server_extensions.formgrader import handlers

    pages[0](HOSTILE)
    config = records.config()
    config.HTMLExporter.template_name = "formgrade"
    config.HTMLExporter.extra_template_basedirs = [handlers.template_path]
    path = records.folder / "autograded" / "ada" / LESSON / f"{LESSON}.ipynb"
    page, _ = HTMLExporter(config=config).from_filename(str(path), resources={"index": 0, "total": 1, "base_url": ""})
    own = _student_text(page)
    assert own.pre.get_text().strip() == HOSTILE
    assert not own.find_all(["script", "style", "a", "img", "svg", "iframe", "form", "base", "meta"])


def test_a_page_runs_no_script_but_mathjax_and_fetches_nothing_else(pages):
    soup = BeautifulSoup(pages[0](), features="html.parser")
    policy = soup.head.find(attrs={"http-equiv": "Content-Security-Policy"})
    assert soup.head.find(True) is policy, "a policy holds for what stands behind it"
    rules = dict(rule.strip().split(" ", 1) for rule in policy["content"].split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "'unsafe-inline'" not in rules["script-src"]
    for script in soup.find_all("script", src=True):
        assert any(script["src"].startswith(source) for source in rules["script-src"].split())


def test_formulas_in_what_the_judge_quotes_are_left_alone(pages):
    soup = BeautifulSoup(pages[0](), features="html.parser")
    found = soup.find_all(string=re.compile("these are <elements>"))
    assert len(found) > 2
    assert all(each.find_parent(class_="tex2jax_ignore") for each in found)


def test_text_in_which_nbconvert_looks_for_formulas_for_hours_takes_a_moment(pages):
    text = r"\begin{a}" * 60_000
    assert text in pages[0](text)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    "code",
    ["\n " * 60_000, "\n" * 120_000, "a." * 60_000, " " * 120_000 + "?"],
    ids=["lines of a blank", "empty lines", "names", "blanks"],  # the environment has no room for the texts themselves
)
def test_code_in_which_the_highlighter_looks_for_days_takes_a_moment(pages, code):
    ours, nbgraders = pages
    code = f"x = 1{code}y = '<b>2</b>'"
    for page in (ours(code=code), nbgraders()):
        (shown,) = BeautifulSoup(page, features="html.parser").find_all("pre", string=re.compile("<b>2</b>"))
        assert shown.get_text() == code


def test_a_second_run_writes_no_page(pages, records, monkeypatch):
    from autograder.classroom.converters import Pages

    pages[0]()
    monkeypatch.setattr(Pages, "convert", lambda *args: pytest.fail("a page was written again"))
    assert len(write_feedback(Classroom(records.course, records.folder))[0]) == 1


def test_who_is_in_the_gradebook_no_more_costs_nobody_else_a_page(tiny_room):
    hand_in(tiny_room.folder, ada=notebook(**RIGHT), ben=notebook(**WRONG))
    tiny_room.grade()
    with tiny_room.records.gradebook() as gradebook:
        gradebook.remove_student("ben")
    shutil.rmtree(tiny_room.submitted / "ben")
    (page,), (problem,) = write_feedback(tiny_room)
    assert page.parts[-3] == "ada"
    assert problem.startswith(f"no feedback for ben in {NAME}: the gradebook has nothing of it")
    results = tiny_room.grade()
    assert remarks(results) == [f"{NAME} ben: withdrawn since it was graded; no points stay in the gradebook"]
    assert not any(result.changed for result in results)
    assert unentered(tiny_room, rows(tiny_room))[0].startswith(f"{NAME} ben: graded, and not in the gradebook any more")


def test_what_is_damaged_costs_its_own_page_and_grading_mends_it(tiny_room):
    hand_in(tiny_room.folder, ada=notebook(**RIGHT), ben=notebook(**WRONG))
    tiny_room.grade()
    write_feedback(tiny_room)
    (tiny_room.folder / "graded" / NAME / "ada.feedback").write_bytes(b"\xff")
    assert len(write_feedback(tiny_room)[0]) == 2
    book = tiny_room.folder / "autograded" / "ada" / NAME / f"{NAME}.ipynb"
    for damage in (b"\xff", b"[" * 100_000, b"{}"):
        book.chmod(0o600)
        book.write_bytes(damage)
        pages, problems = write_feedback(tiny_room)
        assert [page.parts[-3] for page in pages] == ["ben"]
        assert problems == [
            f"no feedback for ada in {NAME}: autograded/ada/{NAME}/{NAME}.ipynb is damaged: grade it again"
        ]
        assert {result.student: result.fresh for result in tiny_room.grade()} == {"ada": True, "ben": False}
        assert len(write_feedback(tiny_room)[0]) == 2


def test_a_page_stays_until_another_is_written(tiny_room, monkeypatch):
    hand_in(tiny_room.folder, ada=notebook(**RIGHT))
    tiny_room.grade()
    ((page,), _) = write_feedback(tiny_room)
    before = page.read_text()
    hand_in(tiny_room.folder, ada=notebook(**WRONG))
    tiny_room.grade()
    with monkeypatch.context() as patched:

        def write(writer, output, resources, **more):
            page.parent.mkdir()
            raise OSError(errno.ENOSPC, "full")

        patched.setattr("nbconvert.writers.FilesWriter.write", write)
        assert write_feedback(tiny_room)[0] == []
    assert page.read_text() == before
    assert write_feedback(tiny_room)[0] == [page]
    assert "halved" in page.read_text()
    assert [each.name for each in page.parents[1].iterdir()] == [NAME]


def test_a_gradebook_that_is_lost_on_the_way_is_told_as_such_and_costs_nothing(tiny_room, monkeypatch):
    def lost(*args):
        raise OperationalError("SELECT", {}, Exception("terminating connection due to administrator command"))

    hand_in(tiny_room.folder, ada=notebook(**WRONG), ben=notebook(**WRONG))
    tiny_room.grade()
    pages, _ = write_feedback(tiny_room)
    hand_in(tiny_room.folder, ada=notebook(**RIGHT))
    for kind, run in ((SaveVerdicts, tiny_room.grade), (GetVerdicts, lambda: write_feedback(tiny_room))):
        with monkeypatch.context() as patched:
            patched.setattr(kind, "preprocess", lost)
            with pytest.raises(OperationalError, match="terminating connection"):
                run()
        assert all(page.is_file() for page in pages)
        run()
    assert {result.student: result.counts for result in tiny_room.grade()} == {"ada": 5, "ben": 2}
    assert "halved" not in pages[0].read_text()
