"""The sample class of lesson 04: right in several styles, slow, wrong, and dishonest; every named mistake is shown."""

from autograder.course.sample import (
    Submission,
    add_cell,
    not_right,
    replace,
    rewrite,
    says,
    slip,
    slow,
    unfinished,
)
from autograder.judging.verdict import Outcome

RSTD = "    rstd = tl.rsqrt(tl.sum(x * x) / D + eps)\n"
NORM_LAUNCH = "    rms_norm_kernel[(N,)](x, weight, out, W, D, eps, BLOCK_D=block, num_warps=warps)\n"
NORM_HEAD = "def rms_norm(x, weight, eps=1e-6):\n"
TURN = "    y = tl.join(a * cos - b * sin, a * sin + b * cos)\n"
PAIRS = """    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)  # [BLOCK_H, 2 * BLOCK_P]
    a, b = tl.split(tl.reshape(x, (BLOCK_H, BLOCK_P, 2)))  # [BLOCK_H, BLOCK_P] each
    y = tl.join(a * cos - b * sin, a * sin + b * cos)
    tl.store(out_ptr + offsets, tl.reshape(y, (BLOCK_H, 2 * BLOCK_P)), mask=mask)
"""
ROWS = """    row_start = (token * H + offs_h) * 2 * P
    column = offs_p[None, :]
    there = (offs_h < H) & (column < P)
"""
HALVES = (
    ROWS
    + """    a = tl.load(x_ptr + row_start + column, mask=there, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + row_start + P + column, mask=there, other=0.0).to(tl.float32)
    tl.store(out_ptr + row_start + column, a * cos - b * sin, mask=there)
    tl.store(out_ptr + row_start + P + column, a * sin + b * cos, mask=there)
"""
)
EVERY_OTHER = (
    ROWS
    + """    a = tl.load(x_ptr + row_start + 2 * column, mask=there, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + row_start + 2 * column + 1, mask=there, other=0.0).to(tl.float32)
    tl.store(out_ptr + row_start + 2 * column, a * cos - b * sin, mask=there)
    tl.store(out_ptr + row_start + 2 * column + 1, a * sin + b * cos, mask=there)
"""
)
STORED_AS_HALVES = EVERY_OTHER.replace(
    "out_ptr + row_start + 2 * column + 1", "out_ptr + row_start + P + column"
).replace("out_ptr + row_start + 2 * column", "out_ptr + row_start + column")
KEY = "        turn_block(k_ptr, k_out_ptr, token * 2 * P + offs_d, offs_d < 2 * P, cos, sin, 1, BLOCK_P)\n"


SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "another style: a loop over the grid, several rows a program, neighbours swapped in registers",
        patches=(
            rewrite(
                "predict_norm_bytes",
                """
def predict_norm_bytes(rows, width, itemsize):
    passes = {"float": (itemsize, 4), "square": (4, 4), "mean": (4, 0), "times rstd": (4, 4), "times weight": (4, 4)}
    passes["to"] = (4, itemsize)
    before = sum(read + written for read, written in passes.values()) * rows * width
    after = (itemsize + itemsize) * rows * width
    return dict(eager_bytes=before, fused_bytes=after, ratio=before / after)
""",
            ),
            rewrite(
                "scale_add",
                """
@triton.jit
def axpy(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    first = tl.program_id(0) * BLOCK
    for start in range(first, n, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < n
        x = tl.load(x_ptr + i, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + i, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + i, tl.fma(x, x * 0 + alpha, y), mask=inside)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    BLOCK = 2048
    programs = min(triton.cdiv(x.shape[0], BLOCK), 132 * 16)
    axpy[(programs,)](x, y, out, alpha, x.shape[0], BLOCK, num_warps=4)
    return out
""",
            ),
            rewrite(
                "rms_norm",
                """
@triton.jit
def norm_rows(x_ptr, w_ptr, out_ptr, N, W, D, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    inside = (row < N) & (col < D)
    x = tl.load(x_ptr + row * W + col, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + col, mask=col < D, other=0.0).to(tl.float32)
    mean = tl.sum(x * x, axis=1, keep_dims=True) * (1.0 / D)
    y = x / tl.sqrt(mean + eps) * w
    tl.store(out_ptr + row * D + col, y.to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(x, weight, eps=1e-6):
    N, W = x.shape
    D = weight.shape[0]
    out = x.new_empty(N, D)
    BLOCK = triton.next_power_of_2(D)
    ROWS = max(1, 8192 // BLOCK // 4)
    norm_rows[(triton.cdiv(N, ROWS),)](x, weight, out, N, W, D, eps, ROWS=ROWS, BLOCK=BLOCK, num_warps=8)
    return out
""",
            ),
            rewrite(
                "apply_rope",
                """
@triton.jit
def turn(x_ptr, cos_ptr, sin_ptr, out_ptr, rows, S, H, Dr: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, 2 * BLOCK)
    at = row[:, None] * Dr + d[None, :]
    inside = (row[:, None] < rows) & (d[None, :] < Dr)
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    even, odd = tl.split(x.reshape(ROWS, BLOCK, 2))
    pair = tl.arange(0, BLOCK)
    angle = (row // H % S)[:, None] * (Dr // 2) + pair[None, :]
    known = (row[:, None] < rows) & (pair[None, :] < Dr // 2)
    c = tl.load(cos_ptr + angle, mask=known, other=0.0)
    s = tl.load(sin_ptr + angle, mask=known, other=0.0)
    turned = tl.interleave(even * c - odd * s, odd * c + even * s)
    tl.store(out_ptr + at, turned, mask=inside)


def apply_rope(x, cos, sin):
    B, S, H, Dr = x.shape
    out = torch.empty_like(x)
    rows = B * S * H
    grid = (triton.cdiv(rows, 32),)
    turn[grid](x, cos, sin, out, rows, S, H, Dr, ROWS=32, BLOCK=triton.next_power_of_2(Dr // 2), num_warps=4)
    return out
""",
            ),
            rewrite(
                "rope_query_key",
                """
@triton.jit
def turn_both(q_ptr, k_ptr, cos_ptr, sin_ptr, qo_ptr, ko_ptr, S, H, P, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr):
    token, block = tl.program_id(0), tl.program_id(1)
    pair, d = tl.arange(0, BLOCK_P), tl.arange(0, 2 * BLOCK_P)
    c = tl.load(cos_ptr + token % S * P + pair, mask=pair < P, other=0.0)
    s = tl.load(sin_ptr + token % S * P + pair, mask=pair < P, other=0.0)
    head = block * BLOCK_H + tl.arange(0, BLOCK_H)
    if block == tl.num_programs(1) - 1:  # one block more than the heads need: the key
        source, target, first, head, heads = k_ptr, ko_ptr, token * 2 * P, tl.arange(0, BLOCK_H), 1
    else:
        source, target, first, heads = q_ptr, qo_ptr, token * H * 2 * P, H
    at = first + head[:, None] * 2 * P + d[None, :]
    inside = (head[:, None] < heads) & (d[None, :] < 2 * P)
    x = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(x, [BLOCK_H, BLOCK_P, 2]))
    y = tl.interleave(a * c - b * s, a * s + b * c)
    tl.store(target + at, y, mask=inside)


def rope_query_key(q_rope, k_rope, cos, sin):
    B, S, H, Dr = q_rope.shape
    q_out, k_out = torch.empty_like(q_rope), torch.empty_like(k_rope)
    grid = (B * S, triton.cdiv(H, 16) + 1)
    pairs = triton.next_power_of_2(Dr // 2)
    turn_both[grid](q_rope, k_rope, cos, sin, q_out, k_out, S, H, Dr // 2, BLOCK_H=16, BLOCK_P=pairs)
    return q_out, k_out
""",
            ),
        ),
    ),
    Submission(
        "chloe",
        "kernels' helpers and a constant in cells of her own",
        patches=(
            add_cell(
                "rms_norm",
                "WIDEST = 8192\n\n\n"
                "@triton.jit\n"
                "def reciprocal_root(square_sum, D, eps):\n"
                "    return 1.0 / tl.sqrt(square_sum / D + eps)\n\n\n"
                "print(WIDEST)",
            ),
            replace("rms_norm", RSTD, "    rstd = reciprocal_root(tl.sum(x * x), D, eps)\n"),
            replace("rms_norm", "    block = triton", "    assert D <= WIDEST\n    block = triton"),
            add_cell(
                "apply_rope", "HEADS = tl.constexpr(32)\n\ndef blocks(count, size):\n    return -(-count // size)"
            ),
            replace("apply_rope", "min(triton.next_power_of_2(H), 32)", "32"),
            replace("apply_rope", "tl.program_id(1) * BLOCK_H", "tl.program_id(1) * HEADS"),
            replace("apply_rope", "triton.cdiv(H, block_h)", "blocks(H, block_h)"),
        ),
    ),
    Submission(
        "dev",
        "warns and prints",
        patches=(
            replace(
                "rms_norm",
                "    block = triton",
                '    import warnings\n    warnings.warn("8 warps are a guess")\n    print(x.shape)\n    block = triton',
            ),
            replace("rope_query_key", "    B, S, H", '    print("grid", len(q_rope))\n    B, S, H'),
        ),
    ),
    # Wrong
    Submission(
        "eli",
        "forgets float32, puts alpha on y, divides by the block, rotates halves, copies the key",
        patches=(
            replace(
                "predict_norm_bytes",
                "(itemsize + 4) + (4 + 4) + 4 + (4 + 4) + (4 + 4) + (4 + itemsize)",
                "(2 + 2 + 1 + 2 + 2 + 2) * itemsize",
            ),
            replace("scale_add", "alpha * x + y", "x + alpha * y"),
            replace("rms_norm", "tl.sum(x * x) / D", "tl.sum(x * x) / BLOCK_D"),
            replace("apply_rope", PAIRS, HALVES),
            replace(
                "rope_query_key",
                KEY,
                "        key = tl.load(k_ptr + token * 2 * P + offs_d, mask=offs_d < 2 * P)\n"
                "        tl.store(k_out_ptr + token * 2 * P + offs_d, key, mask=offs_d < 2 * P)\n",
            ),
        ),
        expect={
            **says("predict_norm_bytes", "are float32, 4 bytes each"),
            **not_right("scale_add", "alpha multiplies y"),
            **not_right("rms_norm", "divided by the size of the block"),
            **not_right("apply_rope", "paired with i + Dr/2"),
            **not_right("rope_query_key", "the key comes back as it was"),
        },
    ),
    Submission(
        "fay",
        "counts reads only, forgets alpha, sums the squares, turns backwards",
        patches=(
            replace(
                "predict_norm_bytes",
                "(itemsize + 4) + (4 + 4) + 4 + (4 + 4) + (4 + 4) + (4 + itemsize)",
                "itemsize + 4 + 4 + 4 + 4 + 4",
            ),
            replace("predict_norm_bytes", "width * 2 * itemsize", "width * itemsize"),
            replace("scale_add", "alpha * x + y", "x + y"),
            replace("rms_norm", "tl.sum(x * x) / D", "tl.sum(x * x)"),
            replace("apply_rope", "a * cos - b * sin, a * sin + b * cos", "a * cos + b * sin, b * cos - a * sin"),
            replace("rope_query_key", "a * cos - b * sin, a * sin + b * cos", "a * cos + b * sin, b * cos - a * sin"),
        ),
        expect={
            **says("predict_norm_bytes", "only reads are counted"),
            **not_right("scale_add", "alpha is missing"),
            **not_right("rms_norm", "expected their mean"),
            **not_right("apply_rope", "turn backwards"),
            **not_right("rope_query_key", "turn backwards"),
        },
    ),
    Submission(
        "gus",
        "lets the mean write in full, forgets y, subtracts the mean, stores halves, rotates halves",
        patches=(
            replace("predict_norm_bytes", "(4 + 4) + 4 + (4 + 4)", "(4 + 4) + (4 + 4) + (4 + 4)"),
            replace("scale_add", "alpha * x + y", "alpha * x"),
            replace("rms_norm", RSTD, "    x = tl.where(mask, x - tl.sum(x) / D, 0.0)\n" + RSTD),
            replace("apply_rope", PAIRS, STORED_AS_HALVES),
            replace(
                "rope_query_key",
                "    a, b = tl.split(tl.reshape(x, (ROWS, BLOCK_P, 2)))\n",
                "    a, b = tl.split(tl.trans(tl.reshape(x, (ROWS, 2, BLOCK_P)), 0, 2, 1))  # i and i + P\n",
            ),
            replace(
                "rope_query_key",
                "tl.reshape(y, (ROWS, 2 * BLOCK_P))",
                "tl.reshape(tl.trans(y, 0, 2, 1), (ROWS, 2 * BLOCK_P))",
            ),
        ),
        expect={
            **says("predict_norm_bytes", "the mean writes one number per row"),
            **not_right("scale_add", "y is not added"),
            **not_right("rms_norm", "that is LayerNorm"),
            **not_right("apply_rope", "laid out as two halves"),
            **not_right("rope_query_key", "paired with i + Dr/2"),
        },
    ),
    *(
        slip(f"{student}_{size}", about, exercise, {old: new.format(size)}, words, told=not_right)
        for exercise, size in (("apply_rope", "BLOCK_H"), ("rope_query_key", "ROWS"))
        for student, about, old, new, words in (
            (
                "abe",
                "exchanges cos and sin",
                "a, b = tl.split(",
                "cos, sin = sin, cos\n    a, b = tl.split(",
                "exchanged",
            ),
            (
                "bea",
                "takes halves for pairs",
                f"tl.reshape(x, ({size}, BLOCK_P, 2))",
                "tl.trans(tl.reshape(x, ({}, 2, BLOCK_P)), 0, 2, 1)",
                "and stored beside it",
            ),
            ("cem", "a plus for a minus", "cos - b", "cos + b", "the first of each pair is"),
            ("dana", "a minus for a plus", "sin + b", "sin - b", "the second of each pair is"),
            ("egon", "a minus for a", "a * sin + b * cos", "b * cos - a * sin", "is b·cos − a·sin"),
        )
    ),
    Submission(
        "fred",
        "a mask of W columns; a position by division; the key's row modulo S, in zeros",
        patches=(
            replace("rms_norm", "x_ptr + row * W + offs_d, mask=mask", "x_ptr + row * W + offs_d, mask=offs_d < W"),
            replace("apply_rope", "(token % S) * P", "(token // (tl.num_programs(0) // S)) * P"),
            replace("rope_query_key", KEY, KEY.replace("token *", "token % S *")),
            replace("rope_query_key", "torch.empty_like(k_rope)", "torch.zeros_like(k_rope)"),
        ),
        expect={
            **not_right("rms_norm", "columns of x that are not the row's", 3),
            **not_right("apply_rope", "its position is its number modulo S", 1),
            **not_right("rope_query_key", "is read or written at row s"),
        },
    ),
    Submission(
        "gil",
        "eps in the sum; a and b exchanged; the key's row modulo S",
        patches=(
            replace("rms_norm", "tl.sum(x * x) / D + eps", "(tl.sum(x * x) + eps) / D"),
            replace("apply_rope", "a, b = tl.split", "b, a = tl.split"),
            replace("rope_query_key", KEY, KEY.replace("token *", "token % S *")),
        ),
        expect={
            **not_right("rms_norm", "expected to their mean", 3),
            **not_right("apply_rope", "a and b are exchanged"),
            **not_right("rope_query_key", "is read or written at row s"),
        },
    ),
    *(
        slip(student, about, "predict_norm_bytes", {old: new}, words)
        for student, about, old, new, words in (
            (
                "hugo",
                "a square that reads its input twice",
                "+ (4 + 4) + 4 +",
                "+ (4 + 4 + 4) + 4 +",
                "the square reads its input once",
            ),
            (
                "ines",
                "a square that reads twice, and a mean that writes in full",
                "(itemsize + 4) + (4 + 4) + 4 + (4 + 4) + (4 + 4) + (4 + itemsize)",
                "2 * itemsize + 4 * sum((1, 3, 2, 2, 2, 1))",
                "two passes of 4 bytes a number too many",
            ),
            ("jana", "a mean that reads nothing", " + 4 + ", " + ", "the mean reads the squares"),
            ("kai", "a fused kernel that only reads", "width * 2 * itemsize", "width * itemsize", "counts one pass"),
            ("karl", "a fused kernel in float32", "width * 2 * itemsize", "width * (4 + 4)", "takes x and the result"),
            (
                "kurt",
                "a fused kernel that writes float32",
                "width * 2 * itemsize",
                "width * (itemsize + 4)",
                "takes x or the result",
            ),
        )
    ),
    *(
        slip(f"elsa{n}", about, "rope_query_key", changes, words, score, not_right)
        for n, (about, changes, words, score) in enumerate(
            (
                ("b and a", {"a, b = tl.split": "b, a = tl.split"}, "a and b are exchanged", 0),
                (
                    "stores halves",
                    {"tl.reshape(y, (": "tl.reshape(tl.permute(y, (0, 2, 1)), ("},
                    "laid out as two halves",
                    0,
                ),
                ("one token's angle", {"(token % S) * P + ": ""}, "every token turns by the angle of token 0", 1),
                (
                    "the new value of a",
                    {TURN: "    a = a * cos - b * sin\n    y = tl.join(a, a * sin + b * cos)\n"},
                    "the first one's new value",
                    0,
                ),
            )
        )
    ),
    *(
        slip(f"emil{n}", about, "rms_norm", changes, words, score, not_right)
        for n, (about, changes, words, score) in enumerate(
            (
                ("no root", {"tl.rsqrt(tl": "1 / (tl"}, "expected its square root", 0),
                ("Gemma's weight", {"rstd * weight": "rstd * (1 + weight)"}, "multiplied by 1 + weight", 0),
                ("no square", {"tl.sum(x * x)": "tl.sum(x)"}, "expected its squares", 0),
                ("no row", {"x_ptr + row * W": "x_ptr"}, "every program reads row 0", 0),
            )
        )
    ),
    slip(
        "egil",
        "a sequence for a position",
        "apply_rope",
        {"(token % S) * P": "(token // S % S) * P"},
        "and not of s, its number modulo S",
        1,
        not_right,
    ),
    slip("egon", "sqrt for rsqrt", "rms_norm", {"tl.rsqrt": "tl.sqrt"}, "rsqrt is 1 / sqrt", told=not_right),
    slip("finn", "an eps of his own", "rms_norm", {"+ eps": "+ 1e-6"}, "take the argument", 3, told=not_right),
    Submission(
        "hana",
        "hands in unfinished cells",
        patches=(unfinished("rms_norm"), unfinished("apply_rope"), unfinished("rope_query_key")),
        expect={
            **not_right("rms_norm", "as it was handed out", outcome=Outcome.UNFINISHED),
            **not_right("apply_rope", "as it was handed out", outcome=Outcome.UNFINISHED),
            **not_right("rope_query_key", "as it was handed out", outcome=Outcome.UNFINISHED),
        },
    ),
    Submission(
        "ivan",
        "a syntax error in one cell",
        patches=(
            replace("rms_norm", "    (N, W), D = x.shape, weight.numel()", "    (N, W), D = x.shape,, weight.numel()"),
        ),
        expect=not_right("rms_norm", "SyntaxError in line", outcome=Outcome.ERROR),
    ),
    Submission(
        "lena",
        "leaves out the weight twice, puts alpha on both, uses the new value, turns the key by token 0",
        patches=(
            replace("predict_norm_bytes", "(4 + 4) + 4 + (4 + 4) + (4 + 4)", "(4 + 4) + 4 + (4 + 4)"),
            replace("scale_add", "alpha * x + y", "alpha * (x + y)"),
            replace("rms_norm", "x * rstd * weight", "x * rstd"),
            replace(
                "apply_rope", TURN, "    a = a * cos - b * sin\n    b = a * sin + b * cos\n    y = tl.join(a, b)\n"
            ),
            replace(
                "rope_query_key",
                KEY,
                "        cos = tl.load(cos_ptr + offs_p, mask=offs_p < P, other=0.0)\n"
                "        sin = tl.load(sin_ptr + offs_p, mask=offs_p < P, other=0.0)\n" + KEY,
            ),
        ),
        expect={
            **says("predict_norm_bytes", "lacks an operation that reads and writes"),
            **not_right("scale_add", "alpha multiplies the sum"),
            **not_right("rms_norm", "not multiplied by weight"),
            **not_right("apply_rope", "the first one's new value"),
            **not_right("rope_query_key", "every key turns by the angle of token 0", 1),
        },
    ),
    Submission(
        "mona",
        "reads the row twice, forgets a mask and eps, turns every token by the first angle",
        patches=(
            replace("predict_norm_bytes", "width * 2 * itemsize", "width * 3 * itemsize"),
            replace("scale_add", "x = tl.load(x_ptr + offsets, mask=mask)", "x = tl.load(x_ptr + offsets)"),
            replace("rms_norm", " / D + eps", " / D"),
            replace("apply_rope", "    angle = (token % S) * P + offs_p\n", "    angle = offs_p\n"),
        ),
        expect={
            **says("predict_norm_bytes", "reads the row twice"),
            **not_right("scale_add", "is the mask missing", 1),
            **not_right("rms_norm", "eps is missing", 3),
            **not_right("apply_rope", "every token turns by the angle of token 0", 1),
        },
    ),
    Submission(
        "nils",
        "the ratio upside down, no program for the tail, eps outside, the position from the row's number",
        patches=(
            replace("predict_norm_bytes", "eager / fused", "fused / eager"),
            replace("scale_add", "triton.cdiv(n, block)", "max(n // block, 1)"),
            replace("rms_norm", RSTD, "    rstd = 1.0 / (tl.sqrt(tl.sum(x * x) / D) + eps)\n"),
            rewrite(
                "apply_rope",
                """
@triton.jit
def one_row(x_ptr, cos_ptr, sin_ptr, out_ptr, S, P, BLOCK_P: tl.constexpr):
    row = tl.program_id(0)
    pair, d = tl.arange(0, BLOCK_P), tl.arange(0, 2 * BLOCK_P)
    cos = tl.load(cos_ptr + row % S * P + pair, mask=pair < P, other=0.0)
    sin = tl.load(sin_ptr + row % S * P + pair, mask=pair < P, other=0.0)
    x = tl.load(x_ptr + row * 2 * P + d, mask=d < 2 * P, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(x, (BLOCK_P, 2)))
    y = tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (2 * BLOCK_P,))
    tl.store(out_ptr + row * 2 * P + d, y, mask=d < 2 * P)


def apply_rope(x, cos, sin):
    B, S, H, Dr = x.shape
    out = torch.empty_like(x)
    one_row[(B * S * H,)](x, cos, sin, out, S, Dr // 2, BLOCK_P=triton.next_power_of_2(Dr // 2))
    return out
""",
            ),
        ),
        expect={
            **says("predict_norm_bytes", "upside down"),
            **not_right("scale_add", "no store wrote", 1),
            **not_right("rms_norm", "eps is added to the root", 3),
            **not_right("apply_rope", "of its number modulo S", 1),
        },
    ),
    Submission(
        "olga",
        "packs the rows, forgets the modulus",
        patches=(
            replace("rms_norm", "x_ptr + row * W + offs_d", "x_ptr + row * D + offs_d"),
            replace("apply_rope", "(token % S) * P", "token * P"),
        ),
        expect={
            **not_right("rms_norm", "rows are read D elements apart", 3),
            **not_right("apply_rope", "of cos_ptr"),
        },
    ),
    Submission(
        "pete",
        "divides by the distance of the rows",
        patches=(replace("rms_norm", "tl.sum(x * x) / D", "tl.sum(x * x) / W"),),
        expect=not_right("rms_norm", "divided by W, the distance of the rows", 3),
    ),
    Submission(
        "paul",
        "takes the mean over the whole wide row",
        patches=(
            replace(
                "rms_norm",
                RSTD,
                "    wide = tl.load(x_ptr + row * W + offs_d, mask=offs_d < W, other=0.0).to(tl.float32)\n"
                "    rstd = tl.rsqrt(tl.sum(wide * wide) / W + eps)\n",
            ),
            replace("rms_norm", "triton.next_power_of_2(D)", "triton.next_power_of_2(W)"),
        ),
        expect=not_right("rms_norm", "the mean runs over all W columns", 3),
    ),
    Submission(
        "rosa",
        "squares in float16",
        patches=(
            replace(
                "rms_norm", "other=0.0).to(tl.float32)  # [BLOCK_D]\n    weight", "other=0.0)  # [BLOCK_D]\n    weight"
            ),
            replace("rms_norm", "tl.sum(x * x)", "tl.sum((x * x).to(tl.float32))"),
        ),
        expect=not_right("rms_norm", "overflow float16", 3),
    ),
    Submission(
        "sven",
        "saves bytes by rounding to float16 first",
        patches=(replace("rms_norm", "(x, weight, out,", "(x.half(), weight.half(), out,"),),
        expect=not_right("rms_norm", "rounded to float16", 1),
    ),
    # Not from a kernel
    Submission(
        "theo",
        "lets all programs write to one block, and keep their sums in one place",
        patches=(
            replace(
                "scale_add",
                "tl.store(out_ptr + offsets, alpha * x + y, mask=mask)",
                "tl.store(out_ptr + tl.arange(0, BLOCK_SIZE), alpha * x + y, mask=mask)",
            ),
            replace("rms_norm", "weight_ptr, out_ptr, W", "weight_ptr, out_ptr, total_ptr, W"),
            replace(
                "rms_norm",
                RSTD,
                "    tl.store(total_ptr, tl.sum(x * x))\n    rstd = tl.rsqrt(tl.load(total_ptr) / D + eps)\n",
            ),
            replace("rms_norm", "(x, weight, out, W", "(x, weight, out, torch.empty(1, device=x.device), W"),
        ),
        expect={
            **not_right("scale_add", "nothing says which comes first"),
            **not_right("rms_norm", "nothing says which comes first"),
        },
    ),
    Submission(
        "tara",
        "calls PyTorch",
        patches=(
            replace(
                "rms_norm",
                NORM_LAUNCH + "    return out",
                "    return torch.nn.functional.rms_norm(x[:, :D], (D,), weight, eps)",
            ),
        ),
        expect=not_right("rms_norm", "no Triton kernel was launched"),
    ),
    Submission(
        "uma",
        "a decoy: launches the kernel and returns what PyTorch computed",
        patches=(
            replace(
                "rms_norm",
                "    return out",
                "    y = x[:, :D].float()\n"
                "    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight\n"
                "    return y.to(x.dtype)",
            ),
        ),
        expect=not_right("rms_norm", "kernel"),
    ),
    Submission(
        "vera",
        "falls back to PyTorch when the kernel fails, and it does",
        patches=(
            replace(
                "rms_norm",
                NORM_LAUNCH + "    return out",
                "    try:\n"
                "        rms_norm_kernel[(N,)](x, weight, out, W, D, eps, BLOCK_D=D + 1, num_warps=warps)\n"
                "    except Exception:\n"
                "        y = x[:, :D].double()\n"
                "        out = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)\n"
                "    return out",
            ),
        ),
        expect=not_right("rms_norm", "must be a power of 2", outcome=Outcome.ERROR),
    ),
    Submission(
        "walt",
        "calls torch inside the kernel",
        patches=(
            replace(
                "rms_norm", RSTD, "    one = float(torch.ones(1))\n    rstd = one / tl.sqrt(tl.sum(x * x) / D + eps)\n"
            ),
        ),
        expect=not_right("rms_norm", "torch's functions take no blocks"),
    ),
    Submission(
        "xena",
        "keeps results by shape",
        patches=(
            replace("rms_norm", NORM_HEAD, "seen = {}\n\n\n" + NORM_HEAD),
            replace(
                "rms_norm",
                "    out = torch.empty(",
                "    if x.shape in seen:\n        return seen[x.shape]\n    out = torch.empty(",
            ),
            replace("rms_norm", "    return out", "    seen[x.shape] = out\n    return out"),
        ),
        expect=not_right("rms_norm", "one that an earlier call returned"),
    ),
    Submission(
        "yuri",
        "writes the result over its input",
        patches=(
            replace("rms_norm", "    out = torch.empty((N, D), dtype=x.dtype, device=x.device)\n", "    out = x\n"),
            replace("rms_norm", "tl.store(out_ptr + row * D", "tl.store(out_ptr + row * W"),
            replace("rms_norm", "    return out", "    return out[:, :D]"),
        ),
        expect=not_right("rms_norm", "changed its argument x"),
    ),
    Submission(
        "zita",
        "lets PyTorch compute and a kernel copy",
        patches=(
            rewrite(
                "rms_norm",
                """
@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


def rms_norm(x, weight, eps=1e-6):
    y = x[:, : len(weight)].float()
    y = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype).contiguous()
    out = torch.empty_like(y)
    copy_kernel[(triton.cdiv(y.numel(), 1024),)](y, out, y.numel(), BLOCK=1024)
    return out
""",
            ),
        ),
        expect=not_right("rms_norm", "copy_kernel takes as x_ptr what torch computes from data"),
    ),
    # Right and slow
    Submission(
        "bela",
        "blocks of 32; two launches with the sums in memory between; loads of every other number; a launch for the key",
        patches=(
            replace("scale_add", "n, block = x.numel(), 1024", "n, block = x.numel(), 32"),
            replace("scale_add", "num_warps=4", "num_warps=1"),
            rewrite(
                "rms_norm",
                """
@triton.jit
def square_sum(x_ptr, total_ptr, W, D, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, D, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * W + cols, mask=cols < D, other=0.0).to(tl.float32)
        total += x * x
    tl.store(total_ptr + row, tl.sum(total))


@triton.jit
def scale_rows(x_ptr, total_ptr, weight_ptr, out_ptr, W, D, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * W + cols, mask=cols < D, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=cols < D, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.load(total_ptr + row) / D + eps)
    tl.store(out_ptr + row * D + cols, x * rstd * weight, mask=cols < D)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, len(weight)
    total = torch.empty(N, device=x.device)
    out = torch.empty(N, D, dtype=x.dtype, device=x.device)
    square_sum[(N,)](x, total, W, D, BLOCK=1024)
    scale_rows[(N, triton.cdiv(D, 1024))](x, total, weight, out, W, D, eps, BLOCK=1024)
    return out
""",
            ),
            replace("apply_rope", PAIRS, EVERY_OTHER),
            replace(
                "rope_query_key",
                "    if tl.program_id(1) == 0:\n" + KEY,
                "",
            ),
            replace(
                "rope_query_key",
                "def rope_query_key(q_rope",
                "@triton.jit\n"
                "def key_kernel(k_ptr, cos_ptr, sin_ptr, k_out_ptr, S, P, BLOCK_P: tl.constexpr):\n"
                "    token = tl.program_id(0)\n"
                "    offs_p, offs_d = tl.arange(0, BLOCK_P), tl.arange(0, 2 * BLOCK_P)[None, :]\n"
                "    cos = tl.load(cos_ptr + token % S * P + offs_p, mask=offs_p < P, other=0.0)\n"
                "    sin = tl.load(sin_ptr + token % S * P + offs_p, mask=offs_p < P, other=0.0)\n"
                "    turn_block(k_ptr, k_out_ptr, token * 2 * P + offs_d, offs_d < 2 * P, cos, sin, 1, BLOCK_P)\n\n\n"
                "def rope_query_key(q_rope",
            ),
            replace(
                "rope_query_key",
                "    return q_out, k_out",
                "    key_kernel[(B * S,)](k_rope, cos, sin, k_out, S, Dr // 2, BLOCK_P=block_p)\n"
                "    return q_out, k_out",
            ),
        ),
        expect={
            **slow("scale_add"),
            **slow("rms_norm", 1.5),
            **slow("apply_rope"),
            **not_right("rope_query_key", "2 launches, expected 1"),
        },
    ),
    Submission(
        "cleo",
        "converts on the host; one row at a time for the rotation",
        patches=(
            replace(
                "scale_add",
                "    out = torch.empty_like(x)",
                "    out = torch.empty_like(x)\n    x, y = x.float(), y.float()",
            ),
            replace("rms_norm", "(x, weight, out,", "(x.float(), weight.float(), out,"),
            replace("apply_rope", "min(triton.next_power_of_2(H), 32)", "1"),
        ),
        expect={**slow("scale_add"), **slow("rms_norm"), **slow("apply_rope")},
    ),
    Submission(
        "dora",
        "neighbouring numbers in programs far apart; a row in steps of 32 numbers, twice",
        patches=(
            replace(
                "scale_add",
                "offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)",
                "offsets = tl.program_id(0) + tl.arange(0, BLOCK_SIZE) * tl.num_programs(0)",
            ),
            rewrite(
                "rms_norm",
                """
@triton.jit
def small_steps(x_ptr, weight_ptr, out_ptr, W, D, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, D, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * W + cols, mask=cols < D, other=0.0).to(tl.float32)
        total += x * x
    rstd = tl.rsqrt(tl.sum(total) / D + eps)
    for start in range(0, D, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * W + cols, mask=cols < D, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + cols, mask=cols < D, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * D + cols, x * rstd * weight, mask=cols < D)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, len(weight)
    out = torch.empty(N, D, dtype=x.dtype, device=x.device)
    small_steps[(N,)](x, weight, out, W, D, eps, BLOCK=32, num_warps=1)
    return out
""",
            ),
        ),
        expect={**slow("scale_add"), **slow("rms_norm")},
    ),
    Submission(
        "emil",
        "more than the registers hold: huge blocks, eight rows of 8192 on four warps",
        patches=(
            replace("scale_add", "n, block = x.numel(), 1024", "n, block = x.numel(), 131072"),
            rewrite(
                "rms_norm",
                """
@triton.jit
def eight_rows(x_ptr, weight_ptr, out_ptr, N, W, D, eps, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * 8 + tl.arange(0, 8)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (rows < N) & (cols < D)
    x = tl.load(x_ptr + rows * W + cols, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=cols < D, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
    tl.store(out_ptr + rows * D + cols, x * rstd * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, len(weight)
    out = torch.empty(N, D, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(D)
    eight_rows[(triton.cdiv(N, 8),)](x, weight, out, N, W, D, eps, BLOCK=block, num_warps=4)
    return out
""",
            ),
        ),
        expect={**slow("scale_add"), **slow("rms_norm")},
    ),
    *(
        slip(student, about, exercise, {old: new}, words, score, not_right)
        for student, about, exercise, old, new, words, score in (
            (
                "knut",
                "joins b and a",
                "apply_rope",
                "tl.join(a * cos - b * sin, a * sin + b * cos)",
                "tl.join(a * sin + b * cos, a * cos - b * sin)",
                "the two numbers of each pair come out exchanged",
                0,
            ),
            (
                "lars",
                "tables read beside their rows",
                "apply_rope",
                "(token % S) * P + offs_p",
                "token % S + offs_p",
                "reads element s + p of cos and sin",
                1,
            ),
            (
                "lotte",
                "ones beyond the row",
                "rms_norm",
                "+ row * W + offs_d, mask=mask, other=0.0",
                "+ row * W + offs_d, mask=mask, other=1.0",
                "places beyond the row are loaded as 1",
                1,
            ),
            (
                "malte",
                "another default",
                "rms_norm",
                "eps=1e-6",
                "eps=1e-5",
                "without eps in the call it is 1e-05",
                3,
            ),
        )
    ),
    *(
        slip(student, about, "predict_norm_bytes", {old: new}, words)
        for student, about, old, new, words in (
            (
                "nora",
                "reads of eager alone",
                "(itemsize + 4) + (4 + 4) + 4 + (4 + 4) + (4 + 4) + (4 + itemsize)",
                "itemsize + 4 + 4 + 4 + 4 + 4",
                "eager_bytes counts reads alone",
            ),
            ("olaf", "no last pass", " + (4 + itemsize)\n", "\n", "eager_bytes lacks the last operation"),
            (
                "otto",
                "a product in 16 bits",
                "(4 + 4) + (4 + itemsize)",
                "(4 + itemsize) + (4 + itemsize)",
                "the product with the weight write itemsize",
            ),
            (
                "ove",
                "a product in 16 bits that is read as such",
                "(4 + 4) + (4 + itemsize)",
                "(4 + itemsize) + (itemsize + itemsize)",
                "the product with the weight write itemsize",
            ),
        )
    ),
    *(
        slip(student, about, exercise, changes, words, 0, not_right)
        for student, about, exercise, changes, words in (
            (
                "pia",
                "one sum of two rows",
                "rms_norm",
                {
                    "W, D, eps, BLOCK_D: tl": "N, W, D, eps, BLOCK_D: tl",
                    "row = tl.program_id(0).to(tl.int64)": "row = tl.program_id(0) * 2 + tl.arange(0, 2)[:, None]",
                    "offs_d = tl.arange(0, BLOCK_D)": "offs_d = tl.arange(0, BLOCK_D)[None, :]",
                    "mask = offs_d < D": "mask = (row < N) & (offs_d < D)",
                    "weight_ptr + offs_d, mask=mask": "weight_ptr + offs_d, mask=offs_d < D",
                    "[(N,)](x, weight, out, W,": "[(triton.cdiv(N, 2),)](x, weight, out, N, W,",
                },
                "tl.sum adds up all rows of the block",
            ),
            (
                "quin",
                "weights by row",
                "rms_norm",
                {"weight_ptr + offs_d, mask=mask, other=0.0": "weight_ptr + row"},
                "row r is multiplied by weight r",
            ),
            (
                "rena",
                "cos and sin of the query exchanged",
                "rope_query_key",
                {"2 * P), cos, sin, BLOCK_H": "2 * P), sin, cos, BLOCK_H"},
                "q_rope alone is not right: cos and sin are exchanged",
            ),
            (
                "sami",
                "turns the key backwards",
                "rope_query_key",
                {"cos, sin, 1, BLOCK_P": "cos, -sin, 1, BLOCK_P"},
                "k_rope alone is not right: the pairs turn backwards",
            ),
        )
    ),
    slip(
        "odd",
        "16 bits between float() and to()",
        "predict_norm_bytes",
        {"+ (4 + 4) + 4 + (4 + 4) + (4 + 4) +": "+ 7 * itemsize +"},
        "every pass but those of float() and to() at itemsize",
    ),
    slip(
        "nele",
        "takes the width of a slice for the distance of its rows",
        "rms_norm",
        {"(N, W), D = x.shape, weight.numel()": "x = x[:, : len(weight)]\n    (N, W), D = x.shape, weight.numel()"},
        "in a slice of it, x[:, :D], as far, x.stride(0)",
        3,
        not_right,
    ),
)
DEMO = ("ada", "eli", "bela")
