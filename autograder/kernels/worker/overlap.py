"""What Hopper's machine code does while products of matrices are under way.

A warpgroup starts products (HGMMA) and goes on. WARPGROUP.DEPBAR waits until no more than so many groups of them are
under way. What stands between the two costs no time of its own, if the compiler has left it there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

PRODUCT = re.compile(r"\bHGMMA\.\d+x(\d+)x")
LAST = "gsb0"  # of the instructions of a group, which are waited for together
WAIT = re.compile(r"\bWARPGROUP\.DEPBAR\.LE gsb0, (0x[0-9a-f]+)")
REGISTERS = re.compile(r"\bUSETMAXREG\.\S+ (?:UP\d, )?(0x[0-9a-f]+)")
COPY = re.compile(r"\bUTMALDG\b")
BESIDE = {"exponentials": r"\bMUFU\.EX2\b", "copies": COPY.pattern, "spills": r"\b(LDL|STL)\b"}
# Cycles until the result is there: assumed, and low, as they bound a turn from below. None was measured here.
LATENCY = {"LDG": 30, "LD": 30, "ATOM": 200, "ATOMG": 200, "LDS": 20, "LDSM": 20, "SHFL": 20, "MUFU": 10, "MEMBAR": 10}
FAR, FAR_CYCLES = {"STRONG", "GPU", "SYS"}, 200  # what goes to the L2 cache
BARRIER_CYCLES = 15  # of some 20 that one takes in benchmarks/model_corners_h100.json


def product_loops(code: Sequence[str], labels: Mapping[str, int], controls: Sequence[int]) -> list[dict[str, Any]]:
    """Return of each innermost loop with products what stands in its body, as numbers of instructions.

    `products` are started there. Of `exponentials`, `copies` to shared memory and `spills`, those while a product is
    under way come first: `[beside, all]`. At `most` so many groups of products are under way at once, `carried` of them
    from one turn to the next; a group that is small beside the loop's largest does not count. The partition that it is
    in has so many `registers` a thread; 0 if no partition asks for any.

    A turn keeps the tensor cores busy for so many `cycles`; its other instructions take as many as `beside`, at the
    least: a scheduler starts one a cycle, and a special function takes eight. One warp has a turn take `turn`, by what
    `controls`, the upper halves of the instructions, have it wait for. `inner` are loops within it.
    """
    taken = [int(match[1], 16) if (match := REGISTERS.search(text)) else 0 for text in code]
    found = []
    for (first, last), inner in _innermost(code, labels, PRODUCT):
        registers = next(filter(None, reversed(taken[:first])), 0)
        body = slice(first, last + 1)
        turn = _turn(code[body], controls[body])
        found.append({**_read(code[body]), "turn": turn, "registers": registers, "inner": inner})
    return found


def copy_loops(code: Sequence[str], labels: Mapping[str, int], controls: Sequence[int]) -> list[dict[str, int]]:
    """Return of each innermost loop that starts `copies` to shared memory, and no products, their number; see above."""
    found = []
    for (first, last), inner in _innermost(code, labels, COPY):
        body = slice(first, last + 1)
        if not any(map(PRODUCT.search, code[body])):
            copies = sum(COPY.search(text) is not None for text in code[body])
            found.append({"copies": copies, "turn": _turn(code[body], controls[body]), "inner": inner})
    return found


def _innermost(code: Sequence[str], labels: Mapping[str, int], what: re.Pattern) -> list[tuple[tuple[int, int], int]]:
    """Return the loops with what is searched and none within that has it; of each how many loops are within."""
    loops = sorted(set(_loops(code, labels)), key=lambda loop: loop[1] - loop[0])
    found: list[tuple[int, int]] = []
    for first, last in loops:
        if any(map(what.search, code[first : last + 1])) and not any(first <= a and b <= last for a, b in found):
            found.append((first, last))
    return [((first, last), sum(first <= a and b <= last for a, b in loops) - 1) for first, last in sorted(found)]


def _turn(body: Sequence[str], controls: Sequence[int]) -> int:
    """Return the cycles after which a warp may begin the next turn, at the least.

    An instruction says how many cycles later the next may start, which of six marks it sets when it is done, and for
    which it waits.
    """
    done, now, start = [0] * 6, 0, 0
    for _ in range(2):  # the second time with what the first has under way
        start = now
        for text, control in zip(body, controls, strict=True):
            name, *parts = re.sub(r"^@!?U?P\w+\s+", "", text).split()[0].split(".")
            now = max([now, *(time for mark, time in enumerate(done) if control >> 52 + mark & 1)])
            now += BARRIER_CYCLES if name == "BAR" else 0
            if (mark := control >> 46 & 7) < len(done) and name in LATENCY:
                done[mark] = now + (FAR_CYCLES if FAR & {*parts} else LATENCY[name])
            now += max(control >> 41 & 15, 1)
    return now - start


def _loops(code: Sequence[str], labels: Mapping[str, int]) -> list[tuple[int, int]]:
    """Return first and last instruction of each loop, but for those that wait for a barrier.

    The compiler has these out of the way, from where they jump back into a loop's body.
    """
    found = []
    for position, text in enumerate(code):
        to = _target(text, labels, position)
        spins = to == position - 1 and "TRYWAIT" in code[to]
        returns = position > 1 and _target(code[position - 1], labels, position) == position - 2
        if to < position and not spins and not returns:
            found.append((to, position))
    return found


def _target(text: str, labels: Mapping[str, int], position: int) -> int:
    """Return where an instruction may jump to; its own position if it does not."""
    return min((labels.get(label, position) for label in re.findall(r"\.L_\w+", text)), default=position)


def _read(body: Sequence[str]) -> dict[str, Any]:
    groups, size = [0], [int(match[1]) if (match := PRODUCT.search(text)) else 0 for text in body]
    for text, columns in zip(body, size, strict=True):
        groups[-1] += columns
        groups += [0] * (columns > 0 and LAST in text)
    large = max(groups) / 2  # a product of less keeps no tensor core busy
    under_way: list[int] = []  # groups, by columns of all their instructions
    for _ in range(2):  # the second time with what the first leaves under way
        found: dict[str, Any] = {"products": 0, "most": 0, **{name: [0, 0] for name in BESIDE}}
        started = 0
        for text, columns in zip(body, size, strict=True):
            started += columns
            found["products"] += columns > 0
            if columns and LAST in text:
                under_way.append(started)
                started = 0
            elif wait := WAIT.search(text):
                under_way = under_way[max(len(under_way) - int(wait[1], 16), 0) :]
            beside = sum(each >= large for each in under_way)
            found["most"] = max(found["most"], beside)
            for name, pattern in BESIDE.items():
                if re.search(pattern, text):
                    found[name][0] += beside > 0
                    found[name][1] += 1
    special = sum("MUFU" in text for text in body)
    return {**found, "carried": beside, "cycles": sum(size) // 2, "beside": max(len(body), 8 * special)}
