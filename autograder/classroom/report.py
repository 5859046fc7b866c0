"""Show a verdict: as HTML in notebooks and feedback pages, as text in terminals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import torch

from autograder.judging.verdict import Outcome, Verdict
from autograder.kernels.report import AMBER, CELL, GREEN, GREY, RED, speed_html, speed_lines
from autograder.text import listed

PLAIN = "tex2jax_ignore"  # what MathJax leaves alone
COLOURS = {Outcome.PASSED: GREEN, Outcome.PARTIAL: AMBER, Outcome.FAULT: GREY}
SIGNS = {Outcome.PASSED: "✓", Outcome.PARTIAL: "◐", Outcome.FAULT: "?"}


def number(value: float | None) -> str:
    """Return points without needless decimals; a dash for no score."""
    return "–" if value is None else f"{value:g}"


def headline(verdict: Verdict) -> str:
    """Return the verdict in one line: exercise, outcome, points."""
    return f"{verdict.exercise}: {verdict.outcome}, {number(verdict.score)} of {number(verdict.points)} points"


def as_text(verdict: Verdict) -> str:
    """Return the verdict as a few lines of text."""
    lines = [headline(verdict)]
    for part in verdict.parts:
        line = f"  {part.name}: {number(part.score)}/{number(part.points)}"
        if part.reason:
            line += f"  {part.reason}" + (f" (at {part.case})" if part.case else "")
        lines.append(line)
    if not verdict.parts and verdict.reason:
        lines.append(f"  {verdict.reason}")
    if verdict.speed:
        lines += [f"  {line}" for line in speed_lines(verdict.speed, verdict.outcome is Outcome.PASSED)]
    lines += [f"  note: {note}" for note in verdict.notes]
    return "\n".join(lines)


def with_own(verdict: Verdict, used: Sequence[str]) -> Verdict:
    """Return the verdict on an answer with a note on what it used: earlier answers of the student's own, by name."""
    if not used:
        return verdict
    names = " and ".join(filter(None, [", ".join(used[:-1]), used[-1]]))
    if verdict.outcome is Outcome.PASSED:
        which = f"{used[0]}'s task promises" if len(used) == 1 else "their tasks promise"
        more = f", so rely only on what {which}"
    else:
        more = f": where {'yours' if len(used) == 1 else 'one of yours'} is wrong, this may be right"
    note = f"Your own {names} {'was' if len(used) == 1 else 'were'} used here. The grader uses its own{more}"
    return replace(verdict, notes=(*verdict.notes, note))


def chip(outcome: str) -> str:
    """Return an outcome as HTML: a sign and its word, in white on its colour, which no theme of a page changes."""
    if not outcome:
        return ""
    colour, sign = COLOURS.get(outcome, RED), SIGNS.get(outcome, "✗")
    look = f"background:{colour};color:#ffffff;padding:0 6px;border-radius:3px;white-space:nowrap"
    return f"<span style='{look}'><span aria-hidden='true'>{sign} </span>{escape(outcome)}</span>"


def as_html(verdict: Verdict, picture: str = "") -> str:
    """Return the verdict as HTML. Text from the student's process is escaped, and not searched for formulas."""
    points = f"{number(verdict.score)} of {number(verdict.points)} points"
    title = f"{escape(verdict.exercise)}: {chip(verdict.outcome)} {points}"
    rows = "".join(
        f"<tr><td {CELL}>{escape(part.name)}</td>"
        f"<td {CELL}>{number(part.score)} / {number(part.points)}</td>"
        f"<td {CELL}>{_reason(part.reason, part.case, 'reached' if verdict.speed else 'right')}</td></tr>"
        for part in verdict.parts
    )
    head = "".join(f"<th {CELL}>{title}</th>" for title in ("part", "points", "what was found"))
    table = f"<table><tr>{head}</tr>{rows}</table>" if rows else ""
    notes = "".join(
        f"<p>{escape(note)}</p>" for note in ([] if rows else [verdict.reason]) + list(verdict.notes) if note
    )
    if verdict.speed:
        picture += speed_html(verdict.speed, verdict.outcome is Outcome.PASSED)
    return (
        f"<div class='{PLAIN}' style='border-left:4px solid {COLOURS.get(verdict.outcome, RED)};padding:2px 10px;"
        f"margin:4px 0'><b>{title}</b>{table}{notes}{picture}</div>"
    )


