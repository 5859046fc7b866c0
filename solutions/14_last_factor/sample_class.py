"""The sample class of lesson 14."""

from autograder.course.sample import Submission, left_out, not_right, replace, slow
from autograder.judging.verdict import Outcome

THERE = "mbarrier.wait(full.index(place), i // STAGES & 1)"
ONE_LEFT = "warpgroup_mma_wait(1, deps=(acc,))"
AHEAD = "i + STAGES - 1"
BLOCKS = "-(-K // 64)"
LAST_WAIT = "acc = warpgroup_mma_wait(0, deps=(acc,))"
SCORES_LEFT = "qk = warpgroup_mma_wait(1, deps=(qk,))"
RESCALED = "acc, weights = acc * alpha[:, None], fresh"
LAST_VALUES = "acc = warpgroup_mma(weights, v.index(last & 1), acc, is_async=True)"
REGISTERS = "[240, 24]"
LOG2_E = "scale * 1.4426950408889634"
FREE = "mbarrier.wait(k_free.index(place), turn ^ 1)"

IN_TURN = """    for i in range(blocks):
        place, turn = i & 1, i >> 1 & 1
        mbarrier.wait(k_full.index(place), turn)
        qk = warpgroup_mma(q.index(HALF), k.index(place).permute((1, 0)), none, use_acc=False, is_async=True)
        qk = warpgroup_mma_wait(0, deps=(qk,))
        mbarrier.arrive(k_free.index(place))
        p, m_i, l_i, alpha = softmax_step(qk, m_i, l_i, scale)
        acc = acc * alpha[:, None]
        weights = gl.convert_layout(p.to(gl.bfloat16), WEIGHTS)
        mbarrier.wait(v_full.index(place), turn)
        acc = warpgroup_mma(weights, v.index(place), acc, is_async=True)
        acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))
        mbarrier.arrive(v_free.index(place))
"""


def in_turn(notebook):
    """Put the loop that does one thing after the other in place of the solution's."""
    cell = next(cell for cell in notebook["cells"] if cell["id"] == "two_warpgroups")
    before, rest = cell["source"].split("    mbarrier.wait(q_full, 0)\n")
    behind = rest[rest.index("    offs_m = row") :]
    cell["source"] = f"{before}    mbarrier.wait(q_full, 0)\n{IN_TURN}{behind}"
    return notebook


def product(student, about, old, new, words, score=0, outcome=Outcome.WRONG):
    """Return a submission with one wrong line in piped_product."""
    return Submission(
        student, about, (replace("piped_product", old, new),), not_right("piped_product", words, score, outcome)
    )


def attention(student, about, old, new, words, score=0, outcome=Outcome.WRONG):
    """Return a submission with one wrong line in two_warpgroups."""
    return Submission(
        student, about, (replace("two_warpgroups", old, new),), not_right("two_warpgroups", words, score, outcome)
    )


NOT_HANDED_IN, NO_POINTS = left_out("piped_product", "two_warpgroups")

SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "another style: a product with two places, attention one product after the other; both right, neither fast",
        patches=(
            replace("piped_product", "STAGES = gl.constexpr(4)", "STAGES = gl.constexpr(2)"),
            replace("piped_product", ONE_LEFT, "warpgroup_mma_wait(0, deps=(acc,))"),
            in_turn,
        ),
        expect={
            **slow("piped_product", 0.75, "a turn of the loop waits for its own product"),
            **slow("two_warpgroups", 1.875, "waits for it before it starts the next"),
        },
    ),
    Submission(
        "chloe",
        "right, with registers shared alike: too few for two products at once; and a product whose acc is too wide",
        patches=(
            replace("two_warpgroups", REGISTERS, "[168, 168]"),
            replace("piped_product", "BLOCK_M = gl.constexpr(64)", "BLOCK_M = gl.constexpr(128)"),
            replace("piped_product", "-(-M // 64), ", "-(-M // 128), "),
            replace("piped_product", "described(a, [64, 64])", "described(a, [128, 64])"),
            replace("piped_product", "described(c, [64, 256])", "described(c, [128, 256])"),
            replace("piped_product", "STAGES = gl.constexpr(4)", "STAGES = gl.constexpr(3)"),
        ),
        expect={
            **slow("two_warpgroups", 0.75, "has 168 registers a thread"),
            **slow("piped_product", 0.75, "a turn of the loop waits for its own product"),
        },
    ),
    product("dev", "no wait for the block", f"        {THERE}\n", "", "nothing has waited for the barrier"),
    product("eli", "a block too few", BLOCKS, f"{BLOCKS} - 1", "the last block of K is left out"),
    product("finn", "whole blocks alone", BLOCKS, "K // 64", "behind the last whole block", 2),
    product(
        "gita",
        "begins at block 1",
        "    for i in range(blocks):",
        "    for i in range(1, blocks):",
        "the program ends while this still writes a",
    ),
    product(
        "hana",
        "a sum begun anew in each turn",
        "acc, is_async=True)",
        "acc, use_acc=False, is_async=True)",
        "of the last block of K alone",
    ),
    Submission(
        "igor",
        "a place filled while its product reads it",
        (
            replace("piped_product", AHEAD, "i + STAGES"),
            replace("piped_product", "gl.minimum(STAGES - 1", "gl.minimum(STAGES"),
        ),
        not_right("piped_product", "warpgroup_mma_wait comes too late", 1),
    ),
    product("jana", "nobody waits for the last product", LAST_WAIT, "", "before a warpgroup_mma_wait"),
    Submission(
        "klaus",
        "the first block left out: blocks are counted from 1",
        (
            replace("piped_product", "[row, BLOCK_K * i]", "[row, BLOCK_K * (i + 1)]"),
            replace("piped_product", "[column, BLOCK_K * i]", "[column, BLOCK_K * (i + 1)]"),
        ),
        not_right("piped_product", "the first block of K is left out"),
    ),
    attention("karl", "not divided by the sum", "(acc / l_i[:, None])", "acc", "not divided by the sum of the weights"),
    attention("lea", "a scale to base e", LOG2_E, "scale", "the scale for exp2 is scale times log2(e)"),
    attention("mika", "the scale to base 2 twice", LOG2_E, f"{LOG2_E}**2", "multiplied by log2(e) twice"),
    attention("nora", "acc not rescaled", RESCALED, "weights = fresh", "acc is not multiplied by alpha", 1),
    attention("omar", "sum not rescaled", "l_i * alpha + gl", "l_i + gl", "l_i is not multiplied by alpha", 1),
    attention(
        "pia", "the last values left out", f"    {LAST_VALUES}\n", "", "the values of the last block are left out"
    ),
    attention("quin", "no wait for a free place", f"        {FREE}\n", "", "a copy by TMA writes k[0] while", 1),
    attention(
        "rosa",
        "the loader waits for the wrong phase",
        FREE,
        FREE.replace(" ^ 1", ""),
        "every partition that has not ended waits",
        outcome=Outcome.TIME,
    ),
    attention(
        "sam",
        "scores read before they are there",
        SCORES_LEFT,
        SCORES_LEFT.replace("1", "2"),
        "before a warpgroup_mma_wait",
        1,
    ),
    Submission("tom", "handed in as it was handed out", NOT_HANDED_IN, NO_POINTS),
)
DEMO = ("ada", "dev", "rosa")
