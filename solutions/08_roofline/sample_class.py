"""The sample class of lesson 08."""

from autograder.course.sample import Expected, Submission, add_cell, replace, rewrite, slip, unfinished
from autograder.judging.verdict import Outcome

MACS = '"absorb_macs": pairs * H * (R + Dr + R)'
WORDS = '"absorb_words": stored * (R + Dr)'
NAIVE_WORDS = '"naive_words": stored * H * (Dn + Dr + Dv)'
CROSSING = '"crossover": low + (high - low) * behind / (behind + ahead)'
TOKENS = "B * S / seconds"
OWN = "own, own_seconds = fastest(T - L, 0)"


def macs(naive: str, absorb: str):
    """Replace what both forms take per pair."""
    return (
        replace("prefix_costs", '"naive_macs": pairs * H * (Dn + Dr + Dv)', f'"naive_macs": {naive}'),
        replace("prefix_costs", MACS, f'"absorb_macs": {absorb}'),
    )


def words(naive: str, absorb: str):
    """Replace what both forms read."""
    return (
        replace("prefix_costs", '"naive_words": stored * H * (Dn + Dr + Dv)', f'"naive_words": {naive}'),
        replace("prefix_costs", WORDS, f'"absorb_words": {absorb}'),
    )


SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "another style: tables, the printed equation with its units put right, loops",
        patches=(
            rewrite(
                "prefix_costs",
                """
def prefix_costs(B, S, T, L, H, Dn, Dr, Dv, R):
    wide, latent = H * (Dn + Dr) + H * Dv, R + Dr
    own = T - L
    return dict(
        naive_macs=B * S * L * wide + B * S * own * wide,
        absorb_macs=B * S * L * H * (2 * R + Dr) + B * S * own * H * (2 * R + Dr),
        naive_words=float(L * wide + B * own * wide),
        absorb_words=L * latent + B * own * latent,
    )
""",
            ),
            rewrite(
                "break_even",
                """
def break_even(S, H, Dn, Dr, Dv, R, itemsize, rate, bandwidth):
    ridge = rate / bandwidth
    return (Dn + Dr + Dv) / (S * (2 * R + Dr)) * ridge * itemsize / 2
""",
            ),
            rewrite(
                "predict_crossovers",
                """
def predict_crossovers():
    return {"ascend": 61, "h100_data_sheet": 87, "h100_measured": 72}
""",
            ),
            rewrite(
                "step_time",
                """
def step_time(form, B, S, T, L, sizes, itemsize, rate, bandwidth):
    costs = prefix_costs(B, S, T, L, **sizes)
    times = {
        "memory": costs[form + "_words"] * itemsize / bandwidth,
        "compute": costs[form + "_macs"] * 2 / rate,
    }
    bound = max(times, key=times.get)
    return dict(seconds=times[bound], bound=bound, tokens_per_s=B * S / times[bound])
""",
            ),
            rewrite(
                "choose_forms",
                """
def choose_forms(B, S, T, L, sizes, itemsize, rate, bandwidth):
    choice, total = {}, 0.0
    for part, tokens, prefix in (("shared", L, L), ("own", T - L, 0)):
        choice[part] = "absorb"
        if tokens:
            naive = step_time("naive", B, S, tokens, prefix, sizes, itemsize, rate, bandwidth)["seconds"]
            absorb = step_time("absorb", B, S, tokens, prefix, sizes, itemsize, rate, bandwidth)["seconds"]
            if naive < absorb:
                choice[part] = "naive"
            total += min(naive, absorb)
    choice["seconds"] = total
    return choice
""",
            ),
            rewrite(
                "read_measurements",
                """
def read_measurements(rows, S, L, sizes, itemsize):
    H, R, Dr = sizes["H"], sizes["R"], sizes["Dr"]
    batch, naive, absorb = zip(*rows)
    lead = [n - a for n, a in zip(naive, absorb)]
    i = max(k for k, x in enumerate(lead) if x >= 0)
    slope = (lead[i + 1] - lead[i]) / (batch[i + 1] - batch[i])
    read = L * H * (sizes["Dn"] + Dr + sizes["Dv"]) * itemsize
    flops = 2 * batch[-1] * S * L * H * (2 * R + Dr)
    return {
        "crossover": batch[i] - lead[i] / slope,
        "naive_gb_per_s": read / naive[0] / 1e3,
        "absorb_tflop_per_s": flops / absorb[-1] / 1e6,
    }
""",
            ),
        ),
    ),
    Submission(
        "chloe",
        "a helper in a cell of her own",
        patches=(
            add_cell(
                "step_time",
                "def seconds_of(flops, nbytes, rate, bandwidth):\n    return flops / rate, nbytes / bandwidth",
            ),
            replace(
                "step_time",
                """    memory = itemsize * costs[f"{form}_words"] / bandwidth
    compute = 2 * costs[f"{form}_macs"] / rate
""",
                """    flops, nbytes = 2 * costs[f"{form}_macs"], itemsize * costs[f"{form}_words"]
    compute, memory = seconds_of(flops, nbytes, rate, bandwidth)
""",
            ),
        ),
    ),
    Submission(
        "dev",
        "warns and prints",
        patches=(
            replace(
                "prefix_costs",
                "    pairs = B * S * T",
                '    import warnings\n    warnings.warn("careful")\n    pairs = B * S * T\n    print(pairs)',
            ),
            replace("choose_forms", "    own, own_seconds", '    print("shared:", shared)\n    own, own_seconds'),
        ),
    ),
    Submission(
        "eli",
        "FLOPs and MACs mixed up, the sparse rate, the prefix decides for both parts, the row where naive wins",
        patches=(
            *macs("2 * pairs * H * (Dn + Dr + Dv)", "2 * pairs * H * (R + Dr + R)"),
            replace("break_even", "2 * S * (2 * R + Dr)", "S * (2 * R + Dr)"),
            replace("predict_crossovers", "1979e12 / 2", "1979e12"),
            replace("step_time", "2 * costs", "costs"),
            replace(
                "choose_forms",
                OWN,
                "own = shared\n    own_seconds = 0.0\n    if T > L:\n"
                '        own_seconds = step_time(own, B, S, T - L, 0, sizes, itemsize, rate, bandwidth)["seconds"]',
            ),
            replace("read_measurements", CROSSING, '"crossover": high'),
        ),
        expect={
            "prefix_costs": Expected(0, says="these are FLOPs"),
            "break_even": Expected(0, says="one MAC is two FLOPs"),
            "predict_crossovers": Expected(0, says="structured sparsity"),
            "step_time": Expected(1, Outcome.PARTIAL, "half as long"),
            "choose_forms": Expected(1, Outcome.PARTIAL, "the form that suits the shared one"),
            "read_measurements": Expected(0, says="the first batch of the table"),
        },
    ),
    Submission(
        "fay",
        "bytes and words mixed up, columns of the table swapped, chooses by B alone, the row where absorb still wins",
        patches=(
            *words("2 * stored * H * (Dn + Dr + Dv)", "2 * stored * (R + Dr)"),
            replace("break_even", "itemsize * (Dn + Dr + Dv)", "(Dn + Dr + Dv)"),
            replace("predict_crossovers", "rate=1979e12 / 2, bandwidth=3.35e12", "rate=744e12, bandwidth=3.019e12 "),
            replace("predict_crossovers", "rate=744e12, bandwidth=3.019e12)", "rate=1979e12 / 2, bandwidth=3.35e12)"),
            replace("step_time", "itemsize * costs", "costs"),
            rewrite(
                "choose_forms",
                """
def choose_forms(B, S, T, L, sizes, itemsize, rate, bandwidth):
    widths = sizes["Dn"] + sizes["Dr"] + sizes["Dv"]
    threshold = itemsize * widths / (2 * (2 * sizes["R"] + sizes["Dr"])) * rate / bandwidth
    rest = sizes, itemsize, rate, bandwidth
    shared = "naive" if L and B > threshold else "absorb"
    seconds = step_time(shared, B, S, L, L, *rest)["seconds"] if L else 0.0
    if T > L:
        seconds += step_time("absorb", B, S, T - L, 0, *rest)["seconds"]
    return {"shared": shared, "own": "absorb", "seconds": seconds}
""",
            ),
            replace("read_measurements", CROSSING, '"crossover": low'),
        ),
        expect={
            "prefix_costs": Expected(0, says="these are bytes"),
            "break_even": Expected(0, says="multiply by itemsize"),
            "predict_crossovers": Expected(0, says="are swapped"),
            "step_time": Expected(2, Outcome.PARTIAL, "the bytes are words"),
            "choose_forms": Expected(2, Outcome.PARTIAL, "B alone"),
            "read_measurements": Expected(0, says="the last batch of the table"),
        },
    ),
    Submission(
        "gus",
        "a prefix for every sequence, the equation as printed, the data sheet twice, fewest MACs, half way",
        patches=(
            replace("prefix_costs", "stored = L + B * (T - L)", "stored = B * T"),
            rewrite(
                "break_even",
                """
def break_even(S, H, Dn, Dr, Dv, R, itemsize, rate, bandwidth):
    return (Dn + Dr + Dv) / (S * (2 * R + Dr)) * rate / bandwidth
""",
            ),
            replace("predict_crossovers", "rate=744e12, bandwidth=3.019e12", "rate=989e12, bandwidth=3.35e12"),
            replace("step_time", "max(memory, compute)", "memory + compute"),
            replace("choose_forms", "form = min(times, key=times.get)", 'form = "naive"  # 3.4 times fewer MACs'),
            replace("read_measurements", CROSSING, '"crossover": (low + high) / 2'),
        ),
        expect={
            "prefix_costs": Expected(1, Outcome.PARTIAL, "stored once, and read once"),
            "break_even": Expected(2, Outcome.PARTIAL, "words of two bytes only"),
            "predict_crossovers": Expected(0, says="is the data sheet's figure"),
            "step_time": Expected(0, says="seconds adds the two times"),
            "choose_forms": Expected(1, Outcome.PARTIAL, "fewer MACs"),
            "read_measurements": Expected(0, says="half way between"),
        },
    ),
    Submission(
        "lena",
        "one context for all, no S, ceilings from two columns, fewest words, powers of two",
        patches=(
            replace("prefix_costs", "stored = L + B * (T - L)", "stored = T"),
            replace("break_even", "2 * S * (2 * R + Dr)", "2 * (2 * R + Dr)"),
            replace("predict_crossovers", "bandwidth=3.019e12", "bandwidth=3.35e12"),
            replace("step_time", "max(memory, compute)", "min(memory, compute)"),
            replace("choose_forms", "form = min(times, key=times.get)", 'form = "absorb"  # 71 times fewer words'),
            replace("read_measurements", "/ 1e9", "/ 2**30"),
            replace("read_measurements", "/ 1e12", "/ 2**40"),
        ),
        expect={
            "prefix_costs": Expected(0, says="one context for the whole batch"),
            "break_even": Expected(1, Outcome.PARTIAL, "the batch times S"),
            "predict_crossovers": Expected(0, says="with the data sheet's bandwidth"),
            "step_time": Expected(0, says="the shorter of the two times"),
            "choose_forms": Expected(0, says="fewer words"),
            "read_measurements": Expected(0, says="GiB/s and 2^40 FLOP/s"),
        },
    ),
    Submission(
        "mona",
        "the prefix computed once, a key of 576, the other mixture of columns, own tokens always latent, GiB",
        patches=(
            replace("prefix_costs", "pairs = B * S * T", "pairs = S * (L + B * (T - L))"),
            replace("break_even", "(2 * R + Dr)", "(R + Dr)"),
            replace("predict_crossovers", "rate=744e12", "rate=989e12"),
            replace("step_time", "memory >= compute", "memory <= compute"),
            replace(
                "choose_forms",
                OWN,
                'own, own_seconds = "absorb", 0.0\n    if T > L:\n'
                '        own_seconds = step_time(own, B, S, T - L, 0, sizes, itemsize, rate, bandwidth)["seconds"]',
            ),
            replace("read_measurements", "/ 1e9", "/ 2**30"),
        ),
        expect={
            "prefix_costs": Expected(1, Outcome.PARTIAL, "lack the batch"),
            "break_even": Expected(0, says="counts the key alone"),
            "predict_crossovers": Expected(0, says="with the data sheet's rate"),
            "step_time": Expected(0, says="the wrong way round"),
            "choose_forms": Expected(3, Outcome.PARTIAL, "absorb whatever S is"),
            "read_measurements": Expected(0, says="in GiB/s: a GB"),
        },
    ),
    Submission(
        "nora",
        "T tokens beside the prefix, no RoPE part, a copy counted one way, times in milliseconds",
        patches=(
            replace("prefix_costs", "pairs = B * S * T", "pairs = B * S * (L + T)"),
            replace("prefix_costs", "stored = L + B * (T - L)", "stored = L + B * T"),
            replace("break_even", "(Dn + Dr + Dv)", "(Dn + Dv)"),
            replace("break_even", "(2 * R + Dr)", "(2 * R)"),
            replace("predict_crossovers", "bandwidth=3.019e12", "bandwidth=3.019e12 / 2"),
            replace("step_time", "B * S / seconds", "B / seconds"),
            replace("choose_forms", "fastest(T - L, 0)", "fastest(T, 0)"),
            replace("read_measurements", "naive_us * 1e-6", "naive_us * 1e-3"),
            replace("read_measurements", "absorb_us * 1e-6", "absorb_us * 1e-3"),
        ),
        expect={
            "prefix_costs": Expected(1, Outcome.PARTIAL, "T includes the prefix"),
            "break_even": Expected(0, says="the RoPE part is missing"),
            "predict_crossovers": Expected(0, says="halves the bandwidth"),
            "step_time": Expected(0, says="lacks S"),
            "choose_forms": Expected(0, says="timed over T tokens"),
            "read_measurements": Expected(0, says="factor of 1000"),
        },
    ),
    Submission(
        "omar",
        "one query token, heads on one side, bandwidths in powers of two, parts side by side",
        patches=(
            replace("prefix_costs", "pairs = B * S * T", "pairs = B * T"),
            replace("break_even", "itemsize * (Dn", "itemsize * H * (Dn"),
            replace("predict_crossovers", "bandwidth=1.8e12", "bandwidth=1.8 * 2**40"),
            replace("predict_crossovers", "bandwidth=3.35e12", "bandwidth=3.35 * 2**40"),
            replace("predict_crossovers", "bandwidth=3.019e12", "bandwidth=3.019 * 2**40"),
            replace("step_time", "B * S / seconds", "S / seconds"),
            replace("choose_forms", "shared_seconds + own_seconds", "max(shared_seconds, own_seconds)"),
            replace("read_measurements", "computed = 2 * prefix_costs", "computed = prefix_costs"),
        ),
        expect={
            "prefix_costs": Expected(3, Outcome.PARTIAL, "the MACs lack S"),
            "break_even": Expected(0, says="H times too many"),
            "predict_crossovers": Expected(0, says="2^40"),
            "step_time": Expected(0, says="lacks the batch"),
            "choose_forms": Expected(1, Outcome.PARTIAL, "their times add"),
            "read_measurements": Expected(0, says="counts MACs"),
        },
    ),
    Submission(
        "pia",
        "words for every query, the wrong two pipes, rates in MACs, an empty part that is naive",
        patches=(
            replace("prefix_costs", "stored = L + B * (T - L)", "stored = S * (L + B * (T - L))"),
            replace("break_even", "itemsize * (Dn + Dr + Dv)", "itemsize * (2 * R + Dr)"),
            replace("break_even", "2 * S * (2 * R + Dr)", "2 * S * (Dn + Dr + Dv)"),
            rewrite(
                "predict_crossovers",
                """
def predict_crossovers():
    share = (128 + 64 + 128) / (2 * 512 + 64)
    ridges = {"ascend": 376 / 1.8, "h100_data_sheet": 989 / 3.35, "h100_measured": 744 / 3.019}
    return {name: 2 * share * ridge for name, ridge in ridges.items()}
""",
            ),
            replace("step_time", "B * S / seconds", "B * T / seconds"),
            replace("choose_forms", 'return "absorb", 0.0', 'return "naive", 0.0'),
            replace("read_measurements", "read = itemsize * ", "read = "),
        ),
        expect={
            "prefix_costs": Expected(3, Outcome.PARTIAL, "for all of them"),
            "break_even": Expected(0, says="absorb's width with naive's arithmetic"),
            "predict_crossovers": Expected(0, says="twice as large"),
            "step_time": Expected(0, says="context tokens"),
            "choose_forms": Expected(3, Outcome.PARTIAL, "nothing is expanded"),
            "read_measurements": Expected(0, says="counts words"),
        },
    ),
    Submission(
        "quin",
        "a key of 576 in absorb's MACs, naive's own ridge, a prefix per sequence in the bandwidth",
        patches=(
            *macs("pairs * H * (Dn + Dr + Dv)", "pairs * H * (R + Dr)"),
            replace("break_even", "2 * S * (2 * R + Dr)", "2 * S * (Dn + Dr + Dv)"),
            replace("read_measurements", "read = itemsize * ", "read = first * itemsize * "),
        ),
        expect={
            "prefix_costs": Expected(0, says="count the key alone"),
            "break_even": Expected(0, says="where naive itself"),
            "read_measurements": Expected(0, says="once per sequence"),
        },
    ),
    Submission(
        "rosa",
        "no weighted sum, absorb's own ridge, one sequence's arithmetic",
        patches=(
            *macs("pairs * H * (Dn + Dr)", "pairs * H * (R + Dr)"),
            replace("break_even", "itemsize * (Dn + Dr + Dv)", "itemsize * (R + Dr)"),
            replace("break_even", "2 * S * (2 * R + Dr)", "2 * S * H * (2 * R + Dr)"),
            replace("read_measurements", "prefix_costs(last, S,", "prefix_costs(1, S,"),
        ),
        expect={
            "prefix_costs": Expected(0, says="only the scores"),
            "break_even": Expected(0, says="where absorb itself"),
            "read_measurements": Expected(0, says="lacks the batch"),
        },
    ),
    Submission(
        "sven",
        "no RoPE part, a quotient upside down, a key of 576 in the rate",
        patches=(
            *macs("pairs * H * (Dn + Dv)", "pairs * H * (R + R)"),
            *words("stored * H * (Dn + Dv)", "stored * R"),
            replace("break_even", "reading / computing", "computing / reading"),
            replace(
                "read_measurements",
                'computed = 2 * prefix_costs(last, S, L, L, **sizes)["absorb_macs"]',
                'computed = 2 * last * S * L * sizes["H"] * (sizes["R"] + sizes["Dr"])',
            ),
        ),
        expect={
            "prefix_costs": Expected(0, says="the RoPE part is missing"),
            "break_even": Expected(0, says="one over the batch"),
            "read_measurements": Expected(0, says="counts the key alone"),
        },
    ),
    Submission(
        "tara",
        "one head's arithmetic, one query token in the rate",
        patches=(
            *macs("pairs * H * (Dn + Dr + Dv)", "pairs * (R + Dr + R)"),
            replace("read_measurements", "prefix_costs(last, S,", "prefix_costs(last, 1,"),
        ),
        expect={
            "prefix_costs": Expected(0, says="for one head"),
            "read_measurements": Expected(2, Outcome.PARTIAL, "lacks S"),
        },
    ),
    Submission(
        "uma",
        "a latent for every head, rates of the wrong rows",
        patches=(
            *words("stored * H * (Dn + Dr + Dv)", "stored * H * (R + Dr)"),
            replace("read_measurements", "first, naive_us, _ = rows[0]", "first, naive_us, _ = rows[-1]"),
            replace("read_measurements", "last, _, absorb_us = rows[-1]", "last, _, absorb_us = rows[0]"),
        ),
        expect={
            "prefix_costs": Expected(0, says="once per head"),
            "read_measurements": Expected(0, says="the wrong rows"),
        },
    ),
    Submission(
        "vera",
        "key and value read apart",
        patches=(*words("stored * H * (Dn + Dr + Dv)", "stored * (R + Dr + R)"),),
        expect={"prefix_costs": Expected(0, says="as key and as value")},
    ),
    Submission(
        "zoe",
        "the rotated key once for all heads, naive where both are equal, words of two bytes",
        patches=(
            *words("stored * (H * (Dn + Dv) + Dr)", "stored * (R + Dr)"),
            replace("choose_forms", '("absorb", "naive")}', '("naive", "absorb")}'),
            replace("read_measurements", "read = itemsize * ", "read = 2 * "),
        ),
        expect={
            "read_measurements": Expected(2, Outcome.PARTIAL, "words of two bytes"),
            "prefix_costs": Expected(0, says="the rotated key once for all heads"),
            "choose_forms": Expected(3, Outcome.PARTIAL, "absorb where both are equal"),
        },
    ),
    slip(
        "xenia",
        "the best bandwidth of the table",
        "read_measurements",
        {"naive_us, _ = rows[0]": "naive_us, _ = min(rows, key=lambda row: row[1])"},
        "naive_gb_per_s is the best of the table",
        1,
    ),
    slip(
        "yves",
        "the best rate of the table",
        "read_measurements",
        {"rows[-1]": "max(rows, key=lambda row: row[0] / row[2])"},
        "absorb_tflop_per_s is the best of the table",
        1,
    ),
    Submission(
        "walt",
        "the prefix in the own part, shares exchanged",
        patches=(
            replace("choose_forms", "fastest(T - L, 0)", "fastest(T, L)"),
            replace("read_measurements", "* behind /", "* ahead /"),
        ),
        expect={
            "choose_forms": Expected(0, says="none of them is shared"),
            "read_measurements": Expected(0, says="difference of times over the sum"),
        },
    ),
    slip(
        "yara",
        "rates upside down",
        "read_measurements",
        {
            "read / (naive_us * 1e-6) / 1e9": "1e9 * (naive_us * 1e-6) / read",
            "computed / (absorb_us * 1e-6) / 1e12": "1e12 * (absorb_us * 1e-6) / computed",
        },
        "times per work",
    ),
    Submission(
        "zack",
        "the bytes of a word in the arithmetic, the break-even for every number of heads",
        patches=(
            replace("step_time", "compute = 2 *", "compute = itemsize *"),
            replace(
                "choose_forms",
                "form = min(times, key=times.get)",
                "point = break_even(S, **sizes, itemsize=itemsize, rate=rate, bandwidth=bandwidth)\n"
                '        form = "naive" if point < (B if prefix else 1) else "absorb"',
            ),
        ),
        expect={
            "step_time": Expected(1, Outcome.PARTIAL, "however many bytes a word has"),
            "choose_forms": Expected(3, Outcome.PARTIAL, "the form follows the break-even"),
        },
    ),
    Submission(
        "kurt",
        "ridges, one form for all, the slower form",
        patches=(
            rewrite(
                "predict_crossovers",
                """
def predict_crossovers():
    return {"ascend": 376 / 1.8, "h100_data_sheet": 989.5 / 3.35, "h100_measured": 744 / 3.019}
""",
            ),
            replace("step_time", 'f"{form}_macs"', '"naive_macs"'),
            replace("step_time", 'f"{form}_words"', '"naive_words"'),
            replace("choose_forms", "min(times, key=times.get)", "max(times, key=times.get)"),
        ),
        expect={
            "predict_crossovers": Expected(0, says="the devices' ridges"),
            "step_time": Expected(0, says="whatever `form` says"),
            "choose_forms": Expected(0, says="the slower form is chosen"),
        },
    ),
    Submission(
        "lars",
        "a batch rounded up",
        patches=(
            replace("break_even", "return reading / computing", "return -(-reading // computing)"),
            replace("choose_forms", '("absorb", "naive")}', '("naive", "absorb")}'),
            replace("choose_forms", "min(times, key=times.get)", "max(times, key=times.get)"),
        ),
        expect={
            "break_even": Expected(0, says="the right one, rounded"),
            "choose_forms": Expected(0, says="the slower form is chosen"),
        },
    ),
    *(
        slip(f"{exercise[:4]}-{n}", says, exercise, edits, says, *score)
        for n, (exercise, edits, says, *score) in enumerate(
            (
                ("step_time", {TOKENS: "1 / seconds"}, "counts steps"),
                ("step_time", {TOKENS: "seconds / (B * S)"}, "the seconds that a token takes"),
                ("step_time", {"(B, S, T, L,": "(B, S, T, 0,"}, "reads the prefix for each sequence"),
                ("step_time", {"(B, S, T, L,": "(B, S, T + L, L,"}, "T includes the L of the prefix"),
                ("step_time", {"itemsize * costs": "2 * costs"}, "a word is counted at 2 bytes"),
                ("step_time", {"compute = 2 *": "compute = 4 *"}, "two FLOPs, not four"),
                ("choose_forms", {OWN: OWN.replace("0", "T - L")}, "as if all sequences shared its tokens"),
                ("choose_forms", {"fastest(L, L)": "fastest(T, L)"}, "timed over all T tokens"),
                ("choose_forms", {"fastest(L, L)": "fastest(L, 0)"}, "as if each sequence had a prefix of its own"),
                ("choose_forms", {"shared_seconds + own_seconds": "shared_seconds"}, "of the shared part alone"),
                (
                    "choose_forms",
                    {
                        "    shared, shared": "    own, whole = fastest(T, L)\n    return {'shared': own, 'own': own, "
                        "'seconds': whole}\n    shared, shared"
                    },
                    "one form is chosen for the whole step",
                ),
                ("read_measurements", {"(behind + ahead)": "(behind - ahead)"}, "divides by the difference of two"),
                (
                    "read_measurements",
                    {"rows[after - 1]": "rows[0]", "rows[after]": "rows[-1]"},
                    "from the first row of the table to the last",
                ),
                ("read_measurements", {"/ 1e12": "/ 2**40"}, "absorb_tflop_per_s is in 2^40 FLOP/s"),
                ("read_measurements", {"costs(last,": "costs(first,"}, "the batch of the first row, and the time"),
                ("read_measurements", {"(absorb_us *": "(rows[0][2] *"}, "the batch of the last row, and the time"),
                ("read_measurements", {"naive_words": "absorb_words"}, "the work of the other form"),
                ("read_measurements", {"first, naive_us, _": "first, _, naive_us"}, "the time of the other form"),
            )
        )
    ),
    *(
        slip(f"more{n}", f"what a mistake makes of {exercise}", exercise, changes, words, score)
        for n, (exercise, changes, score, words) in enumerate(
            (
                ("prefix_costs", {"pairs = B * S * T": "pairs = B * S * (T + S)"}, 0, "are added to T once more"),
                ("prefix_costs", {"B * S * T": "B * S * (T - S)", "- L)": "- L - S)"}, 0, "are taken off T"),
                ("prefix_costs", {"(T - L)": "(T - L - S)"}, 0, "the words lack the S new tokens"),
                ("prefix_costs", {"(T - L)": "(T - L + S)"}, 0, "the words count the S new tokens once more"),
                ("prefix_costs", {"B * S * T": "B * S * (T - L)"}, 1, "belong to its context, too"),
                ("prefix_costs", {"S * T\n": "(S * T - S * (S - 1) // 2)\n"}, 3, "all S · T pairs"),
                ("prefix_costs", {"L + B * (T - L)": "B * (T - L)"}, 1, "own T − L tokens alone"),
                ("prefix_costs", {"L + B * (T - L)": "B * L + T - L"}, 0, "L for each sequence and T − L once"),
                ("prefix_costs", {NAIVE_WORDS: '"naive_words": stored * (R + Dr)'}, 0, "are those of latents"),
                (
                    "prefix_costs",
                    {
                        NAIVE_WORDS: '"naive_words": stored * (R + Dr)',
                        WORDS: '"absorb_words": stored * H * (Dn + Dr + Dv)',
                    },
                    0,
                    "the two forms are exchanged",
                ),
                ("prefix_costs", {MACS: '"absorb_macs": pairs * H * (R + Dr + Dv)'}, 0, "W_UV comes after it"),
                ("prefix_costs", {"pairs * H * (Dn + Dr + Dv)": "pairs * H * 2 * (Dn + Dr)"}, 0, "as wide as a key"),
                ("prefix_costs", {MACS: '"absorb_macs": pairs * H * 2 * (R + Dr)'}, 0, "R + Dr wide: it is the latent"),
                ("prefix_costs", {NAIVE_WORDS: '"naive_words": stored * H * (Dn + Dv)'}, 0, "lack the rotated key"),
                ("break_even", {"2 * S * (2 * R + Dr)": "2 / S * (2 * R + Dr)"}, 1, "S is on the wrong side"),
                ("break_even", {"(2 * R + Dr)": "2 * R"}, 0, "absorb's arithmetic lacks the RoPE part"),
                ("break_even", {"(2 * R + Dr)": "2 * (R + Dr)"}, 0, "absorb's arithmetic counts Dr twice"),
                ("break_even", {"(Dn + Dr + Dv)": "(Dn + Dv)"}, 0, "naive's words lack the RoPE part"),
                ("break_even", {"(Dn + Dr + Dv)": "(Dn + Dv + 2 * Dr)"}, 0, "naive's words count Dr twice"),
                ("break_even", {"+ Dv)": "+ Dv - (R + Dr) / H)"}, 0, "absorb's reading is taken off"),
                ("break_even", {"(2 * R + Dr)": "(2 * R - Dn - Dv)"}, 0, "naive's arithmetic is taken off"),
            )
        )
    ),
    Submission(
        "hana",
        "stops half way",
        patches=(unfinished("step_time"), unfinished("choose_forms"), unfinished("read_measurements")),
        expect={
            "step_time": Expected(0, Outcome.UNFINISHED),
            "choose_forms": Expected(0, Outcome.UNFINISHED),
            "read_measurements": Expected(0, Outcome.UNFINISHED),
        },
    ),
    Submission(
        "ivan",
        "a syntax error in one cell; what builds on it is judged with the right one",
        patches=(replace("step_time", "sizes, itemsize, rate, bandwidth):", "sizes, itemsize, rate, bandwidth:"),),
        expect={"step_time": Expected(0, Outcome.ERROR, "SyntaxError in line 1")},
    ),
)
DEMO = ("ada", "eli")
