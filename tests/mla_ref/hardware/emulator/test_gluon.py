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


def module_of(tmp_path, text=SOURCE):
    file = tmp_path / "kernel.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(f"gluon_{abs(hash(text))}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    c, exact = run(module_of(tmp_path).product, M, N, K, dtype)
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
    "phases are counted": (
        "i // 2 & 1)\n        acc", "i // 2)\n        acc",
        emulator.Undefined, "full[0] is waited for with phase 2: expected 0 or 1, as `turn & 1` is",
    ),
    "the first place is waited for": (
        "(i // 2 & 1) ^ 1)", "i // 2 & 1)",
        emulator.EndlessLoop, "partition 1 in line 20 for parity 0 of free[0]",
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
        "    mbarrier.invalidate(free.index(1))\n    mbarrier.init(free.index(1), count=1)\n"
        "    acc = gl.zeros([64, 64], gl.float32, ACC)\n",
        emulator.Race, "another partition initialises free[1], and nothing says that it has done so",
    ),
    "a barrier is initialised a second time": (
        "    acc = gl.zeros([64, 64], gl.float32, ACC)\n",
        "    mbarrier.init(free.index(1), count=1)\n    acc = gl.zeros([64, 64], gl.float32, ACC)\n",
        emulator.Undefined, "free[1] is initialised a second time",
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
        run(module_of(tmp_path, SOURCE.replace(old, new)).product, 64, 64, K)
    assert said in str(raised.value)


def test_an_interrupt_ends_all_partitions(tmp_path):
    wait = "    mbarrier.wait(done, 0)\n"
    kernel = module_of(tmp_path, SOURCE.replace(wait, LONG + wait)).product
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


# Two partitions hand a row on through global memory; the program then stores it in tiles of its own by TMA.
HANDED_ON = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

ROW = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
TILE = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))


@gluon.jit
def _write(between, ready):
    offs = gl.arange(0, 128, layout=ROW)
    gl.store(between + offs, offs + 1)
    mbarrier.arrive(ready)


@gluon.jit
def _read(between, out, ready):
    offs = gl.arange(0, 128, layout=ROW)
    mbarrier.wait(ready, 0)
    gl.store(out + offs, gl.load(between + offs))


@gluon.jit
def handed_on(between, out):
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    gl.warp_specialize([(_write, (between, ready)), (_read, (between, out, ready))], [4], [24])


@gluon.jit
def tiles(desc, blocks):
    for i in range(blocks):
        tile = gl.allocate_shared_memory(gl.bfloat16, [64, 64], desc.layout)
        tile.store((gl.full([64, 64], 0, gl.float32, TILE) + i).to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(desc, [64 * i, 0], tile)
        tma.store_wait(0)
"""
STORE, ARRIVE = "    gl.store(between + offs, offs + 1)\n", "    mbarrier.arrive(ready)\n"


def hand_on(kernels):
    between, out = torch.zeros(128, dtype=torch.int32), torch.zeros(128, dtype=torch.int32)
    with emulator.emulating():
        kernels.handed_on[(1,)](between, out, num_warps=4)
    return out.tolist()


def test_partitions_hand_on_through_global_memory(tmp_path):
    assert hand_on(module_of(tmp_path, HANDED_ON)) == list(range(1, 129))


@pytest.mark.parametrize(
    ("old", "new"),
    [(STORE + ARRIVE, ARRIVE + STORE), ("    mbarrier.wait(ready, 0)\n", "")],
    ids=["stored late", "no wait"],
)
def test_global_memory_that_no_barrier_hands_on_is_a_race(tmp_path, old, new):
    assert HANDED_ON.count(old) == 1
    with pytest.raises(
        emulator.Race, match=r"of between, which tl.store in line 1[34] .* writes \(no barrier stands between"
    ):
        hand_on(module_of(tmp_path, HANDED_ON.replace(old, new)))


def test_shared_memory_of_a_loop_is_one_place(tmp_path):
    c = torch.full((128, 64), -1.0, dtype=torch.bfloat16)
    with emulator.emulating():
        module_of(tmp_path, HANDED_ON).tiles[(1,)](described(c), 2, num_warps=4)
    assert c[::64, 0].tolist() == [0, 1]
    inside, after = "        tma.store_wait(0)\n", "    tma.store_wait(0)\n"
    late = module_of(tmp_path, HANDED_ON.replace(inside, after))
    with (
        emulator.emulating(),
        pytest.raises(emulator.Race, match=r"a store writes tile while a store by TMA .* too late"),
    ):
        late.tiles[(1,)](described(c), 2, num_warps=4)
