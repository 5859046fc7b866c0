"""`check` sees what the judge sees: as many blocks of everything, if with other numbers."""

import inspect
import math
import re
from pathlib import Path
from random import Random

import pytest
import torch

from autograder.course.course import Course
from autograder.course.lesson import without_marks
from autograder.isolation.worker import running
from autograder.isolation.worker.trees import tensors_in
from autograder.judging.cases import draw_cases
from autograder.judging.compare import assess
from autograder.judging.exercise import upcast
from autograder.judging.program import Cell, build_program
from autograder.kernels.record import record
from autograder.kernels.workers import KernelWorkers

COURSE = Course.at(Path(__file__).parents[1])
KERNELS = [each for name in COURSE.lesson_names() for each in COURSE.lesson(name).exercises if each.kernel]
BLOCKS = (16, 32, 64, 128)
NO_SIZES = ("first", "beside", "first_page")  # positions, and gaps between rows


def sizes(case):
    """Yield each integer of a case with its name, those in lists too."""
    for name, value in case.items():
        waiting = [value]
        while waiting:
            each = waiting.pop()
            if isinstance(each, list | tuple):
                waiting += each
            elif isinstance(each, int) and not isinstance(each, bool) and name not in NO_SIZES:
                yield name, each


def seen_in(exercise):
    return [case for part in exercise.parts for case in part.visible]


def largest(cases, exercise):
    found = {
        n: p.default for n, p in inspect.signature(exercise.inputs).parameters.items() if isinstance(p.default, int)
    }
    for case in cases:
        for name, size in sizes(case):
            found[name] = max(found.get(name, 0), size)
    return found


@pytest.mark.parametrize("exercise", KERNELS, ids=lambda each: each.name)
def test_a_size_that_goes_beyond_a_block_in_a_hidden_case_does_so_in_a_visible_one(exercise):
    hidden = [case for part in exercise.parts if part.hidden for n in range(10) for case in part.hidden(Random(n))]
    most, seen = largest(hidden, exercise), largest([c for part in exercise.parts for c in part.visible], exercise)
    for block in BLOCKS:
        assert {n for n, size in most.items() if size > block} <= {n for n, size in seen.items() if size > block}


def beyond(cases):
    return {name for case in cases for name, size in sizes(case) if size > 64} - {"B", "room"}


def sequences(case):
    lengths = max((len(each) for each in case.values() if isinstance(each, list | tuple)), default=1)
    return case.get("B", lengths)


@pytest.mark.parametrize("exercise", KERNELS, ids=lambda each: each.name)
def test_a_size_beyond_a_block_is_so_in_a_visible_case_with_several_sequences(exercise):
    """Else a program's sequence and its block may both be taken from one number, the wrong way."""
    hidden = [case for part in exercise.parts if part.hidden for n in range(10) for case in part.hidden(Random(n))]
    seen = [case for part in exercise.parts for case in part.visible]
    if several := [case for case in seen if sequences(case) > 1]:
        assert beyond([*hidden, *seen]) <= beyond(several)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("name", ["latent_decode", "split_decode", "folded_decode", "paged_decode", "rotating_decode"])
