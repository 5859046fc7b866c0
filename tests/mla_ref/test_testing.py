import math

import pytest
import torch

from mla_ref import PagedCache, paged_latent_attention, testing
from mla_ref.testing import lse_from, lse_to, paged_case

INF = math.inf
SMALL = {"num_heads": 3, "kv_lora_rank": 16, "qk_rope_head_dim": 8}


def by_rows(case):
    """One query and head at a time, token after token, in float64."""
    B, S, H, R = case.q_latent.shape
    page_size = case.c_kv.shape[1]
    out, lse = torch.zeros(B, S, H, R).double(), torch.full((B, S, H), -INF).double()
    for b, length in enumerate(case.seq_lens.tolist()):
        places = [(int(case.block_table[b, t // page_size]), t % page_size) for t in range(length)]
        for s in range(S):
            seen = places[: max(0, length - S + s + 1)] if case.causal else places
            if seen:
                c_kv, k_rope = (torch.stack([x[place] for place in seen]).double() for x in (case.c_kv, case.k_rope))
                q_latent, q_rope = case.q_latent[b, s].double(), case.q_rope[b, s].double()
                scores = case.scale * (q_latent @ c_kv.mT + q_rope @ k_rope.mT)
                out[b, s], lse[b, s] = scores.softmax(-1) @ c_kv, scores.logsumexp(-1)
    return out, lse


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", testing.TOLERANCE)
@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_a_case_knows_its_answer(page_size, dtype, causal):
    case = paged_case(**SMALL, num_queries=3, page_size=page_size, dtype=dtype, causal=causal)
    exact = by_rows(case)
    torch.testing.assert_close(case.expected(), exact, rtol=1e-10, atol=1e-10)
    case.check(*(x.to(dtype) if x is exact[0] else x.to(torch.promote_types(dtype, torch.float32)) for x in exact))
    case.check(exact[0])
    case.check(*paged_latent_attention(**case.inputs))


@pytest.mark.parametrize("page_size", [1, 3, 64])
def test_nothing_but_tokens_is_a_number_and_no_page_follows_another(page_size):
    case = paged_case(**SMALL, page_size=page_size)
    lengths = case.seq_lens.tolist()
    assert {0, 1, page_size - 1, page_size, page_size + 1, 2 * page_size} < set(lengths)
    free = torch.ones(case.c_kv.shape[:2], dtype=torch.bool)
    used = []
    for b, length in enumerate(lengths):
        for t in range(length):
            free[case.block_table[b, t // page_size], t % page_size] = False
        count = -(-length // page_size)
        used += case.block_table[b, :count].tolist()
        beyond = case.block_table[b, count:].long()
        assert len(beyond) and case.c_kv[beyond].isnan().all() and case.k_rope[beyond].isnan().all()
    assert len(set(used)) == len(used) and not set(used) & {page + 1 for page in used}
    for pages in (case.c_kv, case.k_rope):
        assert pages.isnan().all(-1).equal(free) and pages.isnan().any(-1).equal(free)


def test_a_case_is_what_was_asked_for():
    case = paged_case(seq_lens=[5, 0], num_queries=2, **SMALL, page_size=4, scale=0.3, causal=False)
    assert case.seq_lens.tolist() == [5, 0] and case.scale == 0.3 and not case.causal
    assert case.q_latent.shape == (2, 2, 3, 16) and case.q_rope.shape == (2, 2, 3, 8)
    assert case.c_kv.shape[1:] == (4, 16) and case.k_rope.shape[1:] == (4, 8)
    same, other = (paged_case(seq_lens=[5, 0], **SMALL, page_size=4, seed=seed) for seed in (0, 1))
    assert same.c_kv.nan_to_num(9).equal(case.c_kv.nan_to_num(9)) and not other.q_rope.equal(same.q_rope)
    assert paged_case().scale == pytest.approx(192**-0.5)
    for none in (paged_case(seq_lens=[], **SMALL), paged_case(seq_lens=[0], **SMALL)):
        none.check(*paged_latent_attention(**none.inputs))


def altered(**change):
    """A kernel that takes operands for others."""
    return lambda case: paged_latent_attention(**{**case.inputs, **{name: f(case) for name, f in change.items()}})


def answered(change):
    """A kernel that makes something else of the right answer."""
    return lambda case: change(*paged_latent_attention(**case.inputs))


def walked(case):
    return case.block_table[:, :1] + torch.arange(case.block_table.shape[1])


WRONG = {
    "walks on from the first page": (altered(block_table=walked), "out.* nan"),
    "ignores lengths": (altered(seq_lens=lambda case: torch.full_like(case.seq_lens, 64)), "out.* nan"),
    "rounds lengths to pages": (altered(seq_lens=lambda case: -(-case.seq_lens // 16) * 16), "out.* nan"),
    "leaves the last token out": (altered(seq_lens=lambda case: (case.seq_lens - 1).clamp(0)), "out"),
    "scales by the latent width": (altered(scale=lambda case: 24**-0.5), "out"),
    "sees the future": (altered(causal=lambda case: False), "out"),
    "takes one sequence for all": (altered(block_table=lambda case: case.block_table[:1].expand(7, -1)), "out"),
    "confuses heads": (answered(lambda out, lse: (out.flip(2), lse)), "out"),
    "leaves NaN where nothing is seen": (
        answered(lambda out, lse: (out.masked_fill((lse == -INF)[..., None], math.nan), lse)),
        r"out.* of a sequence of [01] tokens, .* nan, expected at most 0",
    ),
    "returns lse to base 2": (answered(lambda out, lse: (out, lse_to(lse, base=2))), "lse.*is it natural"),
    "marks empty rows by +inf": (
        answered(lambda out, lse: (out, lse_to(lse, empty=INF))),
        r"lse.* of a sequence of [01] tokens, has an error of inf",
    ),
    "returns heads first": (
        answered(lambda out, lse: (out, lse.mT)),
        r"lse has shape \[7, 3, 2\], expected \[7, 2, 3\]",
    ),
    "returns queries alone": (answered(lambda out, lse: (out[0], lse)), r"out has shape \[2, 3, 16\], expected \[7, 2"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kernel", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_kernel_is_found(kernel, message, dtype):
    case = paged_case(**SMALL, num_queries=2, page_size=16, dtype=dtype)
    with pytest.raises(AssertionError, match=message):
        case.check(*kernel(case))


def test_the_tolerance_is_what_a_row_may_miss():
    case = paged_case(**SMALL, page_size=16)
    out, lse = case.expected()
    off = out.clone()
    off[-1, 0, 1] *= 1 + 1e-4
    with pytest.raises(
        AssertionError, match=r"out\[6, 0, 1\].* 1\.0e-04, expected at most 1\.0e-05 \(1 of 21 rows are"
    ):
        case.check(off, lse)
    case.check(off, lse, tolerance=2e-4)
    with pytest.raises(AssertionError, match=r"lse.* has an error of 1\.0e-04"):
        case.check(out, lse + 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("page_size", [16, 64])
def test_the_kernels_pass(page_size, dtype):
    pytest.importorskip("triton", reason="kernels need Triton")
    from mla_ref.hardware import emulator
    from mla_ref.kernels import DECODERS

    device = "cpu" if emulator.active() else "cuda"
    case = paged_case(
        **{**SMALL, "qk_rope_head_dim": 16}, num_queries=3, page_size=page_size, dtype=dtype, device=device
    )
    for decoder in DECODERS.values():
        for num_splits in (1, 3):
            case.check(*decoder.paged(**case.inputs, num_splits=num_splits))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"num_queries": 0}, ValueError, "num_queries is 0, expected a positive int"),
        ({"page_size": 2.0}, TypeError, r"page_size is 2\.0, expected a positive int"),
        ({"seq_lens": [3, -1]}, ValueError, "seq_lens holds -1, expected ints of 0 or more"),
        ({"seq_lens": [2.5]}, ValueError, r"seq_lens holds 2\.5, expected ints of 0 or more"),
        ({"dtype": torch.int8}, TypeError, r"dtype is torch\.int8, expected one of torch\.float16"),
    ],
)
def test_no_case_of_what_is_no_size(change, error, message):
    with pytest.raises(error, match=message):
        paged_case(**{**SMALL, **change})


@pytest.mark.parametrize("base", [2, math.e, 10.0])
@pytest.mark.parametrize("order", ["BSH", "BHS"])
@pytest.mark.parametrize("empty", [-INF, INF])
def test_lse_of_other_conventions(base, order, empty):
    sums = torch.tensor(
        [[[8.0, 0.0, 1.0], [0.25, 3.0, 0.0]]], dtype=torch.float64
    )  # [B, S, H]; 0 where nothing is seen
    theirs = torch.where(sums == 0, empty, sums.log() / math.log(base))
    theirs = theirs if order == "BSH" else theirs.permute(0, 2, 1)
    convention = {"base": base, "order": order, "empty": empty}
    torch.testing.assert_close(lse_from(theirs, **convention), sums.log())
    torch.testing.assert_close(lse_to(sums.log(), **convention), theirs)


def test_what_is_no_convention_is_refused():
    lse = torch.zeros(1, 2, 3)
    for convert in (lse_from, lse_to):
        with pytest.raises(ValueError, match="base is 1, expected a number above 1"):
            convert(lse, base=1)
        with pytest.raises(ValueError, match="order is 'HBS', expected one of BSH, BHS"):
            convert(lse, order="HBS")
        with pytest.raises(ValueError, match="empty is nan, expected"):
            convert(lse, empty=math.nan)
        with pytest.raises(ValueError, match=r"lse has shape \[2, 3\], expected three dimensions"):
            convert(lse[0])


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_shuffled_cache_shows_a_kernel_that_walks_on_from_the_first_page(shuffle):
    cache = PagedCache(2, 12, 16, 8, page_size=2, dtype=torch.float64)
    if shuffle:
        testing.shuffle_pages(cache)
    c_kv, k_rope = torch.randn(2, 9, 24, dtype=torch.float64).split((16, 8), -1)
    cache.append(c_kv, k_rope, lengths=torch.tensor([9, 3]))
    assert cache.filled()[0][0].equal(c_kv[0]) and cache.used_pages == 7
    query, options = torch.randn(2, 1, 3, 24).double().split((16, 8), -1), {"scale": 0.3, "seq_lens": cache.seq_lens}
    steps = (cache.block_table[:, :1] + torch.arange(6)).clamp(max=11)
    right, walked = (
        paged_latent_attention(*query, cache.c_kv, cache.k_rope, table, **options)[0]
        for table in (cache.block_table, steps)
    )
    assert right.equal(walked) != shuffle
