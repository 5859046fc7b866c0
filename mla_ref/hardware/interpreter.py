"""Triton on this machine: compiled for a GPU or, where there is none, interpreted, with known defects corrected.

Triton chooses between the two while it is imported, so :func:`prepare` comes before anything that imports it;
:mod:`mla_ref.kernels` begins with it. Seven defects of the interpreter are corrected, in Triton 3.6 to 3.9:

- bfloat16 is stored as raw 16-bit patterns, and ``tl.dot``, arithmetic, comparisons and sums take those
  patterns for integers. Constants of that type do not exist before 3.9, and conversions from float32 cut the
  mantissa off. Corrected, all of them go through float32 and round to nearest even. Atomics on bfloat16 raise
  an error with or without the correction.
- Triton 3.6 asks NumPy for the integer in an array of one element, which NumPy refuses from 2.4 on: a loop
  whose bound is known at run time only would not start.
- Before 3.8, ``tl.maximum``, ``tl.minimum`` and ``tl.clamp`` return NaN if an operand is one. On a GPU they return the
  other operand, unless ``propagate_nan`` says otherwise, and so they do corrected.
- Masked places of a load without ``other`` read as 0. On a GPU they hold anything; corrected, NaN where the type has
  one, so that a result which depends on them shows.
- The variable of a ``range`` or ``tl.range`` loop is a Python int, without ``.to()`` and ``.dtype``. Corrected, it is a
  tensor as in a compiled kernel, int32 unless a bound is wider; that of a ``tl.static_range`` stays an int.
- Addresses are used unseen: a load beyond a tensor returns what lies there, a store beyond it corrupts the heap
  and ends the process. Corrected, an access raises :class:`OutOfBounds` before it happens. A pointer may reach the
  whole storage of the tensor that it was made from. Where its tensor is not known (pointers chosen by
  ``tl.where``, or made from integers) it may reach the storage of any tensor that the launch was given.
- Every block of more than one element is true, so that an ``if`` on one is taken. It is no condition for the compiler;
  corrected, it raises TypeError.

And most of its time is saved: it patches the language again for every function that a kernel calls, ``tl.sum`` among
them, widens integers to look for overflows that it does not report, builds a table for each type it names, and makes
the type and the shape of every block anew.
"""

import ast
import dataclasses
import functools
import os
import sys
import types
from contextlib import AbstractContextManager, nullcontext

import numpy as np

VARIABLE = "TRITON_INTERPRET"
_MODE = ("compiled", "interpreted")
_CORRECTED = "_corrected_by_mla_ref"


class OutOfBounds(IndexError):
    """An interpreted kernel was about to touch memory that its pointer does not belong to."""


def prepare() -> bool:
    """Import Triton, with kernels interpreted where there is no GPU, and correct its interpreter.

    ``TRITON_INTERPRET`` decides where it is set: 1 interprets on a machine with a GPU too, 0 compiles without
    one. Elsewhere it is set to 1 if there is no GPU, for child processes too. Repeated calls change nothing.

    Returns
    -------
    bool
        Whether kernels are interpreted.

    Raises
    ------
    ImportError
        Triton is not installed.
    RuntimeError
        Triton was imported before, in the other mode.
    """
    if VARIABLE not in os.environ and "triton" not in sys.modules and not _has_gpu():
        os.environ[VARIABLE] = "1"
    try:
        import triton
    except ImportError as error:
        raise ImportError(
            f"kernels need Triton, which is published for Linux ({error}): pip install triton, "
            f"or stay with the PyTorch reference, which does not need it"
        ) from error
    interpreted = active()
    wanted = triton.knobs.runtime.interpret if VARIABLE in os.environ else not _has_gpu()
    if interpreted != wanted:
        raise RuntimeError(
            f"Triton was imported with kernels {_MODE[interpreted]}, and now they are to be {_MODE[wanted]}: "
            f"import mla_ref.kernels before anything that imports Triton, or set {VARIABLE}={wanted:d} "
            f"before Python starts"
        )
    if interpreted:
        from triton.runtime import interpreter

        if not hasattr(interpreter, _CORRECTED):
            setattr(interpreter, _CORRECTED, _Patched(interpreter))
            _spare_work(interpreter)
            _spare_types(interpreter)
            _correct_bfloat16(interpreter)
            _correct_index(interpreter)
            _correct_maximum(interpreter)
            _correct_masked_loads(interpreter)
            _correct_loops(interpreter)
            _check_addresses(interpreter)
    return interpreted


