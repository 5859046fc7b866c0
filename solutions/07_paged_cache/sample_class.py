"""The sample class of lesson 07: right in several styles, slow, wrong, and dishonest; every named mistake is shown."""

from collections.abc import Mapping

from autograder.course.sample import Expected, Patch, Submission, add_cell, replace, rewrite, unfinished
from autograder.judging.verdict import Outcome

KERNELS = ("paged_update", "paged_gather", "paged_decode")
SLOTS = {"paged_update": "slot", "paged_gather": "slot", "paged_decode": "% PAGE"}
FIRST_PAGE = "tl.load(table_ptr + b * max_pages + start // page_size).to(tl.int64)"
OF_BLOCK = "tl.program_id(0) * BLOCK"
EACH_WRITTEN = "    for b in range(B): paged_update_kernel[(triton.cdiv(S, block_s), 1)]"
EACH_GATHERED = "    for b in range(B): paged_gather_kernel[(triton.cdiv(T, block_n), 1)]"
REAL = "real = offs_s < tl.load(lengths_ptr + b)"
POSITION = "position = tl.load(starts_ptr + b) + offs_s"
LOOK_UP = "tl.load(table_ptr + b * max_pages + position // page_size, mask=real, other=0).to(tl.int64)"
GATHER_LOOK_UP = LOOK_UP.replace("position", "offs_n")
GATHER_REAL = "real = offs_n < tl.load(lengths_ptr + b)"
LENGTH = "length = tl.load(seq_lens_ptr + b)\n"
FIRST = "page = tl.load(table_ptr, mask=length > 0, other=0).to(tl.int64)"
PAGE_ROW = "table_ptr += b * max_pages\n"
AHEAD = "page = tl.load(table_ptr + ahead // PAGE, mask=ahead < length, other=0).to(tl.int64)"
APPEND = """        needed = -(-(length + len(c_kv)) // self.page_size) - len(pages)
        if needed > len(self.free_pages):
            raise ValueError(f"{needed} pages needed, {len(self.free_pages)} free")
        pages += [self.free_pages.pop() for _ in range(needed)]
        for s in range(len(c_kv)):
            entry, slot = divmod(length + s, self.page_size)
"""
PAGE_BY_PAGE = """        pages = self.tables.setdefault(sequence, [])
        for s in range(len(c_kv)):
            entry, slot = divmod(length + s, self.page_size)
            if entry == len(pages):
                if not self.free_pages:
                    raise ValueError("no page is free")
                pages.append(self.free_pages.pop())
"""
ONE_BY_ONE = """        taken = []
        for _ in range(-(-(length + len(c_kv)) // self.page_size) - len(pages)):
            if not self.free_pages:
                raise ValueError("no page is free")
            taken.append(self.free_pages.pop())
        pages += taken
        for s in range(len(c_kv)):
            entry, slot = divmod(length + s, self.page_size)
"""
ENTRY = "pages, length = self.table(sequence), self.lengths.get(sequence, 0)\n        needed"
NO_LOOK = "if not len(c_kv):\n            return\n        "
COPIED = "self.tables.get(sequence, [])[:]"
PLACES = "token_offsets", "paged_update"
NOTHING = "if not self.lengths.get(sequence):"
PAGE_STRIDES = "c_kv_pages.stride(0), k_rope_pages.stride(0)"
SIDE_BY_SIDE = "page_size * R, page_size * Dr"
SCORES = "tl.dot(q_rope, tl.trans(k_rope), qk) * scale"
ADVANCE = f"        ahead = start + BLOCK_N\n        {AHEAD}\n"
TOKENS = "        offs_n = start + tl.arange(0, BLOCK_N)\n"
READ = "        c_kv, k_rope = (x.new_empty(length, x.shape[-1])"
ONE_PAGE = """        if len(pages) == 1:
            return self.c_kv[pages[0], :length], self.k_rope[pages[0], :length]
"""
STORE_KEY = "            self.k_rope[pages[entry], slot] = k_rope[s]\n"


def not_right(exercise: str, says: str, score: float = 0, outcome: Outcome = Outcome.WRONG) -> Mapping[str, Expected]:
    """Return what a wrong answer gets: its verdict and, of a kernel with one, none of the points for speed."""
    found = {exercise: Expected(score, Outcome.PARTIAL if score else outcome, says)}
    if exercise in KERNELS:
        found[f"{exercise}:speed"] = Expected(0, found[exercise].outcome, "once the answer is right")
    return found


def slow(exercise: str, score: float = 0) -> Mapping[str, Expected]:
    """Return what a right answer gets that reaches the lower bar, or none."""
    return {f"{exercise}:speed": Expected(score, Outcome.PARTIAL if score else Outcome.SLOW, "of the floor")}


def left_out(*exercises: str) -> tuple[tuple[Patch, ...], Mapping[str, Expected]]:
    """Return patches and verdicts of exercises that are handed in as they were handed out."""
    verdicts: dict[str, Expected] = {}
    for name in exercises:
        verdicts |= not_right(name, "as it was handed out", outcome=Outcome.UNFINISHED)
    return tuple(unfinished(name) for name in exercises), verdicts


SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "another style: pages by sequence and entry, a loop over blocks, one axis for all tokens, powers of 2",
        patches=(
            rewrite(
                "predict_pages",
                """
def predict_pages(lengths, page_size, max_batch, max_seq_len):
    pages = 0
    for n in lengths:
        pages += math.ceil(n / page_size)
    contiguous, token = max_batch * max_seq_len, 1152
    return dict(
        pages=pages, empty_slots=pages * page_size - sum(lengths),
        saving=(contiguous - pages * page_size) / contiguous,
        page_bytes=token * page_size * pages, preallocated_bytes=token * contiguous,
    )
""",
            ),
            rewrite(
                "BasicPagedCache",
                """
class BasicPagedCache:
    def __init__(self, num_pages, page_size, R, Dr):
        self.size, self.free_pool, self.pages, self.lengths = page_size, set(range(num_pages)), {}, {}
        self.pools = [torch.zeros(num_pages, page_size, width) for width in (R, Dr)]

    def used_pages(self):
        return len(self.pages)

    def table(self, sequence):
        return [page for (b, _), page in sorted(self.pages.items()) if b == sequence]

    def append(self, sequence, c_kv, k_rope):
        length = self.lengths.get(sequence, 0)
        entries = {(sequence, (length + s) // self.size) for s in range(len(c_kv))} - self.pages.keys()
        if len(entries) > len(self.free_pool):
            raise ValueError("the pool is exhausted")
        for key in entries:
            self.pages[key] = self.free_pool.pop()
        for s in range(len(c_kv)):
            page, slot = self.pages[sequence, (length + s) // self.size], (length + s) % self.size
            for pool, new in zip(self.pools, (c_kv, k_rope)):
                pool[page, slot] = new[s]
        self.lengths[sequence] = length + len(c_kv)

    def read(self, sequence):
        table = self.table(sequence)
        rows = [pool[table].flatten(0, 1) for pool in self.pools]
        return tuple(row[: self.lengths.get(sequence, 0)].clone() for row in rows)

    def free(self, sequence):
        if not self.lengths.get(sequence):
            raise ValueError("nothing to free")
        for key in [key for key in self.pages if key[0] == sequence]:
            self.free_pool.add(self.pages.pop(key))
        del self.lengths[sequence]
""",
            ),
            rewrite(
                "token_offsets",
                """
@triton.jit
def offsets_of_a_sequence(table, starts, lengths, out, S, columns, size, stride, width, BLOCK: tl.constexpr):
    b = tl.program_id(0)
    start, n = tl.load(starts + b), tl.load(lengths + b)
    for first in range(0, S, BLOCK):
        s = first + tl.arange(0, BLOCK)
        at = start + s
        page = tl.load(table + b * columns + at // size, mask=s < n, other=0)
        word = stride * page.to(tl.int64) + width * (at % size)
        tl.store(out + b * S + s, tl.where(s < n, word, -1), mask=s < S)


def token_offsets(block_table, starts, lengths, S, page_size, page_stride, width):
    out = torch.empty(len(starts), S, dtype=torch.long, device=starts.device)
    offsets_of_a_sequence[(len(starts),)](
        block_table, starts, lengths, out, S, block_table.shape[1], page_size, page_stride, width, 32
    )
    return out
""",
            ),
            rewrite(
                "paged_update",
                """
@triton.jit
def put_tokens(
    c_ptr, k_ptr, c_pool, k_pool, table, starts, lengths, N, S, columns, size, c_apart, k_apart,
    R: tl.constexpr, DR: tl.constexpr, TOKENS: tl.constexpr,
):
    n = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    b, s = n // S, n % S
    there = (n < N) & (s < tl.load(lengths + b, mask=n < N, other=0))
    at = tl.load(starts + b, mask=there, other=0) + s
    page = tl.load(table + b * columns + at // size, mask=there, other=0)
    page, slot, n = page.to(tl.int64)[:, None], (at % size)[:, None], n.to(tl.int64)[:, None]
    r, d = tl.arange(0, R)[None, :], tl.arange(0, DR)[None, :]
    c, k = tl.load(c_ptr + n * R + r, mask=there[:, None]), tl.load(k_ptr + n * DR + d, mask=there[:, None])
    tl.store(c_pool + page * c_apart + slot * R + r, c, mask=there[:, None])
    tl.store(k_pool + page * k_apart + slot * DR + d, k, mask=there[:, None])


def paged_update(c_kv, k_rope, c_kv_pages, k_rope_pages, block_table, starts, lengths):
    B, S, R = c_kv.shape
    put_tokens[(triton.cdiv(B * S, 8),)](
        c_kv, k_rope, c_kv_pages, k_rope_pages, block_table, starts, lengths, B * S, S, block_table.shape[1],
        c_kv_pages.shape[1], c_kv_pages.stride(0), k_rope_pages.stride(0), R, k_rope.shape[2], 8,
    )
    return c_kv_pages, k_rope_pages
""",
            ),
            replace("paged_gather", "min(triton.next_power_of_2(T), 4)", "8"),
            replace("paged_gather", "offs_n // page_size, mask=real", "offs_n // page_size, mask=(offs_n < T) & real"),
            replace("paged_decode", "m_i + tl.log(l_i)", "(m_i + tl.log2(l_i)) * 0.6931471805599453"),
            replace("paged_decode", "tl.exp(", "tl.exp2("),
            replace("paged_decode", "qk) * scale\n", "qk) * (scale * 1.4426950408889634)\n"),
            replace("paged_decode", "offs_n % PAGE", "(offs_n - offs_n // PAGE * PAGE)"),
        ),
    ),
    Submission(
        "chloe",
        "one helper for the look-up of all kernels, in a cell of her own",
        patches=(
            add_cell(
                "token_offsets",
                """
@triton.jit
def page_of(table_ptr, b, max_pages, position, page_size, real):
    page = tl.load(table_ptr + b * max_pages + position // page_size, mask=real, other=0)
    return page.to(tl.int64)
""",
            ),
            replace("token_offsets", LOOK_UP, "page_of(table_ptr, b, max_pages, position, page_size, real)"),
            replace("paged_update", LOOK_UP, "page_of(table_ptr, b, max_pages, position, page_size, real)"),
            replace("paged_gather", GATHER_LOOK_UP, "page_of(table_ptr, b, max_pages, offs_n, page_size, real)"),
        ),
    ),
    Submission(
        "dev",
        "warns and prints; frees what holds nothing, offsets in int32, the first tokens of a page in every block",
        patches=(
            replace(
                "paged_gather",
                "    block_n =",
                '    import warnings\n    warnings.warn("4 tokens are a guess")\n    print(lengths)\n    block_n =',
            ),
            replace("BasicPagedCache", 'raise ValueError(f"sequence {sequence} holds nothing")', "return"),
            replace("token_offsets", LOOK_UP, LOOK_UP.removesuffix(".to(tl.int64)")),
            replace("paged_update", LOOK_UP, LOOK_UP.removesuffix(".to(tl.int64)")),
            replace("paged_decode", "offs_n % PAGE", "tl.arange(0, BLOCK_N)"),
        ),
        expect={
            **not_right("BasicPagedCache", "a second free is a mistake of the caller", 2),
            **not_right("token_offsets", "wrapped around at 2^31", 2),
            **not_right("paged_update", "2³¹", 2),
            **not_right("paged_decode", "every block reads the first tokens of its page", 3),
        },
    ),
    # Wrong
    Submission(
        "eli",
        "pages of the sum, pages taken early, no start, row 0 for all",
        patches=(
            replace("predict_pages", "sum(-(-n // page_size) for n in lengths)", "-(-sum(lengths) // page_size)"),
            replace(
                "BasicPagedCache",
                "-(-(length + len(c_kv)) // self.page_size)",
                "(length + len(c_kv)) // self.page_size + 1",
            ),
            replace("token_offsets", POSITION, "position = offs_s"),
            replace("paged_update", POSITION, "position = offs_s"),
            replace("paged_gather", "table_ptr + b * max_pages", "table_ptr"),
            replace("paged_decode", PAGE_ROW, ""),
        ),
        expect={
            **not_right("predict_pages", "round up for each", 1),
            **not_right("BasicPagedCache", "append takes a page too early"),
            **not_right("token_offsets", "the start is ignored", 1),
            **not_right("paged_update", "the start is ignored", 1),
            **not_right("paged_gather", "the table's first row"),
            **not_right("paged_decode", "the table's first row"),
        },
    ),
    Submission(
        "fay",
        "a page too many, reads whole pages, row 0 for all, runs past pages, no table",
        patches=(
            replace("predict_pages", "-(-n // page_size) for", "n // page_size + 1 for"),
            replace(
                "BasicPagedCache",
                "length = self.table(sequence), self.lengths.get(sequence, 0)\n        c_kv, k_rope = (x",
                "length = self.table(sequence), len(self.table(sequence)) * self.page_size\n        c_kv, k_rope = (x",
            ),
            replace("token_offsets", "table_ptr + b * max_pages", "table_ptr"),
            replace("paged_update", "table_ptr + b * max_pages", "table_ptr"),
            replace("paged_gather", GATHER_LOOK_UP, "tl.load(table_ptr + b * max_pages).to(tl.int64)"),
            replace("paged_gather", "slot = offs_n % page_size", "slot = offs_n"),
            replace(
                "paged_decode",
                "page = tl.load(table_ptr, mask=length > 0, other=0).to(tl.int64)",
                "page = b * max_pages",
            ),
            replace("paged_decode", AHEAD, "page = b * max_pages + ahead // PAGE"),
        ),
        expect={
            **not_right("predict_pages", "gets a page too many"),
            **not_right("BasicPagedCache", "read returns whole pages"),
            **not_right("token_offsets", "the table's first row"),
            **not_right("paged_update", "the table's first row"),
            **not_right("paged_gather", "run past the end of a page"),
            **not_right("paged_decode", "the table is ignored"),
        },
    ),
    Submission(
        "gus",
        "saves by tokens, keeps pages, runs past pages, no table",
        patches=(
            replace("predict_pages", "1 - slots / preallocated", "1 - sum(lengths) / preallocated"),
            replace("BasicPagedCache", "self.free_pages += self.tables.pop(sequence)", "self.tables.pop(sequence)"),
            *(replace(name, LOOK_UP, FIRST_PAGE) for name in ("token_offsets", "paged_update")),
            *(
                replace(name, "position % page_size", "(start % page_size + offs_s)")
                for name in ("token_offsets", "paged_update")
            ),
            *(replace(name, POSITION, "start = tl.load(starts_ptr + b)") for name in ("token_offsets", "paged_update")),
            replace("paged_gather", GATHER_LOOK_UP, "b * max_pages + offs_n // page_size"),
            replace("paged_decode", "offs_n % PAGE", "offs_n"),
            replace("paged_decode", f"        {AHEAD}\n", ""),
        ),
        expect={
            **not_right("predict_pages", "a page counts whole", 1),
            **not_right("BasicPagedCache", "their pages stay taken", 1),
            **not_right("token_offsets", "run past the end of a page", 1),
            **not_right("paged_update", "run past the end of a page"),
            **not_right("paged_gather", "the table is ignored"),
            **not_right("paged_decode", "run past the end of a page", 1),
        },
    ),
    Submission(
        "hana",
        "a page for nothing, unfinished cells, pages taken to lie side by side, writes without a table",
        patches=(
            replace("predict_pages", "-(-n // page_size)", "max(1, -(-n // page_size))"),
            *left_out("BasicPagedCache", "paged_gather", "paged_decode")[0],
            replace("token_offsets", "page * page_stride", "page * page_size * width"),
            replace("paged_update", LOOK_UP, "b * max_pages + position // page_size"),
        ),
        expect={
            **left_out("BasicPagedCache", "paged_gather", "paged_decode")[1],
            **not_right("predict_pages", "it needs none", 1),
            **not_right("token_offsets", "page p begins at p · page_stride", 2),
            **not_right("paged_update", "the table is ignored"),
        },
    ),
    Submission(
        "ivan",
        "a syntax error in one cell; frees after 0 tokens, no modulo in slots, NaN of an empty sequence",
        patches=(
            replace("BasicPagedCache", NOTHING, "if sequence not in self.lengths:"),
            replace("token_offsets", "position % page_size * width", "position * width"),
            replace("paged_update", "slot = position % page_size", "slot = position"),
            replace("paged_gather", "    block_n = min", "    block_n = = min"),
            replace(
                "paged_decode",
                "    l_i = tl.where(l_i > 0, l_i, 1.0)  # for length 0: out 0, and lse the maximum, -inf\n",
                "",
            ),
        ),
        expect={
            **not_right("BasicPagedCache", "an append of 0 tokens", 2),
            **not_right("token_offsets", "the slot is not position % page_size", 1),
            **not_right("paged_update", "the slot is not position % page_size"),
            **not_right("paged_gather", "SyntaxError in line", outcome=Outcome.ERROR),
            **not_right("paged_decode", "a sequence of length 0 gives NaN", 3),
        },
    ),
    Submission(
        "lena",
        "words for bytes, keeps half an append, one position too far, attends to whole pages",
        patches=(
            replace("predict_pages", "(512 + 64) * 2", "(512 + 64)"),
            replace("BasicPagedCache", APPEND, PAGE_BY_PAGE),
            replace("BasicPagedCache", STORE_KEY, STORE_KEY + "            self.lengths[sequence] = length + s + 1\n"),
            replace("token_offsets", POSITION, POSITION + " + 1"),
            replace("paged_update", POSITION, POSITION + " + 1"),
            replace("paged_gather", "offs_n // page_size", "(offs_n + 1) // page_size"),
            replace("paged_gather", "offs_n % page_size", "(offs_n + 1) % page_size"),
            replace("paged_decode", LENGTH, LENGTH + "    length = tl.cdiv(length, PAGE) * PAGE\n"),
        ),
        expect={
            **not_right("predict_pages", "the bytes are words"),
            **not_right("BasicPagedCache", "has stored some of its tokens", 2),
            **not_right("token_offsets", "one position too far"),
            **not_right("paged_update", "one position too far"),
            **not_right("paged_gather", "one position too far"),
            **not_right("paged_decode", "slots behind the last token count", 2),
        },
    ),
    Submission(
        "mona",
        "forgets the key's bytes, takes pages before refusing, writes padding, leaves out last pages",
        patches=(
            replace("predict_pages", "(512 + 64) * 2", "512 * 2"),
            replace("BasicPagedCache", APPEND, PAGE_BY_PAGE),
            replace("token_offsets", REAL, "real = offs_s < S"),
            replace("paged_update", REAL, "real = offs_s < S"),
            replace(
                "paged_gather",
                GATHER_REAL,
                "real = offs_n < tl.cdiv(tl.load(lengths_ptr + b), page_size) * page_size",
            ),
            replace("paged_decode", LENGTH, LENGTH + "    length = length // PAGE * PAGE\n"),
        ),
        expect={
            **not_right("predict_pages", "and 64 of the rotated key"),
            **not_right("BasicPagedCache", "has taken pages", 2),
            **not_right("token_offsets", "they do not exist, expected −1", 2),
            **not_right("paged_update", "they are padding", 2),
            **not_right("paged_gather", "what the page holds there is old", 2),
            **not_right("paged_decode", "the last page is ignored", 2),
        },
    ),
    Submission(
        "nils",
        "the share in use, one table for all, rows for words, no key, last pages left out, the page before",
        patches=(
            replace("predict_pages", "1 - slots / preallocated", "slots / preallocated"),
            replace("BasicPagedCache", "self.tables.get(sequence, [])", 'self.tables.get("all", [])'),
            replace("BasicPagedCache", "self.tables[sequence], self", 'self.tables["all"], self'),
            replace("BasicPagedCache", "self.tables.pop(sequence)", 'self.tables.pop("all", [])'),
            replace("token_offsets", "position % page_size * width", "position % page_size"),
            replace(
                "paged_update",
                "    tl.store(k_pages_ptr + k_row[:, None] + offs_d[None, :], k_rope, mask=real[:, None])\n",
                "",
            ),
            replace("paged_gather", GATHER_REAL, "real = offs_n < tl.load(lengths_ptr + b) // page_size * page_size"),
            replace("paged_decode", "ahead = start + BLOCK_N", "ahead = start"),
        ),
        expect={
            **not_right("predict_pages", "the share that is used"),
            **not_right("BasicPagedCache", "all sequences share one table"),
            **not_right("token_offsets", "a token has `width` words"),
            **not_right("paged_update", "the rotated key is cached too"),
            **not_right("paged_gather", "the last page is missing", 2),
            **not_right("paged_decode", "from the page of the block before", 1),
        },
    ),
    Submission(
        "kim",
        "the slot of a sequence without old tokens; refuses the last free page",
        patches=(
            replace("BasicPagedCache", "if needed > len", "if needed >= len"),
            *(
                replace(name, "position % page_size", "offs_s % page_size")
                for name in ("token_offsets", "paged_update")
            ),
        ),
        expect={
            **not_right("BasicPagedCache", "though there are just enough free pages", 1),
            **not_right("token_offsets", "the slot is s % page_size", 1),
            **not_right("paged_update", "the slot is s % page_size", 1),
        },
    ),
    Submission(
        "olga",
        "bytes of tokens; a refused append leaves an entry; lengths of contexts; pages lie side by side, everywhere",
        patches=(
            replace("predict_pages", '"page_bytes": slots', '"page_bytes": sum(lengths)'),
            replace("BasicPagedCache", ENTRY, ENTRY.replace("get(sequence, 0)", "setdefault(sequence, 0)")),
            replace("BasicPagedCache", NOTHING, "if sequence not in self.lengths:"),
            replace("BasicPagedCache", "self.tables.pop(sequence)", "self.tables.pop(sequence, [])"),
            replace("token_offsets", REAL, "real = tl.load(starts_ptr + b) + offs_s < tl.load(lengths_ptr + b)"),
            replace("paged_update", "c_kv_pages.shape[1], " + PAGE_STRIDES, "page_size, " + SIDE_BY_SIDE),
            replace("paged_update", "    block_s = min", "    page_size = c_kv_pages.shape[1]\n    block_s = min"),
            replace("paged_gather", PAGE_STRIDES, SIDE_BY_SIDE),
            replace("paged_decode", PAGE_STRIDES, SIDE_BY_SIDE),
        ),
        expect={
            **not_right("predict_pages", "page_bytes are those of the tokens", 1),
            **not_right("BasicPagedCache", "whose only append was refused", 2),
            **not_right("token_offsets", "taken for the end of the context", 1),
            **not_right("paged_update", "pages are taken to lie side by side", 2),
            **not_right("paged_gather", "pages are taken to lie side by side", 2),
            **not_right("paged_decode", "pages are taken to lie side by side", 3),
        },
    ),
    Submission(
        "pia",
        "hands out the manager's own list; looks up all S tokens, writes padding, no modulo, a block over four pages",
        patches=(
            replace(
                "BasicPagedCache", "return list(self.tables.get(sequence, []))", "return self.tables.get(sequence, [])"
            ),
            replace("token_offsets", "mask=real", "mask=offs_s < S"),
            replace("paged_update", "mask=real[:, None])", "mask=offs_s[:, None] < S)"),
            replace("paged_gather", "slot = offs_n % page_size", "slot = offs_n"),
            replace("paged_decode", "min(block_n, page_size)", "block_n"),
        ),
        expect={
            **not_right("BasicPagedCache", "return a copy of it", 3),
            **not_right("token_offsets", "reads element 4 of table_ptr", 2),
            **not_right("paged_update", "they are padding", 2),
            **not_right("paged_gather", "the slot is not position % page_size"),
            **not_right("paged_decode", "BLOCK_N is page_size at most", 1),
        },
    ),
    Submission(
        "quin",
        "per cent, pages for new tokens alone, no blocks at all, one page for a block, the first page for ever",
        patches=(
            replace(
                "BasicPagedCache",
                "-(-(length + len(c_kv)) // self.page_size) - len(pages)",
                "-(-len(c_kv) // self.page_size)",
            ),
            replace("predict_pages", "1 - slots / preallocated", "100 * (1 - slots / preallocated)"),
            replace("token_offsets", "triton.cdiv(S, 64)", "S // 64"),
            replace("paged_update", LOOK_UP, FIRST_PAGE),
            replace("paged_update", POSITION, f"start = tl.load(starts_ptr + b) + {OF_BLOCK}_S\n    {POSITION}"),
            replace("paged_gather", GATHER_LOOK_UP, FIRST_PAGE),
            replace("paged_gather", GATHER_REAL, f"start = {OF_BLOCK}_N\n    {GATHER_REAL}"),
            replace("paged_decode", ADVANCE, ""),
        ),
        expect={
            **not_right("predict_pages", "saving is in per cent"),
            **not_right("BasicPagedCache", "for its new tokens alone"),
            **not_right("token_offsets", "no offset is written"),
            **not_right("paged_update", "a page ends inside it", 1),
            **not_right("paged_gather", "a page ends inside it", 1),
            **not_right("paged_decode", "hand the next page on", 1),
        },
    ),
    Submission(
        "rosa",
        "grid turned round, looks up all S tokens, rows in float32, the next page too early",
        patches=(
            replace("token_offsets", "(triton.cdiv(S, 64), B)", "(B, triton.cdiv(S, 64))"),
            replace("paged_update", LOOK_UP, LOOK_UP.replace("real", "offs_s < S")),
            replace(
                "paged_gather", "x.new_empty(B, T, x.shape[-1])", "torch.empty(B, T, x.shape[-1], device=x.device)"
            ),
            replace("paged_decode", ADVANCE, ""),
            replace("paged_decode", TOKENS, ADVANCE + TOKENS),
        ),
        expect={
            **not_right("token_offsets", "the first sequence alone has offsets"),
            **not_right("paged_update", "reads element 12 of table_ptr", 2),
            **not_right("paged_gather", "c_kv is float32, expected float16"),
            **not_right("paged_decode", "from the page of the block behind"),
        },
    ),
    Submission(
        "sven",
        "strides of strides, pools of his own, a launch for each sequence, an entry for each block",
        patches=(
            replace("token_offsets", "page * page_stride", "page * page_size * page_stride"),
            replace(
                "paged_update",
                "    block_s = min",
                "    c_kv_pages, k_rope_pages = c_kv_pages.clone(), k_rope_pages.clone()\n    block_s = min",
            ),
            replace("paged_gather", "    paged_gather_kernel[(triton.cdiv(T, block_n), B)]", EACH_GATHERED),
            replace(
                "paged_gather", "block_table, lengths, c_kv, k_rope", "block_table[b], lengths[b:], c_kv[b], k_rope[b]"
            ),
            replace("paged_decode", "ahead // PAGE", "ahead // BLOCK_N"),
        ),
        expect={
            **not_right("token_offsets", "pages lie too far apart"),
            **not_right("paged_update", "is returned as a tensor of its own"),
            **not_right("paged_gather", "2 launches, expected 1"),
            **not_right("paged_decode", "not for each block", 3),
        },
    ),
    Submission(
        "tara",
        "no offset for padding, a launch for each sequence, keys side by side, a block of each page",
        patches=(
            replace("token_offsets", "mask=offs_s < S", "mask=real"),
            replace("paged_update", "    paged_update_kernel[(triton.cdiv(S, block_s), B)]", EACH_WRITTEN),
            replace("paged_update", "        c_kv, k_rope, c_kv_pages", "        c_kv[b], k_rope[b], c_kv_pages"),
            replace("paged_update", "block_table, starts, lengths,\n", "block_table[b], starts[b:], lengths[b:],\n"),
            replace("paged_gather", "k_rope_pages.stride(0)", "page_size * Dr"),
            replace("paged_decode", "range(0, length, BLOCK_N)", "range(0, length, PAGE)"),
        ),
        expect={
            **not_right("token_offsets", "are not written: expected −1", 2),
            **not_right("paged_update", "2 launches, expected 1"),
            **not_right("paged_gather", "pages are taken to lie side by side", 2),
            **not_right("paged_decode", "only the first block is read", 3),
        },
    ),
    Submission(
        "theo",
        "quotient and rest exchanged; counts the sequences there are",
        patches=(
            replace("predict_pages", "preallocated * (512", "len(lengths) * max_seq_len * (512"),
            *(replace(name, "+ position // page_size, mask", "+ position % page_size, mask") for name in PLACES),
            replace("token_offsets", "+ position % page_size * width", "+ position // page_size * width"),
            replace("paged_update", "slot = position % page_size", "slot = position // page_size"),
            replace("paged_gather", "+ offs_n // page_size, mask", "+ offs_n % page_size, mask"),
            replace("paged_gather", "slot = offs_n % page_size", "slot = offs_n // page_size"),
            replace("paged_decode", "ahead // PAGE", "ahead % PAGE"),
            replace("paged_decode", "offs_n % PAGE", "offs_n // PAGE"),
        ),
        expect={
            **not_right("predict_pages", "the sequences there are count as preallocated"),
            **{
                key: verdict
                for name in ("token_offsets", *KERNELS)
                for key, verdict in not_right(name, "quotient and rest are exchanged").items()
            },
        },
    ),
    Submission(
        "thea",
        "keys in their pool: slots of the latents",
        patches=tuple(replace(name, f"{slot} * DR", f"{slot} * R") for name, slot in SLOTS.items()),
        expect={key: each for name in SLOTS for key, each in not_right(name, "counted at R words").items()},
    ),
    Submission(
        "timo",
        "writes into what reshape makes of the pool",
        patches=(
            replace("paged_update", "        c_kv, k_rope, c_kv_pages", "        c_kv, k_rope, c_kv_pages.reshape(-1)"),
            replace("paged_update", PAGE_STRIDES, "c_kv_pages[0].numel(), k_rope_pages.stride(0)"),
        ),
        expect=not_right("paged_update", "reshape, flatten and contiguous copy", 2),
    ),
    # Right but for a mistake of lesson 06 in the decode
    *(
        Submission(
            student,
            f"decode: {what}",
            patches=(replace("paged_decode", old, new),),
            expect=not_right("paged_decode", says, score),
        )
        for student, what, old, new, says, score in (
            (
                "will",
                "the scale of the latent",
                "        scale, H, block_table",
                "        (R + Dr) ** -0.5, H, block_table",
                "1/√576",
                0,
            ),
            (
                "xena",
                "no RoPE part",
                SCORES,
                "qk * scale",
                "lack q_rope",
                0,
            ),
            ("xander", "no latent part", SCORES, "tl.dot(q_rope, tl.trans(k_rope)) * scale", "lack q_latent", 0),
            ("xara", "no scale", SCORES, SCORES.removesuffix(" * scale"), "are not multiplied by scale", 0),
            ("xaver", "the scale twice", SCORES, f"{SCORES} * scale", "scores are multiplied by scale twice", 0),
            ("xia", "one part scaled twice", ", qk) * scale", ", qk * scale) * scale", "c_kv is multiplied by", 0),
            ("xim", "the scale on the RoPE part", ", qk) * scale", ") * scale + qk", "only q_rope · k_rope", 0),
            ("ximena", "the scale on the latent part", ", qk) * scale", ", qk * scale)", "only q_latent · c_kv", 0),
            ("xiu", "no division", "acc / l_i[:, None]", "acc", "not divided by the sum", 0),
            ("xola", "no maximum in lse", "m_i + tl.log(l_i)", "tl.log(l_i)", "add the maximum that was", 0),
            ("xu", "two bases", "m_i + tl.log(l_i)", "m_i + tl.log2(l_i)", "a maximum that is natural", 0),
            ("yago", "no sum in lse", "m_i + tl.log(l_i)", "m_i", "lse is the largest score", 0),
            ("yan", "powers of 2", "tl.exp(", "tl.exp2(", "the weights are powers of 2", 0),
            ("yann", "keeps the old sum", "l_i = l_i * alpha +", "l_i = l_i +", "l_i is not multiplied", 1),
            ("yves", "keeps the old accumulator", "acc * alpha[:, None])", "acc)", "acc is not multiplied", 1),
            ("wes", "a mask of −1e4", 'qk, float("-inf"))', "qk, -1e4)", "masked scores are −inf", 3),
            (
                "zoe",
                "lse in base 2",
                "m_i + tl.log(l_i)",
                "(m_i + tl.log(l_i)) / 0.6931472",
                "base-2 logarithm",
                0,
            ),
        )
    ),
    # Not from a kernel
    Submission(
        "uma",
        "lets PyTorch write the pages, and a kernel copy the pools onto themselves; gathers T tokens of all, no modulo",
        patches=(
            rewrite(
                "paged_update",
                """
@triton.jit
def touch(c_pool, k_pool, C, K, BLOCK: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(c_pool + n, tl.load(c_pool + n, mask=n < C), mask=n < C)
    tl.store(k_pool + n, tl.load(k_pool + n, mask=n < K), mask=n < K)


def paged_update(c_kv, k_rope, c_kv_pages, k_rope_pages, block_table, starts, lengths):
    size = c_kv_pages.shape[1]
    for b, (start, n) in enumerate(zip(starts.tolist(), lengths.tolist())):
        position = start + torch.arange(n, device=c_kv.device)
        page = block_table[b, position // size].long()
        c_kv_pages[page, position % size] = c_kv[b, :n]
        k_rope_pages[page, position % size] = k_rope[b, :n]
    C, K = c_kv_pages.numel(), k_rope_pages.numel()
    touch[(triton.cdiv(max(C, K), 1024),)](c_kv_pages, k_rope_pages, C, K, BLOCK=1024)
    return c_kv_pages, k_rope_pages
""",
            ),
            replace("paged_gather", "mask=real[:, None], other=0.0", "mask=offs_n[:, None] < T, other=0.0"),
            replace("paged_decode", "offs_n % PAGE", "offs_n"),
            replace("BasicPagedCache", READ, ONE_PAGE + READ),
        ),
        expect={
            **not_right("BasicPagedCache", "return copies of the tokens", 3),
            **not_right("paged_update", "touch takes as c_pool what torch computes from data"),
            **not_right("paged_gather", "all T positions are loaded", 2),
            **not_right("paged_decode", "the slot is not position % page_size", 1),
        },
    ),
    # Right and slow
    Submission(
        "vera",
        "tokens in float32 on their way; a program for each token; pages gathered by PyTorch, then decoded",
        patches=(
            replace(
                "paged_update",
                "    block_s = min",
                "    c_kv, k_rope = c_kv.float(), k_rope.float()\n    block_s = min",
            ),
            replace("paged_gather", "min(triton.next_power_of_2(T), 4)", "1"),
            replace("paged_gather", "num_warps=4", "num_warps=8"),
            replace(
                "paged_decode",
                "    out = torch.empty_like(q_latent)\n",
                """    everything = block_table.long() % len(c_kv_pages)
    c_kv_pages, k_rope_pages = c_kv_pages[everything].flatten(0, 1), k_rope_pages[everything].flatten(0, 1)
    out = torch.empty_like(q_latent)
""",
            ),
            replace("BasicPagedCache", APPEND, ONE_BY_ONE),
            replace("paged_decode", FIRST, "page = b * max_pages"),
            replace("paged_decode", AHEAD, "page = b * max_pages + ahead // PAGE"),
        ),
        expect={
            **not_right("BasicPagedCache", "kept pages that it had taken", 2),
            **slow("paged_update"),
            **slow("paged_gather", 1),
            **slow("paged_decode"),
        },
    ),
    Submission(
        "wanda",
        "whole pages alone, a table for whom it looks up, the start of sequence 0",
        patches=(
            replace("BasicPagedCache", "class ", "from collections import defaultdict\n\n\nclass "),
            replace("BasicPagedCache", "self.tables = {}", "self.tables = defaultdict(list)"),
            replace("BasicPagedCache", ENTRY, NO_LOOK + ENTRY.replace("self.table(sequence)", COPIED)),
            replace("BasicPagedCache", "list(self.tables.get(sequence, []))", "list(self.tables[sequence])"),
            replace("BasicPagedCache", NOTHING, "if sequence not in self.tables:"),
            replace("BasicPagedCache", "del self.lengths[sequence]", "self.lengths.pop(sequence, None)"),
            replace("predict_pages", "-(-n // page_size)", "n // page_size"),
            *(replace(name, "starts_ptr + b", "starts_ptr") for name in PLACES),
        ),
        expect={
            **not_right("predict_pages", "the last page of a sequence is left out", 1),
            **not_right("BasicPagedCache", "that was only looked up, by read or table", 2),
            **not_right("token_offsets", "starts[0] is taken for every sequence", 1),
            **not_right("paged_update", "starts[0] is taken for every sequence", 1),
        },
    ),
    Submission(
        "yara",
        "no saving below 0; keeps the caller's tensors in place of a pool",
        patches=(
            replace("predict_pages", "1 - slots / preallocated", "max(0, 1 - slots / preallocated)"),
            rewrite(
                "BasicPagedCache",
                """
class BasicPagedCache:
    def __init__(self, num_pages, page_size, R, Dr):
        self.page_size, self.R, self.Dr = page_size, R, Dr
        self.free_pages, self.tables, self.held = list(range(num_pages)), {}, {}

    def used_pages(self):
        return sum(map(len, self.tables.values()))

    def table(self, sequence):
        return list(self.tables.get(sequence, []))

    def append(self, sequence, c_kv, k_rope):
        held, table = self.held.get(sequence, []), self.table(sequence)
        needed = -(-(len(held) + len(c_kv)) // self.page_size) - len(table)
        if needed > len(self.free_pages):
            raise ValueError("no room")
        self.tables[sequence] = table + [self.free_pages.pop() for _ in range(needed)]
        self.held[sequence] = held + list(zip(c_kv, k_rope))

    def read(self, sequence):
        if held := self.held.get(sequence):
            return tuple(map(torch.stack, zip(*held)))
        return torch.zeros(0, self.R), torch.zeros(0, self.Dr)

    def free(self, sequence):
        if not self.held.get(sequence):
            raise ValueError("nothing held")
        del self.held[sequence]
        self.free_pages += self.tables.pop(sequence)
""",
            ),
        ),
        expect={
            **not_right("predict_pages", "saving is 0 at least", 1),
            **not_right("BasicPagedCache", "when the caller writes to these tensors again", 3),
        },
    ),
)
DEMO = ("ada", "eli", "vera")
