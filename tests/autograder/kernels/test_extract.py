"""What may run in the processes that compile and replay: kernels, and nothing that leads out of Triton's language."""

import ast
import math
import subprocess
import sys

import pytest

from autograder.isolation.worker import running
from autograder.judging.program import MAX_CODE, Cell
from autograder.kernels import extract
from autograder.kernels.extract import HEADER, NotAKernel, check_definitions, check_uses, cut_kernels

IMPORTS = "import math\nimport torch\nimport triton\nimport triton.language as tl\n"
EXEC = "triton.runtime.jit.inspect.builtins.exec"


def cells_of(sources):
    return [Cell(f"cell {n}", source) for n, source in enumerate(sources)]


def cut(sources, kernels):
    return cut_kernels(cells_of(sources), kernels).source


def with_constant(value, before=""):
    return [f"{IMPORTS}{before}\nC = {value}\n@triton.jit\ndef k(x):\n    tl.store(x, C)\n"]


def with_body(body, before=""):
    lines = "\n".join("    " + line for line in body.split("\n"))
    return [IMPORTS + before, f"@triton.jit\ndef k(x, n, B: tl.constexpr):\n{lines}\n"]


def test_takes_kernels_with_what_they_need_and_nothing_else():
    source = cut(
        [
            IMPORTS + "import triton.language as T\nLOG2E = tl.constexpr(1.44)\nprint('exploring')",
            "@triton.jit\ndef helper(x):\n    return x * LOG2E\n",
            "@triton.jit\ndef other(x):\n    pass\n",
            "@triton.jit(do_not_specialize=['n'])\n"
            "def k(x, n, B: 'tl.constexpr' = 4):\n    tl.store(x, helper(T.load(x)))\n",
            "def launch(x):\n    k[(1,)](x, 3)\n",
        ],
        ["k"],
    )
    assert "def helper" in source and "LOG2E" in source and "do_not_specialize" in source
    for left_out in ("torch", "exploring", "other", "launch"):
        assert left_out not in source
    compile(source, "kernels", "exec")


@pytest.mark.parametrize(
    "below",
    [
        "unused = (C := 5)",
        "unused, D = (C := 5), 3",
        "unused = [n for n in (1,) if (C := 5)]",
        "def launch(x=(C := 5)): pass",
        "@(C := print)\ndef launch(x): pass",
        "class Base(list, metaclass=(C := type)): pass",
        "launch = lambda x=(C := 5): x",
        "@triton.jit\ndef other(x, n=(C := 5)): pass",
        "match 5:\n    case C: pass",
        "match [5]:\n    case [*C]: pass",
        "match {1: 5}:\n    case {**C}: pass",
        "C.value = 5",
        "C.value += 5",
    ],
)
def test_a_constant_that_a_statement_binds_or_changes_otherwise_is_refused(below):
    with pytest.raises(NotAKernel, match=r"k uses C, which is neither .*: line \d binds or changes it"):
        cut([*with_constant("tl.constexpr(1)"), below], ["k"])


@pytest.mark.parametrize(
    "below",
    ["def launch(x):\n    return (C := x)", "launch = lambda x: (C := x)", "class Base:\n    D = (C := 5)", "C.value"],
)
def test_a_constant_is_not_bound_by_names_of_functions(below):
    assert "C = tl.constexpr(1)" in cut([*with_constant("tl.constexpr(1)"), below], ["k"])


def test_takes_the_last_definition():
    cells = [IMPORTS, "@triton.jit\ndef k(x):\n    tl.store(x, 1)\n", "@triton.jit\ndef k(x):\n    tl.store(x, 2)\n"]
    assert "tl.store(x, 2)" in cut(cells, ["k"])


