"""Messages between judge and worker: what is sent arrives, and no bytes do harm."""

import json
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.isolation.sandbox import _read_reply
from autograder.isolation.worker import wire
from autograder.isolation.worker.shelf import EVERY
from autograder.judging.judge import draw_cases, read_reply, verdict_from
from autograder.judging.program import Cell
from autograder.judging.verdict import Outcome, Verdict
from autograder.kernels.workers import sentence

from ..tiny_course import DOUBLE


def message(tree, tensors=(), payload=b""):
    header = json.dumps({"tree": tree, "tensors": list(tensors)}).encode()
    return wire.PREFIX.pack(wire.MAGIC, len(header), len(payload)) + header + payload


@st.composite
def tensors(draw):
    dtype = wire.DTYPES[draw(st.sampled_from(sorted(wire.DTYPES)))]
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    size = int(np.prod(shape)) * dtype.itemsize
    raw = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if dtype is torch.bool:
        raw = bytearray(b & 1 for b in raw)
    return torch.frombuffer(raw, dtype=dtype).view(shape) if raw else torch.empty(shape, dtype=dtype)


scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text()
keys = st.text().filter(lambda k: not k.startswith("$"))
values = st.recursive(
    scalars | tensors(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner),
    max_leaves=8,
)


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        raw = [t.reshape(-1).view(torch.uint8).tolist() if t.numel() else [] for t in (a, b)]
        return (a.dtype, a.shape) == (b.dtype, b.shape) and raw[0] == raw[1]
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (a != a and b != b)


@settings(deadline=None, max_examples=200)
@given(values)
def test_what_is_sent_arrives_bit_for_bit(value):
    assert same(wire.decode(wire.encode(value)), value)