def test_blocks_of_heads_and_sequences_have_a_common_divisor(name, hidden):
    """With b = pid % B and block = pid % blocks each pair comes once, but for a common divisor of the two."""
    exercise = COURSE.locate(name)[1]
    cases = [c for p in exercise.parts for c in (((p.hidden and p.hidden(Random(0))) or ()) if hidden else p.visible)]
    for block in (16, 32, 64):
        blocks = [(sequences(case), -(-case["H"] * case.get("S", 1) // block)) for case in cases]
        assert any(math.gcd(*each) > 1 for each in blocks)


def ones(case, exercise):
    """The sizes that are 1: as arguments of a kernel they are constants, which have no `.to`."""
    given = inspect.signature(exercise.inputs).parameters.items()
    found = {name: each.default for name, each in given} | case
    return {n for n, size in found.items() if type(size) is int and size == 1 and n not in (*NO_SIZES, "room")}


@pytest.mark.parametrize("exercise", KERNELS, ids=lambda each: each.name)
def test_sizes_that_are_1_together_in_a_hidden_case_are_so_in_a_visible_one(exercise):
    hidden = [case for part in exercise.parts if part.hidden for n in range(50) for case in part.hidden(Random(n))]
    seen = [ones(case, exercise) for part in exercise.parts for case in part.visible]
    assert [case for case in hidden if not any(ones(case, exercise) <= each for each in seen)] == []


ONE_BY_ONE = ("B", "H", "num_splits", "max_pages")  # sizes that are not cut into tiles, but for B of one token each
TILES = {"masked_softmax": 8, "rms_norm": 64, "apply_rope": 64, "pack_fp8": 64}  # of long rows; 128 of others


@pytest.mark.parametrize("exercise", [each for each in KERNELS if each.speed], ids=lambda each: each.name)
def test_what_is_whole_tiles_at_full_size_is_so_in_the_small_call(exercise):
    """Else a branch for whole tiles, which is run at full size, runs in no call that is compared."""
    speed = exercise.speed
    full, small = largest([speed.case], exercise), largest([{**speed.case, **speed.small}], exercise)
    for tile in (each for each in (8, *BLOCKS) if each <= TILES.get(exercise.name, 128)):
        whole = {name for name, size in full.items() if size % tile == 0} - {*ONE_BY_ONE}
        assert {name for name in whole if small[name] % tile} == set()


DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize("name", [n for n in COURSE.lesson_names() if any(e.kernel for e in COURSE.exercises(n))])
def test_a_dtype_that_the_text_promises_is_in_a_visible_case(name):
    """By the rows of each task's table: "| `x` | [N, W] | float32, float16 or bfloat16 |"."""
    cells = COURSE.lesson(name).notebook.cells
    places = [n for n, cell in enumerate(cells) if cell["id"] in COURSE.lesson(name).solutions]
    told = 0
    for exercise, start, end in zip(COURSE.exercises(name), [0, *places], places, strict=False):
        text = "\n".join(cell.source for cell in cells[start:end] if cell.cell_type == "markdown")
        cases = [case.arguments for case in draw_cases(exercise, "seed", hidden=False)]
        for arguments, said in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|.*\| ([\w, ]*) \|$", text, re.MULTILINE):
            promised = {DTYPES[word] for word in re.findall(r"\w+", said) if word in DTYPES}
            for argument in re.findall(r"\w+", arguments):
                seen = {case[argument].dtype for case in cases if isinstance(case.get(argument), torch.Tensor)}
                if seen and len(promised) > 1:
                    told += 1
                    assert promised <= seen, (exercise.name, argument)
    assert told or name in ("12_decode_challenge", "14_last_factor")  # where all has one dtype


MULTIPROCESSORS = 132  # of an H100
MANY_HEADS = {  # of which no program takes more than one, or what several do together is a count of rows
    "masked_softmax",
    "long_softmax",
    "combine_splits",
    "attention_score",
    "ragged_prefill",
    "two_warpgroups",
}
ONE_AFTER_THE_OTHER = ("piped_product", "two_warpgroups")  # programs in Gluon: hundreds take too long


@pytest.mark.parametrize(
    "exercise", [each for each in KERNELS if each.name not in ONE_AFTER_THE_OTHER], ids=lambda each: each.name
)
def test_a_visible_case_has_more_programs_than_an_h100_has_multiprocessors(exercise, programs):
    """Else who launches as many, with a tile each and no loop over the others, is right."""
    cases = draw_cases(exercise, "seed", hidden=False)
    assert max(programs(exercise, case.arguments) for case in cases) > MULTIPROCESSORS


@pytest.fixture(scope="module")
def programs():
    """Return a function from an exercise and arguments to how many programs its solution launches at most."""
    pytest.importorskip("triton")
    with KernelWorkers(helpers=COURSE.helpers) as workers:

        def launched(exercise, arguments):
            lesson = COURSE.lesson(COURSE.locate(exercise.name)[0])
            own = [Cell(name, source) for name, source in lesson.solutions.items()]
            cell = Cell(exercise.name, lesson.solutions[exercise.name])
            program = build_program(list(lesson.setup), lesson.references(exercise.needs), own, cell)
            return max(math.prod(each["grid"]) for each in record(workers, program, exercise.name, arguments).launches)

        yield launched


@pytest.mark.parametrize("exercise", KERNELS, ids=lambda each: each.name)
def test_a_visible_case_has_more_heads_than_a_block_of_256(exercise):
    heads = [size for case in seen_in(exercise) for name, size in sizes(case) if name == "H"]
    assert not heads or max(heads) > 256 or exercise.name in MANY_HEADS


LSE = {"lse", "partial_lse"}
REAL = ("06_flash_decoding", "07_paged_cache", "09_shared_prefix", "11_prefill_fp8", "12_decode_challenge")
OF_REAL = [each for name in REAL for each in COURSE.lesson(name).exercises]
AS_IN_A_MODEL = [each for each in OF_REAL if each.kernel]
WIDTHS = {"R": 512, "width": 512, "Dn": 128, "Dr": 64, "Dv": 128}
CONTEXTS = ("T", "S", "L", "lens", "lengths", "length")  # which have tokens of context, cached or to be cached
NO_CONTEXT = ("combine_splits", "pack_fp8")
IN_WHOLE_BLOCKS = ("apply_rope", "rope_query_key", "latent_decode", "split_decode", "folded_decode", "paged_decode")


@pytest.mark.parametrize("exercise", AS_IN_A_MODEL, ids=lambda each: each.name)
def test_the_widths_of_a_model_are_in_a_visible_case(exercise):
    """Else who takes 256 columns, or scores of those that a program holds, is right."""
    found = largest(seen_in(exercise), exercise)
    assert all(found[name] >= least for name, least in WIDTHS.items() if name in found)
    assert found.keys() & WIDTHS


@pytest.mark.parametrize("exercise", AS_IN_A_MODEL, ids=lambda each: each.name)
def test_a_context_is_longer_than_a_block_of_2048_in_a_visible_case(exercise):
    """Else who has no loop, and a block in its place, is right."""
    found = largest(seen_in(exercise), exercise)
    assert exercise.name in NO_CONTEXT or max(found.get(name, 0) for name in CONTEXTS) > 2048


def of_each(case):
    """The tokens that a kernel of attention goes through, of each sequence."""
    return case.get("lens") or [each[-1] for each in case.get("lengths", ()) if isinstance(each, tuple)]


@pytest.mark.parametrize("exercise", AS_IN_A_MODEL, ids=lambda each: each.name)
def test_the_first_sequence_is_not_the_longest_in_a_visible_case(exercise):
    """Else who loops up to its length is right; by more than a block of 128."""
    lengths = [found for case in seen_in(exercise) if (found := of_each(case))]
    assert not lengths or any(each[0] < max(each) - 128 for each in lengths)


@pytest.mark.parametrize("exercise", [each for each in OF_REAL if LSE & {*each.returns}], ids=lambda each: each.name)
def test_no_score_is_near_0_in_a_visible_case(exercise):
    """Else who lets the maximum begin at 0, or subtracts none that is lower, is right."""
    cases = [case.arguments for case in draw_cases(exercise, "seed", hidden=False)]
    (place,) = (n for n, name in enumerate(exercise.returns) if name in LSE)
    found = [exercise.oracle(**upcast(arguments))[place] for arguments in cases]
    drawn = inspect.signature(exercise.inputs).parameters
    for depth in (-100, *[-10000] * (exercise.kernel and "level" in drawn)):  # which is often taken for −∞
        assert any(lse.isfinite().any() and lse.max() < depth for lse in found)


@pytest.mark.parametrize("name", ["shared_attention", "naive_step", "absorbed_step", "rotating_decode"])
def test_a_maximum_that_is_no_score_s_leaves_nothing_in_a_visible_case(name):
    exercise = COURSE.locate(name)[1]
    cases = [upcast(case.arguments) for case in draw_cases(exercise, "seed", hidden=False)]
    wrong = [each.oracle for each in exercise.mistakes if each.name == "finite maximum"]
    results = [[oracle(**arguments) for arguments in cases] for oracle in wrong]
    assert wrong and all(any(tensors_in(each)[0].isnan().all() for each in of_one) for of_one in results)


@pytest.mark.parametrize("exercise", AS_IN_A_MODEL, ids=lambda each: each.name)
def test_a_dtype_of_a_hidden_case_is_in_a_visible_one(exercise):
    found = {}
    for hidden in (False, True):
        cases = [case.arguments for seed in "abc" for case in draw_cases(exercise, seed, hidden=hidden)]
        found[hidden] = {(n, x.dtype) for each in cases for n, x in each.items() if isinstance(x, torch.Tensor)}
    assert found[True] <= found[False]


@pytest.mark.parametrize(
    "exercise", [each for each in KERNELS if each.name in IN_WHOLE_BLOCKS], ids=lambda each: each.name
)
def test_heads_fill_several_blocks_in_a_visible_case(exercise):
    """Else what the last block does, or masks, may go by H // BLOCK_H, or by H % BLOCK_H."""
    assert any(case["H"] > 64 and case["H"] % 64 == 0 for case in seen_in(exercise) if "H" in case)


def test_copies_of_what_a_cache_holds_cost_the_same_part_whatever_the_seed():
    """`check` tells of them in sessions of one sequence, which a slice leaves contiguous, and of several."""
    exercise = COURSE.locate("KVCache")[1]

    def too_many(case):
        init, steps = case.arguments["init"], case.arguments["steps"]
        length, copied = 0, 2 * 4 * math.prod(init)
        for _, new in [each for each in steps if each[1]]:
            if length + new[0].shape[1] <= init[1]:
                length += new[0].shape[1]
                copied += 2 * 4 * new[0].numel() + 2 * 4 * length * math.prod(init) // init[1]
        return copied > exercise.most(**case.arguments).bytes

    seen = draw_cases(exercise, "seed", hidden=False)
    assert {case.arguments["init"][0] for case in seen if too_many(case)} == {1, 2}
    for n in range(50):
        assert {case.part for case in draw_cases(exercise, f"seed {n}") if too_many(case)} == {0}


def test_the_most_rows_that_lesson_00_speaks_of_are_nearly_met():
    exercise = COURSE.locate("ridge_rows")[1]
    rows = [exercise.oracle(**case.arguments) for case in draw_cases(exercise, "seed", hidden=False)]
    every = [exercise.oracle(**case.arguments) for n in range(20) for case in draw_cases(exercise, f"seed {n}")]
    assert max(rows) > 1980 and max(every) < 2000


def test_no_case_of_several_sequences_has_as_many_of_them_as_tokens():
    """Else token // S and token // B are one number, and a wrong position has two causes."""
    exercise = COURSE.locate("apply_rope")[1]
    drawn = [case for part in exercise.parts for n in range(50) for case in part.hidden(Random(n))]
    assert all(
        case["B"] != case["S"] or case["B"] == 1 for case in [c for p in exercise.parts for c in p.visible] + drawn
    )


EXERCISES = [each for name in COURSE.lesson_names() for each in COURSE.lesson(name).exercises]
FIXED = {  # by exercise, what has one size in all cases, or one value
    "mla_decode_step": "all but batch, heads and capacity",
    "naive_step": ["x[1]"],  # one new token
    "absorbed_step": ["x[1]"],
    "challenge_step": ["x[1]", "x[2]", "q_down[0]", "q_down[1]", "q_up[1]", "kv_down[1]", "wo[0]"],
    "generate_texts": "the lesson's own model",
    "verify_drafts": "the lesson's own model",
    "two_warpgroups": ["q[2]", "k[2]", "v[2]"],  # heads of 128
}


def values(name, argument):
    """Yield each number of an argument, and each size of its tensors, with a name."""
    if isinstance(argument, torch.Tensor):
        yield from ((f"{name}[{axis}]", size) for axis, size in enumerate(argument.shape))
    elif isinstance(argument, dict):
        for key, each in argument.items():
            yield from values(f"{name}.{key}", each)
    elif isinstance(argument, int | float):
        yield name, argument


def values_of(cases):
    found = {}
    for case in cases:
        for name, value in [each for argument in case.arguments.items() for each in values(*argument)]:
            found.setdefault(name, set()).add(value)
    return found


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda each: each.name)
def test_no_size_and_no_number_is_the_same_in_all_cases(exercise):
    """Else who writes that number in place of the argument is right: 0.25 for the scale, 16 for the RoPE's width."""
    found = values_of(draw_cases(exercise, "seed"))
    once, fixed = [name for name, each in found.items() if len(each) == 1], FIXED.get(exercise.name, [])
    assert once == fixed or (isinstance(fixed, str) and once)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda each: each.name)
def test_what_varies_in_hidden_cases_does_so_in_visible_ones(exercise):
    """Else `check` is green for who writes the one number that it shows."""
    seen = values_of(draw_cases(exercise, "seed", hidden=False))
    everywhere = values_of(case for n in range(3) for case in draw_cases(exercise, f"seed {n}"))
    assert [name for name, each in seen.items() if len(each) == 1 < len(everywhere[name])] == []


def types_of(case):
    found = [pair for argument in case.items() for pair in values(*argument)]
    return {(name, type(value)) for name, value in found if "[" not in name}  # no size of a tensor


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda each: each.name)
def test_a_number_that_is_a_float_in_a_hidden_case_is_so_in_a_visible_one_of_its_part(exercise):
    """And an int likewise: else `check` is green for who divides with // and returns what comes of it."""
    cases = [case for seed in "ab" for case in draw_cases(exercise, seed)]
    for n, part in enumerate(exercise.parts):
        of_part = [case for case in cases if case.part == n]
        hidden = [types_of(case.arguments) for case in of_part if case.params not in part.visible]
        seen = [types_of(case.arguments) for case in of_part if case.params in part.visible]
        assert set().union(*hidden) <= set().union(*seen), part.name


