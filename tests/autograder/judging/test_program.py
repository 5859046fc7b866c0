"""Which of a student's statements run: those that the solution needs, and no others."""

import subprocess
import sys
import textwrap
import time

import pytest

from autograder.isolation.worker.running import new_namespace, run_cell
from autograder.judging.program import MAX_CODE, Cell, build_program, is_broken, names_bound, without_magics

SETUP = Cell("imports", "import math", True)


def run(*sources, main, references=()):
    """Cut the program from the student's cells, `main` among them, run it, and return what `answer()` gives."""
    cells = [Cell(f"cell-{n}", textwrap.dedent(source).strip("\n")) for n, source in enumerate(sources)]
    cut = build_program([SETUP], list(references), cells, cells[main])
    namespace = {}
    for cell in cut:
        if cell.gives:
            apart = dict(namespace)
            exec(cell.source, apart)
            namespace[cell.gives] = apart[cell.gives]
        else:
            exec(cell.source, namespace)
    return namespace["answer"]()


def kept(*sources, main):
    """Return the source of the student's cells in the program, blank lines left out."""
    cells = [Cell(f"cell-{n}", textwrap.dedent(source).strip("\n")) for n, source in enumerate(sources)]
    cut = build_program([SETUP], [], cells, cells[main])[1:]
    return [line for cell in cut for line in cell.source.split("\n") if line]


ANSWER = "def answer(): return helper()"


@pytest.mark.parametrize(
    "helper",
    [
        "def helper(): return 42",
        "helper = lambda: 42",
        "from functools import partial\nhelper = partial(int, 42)",
        "import functools as ft\n@ft.cache\ndef helper():\n    return 42",
        "import functools\n@functools.lru_cache(\n    maxsize=None,\n)\ndef helper(): return 42",
        "class helper(int):\n    def __new__(cls): return 42",
        "def other(): return 42\ndef helper(): return other()",
        "other, helper = 1, lambda: 42",
        "(a, [helper, *rest]) = 1, [lambda: 42, 2]",
        "helper: object = lambda: 42",
        "first = helper = lambda: 42",
        "try:\n    from no_such_module import helper\nexcept ImportError:\n    def helper(): return 42",
        "if math.pi > 3:\n    def helper(): return 42\nelse:\n    helper = None",
        "N = 40\nN += 2\ndef helper(): return N",
        "TABLE = {}\nTABLE['x'] = 42\ndef helper(): return TABLE['x']",
        "def helper(): return helper.value\nhelper.value = 42",
        "T = []\nfor i in (20, 22):\n    T.append(i)\ndef helper(): return sum(T)",
        "import torch\nT = torch.zeros(2)\nT[:1].fill_(42)\ndef helper(): return int(T.sum())",
        "import torch\nT = torch.zeros(2)\ntorch.add(T, 21, out=T)\ndef helper(): return int(T.sum())",
        "T = {}\nT.update(x=42)\ndef helper(): return T['x']",
        "import functools\n@functools.singledispatch\ndef count(x): raise TypeError\n"
        "@count.register\ndef _(x: int): return x\ndef helper(): return count(42)",
        "from __future__ import annotations\ndef helper() -> Nothing: return 42",
        "T = [0] * 3\nfor i in range(3):\n    T[i] = 14\ndef helper(): return sum(T)",
        "from contextlib import nullcontext\nwith nullcontext(42) as n:\n    pass\ndef helper(): return n",
        "n = 0\nwhile n < 42:\n    n += 1\ndef helper(): return n",
        "x = 1; helper = lambda: 42; y = 2",
        "def sum(values): return 42\ndef helper(): return sum([1])",
        "from math import *\ndef helper(): return int(fsum([40, 2]))",
        "def helper():\n    global n\n    n = 42\n    return n",
        "def helper(): return [k for k in (lambda: TABLE)()][0]\nTABLE = [42]",
        "x = [42]\ndef helper(): return [x for x in x][0]",
        "values = [42]\ndef helper(): return [(v := w) for w in values][0] and v",
        "some = [found := n for n in [42]]\ntry:\n    n = found\nfinally:\n    pass\ndef helper(): return n",
        "TABLE = [42]\nclass A:\n    n = TABLE[0]\n    def m(self, n=n): return n\ndef helper(): return A().m()",
        "def helper():\n    n = 42\n    def inner():\n        nonlocal n\n        return n\n    return inner()",
        "N = 42\ndef helper():\n    N = 0\n    def inner():\n        global N\n        return N\n    return inner()",
        "match [1, 42]:\n    case [_, *rest]:\n        pass\ndef helper(): return rest[0]",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    found = [e]\ndef helper(): return 42 * len(found)",
        "N = 42\ndef helper(n: 'int' = N, *, m=lambda k=N: k): return m()",
    ],
)
def test_what_the_solution_needs_is_found_before_and_after_it(helper):
    assert run(helper, ANSWER, main=1) == 42
    assert run(ANSWER, helper, main=0) == 42