HONEST = '''
@triton.jit
def combine(a, b):
    """Two numbers."""
    return tl.maximum(a, b)

@triton.jit
def tile(p, rows, cols, stride, B: tl.constexpr, dtype: tl.constexpr = tl.float32):
    offs = rows[:, None] * stride + cols[None, :]
    return tl.load(p + offs, mask=(rows[:, None] < B) & (cols[None, :] < B), other=-float("inf")).to(dtype)

@triton.jit
def k(x_ptr, out_ptr, n: tl.int32, B: tl.constexpr, MODE: tl.constexpr, *, BIAS: tl.constexpr = None):
    tl.static_assert(B % 16 == 0, f"B is {B}")
    pid, parts = tl.program_id(0), tl.num_programs(axis=0)
    rows = pid * B + tl.arange(0, B)
    acc: tl.float32 = tl.zeros([B, B], dtype=x_ptr.dtype.element_ty)
    LAST: tl.constexpr = (B + 15) // 16 - 1
    for start in tl.range(0, n, B, num_stages=2):
        for part in tl.static_range(2):
            acc += tile(x_ptr, rows, start + part + tl.arange(0, B), n, B)
    while pid < parts:
        pid += 1
    if MODE == "relu" and BIAS is not None:
        acc = tl.where(acc >= 0, acc, 0.01 * acc)
    elif not (MODE != "sum"):
        acc = acc + tl.sum(acc, axis=1, keep_dims=True).to(acc.dtype)
    top = tl.reduce(acc, 1, combine)
    mean, other = tl.split(tl.join(top, top)) if B > 16 else (top, top)
    acc = tl.dot(acc.to(tl.float16), acc.T.to(tl.float16), input_precision="ieee") * tl.math.exp2(-math.log2(math.e))
    tl.device_print("acc", acc)
    assert n > 0, "rows"
    size: tl.constexpr = tl.float32.primitive_bitwidth // 8
    tl.atomic_add(out_ptr + rows, mean, sem="relaxed", mask=rows < min(n, triton.next_power_of_2(B)))
    desc = tl.make_tensor_descriptor(x_ptr, shape=[n, B], strides=[B, 1], block_shape=[B, B])
    desc.store([pid, 0], desc.load([pid * size, LAST]))
    return
'''


def test_what_honest_kernels_hold_goes_through_unchanged():
    meant = HONEST.replace('"""Two numbers."""', "pass").replace("acc: tl.float32", "acc")
    meant = meant.replace("tl.int32", "'int32'")
    source = cut([IMPORTS + HONEST], ["k"]).removeprefix(HEADER)
    assert ast.dump(ast.parse(source)) == ast.dump(ast.parse(meant))


@pytest.mark.parametrize(
    ("imports", "store"),
    [
        ("import triton\nimport triton.language as L", "L.store"),
        ("import triton\nimport triton.language", "triton.language.store"),
        ("import triton as t\nlang = t.language", "lang.store"),
        ("import triton as t\nfrom triton import language as L", "L.store"),
        ("from triton import jit\nfrom triton.language import store", "store"),
        ("import triton.language as L\nwrite = L.store", "write"),
        ("try:\n    import triton\n    import triton.language as L\nexcept ImportError:\n    L = None", "L.store"),
    ],
)
def test_other_names_of_the_modules_are_resolved(imports, store):
    jit = "@t.jit" if "as t" in imports else "@jit" if "jit" in imports else "@triton.jit"
    source = cut([f"{imports}\n{jit}\ndef k(x):\n    {store}(x, 1)\n"], ["k"])
    assert source == f"{HEADER}\n\n@triton.jit\ndef k(x):\n    tl.store(x, 1)\n"


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        ("128", "128"),
        ("2 ** 7 * 3 - (1 << 4) // 3 % 2", "383"),
        ("-1.5e3", "-1500.0"),
        ("tl.constexpr(N * 2)", "tl.constexpr(128)"),
        ("tl.constexpr(N) + 1", "tl.constexpr(65)"),
        ("1 - tl.constexpr(N)", "tl.constexpr(-63)"),
        ("tl.constexpr(N).value", "64"),
        ("tl.constexpr(1 / math.log(2))", f"tl.constexpr({1 / math.log(2)})"),
        ("math.log2(math.e)", repr(math.log2(math.e))),
        ("-math.inf", "float('-inf')"),
        ("float('-inf')", "float('-inf')"),
        ("tl.constexpr(float('nan'))", "tl.constexpr(float('nan'))"),
        ("tl.float16", "tl.float16"),
        ("(tl.float16, 2 * N, 'ieee', None, True)", "(tl.float16, 128, 'ieee', None, True)"),
        ("max(N, 3, 100) + min((4, 2)) + abs(-1) + len((1, 2)) + int(2.5)", "107"),
        ("triton.cdiv(N + 1, 64) * triton.next_power_of_2(33)", "128"),
        ("(1, 2) * 2 + (3,)", "(1, 2, 1, 2, 3)"),
    ],
)
def test_constants_are_written_as_values(value, literal):
    source = cut(with_constant(value, "N = 32\nN += 32"), ["k"])
    assert f"\nC = {literal}\n" in source