def whole_numbers(result, name=""):
    """Yield each number of a result that is no tensor, with its name."""
    if isinstance(result, dict | list | tuple):
        items = result.items() if isinstance(result, dict) else enumerate(result)
        for key, each in items:
            yield from whole_numbers(each, f"{name}.{key}" if isinstance(result, dict) else name)
    elif isinstance(result, int | float) and not isinstance(result, bool):
        yield name, result


@pytest.mark.parametrize(
    "exercise",
    [each for each in EXERCISES if "prediction" in each.returns or "costs" in each.returns],
    ids=lambda each: each.name,
)
def test_a_number_that_passes_31_bits_in_a_hidden_case_does_so_in_a_visible_one(exercise):
    """Else who counts in int32 is right until it is graded."""
    large = {}
    for hidden in (False, True):
        cases = [case for seed in "abcdef" for case in draw_cases(exercise, seed, hidden=hidden)]
        numbers = [pair for case in cases for pair in whole_numbers(exercise.oracle(**upcast(case.arguments)))]
        large[hidden] = {name for name, number in numbers if abs(number) >= 2**31}
    assert large[True] <= large[False]


SOFTMAX = (
    (r"torch\.softmax\(scores, dim=-1\)", "scores.exp() / scores.exp().sum(-1, keepdim=True)"),
    (r"torch\.logsumexp\(scores, dim=-1\)", "scores.exp().sum(-1).log()"),
    (r"(\w+)\.logsumexp\((-1|0)\)", r"\1.exp().sum(\2).log()"),
    (r"scores\.softmax\(-1\)", "(scores.exp() / scores.exp().sum(-1, keepdim=True))"),
    (
        r"weights = (scores\.masked_fill\(.*\))\.softmax\(-1\)",
        r"weights = \1.exp()\n    weights = weights / weights.sum(-1, keepdim=True)",
    ),
    (r"(\(rows / temperature\))\.softmax\(-1\)", r"(\1.exp() / \1.exp().sum(-1, keepdim=True))"),
)


