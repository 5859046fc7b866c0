"""The names that a kernel may use: of Triton's language, `math` and Python, and the attributes of a value.

They change with Triton's version.
"""

from __future__ import annotations

MODULES = ("triton", "tl", "math")
GLUON_MODULES = ("gluon", "gl", "hopper")  # of kernels by `gluon.jit` besides


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BUILTINS = _words("range min max abs int float bool len tuple print")
# What Triton's front end knows without being told, beside BUILTINS: no name of a kernel may stand for it.
FRONT_END = _words("getattr hasattr isinstance list")

DTYPES = _words(
    """bfloat16 float16 float32 float64 float8e4b15 float8e4b8 float8e4nv float8e5 float8e5b16 int1 int16 int32 int64
    int8 uint16 uint32 uint64 uint8 void pi32_t"""
)
# What `triton.language` offers to kernels.
LANGUAGE = DTYPES | _words(
    """TRITON_MAX_TENSOR_NUMEL abs add advance arange argmax argmin associative_scan assume atomic_add atomic_and
    atomic_cas atomic_max atomic_min atomic_or atomic_xchg atomic_xor bitonic_merge broadcast broadcast_to cast cat
    cdiv ceil clamp condition const constexpr cos cumprod cumsum debug_barrier device_assert device_print div_rn dot
    dot_scaled erf exp exp2 expand_dims fdiv flip floor fma full gather histogram interleave join load
    load_tensor_descriptor log log2 make_block_ptr make_tensor_descriptor map_elementwise max max_constancy
    max_contiguous maximum min minimum mul multiple_of num_programs pair_uniform_to_normal permute philox philox_impl
    pointer_type program_id rand rand4x randint randint4x randn randn4x range ravel reduce reduce_or reshape rsqrt
    sigmoid sin softmax sort split sqrt sqrt_rn squeeze static_assert static_print static_range store
    store_tensor_descriptor sub sum swizzle2d to_tensor topk trans tuple uint_to_uniform_float umulhi unsqueeze view
    where xor_sum zeros zeros_like"""
)
# What it holds besides. A name on neither list is refused too; the lists are compared with the Triton that is there.
LANGUAGE_REFUSED = {
    **dict.fromkeys(_words("core semantic standard random target_info experimental math"), "a module"),
    "extra": "a module, and what it holds is not emulated",
    "inline_asm_elementwise": "code of one GPU that the model does not see",
    **dict.fromkeys(_words("builtin ir str_to_ty"), "the compiler's own"),
    **dict.fromkeys(
        _words(
            """PropagateNan block_type constexpr_type dtype slice tensor tensor_descriptor
            tensor_descriptor_type tuple_type"""
        ),
        "a class of the compiler's values",
    ),
}
LANGUAGE_MATH = _words("abs ceil cos div_rn erf exp exp2 fdiv floor fma log log2 rsqrt sin sqrt sqrt_rn umulhi")
# Of libdevice, for which Triton has no function of that name in its own language: what to write.
LIBDEVICE = {
    **{f"fast_{name}f": f"tl.{name}" for name in _words("exp log log2 sin cos")},
    "fast_dividef": "x / y",
    "fma_rn": "tl.fma",
    "rsqrt_rn": "tl.rsqrt",
    "mulhi": "tl.umulhi",
    "isnan": "x != x",
    **dict.fromkeys(("tanh", "fast_tanhf"), "2 * tl.sigmoid(2 * x) - 1"),
    **dict.fromkeys(("pow", "fast_powf"), "tl.exp2(y * tl.log2(x))"),
}
MATH_VALUES = _words("pi e tau inf nan")
MATH_CALLS = _words("ceil exp floor log log10 log2 sqrt")
# What Gluon offers to kernels besides, and for Hopper.
GLUON = DTYPES | _words(
    """BlockedLayout DotOperandLayout NVMMADistributedLayout NVMMASharedLayout SliceLayout SwizzledSharedLayout abs add
    allocate_shared_memory arange associative_scan assume atomic_add atomic_and atomic_cas atomic_max atomic_min
    atomic_or atomic_xchg atomic_xor barrier broadcast cast cdiv ceil constexpr convert_layout cos device_assert
    device_print
    div_rn erf exp exp2 expand_dims fdiv floor fma full full_like join load log log2 max max_constancy max_contiguous
    maximum min minimum mul multiple_of num_programs num_warps permute program_id ravel reduce reduce_or reshape rsqrt
    sin split sqrt sqrt_rn static_assert static_print static_range store sub sum thread_barrier to_tensor umulhi
    warp_specialize where
    xor_sum zeros zeros_like"""
) - _words("pi32_t")
GLUON_REFUSED = {
    **dict.fromkeys(_words("amd extra nvidia"), "a module"),
    **dict.fromkeys(_words("inline_asm_elementwise"), "code of one GPU that nothing here runs"),
    **dict.fromkeys(_words("bank_conflicts to_linear_layout set_auto_layout"), "for the compiler to say"),
    **dict.fromkeys(_words("num_ctas dot_fma fp4_to_fp gather histogram map_elementwise"), "not emulated"),
    **dict.fromkeys(
        _words("AutoLayout CoalescedLayout DistributedLinearLayout PaddedSharedLayout SharedLinearLayout"),
        "a layout that no lesson needs",
    ),
    **dict.fromkeys(
        _words(
            """base_type base_value block_type distributed_type dtype pointer_type shared_memory_descriptor
            shared_memory_descriptor_type tensor tuple tuple_type"""
        ),
        "a class of the compiler's values",
    ),
}
HOPPER = frozenset(
    [
        *_words("fence_async_shared warpgroup_mma warpgroup_mma_init warpgroup_mma_wait"),
        *(f"mbarrier.{name}" for name in _words("MBarrierLayout allocate_mbarrier arrive expect init invalidate wait")),
        *(f"tma.{name}" for name in _words("async_copy_global_to_shared async_copy_shared_to_global store_wait")),
    ]
)
ALLOWED = frozenset(
    [
        *(f"gl.{name}" for name in GLUON),
        *(f"hopper.{name}" for name in HOPPER),
        *("triton.cdiv", "triton.next_power_of_2", "tl.PropagateNan.ALL", "tl.PropagateNan.NONE"),
        *(f"tl.{name}" for name in LANGUAGE),
        *(f"tl.math.{name}" for name in LANGUAGE_MATH),
        *(f"math.{name}" for name in MATH_VALUES | MATH_CALLS),
    ]
)
OPTIONS = _words("do_not_specialize do_not_specialize_on_alignment debug")
# These take a message, which may be an f-string.
MESSAGES = _words("print tl.device_assert tl.device_print tl.static_assert tl.static_print")

# What a value inside a kernel (a tensor, a pointer, a descriptor, a type) may be asked for.
VALUE_ATTRIBUTES = _words(
    """T abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or
    atomic_xchg atomic_xor block_shape block_type broadcast_to cast ceil cos cumprod cumsum dtype element_ty erf exp
    exp2 expand_dims flip floor gather index is_bf16 is_block is_floating is_fp16 is_fp32 is_fp64 is_fp8 is_int
    is_int_signed is_int_unsigned is_ptr layout load log log2 logical_and logical_or logsumexp max min nbytes
    nbytes_per_cta numel permute primitive_bitwidth ravel reduce reshape rsqrt scalar scatter shape sigmoid sin slice
    softmax sort split sqrt sqrt_rn store sum to trans type value view xor_sum"""
)
