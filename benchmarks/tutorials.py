"""Do Triton's public tutorials run on a CPU as they are, and do they compute what PyTorch computes?

    python benchmarks/tutorials.py FOLDER

FOLDER holds `python/tutorials/*.py` of a release of Triton; none of it is in this repository. Each file's text is
executed as it stands, as far as its first benchmark; the tests that some have before it run with it. Then kernels are
launched through the tutorial's own functions on inputs that suit a CPU, and compared with PyTorch in float64. Functions
that ask `torch.cuda` for something stop there without a GPU: the record has the line, and the kernel is launched
directly.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import record
import torch
from torch import Tensor

from autograder.judging.program import parse
from mla_ref.hardware import emulator

assert emulator.prepare(), "this machine has a GPU: set MLA_EMULATE=1"

import triton  # noqa: E402

PROGRAMS = 4  # of a persistent kernel, which a GPU starts once per multiprocessor
Case = tuple[
    str, Callable[[], Any], Any, float
]  # name, call, exact results, largest error relative to the largest value
CASES: dict[str, Callable[[Any], Iterator[Case]]] = {}


def main(folder: Path) -> None:
    """Run the tutorials and write the record."""
    found = {name: run(folder / f"{name}.py", cases) for name, cases in CASES.items()}
    print(record.write("tutorials", {"tutorials": found}, ("triton",)))


def run(path: Path, cases: Callable[[Any], Iterator[Case]]) -> dict[str, Any]:
    """Return what came of one tutorial."""
    print(path.name)
    text = path.read_text()
    module = types.ModuleType(path.stem.replace("-", "_"))
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where Triton looks for what a kernel calls
    started = time.perf_counter()
    exec(compile(before_benchmarks(text), path, "exec"), module.__dict__)
    result: dict[str, Any] = {
        "sha256": hashlib.sha256(text.encode()).hexdigest()[:16],
        "text_seconds": round(time.perf_counter() - started, 1),
        "kernels": {},
    }
    for name, call, exact, tolerance in cases(module):
        started = time.perf_counter()
        try:
            out = call()
        except (AssertionError, RuntimeError) as error:
            result["kernels"][name] = {"stopped": stop(error, path)}
        else:
            error = largest_error(out, exact)
            result["kernels"][name] = {
                "error": float(f"{error:.2g}"),
                "tolerance": tolerance,
                "agrees": error <= tolerance,
                "seconds": round(time.perf_counter() - started, 2),
            }
        print(f"  {name}: {result['kernels'][name]}")
    return result


def before_benchmarks(text: str) -> str:
    """Return the text up to its first benchmark."""
    for node in parse(text).body:
        if "perf_report" in ast.unparse(node):
            first = min([node, *node.decorator_list], key=lambda each: each.lineno)
            return "\n".join(text.splitlines()[: first.lineno - 1])
    return text


def stop(error: BaseException, path: Path) -> str:
    """Return the last line of the tutorial that an error passed, and what it says."""
    frame = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == str(path)][-1]
    return f"line {frame.lineno}, {frame.line}: {type(error).__name__}: {error}"


def largest_error(out: Any, exact: Any) -> float:
    """Return the largest difference, relative to the largest exact value."""
    pairs = [(out, exact)] if isinstance(out, Tensor) else list(zip(out, exact, strict=True))
    return max(((a.detach().double() - b).abs().max() / b.abs().max()).item() for a, b in pairs)


def tutorial(name: str) -> Callable:
    """Note the cases of a tutorial."""

    def noted(cases: Callable) -> Callable:
        CASES[name] = cases
        return cases

    return noted


@tutorial("01-vector-add")
def vector_add(module: Any) -> Iterator[Case]:
    x, y = torch.rand(98432), torch.rand(98432)
    yield "add_kernel", lambda: module.add(x, y), x.double() + y.double(), 1e-7


@tutorial("02-fused-softmax")
def fused_softmax(module: Any) -> Iterator[Case]:
    x = torch.randn(1823, 781)
    yield "softmax_kernel", lambda: module.softmax(x), x.double().softmax(1), 1e-6


@tutorial("03-matrix-multiplication")
def matrix_multiplication(module: Any) -> Iterator[Case]:
    a, b = torch.rand(200, 150).half() - 0.5, torch.rand(150, 333).half() - 0.5
    exact = a.double() @ b.double()
    yield "matmul_kernel", lambda: module.matmul(a, b), exact, 1e-3
    leaky = torch.where(exact >= 0, exact, 0.01 * exact)
    yield "matmul_kernel, leaky_relu", lambda: module.matmul(a, b, "leaky_relu"), leaky, 1e-3


@tutorial("05-layer-norm")
def layer_norm(module: Any) -> Iterator[Case]:
    operands = [-2.3 + 0.5 * torch.randn(300, 1000), torch.rand(1000), torch.rand(1000)]
    x, weight, bias = (each.half().requires_grad_() for each in operands)
    dy = 0.1 * torch.randn_like(x)
    precise = [each.detach().double().requires_grad_() for each in (x, weight, bias)]
    exact = torch.nn.functional.layer_norm(precise[0], (1000,), *precise[1:], 1e-5)
    forward = lambda: module.layer_norm(x, (1000,), weight, bias, 1e-5)
    yield "_layer_norm_fwd_fused", forward, exact.detach(), 1e-3
    gradients = lambda: torch.autograd.grad(forward(), (x, weight, bias), dy)
    yield "_layer_norm_bwd", gradients, torch.autograd.grad(exact, precise, dy.double()), 2e-3


@tutorial("06-fused-attention")
def fused_attention(module: Any) -> Iterator[Case]:
    for causal in (False, True):
        q, k, v = ((0.5 * torch.randn(1, 2, 256, 64)).half().requires_grad_() for _ in range(3))
        precise = [each.detach().double().requires_grad_() for each in (q, k, v)]
        exact = torch.nn.functional.scaled_dot_product_attention(*precise, is_causal=causal, scale=0.5)
        forward = lambda q=q, k=k, v=v, causal=causal: module.attention(q, k, v, causal, 0.5, False)
        suffix = ", causal" if causal else ""
        yield f"_attn_fwd{suffix}", forward, exact.detach(), 2e-3
        do = torch.randn_like(q)
        gradients = lambda forward=forward, qkv=(q, k, v), do=do: torch.autograd.grad(forward(), qkv, do)
        yield f"_attn_bwd{suffix}", gradients, torch.autograd.grad(exact, precise, do.double()), 1e-2


@tutorial("08-grouped-gemm")
def grouped_gemm(module: Any) -> Iterator[Case]:
    sizes = [(256, 128, 128), (128, 256, 64), (384, 128, 192)]
    lefts = [torch.rand(m, k).half() for m, _, k in sizes]
    rights = [torch.rand(k, n).half() for _, n, k in sizes]
    exact = [a.double() @ b.double() for a, b in zip(lefts, rights, strict=True)]
    yield "grouped_matmul_kernel", lambda: module.group_gemm_fn(lefts, rights), exact, 1e-3
    transposed = [b.T.contiguous() for b in rights]
    yield "group_gemm_tma_fn", lambda: module.group_gemm_tma_fn(lefts, transposed), exact, 1e-3

    def launched() -> list[Tensor]:
        outs = [torch.empty(m, n, dtype=torch.float16) for m, n, _ in sizes]
        pointers = [torch.tensor([x.data_ptr() for x in group]) for group in (lefts, transposed, outs)]
        leading = [[x.stride(0) for x in group] for group in zip(lefts, transposed, outs, strict=True)]
        numbers = [torch.tensor(each, dtype=torch.int32) for each in (sizes, leading)]
        module.grouped_matmul_tma_kernel[(PROGRAMS,)](*pointers, *numbers, len(sizes), FP8=False, NUM_SM=PROGRAMS)
        return outs

    yield "grouped_matmul_tma_kernel, launched directly", launched, exact, 1e-3


@tutorial("09-persistent-matmul")
def persistent_matmul(module: Any) -> Iterator[Case]:
    a, b = torch.randn(300, 136).half(), torch.randn(264, 136).half()
    (m, k), n = a.shape, len(b)
    exact = a.double() @ b.double().T
    yield "matmul_kernel", lambda: module.matmul(a, b.T), exact, 1e-3
    yield "matmul_kernel_tma", lambda: module.matmul_tma(a, b, False), exact, 1e-3
    yield "matmul_kernel_tma, warp_specialize", lambda: module.matmul_tma(a, b, True), exact, 1e-3
    yield "matmul_persistent", lambda: module.matmul_persistent(a, b.T), exact, 1e-3
    yield "matmul_tma_persistent", lambda: module.matmul_tma_persistent(a, b, False), exact, 1e-3
    yield "matmul_descriptor_persistent", lambda: module.matmul_descriptor_persistent(a, b, False), exact, 1e-3

    def launched(kernel: Any, *operands: Any, **constants: Any) -> Tensor:
        out = torch.empty(m, n, dtype=torch.float16)
        kernel[(PROGRAMS,)](*(out if each is None else each for each in operands), NUM_SMS=PROGRAMS, **constants)
        return out

    def with_descriptors() -> Tensor:
        out = torch.empty(m, n, dtype=torch.float16)
        descriptors = [module.TensorDescriptor.from_tensor(each, [1, 1]) for each in (a, b, out)]
        launched(module.matmul_kernel_tma_persistent, *descriptors, m, n, k, FP8_OUTPUT=False, WARP_SPECIALIZE=False)
        return out

    strides = (*a.stride(), *b.T.stride(), n, 1)
    direct = "launched directly"
    yield (
        f"matmul_kernel_persistent, {direct}",
        lambda: launched(module.matmul_kernel_persistent, a, b.T, None, m, n, k, *strides),
        exact,
        1e-3,
    )
    yield f"matmul_kernel_tma_persistent, {direct}", with_descriptors, exact, 1e-3
    yield (
        f"matmul_kernel_descriptor_persistent, {direct}",
        lambda: launched(
            module.matmul_kernel_descriptor_persistent, a, b, None, m, n, k, WARP_SPECIALIZE=False, FLATTEN=True
        ),
        exact,
        1e-3,
    )


if __name__ == "__main__":
    print(f"Triton {triton.__version__}")
    main(Path(sys.argv[1]))
