"""Decode over shared prefixes against plain MLA over the same pages, for any forest of sharing."""

import itertools
import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import mla_ref
from mla_ref import ExpandedPrefixes, PrefixTree, naive, plan_prefixes, prefix_attention
from mla_ref.hardware import emulator

kernels = pytest.importorskip("mla_ref.kernels", reason="kernels need Triton")
DEVICE = "cpu" if emulator.active() else "cuda"
HOPPER = not emulator.active() and torch.cuda.get_device_capability() == (9, 0)
EVERY = {"min_saving": 0, "merging": 0}
FORMS = {"twin": prefix_attention, "kernel": kernels.prefix_attention}
BOUND = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def short_parts(monkeypatch):
    """Let parts of a few tokens count: to test shapes it takes no long ones."""
    monkeypatch.setattr(mla_ref.prefix, "PROGRAM_TOKENS", 0)


class Batch:
    """Random sequences in pages: ``nodes`` are (parent, pages) of each shared part, ``leaves`` who hangs where."""

    def __init__(self, nodes, leaves, own, *, page_size=4, S=1, H=3, widths=(16, 8, 12, 32), dtype=torch.float64):
        torch.manual_seed(0)
        Dn, Dr, Dv, R = widths
        paths = [[] if leaf == -1 else self.path(nodes, leaf) for leaf in leaves]
        counts = [pages for _, pages in nodes]
        total = sum(counts) + sum(-(-tokens // page_size) for tokens in own)
        order = iter(torch.randperm(total + 3).tolist())
        shared = [list(itertools.islice(order, pages)) for pages in counts]
        rows = [
            [page for node in path for page in shared[node]] + list(itertools.islice(order, -(-tokens // page_size)))
            for path, tokens in zip(paths, own, strict=True)
        ]
        width = max(map(len, rows), default=0)
        table = [row + [-1] * (width - len(row)) for row in rows]
        lens = [
            sum(counts[node] for node in path) * page_size + tokens for path, tokens in zip(paths, own, strict=True)
        ]
        B = len(own)
        self.tree = PrefixTree([parent for parent, _ in nodes], [pages * page_size for pages in counts], leaves)
        self.page_size, self.S = page_size, S
        self.block_table = torch.tensor(table, dtype=torch.int32, device=DEVICE).reshape(B, width)
        self.seq_lens = torch.tensor(lens, dtype=torch.int32, device=DEVICE)
        shapes = {"q_nope": (B, S, H, Dn), "q_rope": (B, S, H, Dr), "c_kv": (total + 3, page_size, R)}
        shapes |= {"k_rope": (total + 3, page_size, Dr), "w_uk": (H, Dn, R), "w_uv": (H, Dv, R)}
        drawn = {name: torch.randn(shape, device=DEVICE) for name, shape in shapes.items()}
        self.operands = {name: (x / R**0.5 if name[0] == "w" else x).to(dtype) for name, x in drawn.items()}
        for page in range(total + 3):  # a page that nobody holds must not be looked at
            if page not in set(itertools.chain(*rows)):
                self.operands["c_kv"][page] = self.operands["k_rope"][page] = math.nan

    @staticmethod
    def path(nodes, leaf):
        path = []
        while leaf != -1:
            path.append(leaf)
            leaf = nodes[leaf][0]
        return path[::-1]

    def plan(self, switch_point=1, **options):
        options = {"page_size": self.page_size, "q_len": self.S, **EVERY, **options}
        return plan_prefixes(self.block_table, seq_lens=self.seq_lens, switch_point=switch_point, **options)

    def run(self, attend, plan, expanded=None, **options):
        where = {"seq_lens": self.seq_lens, "block_table": self.block_table}
        return attend(**self.operands, plan=plan, expanded=expanded, **where, **options)

    def exact(self):
        wide = {name: x.double() for name, x in self.operands.items()}
        return naive(**wide, seq_lens=self.seq_lens, block_table=self.block_table)

    def check(self, found):
        out, lse = found
        exact, exact_lse = self.exact()
        bound = BOUND[out.dtype]
        assert ((out.double() - exact).norm(dim=-1) <= bound * exact.norm(dim=-1).clamp(min=1)).all()
        torch.testing.assert_close(lse.double(), exact_lse, atol=bound, rtol=0)


def small(**options):
    """Two levels under one root, a second root, a sequence that shares nothing."""
    nodes = [(-1, 2), (0, 1), (0, 2), (-1, 1)]
    return Batch(nodes, [1, 1, 2, 2, 2, 0, 3, 3, -1], [3, 5, 4, 9, 1, 2, 7, 3, 6], **options)


@st.composite
def forests(draw):
    parents = [draw(st.integers(-1, i - 1)) for i in range(draw(st.integers(0, 4)))]
    leaves = draw(st.lists(st.integers(-1, len(parents) - 1), min_size=1, max_size=6))
    used = set().union(*(Batch.path([(p, 1) for p in parents], leaf) for leaf in leaves))
    renumbered = {-1: -1, **{node: i for i, node in enumerate(sorted(used))}}
    nodes = [(renumbered[parents[node]], draw(st.integers(1, 3))) for node in sorted(used)]
    S = draw(st.integers(1, 3))
    own = [draw(st.integers(S, 9)) for _ in leaves]
    return nodes, [renumbered[leaf] for leaf in leaves], own, {"S": S, "page_size": draw(st.sampled_from([2, 4]))}


def test_any_forest_gives_what_plain_mla_gives():
    @settings(max_examples=60, deadline=None)
    @given(forests(), st.integers(1, 4), st.booleans())
    def check(forest, switch_point, given_tree):
        *shape, options = forest
        batch = Batch(*shape, **options)
        plan = batch.plan(switch_point, tree=batch.tree if given_tree else None)
        batch.check(batch.run(prefix_attention, plan))

    check()


def test_the_kernels_give_the_same_on_any_forest():
    @settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(forests(), st.integers(1, 3), st.sampled_from([torch.float32, torch.bfloat16]))
    def check(forest, switch_point, dtype):
        *shape, options = forest
        batch = Batch(*shape, **options, dtype=dtype)
        batch.check(batch.run(kernels.prefix_attention, batch.plan(switch_point)))

    check()


@pytest.mark.parametrize("attend", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("switch_point", [1, 2, 3, 100])
def test_each_switch_point_gives_what_plain_mla_gives(attend, switch_point):
    batch = small(S=2, dtype=torch.float32)
    batch.check(batch.run(attend, batch.plan(switch_point)))


def test_parts_are_split_over_programs_and_merged(monkeypatch):
    monkeypatch.setitem(kernels.prefix_attention.__globals__, "_choose_split", lambda *_: 3)
    monkeypatch.setitem(kernels.ragged_attention.__globals__, "FEW", [kernels._decode.Tile(16, 16, 4, 2)])
    batch = small(page_size=16, S=2, dtype=torch.float32)
    batch.check(batch.run(kernels.prefix_attention, batch.plan(2)))


def test_rows_beyond_a_block_and_widths_that_fill_none():
    batch = Batch([(-1, 1)], [0] * 43, [2] * 43, S=2, H=1, widths=(24, 6, 20, 40), dtype=torch.float32)
    plan = batch.plan(2)
    assert len(plan.nodes[0].users) * batch.S > 64
    batch.check(batch.run(kernels.prefix_attention, plan))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("together", [True, False], ids=["in-turn", "mixed"])
@pytest.mark.parametrize(("S", "split"), [(1, 1), (2, 3)])
def test_parts_of_many_users_and_real_widths(together, S, split, monkeypatch):
    module = kernels.prefix_attention.__globals__
    monkeypatch.setitem(module, "_choose_split", lambda *_: split)
    monkeypatch.setitem(module, "MANY_TOKENS", 0)
    leaves = [1] * 66 + [2] * 130 + [3] * 3
    if not together:
        leaves = [leaf for i in range(7) for leaf in leaves[i::7]]
    own = [S + i % 5 for i in range(len(leaves))]
    batch = Batch([(-1, 19), (0, 3), (0, 5), (-1, 8)], leaves, own, page_size=16, S=S, H=2, widths=(128, 64, 128, 32),
                  dtype=torch.bfloat16)  # fmt: skip
    plan, seen = batch.plan(2), []
    work = module["_work"]
    monkeypatch.setitem(module, "_work", lambda *given: seen.append(work(*given)) or seen[-1])
    batch.check(batch.run(kernels.prefix_attention, plan))
    assert seen[0].gathered != together
    assert len(seen[0].rows) == split + 1
    if HOPPER:
        assert seen[0].tile is module["HOPPER"]


@pytest.mark.parametrize("switch_point", [2, 100])
def test_a_few_long_sequences_are_split_apart(switch_point, monkeypatch):
    module = kernels.prefix_attention.__globals__
    monkeypatch.setitem(module, "limits", lambda device: kernels._decode.Limits(4, 2**17, True, (9, 0)))
    batch = Batch(
        [(-1, 2)], [0] * 8 + [-1] * 8, [3, 1, 2, 70, 1, 2, 3, 1, 2, 1, 1, 0, 2, 1, 70, 0], dtype=torch.float32
    )
    plan = batch.plan(switch_point)
    assert module["_long"](plan, 3, torch.device(DEVICE)) == (3, 14)
    batch.check(batch.run(kernels.prefix_attention, plan))


@pytest.mark.parametrize("attend", FORMS.values(), ids=FORMS)
def test_a_plan_serves_while_sequences_grow(attend):
    batch = small(dtype=torch.float32)
    plan = batch.plan(2)
    longer = small(dtype=torch.float32)
    longer.seq_lens = batch.seq_lens + (-batch.seq_lens) % batch.page_size  # up to the end of the last page
    longer.check(longer.run(attend, plan))


def test_the_tree_is_read_off_the_pages():
    tree = small().tree
    batch = small()
    found = PrefixTree.from_table(batch.block_table, seq_lens=batch.seq_lens, page_size=batch.page_size)
    assert sorted(zip(found.users, found.ends, strict=True)) == sorted(zip(tree.users, tree.ends, strict=True))


def test_pages_with_new_tokens_are_not_shared():
    cache = mla_ref.PagedCache(2, 32, 4, 2, page_size=4)
    cache.append(torch.randn(2, 8, 4), torch.randn(2, 8, 2), lengths=torch.tensor([8, 0]))
    cache.fork(0, 1)
    shared = {
        q_len: PrefixTree.from_table(cache.block_table, seq_lens=cache.seq_lens, page_size=4, q_len=q_len).ends
        for q_len in (1, 4, 5)
    }
    assert shared == {1: (4,), 4: (4,), 5: ()}  # the 8th token is new, the last four, the last five


def test_tokens_of_a_page_that_is_not_full_are_left_to_absorb():
    batch = Batch([(-1, 2)], [0, 0], [3, 4])
    tree = PrefixTree([-1], [2 * 4 + 2], [0, 0])  # two tokens of each sequence's third page are copies
    plan = batch.plan(2, tree=tree)
    assert plan.starts.tolist() == [8, 8]
    batch.check(batch.run(prefix_attention, plan))


def test_few_users_fall_back_to_absorb():
    batch = small()
    users = {point: sorted(len(node.users) for node in batch.plan(point).nodes) for point in (2, 3, 6, 7)}
    assert users == {2: [2, 2, 3, 6], 3: [3, 6], 6: [6], 7: []}


def test_what_does_not_make_up_for_another_launch_is_absorbed(monkeypatch):
    monkeypatch.setattr(mla_ref.prefix, "PROGRAM_TOKENS", 256)
    batch = Batch([(-1, 2)], [0] * 6, [1] * 6, page_size=1024, widths=(1, 2, 1, 1), H=1)
    saved = 6 * 2048 - (2048 + 256) * 3
    assert batch.plan(3, min_saving=saved, merging=0).nodes
    assert not batch.plan(3, min_saving=saved + 1, merging=0).nodes


def test_what_does_not_make_up_for_merging_is_absorbed():
    batch = Batch([(-1, 2)], [0] * 6, [1000] * 6, page_size=1024, widths=(1, 2, 1, 1), H=1)
    saved = (6 * 2048 - 2048 * 3) // 6  # by each sequence
    assert batch.plan(3, min_saving=0, merging=saved).nodes
    assert not batch.plan(3, min_saving=0, merging=saved + 1).nodes


def test_a_short_part_is_naive_only_above_a_long_one(monkeypatch):
    monkeypatch.setattr(mla_ref.prefix, "PROGRAM_TOKENS", 256)
    short = Batch([(-1, 1)], [0] * 4, [1] * 4, page_size=64, widths=(1, 2, 1, 1), H=1)
    assert not short.plan(3, min_saving=0, merging=0).nodes
    before = Batch([(-1, 1), (0, 40)], [1] * 4, [1] * 4, page_size=64, widths=(1, 2, 1, 1), H=1)
    assert [node.tokens for node in before.plan(3, min_saving=0, merging=0, tree=before.tree).nodes] == [64, 2560]


def test_a_prefix_of_all_takes_a_view_of_the_table():
    batch = Batch([(-1, 2)], [0, 0, 0], [3, 4, 5])
    own = batch.plan(2).own_table(batch.block_table)
    assert own.data_ptr() == batch.block_table[:, 2:].data_ptr()
    assert own.tolist() == batch.block_table[:, 2:].tolist()


def test_expansion_is_done_once_and_released():
    batch = small()
    plan, expanded = batch.plan(2), ExpandedPrefixes(batch.operands["w_uk"], batch.operands["w_uv"])
    where = batch.operands["c_kv"], batch.operands["k_rope"]
    expanded.update(plan, *where)
    assert expanded.nbytes == plan.tokens * 3 * (16 + 8 + 12) * 8
    before = batch.run(prefix_attention, plan, expanded)
    held = [page for node in plan.nodes for page in node.pages]
    where[0][held] = 0  # what is expanded is not read again
    torch.testing.assert_close(batch.run(prefix_attention, plan, expanded), before)
    fewer = batch.plan(6)
    (old,) = (node.offset for node in plan.nodes if node.pages == fewer.nodes[0].pages)
    kept = expanded.k[old : old + fewer.tokens].clone()
    expanded.update(fewer, *where)
    torch.testing.assert_close(expanded.k, kept)
    assert expanded.nbytes == fewer.tokens * 3 * (16 + 8 + 12) * 8
    expanded.update(batch.plan(100), *where)
    assert expanded.nbytes == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([1, 2, 0], [4, 4, 4], [0]), "cycle: 0 -> 1 -> 2 -> 0"),
        (([-1, 1], [4, 4], [1]), "cycle: 1 -> 1"),
        (([-1, 0], [4, 4], [0, 0]), "node 1 has no users"),
        (([-1], [0], [0]), r"lengths\[0\] is 0"),
        (([-1], [4, 4], [0]), "lengths has 2 entries, expected 1"),
        (([-1], [4], [1]), r"leaves\[0\] is 1, expected a node from 0 to 0"),
        (([3], [4], [0]), r"parents\[0\] is 3"),
        (([-1], [4.0], [0]), r"lengths\[0\] is 4.0, expected an int"),
    ],
)
def test_a_tree_that_is_none_is_refused(arguments, said):
    with pytest.raises((TypeError, ValueError), match=said):
        PrefixTree(*arguments)


def test_a_plan_that_does_not_fit_is_refused():
    batch = Batch([(-1, 2)], [0, 0], [3, 4])
    with pytest.raises(ValueError, match="path of sequence 0 ends at token 12, expected at most 8"):
        batch.plan(tree=PrefixTree([-1], [12], [0, 0]))
    with pytest.raises(ValueError, match="leaves for 3 sequences, expected 2"):
        batch.plan(tree=PrefixTree([-1], [8], [0, 0, 0]))
    with pytest.raises(ValueError, match="switch_point is 0"):
        batch.plan(0)
    apart = Batch([(-1, 1), (-1, 1)], [0, 1], [3, 4])
    with pytest.raises(ValueError, match=r"block_table\[1, 0\] is \d+, expected \d+ as of sequence 0"):
        apart.plan(tree=PrefixTree([-1], [4], [0, 0]))
    with pytest.raises(ValueError, match=r"seq_lens\[0\] is 99, expected 0 <= seq_lens <= 12"):
        plan_prefixes(batch.block_table, seq_lens=batch.seq_lens.clamp(min=99), page_size=4, switch_point=2)


@pytest.mark.parametrize("attend", FORMS.values(), ids=FORMS)
def test_another_batchs_plan_is_refused(attend):
    batch, other = small(dtype=torch.float32), Batch([(-1, 2)], [0, 0], [3, 4], dtype=torch.float32)
    with pytest.raises(ValueError, match="plan has B = 2, expected 9"):
        batch.run(attend, other.plan())
    with pytest.raises(ValueError, match="q_nope has S = 2, and the plan is for at most 1"):
        small(S=2, dtype=torch.float32).run(attend, batch.plan())
    empty = ExpandedPrefixes(batch.operands["w_uk"], batch.operands["w_uv"])
    with pytest.raises(ValueError, match=r"call expanded\.update"):
        batch.run(attend, batch.plan(), empty)


def test_results_go_where_they_are_wanted():
    batch = small(S=2, dtype=torch.float32)
    B, S, H = batch.operands["q_nope"].shape[:3]
    for switch_point, order in itertools.product((2, 100), ((0, 1, 2, 3), (1, 0, 2, 3), (3, 2, 1, 0))):
        places = [torch.full([(B, S, H, 12)[axis] for axis in order], math.nan, device=DEVICE) for _ in range(2)]
        out, lse = (x.permute([order.index(axis) for axis in range(4)]) for x in places)
        lse = lse[..., 0]
        found = batch.run(kernels.prefix_attention, batch.plan(switch_point), out=out, lse=lse)
        assert found[0] is out and found[1] is lse
        batch.check(found)


def test_a_layer_finds_the_prefix_that_a_fork_shares(monkeypatch):
    plans = []

    def always(*where, **options):
        plans.append(plan_prefixes(*where, **{**options, "switch_point": 1, **EVERY}))
        return plans[-1]

    monkeypatch.setattr("mla_ref.implementations.plan_prefixes", always)
    layer = mla_ref.MLA(mla_ref.MLAConfig.preset("tiny"), device=DEVICE)
    x, prompt = torch.randn(3, 2, 64, device=DEVICE), torch.randn(3, 9, 64, device=DEVICE)
    found = []
    with torch.no_grad():
        for impl in ("prefix", "absorb"):
            cache = layer.make_cache(batch=3, capacity=16, page_size=4)
            layer(prompt, cache, lengths=torch.tensor([9, 0, 0], device=DEVICE), impl="absorb")
            cache.fork(0, 1)
            cache.fork(0, 2)
            found.append(layer(x, cache, impl=impl))
    assert [len(node.users) for node in plans[-1].nodes] == [3] and plans[-1].tokens == 8
    torch.testing.assert_close(*found)
