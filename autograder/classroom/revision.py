"""Bring what nbgrader's gradebook knows of a lesson in line with a lesson that changed since it was handed in.

nbgrader itself refuses to: the rows of submissions mirror the lesson's cells, and it has nothing that adds and removes
them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from autograder.course.lesson import Lesson, verdict_name
from autograder.text import listed


class RevisionError(RuntimeError):
    """A lesson's cells cannot be brought in line without the loss of what a person entered."""


def revise(gradebook: Any, lesson: Lesson, judged: Collection[str]) -> None:
    """Add and remove cells of a lesson that has submissions, with their scores and comments, as the lesson has them.

    An added exercise is open for the students who are about to be `judged`, and gives the others, whose submissions are
    there no more, no points. Raises RevisionError where a person has scored or commented on what would be removed.
    """
    from nbgrader.api import Comment, Grade, GradeCell, MissingEntry, SolutionCell, SourceCell

    try:
        notebook = gradebook.find_notebook(lesson.name, lesson.name)
    except MissingEntry:
        return
    if not notebook.submissions:  # then nbgrader makes it anew
        return
    marked = {cell.metadata.nbgrader.grade_id: cell for cell in lesson.notebook.cells if "nbgrader" in cell.metadata}
    graded = {name for name, cell in marked.items() if cell.metadata.nbgrader.grade}
    solved = {name for name, cell in marked.items() if cell.metadata.nbgrader.solution}
    gone = [cell for cell in notebook.grade_cells if cell.name not in graded]
    gone += [cell for cell in notebook.solution_cells if cell.name not in solved]
    _refuse_loss(lesson, gone)
    for cell in gone:
        for row in (*cell.grades, *cell.comments, cell):
            gradebook.db.delete(row)
    for cell in notebook.source_cells:
        if cell.name not in marked:
            gradebook.db.delete(cell)
    for name in graded - {cell.name for cell in notebook.grade_cells}:
        marks, kind = marked[name].metadata.nbgrader, marked[name].cell_type
        cell = GradeCell(name=name, notebook=notebook, max_score=float(marks.points), cell_type=kind)
        for each in notebook.submissions:
            score = None if each.student.id in judged else 0.0
            gradebook.db.add(Grade(cell=cell, notebook=each, auto_score=score, needs_manual_grade=score is None))
    for name in solved - {cell.name for cell in notebook.solution_cells}:
        cell = SolutionCell(name=name, notebook=notebook)
        gradebook.db.add_all([Comment(cell=cell, notebook=each) for each in notebook.submissions])
    for name in marked.keys() - {cell.name for cell in notebook.source_cells}:
        gradebook.db.add(SourceCell(name=name, notebook=notebook, cell_type=marked[name].cell_type))
    gradebook.db.commit()  # nbgrader fills in the rest


def _refuse_loss(lesson: Lesson, gone: list[Any]) -> None:
    from nbgrader.api import GradeCell

    for cell in gone:
        by_hand = [each for each in cell.grades if each.manual_score is not None or each.extra_credit]
        by_hand += [each for each in cell.comments if each.manual_comment]
        if by_hand:
            name = verdict_name(cell.name) if isinstance(cell, GradeCell) else cell.name
            who = listed(sorted({each.student.id for each in by_hand}))
            raise RevisionError(
                f"{name} is in the lesson no more, and {who} had a score or a comment by hand there: clear these in "
                "formgrader, or put the exercise back under its name; until then the lesson's grades stay as they were"
            )
