"""What a GPU may do otherwise than a CPU is refused, or done in another order."""

import pytest
import torch

from autograder.kernels.worker import undecided
from autograder.kernels.worker.recording import DTYPES

ROWS = torch.arange(24).view(4, 6)


def packed(value):
    if not isinstance(value, torch.Tensor):
        return value
    layout = {"offset": value.storage_offset(), "shape": list(value.shape), "strides": list(value.stride())}
    return {"tensor": {"storage": value.untyped_storage().data_ptr(), "dtype": DTYPES[value.dtype], **layout}}


def step(name, overload, *args, **kwargs):
    return {"op": [name, overload], "args": [*map(packed, args)], "kwargs": kwargs, "out": [{}, {}]}


@pytest.mark.parametrize(
    ("name", "target", "other"),
    [
        ("add_", ROWS, ROWS),
        ("add_", ROWS[:, 0], ROWS[:, 1]),
        ("add_", ROWS[::2], ROWS[1::2]),
        ("add_", ROWS.as_strided((2, 3), (3, 2)), ROWS[3, :3]),
        ("add_", ROWS[:0], ROWS[:1]),
        ("copy_", ROWS[1:], ROWS[:3].clone()),
    ],
)
def test_torch_may_change_in_place_what_it_does_not_read_for_other_places(name, target, other):
    undecided.check_apart(step(name, "Tensor" if name == "add_" else "default", target, other))


@pytest.mark.parametrize(
    ("name", "target", "other"),
    [
        ("add_", ROWS, ROWS[:1]),
        ("add_", ROWS[1:], ROWS[:3]),
        ("add_", ROWS.as_strided((4, 4), (1, 1)), ROWS[3, :4].clone()),
        ("add_", ROWS.as_strided((3, 3), (2, 2)), ROWS[3, :3].clone()),
        ("copy_", ROWS[:, 2:], ROWS[:, :4]),
        ("copy_", ROWS.view(torch.int32)[0, 1:2], ROWS[0, :1]),
    ],
)
def test_torch_may_not_change_in_place_what_it_reads_or_changes_again(name, target, other):
    with pytest.raises(ValueError, match="all at once"):
        undecided.check_apart(step(name, "Tensor" if name == "add_" else "default", target, other))


@pytest.mark.parametrize(
    ("sort", "stays"),
    [
        (("sort", "default"), False),
        (("sort", "stable", {"stable": True}), True),
        (("sort", "stable", {"stable": False, "dim": 0}), False),
        (("topk", "default", 5), False),
        (("topk", "default", 5, -1, True, False), False),
    ],
)
def test_equal_numbers_are_sorted_in_another_order_and_only_they(sort, stays):
    name, overload, *args = sort
    kwargs = args.pop() if args and isinstance(args[-1], dict) else {}
    numbers = torch.arange(40).view(8, 5).repeat(1, 2) % 5
    made = getattr(getattr(torch.ops.aten, name), overload)(numbers, *args, **kwargs)
    event = step(name, overload, numbers, *args, **kwargs)
    values, places = undecided.perform(event, lambda view: numbers, torch.Generator().manual_seed(0))
    dim = kwargs.get("dim", -1)
    assert torch.equal(numbers.gather(dim, places), values)
    assert torch.equal(values.sort(dim).values, made[0].sort(dim).values)
    assert torch.equal(places, made[1]) == stays
