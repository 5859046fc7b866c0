"""Cells that draw a picture arrive collapsed: the picture is for everybody, its code for who opens it."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from nbformat import NotebookNode

from autograder.judging.program import parsed, without_magics


def collapse(notebook: NotebookNode, plots: Sequence[str]) -> None:
    """Mark the code cells without a role that call a function of one of the modules `plots`, by its full name.

    JupyterLab goes by `jupyter.source_hidden`, Colab by `cellView`.
    """
    meaning: dict[str, str] = {}
    for cell in notebook.cells:
        tree = parsed(without_magics(cell.source)) if cell.cell_type == "code" else None
        nodes = list(ast.walk(tree)) if tree else []
        for node in nodes:
            meaning |= _imported(node)
        called = (_name(node.func, meaning) for node in nodes if isinstance(node, ast.Call))
        if "nbgrader" not in cell.metadata and any(name.startswith(f"{module}.") for name in called for module in plots):
            cell.metadata["jupyter"] = NotebookNode({"source_hidden": True})
            cell.metadata["cellView"] = "form"


def _imported(node: ast.AST) -> dict[str, str]:
    """Return what each name stands for that an import binds."""
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    if isinstance(node, ast.Import):
        return {alias.asname or alias.name: alias.name for alias in node.names}
    return {}


def _name(node: ast.AST, meaning: dict[str, str]) -> str:
    """Return the full name of what is called; "" for what has none."""
    if isinstance(node, ast.Name):
        return meaning.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (owner := _name(node.value, meaning)):
        return f"{owner}.{node.attr}"
    return ""