@pytest.mark.parametrize(
    "value",
    [
        "tl.constexpr(64) // 7 + 2",
        "2 ** tl.constexpr(5)",
        "-tl.constexpr(3)",
        "~tl.constexpr(3) & 12",
        "max(tl.constexpr(3), 5)",
        "min(tl.constexpr(3), 5)",
        "triton.cdiv(tl.constexpr(100), 32)",
        "triton.next_power_of_2(100)",
        "math.sqrt(tl.constexpr(4))",
        "tl.constexpr(tl.constexpr((1, 2)))",
        "True + 1",
        "7 // -2 + 7 % -3 + 7 / 2",
    ],
)
def test_constants_are_what_triton_makes_of_them(value):
    triton = pytest.importorskip("triton", reason="compares with Triton")
    names = {"triton": triton, "tl": pytest.importorskip("triton.language"), "math": math}
    source = cut(with_constant(value), ["k"])
    written = next(line for line in source.split("\n") if line.startswith("C = ")).removeprefix("C = ")
    assert repr(eval(written, names)) == repr(eval(value, names))


def test_a_constant_has_the_value_it_had_where_it_was_bound():
    source = cut([*with_constant("N * 2", "A, N = 1, 64\nN, A = A, N"), "N = 5"], ["k"])
    assert "C = 2\n" in source


