"""What an exercise is: data that the check in the notebook, the judge, the build and the documentation all read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from autograder.isolation.sandbox import Limits
from autograder.isolation.worker.layout import spread
from autograder.isolation.worker.trees import mapped, tensors_in
from mla_ref.hardware.cost import Cost

PACKED = (torch.uint8, torch.int8)

Params = Mapping[str, Any]
Arguments = dict[str, Any]

STUB = 'raise NotImplementedError("write your code here")'  # what a starter has in place of its solution
SPEED = ":speed"  # ends the name of the verdict on an exercise's speed
RELATIVE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclass(frozen=True)
class Part:
    """A share of an exercise's points, earned when every one of its cases passes.

    `visible` are the cases that the notebook's check runs. The judge runs them too, on data of its own, and those that
    `hidden` draws. A case is the keyword arguments of the exercise's `inputs`.
    """

    name: str
    points: float
    visible: Sequence[Params]
    hidden: Callable[[Random], Sequence[Params]] = lambda rng: ()


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that has a name: when an output matches `oracle`, the verdict says `message`.

    NaN of the oracle is NaN that a kernel computes; `unwritten` says that it stands for what no store writes, or for
    what a mask leaves out of a load. `at_times` says that it may be made in some calls only: the others, right or wrong
    in another way, do not speak against it. `apart` says that it shows in cases made for it, where other mistakes look
    alike: a wrong result elsewhere that no mistake explains speaks against it, in a kernel too. `whole` says that it is
    told where all numbers of a dict are its own, and not of one of them.
    """

    name: str
    message: str
    oracle: Callable[..., Any]
    unwritten: bool = False
    at_times: bool = False
    apart: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Fact:
    """What the machine code of kernels in Gluon has to show where no GPU can time them.

    Attributes
    ----------
    name : str
        In a few words.
    share : float
        Of the points for speed.
    missing : callable
        `missing(compiled)` returns what is missing in what the compiler said of the launches, each as
        `kernels.worker.compiling` has it; "" if nothing is.
    """

    name: str
    share: float
    missing: Callable[[Sequence[Mapping[str, Any]]], str]


@dataclass(frozen=True)
class Speed:
    """What a kernel's speed earns, and on what.

    Attributes
    ----------
    points : float
        For full speed.
    case : mapping
        Arguments of the exercise's `inputs`, at full size.
    floor : callable
        `floor(**case)` returns the compulsory bytes and FLOPs.
    bars : sequence of (fraction, share)
        The share of the points for reaching that fraction of the floor's speed, ascending.
    baseline : callable
        The same function in eager PyTorch.
    ratio : float
        Full points also take this many times the baseline's speed.
    device : str
        Key of `mla_ref.DEVICES`: what is modelled where there is no GPU.
    small : mapping or None
        What to change of `case` for a call of which the answer can be compared: a small one with the same widths and
        alignment. Where the time is modelled, operations that run at full size must have run there, or in the cases of
        the parts: what is cut into tiles is a multiple of usual ones, as at full size. The cases have the tails.
    data : callable or None
        `data(generator)` returns, of arguments by name, what they are like at full size, where the small call's own
        numbers do not tell: as many as there are, or some of which each number is one by chance. So for angles, and
        where the small call has numbers that nothing reads.
    axes : mapping
        Of arguments and results by name, a letter for each axis along which the oracle can be asked for a part: "bh"
        for [B, H, ...], "b_h" where the second axis is taken whole, "mn". "@block_table" is for a pool of which row b
        of that argument names the pages. Where the time is modelled, rows of the results are compared at full size.
    ranked : sequence of mappings
        Cases that a leaderboard times, each in place of `case`; none for an exercise without a leaderboard.
    facts : sequence of Fact
        For kernels in Gluon, of which no model tells the time: what earns the points where there is no GPU. Each counts
        if those before it hold.
    """

    points: float
    case: Params
    floor: Callable[..., Cost]
    bars: Sequence[tuple[float, float]]
    baseline: Callable[..., Any]
    ratio: float = 1.0
    device: str = "h100"
    small: Params | None = None
    data: Callable[[torch.Generator], Mapping[str, torch.Tensor]] | None = None
    axes: Mapping[str, str] = field(default_factory=dict)
    ranked: Sequence[Params] = ()
    facts: Sequence[Fact] = ()


@dataclass(frozen=True)
class Counted:
    """Calls of a given function that are noted in the student's process.

    Attributes
    ----------
    cell, function, argument : str
        The set-up cell, its function, and the argument of which the numbers are noted, call by call.
    wrong : callable
        `wrong(calls, result, **arguments)` returns what is wrong with the calls that led to a right result, or None.
    """

    cell: str
    function: str
    argument: str
    wrong: Callable[..., str | None]


