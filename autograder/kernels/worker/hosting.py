"""The part of a call's program that torch does: which operations there may be, what they touch, and doing them again.

They move data and compute nothing from it: factories, copies, casts, pads, look-ups. They compute with integers that
no data reaches, such as lengths and indices. `may_run` is the rule; `perform` follows a program that has passed it.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from autograder.isolation.worker.trees import tensors_in


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


EMPTY = _words("empty empty_like empty_strided new_empty new_empty_strided")
# Products that torch counts no FLOPs of: with vectors; others, with their multiplications; what is made of products
VECTORS = _words("mv addmv dot vdot")
UNCOUNTED: dict[str, Callable[..., int]] = {
    "addbmm": lambda out, a, b: math.prod(a) * b[-1],
    "_cdist_forward": lambda a, b: math.prod(a) * b[-2],
    "_pdist_forward": lambda a: math.prod(a) * a[0],
    "_embedding_bag": lambda weight, indices, *rest: math.prod(indices) * weight[-1],
    "outer": lambda a, b: math.prod(a) * math.prod(b),
}
COMPOSED = _words("einsum tensordot")
ALIKE = _words("full_like new_full new_ones new_zeros ones_like zeros_like")  # take shape and dtype, and read nothing
FILLING = ("zero_", "default"), ("fill_", "Scalar")  # in place
# What moves data, with the places of operands that say where to, and so must hold no data
MOVING: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(_words(
        """_to_copy arange cat clone constant_pad_nd contiguous copy copy_ diagonal_scatter eye fill fill_ flip full
        full_like new_full new_ones new_zeros ones ones_like repeat roll scalar_tensor select_scatter
        slice_scatter stack tril_indices triu_indices zero_ zeros zeros_like"""
    ), ()),
    **dict.fromkeys(_words("index index_put index_put_ take embedding"), (1,)),
    "linspace": (0, 1),
    **dict.fromkeys(_words("index_select gather index_copy index_copy_ scatter scatter_"), (2,)),
}  # fmt: skip
ON_INTEGERS = _words(
    """abs add add_ addcmul addcmul_ all amax amin __and__ any argmax argmin argsort bincount bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor block_diag bucketize ceil clamp clamp_
    clamp_max clamp_min count_nonzero cummax cummin cumprod cumprod_ cumsum diff div div_ eq floor floor_divide fmod
    gcd gcd_ ge gt index_add index_add_ index_fill index_fill_ isin lcm le logical_and logical_not logical_or
    logical_xor __lshift__ lt masked_fill masked_fill_ masked_scatter masked_scatter_ masked_select max maximum min
    minimum mul mul_ ne neg nonzero __or__ pow pow_ prod put put_ remainder repeat_interleave round __rshift__ rsub
    scatter_add scatter_add_ scatter_reduce scatter_reduce_ searchsorted sign sort square square_ sub sub_ sum topk
    tril tril_ triu triu_ trunc _unique2 unique_consecutive where __xor__"""
)
# Of PyTorch's mathematics what has no tag that says so
MATHEMATICS = _words(
    """_softmax _log_softmax addbmm addmv baddbmm block_diag complex cross diag_embed dot einsum index_add
    linalg_vector_norm logcumsumexp logsumexp mv nansum norm outer polar rot90 std std_mean take_along_dim tensordot
    trace var var_mean vdot view_as_complex view_as_real _conj"""
)
# What may be in a call besides, and takes a pass over memory
REDUCING = _words(
    """aminmax _fused_rms_norm linalg_vector_norm _local_scalar_dense _log_softmax logcumsumexp logsumexp masked_select
    mean native_layer_norm norm _softmax std std_mean trace var var_mean"""
)
DRAWING = _words("rand randint randn")
UNCHECKED = re.compile("backward|batch_norm")
LARGEST_FLOAT_CONSTANT = 16  # numbers, of 8 bytes at most, in a tensor of floats that was there before the call


@functools.cache
def is_known(name: str, overload: str) -> bool:
    """Return whether an operation may be part of a program at all: its tensors say all that it depends on."""
    return name in MOVING or name in ON_INTEGERS or computes(name, overload)


@functools.cache
def computes(name: str, overload: str) -> bool:
    """Return whether an operation is one of PyTorch's mathematics, also in place, in which nothing is drawn.

    Some steps of autograd, and those of batches' statistics, believe their operands and write beyond their tensors.
    """
    if UNCHECKED.search(name):
        return False
    plain = name if name.endswith("__") else name.removesuffix("_")
    found = [getattr(getattr(torch.ops.aten, each, None), overload, None) for each in {name, plain}]
    tags = {tag for each in found for tag in getattr(each, "tags", ())}
    return (
        all(found)
        and bool(plain in MATHEMATICS or {torch.Tag.core, torch.Tag.pointwise} & tags)
        and not {torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view} & tags
    )


def schema_of(op: Sequence[str]) -> Any:
    """Return the schema of an operation by name and overload. Raises AttributeError if there is none."""
    return getattr(getattr(torch.ops.aten, op[0]), op[1])._schema


def written_by(op: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the operands that an operation changes in place; raises AttributeError if there is no such operation."""
    return changed_by(schema_of(op), args, kwargs)


