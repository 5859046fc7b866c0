"""Kernels in Gluon on a CPU: what they compute, and how their mistakes are named."""

import importlib.util
import os
import signal
import threading
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="kernels need Triton")

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from mla_ref.hardware import emulator

if emulator.interpreted():
    pytest.skip("the emulator is not in use under TRITON_INTERPRET=1", allow_module_level=True)

SOURCE = Path(__file__).with_name("gluon_product.py").read_text()
GIVEN = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


def kernel_of(tmp_path, text=SOURCE):
    file = tmp_path / "kernel.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(f"gluon_{abs(hash(text))}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.product


def described(x, width=64):
    return TensorDescriptor.from_tensor(
        x, [64, width], gl.NVMMASharedLayout.get_default_for([64, width], GIVEN[x.dtype])
    )


def run(kernel, M, N, K, dtype=torch.bfloat16, blocks=None):
    """Launch the kernel; return its result and the one to expect."""
    torch.manual_seed(M + N + K)
    a, b = torch.randn(M, K).to(dtype), torch.randn(N, K).to(dtype)
    c = torch.full((M, N), float("nan"), dtype=dtype)
    grid = -(-M // 64), -(-N // 64)
    with emulator.emulating():
        kernel[grid](*map(described, (a, b, c)), -(-K // 64) if blocks is None else blocks, num_warps=4)
    return c, (a.double() @ b.double().T)


@pytest.mark.parametrize("dtype", GIVEN)
@pytest.mark.parametrize(("M", "N", "K"), [(64, 64, 64), (64, 128, 320), (130, 72, 200)])
def test_what_a_loader_brings_is_multiplied_and_stored_within_the_tensor(tmp_path, M, N, K, dtype):
    c, exact = run(kernel_of(tmp_path), M, N, K, dtype)
    torch.testing.assert_close(c.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-3)


WAIT = "        acc = warpgroup_mma_wait(0, deps=(acc,))\n"
FREED = "        mbarrier.arrive(free.index(place))\n"
MISTAKES = {
    "the product waits for no tokens": (
        "        mbarrier.wait(full.index(place), i // 2 & 1)\n", "",
        emulator.Undefined, "a product reads a[0], where nothing has been written yet",
    ),
    "the product waits for the wrong place": (
        "mbarrier.wait(full.index(place), i // 2 & 1)", "mbarrier.wait(full.index(0), i & 1)",
        emulator.Race, "a product reads a[1] while a copy by TMA of line 22",
    ),
    "a place is filled again at once": (
        "        mbarrier.wait(free.index(place), (i // 2 & 1) ^ 1)\n", "",
        emulator.Race, "a copy by TMA writes a[0] while a copy by TMA of line 21",
    ),
    "a place is freed before the product is done": (
        WAIT + FREED, FREED + WAIT, emulator.Race, "a copy by TMA writes a[0] while a product of line 32",
    ),
    "a place is never freed": (
        FREED, "", emulator.EndlessLoop, "for parity 0 of free[0] (0 phases ended; of the next 0 of 1 arrivals came)",
    ),
    "the phase does not turn": (
        "i // 2 & 1)\n        acc", "0)\n        acc",
        emulator.Race, "a copy by TMA writes a[0] while a product of line 32",
    ),
    "the first place is waited for": (
        "(i // 2 & 1) ^ 1)", "i // 2 & 1)",
        emulator.EndlessLoop, "partition 1 in line 20 (`mbarrier.wait(free.index(place), i // 2 & 1)`) for parity 0",
    ),
    "half of the bytes are expected": (
        "2 * 64 * 64 * 2", "64 * 64 * 2",
        emulator.Race, "a product reads b[0] while a copy by TMA of line 23",
    ),
    "more bytes are expected": (
        "2 * 64 * 64 * 2", "2 * 64 * 64 * 4",
        emulator.EndlessLoop, "1 of 1 arrivals came, and 16,384 bytes are missing",
    ),
    "nobody says how many bytes": (
        "        mbarrier.expect(full.index(place), 2 * 64 * 64 * 2)\n", "",
        emulator.EndlessLoop, "0 of 1 arrivals came, and 16,384 bytes more than expected",
    ),
    "a product is left under way": (
        "warpgroup_mma_wait(0, deps=(acc,))\n" + FREED, "warpgroup_mma_wait(1, deps=(acc,))\n",
        emulator.Race, "what warpgroup_mma gives is used before a warpgroup_mma_wait that names it in deps",
    ),
    "no fence": (
        "    fence_async_shared()\n", "",
        emulator.Race, "a store by TMA reads c, where line 35 stored (`c.store(acc.to(c.dtype))`), and no fence_async",
    ),
    "the store waits for nothing": (
        "    mbarrier.wait(done, 0)\n", "",
        emulator.Undefined, "a store by TMA reads c, where nothing has been written yet",
    ),
    "the program ends before its store": (
        "    tma.store_wait(0)\n", "",
        emulator.Race, "the program ends while this still reads c, which is then another's: it takes tma.store_wait(0)",
    ),
    "a copy that nobody waits for": (
        "for i in range(blocks):\n        place = i % 2\n        mbarrier.wait(full",
        "for i in range(blocks - 1):\n        place = i % 2\n        mbarrier.wait(full",
        emulator.Race, "the program ends while this still writes a, which is then another's: it takes a wait for its",
    ),
    "another partition initialises a barrier": (
        "    acc = gl.zeros([64, 64], gl.float32, ACC)\n",
        "    mbarrier.init(free.index(1), count=1)\n    acc = gl.zeros([64, 64], gl.float32, ACC)\n",
        emulator.Race, "another partition initialises free[1], and nothing says that it has done so",
    ),
    "a barrier has not been initialised": (
        "    mbarrier.init(done, count=1)\n", "",
        emulator.Undefined, "the barrier done has not been initialised",
    ),
    "there are two arrivals for one": (
        "    mbarrier.arrive(done)\n", "    mbarrier.arrive(done, count=2)\n",
        emulator.Race, "more arrivals at done than the 1 that its phase waits for",
    ),
    "there is no third place": (
        "place = i % 2\n        mbarrier.wait(full", "place = i % 3\n        mbarrier.wait(full",
        emulator.OutOfBounds, "is indexed by 2, and has 2 parts",
    ),
}  # fmt: skip


LONG = "    for i in range(1 << 30):\n        column += i\n"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_handing_on_is_named(tmp_path, mistake):
    old, new, kind, said = MISTAKES[mistake]
    K = 64 if mistake == "a product is left under way" else 320  # with more blocks the next copy is what meets it
    assert SOURCE.count(old) == 1
    with pytest.raises(kind) as raised:
        run(kernel_of(tmp_path, SOURCE.replace(old, new)), 64, 64, K)
    assert said in str(raised.value)


def test_an_interrupt_ends_all_partitions(tmp_path):
    kernel = kernel_of(tmp_path, SOURCE.replace("    mbarrier.wait(done, 0)\n", LONG + "    mbarrier.wait(done, 0)\n"))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT))
    running = threading.active_count()
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(kernel, 64, 64, 64)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert threading.active_count() == running
