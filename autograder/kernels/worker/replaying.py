"""Run recorded calls again in the emulator, on storages of the judge's own, with every access checked.

The process holds the kernel program and nothing else of the student's. What neither is an argument nor is made by an
operation of the call holds NaN. A launch of many programs may be sampled: the programs at the ends of each axis of the
grid stand for themselves, those between for their share, so that sums are exact where programs between the ends are
alike.
"""

from __future__ import annotations

import functools
import itertools
import math
import secrets
import signal
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from autograder.isolation.worker import running
from autograder.isolation.worker.layout import blank, window
from autograder.kernels.worker import hosting, undecided
from autograder.kernels.worker.compiling import passed, specialise
from autograder.kernels.worker.counting import (
    LOOPS,
    Counter,
    Drawn,
    Flow,
    Lines,
    LongFlow,
    Ran,
    Sectors,
    Shares,
    Together,
    Turns,
    Writes,
)
from autograder.kernels.worker.diagnostics import diagnosed
from autograder.kernels.worker.generated import Generated
from autograder.kernels.worker.recording import NAMED
from mla_ref.hardware.emulator import control
from mla_ref.hardware.emulator.access import KINDS
from mla_ref.hardware.emulator.faults import KernelFault
from mla_ref.hardware.emulator.gluon import Descriptor
from mla_ref.hardware.emulator.machine import Kernel, Watch
from mla_ref.hardware.emulator.memory import Blanks, Fills, Memory, Region, Undefined, blank_nans, large, ordinary
from mla_ref.hardware.emulator.ttir import Block

EARLY = 0.8  # of the time: when what runs is stopped, to say where it was
GUARD = 1 << 12
ALIGNMENT = 1 << 9
BESIDE = 42  # programs that run with a sample of three: for their results, and to see that they do as much
LONGER = 1.1  # times as much as any program that was counted: one that does more is counted too
IDLE = 4  # programs that are looked at of those that store nothing
LONGEST = {True: 50.0, False: 2.0}  # and at most so many, by whether a program may run twice
PER_ELEMENT = ("tt.map_elementwise", "tt.reduce", "tt.scan")
IN_FLOW = 1 << 22  # elements of an operation, of all programs: where more tell how much one does, data is not asked
UNLIKE = 1.25  # times as much as another program does one that may stand for it
STEPS = 4  # in how much programs do, from one to the next: where there are more, a sample tells on average
ERRORS = 3  # standard errors of what programs write, which a sample that is not alike may be off by
LEFT_OPEN = 0.01  # of what is written, at most
MARKED = 4096  # bytes that show how much of what one launch wrote later ones write again
DRAWN = 1 << 20  # numbers of which a storage is filled, again and again if it has more
WINDOW = 256  # elements of a row that are compared together

Given = tuple[str, Any]  # a kernel's parameter, and the view of a tensor or a number
Launched = dict[int, tuple[Kernel, list[Given]]]  # by the number of the event