@pytest.mark.parametrize(
    ("value", "before"),
    [
        ("open('f')", ""),
        ("[n for n in (1,)]", ""),
        ("torch.ones(1)", ""),
        ("(lambda: 1)", ""),
        ("tl.core.os", ""),
        (f"{EXEC}('1')", ""),
        (EXEC, ""),
        ("e('1')", f"e = {EXEC}"),
        ("r.jit.inspect.builtins.exec('1')", "import triton.runtime as r"),
        ("r.jit.inspect.builtins.exec('1')", "r = triton.runtime"),
        ("triton.knobs.runtime", ""),
        ("knobs.cache.dir", "from triton import knobs"),
        ("tl.constexpr(triton.knobs)", ""),
        ("tl.constexpr(exec)", ""),
        ("tl.semantic", ""),
        ("tl.float32.__class__", ""),
        ("tl.float32.to_ir", ""),
        ("tl", ""),
        ("triton", ""),
        ("math.prod((2, 3))", ""),
        ("min((1, 2), key=exec)", ""),
        ("max(*(1, 2))", ""),
        ("9 ** 9 ** 9", ""),
        ("1 << 10 ** 9", ""),
        ("2 ** -(10 ** 400)", ""),
        ("(0,) * 10 ** 9", ""),
        ("'a' * 10 ** 9", ""),
        ("'%1000000000d' % 1", ""),
        ("int('9' * 5000)", ""),
        ("0x" + "f" * 100, ""),
        ("'" + "a" * 1000 + "'", ""),
        ("A", "A = 2\n" + "A = A * A\n" * 40),
        ("A", "A = ()\n" + "A = (A, A)\n" * 200),
        ("A", "A = 1\nfor A in (1, 2):\n    pass"),
        ("A", "A = 1\nif torch.cuda.is_available():\n    A = 2"),
        ("A", "A = 1\ndel A"),
        ("A", "class A:\n    B = 1"),
        ("(A := 1)", ""),
        ("1 if True else 2", ""),
        ("f'{1}'", ""),
        ("b'1'", ""),
        ("1j", ""),
        ("(-1) ** 0.5", ""),
        ("1 // 0", ""),
        ("1 << -1", ""),
        ("...", ""),
        ("max", ""),
        ("1" + " + 1" * 200, ""),
        ("-" * 500 + "1", ""),
        ("1 .bit_length()", ""),
        ("triton.next_power_of_2(1.5)", ""),
        ("max(1, 2)", "def max(a, b):\n    return exec"),
    ],
)
def test_refuses_constants_that_are_no_small_values(value, before):
    with pytest.raises(NotAKernel):
        cut(with_constant(value, before), ["k"])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("torch.add(x, x)", "torch"),
        ("import os", "Import"),
        ("open('/etc/passwd')", "open"),
        ("x.handle", ".handle"),
        ("tl.core.os.system('x')", ".system"),
        ("tl.core", "tl.core"),
        ("tl.semantic.ir", "tl.semantic"),
        ("tl.standard.core", "tl.standard.core"),
        ("tl.extra.cuda.libdevice.pow(x, x)", r"libdevice's pow, .*: write tl.exp2\(y \* tl.log2\(x\)\)$"),
        ("tl.extra.libdevice.rsqrt(x)", "libdevice's rsqrt, which is not emulated: write tl.rsqrt$"),
        ("tl.extra.libdevice.fast_expf(x)", "write tl.exp$"),
        ("tl.extra.libdevice.j0(x)", "libdevice's j0, which is not emulated$"),
        ("tl.extra.cuda", "uses tl.extra"),
        ("x + SIZES['block']", r"looks up `SIZES\['block'\]`: .* passed as an argument, of type tl.constexpr$"),
        ("tl.inline_asm_elementwise('', '', [x], tl.int32, True, 1)", "inline_asm"),
        ("tl.str_to_ty('i32', None)", "str_to_ty"),
        ("tl.no_such_name", "tl.no_such_name"),
        ("tl.load.__globals__", "__globals__"),
        ("tl.load.signature", "tl.load.signature"),
        ("tl.math.core.builtins.exec('1')", "tl.math.core"),
        ("triton.language.core.builtins.exec('1')", "tl.core.builtins.exec"),
        ("triton.runtime.driver.active", ".active"),
        (f"{EXEC}('1')", "triton.runtime"),
        ("triton.knobs.cache.dir", "triton.knobs"),
        ("y = triton.runtime\ny.driver", "triton.runtime"),
        ("y = tl\ny.core", "uses tl"),
        ("y = (tl,)[0]", "uses tl"),
        ("k(triton, n, B)", "uses triton"),
        ("if n:\n    tl = x\ntl.core", "uses tl for a value"),
        ("triton = x", "uses triton for a value"),
        ("if 0:\n    getattr = 1\ngetattr(x, '__class__')", "uses getattr for a value"),
        ("getattr(getattr(tl, 'core'), 'os')", "uses tl|getattr"),
        ("isinstance(x, tl.tensor)", "isinstance|tl.tensor"),
        ("math.factorial(1000)", "math.factorial"),
        ("print(f'{x.__class__}')", "__class__"),
        ("print(f'{x:{x.__class__}}')", None),
        ("print(f'{eval(1)}')", "eval"),
        ("y = f'{B}' == '16'", "f-string"),
        ("tl.load(x, cache_modifier=f'.c{B}')", "f-string"),
        ("y = '%1000000000d' % B", "string"),
        ("y = 'a' * 10", "string"),
        ("'a'.join(x)", ".join"),
        ("'a'.split(x)", "string"),
        ("(lambda: 1)()", "Lambda|lambda"),
        ("tl.store(x, lambda: 1)", "Lambda"),
        ("[i for i in x]", "ListComp"),
        ("tl.store(x, sum(i for i in x))", "GeneratorExp|sum"),
        ("(y := 1)", "NamedExpr"),
        ("match x:\n    case 1:\n        pass", "Match"),
        ("[].append", ".append"),
        ("eval('1')", "eval"),
        ("helper(x)", "helper"),
        ("global y\ny = 1", "Global"),
        ("def f():\n    nonlocal x", "FunctionDef"),
        ("class A:\n    pass", "ClassDef"),
        ("with x:\n    pass", "With"),
        ("try:\n    pass\nfinally:\n    pass", "Try"),
        ("del x", "Delete"),
        ("raise x", "Raise"),
        ("yield x", "Yield"),
        ("await x", "Await"),
        ("__builtins__", "__builtins__"),
        ("__x = 1", "__x"),
        ("tl.load(**x)", r"\*\*"),
        ("tl.load(x)(1)", "calls"),
        ("k.fn(x)", ".fn: kernels are called"),
        ("x.y = 1", "assigns to"),
        ("x[0] = 1", "assigns to"),
        ("a, *b = x", "assigns to"),
        ("for x.y in range(3):\n    pass", "assigns to"),
        ("y = x is B", "compares with `is`"),
        ("x = ...", "no number"),
        ("x = b'1'", "no number"),
        ("x = 0x" + "f" * 5000, "bits"),
        pytest.param("x = " + "1 + " * 5000 + "1", "no cell defines|deep", id="a deep sum"),
        pytest.param("x = " + "1 + " * 200 + "1", "too deeply", id="a sum of 201"),
        pytest.param("x = 1\n" * 10_000, "too long", id="many lines"),
        ("ｅval('1')", "uses eval"),
        ("x.__ｃlass__", "asks for .__class__"),
        ("tl.ｃore", "tl.core"),
        ("𝐢𝐟 = 1", "written out"),
        ("tl.store(x, 1, 𝐢𝐟=2)", "written out"),
    ],
)
def test_refuses_what_a_kernel_has_no_use_for(body, says):
    cells = [*with_body(body), "def helper(x):\n    return x\n"]
    if says is None:  # Triton's compiler leaves the format out, and so does what is cut
        assert "__class__" not in cut(cells, ["k"])
        return
    with pytest.raises(NotAKernel, match=says):
        cut(cells, ["k"])