@pytest.mark.parametrize(
    "solution",
    [
        "def answer():\n    global calls\n    calls += 1\n    return calls",
        "def count():\n    global calls\n    calls += 1\ndef answer():\n    count()\n    return calls",
    ],
)
def test_what_is_added_to_is_needed(solution):
    assert run("calls = 41", solution, main=1) == 42


def test_helpers_may_be_spread_over_cells_in_any_order():
    assert run("def a(): return b()", ANSWER, "def b(): return C", "def helper(): return a()", "C = 42", main=1) == 42


@pytest.mark.parametrize(
    "exploring",
    [
        "1 / 0",
        "import no_such_module",
        "while True: pass",
        "x = (1, 2",
        "plot = helper(1, 2, 3)",
        "sum = 0",
        "import math\nmath = 0\nimport time\nfor i in range(10): time.sleep(1)",
        "helper()\nraise SystemExit",
        "%matplotlib inline\n1 / 0",
        "assert helper() == 1",
        "answer = None",
        "def answer(): return 0",
        "del helper",
    ],
)
def test_an_exploring_cell_costs_nothing(exploring):
    assert run("def helper(): return sum([40, 2])", exploring, ANSWER, exploring, main=2) == 42


def test_only_what_is_needed_is_kept():
    assert kept("import os\nimport re\nx = 1\nprint(x)", "def answer(): return re", main=1) == [
        "import re",
        "def answer(): return re",
    ]


def test_a_local_name_is_not_taken_for_a_global_one():
    assert kept("q = launch_the_missiles()", "def answer(q): return [q for v in q]", main=1) == [
        "def answer(q): return [q for v in q]"
    ]


def test_the_last_definition_wins_as_in_a_notebook():
    assert run("def helper(): return 1", "def helper(): return 42", ANSWER, main=2) == 42


def test_set_up_wins_over_the_students_names():
    assert run("math = None", "def answer(): return round(math.cos(0))", main=1) == 1


def test_what_the_set_up_needs_of_the_students_own_is_found_where_the_solution_needs_it():
    setup = [Cell("given", "def given(): return more()\ndef more(): return first() + 1\ndef idle(): return second()")]
    own = [Cell("a", "def first(): return 41\ndef second(): return 1"), Cell("b", "def helper(): return given()")]
    for solution in Cell("answer", "def answer(): return given()"), Cell("answer", ANSWER):
        cut = build_program(setup, [], [*own, solution], solution)
        namespace = {}
        exec("\n".join(cell.source for cell in cut), namespace)
        assert namespace["answer"]() == 42
        assert "second" not in namespace
        supplied = Cell("first (reference)", "def first(): return 0", gives="first")
        assert "a" not in [cell.name for cell in build_program(setup, [supplied], [*own, solution], solution)]


def test_references_win_but_their_helpers_stay_out_of_the_way():
    reference = Cell(
        "other (reference)", "def other(): return _pad(2)\ndef _pad(x): return 20 * x", True, gives="other"
    )
    own = "def other(): return 1 / 0\ndef _pad(x, y): return x + y"
    assert run(own, "def answer(): return other() + _pad(1, 1)", main=1, references=[reference]) == 42