CALLS = {  # by exercise, the helper with the softmax; a student may write the attention out
    "CachedAttention": "grouped_attention",
    "mla_decode_step": "naive_mla_attention",
    "absorbed_mla_attention": "latent_attention",
}


@pytest.mark.parametrize(
    "name",
    [
        "attention",
        "grouped_attention",
        "CachedAttention",
        "naive_mla_attention",
        "mla_decode_step",
        "latent_attention",
        "absorbed_mla_attention",
        "prefix_decode",
        "tree_decode",
        "chunked_prefill",
        "naive_step",
        "absorbed_step",
        "attend_pages",
        "choose_tokens",
    ],
)
def test_exp_without_the_maximum_is_red_in_a_visible_case(name):
    pytest.importorskip("triton")  # which some lessons' set-up imports
    lesson_name, exercise = COURSE.locate(name)
    lesson = COURSE.lesson(lesson_name)
    cells = {each: without_marks(lesson.solutions[each]) for each in (*exercise.needs, name)}
    attends = CALLS.get(name, name)
    plain = cells[attends]
    for wanted, written in SOFTMAX:
        plain = re.sub(wanted, written, plain)
    assert plain != cells[attends]
    namespace = {"__name__": "notebook"}
    for cell in lesson.setup:
        running.run_cell(cell.name, cell.source, namespace)
    for each, source in (cells | {attends: plain}).items():
        running.run_cell(each, source, namespace)

    def wrong(case):
        result = running.DRIVERS[exercise.driver](namespace[name], running.copied(case.arguments))
        return assess(exercise, case.arguments, result)

    assert any(wrong(case) for case in draw_cases(exercise, "seed", hidden=False))


def test_each_part_on_numbers_shows_what_a_slip_gives_in_its_hidden_cases():
    """A step that doubles, and an itemsize that is always 2."""
    rows, cache = (COURSE.locate(name)[1] for name in ("ridge_rows", "predict_cache_bytes"))
    for part in rows.parts:
        found = [rows.oracle(**case) for case in part.visible]
        assert any(n & (n - 1) for n in found), part.name
    for part in cache.parts:
        assert {case["itemsize"] for case in part.visible} != {2}, part.name
