"""The paged cache on a GPU: memory it saves, and what its update and gather cost beside a manager without batching.

    PYTHONPATH=. python benchmarks/paged.py         # on the GPU itself, from the repository's root

Tables 4 and 5 are those of the report "Optimizing Multi-head Latent Attention for Efficient Inference".

- `memory`: its Table 4. `saving_equations` is equations 17 to 19 as written, against 32 × 16384 tokens;
  `saving_printed` the same against a pool of 564 pages, 512 × 1.1 rounded up, which gives the digits printed. Neither
  says what is held: the report's pool exists whole from the start. `held` is what CUDA's allocator gave out for each
  kind of cache once it was filled, `peak` the most until then.
- `growth`: a pool that grows while 8 sequences decode, beside one that exists from the start.
- `throughput`: its Table 5, tokens/s of a layer's forward pass by the host's clock: the median, the lowest and the
  highest. A decode step brings one token to each sequence of L. All caches have the same attention, for which pages are
  gathered, but two: `straight from the pages` reads pages of 64 where they are, with the kernel that attends in
  `contiguous, by slices, the same kernel` too.
- `update`, `gather`: the kernels alone, with the columns of `timings.py`.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import record
import torch
import torch.nn.functional as F
from timings import Call, compare, relative_error
from torch import Tensor

from mla_ref import MLA, LatentCache, MLAConfig, PagedCache, kernels
from mla_ref.hardware.timing import measure_copy_bandwidth

R, DR, DTYPE = 512, 64, torch.bfloat16
TOKEN_BYTES = (R + DR) * 2
MAX_BATCH, MAX_SEQ_LEN, REPORT_PAGE = 32, 16384, 1024
REPORT_POOL = math.ceil(MAX_BATCH * MAX_SEQ_LEN / REPORT_PAGE * 1.1)
REPORT_SAVING = {
    (4, 512): 99.29, (4, 1024): 99.29, (4, 2048): 98.58, (4, 4096): 97.16,
    (8, 512): 98.58, (8, 1024): 98.58, (8, 2048): 97.16, (8, 4096): 94.33,
}  # fmt: skip
REPORT_GAIN = {
    (4, 512): 30.91, (4, 1024): 29.95, (4, 2048): 28.59, (4, 4096): 27.92,
    (8, 512): 30.55, (8, 1024): 29.56, (8, 2048): 28.60, (8, 4096): 28.99,
}  # fmt: skip
BY_KERNELS = {"update": kernels.paged_update, "gather": kernels.paged_gather}
PASSES, SLOW_PASSES = 21, 3
SLOW = ("basic", "batched kernels, table walked by the host")
BY_TRITON = ("straight from the pages", "contiguous, by slices, the same kernel")
ERROR = 2e-2  # between attention by expansion and by absorption, in bfloat16
UPDATES = [(128, 1, 1), (128, 1, 16), (128, 1, 64), (128, 1, 1024), (8, 4096, 64), (4, 512, 64)]
GATHERS = [(128, 4096, 1), (128, 4096, 16), (128, 4096, 64), (128, 4096, 1024), (8, 4096, 64), (4, 512, 64)]


class BasicPagedCache:
    """A paged cache as the report has it first: dictionaries, and a copy of its own for each token that moves."""

    def __init__(self, batch: int, num_pages: int, page_size: int):
        self.page_size = page_size
        self.c_kv = torch.zeros(num_pages, page_size, R, dtype=DTYPE, device="cuda")
        self.k_rope = torch.zeros(num_pages, page_size, DR, dtype=DTYPE, device="cuda")
        self.batch = batch
        self.reset()

    def reset(self) -> None:
        """Forget every token."""
        self.tables: list[dict[int, int]] = [{} for _ in range(self.batch)]
        self.free = set(range(len(self.c_kv)))
        self.held = 0

    @property
    def seq_lens(self) -> Tensor:
        """Tokens per sequence, all equal."""
        return torch.full((self.batch,), self.held, dtype=torch.int32, device="cuda")

    def append(self, c_kv: Tensor, k_rope: Tensor, *, lengths: None = None) -> None:
        """Write new tokens of every sequence, one by one."""
        for b in range(self.batch):
            for s in range(c_kv.shape[1]):
                page, slot = self.place(b, self.held + s)
                self.c_kv[page, slot] = c_kv[b, s]
                self.k_rope[page, slot] = k_rope[b, s]
        self.held += c_kv.shape[1]

    def filled(self) -> tuple[Tensor, Tensor]:
        """Collect all tokens of every sequence, one by one."""
        c_kv = self.c_kv.new_zeros(self.batch, self.held, R)
        k_rope = self.k_rope.new_zeros(self.batch, self.held, DR)
        for b in range(self.batch):
            for s in range(self.held):
                page, slot = self.place(b, s)
                c_kv[b, s] = self.c_kv[page, slot]
                k_rope[b, s] = self.k_rope[page, slot]
        return c_kv, k_rope

    def place(self, b: int, position: int) -> tuple[int, int]:
        """Return page and slot, taking a page where there is none."""
        entry, slot = divmod(position, self.page_size)
        if entry not in self.tables[b]:
            self.tables[b][entry] = self.free.pop()
        return self.tables[b][entry], slot


class WalkedTable(PagedCache):
    """Kernels move the tokens, but the host asks the table on the device about each one, as the report's code does."""

    def append(self, c_kv: Tensor, k_rope: Tensor, *, lengths: None = None) -> None:
        """Write new tokens of every sequence, after a walk over them."""
        for b in range(self.batch):
            for s in range(c_kv.shape[1]):
                bool(self.block_table[b, (self._held[b] + s) // self.page_size] == -1)  # waits for the device
        super().append(c_kv, k_rope)


class SlicedCache:
    """All memory from the start and sequences of one length: no cache does less."""

    def __init__(self, batch: int):
        self.c_kv = torch.zeros(batch, MAX_SEQ_LEN, R, dtype=DTYPE, device="cuda")
        self.k_rope = torch.zeros(batch, MAX_SEQ_LEN, DR, dtype=DTYPE, device="cuda")
        self.reset()

    def reset(self) -> None:
        """Forget every token."""
        self.held = 0

    @property
    def seq_lens(self) -> Tensor:
        """Tokens per sequence, all equal."""
        return torch.full((len(self.c_kv),), self.held, dtype=torch.int32, device="cuda")

    def append(self, c_kv: Tensor, k_rope: Tensor, *, lengths: None = None) -> None:
        """Write new tokens of every sequence."""
        end = self.held + c_kv.shape[1]
        self.c_kv[:, self.held : end], self.k_rope[:, self.held : end] = c_kv, k_rope
        self.held = end

    def filled(self) -> tuple[Tensor, Tensor]:
        """Return views of all tokens."""
        return self.c_kv[:, : self.held], self.k_rope[:, : self.held]


def main() -> None:
    """Measure everything; write the record."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    copy = measure_copy_bandwidth("cuda")
    figures = {
        "dtype": "bfloat16",
        "copy_bytes_per_s": copy,
        "memory": [memory(*size) for size in REPORT_SAVING],
        "growth": growth(),
        "update": [update(*case, copy) for case in UPDATES],
        "gather": [gather(*case, copy) for case in GATHERS],
        "throughput": throughput(),
        "copy_bytes_per_s_at_the_end": measure_copy_bandwidth("cuda"),
    }
    print(record.write(f"paged_{record.gpu()}", figures, ("triton",)))


def memory(batch: int, length: int) -> dict[str, Any]:
    """Fill ``batch`` of 32 sequences with ``length`` tokens, and count bytes."""
    c_kv, k_rope = tokens(MAX_BATCH, length)
    lengths = torch.tensor([length] * batch + [0] * (MAX_BATCH - batch), device="cuda")
    place = MAX_BATCH, MAX_SEQ_LEN, R, DR, DTYPE, "cuda"
    caches = {
        "contiguous": lambda: LatentCache(*place),
        "the report's pool": lambda: PagedCache(*place, page_size=REPORT_PAGE, num_pages=REPORT_POOL, **BY_KERNELS),
        "growing, pages of 1024": lambda: PagedCache(*place, page_size=1024, slab_pages=1, **BY_KERNELS),
        "growing, pages of 64": lambda: PagedCache(*place, page_size=64, slab_pages=1, **BY_KERNELS),
    }
    held, peak = {}, {}
    for name, make in caches.items():
        start = fresh_peak()
        cache = make()
        cache.append(c_kv, k_rope, lengths=lengths)
        held[name] = torch.cuda.memory_allocated() - start
        peak[name] = torch.cuda.max_memory_allocated() - start
        if name == "the report's pool":
            used, equations = cache.used_pages, cache.saving_ratio()
            printed = cache.saving_ratio(REPORT_POOL * REPORT_PAGE)
        del cache
    row = {
        "B": batch,
        "L": length,
        "used_pages": used,
        "saving_equations_percent": round(100 * equations, 2),
        "saving_printed_percent": round(100 * printed, 2),
        "saving_in_the_report_percent": REPORT_SAVING[batch, length],
        "held_bytes": held,
        "peak_bytes": peak,
        "saving_held_percent": {name: round(100 * (1 - size / held["contiguous"]), 2) for name, size in held.items()},
    }
    print(row, flush=True)
    return row


def growth() -> dict[str, Any]:
    """Decode 8 sequences from 512 to 4096 tokens, one token a step, in pages of 64."""
    batch, first, last = 8, 512, 4096
    c_kv, k_rope = tokens(batch, last)
    found = {}
    for name, slab in {"whole from the start": None, "slabs of 1 MiB": 14, "slabs of 16 MiB": 224}.items():
        start = fresh_peak()
        cache = PagedCache(batch, MAX_SEQ_LEN, R, DR, DTYPE, "cuda", page_size=64, slab_pages=slab, **BY_KERNELS)
        cache.append(c_kv[:, :first], k_rope[:, :first])
        torch.cuda.synchronize()
        clock = time.perf_counter()
        for s in range(first, last):
            cache.append(c_kv[:, s : s + 1], k_rope[:, s : s + 1])
        torch.cuda.synchronize()
        found[name] = {
            "us_per_append": round((time.perf_counter() - clock) / (last - first) * 1e6, 1),
            "held_bytes": torch.cuda.memory_allocated() - start,
            "peak_bytes": torch.cuda.max_memory_allocated() - start,
        }
        assert all(map(torch.equal, cache.filled(), (c_kv, k_rope)))
        del cache
    print("growth", found, flush=True)
    return {"B": batch, "from": first, "to": last, "page_size": 64, "bytes_used": batch * last * TOKEN_BYTES, **found}


def fresh_peak() -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def update(B: int, S: int, page_size: int, copy: float) -> dict[str, Any]:
    """Time writing S tokens for each of B sequences, into pages in random order, from random positions on."""
    c_kv, k_rope = tokens(B, S)
    table, c_kv_pages, k_rope_pages = pool(B, 4096 + S, page_size)
    starts = torch.randint(0, 4096, (B,), device="cuda", dtype=torch.int32)
    position = starts[:, None].long() + torch.arange(S, device="cuda")
    page = table.long().gather(1, position // page_size)
    slots = (page * page_size + position % page_size).flatten()
    flat_c_kv, flat_k_rope = c_kv_pages.view(-1, R), k_rope_pages.view(-1, DR)

    def index_copy():
        flat_c_kv.index_copy_(0, slots, c_kv.view(-1, R))
        flat_k_rope.index_copy_(0, slots, k_rope.view(-1, DR))

    calls = {
        "kernels.paged_update": lambda: kernels.paged_update(
            c_kv, k_rope, c_kv_pages, k_rope_pages, table, starts=starts
        ),
        "torch index_copy_, places known, two launches": index_copy,
    }
    checked = []
    for name, run in calls.items():
        c_kv_pages.fill_(math.nan), k_rope_pages.fill_(math.nan)
        run()
        assert flat_c_kv[slots].equal(c_kv.view(-1, R)) and flat_k_rope[slots].equal(k_rope.view(-1, DR))
        assert int(flat_c_kv.isnan().all(1).logical_not().sum()) == B * S
        checked.append(Call(name, run, 0.0))
    case = {
        "op": "update",
        "B": B,
        "S": S,
        "page_size": page_size,
        "dtype": "bfloat16",
        "bytes": 2 * B * S * TOKEN_BYTES,
    }
    return compare(case, checked, copy, copy_of_equal_size(c_kv, k_rope))


def gather(B: int, T: int, page_size: int, copy: float) -> dict[str, Any]:
    """Time copying T tokens of each of B sequences out of pages in random order."""
    table, c_kv_pages, k_rope_pages = pool(B, T, page_size)
    c_kv_pages.normal_(), k_rope_pages.normal_()
    lengths = torch.full((B,), T, device="cuda", dtype=torch.int32)
    c_kv, k_rope = (torch.full((B, T, width), math.nan, dtype=DTYPE, device="cuda") for width in (R, DR))
    order = table.flatten()

    def index_select():
        torch.index_select(c_kv_pages, 0, order, out=c_kv.view(-1, page_size, R))
        torch.index_select(k_rope_pages, 0, order, out=k_rope.view(-1, page_size, DR))

    calls = {
        "kernels.paged_gather": lambda: kernels.paged_gather(
            c_kv_pages, k_rope_pages, table, lengths=lengths, out=(c_kv, k_rope)
        ),
        "torch index_select of whole pages, two launches": index_select,
    }
    checked = []
    for name, run in calls.items():
        c_kv.fill_(math.nan), k_rope.fill_(math.nan)
        run()
        for out, pages in ((c_kv, c_kv_pages), (k_rope, k_rope_pages)):
            assert out.equal(pages[order.long()].view_as(out))
        checked.append(Call(name, run, 0.0))
    case = {
        "op": "gather",
        "B": B,
        "T": T,
        "page_size": page_size,
        "dtype": "bfloat16",
        "bytes": 2 * B * T * TOKEN_BYTES,
    }
    return compare(case, checked, copy, copy_of_equal_size(c_kv, k_rope))


def tokens(B: int, S: int) -> tuple[Tensor, Tensor]:
    return torch.randn(B, S, R, device="cuda").to(DTYPE), torch.randn(B, S, DR, device="cuda").to(DTYPE)


def pool(B: int, capacity: int, page_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a permuted table and the pages it names."""
    max_pages = -(-capacity // page_size)
    table = torch.randperm(B * max_pages, device="cuda").to(torch.int32).view(B, max_pages)
    c_kv, k_rope = (torch.zeros(B * max_pages, page_size, width, dtype=DTYPE, device="cuda") for width in (R, DR))
    return table, c_kv, k_rope


def copy_of_equal_size(c_kv: Tensor, k_rope: Tensor) -> Callable[[], object]:
    source = torch.cat((c_kv.flatten(), k_rope.flatten()))
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def throughput() -> list[dict[str, Any]]:
    """Forward passes of the report's layer, by cache."""
    config = MLAConfig.preset("report")
    mla = MLA(config, device="cuda", dtype=DTYPE)
    rows = []
    for batch, length in REPORT_GAIN:
        x = torch.randn(batch, length, config.hidden_size, device="cuda").to(DTYPE)
        place = batch, MAX_SEQ_LEN, R, DR, DTYPE, "cuda"
        caches = {
            "basic": BasicPagedCache(batch, REPORT_POOL, REPORT_PAGE),
            "batched kernels, table walked by the host": WalkedTable(*place, page_size=REPORT_PAGE, **BY_KERNELS),
            "batched kernels": PagedCache(*place, page_size=REPORT_PAGE, **BY_KERNELS),
            "batched kernels, pages of 64": PagedCache(*place, page_size=64, **BY_KERNELS),
            "batched PyTorch": PagedCache(*place, page_size=REPORT_PAGE),
            "contiguous, by slices": SlicedCache(batch),
            "contiguous, LatentCache": LatentCache(*place),
            "straight from the pages": PagedCache(*place, page_size=64, **BY_KERNELS),
            "contiguous, by slices, the same kernel": SlicedCache(batch),
        }
        layers = {
            name: functools.partial(mla, cache=cache, impl=attend_to(name, cache)) for name, cache in caches.items()
        }
        first = None
        for name, layer in layers.items():
            if name == "basic" and rows:  # slow: checked at the first size alone
                continue
            caches[name].c_kv.fill_(math.nan), caches[name].k_rope.fill_(math.nan)
            outs = layer(x), layer(x[:, :1])
            first = first or outs
            assert name in BY_TRITON or torch.equal(outs[0], first[0]), name
            for out, expected in zip(outs, first, strict=True):
                relative_error(out, expected.double(), ERROR, name)
        prefill = passes(caches, layers, x, batch * length, reset=True)
        decode = passes(caches, layers, x[:, :1], batch, reset=False)
        row = {"B": batch, "L": length, "page_size": REPORT_PAGE, "prefill": prefill, "decode": decode}
        for phase in (prefill, decode):
            basic = phase["basic"]["tokens_per_s"]
            for each in phase.values():
                each["gain_over_basic_percent"] = round(100 * (each["tokens_per_s"] / basic - 1), 1)
        row["gain_in_the_report_percent"] = REPORT_GAIN[batch, length]
        print(row, flush=True)
        rows.append(row)
    return rows


def passes(
    caches: dict[str, Any], layers: dict[str, Callable[[Tensor], Tensor]], x: Tensor, new: int, reset: bool
) -> dict[str, dict[str, float]]:
    """Time passes in which the caches take turns; each brings ``new`` tokens."""
    seconds: dict[str, list[float]] = {name: [] for name in caches}
    names = list(caches)
    for turn in range(PASSES):
        # The first pass at a new length pays for choices that cuBLAS makes once: each cache has its turn at that.
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            cache = caches[name]
            if name in SLOW and turn >= SLOW_PASSES:
                continue
            if reset:
                cache.reset()
            torch.cuda.synchronize()
            start = time.perf_counter()
            layers[name](x)
            torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    return {
        name: {
            "tokens_per_s": float(f"{new / statistics.median(found):.4g}"),
            "lowest": float(f"{new / max(found):.4g}"),
            "highest": float(f"{new / min(found):.4g}"),
            "ms": round(1e3 * statistics.median(found), 3),
        }
        for name, found in seconds.items()
    }


def attend_to(name: str, cache: Any) -> str | Callable[..., tuple[Tensor, None]]:
    """Return the attention of a cache: the layer's own kernels, or `attend`, for which pages are gathered."""
    if name in BY_TRITON:
        return "triton"
    if not isinstance(cache, PagedCache):
        return attend

    def gathered(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, *, block_table, **options):
        return attend(q_nope, q_rope, *cache.filled(), w_uk, w_uv, **options)

    return gathered


def attend(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, *, seq_lens=None, scale=None, causal=True) -> tuple[Tensor, None]:
    """Attend in sequences of one length: prefill by PyTorch's fused kernel, a single token by absorption."""
    if q_nope.shape[1] == 1:
        q_latent = torch.einsum("bshd,hdr->bshr", q_nope, w_uk)
        scores = torch.einsum("bshr,btr->bsht", q_latent, c_kv) + torch.einsum("bshd,btd->bsht", q_rope, k_rope)
        weights = (scores * scale).softmax(-1, dtype=torch.float32).to(c_kv.dtype)
        return torch.einsum("bshr,hvr->bshv", torch.einsum("bsht,btr->bshr", weights, c_kv), w_uv), None
    q = torch.cat((q_nope, q_rope), -1).transpose(1, 2)
    k = torch.einsum("btr,hdr->bhtd", c_kv, w_uk)
    k = torch.cat((k, k_rope[:, None].expand(-1, k.shape[1], -1, -1)), -1)
    v = torch.einsum("btr,hvr->bhtv", c_kv, w_uv)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2), None


if __name__ == "__main__":
    main()
