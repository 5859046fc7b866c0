"""nbgrader's hooks: restore the notebook, judge it outside this process, record what the judge said, and show it."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbgrader.api import Comment, Grade, SubmittedNotebook
from nbgrader.preprocessors import CheckCellMetadata, GetGrades, NbGraderPreprocessor, SaveAutoGrades
from traitlets import Float, Unicode

from autograder.classroom import grader, report
from autograder.classroom.grade import isolation_for, restored
from autograder.classroom.record import Recorded, Records
from autograder.classroom.restore import REMARKS, clean_cells, restore
from autograder.course.course import Course
from autograder.course.lesson import Lesson
from autograder.judging.verdict import Outcome, Verdict

FAULT = "mla_course_fault"
VERDICT = "mla_course_verdict"
VERDICTS = "mla_course_verdicts"

_SOUND: set[str] = set()  # marks that CheckCellMetadata had nothing against


class OfCourse(NbGraderPreprocessor):
    """A preprocessor that knows the course."""

    course = Unicode(help="Folder of the course.").tag(config=True)

    def lesson(self, resources: ResourcesDict) -> Lesson:
        """Return the lesson at hand."""
        return Course.at(self.course).lesson(resources["nbgrader"]["assignment"])


class Restore(OfCourse):
    """First sanitizer: put the student's solutions into the lesson's own notebook (see `classroom.restore`).

    A notebook that was handed in is read here, and nowhere else; nbgrader has not opened it (see `guard.Unopened`).
    """

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        lesson = self.lesson(resources)
        if VERDICTS in resources["nbgrader"]:  # restored already
            return restore(lesson, list(clean_cells(nb.cells)), nb.metadata[REMARKS]), resources
        return restored(lesson, Path(resources["metadata"]["path"])), resources


class Judge(OfCourse):
    """In place of Execute: fill every check cell with the judge's verdict."""

    classroom = Unicode(help="Folder with the classroom's seed and verdicts.").tag(config=True)
    seconds = Float(None, allow_none=True, help="Time limit an exercise, in place of its own.").tag(config=True)
    isolation = Unicode(help="What submissions run under, bubblewrap by default (see isolation_for).").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        lesson = self.lesson(resources)
        verdicts = resources["nbgrader"].get(VERDICTS)  # known, while a class is graded
        if verdicts is None:
            pair, room = (resources["nbgrader"]["student"], lesson.name), Path(self.classroom)
            isolation = isolation_for(room, [pair], self.isolation)
            verdicts = grader.shared(self.course, self.classroom, self.seconds, isolation).verdicts(lesson, nb)
            Records(Course.at(self.course), room).note(*pair, Recorded(verdicts=tuple(verdicts.values())))
        for cell in nb.cells:
            if name := lesson.graded.get(cell["id"]):
                fill(cell, verdicts[name])
        return nb, resources


def fill(cell: NotebookNode, verdict: Verdict) -> None:
    """Write a verdict into a check cell such that nbgrader's own reading of it gives the score.

    nbgrader takes an error for zero and a number for that many points; for anything else it gives full marks.
    """
    said = {"text/html": report.as_html(verdict), "text/plain": report.as_text(verdict)}
    shown = nbformat.v4.new_output("display_data", said)
    cell.metadata[FAULT] = verdict.outcome is Outcome.FAULT
    cell.metadata[VERDICT] = {"outcome": str(verdict.outcome), "reason": verdict.reason, "score": verdict.score}
    if verdict.score:
        score = min(max(float(verdict.score), 0.0), float(verdict.points))
        result = nbformat.v4.new_output("execute_result", {"text/plain": repr(score)}, execution_count=None)
    else:
        lines = [f"{verdict.exercise}: {verdict.reason}"]
        result = nbformat.v4.new_output("error", ename=str(verdict.outcome), evalue=verdict.reason, traceback=lines)
    cell.outputs = [shown, result]


class CheckMarks(CheckCellMetadata):
    """CheckCellMetadata, once for notebooks whose marks are the same, as those of a lesson are."""

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        marked = [cell for cell in nb.cells if "nbgrader" in cell.metadata]
        marks = json.dumps([[cell.cell_type, cell.metadata["nbgrader"]] for cell in marked])
        if marks not in _SOUND:
            nb, resources = super().preprocess(nb, resources)
            _SOUND.add(marks)
        return nb, resources