def active() -> bool:
    """Return whether Triton has been imported and interprets kernels."""
    triton = sys.modules.get("triton")
    return triton is not None and not isinstance(triton.language.cdiv, triton.runtime.JITFunction)


def patched() -> AbstractContextManager:
    """Return a context in which many launches, one after the other, patch Triton's language once.

    A launch by itself enters it too. Until its end, functions of the language are also patched for calls outside of
    kernels. Where :func:`prepare` has found kernels to be compiled, nothing is.
    """
    return getattr(sys.modules.get("triton.runtime.interpreter"), _CORRECTED, nullcontext())


class _Patched:
    """The language with the interpreter's functions in it, for as long as a ``with`` or one around it lasts."""

    def __init__(self, interpreter):
        import triton.language as tl

        self.patch, self.depth = interpreter._patch_lang, 0
        self.launching = False
        self.modules = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
        self.tensor = tl.tensor

    def __enter__(self):
        if not self.depth:
            self.scope = self.patch(self.modules)
            self.scope.set_attr(self.tensor, "__bool__", _truth(self.tensor.__bool__))
        self.depth += 1

    def __exit__(self, *exc_info):
        self.depth -= 1
        if not self.depth:
            self.scope.restore()


def _spare_work(interpreter):
    context, call = getattr(interpreter, _CORRECTED), interpreter.GridExecutor.__call__
    builder, type_of = interpreter.interpreter_builder, interpreter._get_np_dtype
    done, types_by_name = types.SimpleNamespace(restore=lambda: None), {}

    def patch(function):
        if not context.launching:
            name = function.__name__
            raise RuntimeError(f"{name} is called outside of a kernel: launch it with a grid, {name}[grid](...)")
        return done

    @functools.wraps(call)
    def launch(self, *args, **kwargs):
        with context:
            context.launching, outer = True, context.launching
            try:
                return call(self, *args, **kwargs)
            finally:
                context.launching = outer

    def type_by_name(dtype):
        if dtype.name not in types_by_name:
            types_by_name[dtype.name] = type_of(dtype)
        return types_by_name[dtype.name]

    interpreter._patch_lang, interpreter._get_np_dtype = patch, type_by_name
    interpreter.GridExecutor.__call__ = launch
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _spare_types(interpreter):
    """Make the type of a block once for each shape, and what a tensor says of itself once for each type."""
    import triton.language as tl

    core, semantic, made = tl.core, type(interpreter.interpreter_semantic), {}
    make, fill, same = core.block_type.__init__, core.tensor.__init__, core.dtype.__eq__
    unwrap, broadcast = core._unwrap_if_constexpr, semantic.broadcast_impl_value
    plain_types = {int, float, bool, str, type(None), core.dtype}

    def block_type(self, element_ty, shape):
        plain = type(shape) in (list, core.tuple) and all(type(size) is int for size in shape)
        key = (id(element_ty), *shape) if plain else None
        if key in made:
            self.__dict__ = made[key]
            return
        make(self, element_ty, shape)
        if plain:
            made[key] = vars(self)  # with the element's type, so that no other gets its identity

    def tensor(self, handle, type):
        known = vars(type).get("_of_tensors")
        if known is None:
            fill(self, handle, type)
            known = type._of_tensors = dict(vars(self), handle=None)
        vars(self).update(known)
        self.handle = handle

    def unwrapped(value):
        return value if type(value) in plain_types else unwrap(value)

    def broadcasted(self, lhs, rhs):
        alike = lhs.type.is_block() and rhs.type.is_block() and [*lhs.type.shape] == [*rhs.type.shape]
        return (lhs, rhs) if alike else broadcast(self, lhs, rhs)

    core.block_type.__init__, core.tensor.__init__ = block_type, tensor
    core._unwrap_if_constexpr, semantic.broadcast_impl_value = unwrapped, broadcasted
    core.dtype.__eq__ = lambda self, other: self is other or same(self, other)


