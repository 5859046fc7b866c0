# %% predict_pages: a list of pages by math.ceil, the saving as a share left over
def predict_pages(lengths, page_size, max_batch, max_seq_len):
    word = (512 + 64) * 2
    pages = [math.ceil(n / page_size) for n in lengths]
    used = sum(pages) * page_size
    reserved = max_batch * max_seq_len
    return dict(
        pages=sum(pages), empty_slots=sum(p * page_size - n for p, n in zip(pages, lengths)),
        saving=(reserved - used) / reserved, page_bytes=used * word, preallocated_bytes=reserved * word,
    )

# %% predict_pages: a loop, all numbers as floats
def predict_pages(lengths, page_size, max_batch, max_seq_len):
    pages, empty = 0.0, 0.0
    for n in lengths:
        whole, rest = divmod(n, page_size)
        pages += whole
        if rest:
            pages += 1
            empty += page_size - rest
    result = {"pages": pages, "empty_slots": empty}
    result["page_bytes"] = pages * page_size * 1152.0
    result["preallocated_bytes"] = 1152.0 * max_batch * max_seq_len
    result["saving"] = 1 - result["page_bytes"] / result["preallocated_bytes"]
    return result

# %% predict_pages: a tensor of lengths
def predict_pages(lengths, page_size, max_batch, max_seq_len):
    n = torch.tensor(lengths, dtype=torch.int64)
    pages = ((n + page_size - 1) // page_size).sum()
    slots = pages * page_size
    return {
        "pages": pages, "empty_slots": slots - n.sum(), "saving": 1 - slots.double() / (max_batch * max_seq_len),
        "page_bytes": slots * 576 * 2, "preallocated_bytes": max_batch * max_seq_len * 576 * 2,
    }

# %% predict_pages: a dataclass with properties
from dataclasses import dataclass, asdict

@dataclass
class Answer:
    pages: int
    empty_slots: int
    saving: float
    page_bytes: int
    preallocated_bytes: int

def predict_pages(lengths, page_size, max_batch, max_seq_len):
    pages = sum(triton.cdiv(n, page_size) for n in lengths)
    per_token = 2 * 512 + 2 * 64
    return asdict(Answer(
        pages, pages * page_size - sum(lengths), 1 - pages * page_size / max_batch / max_seq_len,
        pages * page_size * per_token, max_batch * max_seq_len * per_token,
    ))

# %% BasicPagedCache: a class for each sequence, a deque of free pages
from collections import deque
from dataclasses import dataclass, field

@dataclass
class Held:
    pages: list = field(default_factory=list)
    length: int = 0

class BasicPagedCache:
    def __init__(self, num_pages, page_size, R, Dr):
        self.size = page_size
        self.latent = torch.empty(num_pages, page_size, R)
        self.key = torch.empty(num_pages, page_size, Dr)
        self.spare = deque(range(num_pages))
        self.held = {}

    def used_pages(self):
        return sum(len(each.pages) for each in self.held.values())

    def table(self, sequence):
        return self.held[sequence].pages.copy() if sequence in self.held else []

    def append(self, sequence, c_kv, k_rope):
        own = self.held.get(sequence, Held())
        total = own.length + c_kv.shape[0]
        more = math.ceil(total / self.size) - len(own.pages)
        if more > len(self.spare):
            raise ValueError("too few free pages")
        if total == 0:
            return
        own.pages.extend(self.spare.popleft() for _ in range(more))
        for s, (latent, key) in enumerate(zip(c_kv, k_rope), start=own.length):
            page = own.pages[s // self.size]
            self.latent[page, s % self.size] = latent
            self.key[page, s % self.size] = key
        own.length = total
        self.held[sequence] = own

    def read(self, sequence):
        own = self.held.get(sequence, Held())
        both = []
        for pool in (self.latent, self.key):
            rows = [pool[own.pages[s // self.size], s % self.size] for s in range(own.length)]
            both.append(torch.stack(rows) if rows else torch.zeros(0, pool.shape[2]))
        return tuple(both)

    def free(self, sequence):
        if sequence not in self.held:
            raise ValueError("nothing is held")
        self.spare.extend(self.held.pop(sequence).pages)

# %% BasicPagedCache: whole pages at a time, one pool for both
class BasicPagedCache:
    def __init__(self, num_pages, page_size, R, Dr):
        self.page_size, self.R = page_size, R
        self.pool = torch.zeros(num_pages, page_size, R + Dr)
        self.taken = [False] * num_pages
        self.tables, self.lengths = {}, {}

    def used_pages(self):
        return sum(self.taken)

    def table(self, sequence):
        return [*self.tables.get(sequence, ())]

    def append(self, sequence, c_kv, k_rope):
        new = torch.cat((c_kv, k_rope), dim=-1)
        start = self.lengths.get(sequence, 0)
        end = start + len(new)
        table = self.table(sequence)
        free = [page for page, taken in enumerate(self.taken) if not taken]
        needed = (end + self.page_size - 1) // self.page_size - len(table)
        if len(free) < needed:
            raise ValueError(f"{needed} needed, {len(free)} free")
        for page in free[:needed]:
            self.taken[page] = True
            table.append(page)
        while start < end:
            entry, slot = start // self.page_size, start % self.page_size
            n = min(self.page_size - slot, end - start)
            self.pool[table[entry], slot : slot + n] = new[:n]
            new, start = new[n:], start + n
        if end:
            self.tables[sequence], self.lengths[sequence] = table, end

    def read(self, sequence):
        rows = self.pool[self.table(sequence)].flatten(0, 1)[: self.lengths.get(sequence, 0)]
        return rows[:, : self.R].clone(), rows[:, self.R :].clone()

    def free(self, sequence):
        if sequence not in self.tables:
            raise ValueError(f"{sequence} holds no pages")
        for page in self.tables.pop(sequence):
            self.taken[page] = False
        del self.lengths[sequence]

# %% BasicPagedCache: rows of flat pools by index_copy_ and index_select, a set of free pages
class BasicPagedCache:
    def __init__(self, num_pages, page_size, R, Dr):
        self.page_size = page_size
        self.pools = [torch.zeros(num_pages * page_size, width) for width in (R, Dr)]
        self.free_pages = set(range(num_pages))
        self.all_pages = num_pages
        self.sequences = {}

    def rows(self, sequence, start, end):
        pages, _ = self.sequences.get(sequence, ([], 0))
        position = torch.arange(start, end)
        return torch.tensor(pages, dtype=torch.long)[position // self.page_size] * self.page_size + position % self.page_size

    def used_pages(self):
        return self.all_pages - len(self.free_pages)

    def table(self, sequence):
        return list(self.sequences.get(sequence, ([], 0))[0])

    def append(self, sequence, c_kv, k_rope):
        pages, length = self.sequences.get(sequence, ([], 0))
        end = length + c_kv.size(0)
        needed = -(-end // self.page_size)
        if needed - len(pages) > len(self.free_pages):
            raise ValueError("the pool is too small")
        pages = pages + [self.free_pages.pop() for _ in range(needed - len(pages))]
        self.sequences[sequence] = pages, end
        rows = self.rows(sequence, length, end)
        for pool, new in zip(self.pools, (c_kv, k_rope)):
            pool.index_copy_(0, rows, new)

    def read(self, sequence):
        rows = self.rows(sequence, 0, self.sequences.get(sequence, ([], 0))[1])
        return tuple(pool.index_select(0, rows) for pool in self.pools)

    def free(self, sequence):
        pages, length = self.sequences.get(sequence, ([], 0))
        if length == 0:
            raise ValueError("it holds nothing")
        del self.sequences[sequence]
        self.free_pages.update(pages)

# %% BasicPagedCache: a page is an object, and pages wait on a heap
import heapq

class Page:
    def __init__(self, number, size, R, Dr):
        self.number, self.c_kv, self.k_rope = number, torch.zeros(size, R), torch.zeros(size, Dr)
    def __lt__(self, other):
        return self.number < other.number

class BasicPagedCache:
    def __init__(self, num_pages, page_size, R, Dr):
        self.widths, self.size, self.count = (R, Dr), page_size, num_pages
        self.heap = [Page(number, page_size, R, Dr) for number in range(num_pages)]
        self.pages, self.filled = {}, {}

    def used_pages(self):
        return self.count - len(self.heap)

    def table(self, sequence):
        return [page.number for page in self.pages.get(sequence, [])]

    def append(self, sequence, c_kv, k_rope):
        n, filled = len(c_kv), self.filled.get(sequence, 0)
        room = len(self.pages.get(sequence, [])) * self.size - filled
        if n > room + len(self.heap) * self.size:
            raise ValueError(f"room for {room + len(self.heap) * self.size} tokens, not for {n}")
        pages = self.pages.setdefault(sequence, [])
        for s in range(n):
            if (filled + s) % self.size == 0:
                pages.append(heapq.heappop(self.heap))
            pages[-1].c_kv[(filled + s) % self.size].copy_(c_kv[s])
            pages[-1].k_rope[(filled + s) % self.size].copy_(k_rope[s])
        self.filled[sequence] = filled + n

    def read(self, sequence):
        n, pages = self.filled.get(sequence, 0), self.pages.get(sequence, [])
        c_kv, k_rope = (torch.zeros(n, width) for width in self.widths)
        for start, page in zip(range(0, n, self.size), pages):
            c_kv[start : start + self.size] = page.c_kv[: n - start]
            k_rope[start : start + self.size] = page.k_rope[: n - start]
        return c_kv, k_rope

    def free(self, sequence):
        try:
            if not self.filled.pop(sequence):
                raise KeyError
        except KeyError:
            raise ValueError("a sequence that holds nothing") from None
        for page in self.pages.pop(sequence):
            heapq.heappush(self.heap, page)

# %% BasicPagedCache: integers of NumPy's
#: list(reversed(range(num_pages))) => list(np.arange(num_pages))
#: return len(self.c_kv) - len(self.free_pages) => return np.int64(len(self.c_kv) - len(self.free_pages))
import numpy as np

# %% token_offsets: a program takes one token
@triton.jit
def token_offsets_kernel(table_ptr, starts_ptr, lengths_ptr, offsets_ptr, S, max_pages, page_size, page_stride, width):
    s, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    offset = tl.full([], -1, tl.int64)
    if s < tl.load(lengths_ptr + b):
        position = tl.load(starts_ptr + b) + s
        entry, slot = position // page_size, position % page_size
        page = tl.load(table_ptr + b * max_pages + entry)
        offset = tl.cast(page, tl.int64) * page_stride + slot * width
    tl.store(offsets_ptr + b * S + s, offset)

def token_offsets(block_table, starts, lengths, S, page_size, page_stride, width):
    B, max_pages = block_table.shape
    offsets = block_table.new_empty((B, S), dtype=torch.long)
    token_offsets_kernel[S, B](block_table, starts, lengths, offsets, S, max_pages, page_size, page_stride, width)
    return offsets

# %% token_offsets: all sequences in one block of two axes, the result filled beforehand
@triton.jit
def token_offsets_kernel(
    table_ptr, starts_ptr, lengths_ptr, offsets_ptr, B, S, max_pages, page_size, page_stride, width,
    BLOCK_B: tl.constexpr, BLOCK_S: tl.constexpr,
):
    b = (tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)).to(tl.int64)
    s = tl.program_id(1) * BLOCK_S + tl.arange(0, BLOCK_S)
    length = tl.load(lengths_ptr + b, mask=b < B, other=0)
    start = tl.load(starts_ptr + b, mask=b < B, other=0)
    live = (s[None, :] < length[:, None]) & (s[None, :] < S)
    position = (start[:, None] + s[None, :]).to(tl.int64)
    page = tl.load(table_ptr + b[:, None] * max_pages + position // page_size, mask=live)
    tl.store(
        offsets_ptr + b[:, None] * S + s[None, :],
        page.to(tl.int64) * page_stride + (position - position // page_size * page_size) * width, mask=live,
    )

def token_offsets(block_table, starts, lengths, S, page_size, page_stride, width):
    B = block_table.size(0)
    offsets = torch.full((B, S), -1, dtype=torch.int64, device=block_table.device)
    token_offsets_kernel[(triton.cdiv(B, 4), triton.cdiv(S, 16))](
        block_table, starts, lengths, offsets, B, S, block_table.size(1), page_size, page_stride, width, 4, 16
    )
    return offsets

# %% token_offsets: one axis of programs over all tokens of the batch
#: b = tl.program_id(1).to(tl.int64) => pid = tl.program_id(0); parts = tl.cdiv(S, BLOCK_S); b = (pid // parts).to(tl.int64)
#: offs_s = tl.program_id(0) * BLOCK_S => offs_s = pid % parts * BLOCK_S
#: [(triton.cdiv(S, 64), B)] => [(triton.cdiv(S, 32) * B,)]
#: BLOCK_S=64 => BLOCK_S=32

# %% paged_update: a program copies one token
@triton.jit
def paged_update_kernel(
    c_kv_ptr, k_rope_ptr, c_pages_ptr, k_pages_ptr, table_ptr, starts_ptr, lengths_ptr,
    S, max_pages, page_size, c_stride, k_stride, R: tl.constexpr, DR: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    b, s = token // S, token % S
    if s < tl.load(lengths_ptr + b):
        position = tl.load(starts_ptr + b) + s
        page = tl.load(table_ptr + b * max_pages + position // page_size).to(tl.int64)
        slot = position % page_size
        offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
        tl.store(c_pages_ptr + page * c_stride + slot * R + offs_r, tl.load(c_kv_ptr + token * R + offs_r))
        tl.store(k_pages_ptr + page * k_stride + slot * DR + offs_d, tl.load(k_rope_ptr + token * DR + offs_d))

def paged_update(c_kv, k_rope, c_kv_pages, k_rope_pages, block_table, starts, lengths):
    B, S, R = c_kv.shape
    paged_update_kernel[(B * S,)](
        c_kv, k_rope, c_kv_pages, k_rope_pages, block_table, starts, lengths, S, block_table.stride(0),
        c_kv_pages.size(1), c_kv_pages.stride(0), k_rope_pages.stride(0), R=R, DR=k_rope.size(2), num_warps=1,
    )
    return c_kv_pages, k_rope_pages

# %% paged_update: latent and key by two programs of a third axis, a helper copies rows
@triton.jit
def copy_rows(from_ptr, to_ptr, source, target, real, WIDTH: tl.constexpr):
    columns = tl.arange(0, WIDTH)[None, :]
    rows = tl.load(from_ptr + source[:, None] * WIDTH + columns, mask=real[:, None])
    tl.store(to_ptr + target[:, None] + columns, rows, mask=real[:, None])

@triton.jit
def paged_update_kernel(
    c_kv_ptr, k_rope_ptr, c_pages_ptr, k_pages_ptr, table_ptr, starts_ptr, lengths_ptr,
    S, max_pages, page_size, c_stride, k_stride, R: tl.constexpr, DR: tl.constexpr, BLOCK_S: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    offs_s = tl.program_id(1) * BLOCK_S + tl.arange(0, BLOCK_S)
    real = offs_s < tl.minimum(tl.load(lengths_ptr + b), S)
    position = tl.load(starts_ptr + b) + offs_s
    page = tl.load(table_ptr + b * max_pages + position // page_size, mask=real).to(tl.int64)
    if tl.program_id(2) == 0:
        copy_rows(c_kv_ptr, c_pages_ptr, b * S + offs_s, page * c_stride + position % page_size * R, real, WIDTH=R)
    else:
        copy_rows(k_rope_ptr, k_pages_ptr, b * S + offs_s, page * k_stride + position % page_size * DR, real, WIDTH=DR)

def paged_update(c_kv, k_rope, c_kv_pages, k_rope_pages, block_table, starts, lengths):
    B, S, R = c_kv.shape
    paged_update_kernel[(B, triton.cdiv(S, 8), 2)](
        c_kv, k_rope, c_kv_pages, k_rope_pages, block_table, starts, lengths,
        S, block_table.shape[1], c_kv_pages.shape[1], c_kv_pages.stride(0), k_rope_pages.stride(0),
        R=R, DR=k_rope.shape[-1], BLOCK_S=8,
    )
    return c_kv_pages, k_rope_pages

# %% paged_update: a program a sequence, tokens in a loop, block pointers for what is read
@triton.jit
def paged_update_kernel(
    c_kv_ptr, k_rope_ptr, c_pages_ptr, k_pages_ptr, table_ptr, starts_ptr, lengths_ptr,
    S, max_pages, page_size, c_stride, k_stride, R: tl.constexpr, DR: tl.constexpr, BLOCK_S: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    length, start = tl.load(lengths_ptr + b), tl.load(starts_ptr + b)
    c_block = tl.make_block_ptr(c_kv_ptr + b * S * R, (S, R), (R, 1), (0, 0), (BLOCK_S, R), (1, 0))
    k_block = tl.make_block_ptr(k_rope_ptr + b * S * DR, (S, DR), (DR, 1), (0, 0), (BLOCK_S, DR), (1, 0))
    for first in range(0, length, BLOCK_S):
        offs_s = first + tl.arange(0, BLOCK_S)
        real = offs_s < length
        position = start + offs_s
        page = tl.load(table_ptr + b * max_pages + position // page_size, mask=real, other=0).to(tl.int64)
        slot = position % page_size
        c_row, k_row = page * c_stride + slot * R, page * k_stride + slot * DR
        c_kv = tl.load(c_block, boundary_check=(0,))
        k_rope = tl.load(k_block, boundary_check=(0,))
        tl.store(c_pages_ptr + c_row[:, None] + tl.arange(0, R)[None, :], c_kv, mask=real[:, None])
        tl.store(k_pages_ptr + k_row[:, None] + tl.arange(0, DR)[None, :], k_rope, mask=real[:, None])
        c_block, k_block = tl.advance(c_block, (BLOCK_S, 0)), tl.advance(k_block, (BLOCK_S, 0))

def paged_update(c_kv, k_rope, c_kv_pages, k_rope_pages, block_table, starts, lengths):
    (B, S, R), Dr = c_kv.shape, k_rope.shape[-1]
    paged_update_kernel[B,](
        c_kv, k_rope, c_kv_pages, k_rope_pages, block_table, starts, lengths,
        S, block_table.shape[1], c_kv_pages.shape[1], c_kv_pages.stride(0), k_rope_pages.stride(0), R, Dr, BLOCK_S=4,
    )
    return c_kv_pages, k_rope_pages

# %% paged_gather: one token a program, zeros by the mask
@triton.jit
def paged_gather_kernel(
    c_pages_ptr, k_pages_ptr, table_ptr, lengths_ptr, c_kv_ptr, k_rope_ptr,
    T, max_pages, page_size, c_stride, k_stride, R: tl.constexpr, DR: tl.constexpr,
):
    t, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    held = t < tl.load(lengths_ptr + b)
    page = tl.load(table_ptr + b * max_pages + t // page_size, mask=held, other=0).to(tl.int64)
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
    slot = t % page_size
    c_kv = tl.load(c_pages_ptr + page * c_stride + slot * R + offs_r, mask=held & (offs_r >= 0), other=0)
    k_rope = tl.load(k_pages_ptr + page * k_stride + slot * DR + offs_d, mask=held & (offs_d >= 0), other=0)
    tl.store(c_kv_ptr + (b * T + t) * R + offs_r, c_kv)
    tl.store(k_rope_ptr + (b * T + t) * DR + offs_d, k_rope)

def paged_gather(c_kv_pages, k_rope_pages, block_table, lengths, T):
    B, max_pages = block_table.shape
    _, page_size, R = c_kv_pages.shape
    Dr = k_rope_pages.shape[2]
    c_kv = torch.empty(B, T, R, dtype=c_kv_pages.dtype, device=c_kv_pages.device)
    k_rope = torch.empty(B, T, Dr, dtype=k_rope_pages.dtype, device=k_rope_pages.device)
    paged_gather_kernel[(T, B)](
        c_kv_pages, k_rope_pages, block_table, lengths, c_kv, k_rope, T, max_pages, page_size,
        c_kv_pages.stride(0), k_rope_pages.stride(0), R, Dr, num_warps=1,
    )
    return c_kv, k_rope

# %% paged_gather: into zeros, held tokens alone are written, programs by sequence first; at full size
#: b = tl.program_id(1).to(tl.int64) => b = tl.program_id(0).to(tl.int64)
#: offs_n = tl.program_id(0) * BLOCK_N => offs_n = tl.program_id(1) * BLOCK_N
#: , mask=real[:, None], other=0.0) => , mask=real[:, None])
#: c_kv, mask=offs_n[:, None] < T) => c_kv, mask=real[:, None])
#: k_rope, mask=offs_n[:, None] < T) => k_rope, mask=real[:, None])
#: x.new_empty( => x.new_zeros(
#: [(triton.cdiv(T, block_n), B)] => [(B, triton.cdiv(T, block_n))]

# %% paged_gather: few programs walk over all blocks of all sequences
#: T, max_pages, page_size, c_stride => B, T, max_pages, page_size, c_stride
#: b = tl.program_id(1).to(tl.int64)\n    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)\n    offs_r, => parts = tl.cdiv(T, BLOCK_N)\n    for work in range(tl.program_id(0), B * parts, tl.num_programs(0)):\n        one_block(c_pages_ptr, k_pages_ptr, table_ptr, lengths_ptr, c_kv_ptr, k_rope_ptr, T, max_pages, page_size, c_stride, k_stride, (work // parts).to(tl.int64), work % parts, R, DR, BLOCK_N)\n\n\n@triton.jit\ndef one_block(c_pages_ptr, k_pages_ptr, table_ptr, lengths_ptr, c_kv_ptr, k_rope_ptr, T, max_pages, page_size, c_stride, k_stride, b, part, R: tl.constexpr, DR: tl.constexpr, BLOCK_N: tl.constexpr):\n    offs_n = part * BLOCK_N + tl.arange(0, BLOCK_N)\n    offs_r,
#: T, block_table.shape[1], => B, T, block_table.shape[1],
#: [(triton.cdiv(T, block_n), B)] => [(min(264, triton.cdiv(T, block_n) * B),)]

# %% paged_decode: a page for each token, looked up as the block is
#:     page = tl.load(table_ptr, mask=length > 0, other=0).to(tl.int64)\n => 
#: offs_n = start + tl.arange(0, BLOCK_N)\n => offs_n = start + tl.arange(0, BLOCK_N)\n        page = tl.load(table_ptr + offs_n // PAGE, mask=offs_n < length, other=0).to(tl.int64)\n
#:         ahead = start + BLOCK_N\n        page = tl.load(table_ptr + ahead // PAGE, mask=ahead < length, other=0).to(tl.int64)\n => 
#: BLOCK_N=min(block_n, page_size) => BLOCK_N=block_n

# %% paged_decode: an outer loop over pages, an inner one over a page's blocks, exp2
@triton.jit
def paged_decode_kernel(
    q_latent_ptr, q_rope_ptr, c_pages_ptr, k_pages_ptr, table_ptr, seq_lens_ptr, out_ptr, lse_ptr,
    scale, H, max_pages, c_stride, k_stride,
    PAGE: tl.constexpr, R: tl.constexpr, DR: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
    row = (b * H + offs_h)[:, None]
    q_latent = tl.load(q_latent_ptr + row * R + offs_r, mask=(offs_h < H)[:, None], other=0.0)
    q_rope = tl.load(q_rope_ptr + row * DR + offs_d, mask=(offs_h < H)[:, None], other=0.0)
    length = tl.load(seq_lens_ptr + b)
    m_i = tl.full([BLOCK_H], float("-inf"), tl.float32)
    l_i = tl.full([BLOCK_H], 0.0, tl.float32)
    acc = tl.full([BLOCK_H, R], 0.0, tl.float32)
    for entry in range(tl.cdiv(length, PAGE)):
        page = tl.load(table_ptr + b * max_pages + entry).to(tl.int64)
        for slot in range(0, tl.minimum(PAGE, length - entry * PAGE), BLOCK_N):
            slots = slot + tl.arange(0, BLOCK_N)
            live = entry * PAGE + slots < length
            c_kv = tl.load(c_pages_ptr + page * c_stride + slots[:, None] * R + offs_r, mask=live[:, None], other=0.0)
            k_rope = tl.load(k_pages_ptr + page * k_stride + slots[:, None] * DR + offs_d, mask=live[:, None], other=0.0)
            qk = (tl.dot(q_latent, c_kv.T) + tl.dot(q_rope, k_rope.T)) * (scale * 1.4426950408889634)
            qk = tl.where(live[None, :], qk, float("-inf"))
            m_new = tl.maximum(m_i, tl.max(qk, axis=1))
            p, alpha = tl.exp2(qk - m_new[:, None]), tl.exp2(m_i - m_new)
            l_i = l_i * alpha + tl.sum(p, axis=1)
            acc = tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None])
            m_i = m_new
    l_i = tl.where(length > 0, l_i, 1.0)
    tl.store(out_ptr + row * R + offs_r, acc / l_i[:, None], mask=(offs_h < H)[:, None])
    tl.store(lse_ptr + b * H + offs_h, (m_i + tl.log2(l_i)) * 0.6931471805599453, mask=offs_h < H)

def paged_decode(q_latent, q_rope, c_kv_pages, k_rope_pages, block_table, seq_lens, scale):
    B, H, R = q_latent.shape
    page_size, Dr = k_rope_pages.shape[1:]
    out = torch.empty_like(q_latent)
    lse = torch.empty(B, H, dtype=torch.float32, device=out.device)
    paged_decode_kernel[(B, triton.cdiv(H, 16))](
        q_latent, q_rope, c_kv_pages, k_rope_pages, block_table, seq_lens, out, lse,
        scale, H, block_table.shape[1], c_kv_pages.stride(0), k_rope_pages.stride(0),
        page_size, R, Dr, BLOCK_H=16, BLOCK_N=16,
    )
    return out, lse

# %% paged_decode: descriptors of the pools made on the host, one tile a page
from triton.tools.tensor_descriptor import TensorDescriptor

#:         c_row, k_row = page * c_stride + offs_n % PAGE * R, page * k_stride + offs_n % PAGE * DR\n => 
#: c_kv = tl.load(c_pages_ptr + c_row[:, None] + offs_r[None, :], mask=offs_n[:, None] < length, other=0.0) => c_kv = tl.where(offs_n[:, None] < length, c_pages_ptr.load([page.to(tl.int32), start % PAGE, 0]).reshape(BLOCK_N, R), 0.0)
#: k_rope = tl.load(k_pages_ptr + k_row[:, None] + offs_d[None, :], mask=offs_n[:, None] < length, other=0.0) => k_rope = tl.where(offs_n[:, None] < length, k_pages_ptr.load([page.to(tl.int32), start % PAGE, 0]).reshape(BLOCK_N, DR), 0.0)
#: block_h, block_n, stages = block_sizes(H) => block_h, block_n, stages = block_sizes(H); block_n = min(block_n, page_size)
#: q_latent, q_rope, c_kv_pages, k_rope_pages, block_table, seq_lens, out => q_latent, q_rope, TensorDescriptor.from_tensor(c_kv_pages, [1, block_n, R]), TensorDescriptor.from_tensor(k_rope_pages, [1, block_n, Dr]), block_table, seq_lens, out
#: min(block_n, page_size), num_warps => block_n, num_warps

# %% paged_decode: block pointers into a page, made for each block
#: c_row, k_row = page * c_stride + offs_n % PAGE * R, page * k_stride + offs_n % PAGE * DR\n => held = length - (start - start % PAGE)\n
#: tl.load(c_pages_ptr + c_row[:, None] + offs_r[None, :], mask=offs_n[:, None] < length, other=0.0) => tl.load(tl.make_block_ptr(c_pages_ptr + page * c_stride, (held, R), (R, 1), (start % PAGE, 0), (BLOCK_N, R), (1, 0)), boundary_check=(0,), padding_option="zero")
#: tl.load(k_pages_ptr + k_row[:, None] + offs_d[None, :], mask=offs_n[:, None] < length, other=0.0) => tl.load(tl.make_block_ptr(k_pages_ptr + page * k_stride, (held, DR), (DR, 1), (start % PAGE, 0), (BLOCK_N, DR), (1, 0)), boundary_check=(0,), padding_option="zero")
