"""Submissions as they come in: damaged, rearranged, forged. The lesson is restored around what can be used."""

import copy
import json
import os
import random

import pytest

from autograder.classroom.restore import (
    MAX_BYTES,
    REMARKS,
    SubmissionError,
    as_text,
    clean_cells,
    code_cells,
    placeholder,
    read_cells,
    restore,
    safe_name,
)
from autograder.judging.verdict import Outcome

from ..tiny_course import LESSON, cell, notebook, own_cell

MINE = "def double(x):\n    return x + x"


def restored(plain):
    return restore(LESSON, list(clean_cells(plain["cells"])))


def sources(result):
    return {each["id"]: each.source for each in result.cells}


def read(path, content):
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return read_cells(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 1000,
        b"PK\3\4",
        b'{"cells": [',
        b"[" * 100_000,
        b"null",
        b"[]",
        b'"cells"',
        b"5",
        b"{}",
        b'{"cells": null}',
        b'{"cells": {"0": 1}}',
        b'{"worksheets": [{"cells": []}], "nbformat": 3}',
        b'{"cells": ' + b"9" * 10_000 + b"}",
        b"\xff\xfe\xfd",
    ],
)
def test_what_is_no_notebook_is_unreadable_with_a_sentence(tmp_path, content):
    with pytest.raises(SubmissionError, match=r"mine\.ipynb is not a notebook") as caught:
        read(tmp_path / "mine.ipynb", content)
    assert caught.value.outcome is Outcome.UNREADABLE


def test_no_file_is_absent(tmp_path):
    for path in (tmp_path / "none.ipynb", tmp_path / "no folder" / "none.ipynb"):
        with pytest.raises(SubmissionError, match="handed in") as caught:
            read_cells(path)
        assert caught.value.outcome is Outcome.ABSENT