def test_line_numbers_stay_those_of_the_cell():
    source = "\n\n%time x = 1\n# text\n!ls \\\n  -la\nimport os\n\ndef helper():\n    1 / 0"
    cut = build_program([], [], [Cell("own", source), Cell("main", ANSWER)], Cell("main", ANSWER))
    assert cut[0].source.split("\n")[8:] == source.split("\n")[8:]
    assert len(cut[0].source.split("\n")) == len(source.split("\n"))


@pytest.mark.parametrize(
    ("source", "plain"),
    [
        ("%matplotlib inline\nx = 1", "pass\nx = 1"),
        ("%%time\nx = 1", "\nx = 1"),
        ("%%capture out\n\nx = 1", "\n\nx = 1"),
        ("%%bash\nrm -rf /", "\n"),
        ("!pip install torch\nx = 1", "pass\nx = 1"),
        ("files = !ls\nx = 1", "pass\nx = 1"),
        ("t = %timeit -o f()\nx = 1", "pass\nx = 1"),
        ("x?\nx = 1", "pass\nx = 1"),
        ("?x\nx = 1", "pass\nx = 1"),
        ("if y:\n    !ls\nx = 1", "if y:\n    pass\nx = 1"),
        ("!echo it's\nx = 1", "pass\nx = 1"),
        ("    def f():\n        return 1", "def f():\n    return 1"),
        ("x = 7 % 3\ny = 1 if x != 2 else '50%?'", "x = 7 % 3\ny = 1 if x != 2 else '50%?'"),
        ('x = """\n%time\n!ls\n"""', 'x = """\n%time\n!ls\n"""'),
        ("x = ('a'\n  % 1)", "x = ('a'\n  % 1)"),
        ("!ls\nx = (7\n  % 3)", "pass\nx = (7\n  % 3)"),
        ("!ls\nx = 7 \\\n  % 3", "pass\nx = 7 \\\n  % 3"),
        ("%x\ns = '''\n!ls\nit\\'s?\n'''\n!ls", "pass\ns = '''\n!ls\nit\\'s?\n'''\npass"),
        ("!ls\ny = '''?'''  # ('why?\n%x", "pass\ny = '''?'''  # ('why?\npass"),
        ("!echo ( ' \\\n  # (\na, b.c = !ls\nb.c?", "pass\n\npass\npass"),
        ("%time x = f(1)\ny = x", "x = f(1)\ny = x"),
        ("d['x'] = !ls\nx = 1", "pass\nx = 1"),
        (">>> def f():\n...     return 1\n...\n>>> x = f()", "def f():\n    return 1\n\nx = f()"),
        ("In [3]: def f():\n   ...:     return 1\n", "def f():\n    return 1\n"),
        (">>> a = '>>> '\n>>> b = x[...  ]", "a = '>>> '\nb = x[...  ]"),
        ("", ""),
        ("\n  \n", "\n  \n"),
    ],
)
def test_what_ipython_adds_to_python_is_taken_out(source, plain):
    assert without_magics(source) == plain


def test_a_cell_that_is_broken_stays_broken():
    assert is_broken("%time x\ndef f(:\n    pass")
    assert is_broken("x = 1\0")
    assert is_broken("x = 1\n" * MAX_CODE)
    assert not is_broken("!ls")
    assert names_bound("def f(:") == set()


