"""What Hopper's machine code does while products of matrices are under way.

A warpgroup starts products (HGMMA) and goes on. WARPGROUP.DEPBAR waits until no more than so many groups of them are
under way. What stands between the two costs no time of its own, if the compiler has left it there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

PRODUCT = re.compile(r"\bHGMMA\.(\d+)x(\d+)x(\d+)")
WAIT = re.compile(r"\bWARPGROUP\.DEPBAR\.LE gsb0, (0x[0-9a-f]+)")
REGISTERS = re.compile(r"\bUSETMAXREG\.\S+ (?:UP\d, )?(0x[0-9a-f]+)")
LEAST = 0.1  # of what a loop multiplies: a smaller group of products keeps no tensor core busy
BESIDE = {"exponentials": r"\bMUFU\.EX2\b", "copies": r"\bUTMALDG\b", "spills": r"\b(LDL|STL)\b"}


def product_loops(code: Sequence[str], labels: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return of each innermost loop with products what stands in its body, as numbers of instructions.

    `products` are started there. Of `exponentials`, `copies` to shared memory and `spills`, those while a product is
    under way come first: `[beside, all]`. At `most` so many groups of products are under way at once, `carried` of them
    from one turn to the next; a group of less than `LEAST` of the loop's products counts as none. The partition that it
    is in has so many `registers` a thread; 0 if no partition asks for any.
    """
    loops = sorted(set(_loops(code, labels)), key=lambda loop: loop[1] - loop[0])
    found: list[tuple[int, int]] = []
    for first, last in loops:
        has_products = any(PRODUCT.search(text) for text in code[first : last + 1])
        if has_products and not any(first <= a and b <= last for a, b in found):
            found.append((first, last))
    taken = [int(match[1], 16) if (match := REGISTERS.search(text)) else 0 for text in code]
    registers = [next(filter(None, reversed(taken[:first])), 0) for first, _ in sorted(found)]
    loops = [_read(code[first : last + 1]) for first, last in sorted(found)]
    return [{**loop, "registers": count} for loop, count in zip(loops, registers, strict=True)]


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
    sizes = [math.prod(map(int, match.groups())) for text in body if (match := PRODUCT.search(text))]
    least, group = LEAST * sum(sizes), 0
    groups: list[int] = []
    for _ in range(2):  # the second time with what the first leaves under way
        found: dict[str, Any] = {"products": 0, "most": 0, **{name: [0, 0] for name in BESIDE}}
        for text in body:
            if match := PRODUCT.search(text):
                found["products"] += 1
                group += math.prod(map(int, match.groups()))
                if "gsb0" in text:
                    groups, group = [*groups, group], 0
            elif wait := WAIT.search(text):
                groups = groups[max(0, len(groups) - int(wait[1], 16)) :]
            under_way = sum(size >= least for size in groups)
            found["most"] = max(found["most"], under_way)
            for name, pattern in BESIDE.items():
                if re.search(pattern, text):
                    found[name][0] += under_way > 0
                    found[name][1] += 1
    return {**found, "carried": under_way}
