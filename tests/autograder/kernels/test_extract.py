"""What may run in the processes that compile and replay: kernels, and nothing that leads out of Triton's language."""

import pytest

from autograder.kernels.extract import NotAKernel, kernel_program

IMPORTS = "import torch\nimport triton\nimport triton.language as tl\n"


def test_takes_kernels_with_what_they_need_and_nothing_else():
    source = kernel_program(
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


def test_takes_the_last_definition():
    cells = [IMPORTS, "@triton.jit\ndef k(x):\n    tl.store(x, 1)\n", "@triton.jit\ndef k(x):\n    tl.store(x, 2)\n"]
    assert "tl.store(x, 2)" in kernel_program(cells, ["k"])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("    torch.add(x, x)", "torch"),
        ("    import os", "Import"),
        ("    open('/etc/passwd')", "open"),
        ("    x.handle", ".handle"),
        ("    tl.core.os.system('x')", ".system"),
        ("    tl.core", "tl.core"),
        ("    triton.runtime.driver.active", ".active"),
        ("    y = triton.runtime\n    y.driver", ".driver"),
        ("    print(f'{x.__class__}')", "__class__"),
        ("    (lambda: 1)()", "Lambda|lambda"),
        ("    [].append", ".append"),
        ("    eval('1')", "eval"),
        ("    helper(x)", "helper"),
        ("    global y\n    y = 1", "Global"),
        ("    with x:\n        pass", "With"),
        ("    try:\n        pass\n    finally:\n        pass", "Try"),
        ("    __builtins__", "__builtins__"),
        ("    tl.load(**x)", r"\*\*"),
        ("    k.fn(x)", ".fn: kernels are called"),
    ],
)
def test_refuses_what_a_kernel_has_no_use_for(body, says):
    with pytest.raises(NotAKernel, match=says):
        kernel_program([IMPORTS, "def helper(x):\n    return x\n", f"@triton.jit\ndef k(x):\n{body}\n"], ["k"])


@pytest.mark.parametrize(
    "head",
    [
        "@triton.autotune([])\n@triton.jit\ndef k(x):",
        "@triton.jit\n@trick\ndef k(x):",
        "@triton.jit(noinline=open('f'))\ndef k(x):",
        "@triton.jit\ndef k(x=print()):",
        "@triton.jit\ndef k(*x):",
        "def k(x):",
    ],
)
def test_refuses_heads_that_run_code(head):
    with pytest.raises(NotAKernel):
        kernel_program([IMPORTS, f"{head}\n    pass\n"], ["k"])


@pytest.mark.parametrize("value", ["open('f')", "[n for n in (1,)]", "torch.ones(1)", "(lambda: 1)", "tl.core.os"])
def test_refuses_constants_that_run_code(value):
    with pytest.raises(NotAKernel):
        kernel_program([IMPORTS, f"C = {value}\n@triton.jit\ndef k(x):\n    tl.store(x, C)\n"], ["k"])