class Storages:
    """The storages of one replay, with room around each, at addresses that are multiples of 512 by chance.

    A GPU's tensors begin at such multiples, and at no larger ones that a kernel could count on.

    Parameters
    ----------
    storages
        Of each the `bytes`; what it holds at first, `content`; of an argument's also `elements` if there are gaps
        between them, and whether they are `integers`; or `drawn`: dtype, elements, what they are like and key of what
        is drawn where it is touched.
    lazy
        Whether what nobody has filled may hold zeros, which take no memory, instead of NaN.
    other
        What gives what it holds instead (see `memory.Fills`).
    by_chance
        Whether chance decides on what torch's operations leave open (see `undecided`).
    """

    def __init__(
        self, storages: list[dict[str, Any]], lazy: bool, other: Undefined | None = None, by_chance: bool = False
    ):
        self.storages, self.by_chance = storages, by_chance
        self.sizes = [storage["bytes"] for storage in storages]
        self.buffers: list[np.ndarray] = []
        self.bases: list[int] = []
        self.drawn: dict[int, Generated] = {}
        self.written: dict[int, torch.Tensor] = {}  # of those that hold nothing at first, which bytes something wrote
        self.reports: list[str] = []
        self.strange: set[int] = set()  # of which nothing says what they hold at first
        self.taken: list[str] = []  # what launches read of them before anything wrote it
        for number, size in enumerate(self.sizes):
            buffer = blank(size + 3 * GUARD)
            start = GUARD - buffer.ctypes.data % GUARD + ALIGNMENT * secrets.randbelow(GUARD // ALIGNMENT)
            self.buffers.append(buffer[start : start + size])
            self.bases.append(buffer.ctypes.data + start)
            if "content" in storages[number]:
                held = self.held(number, self.buffers[number])
                held.copy_(storages[number]["content"].view(held.shape))
            elif "drawn" in storages[number]:
                name, *rest = storages[number]["drawn"]
                self.drawn[number] = Generated(NAMED[name], *rest, raw=self.buffers[-1])
            elif not lazy:
                if size:
                    poison(self.buffers[-1], storages[number].get("dtype"), other)
                if 0 < size <= Blanks.LARGEST:
                    self.written[number] = torch.zeros(size, dtype=torch.bool)
                elif size and Fills.current is not None:  # nobody sees whether a kernel reads it before it is written
                    Fills.current.asked = True
        self.numbers = {base: number for number, base in enumerate(self.bases)}

    @functools.cached_property
    def chance(self) -> torch.Generator:
        """What decides on the order of what torch leaves open: alike in each run on the same data."""
        return torch.Generator().manual_seed(_seed(self.storages))

    def held(self, number: int, raw: np.ndarray) -> torch.Tensor:
        """Return the bytes of a storage, or what is kept of each; of a gapped tensor's those of its elements."""
        elements = self.storages[number].get("elements")
        return window(torch.from_numpy(raw), *elements) if elements else torch.from_numpy(raw)

    def changed(self) -> list[str]:
        """Return the names of the arguments that do not hold what they held at first."""
        return [
            storage["input"]
            for number, storage in enumerate(self.storages)
            if "input" in storage and "content" in storage and self._differs(number)
        ]

    def _differs(self, number: int) -> bool:
        held = self.held(number, self.buffers[number]).flatten()
        return not torch.equal(held, self.storages[number]["content"])

    def left(self, numbers: Iterable[int]) -> dict[int, torch.Tensor]:
        """Return the bytes of those of these storages that do not hold what they held at first."""
        return {n: torch.from_numpy(self.buffers[n]).clone() for n in numbers if self._differs(n)}

    def region(self, name: str, view: dict[str, Any]) -> Region:
        """Return what a pointer to a view may reach: the whole storage."""
        number = view["storage"]
        start = self.bases[number] + view["offset"] * NAMED[view["dtype"]].itemsize
        raw = torch.from_numpy(self.buffers[number])
        shape = tuple(view["shape"])
        reports = self.taken if number in self.strange else self.reports
        return Region(name, shape, start, self.bases[number], raw, self.written.get(number), reports)

    def perform(self, step: dict[str, Any], covered: Sequence[np.ndarray] | None) -> None:
        """Do an operation of torch. With `covered`, note too which bytes it makes of what is known."""
        targets = _targets(step)
        for view in hosting.read_by(step):
            known = self.written.get(view["storage"])
            if known is not None and not bool(elements(known.numpy(), view).all()):
                self.reports.append(f"torch's `{step['op'][0]}` reads what nothing wrote")
            if self.storages[view["storage"]].get("integers") and self._differs(view["storage"]):
                name = self.storages[view["storage"]]["input"]
                raise ValueError(f"a kernel has changed {name}: torch may not compute with it any more")
            if view["storage"] in self.drawn:
                self.drawn[view["storage"]].whole()
        # What is new holds nothing yet, and integers that no data reaches are no answer
        if covered is not None and step["op"][0] not in hosting.ALIKE | hosting.ON_INTEGERS:
            self._cover(step, targets, covered)
        undecided.check_apart(step)
        show = lambda view: shown(self.buffers[view["storage"]], view)
        made = undecided.perform(step, show, self.chance) if self.by_chance else hosting.perform(step, show)
        hosting.check_places(step, made, show)
        for view, tensor in zip(step["out"], made, strict=True):
            show(view).copy_(tensor)
        for view in targets:
            known = self.written.get(view["storage"])
            if known is not None:
                elements(known.numpy(), view, every=False).fill_(True)

    def doubt(self, numbers: Iterable[int]) -> None:
        """Say that nothing tells what these storages hold."""
        for number in numbers:
            if self.sizes[number] > Blanks.LARGEST:
                self.taken.append("a kernel takes more than is looked after of what does not count")
            elif self.sizes[number]:
                self.written[number] = torch.zeros(self.sizes[number], dtype=torch.bool)
                self.strange.add(number)

    def lose(self, numbers: Sequence[int], covered: Sequence[np.ndarray] | None) -> None:
        """Put NaN, or the largest integers, where an operation wrote that is not done again."""
        for number in numbers:
            if self.sizes[number] and "elements" not in self.storages[number]:
                poison(self.buffers[number], self.storages[number].get("dtype"))
            if covered is not None:
                covered[number][:] = False

    def _cover(self, step: dict[str, Any], targets: list[dict[str, Any]], covered: Sequence[np.ndarray]) -> None:
        """Do an operation on ones where memory is known and zeros elsewhere; note where ones arrive."""
        control = hosting.control(step)
        ones: list[tuple[dict[str, Any], torch.Tensor]] = []

        def known(view: dict[str, Any]) -> torch.Tensor:
            if any(view is each for each in control):
                return shown(self.buffers[view["storage"]], view)
            first = self.storages[view["storage"]]
            there = elements(covered[view["storage"]], view)
            there = torch.ones_like(there) if "input" in first or "content" in first else there
            ones.append((view, there.to(NAMED[view["dtype"]])))
            return ones[-1][1]

        if hosting.is_fill(step):  # its numbers are no answer
            for view in targets:
                elements(covered[view["storage"]], view, every=False).fill_(False)
            return
        made = hosting.perform(step, known)
        for view, tensor in [*zip(step["out"], made, strict=True), *ones] if ones else ():  # a factory's are no answer
            if any(view is each for each in targets):
                elements(covered[view["storage"]], view, every=False).copy_((tensor == 1)[..., None])


def poison(raw: np.ndarray, dtype: str | None, other: Undefined | None = None) -> None:
    """Fill a storage with NaN, or the largest integers, as torch fills what `running.poisoned` looks after.

    With `other`, fill it with what that gives.
    """
    raw[:] = 0xFF
    if dtype is None:
        return
    kind = NAMED[dtype]
    whole = torch.from_numpy(raw[: len(raw) // kind.itemsize * kind.itemsize]).view(kind)
    if other:
        some = other((min(len(whole), DRAWN),), kind)
        for start in range(0, len(whole), DRAWN):
            whole[start : start + DRAWN].copy_(some[: len(whole) - start])
    elif dtype != "i1" and not (kind.is_floating_point or kind.is_complex):
        whole.fill_(torch.iinfo(kind).max)


def shown(raw: np.ndarray, view: dict[str, Any]) -> torch.Tensor:
    """Return the tensor of a view of a storage's bytes."""
    dtype = NAMED[view["dtype"]]
    whole = torch.from_numpy(raw[: len(raw) // dtype.itemsize * dtype.itemsize]).view(dtype)
    return whole.as_strided(view["shape"], view["strides"], view["offset"])


def elements(covered: np.ndarray, view: dict[str, Any], every: bool = True) -> torch.Tensor:
    """Return of a view's elements, bool, whether all bytes are covered; or each byte, on an axis of its own."""
    size = NAMED[view["dtype"]].itemsize
    whole = torch.from_numpy(covered[: len(covered) // size * size]).view(-1, size)
    found = whole.as_strided([*view["shape"], size], [*(n * size for n in view["strides"]), 1], view["offset"] * size)
    return found.all(dim=-1) if every else found


class Compiled:
    """The kernels of a program, each compiled once for each kind of arguments.

    A launch that comes with the `module` that was compiled for a GPU runs that one.
    """

    def __init__(self, source: str):
        self.namespace: dict[str, Any] = {"__name__": "kernels"}
        running.run_cell("kernels", source, self.namespace)
        self.known: dict[str, Kernel] = {}
        self.took: dict[str, float] = {}  # seconds of the processor, by the name of the kernel

    def kernel(self, launch: dict[str, Any]) -> tuple[Kernel, list[Given]]:
        """Return a launch's kernel, and what it is given, without constants. What fails knows the kernel."""
        from mla_ref.hardware.emulator.backend import check_grid, check_option, compile_kernel, kernel_of

        check_grid(launch["kernel"], launch["grid"])
        if "module" in launch:
            if launch["module"] not in self.known:
                places = launch.get("places")
                kernel = self.known[launch["module"]] = kernel_of(launch["module"], launch["kernel"], places)
                _check_modelled(kernel)
            return self._given(self.known[launch["module"]], launch["parameters"], launch["args"])
        function, began = self.namespace[launch["kernel"]], time.process_time()
        try:
            check_option("num_warps", launch["warps"])
            signature, constants, _ = specialise(function, launch["args"])  # alignment decides nothing here
            options = {"debug": bool(launch["options"].get("debug", function.debug))}  # whether assertions are made
            if function.is_gluon():  # whose layouts are of so many warps
                options["num_warps"] = launch["warps"]
            key = repr((launch["kernel"], signature, constants, options))
            if key not in self.known:
                with diagnosed():
                    self.known[key] = compile_kernel(function, signature, constants, {}, options)
        except Exception as error:
            error.kernel = launch["kernel"]
            raise
        finally:
            self.took[launch["kernel"]] = self.took.get(launch["kernel"], 0.0) + time.process_time() - began
        return self._given(self.known[key], passed(signature), launch["args"])

    def blame(self, error: Exception) -> None:
        """Have an error that the time was up know the kernel that took most of it to compile, if one did, or none."""
        if self.took and max(self.took.values()) > time.process_time() / 2:
            error.kernel = max(self.took, key=self.took.get)
        elif hasattr(error, "kernel"):
            del error.kernel

    @staticmethod
    def _given(kernel: Kernel, names: list[str], args: dict[str, Any]) -> tuple[Kernel, list[Given]]:
        from mla_ref.hardware.emulator.backend import flattened

        values = []
        for name in names:
            arg = args[name]
            found = arg["tensor"] if "tensor" in arg else arg.get("constant", arg.get("value"))
            values.append((name, SimpleNamespace(base=found, **arg["descriptor"]) if "descriptor" in arg else found))
        return kernel, flattened(values, kernel.kinds)


def _check_modelled(kernel: Kernel) -> None:
    """Raise ValueError for a kernel of which no time can be told.

    That is for one that prints, for a loop whose turns are not counted, in a function for the elements of a block, and
    for a loop that may wait for another program: programs run here one after the other, and none is seen to wait.
    """
    reason = ""
    if kernel.waits:
        reason = (
            "a while loop has atomic operations (or volatile loads, or a function that is called) in it. Programs may "
            "wait there for one another, and how long cannot be modelled: leave the loop out, or take two launches"
        )
    for op in kernel.module.ops:
        if op.name == "tt.print":
            reason = "a kernel that prints is not timed: take out device_print, which takes far longer than the rest"
        if op.name in PER_ELEMENT and any(len(region) > 1 or _loops_in(region) for region in op.regions):
            reason = "a function for single elements (of tl.map_elementwise, tl.reduce or a scan) has a loop"
    if reason:
        error = ValueError(reason)
        error.kernel = kernel.name
        raise error


def _loops_in(region: list[Block]) -> bool:
    ops = [op for block in region for op in block.ops]
    return any(op.name in LOOPS or any(map(_loops_in, op.regions)) for op in ops)


def replay(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run each of `request["replays"]` on storages of its own; yield what the launches did, and the results.

    Where the results may depend on what is undefined, there is also what comes of other values in these places,
    `otherwise`, and a sentence on each load of which the mask leaves places out, `left_out`. Where launches leave
    something else in what is `kept` between calls, there is that, and the result of a call that comes after one on
    other data, `later`. What goes wrong in a kernel gives `{"error": the fault}`. After all of them comes, `of` the
    number of each whose results hold NaN, or whose kernels leave integers out of a load, the masked load of which it
    reaches the results, `filled`, or none: finding it takes further runs.

    With `seconds` what each call does once takes these at most of the processor, all together. Runs in other orders and
    with other values take what the process has.
    """
    own = Own(request.get("seconds"))
    with own.limited():
        compiled = Compiled(request["source"])
    strange: dict[int, tuple[Fills, list[torch.Tensor]]] = {}
    for number, each in enumerate(request["replays"]):
        try:
            with Fills() as fills:
                with own.limited():
                    kernels, found = _replay(compiled, each)
                with _further():
                    found |= _in_other_orders(each, kernels) if "result" in found else {}
            if left := found.pop("left", None):
                with Fills(), _further():
                    found |= _later(each, kernels, left)
            if "result" in found and (fills.undefined or found["unwritten"]):
                found |= {"otherwise": [], "left_out": [*fills.loads.values()]}
                for other in (large, ordinary(_seed(each["storages"]))):
                    with Fills(other=other), _further():
                        found["otherwise"].append(_results(compiled, each, other))
            if "result" in found:
                strange[number] = fills, found["result"]
            yield found
        except Exception as error:
            if running.describe_error(error)["message"] == running.TIME_IS_UP:
                compiled.blame(error)
            if isinstance(error, TimeoutError):
                raise
            yield {"error": error}
    for number, (fills, results) in strange.items():
        again = functools.partial(_results, compiled, request["replays"][number])
        if fills.integers or any(bool(each.isnan().any()) for each in results):
            with _further():
                filled = fills.reaching(again, results)
            yield {"of": number, "filled": filled}


class Own:
    """The processor's time that calls take by themselves, of so many seconds; of all that the process has if None."""

    def __init__(self, seconds: float | None):
        self.left = seconds and EARLY * (seconds - running.LAST) - time.process_time()

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Stop the body of a `with` when the time is up."""
        if self.left is None:
            with running.stopped_in_time(EARLY):
                yield
            return
        began = time.process_time()
        try:
            with running.stopped_after(max(self.left, running.SHORTEST), signal.ITIMER_PROF):
                yield
        finally:
            self.left -= time.process_time() - began


@contextmanager
def _further() -> Iterator[None]:
    """Stop the body of a `with`, which runs a call again, when the time of the process is up."""
    try:
        with running.stopped_in_time(EARLY):
            yield
    except TimeoutError:
        raise TimeoutError(running.FURTHER_IS_UP) from None


def _seed(storages: Sequence[dict[str, Any]]) -> int:
    """Return a number that nobody knows who does not know the data."""
    content = [storage["content"].numpy().tobytes() for storage in storages if "content" in storage]
    keys = [storage["drawn"][-1].encode() for storage in storages if "drawn" in storage]
    return functools.reduce(lambda seed, held: zlib.crc32(held, seed), [*content, *keys], 0)


def _results(compiled: Compiled, request: dict[str, Any], other: Undefined | None = None) -> list[torch.Tensor]:
    kernels = {number: compiled.kernel(event) for number, event in enumerate(request["events"]) if "kernel" in event}
    return _run(request, kernels, None, other=other)["result"]


def _replay(compiled: Compiled, request: dict[str, Any]) -> tuple[Launched, dict[str, Any]]:
    """Replay one call; return its kernels, and what it does.

    With `sample` at most about that many programs of a launch run, and are counted, and of the results some `picks` are
    given; with `count` all programs are counted. Else all run, and the results are given.
    """
    kernels = {number: compiled.kernel(event) for number, event in enumerate(request["events"]) if "kernel" in event}
    return kernels, _run(request, kernels, request.get("sample"))


def _in_other_orders(request: dict[str, Any], kernels: Launched) -> dict[str, Any]:
    """Return what comes of a call, `again`, in other orders of programs or of what torch sorts, where these matter."""
    launched = [kernel for kernel, _ in kernels.values()]
    orders = ["reversed"] if any(each.order_matters and not each.waits for each in launched) else []
    orders += ["shuffled"] if any(each.programs_ordered for each in launched) else []
    turns: list[dict[str, Any]] = [{"order": order} for order in orders]
    turns += [{"by_chance": True}] if any("op" in e and undecided.is_open(e) for e in request["events"]) else []
    return {"again": [_run(request, kernels, None, **each)["result"] for each in turns]}


def _later(request: dict[str, Any], kernels: Launched, left: Collection[int]) -> dict[str, Any]:
    """Return which launches leave something else in what is `kept`, and what a call gives after one on other data."""
    kept = dict.fromkeys(
        f"{request['events'][number]['kernel']} leaves in {name}"
        for number, (kernel, given) in kernels.items()
        for name, arg in request["events"][number]["args"].items()
        if (storage := arg.get("tensor", {}).get("storage")) in left
        and storage in set.union(*(_touched(kernel, given)[kind] for kind in ("store", "atomic")))
    )
    generator = torch.Generator().manual_seed(_seed(request["storages"]))
    others = [_with_other_data(storage, generator) for storage in request["storages"]]
    try:
        left = _run({**request, "storages": others}, kernels, None)["left"]
        after = [each | ({"content": left[n]} if n in left else {}) for n, each in enumerate(request["storages"])]
        return {"kept": [*kept], "later": [_run({**request, "storages": after}, kernels, None)["result"]]}
    except TimeoutError:
        raise
    except Exception:
        return {"kept": [*kept], "later": []}


def _with_other_data(storage: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    """Return a storage with other numbers of the same signs, if it holds an argument's data."""
    dtype = NAMED.get(storage.get("dtype"))
    if "input" not in storage or "content" not in storage or dtype is None:
        return storage
    raw = storage["content"].clone()  # aligned
    if dtype in (torch.uint8, torch.int8):
        return {**storage, "content": torch.randint(0, 256, raw.shape, generator=generator).to(torch.uint8)}
    if not dtype.is_floating_point or len(raw) % dtype.itemsize:
        return storage
    values = raw.view(dtype)
    share = 0.25 + 0.75 * torch.rand(values.shape, generator=generator)
    return {**storage, "content": (values.double() * share).to(dtype).view(torch.uint8)}


def _run(
    request: dict[str, Any],
    kernels: dict[int, tuple[Kernel, list[Given]]],
    limit: int | None,
    order: str = "forward",
    other: Undefined | None = None,
    by_chance: bool = False,
) -> dict[str, Any]:
    storages = Storages(request["storages"], limit is not None, other, by_chance or limit is not None)
    counted = limit is not None or (request.get("count") and order == "forward")
    sectors = Sectors(storages.sizes) if counted else None
    covered = [blank(size).view(bool) for size in storages.sizes] if limit is not None else None
    whole = _needed_whole(request["events"], kernels) if limit is not None else set()
    rng = Random(request["secret"]) if request.get("secret") else None
    seed = _seed(request["storages"]) if order == "shuffled" else 0
    done, written = [], {}
    looked = _looked_at(request, kernels) if covered is not None else {}
    within = functools.cache(lambda storage: _shown_of(storages.sizes[storage], looked.get(storage, [])))
    touched = [_touched(*each) for each in kernels.values()] if looked else []
    writers = [each["store"] | each["atomic"] for each in touched]
    for number, event in enumerate(request["events"]):
        if "lost" in event:
            storages.lose(event["lost"], covered)
            continue
        if number not in kernels:
            storages.perform(event, covered)
            for view in event["out"] if sectors else ():
                sectors.forget(view["storage"])
            continue
        if limit is None:
            storages.doubt(event.get("strange", ()))
        run = _Launch(*kernels[number], event, storages, covered, within)
        done.append(run.counted(sectors, limit, rng, number in whole) if sectors else run.plain(order, seed))
        for storage in looked:
            if str(storage) not in written and "write" in done[-1]["distinct"].get(str(storage), ()):
                all_ran, alone = number in whole or done[-1]["exact"], sum(storage in each for each in writers) == 1
                estimate = None if all_ran else run.estimate(storage)
                written[str(storage)] = _Written(covered[storage], within(storage), estimate, alone)
    found = {"launches": done, "changed": storages.changed(), "unwritten": storages.reports[:1]}
    if limit is None:
        results = [shown(storages.buffers[v["storage"]], v) for v in request["result"]]
        known = [storages.written.get(view["storage"]) for view in request["result"]]
        nans = [0 if w is None else blank_nans(each, w) for each, w in zip(results, known, strict=True)]
        found |= {"left": storages.left(request.get("kept", ())), "taken": storages.taken[:1], "blank": nans}
        return {**found, "result": [each.clone() for each in results]}
    told = {storage: each.total() for storage, each in written.items()}
    picks = [_picked(storages, covered, view, request.get("picks", 0), rng) for view in request["result"]]
    return {**found, "picks": picks if rng else [], "written": told}


def _looked_at(request: dict[str, Any], kernels: Collection[int]) -> dict[int, list[dict[str, Any]]]:
    """Return the views of which it is told how much is written, by storage: results, and what torch takes elsewhere."""
    steps = [event for number, event in enumerate(request["events"]) if number not in kernels and "lost" not in event]
    found: dict[int, list[dict[str, Any]]] = {}
    for view in (*request["result"], *(each for step in steps for each in hosting.read_by(step))):
        views = found.setdefault(view["storage"], [])
        if view not in views:
            views.append(view)
    return found


def _shown_of(size: int, views: list[dict[str, Any]]) -> np.ndarray | None:
    """Return which bytes of a storage these views show, bool ``[bytes]``; None for all of them."""
    if any(math.prod(view["shape"]) * NAMED[view["dtype"]].itemsize == size for view in views):
        return None
    found = blank(size).view(bool)
    for view in views:
        elements(found, view, every=False).fill_(True)
    return found


def _needed_whole(events: list[dict[str, Any]], kernels: dict[int, tuple[Kernel, list[Given]]]) -> set[int]:
    """Return the launches of which every program has to run for a result of some to be right.

    Later ones read what they write, or they write where something else did, or they add up.
    """
    found, needed, written = set(), set(), set()
    touched = {number: _touched(*kernels[number]) for number in kernels}
    for number, event in enumerate(events):
        if "lost" in event:
            written.update(event["lost"])
            continue
        if number not in kernels:
            given = [*hosting.read_by(event)]
            written.update(view["storage"] for view in _targets(event) if given)
            continue
        if touched[number]["atomic"] or written & touched[number]["store"]:
            found.add(number)
        written |= touched[number]["store"] | touched[number]["atomic"]
    for number, event in reversed(list(enumerate(events))):
        if "lost" in event:
            continue
        if number not in kernels:
            if needed.intersection(view["storage"] for view in _targets(event)):
                needed.update(view["storage"] for view in hosting.read_by(event))
            continue
        if needed & touched[number]["store"]:
            found.add(number)
        needed |= touched[number]["load"] | touched[number]["atomic"]
    return found


def _targets(step: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the views that an operation of torch writes."""
    return [*hosting.views_in(hosting.written_by(step["op"], step["args"], step["kwargs"])), *step["out"]]


def _touched(kernel: Kernel, given: list[Given]) -> dict[str, set[int]]:
    """Return the storages that a launch may "load" from, "store" to, and update: "atomic"."""
    found: dict[str, set[int]] = {"load": set(), "store": set(), "atomic": set()}
    for op in kernel.module.ops:
        if op.name in KINDS:
            roots = range(len(given)) if op.roots is None else op.roots
            found[KINDS[op.name]].update(given[n][1]["storage"] for n in roots if isinstance(given[n][1], dict))
    return found


class _Launch:
    """A launch about to run."""

    def __init__(
        self,
        kernel: Kernel,
        given: list[Given],
        event: dict[str, Any],
        storages: Storages,
        covered: list | None,
        within: Callable[[int], np.ndarray | None],
    ):
        self.kernel, self.given, self.event, self.storages, self.within = kernel, given, event, storages, within
        self.grid = event["grid"]
        self.programs = self.grid[0] * self.grid[1] * self.grid[2]
        self.regions, self.values = {}, []
        self.again = self.uneven = self.by_kind = False
        self.open: list[int] = []  # programs of which control flow does not tell in short time how much they do
        for number, (name, value) in enumerate(given):
            if isinstance(value, SimpleNamespace):  # of a kernel in Gluon
                self.regions[number] = storages.region(name, value.base)
                self.values.append(Descriptor.at(self.regions[number].start, value))
            elif isinstance(value, dict):
                self.regions[number] = storages.region(name, value)
                self.values.append(self.regions[number].start)
            else:
                self.values.append(value)
        self.ran = Ran()
        self.watches: list[Watch] = [self.ran]
        if storages.drawn:
            self.watches.insert(0, Drawn(storages.drawn, storages.numbers))
        if covered is not None:
            self.watches.append(Writes(covered, storages.numbers))

    def _run(
        self, chosen: Sequence[int] | None, races: bool, *watches: Watch, order: str = "forward", seed: int = 0
    ) -> None:
        watch = Together(*self.watches, *watches)
        threads = {"warps": self.event["warps"], "stages": self.event["stages"]}
        memory = Memory(self.regions)
        turns = {"order": order, "seed": seed}
        self.kernel.launch(self.grid, self.values, memory, chosen, watch, races=races, **turns, **threads)

    def plain(self, order: str = "forward", seed: int = 0) -> dict[str, Any]:
        """Run all programs."""
        self._run(None, True, order=order, seed=seed)
        return self._with_places({"programs": self.programs})

    def counted(self, sectors: Sectors, limit: int | None, rng: Random | None, whole: bool) -> dict[str, Any]:
        """Run all programs, or a sample of about `limit`, and count what they do. If `whole`, the others run too."""
        races = limit is None

        def count(chosen: Sequence[tuple[int, int]], exact: bool) -> Counter:
            self.counter, self.turns = Counter(sectors, self.event, self.storages.numbers, dict(chosen), exact), Turns()
            covered = [blank(size).view(bool) for size in sectors.sizes]
            self.shares = Shares(covered, self.storages.numbers, self.within)
            self.stand_for = dict(chosen)
            self._run([number for number, _ in chosen], races, self.counter, self.shares, self.turns)
            return self.counter

        if self.kernel.depends:  # what a program does depends on those before it: none stands for another
            try:
                counter = count([(number, 1) for number in range(self.programs)], True)
            except (KernelFault, TimeoutError) as error:
                raise self._too_long(error) from None
            return self._with_places(counter.summary(self.programs))
        grid, per_axis = self.grid, _sizes(self.grid, limit)
        self.busy, self.per_axis = grid, per_axis
        chosen = [*self._sample(grid, per_axis, rng)]
        touched, exact = _touched(self.kernel, self.given), all(n <= per_axis for n in grid)
        work = None if exact else self._work()
        if work is not None and (kinds := len(work.unique())) > 1:
            self.uneven, self.by_kind, chosen = True, kinds <= limit, [*by_work(work, limit, rng)]
        counter, seen, ran = None, set(), set()
        self.again = not touched["atomic"] and not touched["load"] & touched["store"]  # a program may run twice
        again = self.again
        if limit is not None and len(chosen) > 3 and again and not self.uneven:  # which run once alone
            middle = rng.randrange(1, self.programs - 1) if rng else chosen[len(chosen) // 2][0]
            first = count([(0, 1), (middle, self.programs - 2), (self.programs - 1, 1)], False)
            counter, seen = (first if first.long_and_alike(0, middle, self.programs - 1) else None), first.unwritten
            if counter is not None:
                beside = {rng.randrange(self.programs) for _ in range(BESIDE)} if rng and not whole else set()
                ran = {0, middle, self.programs - 1, *beside}
                self.turns.counter = counter
                self._run(sorted(beside - {0, middle, self.programs - 1}), races, self.turns, self.shares)
                between = ran - {0, self.programs - 1}
                self.stand_for |= dict.fromkeys(between, (self.programs - 2) / len(between))
                alike = self.turns.alike(middle)
                if not (alike and self.turns.typical(middle)):
                    counter, per_axis = None, _sizes(grid, limit if alike else 2 * limit)
                    self.per_axis, chosen = per_axis, [*self._sample(grid, per_axis, rng)]
        if counter is None:
            if again and self.programs and (busy := self._busy(per_axis, rng)) != grid:
                self.busy = busy
                if self.uneven:
                    z, y, x = np.ogrid[tuple(slice(n) for n in reversed(busy))]
                    within = torch.from_numpy(self._number((x, y, z)).reshape(-1))
                    chosen = [(int(within[n]), each) for n, each in by_work(work[within], limit, rng)]
                else:
                    chosen = [*self._sample(busy, per_axis, rng)]
                idle = sorted({self.programs - 1, *(self._beyond(busy, rng) for _ in range(IDLE))})
                each, rest = divmod(self.programs - math.prod(busy), len(idle))
                chosen += [(number, each + (n < rest)) for n, number in enumerate(idle)]
            counter, ran = count(chosen, exact), {number for number, _ in chosen}
        counter.unwritten |= seen
        near = counter.neighbours(grid, self.programs) - (set(counter.weights) if again else ran)
        if near:
            self._run(sorted(near), races, Lines(counter, near))
            ran = ran | near
        if whole or self.open:
            most = max(self.turns.counts.values(), default=0)
            if whole:
                others = Turns()
                self._run([number for number in range(self.programs) if number not in ran], races, others)
                done = others.counts
            else:
                asked = self._asked(self.open, LONGEST[again] * most).counts
                done = {number: int(asked[number]) for number in asked.nonzero().squeeze(1).tolist()}
            longer = sorted((turns, n) for n, turns in done.items() if turns > LONGER * most)
            if longer and longer[-1][0] > LONGEST[again] * most:
                raise self._untimed(longer[-1][1], longer[-1][0] / most)
            if longer and again:
                seen = counter.unwritten
                counter = count([*chosen, *_shared([n for _, n in longer], limit or len(longer), dict(chosen))], False)
                counter.unwritten |= seen
        return self._with_places(counter.summary(self.programs))

    def _work(self) -> torch.Tensor | None:
        """Return how much each program does, as far as control flow tells; None if nobody asks.

        Where that takes long, those that go on, or have not begun, count as doing the most: it is not known of `open`.
        """
        lean, was = control.cut(self.kernel) or (None, {})
        wide = lean is not None and lean.widest * self.programs > IN_FLOW
        if lean is None or (wide and any(op.name == "tt.load" for op in lean.module.ops)):
            return None
        self.flow = functools.partial(Flow, self.programs, lean, was), lean
        flow = self._asked()
        self.open = flow.open.nonzero().squeeze(1).tolist()
        if self.open:
            most = 2 * flow.counts.max()
            flow.counts[flow.on] = flow.counts[flow.counts == 0] = most
        return flow.counts

    def _asked(self, chosen: Sequence[int] | None = None, most: float = math.inf) -> Flow:
        """Return what the control flow of programs tells, up to where it takes long or one does more than `most`."""
        make, lean = self.flow
        flow = make(most)
        watch = Together(*(each for each in self.watches if isinstance(each, Drawn)), flow)
        with suppress(LongFlow):
            lean.launch(self.grid, self.values, Memory(self.regions), chosen, watch, races=False)
        return flow

    def _sample(self, grid: list[int], per_axis: int, rng: Random | None) -> Iterator[tuple[int, int]]:
        return ((self._number(at), each) for at, each in sample(grid, per_axis, rng))

    def _number(self, at: Sequence[int]) -> int:
        x, y, z = at
        return x + self.grid[0] * (y + self.grid[1] * z)

    def _busy(self, per_axis: int, rng: Random | None) -> list[int]:
        """Return the grid without programs at the end of a long axis that store nothing, as some of them tell."""
        busy = list(self.grid)
        for axis, size in enumerate(self.grid):
            places = [[0, 0, 0], [rng.randrange(n) if rng else n // 2 for n in self.grid]]

            def stores(n: int, axis: int = axis, places: Sequence[Sequence[int]] = places) -> bool:
                writes = Writes([blank(size).view(bool) for size in self.storages.sizes], self.storages.numbers)
                self._run([self._number([*at[:axis], n, *at[axis + 1 :]]) for at in places], False, writes)
                return any(writes.bytes.values())

            low, high = 0, size - 1
            if size <= per_axis or stores(high) or not stores(low):
                continue
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if stores(middle) else (low, middle)
            busy[axis] = high
        return busy

    def _beyond(self, busy: Sequence[int], rng: Random | None) -> int:
        """Return a program that is not in the part of the grid given."""
        rng = rng or Random(0)
        while True:
            at = [rng.randrange(n) for n in self.grid]
            if any(n >= end for n, end in zip(at, busy, strict=True)):
                return self._number(at)

    def _too_long(self, error: Exception) -> Exception:
        """Return an error; of a time that was up a sentence on why it did not do."""
        if running.TIME_IS_UP not in str(error):
            return error
        found = ValueError(
            f"it uses what an atomic operation returns, so that all {self.programs} programs have to be counted, and "
            f"that took too long: have another launch do what waits for the last program"
        )
        found.kernel = self.kernel.name
        return found

    def _untimed(self, number: int, times: float) -> ValueError:
        x, y, _ = self.grid
        error = ValueError(
            f"program {(number % x, number // x % y, number // (x * y))} does {times:.3g} times as much as the others, "
            f"so that no time can be told: give each program as much to do"
        )
        error.kernel = self.kernel.name
        return error

    def estimate(self, storage: int) -> float:
        """Return the bytes of results that all programs write to a storage, at the most.

        Each program writes as many as that which stands for it. Where those of a kind differ, chance may have left out
        programs that write more.
        """
        stand_for, own = self._stand_for, self.shares.own
        kinds: dict[tuple, list[tuple[float, int]]] = {}
        for number, times in stand_for.items():
            done = self.turns.counts.get(number) if self.by_kind or stand_for is not self.stand_for else None
            kinds.setdefault((*self._edges(number), done), []).append((times, own.get((storage, number), 0)))
        spread = 0.0
        for kind in kinds.values():
            mean = sum(size for _, size in kind) / len(kind)
            squares = sum(times * (times - 1) * (size - mean) ** 2 for times, size in kind)
            spread += squares * len(kind) / max(1, len(kind) - 1)
        found = sum(times * size for kind in kinds.values() for times, size in kind)
        return found + min(ERRORS * math.sqrt(spread), found * LEFT_OPEN)

    def _edges(self, number: int) -> tuple[int, ...]:
        """Return on each axis where a program is, if it is one that stands for itself; and those that store nothing."""
        x, y, _ = self.grid
        at = (number % x, number // x % y, number // (x * y))
        if any(n >= end for n, end in zip(at, self.busy, strict=True)):
            return ()
        alone = [n if n in (0, end - 1) else -1 for n, end in zip(at, self.busy, strict=True)]
        return tuple(n if end <= self.per_axis else edge for n, edge, end in zip(at, alone, self.busy, strict=True))

    @functools.cached_property
    def _stand_for(self) -> dict[int, int]:
        """How many programs do as much as each that was counted does.

        Where one of them does more than the next, as where a persistent kernel's last tiles are dealt out, those in
        between run until it is known which is the first that does less.
        """
        weights, counts = self.stand_for, self.turns.counts
        numbers = sorted(weights)
        steps = {a: b for a, b in itertools.pairwise(numbers) if counts.get(a) != counts.get(b)}
        if self.uneven or not self.again or self.grid[0] != self.programs or not 1 <= len(steps) <= STEPS:
            return weights
        found, before = {}, -1
        for number in numbers:
            low, high = number, steps.get(number, number + 1)
            while high - low > 1:
                middle, turns = (low + high) // 2, Turns()
                self._run([middle], False, turns)
                alike = turns.counts[middle] == counts[number]
                low, high = (middle, high) if alike else (low, middle)
            found[number], before = low - before, low
        return found

    def _with_places(self, counts: dict[str, Any]) -> dict[str, Any]:
        flops = sorted(self.ran.flops.values())
        return {
            **counts,
            "ran": sorted(map(list, self.ran.places)),
            "warpgroup_flops": [sum(flops), max(flops, default=0)],
            "copied": self.ran.copied,
        }


# What is told of results of full size


def _picked(
    storages: Storages, covered: list[np.ndarray], view: dict[str, Any], count: int, rng: Random | None
) -> list:
    """Return parts of rows of a result, as far as programs that ran have written it: index, start, values, mask.

    At most `count` are given, and by chance.
    """
    shape, size = view["shape"], NAMED[view["dtype"]].itemsize
    raw = covered[view["storage"]]
    if rng is None or not shape or not raw.size:
        return []
    values, there = shown(storages.buffers[view["storage"]], view), elements(raw, view, every=False)
    begin = view["offset"] * size
    if view["strides"] == _dense(shape) and begin % 8 == 0:
        own = raw[begin : begin + values.numel() * size]
        words = np.flatnonzero(own[: len(own) // 8 * 8].view(np.uint64))
        if not len(words):
            return []
        at = [int(words[rng.randrange(len(words))]) * 8 // size for _ in range(count)]
        spots = [np.unravel_index(each, shape) for each in at]
    else:
        all_spots = elements(raw, view).nonzero()
        spots = (
            [tuple(all_spots[rng.randrange(len(all_spots))].tolist()) for _ in range(count)] if len(all_spots) else []
        )
    found = {}
    for spot in spots:
        row, start = tuple(int(n) for n in spot[:-1]), int(spot[-1]) // WINDOW * WINDOW
        part = slice(start, start + WINDOW)
        found[row, start] = [list(row), start, values[row][part].clone(), there[row][part].all(dim=-1)]
    return list(found.values())


class _Written:
    """What launches write of the results in one storage, from the first launch that does; later ones run whole.

    Parameters
    ----------
    covered
        bool ``[bytes]``: what was seen to be written.
    within
        bool ``[bytes]``: what the results show; None if they show all.
    estimate
        The bytes of results that the first launch writes; None if all of its programs ran.
    alone
        Whether no other writes there.
    """

    def __init__(self, covered: np.ndarray, within: np.ndarray | None, estimate: float | None, alone: bool):
        self.covered, self.within, self.estimate = covered, within, estimate
        self.plain = alone and estimate is not None  # what is written stays: no need to look
        if self.plain:
            return
        self.first, seen = self._inside(), np.flatnonzero(covered)
        self.marked = seen[:: max(1, len(seen) // MARKED)]
        covered[self.marked] = estimate is None  # who writes there again shows

    def _inside(self) -> int:
        return int(np.count_nonzero(self.covered if self.within is None else self.covered & self.within))

    def total(self) -> float:
        """Return the bytes of results that are written, as far as a sample tells: at the most."""
        if self.plain:
            return self.estimate
        again = float(self.covered[self.marked].mean()) if len(self.marked) else 0.0
        self.covered[self.marked] = True
        inside = self._inside()
        if self.estimate is None:
            return inside
        unsure = LEFT_OPEN * self.estimate if 0 < again < 1 else 0.0
        return inside + (self.estimate - self.first) * (1.0 - again) + unsure


def _dense(shape: Sequence[int]) -> list[int]:
    return list(torch.empty(shape, device="meta").stride())


# Programs to run


def sample(grid: list[int], per_axis: int, rng: Random | None = None) -> Iterator[tuple[tuple[int, int, int], int]]:
    """Return program ids, each with the number of programs that it stands for.

    On an axis longer than `per_axis`, the first and the last stand for themselves and the others for equal shares: the
    one in the middle of a share, or with `rng` any one of it.
    """
    axes = []
    for size in grid:
        if size <= per_axis:
            axes.append([(n, 1) for n in range(size)])
            continue
        inner = per_axis - 2
        bounds = [1 + (size - 2) * n // inner for n in range(inner + 1)]
        middle = [(rng.randrange(a, b) if rng else (a + b) // 2, b - a) for a, b in itertools.pairwise(bounds)]
        axes.append([(0, 1), *middle, (size - 1, 1)])
    for (x, a), (y, b), (z, c) in itertools.product(*axes):
        yield (x, y, z), a * b * c


def by_work(work: torch.Tensor, limit: int, rng: Random | None = None) -> Iterator[tuple[int, int]]:
    """Yield programs that do unequal work, ``[programs]``, each with the number of programs that it stands for.

    The first and the last stand for themselves. The others are put into groups of programs that do as much, or nearly
    where there are more kinds than `limit`, and no group does more than its part of all work. The one in the middle
    stands for its group, or with `rng` any one of it.
    """
    yield 0, 1
    if len(work) > 1:
        yield len(work) - 1, 1
    done, order = work[1:-1].sort()
    unlike = UNLIKE if len(done.unique()) > limit else 1.0
    part = (done.double().cumsum(0) * (limit - 2) / done.sum()).ceil().tolist()
    first, done = 0, done.tolist()
    for end in range(1, len(done) + 1) if done else ():
        if end == len(done) or part[end] > part[first] or done[end] > unlike * done[first]:
            at = rng.randrange(first, end) if rng else (first + end) // 2
            yield int(order[at]) + 1, end - first
            first = end


def _shared(programs: Sequence[int], most: int, beside: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield some of these programs, the last among them, each with the number of them that it stands for.

    Those in `beside` are left out.
    """
    programs = [number for number in programs if number not in beside]
    count = min(most, len(programs))
    ends = [len(programs) * n // count for n in range(count + 1)] if count else []
    for first, end in itertools.pairwise(ends):
        yield programs[end - 1], end - first


def _sizes(grid: list[int], limit: int | None) -> int:
    """Return the most programs per axis, so that the sample stays under the limit."""
    long = [n for n in grid if n > 1]
    if limit is None or int(np.prod([float(n) for n in grid])) <= limit:
        return max(grid)
    per_axis = 3
    while per_axis < 64 and int(np.prod([min(n, per_axis + 1) for n in long])) <= limit:
        per_axis += 1
    return per_axis