def changed_by(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the operands that an operation of this schema changes in place, lists of tensors as well.

    The schemas of batch norms are silent on the running statistics.
    """
    given = {**dict(zip((each.name for each in schema.arguments), args, strict=False)), **kwargs}
    written = {each.name for each in schema.arguments if each.alias_info is not None and each.alias_info.is_write}
    if given.get("training", True):
        written |= {"running_mean", "running_var"}
    return [value for name, value in given.items() if name in written]


def places_written(op: Sequence[str], args: Sequence[Any], target: Mapping[str, Any]) -> int:
    """Return how many numbers of `target` an operation changes in place: those at its indices, or else all."""
    name, shape = op[0], target["shape"]
    if name in ("index_copy_", "index_add_", "index_fill_") and shape:
        return math.prod(shape) // max(shape[args[1]], 1) * math.prod(args[2]["tensor"]["shape"])
    if name in ("scatter_", "scatter_add_", "scatter_reduce_"):
        return math.prod(args[2]["tensor"]["shape"])
    if name in ("index_put", "index_put_", "_index_put_impl_"):
        chosen = [(n, each["tensor"]) for n, each in zip(shape, args[1], strict=False) if each is not None]
        if not any(view["dtype"] in ("i1", "u8") for _, view in chosen):
            sizes = itertools.zip_longest(*(reversed(view["shape"]) for _, view in chosen), fillvalue=1)
            return math.prod(shape) // max(math.prod(n for n, _ in chosen), 1) * math.prod(map(max, sizes))
    return math.prod(shape)


def views_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the views of an operation's arguments as plain data."""
    if isinstance(value, Mapping):
        if value.keys() == {"tensor"}:
            yield value["tensor"]
    elif isinstance(value, list | tuple):
        for each in value:
            yield from views_in(each)


def read_by(step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the views whose numbers an operation reads: one that fills none, one that copies not its target's."""
    given = iter(()) if is_fill(step) else views_in(step["args"])
    if step["op"][0] == "copy_":
        next(given, None)
    yield from given


def is_fill(step: Mapping[str, Any]) -> bool:
    """Return whether all that an operation writes is a number of its own."""
    name, overload = step["op"]
    return name in ALIKE or (name, overload) in FILLING or name in ("full", "ones", "zeros")


def may_run(step: Mapping[str, Any], data: Callable[[Mapping[str, Any]], bool], integer: Callable) -> bool:
    """Return whether an operation only moves data, or computes with integers that are none.

    Parameters
    ----------
    step
        The operation as it was noted.
    data
        Whether what a view shows is data, or comes from data.
    integer
        Whether a view shows integers.
    """
    name, args = step["op"][0], step["args"]
    if any(True for value in step["kwargs"].values() for _ in views_in(value)):
        return False
    if name in MOVING:
        sums = name.startswith("index_put") and ((len(args) > 3 and args[3]) or step["kwargs"].get("accumulate"))
        sums = sums or (name.startswith("scatter") and step["op"][1] not in ("src", "value"))
        if not sums and not any(map(data, control(step))):
            return True
    given = [*views_in(args)]
    return name in ON_INTEGERS and not any(map(data, given)) and all(map(integer, [*given, *step["out"]]))


def fills(step: Mapping[str, Any]) -> bool:
    """Return whether an operation puts numbers of its own beside those that it moves."""
    name, overload = step["op"]
    if name == "constant_pad_nd" and step["args"] is not None:
        return any(not isinstance(n, int) or n > 0 for n in step["args"][1])
    return name in ("fill", "scatter") and overload != "src"


def control(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the views of an operation that say where data goes, or stand for a number."""
    places = MOVING.get(step["op"][0], ())
    pairs = enumerate(zip(schema_of(step["op"]).arguments, step["args"], strict=False))
    given = [value for n, (argument, value) in pairs if n in places or "Tensor" not in str(argument.type)]
    return [*views_in(given)]


def perform(step: Mapping[str, Any], view: Callable[[Mapping[str, Any]], torch.Tensor], device: str = "cpu") -> list:
    """Do an operation again; return the tensors that it made. `view` gives the tensor of a view."""
    function = getattr(getattr(torch.ops.aten, step["op"][0]), step["op"][1])
    kwargs = _unpacked(step["kwargs"], view)
    if any(argument.name == "device" for argument in function._schema.arguments):
        kwargs["device"] = torch.device(device)
    found = tensors_in(function(*_unpacked(step["args"], view), **kwargs))
    return found[: len(step["out"])] if step["out"] else []


def check_places(step: Mapping[str, Any], made: Sequence, view: Callable[[Mapping[str, Any]], torch.Tensor]) -> None:
    """Raise ValueError where an operation that was done has put several values in one place: a GPU leaves any.

    `made` is what it made, and `view` gives the tensor of a view.
    """
    name, overload = step["op"]
    plain, args = name.removesuffix("_"), step["args"]
    if name == "copy_":
        if len([*views_in(args)]) > 1:
            _check_kept("copy_", *_unpacked(args, view)[:2])
        return
    flat = plain in ("index_put", "put")  # and have no axis
    adds = flat and (step["kwargs"].get("accumulate") or (len(args) > 3 and args[3]))
    wanted = {"index_put": "default", "put": "default", "index_copy": "default", "scatter": "src"}.get(plain)
    if adds or overload != wanted or len(args) < (3 if flat else 4):
        return
    target, first, *rest = _unpacked(args, view)[:4]
    out = made[0] if made else target
    if plain == "index_put":
        found, put = out[tuple(slice(None) if each is None else each for each in first)], rest[0]
    elif plain == "put":
        found, put = out.take(first), rest[0].reshape(first.shape)
    elif plain == "index_copy":
        found, put = out.index_select(first, rest[0]), rest[1]
    else:
        found, put = out.gather(first, rest[0]), rest[1][tuple(map(slice, rest[0].shape))]
    _check_kept(plain, found, put)


def _check_kept(name: str, found: torch.Tensor, put: torch.Tensor) -> None:
    put = put.to(found.dtype)
    same = found == put
    if found.dtype.is_floating_point:
        same |= found.isnan() & put.isnan()
    if not bool(same.all()):
        raise ValueError(f"`{name}` of torch puts several values in one place: nothing says which one stays")


def flops(step: Mapping[str, Any]) -> int:
    """Return the FLOPs of an operation that is a product of matrices, in place or not, by the shapes of its views.

    That is 0 for any other. What operands that no such product has raise is not foreseen.
    """
    name = step["op"][0]
    plain = name if name.endswith("__") else name.removesuffix("_")
    shapes = [view["shape"] for view in views_in(step["args"])]
    if plain in VECTORS:
        return 2 * max(map(math.prod, shapes))
    if plain in UNCOUNTED:
        return 2 * UNCOUNTED[plain](*shapes)
    count = flop_registry.get(getattr(torch.ops.aten, plain, None))
    if count is None and plain not in COMPOSED:
        return 0
    shape_of = lambda view: torch.empty(view["shape"], device="meta")
    args, kwargs = _unpacked(step["args"], shape_of), _unpacked(step["kwargs"], shape_of)
    if count is None:
        with FlopCounterMode(display=False) as counter:
            getattr(getattr(torch.ops.aten, plain), step["op"][1])(*args, **kwargs)
        return counter.get_total_flops()
    out = [shape_of(view) for view in step["out"]]
    return int(count(*args, **kwargs, out_val=out[0] if len(out) == 1 else out))


def _unpacked(value: Any, view: Callable[[Mapping[str, Any]], torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpacked(v, view) for v in value]
    if isinstance(value, Mapping) and value.keys() == {"tensor"}:
        return view(value["tensor"])
    if isinstance(value, Mapping) and value.keys() == {"torch"}:
        found = getattr(torch, value["torch"])
        if not isinstance(found, torch.dtype | torch.memory_format):
            raise ValueError("neither a dtype nor a memory format")
        return found
    return {k: _unpacked(v, view) for k, v in value.items()} if isinstance(value, dict) else value