@pytest.mark.parametrize(
    "view",
    [
        torch.arange(24).view(4, 6).T,
        torch.arange(24)[::3],
        torch.arange(3).expand(5, 3),
        torch.ones(3, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
        torch.tensor(5.0),
    ],
    ids=["transposed", "strided", "expanded", "with gradient", "parameter", "no axes"],
)
def test_views_and_leaves_arrive_as_plain_tensors(view):
    got = wire.decode(wire.encode(view))
    assert type(got) is torch.Tensor
    assert not got.requires_grad
    assert torch.equal(got, view.detach())


@pytest.mark.parametrize("value", [np.float32(2.5), np.arange(6).reshape(2, 3), np.array(True)])
def test_numpy_arrives_as_tensors(value):
    assert torch.equal(wire.decode(wire.encode(value)), torch.from_numpy(np.array(value)))


@pytest.mark.parametrize("value", [object(), {1: 2}, {1, 2}, 1j, torch.ones(2, dtype=torch.complex64), b"raw", len])
def test_what_cannot_be_sent_is_named(value):
    with pytest.raises(wire.WireError, match=r"type|dtype"):
        wire.encode(value)


HOSTILE = {
    "a shape that overflows": message({"$tensor": 0}, [["float32", [1 << 39, 1 << 39, 1 << 39, 0]]]),
    "a negative size": message({"$tensor": 0}, [["float32", [-1]]]),
    "a size that is true": message({"$tensor": 0}, [["uint8", [True]]], b"x"),
    "too many axes": message({"$tensor": 0}, [["uint8", [1] * 9]], b"x"),
    "an unknown dtype": message({"$tensor": 0}, [["object", [1]]], b"x" * 8),
    "a dtype that is a list": message({"$tensor": 0}, [[[], [1]]], b"x" * 8),
    "a tensor that is not there": message({"$tensor": 3}),
    "a tensor by name": message({"$tensor": "0"}, [["uint8", [1]]], b"x"),
    "a bool of 7": message({"$tensor": 0}, [["bool", [1]]], b"\7"),
    "fewer bytes than stated": message({"$tensor": 0}, [["int64", [1]]], b"x"),
    "more bytes than stated": message(None, [], b"x"),
    "a tuple of a number": message({"$tuple": 5}),
    "no tree": wire.PREFIX.pack(wire.MAGIC, 2, 0) + b"{}",
    "a number for a header": wire.PREFIX.pack(wire.MAGIC, 1, 0) + b"5",
    "text that is no JSON": wire.PREFIX.pack(wire.MAGIC, 4, 0) + b"{{{{",
    "bytes that are no text": wire.PREFIX.pack(wire.MAGIC, 4, 0) + b"\xff\xfe\x00\xd8",
    "a million brackets": wire.PREFIX.pack(wire.MAGIC, 10**6, 0) + b"[" * 10**6,
    "deep nesting": wire.PREFIX.pack(wire.MAGIC, 4022, 0) + b'{"tensors":[],"tree":' + b"[" * 2000 + b"]" * 2000 + b"}",
    "a hundred lists in one another": message(json.loads("[" * 100 + "]" * 100)),
    "an integer of a million digits": wire.PREFIX.pack(wire.MAGIC, 10**6, 0) + b"9" * 10**6,
    "another magic": b"PK\3\4" + bytes(12),
    "a header of 4 GiB": wire.PREFIX.pack(wire.MAGIC, 2**32 - 1, 0),
    "a pickle": b"\x80\x04\x95",
    "nothing": b"",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_malformed_message_is_refused(data):
    with pytest.raises(wire.WireError):
        wire.decode(data)


def trees(rng, depth=0):
    """Return a random tree from the vocabulary that the judge looks for."""
    words = [
        "case",
        "cell",
        "missing",
        "double",
        "NotImplementedError",
        "MemoryError",
        "ForbiddenCall",
        "\ud800\x1b",
        "x",
    ]
    plain = [None, True, 0, 1, -1, 2**62, 10**400, 0.5, float("nan"), float("inf"), "", *words]
    kind = rng.random()
    if depth > 3 or kind < 0.5:
        return rng.choice(plain)
    if kind < 0.6:
        return {"$tensor": rng.choice([0, 0, 0, 1, 7, "0"])}
    if kind < 0.75:
        return [trees(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if kind < 0.8:
        return {"$tuple": [trees(rng, depth + 1)]}
    names = [
        "event",
        "index",
        "result",
        "error",
        "unsupported",
        "changed",
        "explained",
        "terms",
        "unwritten",
        "type",
        "message",
        "where",
        "line",
        "source",
    ]
    return {rng.choice([*names, "cell"]): trees(rng, depth + 1) for _ in range(rng.randint(0, 6))}


def forged(rng, base):
    """Return the bytes of a random reply: noise, a damaged wrong answer, or well-formed lies."""
    kind = rng.randrange(3)
    if kind == 0:
        return rng.choice([b"", wire.MAGIC]) + rng.randbytes(rng.randint(0, 200))
    if kind == 1:
        data = bytearray(base)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        cut = rng.choice([len(data), rng.randrange(len(data))])
        return bytes(data[:cut]) + rng.choice([b"", bytes(data[:cut])])
    messages = []
    for index in range(rng.randint(1, 4)):
        tree = trees(rng)
        if isinstance(tree, dict) and not any(k.startswith("$") for k in tree):
            tree = {"event": rng.choice(["case"] * 4 + ["cell", "missing"]), "index": index, **tree}
        shape = rng.choice([[], [3, 4], [70, 4], [0], [1]])
        payload = rng.randbytes(4 * int(np.prod(shape)))
        messages.append(message(tree, [["float32", shape]], payload))
    return b"".join(messages)


def test_ten_thousand_forged_replies_neither_pass_nor_break_the_judge(thorough):
    rng = random.Random(0)
    cases = draw_cases(DOUBLE, "seed")
    base = b"".join(
        wire.encode({"event": "case", "index": n, "result": case.arguments["x"] / 2, "changed": []})
        for n, case in enumerate(cases)
    )
    outcomes = set()
    for _ in range(10_000 if thorough else 2_000):
        reply = _read_reply(
            forged(rng, base), rng.choice(["exit", "time", "flood", "crowd"]), rng.choice([0, 0, 9, 11, 24])
        )
        failures, notes = read_reply(DOUBLE, cases, reply)
        found = verdict_from(DOUBLE, cases, failures, notes)
        assert found.score == 0
        assert len(found.reason) < 2500
        text = json.dumps(found.to_json(), ensure_ascii=False)
        text.encode()  # nothing that a file cannot hold
        assert "\x1b" not in found.reason
        assert Verdict.from_json(json.loads(text)) == found
        outcomes.add(found.outcome)
    assert Outcome.FAULT not in outcomes
    assert {Outcome.WRONG, Outcome.ERROR, Outcome.ENDED, Outcome.TIME, Outcome.MISSING} <= outcomes


@pytest.mark.parametrize("key", ["terms", "explained", "unwritten", "blank", "filled", "changed", "event", "cell"])
@pytest.mark.parametrize("value", ["a word", torch.ones(2), {"reason": 1}, [torch.ones(2)]], ids=str)
def test_what_the_judge_alone_says_is_not_taken_from_a_reply(key, value):
    cases = draw_cases(DOUBLE, "seed")
    told = {"event": "case", "index": 0, "result": torch.zeros(3, 4), "changed": [], key: value}
    reply = _read_reply(wire.encode(told), "exit", 0)
    reply.changed = [EVERY]
    failures, notes = read_reply(DOUBLE, cases, reply)
    found = verdict_from(DOUBLE, cases, failures, notes)
    assert (found.score, found.outcome) in ((0, Outcome.WRONG), (0, Outcome.ENDED))


@pytest.mark.parametrize("place", ["type", "message", "line", "source", "cell", "kernel"])
def test_no_tensor_is_written_out_as_text(place, monkeypatch):
    cases = draw_cases(DOUBLE, "seed")
    error = {"type": "OutOfBounds", "where": {}}
    (error["where"] if place in ("line", "source", "cell") else error)[place] = [torch.ones(2)]
    for told in (
        {"event": "case", "index": 0, "error": error},
        {"event": "case", "index": 0, "unsupported": [torch.ones(2)]},
        {"event": "cell", "cell": [torch.ones(2)], "error": error},
    ):
        reply = _read_reply(wire.encode(told), "exit", 0)
        with monkeypatch.context() as patched:
            patched.setattr(torch.Tensor, "__repr__", lambda self: pytest.fail("hours, if it is named very often"))
            failures = read_reply(DOUBLE, cases, reply)[0]
            assert len(failures) == len(cases)
            assert isinstance(sentence(error), str)


def test_a_reply_makes_one_remark_on_a_cell_and_none_on_what_is_no_cell():
    cases = draw_cases(DOUBLE, "seed")
    program = [Cell(name, "") for name in ("helper", "other", DOUBLE.name)]
    said = lambda name, text: {"event": "cell", "cell": name, "error": {"type": "ValueError", "message": text}}
    messages = [said("helper", "the first"), said("helper", "a second"), said("none", "of no cell"), {"event": "cell"}]
    reply = _read_reply(b"".join(map(wire.encode, [*messages, said("other", "the last")])), "exit", 0)
    notes = read_reply(DOUBLE, cases, reply, program=program)[1]
    assert [note.rpartition(": ")[2] for note in notes] == ["the first", "the last"]


def test_an_answer_may_not_be_given_twice():
    cases = draw_cases(DOUBLE, "seed")
    right = {"event": "case", "result": None, "changed": []}
    messages = [right | {"index": n, "result": torch.zeros(3, 4)} for n in range(len(cases))]
    messages += [right | {"index": n, "result": 2 * case.arguments["x"]} for n, case in enumerate(cases)]
    reply = _read_reply(b"".join(map(wire.encode, messages)), "exit", 0)
    assert len(read_reply(DOUBLE, cases, reply)[0]) == len(cases)


def test_a_case_without_an_answer_has_failed():
    cases = draw_cases(DOUBLE, "seed")
    messages = [
        {"event": "case", "index": n, "result": 2 * case.arguments["x"], "changed": []} for n, case in enumerate(cases)
    ]
    for left_out in range(len(cases)):
        data = b"".join(wire.encode(m) for n, m in enumerate(messages) if n != left_out)
        assert set(read_reply(DOUBLE, cases, _read_reply(data, "exit", 0))[0]) == {left_out}


def test_a_reply_of_very_many_messages_is_cut_off():
    assert "MiB of text" in _read_reply(wire.encode({}) * 1_000_000, "flood", 9).malformed
    assert _read_reply(wire.encode({}) * 1000, "exit", 0).malformed is None