@dataclass(frozen=True)
class Exercise:
    """One task of a lesson.

    Attributes
    ----------
    name : str
        The name the student defines, and that `check(name)` takes.
    title : str
        A few words for scoreboards.
    parts : sequence of Part
        Points and cases.
    inputs : callable
        `inputs(generator, **case)` returns the arguments by name, in the order of the student's signature.
    oracle : callable
        The right answer from those arguments, which reach it in float64. It returns what the student returns.
    returns : tuple of str
        Names of the returned tensors, for messages.
    mistakes : sequence of Mistake
        Their oracles take the same arguments.
    consistent : callable or None
        `consistent(result, **arguments)` returns what is wrong with a result that has the oracle's form, in what that
        leaves open, or None.
    like : tuple of (str, torch.dtype or None)
        For each returned tensor its dtype, or the argument whose dtype it must have; None, and what is not named, may
        have any.
    tolerance : float or None
        Bound on the relative error ‖out−ref‖/‖ref‖; None takes it from the dtype of the inputs. A row (the last axis)
        may be ten times as far off, relative to the larger of its own norm and the typical row's.
    driver : str
        How the entry is called: "call" with the arguments in order, "session" for a class (see
        `isolation.worker.running`).
    needs : tuple of str
        Earlier exercises of the lesson whose entries this one calls; the judge supplies the right ones.
    forbidden : tuple of str
        Torch operators that may not be called, by part of their name.
    most : callable or None
        `most(**arguments)` returns the most that torch's operations in a call may cost: bytes that they write, FLOPs of
        their products. It tells what copies or expands from what does not.
    counted : Counted or None
        What calls of a function of the lesson's may add up to.
    may_change : tuple of str
        Arguments that the function is asked to change in place. Of a kernel, what it returns by such a name must be
        that argument.
    kernel : bool
        Whether the answer must come from Triton kernels.
    launches : int or None
        The most launches that a call may take.
    copies : bool
        Whether torch may move data for a kernel and behind one; where copying is the exercise it may cast and copy
        whole arguments alone.
    speed : Speed or None
        Points for speed, beside those of the parts.
    """

    name: str
    title: str
    parts: Sequence[Part]
    inputs: Callable[..., Arguments]
    oracle: Callable[..., Any]
    returns: tuple[str, ...] = ("out",)
    mistakes: Sequence[Mistake] = ()
    consistent: Callable[..., str | None] | None = None
    like: tuple[str | torch.dtype | None, ...] = ()
    tolerance: float | None = None
    driver: str = "call"
    needs: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    most: Callable[..., Cost] | None = None
    counted: Counted | None = None
    may_change: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    kernel: bool = False
    launches: int | None = None
    copies: bool = True
    speed: Speed | None = None

    def __post_init__(self) -> None:
        for field_name in ("returns", "like", "needs", "forbidden", "may_change"):
            if isinstance(getattr(self, field_name), str):
                raise TypeError(f"exercise {self.name}: {field_name} is a string, expected a tuple of strings")

    @property
    def replayed(self) -> bool:
        """Whether answers are those of the call's program, run again, and not what the call returns."""
        return self.kernel or bool(self.forbidden) or self.most is not None

    @property
    def points(self) -> float:
        """The sum of the parts' points."""
        return sum(part.points for part in self.parts)

    def graded(self, of_speed: bool) -> tuple[str, float]:
        """Return the name of the verdict on the answers, or on their speed, and its points."""
        return (f"{self.name}{SPEED}", self.speed.points) if of_speed else (self.name, self.points)


def is_data(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds data, and not lengths, indices or masks: floats, or what is packed in bytes."""
    return tensor.is_floating_point() or tensor.dtype in PACKED


def upcast(value: Any) -> Any:
    """Return the value with every floating-point tensor in it in float64."""
    return mapped(value, lambda t: t.to(torch.float64, copy=True) if t.is_floating_point() else t.clone())


def relative_tolerance(exercise: Exercise, arguments: Arguments) -> float:
    """Return the exercise's tolerance, or the loosest that the dtypes of the arguments call for."""
    if exercise.tolerance is not None:
        return exercise.tolerance
    return max((RELATIVE[t.dtype] for t in tensors_in(arguments) if t.is_floating_point()), default=1e-6)


def randn(
    generator: torch.Generator | None, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return normal random numbers of standard deviation `scale`; without a generator, a shape with no data."""
    if generator is None:
        return torch.empty(shape, dtype=dtype, device="meta")
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)


def far_apart(values: torch.Tensor) -> torch.Tensor:
    """Return the values with the rows of the first axis so far apart that the last begins past element 2³¹.

    A kernel that computes the offset of that row in 32 bits leaves the tensor, or finds other rows: a view of one layer
    of a large pool, say. Memory that no row lies in costs nothing. For float16, which a laptop has the addresses for.
    """
    last, row = len(values) - 1, values[0].numel()
    return spread(values, (-(-(1 << 31) // (last * row)) * row, *values[0].contiguous().stride()))