@pytest.mark.parametrize("part", [".a", ". a", ".\\\na"])
def test_a_name_of_very_many_parts_is_not_parsed(part):
    for line in ("import a{}", "from a{} import b"):
        assert is_broken(line.format(part * 200))
        assert not is_broken(line.format(part * 20))
    assert not is_broken("a.a\n" * 200)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    "source",
    [
        "!ls\n" * 5000,
        "\n".join(f"a{n} = a{n - 1}" for n in range(1, 20_000)) + "\nhelper = a19999",
        "x = " + "(" * 100_000,
        "x = " + "-" * 100_000 + "1",
        "helper = a" + ".a" * 100_000,
        "x = " + "1 if x else " * 20_000 + "1",
        "\n".join(" " * n + "if x:" for n in range(300)),
        "x = '\ud800'",
        " " * 100_000 + "x y",
        "x\n" + " " * 100_000 + "!",
        ">>> x = 1\n" + " " * 100_000,
        "%x\n" + "\\'" * 60_000,
        "x = " + "1+" * 60_000 + "1",
        "@a\n" * 40_000 + "def helper(): pass",
        "\n".join(f"def f{n}(): return " + "+".join(f"f{m}" for m in range(150)) for n in range(150)) + "\nhelper = f1",
        "=".join(f"a{n}" for n in range(9000)) + "=helper=[" + ",".join(f"b{n}" for n in range(9000)) + "]",
        "def helper():\n " + "".join(f"a{n}=" for n in range(9000)) + "0\n [" + "lambda:0," * 7000 + "]",
        "helper=0;" * 14_000,
    ],
    ids=[
        *("magics", "chain", "brackets", "signs", "dots", "ternaries", "indents", "surrogate", "blanks", "blank-magic"),
        *("prompt", "escapes", "sum", "decorators", "functions", "targets", "lambdas", "one-line"),
    ],
)
def test_a_hostile_cell_neither_stops_the_grader_nor_holds_it_up(source):
    started = time.monotonic()
    main = Cell("main", ANSWER)
    assert build_program([SETUP], [], [Cell("own", source), main], main)[-1].name == "main"
    assert time.monotonic() - started < 20


def test_a_notebooks_own_names_are_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # put back afterwards
    namespace = new_namespace()
    run_cell(
        "one", "display(1)\nimport __main__\nx = 5\nassert __main__.x == 5\nassert get_ipython() is None", namespace
    )
    assert namespace["__name__"] == "__main__"


def test_a_cells_source_can_be_inspected_as_triton_does():
    import inspect

    namespace = {}
    run_cell("kernel", "def f():\n    return 'the source'", namespace)
    assert "the source" in inspect.getsource(namespace["f"])


def test_what_python_warns_of_in_a_students_code_does_not_reach_the_terminal():
    source = r"""
import warnings
from autograder.course.digest import imported
from autograder.judging.program import Cell, build_program
from autograder.kernels.extract import NotAKernel, cut_kernels
cell = Cell("double", 'x = 1or 2\ny = "\\d\x1b[2J"')
build_program([], [], [cell], cell)
imported(cell.source, ("mla_ref",))
try: cut_kernels([cell], ["x"])
except NotAKernel: pass
warnings.warn("ours")
"""
    done = subprocess.run([sys.executable, "-W", "always", "-c", source], capture_output=True, text=True, check=True)
    assert "ours" in done.stderr
    assert "code from outside" not in done.stderr
    assert "Warning: invalid" not in done.stderr


def test_threads_parse_beside_one_another():
    source = """
import gc, pathlib, sys
from concurrent.futures import ThreadPoolExecutor
from autograder.judging import program
class Collected:
    def __init__(self): self.itself = self
    def __del__(self): sum(range(20))
def work(source):
    for _ in range(20):
        Collected()
        assert program.parsed(source)
text = pathlib.Path(program.__file__).read_text()
gc.set_threshold(10)
sys.setswitchinterval(1e-6)
with ThreadPoolExecutor(4) as pool: list(pool.map(work, [text, text[: text.index("def ")]] * 4))
"""
    subprocess.run([sys.executable, "-c", source], check=True)


def test_what_stands_behind_the_solution_does_not_change_a_name_that_was_there_before():
    assert run("N = 42", "def answer(): return N", "N = 4096\nfor N in range(9): pass", main=1) == 42
    assert run("def answer(): return N", "N = 42", main=0) == 42
    assert run("T = [42]", "def answer(): return sum(T)", "T.append(1)", main=1) == 42
