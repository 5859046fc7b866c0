"""nbgrader's hooks: restore the notebook, judge it outside this process, record what the judge said, and show it."""

from __future__ import annotations

import nbformat
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbgrader.preprocessors import GetGrades, NbGraderPreprocessor, SaveAutoGrades
from traitlets import Float, Unicode

from autograder import grading, report
from autograder.lesson import load_lesson
from autograder.submission import REMARKS, clean_cells, restore
from autograder.verdict import Outcome, Verdict

FAULT = "mla_course_fault"
VERDICT = "mla_course_verdict"


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
    cell.metadata[VERDICT] = {"outcome": str(verdict.outcome), "reason": verdict.reason, "score": verdict.score}
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


class GetVerdicts(GetGrades):
    """GetGrades, then a table of all verdicts before the notebook, in place of nbgrader's list of test cells.

    Of a check cell it leaves what the judge wrote for people: not the number or the error that nbgrader scores by.
    """

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        nb, resources = super().preprocess(nb, resources)
        lesson = load_lesson(resources["nbgrader"]["assignment"])
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


def _said(cell: NotebookNode) -> bool:
    """Return whether a person has commented on a solution cell; nbgrader itself says "No response."."""
    return cell.metadata.get("nbgrader", {}).get("comment") not in (None, "", "No response.")