@pytest.mark.parametrize(
    "before",
    [
        "from triton.runtime.jit import inspect as tl",
        "import triton.runtime as tl",
        "import os as tl",
        "tl = triton.runtime.jit.inspect",
        "tl = torch",
        "tl = tl.core",
        "import triton.language.core as tl",
        "from triton.language import core as tl",
        "tl = 5",
        "for tl in (torch,):\n    pass",
        "def tl():\n    pass",
    ],
)
def test_a_name_of_a_module_that_means_something_else_leads_nowhere(before):
    with pytest.raises(NotAKernel):
        cut(with_body("tl.builtins.exec('1')", before), ["k"])
    with pytest.raises(NotAKernel):
        cut(with_body("tl.store(x, 1)", before), ["k"])


@pytest.mark.parametrize(
    "head",
    [
        "@triton.autotune([])\n@triton.jit\ndef k(x):",
        "@triton.jit\n@trick\ndef k(x):",
        "@triton.jit(noinline=open('f'))\ndef k(x):",
        "@triton.jit(open('f'))\ndef k(x):",
        "@triton.jit(version='x')\ndef k(x):",
        "@triton.jit(**{})\ndef k(x):",
        f"@({EXEC} or triton.jit)\ndef k(x):",
        "@triton.runtime.jit\ndef k(x):",
        "@jit\ndef k(x):",
        "@triton.jit\ndef k(x=print()):",
        f"@triton.jit\ndef k(x={EXEC}('1')):",
        "@triton.jit\ndef k(x=[].append):",
        "@triton.jit\ndef k(*x):",
        "@triton.jit\ndef k(**x):",
        "@triton.jit\ndef k(tl):",
        "@triton.jit\ndef k(getattr):",
        "@triton.jit\ndef k(__builtins__):",
        "@triton.jit\nasync def k(x):",
        "@triton.jit\nclass k:",
        "def k(x):",
        *(["@triton.jit\ndef k[T: exec('1')](x):"] if sys.version_info >= (3, 12) else []),
    ],
)
def test_refuses_heads_that_run_code(head):
    with pytest.raises(NotAKernel):
        cut([IMPORTS, f"{head}\n    pass\n"], ["k"])


def test_annotations_that_are_no_types_are_not_carried():
    source = cut(
        [
            IMPORTS,
            "@triton.jit\ndef k(x: torch.T[open], n: 'open()') -> open('f'):\n    y: print() = 1\n    z: open('f')\n",
        ],
        ["k"],
    )
    assert "def k(x, n):\n    y = 1\n    pass\n" in source


@pytest.mark.parametrize("annotation", [f"{EXEC}('1')", "(lambda: tl.int8)()", "made", "made.int8"])
def test_annotations_that_run_code_are_refused(annotation):
    with pytest.raises(NotAKernel, match="leave that out, or write a type of tl"):
        cut([IMPORTS, f"class made:\n    int8 = tl.int8\n@triton.jit\ndef k(x: {annotation}):\n    pass\n"], ["k"])


@pytest.mark.parametrize(
    ("annotation", "means"),
    [
        ("tl.int64", "i64"),
        ("W", "i64"),
        ("'tl.int64'", "i64"),
        ("'u1'", "u1"),
        ("int", "i32"),
        ("np.int8", "i8"),
        ("narrow", "i8"),
        ("'*fp16'", "*fp16"),
        ("torch.Tensor", ""),
        ("Tensor", ""),
        ("'a number'", ""),
    ],
)
def test_the_type_that_a_parameter_is_annotated_with_is_the_one_that_triton_takes(annotation, means):
    pytest.importorskip("triton")
    imports = "import numpy as np\nfrom numpy import int8 as narrow\nfrom torch import Tensor\nW = tl.int64\n"
    source = cut([IMPORTS + imports, f"@triton.jit\ndef k(x: {annotation}):\n    pass\nW = 3\n"], ["k"])
    namespace = {"__name__": "kernels"}
    running.run_cell("kernels", source, namespace)
    assert namespace["k"].params[0].annotation_type == means