def summary_html(rows: Sequence[Mapping[str, Any]], penalty: float = 0.0, others: Sequence[str] = ()) -> str:
    """Return a feedback page's table of verdicts, with links to their cells. It hides nbgrader's list of test cells.

    A row has the verdict's `name`, the `cell` to link to, `points`, what `counts` in the gradebook, the judge's
    `outcome`, `reason` and `score` if known, and whether a person left a `comment`. `penalty` is for lateness; `others`
    are notebooks that were handed in beside the graded one.
    """
    lines = []
    for row in rows:
        outcome, reason = row.get("outcome", ""), escape(" ".join(row.get("reason", "").split()))
        points = f"{number(row['counts'])} / {number(row['points'])}"
        if outcome == Outcome.FAULT and not row["counts"]:
            points = f"open / {number(row['points'])}"
        elif row.get("score", row["counts"]) != row["counts"]:
            points += f"<br><small style='white-space:nowrap'>the judge: {number(row['score'])}</small>"
        if row.get("comment"):
            reason += f" <a href='#comment-{escape(row['name'])}'>comment</a>"
        link = f"<a href='#{escape(row['cell'])}'>{escape(row['name'])}</a>"
        row_cells = (link, points, chip(outcome), reason)
        lines.append("<tr>" + "".join(f"<td {CELL}>{each}</td>" for each in row_cells) + "</tr>")
    head = "".join(f"<th {CELL}>{title}</th>" for title in ("exercise", "points", "outcome", "why"))
    notes = [f"Late: {penalty:g} points less."] if penalty else []
    if others:
        notes.append(f"Other notebooks were handed in and not graded: {listed(others)}")
    table = f"<table><tr>{head}</tr>{''.join(lines)}</table>" + "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<style>#toc {{ display: none }}</style><div class='{PLAIN}' style='margin-bottom:2em'>{table}</div>"


def _reason(reason: str, case: str, fine: str) -> str:
    if not reason:
        return fine
    return escape(reason) + (f"<br><small>at {escape(case)}</small>" if case else "")


def error_picture(result: torch.Tensor, expected: torch.Tensor, name: str, cells: tuple[int, int] = (24, 64)) -> str:
    """Return an SVG of |result − expected| over the last two axes (the largest over the others), dark where large.

    Long axes are shown in blocks. Both tensors have one shape and at least one element.
    """
    error = (result.double() - expected.double()).abs().nan_to_num(nan=math.inf)
    error = error.where(result.double() != expected.double(), 0.0)  # infinity where it should be is no error
    error = error.reshape(-1, error.shape[-2] if error.dim() > 1 else 1, error.shape[-1] if error.dim() else 1).amax(0)
    error = _blocks(_blocks(error, cells[0], 0), cells[1], 1)
    scale = max(expected.double().abs().nan_to_num(posinf=0.0, neginf=0.0).max().item(), 1e-30)
    shade = ((error / scale).clamp(1e-6, 1.0).log10() / 6 + 1).tolist()
    squares = "".join(
        f"<rect x='{9 * x}' y='{9 * y}' width='8' height='8' fill='rgb({_grey(s)})'/>"
        for y, row in enumerate(shade)
        for x, s in enumerate(row)
    )
    width, height = 9 * error.shape[1], 9 * error.shape[0]
    caption = f"error of {escape(name)} over its last two axes: white is right, black as large as the values themselves"
    return (
        f"<svg width='{width}' height='{height}' role='img' aria-label='{caption}' style='outline:1px solid'>"
        f"{squares}</svg><br><small>{caption}</small>"
    )


def _blocks(error: torch.Tensor, count: int, axis: int) -> torch.Tensor:
    chunks: Sequence[torch.Tensor] = error.tensor_split(min(count, error.shape[axis]), dim=axis)
    return torch.stack([chunk.amax(axis) for chunk in chunks], axis)


def _grey(shade: float) -> str:
    level = round(255 * (1 - shade))
    return f"{level},{level},{level}"