def _truth(original):
    home = os.path.dirname(sys.modules["triton"].__file__) + os.sep

    def truth(block):
        asked_by = sys._getframe(1).f_code.co_filename  # Triton's own functions may ask
        if block.handle.data.size > 1 and not asked_by.startswith(home):
            raise TypeError(
                f"a block of {list(block.handle.data.shape)} is neither true nor false: choose by element with "
                f"tl.where or a mask (& for and), or make one number of it, as tl.max does"
            )
        return original(block)

    return truth


def _has_gpu():
    import torch

    return torch.cuda.is_available()


def _correct_bfloat16(interpreter):
    import triton.language as tl

    builder, handle_type = interpreter.InterpreterBuilder, interpreter.TensorHandle

    def is_bfloat16(value):
        return isinstance(value, handle_type) and value.dtype.scalar.name == "bf16"

    def widened(value):
        return handle_type(_float32_of(value.data), tl.float32) if is_bfloat16(value) else value

    def narrowed(value):
        return handle_type(_bfloat16_of(value.data), tl.bfloat16)

    def through_float32(method):
        @functools.wraps(method)
        def corrected(self, *args, **kwargs):
            out = method(self, *map(widened, args), **kwargs)
            operands = [arg for arg in args if isinstance(arg, handle_type)]
            # The last operand has the type of the result: the accumulator of a dot is one.
            return narrowed(out) if is_bfloat16(operands[-1]) and out.data.dtype == np.float32 else out

        return corrected

    def cast(method):
        @functools.wraps(method)
        def corrected(self, source, target):
            if target.scalar == tl.bfloat16:
                return narrowed(method(self, widened(source), tl.float32))
            return method(self, widened(source), target)

        return corrected

    def reduction(method):
        @functools.wraps(method)
        def corrected(self, tensors):
            dtypes = [each.dtype for each in tensors]
            if tl.bfloat16 not in dtypes:
                return method(self, tensors)
            out = method(self, tuple(each.to(tl.float32) if each.dtype == tl.bfloat16 else each for each in tensors))
            out = out if isinstance(out, (list, tuple)) else [out]
            return [each.to(dtype) for each, dtype in zip(out, dtypes, strict=True)]

        return corrected

    for name in ("create_dot", "create_fma", "binary_op", "ternary_op", "unary_op"):
        setattr(builder, name, through_float32(getattr(builder, name)))
    builder.cast_impl = cast(builder.cast_impl)
    builder.get_bf16 = lambda self, value: narrowed(self.get_fp32(value))
    for operations in (interpreter.ReduceOps, interpreter.ScanOps):
        operations.apply_impl = reduction(operations.apply_impl)


def _float32_of(patterns):
    return (patterns.astype(np.uint32) << 16).view(np.float32)