class SaveVerdicts(SaveAutoGrades):
    """SaveAutoGrades, but a fault of the grader is no score: it asks for manual grading."""

    def _add_score(self, cell: NotebookNode, resources: ResourcesDict) -> None:
        if not cell.metadata.get(FAULT):
            super()._add_score(cell, resources)
            return
        name = cell.metadata["nbgrader"]["grade_id"]
        grade = self.gradebook.find_grade(name, self.notebook_id, self.assignment_id, self.student_id)
        grade.auto_score, grade.needs_manual_grade = None, True
        self.gradebook.db.commit()


class GetVerdicts(OfCourse, GetGrades):
    """GetGrades, with a table of all verdicts put before the notebook in place of nbgrader's list of test cells.

    In check cells only what the judge wrote for people stays. The number or error that nbgrader scores by is removed.
    Scores and comments are read in one go, as a query for each cell takes longer than the rest of the page.
    """

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        self._rows = None
        nb, resources = super().preprocess(nb, resources)
        lesson = self.lesson(resources)
        comments = {cell["id"] for cell in nb.cells if _said(cell)}
        rows = []
        for cell in nb.cells:
            if name := lesson.graded.get(cell["id"]):
                cell.outputs = [output for output in cell.outputs if output.output_type == "display_data"]
                marks = cell.metadata["nbgrader"]
                row = {"points": marks["points"], "counts": marks["score"], "comment": name in comments}
                rows.append({"name": name, "cell": marks["grade_id"], **row, **cell.metadata.get(VERDICT, {})})
        others = nb.metadata.get(REMARKS, {}).get("others", [])
        html = report.summary_html(rows, resources["nbgrader"]["late_penalty"], others)
        shown = nbformat.v4.new_output("display_data", {"text/html": html})
        first = nbformat.v4.new_code_cell("", outputs=[shown], metadata={"transient": {"remove_source": True}})
        nb.cells.insert(0, first)
        return nb, resources

    def preprocess_cell(
        self, cell: NotebookNode, resources: ResourcesDict, cell_index: int
    ) -> tuple[NotebookNode, ResourcesDict]:
        marks = cell.metadata.get("nbgrader", {})
        if (marks.get("grade") or marks.get("solution")) and not any(
            marks["grade_id"] in rows for rows in self._read()
        ):
            del cell.metadata["nbgrader"]  # of an exercise that was taken out of the lesson since
        return super().preprocess_cell(cell, resources, cell_index)

    def _get_comment(self, cell: NotebookNode, resources: ResourcesDict) -> None:
        marks = cell.metadata["nbgrader"]
        marks["comment"] = self._read()[1][marks["grade_id"]].comment

    def _get_score(self, cell: NotebookNode, resources: ResourcesDict) -> None:
        marks = cell.metadata["nbgrader"]
        grade = self._read()[0][marks["grade_id"]]
        marks["score"], marks["points"] = grade.score, grade.max_score

    def _read(self) -> tuple[dict[str, Grade], dict[str, Comment]]:
        """Return the grades and the comments of the notebook at hand, by the cell's name."""
        if self._rows is None:
            found = self.gradebook.find_submission_notebook(self.notebook_id, self.assignment_id, self.student_id)
            self._rows = grades_and_comments(found)
        return self._rows


def grades_and_comments(submission: SubmittedNotebook) -> tuple[dict[str, Grade], dict[str, Comment]]:
    """Return the grades and the comments of a notebook in the gradebook, by the cell's name, in few queries."""
    lesson = submission.notebook
    names = {cell.id: cell.name for cell in (*lesson.grade_cells, *lesson.solution_cells, *lesson.task_cells)}
    grades, comments = ({names[row.cell_id]: row for row in rows} for rows in (submission.grades, submission.comments))
    return grades, comments


def _said(cell: NotebookNode) -> bool:
    """Return whether a person has commented on a solution cell; nbgrader itself says "No response."."""
    return cell.metadata.get("nbgrader", {}).get("comment") not in (None, "", "No response.")