def test_a_default_is_the_value_of_its_name_at_the_def():
    source = cut([IMPORTS, "S = tl.constexpr(5.0)\n@triton.jit\ndef k(x, s=S):\n    pass\n", "S = 1.0\n"], ["k"])
    assert "def k(x, s=tl.constexpr(5.0)):" in source


def test_options_that_name_launches_are_left_out():
    head = "@triton.jit(launch_metadata=named, repr=lambda _: open('f'), do_not_specialize=['n'])"
    source = cut([IMPORTS, f"def named(*x):\n    return {{}}\n{head}\ndef k(x, n):\n    tl.store(x, n)\n"], ["k"])
    assert "@triton.jit(do_not_specialize=('n',))\ndef k(x, n):" in source


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("@triton.autotune([], key=[])\n@triton.jit\ndef k(x):", "leave that out, and pass the values of one"),
        ("@named\n@triton.jit\ndef k(x):", "decorated with `@named` besides @triton.jit: leave that out"),
        ("@triton.jit(version=1)\ndef k(x):", "of its options debug, do_not_specialize, do_not_.* are taken"),
        (
            "class Ops:\n  @triton.jit\n  def k(x):",
            "k was launched, which is defined inside of the class Ops: write its",
        ),
        ("def made():\n  @triton.jit\n  def k(x):", "inside of the function made: write its def outside"),
    ],
)
def test_what_is_wrong_with_a_head_is_told(source, says):
    with pytest.raises(NotAKernel, match=says):
        cut([IMPORTS, f"def named(f):\n    return f\n{source}\n    pass\n"], ["k"])


@pytest.mark.parametrize(
    ("before", "says"),
    [
        (
            "if math.pi > 3:\n    C = 1\nelse:\n    C = 2",
            "line 5 binds or changes it, inside of `if`: bind it once, outside",
        ),
        ("try:\n    C = 1\nfinally:\n    pass", "inside of `try`: bind it once, outside"),
        (
            "class C:\n    shape: tl.tensor",
            "k uses the class C, and classes are not graded: pass what it holds one by one",
        ),
        ("D = math.pi > 3\nC = tl.constexpr(D)", "the constant C holds `D`: write out its value, as 64 or True"),
    ],
)
def test_what_a_name_of_a_kernel_stands_for_is_told(before, says):
    with pytest.raises(NotAKernel, match=says):
        cut(with_body("t = C\ntl.store(x, t)", before), ["k"])


def test_a_class_is_told_before_what_a_value_of_it_has():
    with pytest.raises(NotAKernel, match="k uses the class Tile, and classes are not graded"):
        cut(with_body("t = Tile(n)\ntl.store(x, t.mask)", "class Tile:\n    mask: tl.tensor"), ["k"])


def test_a_constant_that_a_function_changes_is_refused():
    cells = ["S = tl.constexpr(5.0)\n", *with_body("tl.store(x, S)"), "def launch(x):\n    global S\n    S = 1\n"]
    with pytest.raises(NotAKernel, match="uses S, which a function binds by `global`"):
        cut([IMPORTS, *cells], ["k"])


def test_what_another_decorator_of_triton_made_is_told():
    with pytest.raises(NotAKernel, match=r"with @triton\.constexpr_function: .*: write what it gives in the kernel"):
        cut([IMPORTS, "@triton.constexpr_function\ndef one(b):\n    return 1\n", *with_body("x + one(1)")], ["k"])


@pytest.mark.parametrize("name", ["__builtins__", "tl", "triton", "math"])
def test_refuses_kernels_with_the_name_of_something_else(name):
    with pytest.raises(NotAKernel):
        cut([f"from triton import jit\n@jit\ndef {name}(x):\n    pass\n"], [name])


def test_a_kernel_that_a_function_makes_is_told_from_a_constant():
    with pytest.raises(NotAKernel, match=r"the kernel k is what `make\(\)` gives: write its def"):
        cut([IMPORTS, "def make():\n    return 1\nk = make()\n"], ["k"])