def _bfloat16_of(values):
    """Return the 16-bit patterns of float32 values, rounded to nearest even."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def _correct_index(interpreter):
    patch = interpreter._patch_lang_tensor

    @functools.wraps(patch)
    def corrected(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = corrected


def _correct_maximum(interpreter):
    import triton.language as tl

    builder = interpreter.InterpreterBuilder
    clamp = builder.create_clampf

    def corrected(self, x, low, high, propagate_nan):
        if propagate_nan == tl.PropagateNan.ALL:
            return clamp(self, x, low, high, propagate_nan)
        return self.create_minnumf(self.create_maxnumf(x, low), high)

    builder.create_maxnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)
    builder.create_minnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)
    builder.create_clampf = corrected


def _correct_masked_loads(interpreter):
    builder, handle_type = interpreter.InterpreterBuilder, interpreter.TensorHandle
    load = builder.create_masked_load

    @functools.wraps(load)
    def corrected(self, ptrs, mask, other, *args, **kwargs):
        dtype = ptrs.get_element_ty()
        if other is None and dtype.is_floating() and not np.asarray(mask.data).all():
            nan = np.full(ptrs.data.nbytes, 0xFF, np.uint8)  # in every floating type
            nan = nan.view(interpreter._get_np_dtype(dtype))[: ptrs.data.size].reshape(ptrs.data.shape)
            other = handle_type(nan, dtype)
        return load(self, ptrs, mask, other, *args, **kwargs)

    builder.create_masked_load = corrected


def _correct_loops(interpreter):
    import triton.language as tl

    semantic, handle_type = interpreter.interpreter_semantic, interpreter.TensorHandle

    def steps(kind, *bounds, **options):
        dtypes = (semantic.to_tensor(bound).dtype for bound in bounds)
        dtype = functools.reduce(semantic.integer_promote_impl, dtypes, tl.int32)
        numpy_dtype = interpreter._get_np_dtype(dtype)
        for step in kind(*bounds, **options):
            yield tl.tensor(handle_type(np.array([step], numpy_dtype), dtype), dtype)

    def visit_for(self, node):
        kind = getattr(node.iter, "func", None)
        if getattr(kind, "id", getattr(kind, "attr", None)) == "range":  # a `tl.static_range` stays as it is
            node.iter.func = ast.parse("interpreter_semantic.steps", mode="eval").body
            node.iter.args.insert(0, kind)
        return self.generic_visit(node)

    semantic.steps = steps
    interpreter.ASTTransformer.visit_For = visit_for


def _check_addresses(interpreter):
    import triton.language as tl

    builder, executor, handle_type = interpreter.InterpreterBuilder, interpreter.GridExecutor, interpreter.TensorHandle
    handle_type._region = None  # of a pointer: the memory of its tensor
    launch = None  # the one under way, where it is known what its pointers may reach

    def arguments(method):
        @functools.wraps(method)
        def noted(self, args, kwargs):
            nonlocal launch
            args, kwargs = method(self, args, kwargs)  # copies, if a tensor is on a GPU
            values = [*_flat(zip(self.arg_names, args, strict=False)), *_flat(kwargs.items())]
            # Who passes pointers instead of tensors checks them: the autograder's replay does.
            raw = any(isinstance(value, tl.tensor) for _, value in values)
            launch = None if raw else _Launch(self.fn.__name__, values)
            return args, kwargs

        return noted

    def execution(method):
        @functools.wraps(method)
        def ended(self, *args, **kwargs):
            nonlocal launch
            outer = launch
            try:
                return method(self, *args, **kwargs)
            except (interpreter.InterpreterError, OutOfBounds) as error:
                chain = [error]
                while isinstance(chain[-1], interpreter.InterpreterError) and chain[-1].__cause__ is not None:
                    chain.append(chain[-1].__cause__)
                if not isinstance(chain[-1], OutOfBounds):
                    raise
                kernels = {function.__code__ for function in interpreter.InterpretedFunction.rewritten_fn.values()}
                raise chain[-1].with_traceback(_frames_of(kernels, chain)) from None
            finally:
                launch = outer

        return ended

    def pointer(method):
        @functools.wraps(method)
        def marked(value):
            out = method(value)
            if launch is not None and hasattr(value, "data_ptr"):
                out.handle._region = launch.regions.get(id(value))
            return out

        return marked

    def derived(method):
        @functools.wraps(method)
        def marked(self, *args, **kwargs):
            out = method(self, *args, **kwargs)
            if launch is not None:
                out._region = next((arg._region for arg in args if isinstance(arg, handle_type)), None)
            return out

        return marked

    def materialized(method):
        @functools.wraps(method)
        def marked(self, *args):
            pointers, mask = method(self, *args)
            pointers._region = self.base._region
            return pointers, mask

        return marked

    def access(method, verb, at=0, mask_at=None):
        @functools.wraps(method)
        def checked(self, *args, **kwargs):
            if launch is not None:
                launch.check(verb, args[at], None if mask_at is None else args[mask_at].data)
            return method(self, *args, **kwargs)

        return checked

    executor._init_args_hst = arguments(executor._init_args_hst)
    executor.__call__ = execution(executor.__call__)
    interpreter._implicit_cvt = pointer(interpreter._implicit_cvt)
    for name in ("addptr", "splat", "broadcast", "expand_dims", "reshape", "trans", "bitcast"):
        setattr(builder, f"create_{name}", derived(getattr(builder, f"create_{name}")))
    for name in ("BlockPointerHandle", "TensorDescHandle"):
        if owner := getattr(interpreter, name, None):  # the interpreter knows block pointers until 3.7
            owner.materialize_pointers = materialized(owner.materialize_pointers)
    # All other accesses, of descriptors for instance, go through these.
    builder.create_masked_load = access(builder.create_masked_load, "reads", mask_at=1)
    builder.create_masked_store = access(builder.create_masked_store, "writes", mask_at=2)
    builder.create_atomic_rmw = access(builder.create_atomic_rmw, "updates", at=1, mask_at=3)
    builder.create_atomic_cas = access(builder.create_atomic_cas, "updates")


class _Launch:
    """A kernel and the memory of its arguments, ``regions``, by the identity of the argument."""

    def __init__(self, kernel, values):
        self.kernel = kernel
        self.regions = {id(value): _Region(name, value) for name, value in values if hasattr(value, "data_ptr")}

    def check(self, verb, pointers, mask):
        """Raise unless the pointers that ``mask`` leaves, or all where it is None, lie in what they may reach."""
        own, itemsize = pointers._region, max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        allowed = self.regions.values() if own is None else (own,)
        addresses = pointers.data
        low, high = int(addresses.min()), int(addresses.max()) + itemsize
        if any(region.low <= low and high <= region.high for region in allowed):  # masked elements too, mostly
            return
        if mask is not None:
            addresses = addresses[np.asarray(mask).reshape(addresses.shape)]
        addresses = addresses.reshape(-1).astype(np.int64)  # below 0 where an offset from a null pointer is
        outside = np.ones(addresses.shape, bool)
        for region in allowed:
            outside &= (addresses < region.low) | (addresses > region.high - itemsize)
        if outside.any():
            raise OutOfBounds(self._outside(verb, own, int(addresses[outside.argmax()]), itemsize))

    def _outside(self, verb, region, address, itemsize):
        if region is not None:
            where = region.element(address, itemsize)
        else:
            where = "an address that belongs to no argument"
            if self.regions:
                nearest = min(self.regions.values(), key=lambda each: each.distance(address))
                where += f"; the nearest is {nearest.element(address, itemsize)}"
        return f"{self.kernel} {verb} {where}: is the mask missing, or an offset wrong?"


class _Region:
    """The storage of a tensor that a launch was given: addresses from ``low`` up to ``high``."""

    def __init__(self, name, tensor):
        tensor = getattr(tensor, "base", tensor)  # of a tensor that is passed with another dtype
        storage = tensor.untyped_storage()
        self.name, self.shape, self.start = name, tensor.shape, tensor.data_ptr()
        self.low = self.high = self.start  # null for an empty view, wherever it lies
        if tensor.numel():
            self.low = storage.data_ptr()
            self.high = self.low + storage.nbytes()

    def element(self, address, itemsize):
        """Say which element of the tensor would be at an address."""
        index, size = (address - self.start) // itemsize, (self.high - self.start) // itemsize
        return f"element {index} of {self.name}, which holds {size} (shape {'x'.join(map(str, self.shape))})"

    def distance(self, address):
        """Return how many bytes an address is away."""
        return max(self.low - address, address - self.high)


def _flat(arguments):
    """Yield arguments by name, those in tuples as ``pair[0]``, and the tensors of descriptors."""
    for name, value in arguments:
        if isinstance(value, tuple):
            yield from _flat((f"{name}[{index}]", each) for index, each in enumerate(value))
        else:
            yield name, value.base if hasattr(value, "block_shape") and hasattr(value, "base") else value


def _frames_of(codes, chain):
    """Return the traceback of errors, each the cause of the one before, reduced to the frames that run ``codes``."""
    frames = []
    for error in chain:
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in codes:
                frames.append(trace)
            trace = trace.tb_next
    reduced = None
    for trace in reversed(frames):
        reduced = types.TracebackType(reduced, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
    return reduced
