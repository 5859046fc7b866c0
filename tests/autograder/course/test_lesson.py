"""Lessons' scripts: what a cell's header may say, and what must go together."""

import pytest

from autograder.course.lesson import LessonError

from ..tiny_course import LESSON, NAME, write


def test_two_cells_never_share_an_id():
    ids = [cell["id"] for cell in LESSON.notebook.cells]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('# %% solution="double"', '# %% solution="double" check="double"', "one role"),
        ('# %% solution="double"', '# %% solutoin="double"', "one role"),
        ('# %% check="double"\ncheck("double")\n', "", "graded cells"),
        ('# %% solution="double"', '# %% solution="triple"', "triple.*no exercise of exercises.py: double, quad"),
        ('# %% solution="double"', "# %%", "double of exercises.py has no solution cell"),
        ("    ### BEGIN SOLUTION\n    return _twice(x)", "    return _twice(x)", "double needs '### BEGIN SOLUTION'"),
        ('# %% check="quad"', '# %% speed="quad"', "quad has a speed cell, but no speed"),
    ],
)
def test_a_script_that_is_not_well_formed_is_refused_by_name(tmp_path, old, new, complaint):
    course = write(tmp_path, "lesson", {old: new})
    with pytest.raises(LessonError, match=complaint) as caught:
        course.lesson(NAME)
    assert str(course.solutions / NAME / "lesson.py") in str(caught.value)