def test_a_name_of_a_launch_that_is_no_name_is_refused_in_a_short_sentence():
    with pytest.raises(NotAKernel, match="no cell defines"):
        cut([IMPORTS], ["x" * 300])
    with pytest.raises(NotAKernel) as caught:
        cut([IMPORTS], ["x" * 10**6])
    assert len(str(caught.value)) < 500


def test_chains_of_helpers_end():
    chain = "".join(f"@triton.jit\ndef k{n}(x):\n    k{n + 1}(x)\n" for n in range(2000))
    with pytest.raises(NotAKernel, match="call one another in a chain"):
        cut([IMPORTS + chain], ["k0"])
    with pytest.raises(NotAKernel, match="write a loop"):
        cut(with_body("k(x, n, B)"), ["k"])


def test_very_long_cells_are_refused():
    with pytest.raises(NotAKernel, match="KiB of code"):
        cut([IMPORTS, *["#" * MAX_CODE] * 3], ["k"])


def test_every_line_is_known_by_its_cell_and_line():
    cells = [
        IMPORTS + "SCALE = tl.constexpr(\n    2\n)",
        "# helper\n@triton.jit\ndef helper(x):\n    '''Text.'''\n    return (\n        x * SCALE\n    )",
        "\n\n@triton.jit\ndef k(x,\n      y):\n    # comment\n    a = 1; b = a\n    if b:\n        a = 2\n    else:\n"
        "        tl.store(x,\n                 helper(y))",
    ]
    program = cut_kernels(cells_of(cells), ["k"])
    written = program.source.split("\n")
    found = {written[n - 1].strip(): place for n, place in program.lines.items()}
    assert found["SCALE = tl.constexpr(2)"] == ("cell 0", 5, "SCALE = tl.constexpr(")
    assert found["def helper(x):"] == ("cell 1", 3, "def helper(x):")
    assert found["return x * SCALE"] == ("cell 1", 5, "return (")
    assert found["b = a"] == ("cell 2", 7, "a = 1; b = a")
    assert found["a = 2"] == ("cell 2", 9, "a = 2")
    assert found["tl.store(x, helper(y))"] == ("cell 2", 11, "tl.store(x,")
    unknown = [line for n, line in enumerate(written, start=1) if n not in program.lines and line.strip()]
    assert unknown == [*filter(None, HEADER.split("\n")), "    else:"]


def test_the_program_compiles_in_triton(tmp_path):
    pytest.importorskip("triton", reason="compiles with Triton")
    body = "offs = tl.arange(0, B)\ntl.store(x + offs, tl.load(x + offs) * C, mask=offs < n)"
    file = tmp_path / "kernels.py"
    file.write_text(cut(with_body(body, "C = tl.constexpr(2.0)"), ["k"]))
    code = (
        "import kernels\nfrom triton.backends.compiler import GPUTarget\n"
        "from triton.compiler import ASTSource, compile\n"
        "source = ASTSource(kernels.k, {'x': '*fp32', 'n': 'i32', 'B': 'constexpr'}, {(2,): 16})\n"
        "print('tt.store' in compile(source, target=GPUTarget('cuda', 80, 32)).asm['ttir'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr[-1000:]


def test_many_kernels_take_no_more_looks_at_a_cell_than_one(monkeypatch):
    source = IMPORTS + "".join(f"@triton.jit\ndef k{n}(x):\n    tl.store(x, 1)\n" for n in range(300))
    looks, parsed = [], extract.parsed
    monkeypatch.setattr(extract, "parsed", lambda text: looks.append(text) or parsed(text))
    cells = [Cell("cell", source)]
    check_definitions(cells, [(f"k{n}", "cell", 5 + 3 * n) for n in range(300)])
    noted = {"names": {}, "defaults": {}, "source": "def k7(x):\n  # said otherwise\n  tl.store(x, 1)"}
    check_uses(cells, [{**noted, "kernel": f"k{n}", "function": "k7", "defined": ["cell", 26]} for n in range(300)])
    assert len(looks) <= 3


def test_sources_of_launched_kernels_that_are_longer_than_all_cells_may_be_are_not_read():
    noted = {"kernel": "k", "function": "k", "defined": ["", 5], "names": {}, "defaults": {}}
    with pytest.raises(NotAKernel, match="when they are launched"):
        check_uses(cells_of(with_body("pass")), [{**noted, "source": f"# {n}" + MAX_CODE // 2 * " "} for n in range(5)])