def test_what_is_no_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.ipynb")
    (tmp_path / "folder.ipynb").mkdir()
    (tmp_path / "endless.ipynb").symlink_to("/dev/zero")
    for path in tmp_path.iterdir():
        with pytest.raises(SubmissionError) as caught:
            read_cells(path)
        assert caught.value.outcome is Outcome.UNREADABLE


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "huge.ipynb"
    with open(path, "wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(SubmissionError, match="larger than 32 MiB"):
        read_cells(path)


def test_a_notebook_of_very_many_cells_is_refused(tmp_path):
    with pytest.raises(SubmissionError, match="5000 cells"):
        read(tmp_path / "mine.ipynb", {"cells": [own_cell("1")] * 5000})


def test_a_notebook_of_very_much_code_is_refused_and_text_may_be_long(tmp_path):
    text = {"cell_type": "markdown", "source": "x" * (1 << 19)}
    assert len(read(tmp_path / "mine.ipynb", {"cells": [text, own_cell("x = 1\n" * 20_000)]})) == 2
    cells = [own_cell("x = 1\n" * 2_000), own_cell("log = [\n" + "1, 2,\n" * 25_000 + "]")]
    with pytest.raises(
        SubmissionError, match=r"128 KiB of code, 146 of them in the cell that begins with 'log = "
    ) as caught:
        read(tmp_path / "mine.ipynb", {"cells": cells})
    assert caught.value.outcome is Outcome.UNREADABLE


@pytest.mark.parametrize("count", [1, 2, 20])
def test_pasted_pictures_and_text_without_end_cost_nothing(tmp_path, count):
    picture = "seen:\n![image.png](data:image/png;base64," + "iVBORw0KGgo" * 5_000 + ")\nso it is"
    texts = [{"cell_type": "markdown", "source": source} for source in [picture, "word " * 220_000] * count]
    *cells, last = read(tmp_path / "mine.ipynb", {"cells": [*texts, own_cell("y = 1")]})
    assert last.source == "y = 1"
    assert cells[0].source == "seen:\n![image.png]([a picture, left out])\nso it is"
    assert cells[1].source.endswith("\n[cut off here]")
    assert sum(len(cell.source) for cell in cells) < (1 << 20) + 100 * len(cells)


def test_weird_cells_are_left_out_and_the_rest_is_read(tmp_path):
    weird = [None, 5, [], {}, {"cell_type": "raw"}, {"cell_type": ["code"]}, {"cell_type": "code", "source": 5}]
    weird += [{"cell_type": "code", "source": "x" * (9 << 20)}, {"cell_type": "code", "metadata": {"nbgrader": 5}}]
    weird += [{"cell_type": "code", "id": [1], "source": ["a\n", 5, "b"], "metadata": []}]
    cells = read(tmp_path / "mine.ipynb", {"cells": [*weird, own_cell("y = 1")]})
    assert [each.source for each in cells] == ["", "", "a\nb", "y = 1"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_another_encoding_or_line_end_changes_nothing(tmp_path, encoding):
    text = json.dumps(notebook(double="def double(x):\r\n    return '两倍'"), ensure_ascii=False)
    cells = read(tmp_path / "mine.ipynb", text.encode(encoding))
    assert sources(restore(LESSON, cells))["double"] == "def double(x):\n    return '两倍'"


def test_text_that_no_file_can_hold_is_made_harmless(tmp_path):
    cells = read(tmp_path / "mine.ipynb", notebook(double="x = '\ud800'"))
    for each in restore(LESSON, cells).cells:
        each.source.encode()


def test_a_right_submission_is_restored_as_it_is():
    plain = notebook(double=MINE)
    result = restored(plain)
    assert sources(result) == sources(restored(plain)) == {c["id"]: c["source"] for c in plain["cells"]}
    assert result.metadata[REMARKS] == {"missing": [], "text": []}


def delete(plain):
    plain["cells"] = [c for c in plain["cells"] if c["id"] == "double"]


def reverse(plain):
    plain["cells"].reverse()


def strip_metadata(plain):
    for each in plain["cells"]:
        each["metadata"] = {}


def strip_ids(plain):
    for n, each in enumerate(plain["cells"]):
        each["id"] = f"new-{n}"


def strip_all(plain):
    strip_metadata(plain)
    strip_ids(plain)


def forge(plain):
    for each in plain["cells"]:
        if isinstance(each["metadata"].get("nbgrader"), dict):
            each["metadata"]["nbgrader"] |= {"points": 1000, "schema_version": 99, "locked": False, "grade": True}
        if str(each["id"]).startswith(("check", "setup")):
            each["source"] = "def check(name): return 1000.0\n1000.0"
            each["outputs"] = [{"output_type": "execute_result", "data": {"text/plain": "1000.0"}, "metadata": {}}]


def copy_cells(plain):
    plain["cells"] += copy.deepcopy(plain["cells"])


def garble(plain):
    for each in plain["cells"]:
        each["metadata"] = {"nbgrader": [1], "tags": 5}
        each["id"] = each["id"] if each["id"] == "double" else None


def move_to_own_cell(plain):
    cell(plain, "double")["source"] = LESSON.starter("double")
    plain["cells"].append(own_cell(MINE))


def empty_and_move(plain):
    cell(plain, "double")["source"] = ""
    plain["cells"].insert(0, own_cell("import math\n" + MINE))


def swap(plain):
    cell(plain, "double")["source"], cell(plain, "quad")["source"] = cell(plain, "quad")["source"], MINE


def all_in_one(plain):
    cell(plain, "quad")["source"] += "\n\n" + MINE
    cell(plain, "double")["source"] = LESSON.starter("double")


def draft_before(plain):
    draft = copy.deepcopy(cell(plain, "double"))
    draft["source"] = "def double(x): return None"
    plain["cells"].insert(0, draft)


DAMAGES = [
    *(delete, reverse, strip_metadata, strip_ids, strip_all, forge, copy_cells, garble),
    *(move_to_own_cell, empty_and_move, swap, all_in_one, draft_before),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_the_solution_is_found_and_the_rest_of_the_lesson_restored(damage):
    plain = notebook(double=MINE)
    damage(plain)
    result = restored(plain)
    assert MINE in sources(result)["double"]
    given = {each["id"]: each for each in LESSON.notebook.cells}
    graded = [each for each in result.cells if each["id"] in given and "nbgrader" in given[each["id"]].metadata]
    assert [each["id"] for each in graded] == ["setup-imports", "double", "check-double", "quad", "check-quad"]
    for each in graded:
        assert each.metadata == given[each["id"]].metadata
        if each.metadata.nbgrader.locked:
            assert each.source == given[each["id"]].source
    assert len({each["id"] for each in result.cells}) == len(result.cells)
    assert not [each for each in code_cells(result, LESSON) if "1000.0" in each.source]


def test_a_missing_solution_is_told_and_graded_as_the_starter():
    plain = notebook(double=MINE)
    plain["cells"] = [c for c in plain["cells"] if c["id"] != "quad"]
    result = restored(plain)
    assert result.metadata[REMARKS]["missing"] == ["quad"]
    assert sources(result)["quad"] == LESSON.starter("quad")


def test_of_several_copies_the_last_that_was_worked_on_stands_in_its_place_and_the_others_stay():
    plain = notebook(double=(first := "def double(x): return 1"))
    last = copy.deepcopy(cell(plain, "double"))
    untouched = copy.deepcopy(last)
    last["source"], untouched["source"] = MINE, LESSON.starter("double")
    plain["cells"] += [last, untouched]
    result = restored(plain)
    assert sources(result)["double"] == MINE
    assert [each.source for each in code_cells(result, LESSON)].count(first) == 1


@pytest.mark.parametrize("kept", ["upper", "lower"])
def test_what_a_split_cell_holds_besides_the_solution_stays_in_its_place(kept):
    """JupyterLab leaves one part of a split cell its id, and gives all of them its marks."""
    plain = notebook()
    upper, n = cell(plain, "double"), plain["cells"].index(cell(plain, "double"))
    lower = copy.deepcopy(upper)
    (upper if kept == "lower" else lower)["id"] = "new"
    upper["source"], lower["source"] = "def twice(x): return 2 * x", "def double(x): return twice(x)"
    plain["cells"].insert(n + 1, lower)
    result = restored(plain)
    assert sources(result)["double"] == lower["source"]
    assert upper["source"] in [each.source for each in code_cells(result, LESSON)]
    if kept == "lower":
        texts = [each.source for each in result.cells]
        assert texts.index(upper["source"]) == texts.index(lower["source"]) - 1


def test_a_notebook_without_ids_has_its_cells_in_the_lessons_places():
    plain = notebook(double=MINE)
    plain["cells"].insert(plain["cells"].index(cell(plain, "double")), own_cell("y = 1"))
    expected = [each.source for each in restored(plain).cells]
    for each in plain["cells"]:
        del each["id"]
    assert [each.source for each in restored(plain).cells] == expected


def test_a_syntax_error_in_the_solution_is_not_covered_up_by_a_draft():
    plain = notebook(double="def double(x)\n    return x")
    plain["cells"].insert(0, own_cell(MINE))
    assert sources(restored(plain))["double"] == "def double(x)\n    return x"


def test_the_lessons_own_cells_do_not_count_as_the_students():
    plain = notebook(double=LESSON.starter("double"))
    assert sources(restored(plain))["double"] == LESSON.starter("double")


def test_what_is_added_to_a_locked_cell_is_the_students_own_and_what_is_changed_there_is_not():
    plain = notebook(double="def double(x):\n    return x + x")
    setup = cell(plain, "setup-imports")
    before = setup["source"]
    changed = before.replace("import torch", "import numpy as torch")
    setup["source"] = f"import os\n{changed}\nprint(os.sep)\n\n\ndef half(x):\n    return x / 2"
    result = restored(plain)
    assert sources(result)["setup-imports"] == before
    own = [source for name, source in sources(result).items() if name.startswith("own-")]
    assert [source.split() for source in own] == [["import", "os", "def", "half(x):", "return", "x", "/", "2"]]


def merged(upper, lower):
    """The marks of two merged cells are the upper one's."""
    plain = notebook(double=MINE, quad=QUAD)
    lower = plain["cells"].pop(plain["cells"].index(cell(plain, lower)))
    cell(plain, upper)["source"] += "\n\n" + lower["source"]
    return plain


def marked_as(name, source, **solutions):
    """Behind a cell another one with its nbgrader marks, as a copy or the lower half of a split cell has them."""
    plain = notebook(**solutions)
    at = plain["cells"].index(cell(plain, name))
    plain["cells"].insert(at + 1, {**copy.deepcopy(plain["cells"][at]), "id": "fresh", "source": source})
    return plain


QUAD = "def quad(x):\n    return double(double(x))"
BY_HELPER = "def double(x):\n    return helper(x)"
HELPER = "def helper(x):\n    return 2 * x"


@pytest.mark.parametrize(
    "plain, name, source",
    [
        (merged("setup-imports", "double"), "double", MINE),
        (merged("check-double", "quad"), "quad", QUAD),
        (marked_as("check-double", QUAD, double=MINE, quad=LESSON.starter("quad")), "quad", QUAD),
    ],
    ids=["with the set-up", "with a check", "in a copy of a check"],
)
def test_a_solution_in_a_cell_that_is_the_lessons_is_found(plain, name, source):
    result = restored(plain)
    assert sources(result)[name] == source
    assert result.metadata[REMARKS]["missing"] == []
    assert sources(result)["check-double"] == 'check("double")'


@pytest.mark.parametrize("name", ["setup-imports", "check-double"])
def test_a_helper_in_a_copy_of_one_of_the_lessons_cells_is_the_students_own(name):
    result = restored(marked_as(name, HELPER, double=BY_HELPER))
    assert [source for each, source in sources(result).items() if each.startswith("own-")] == [HELPER]


def test_an_import_that_is_added_to_a_line_of_the_lessons_is_the_students_own():
    plain = notebook(double=MINE)
    setup = cell(plain, "setup-imports")
    setup["source"] = setup["source"].replace("import math", "import math, json as j")
    own = [source for each, source in sources(restored(plain)).items() if each.startswith("own-")]
    assert own == ["import json as j"]


def test_the_stub_in_a_comment_or_behind_the_answer_makes_no_starter_of_a_solution():
    for mine in (
        'def double(x):\n    # raise NotImplementedError("write your code here")\n    return 2 * x',
        'def double(x):\n    return 2 * x\n    raise NotImplementedError("write your code here")',
    ):
        plain = notebook(double=mine)
        plain["cells"].insert(2, own_cell("def double(x): return x  # first try"))
        assert sources(restored(plain))["double"] == mine


@pytest.mark.parametrize("kind", ["markdown", "raw"])
def test_a_solution_that_was_made_text_is_told_as_that(kind):
    plain = notebook(double=MINE)
    cell(plain, "double")["cell_type"] = kind
    remarks = restored(plain).metadata[REMARKS]
    assert (remarks["text"], remarks["missing"]) == (["double"], [])


def test_the_students_own_cells_stay_where_they_stood():
    plain = notebook(double=MINE)
    place = plain["cells"].index(cell(plain, "check-double"))
    plain["cells"].insert(place, own_cell("y = 1"))
    plain["cells"].insert(0, own_cell("# mine", cell_type="markdown"))
    result = restored(plain)
    texts = [each.source for each in result.cells]
    assert texts[0] == as_text("# mine")
    assert texts.index("y = 1") == texts.index(MINE) + 1


def test_restoring_twice_is_restoring_once():
    rng = random.Random(1)
    for _ in range(60):
        plain = notebook(double=MINE)
        if rng.random() < 0.5:
            cell(plain, "setup-imports")["source"] += "\nimport os"
        for damage in rng.sample(DAMAGES, rng.randint(0, 3)):
            try:
                damage(plain)
            except StopIteration:  # the cell went with an earlier damage
                continue
        once = restored(plain)
        twice = restore(LESSON, list(clean_cells(once.cells)), dict(once.metadata[REMARKS]))
        names = [name for name, source in sources(once).items() if name in LESSON.solutions]
        assert {n: sources(once)[n] for n in names} == {n: sources(twice)[n] for n in names}
        assert len(once.cells) == len(twice.cells)
        assert once.metadata[REMARKS] == twice.metadata[REMARKS]


def test_a_placeholder_says_why_it_stands_there():
    result = placeholder(LESSON, SubmissionError(Outcome.ABSENT, "nothing was handed in"))
    assert result.metadata[REMARKS] == {"outcome": "absent", "reason": "nothing was handed in"}
    assert {"check-double", "check-quad"} <= set(sources(result))


@pytest.mark.parametrize("name", ["ada", "a.b", "ada@uni.edu", "u+1", "Žofia", "0123"])
def test_a_students_name_may_be_an_account(name):
    assert safe_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "a b", "a\nb", "a;rm", "$(x)", "a" * 200, "a\0", "a\u3164", "\u1160a"]
)
def test_a_name_that_is_no_account_is_not_one(name):
    assert not safe_name(name)
