"""nbgrader's hooks: restore the notebook, judge it outside this process, record what the judge said."""

from __future__ import annotations

import nbformat
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor, SaveAutoGrades
from traitlets import Float, Unicode

from autograder import grading, report
from autograder.lesson import load_lesson
from autograder.submission import REMARKS, clean_cells, restore
from autograder.verdict import Outcome, Verdict

FAULT = "mla_course_fault"


class Restore(NbGraderPreprocessor):
    """First sanitizer: put the student's solutions into the lesson's own notebook (see `submission.restore`)."""

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        lesson = load_lesson(resources["nbgrader"]["assignment"])
        remarks = nb.metadata.get(REMARKS)
        return restore(lesson, list(clean_cells(nb.cells)), remarks if isinstance(remarks, dict) else {}), resources


class Judge(NbGraderPreprocessor):
    """In place of Execute: fill every check cell with the judge's verdict."""

    classroom = Unicode(help="Folder with the classroom's seed and verdicts.").tag(config=True)
    seconds = Float(None, allow_none=True, help="Time limit an exercise, in place of its own.").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        lesson = load_lesson(resources["nbgrader"]["assignment"])
        verdicts = grading.shared(self.classroom, self.seconds).verdicts(lesson, nb)
        for cell in nb.cells:
            if name := lesson.graded.get(cell["id"]):
                fill(cell, verdicts[name], nb.metadata.get(REMARKS, {}))
        return nb, resources


def fill(cell: NotebookNode, verdict: Verdict, remarks: dict) -> None:
    """Write a verdict into a check cell such that nbgrader's own reading of it gives the score.

    nbgrader takes an error for zero and a number for that many points; for anything else it gives full marks.
    """
    html = report.as_html(verdict)
    if verdict.exercise in remarks.get("copied", []):
        html += "<p>The notebook had several copies of this cell; the last one was graded.</p>"
    shown = nbformat.v4.new_output("display_data", {"text/html": html, "text/plain": report.as_text(verdict)})
    cell.metadata[FAULT] = verdict.outcome is Outcome.FAULT
    if verdict.score:
        score = min(max(float(verdict.score), 0.0), float(verdict.points))
        result = nbformat.v4.new_output("execute_result", {"text/plain": repr(score)}, execution_count=None)
    else:
        lines = [f"{verdict.exercise}: {verdict.reason}"]
        result = nbformat.v4.new_output("error", ename=str(verdict.outcome), evalue=verdict.reason, traceback=lines)
    cell.outputs = [shown, result]


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
