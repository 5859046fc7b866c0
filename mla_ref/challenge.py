"""The layer of the MLA decode challenge: one new token a sequence, against a latent cache of up to 6144.

It is not :class:`mla_ref.MLA`: there are no norms; the cache is one buffer, 576 wide; the shared key is cached as it is
projected and rotated when it is read; the rotation turns halves, by angles that are bfloat16. That type holds whole
numbers up to 256, so that positions beyond share angles, and a layer with exact ones differs from the challenge's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ._validate import check_positive, check_tensors
from .attention import absorb, naive, sdpa
from .rope import apply_rope

BATCH, PREFILLS = 128, (512, 2048, 4096, 6144)
RELATIVE, ABSOLUTE = 2e-2, 8e-3  # tolerance of the challenge's checker, on the output and on the cache
THETA = 10000


@dataclass(frozen=True, eq=False)
class ChallengeLayer:
    """The weights of the layer, and the widths of a head.

    Parameters
    ----------
    q_down, q_up
        ``[Rq, D]`` and ``[H (Dn+Dr), Rq]``, each head's part without position first.
    kv_down, kv_up
        ``[R+Dr, D]`` and ``[H (Dn+Dv), R]``, each head's key first.
    out
        ``[D, H Dv]``.
    heads, qk_rope_head_dim, v_head_dim
        H, Dr and Dv; the other widths follow from the shapes.

    Raises
    ------
    TypeError, ValueError
        Shapes, dtypes or devices that do not agree.

    References
    ----------
    "Decoding Multi-head Latent Attention on a single MI300", problem 3 of the AMD developer challenge.
    """

    q_down: Tensor
    q_up: Tensor
    kv_down: Tensor
    kv_up: Tensor
    out: Tensor
    heads: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128

    def __post_init__(self):
        check_positive(heads=self.heads, qk_rope_head_dim=self.qk_rope_head_dim, v_head_dim=self.v_head_dim)
        size = check_tensors(
            q_down=(self.q_down, "Rq D"),
            q_up=(self.q_up, "_ Rq"),
            kv_down=(self.kv_down, "_ D"),
            kv_up=(self.kv_up, "_ R"),
            out=(self.out, f"D {self.heads * self.v_head_dim}"),
        )
        head = self.qk_nope_head_dim
        for name, rows in (
            ("q_up", self.heads * (head + self.qk_rope_head_dim)),
            ("kv_down", size["R"] + self.qk_rope_head_dim),
            ("kv_up", self.heads * (head + self.v_head_dim)),
        ):
            if getattr(self, name).shape[0] != rows or head < 1:
                raise ValueError(
                    f"{name} has shape {list(getattr(self, name).shape)}, expected {rows} rows for {self.heads} heads, "
                    f"Dr = {self.qk_rope_head_dim} and Dv = {self.v_head_dim}"
                )

    @property
    def qk_nope_head_dim(self) -> int:
        """Dn."""
        return self.kv_up.shape[0] // self.heads - self.v_head_dim

    @property
    def kv_lora_rank(self) -> int:
        """R."""
        return self.kv_up.shape[1]

    @property
    def up_projections(self) -> tuple[Tensor, Tensor]:
        """W_UK ``[H, Dn, R]`` and W_UV ``[H, Dv, R]``, views of ``kv_up``."""
        return self.kv_up.unflatten(0, (self.heads, -1)).split((self.qk_nope_head_dim, self.v_head_dim), 1)


def bfloat16_angles(positions: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return cos and sin as the challenge has them: positions, frequencies and angles in bfloat16, and the results.

    Parameters
    ----------
    positions
        Integers ``[T]``.
    dim
        Dr, even.

    Returns
    -------
    cos, sin
        bfloat16 ``[T, dim/2]``.
    """
    pair = torch.arange(dim // 2, dtype=torch.bfloat16, device=positions.device)
    angles = positions.to(torch.bfloat16)[:, None] * THETA ** (-pair / (dim // 2))
    return angles.cos(), angles.sin()


def challenge_decode(
    layer: ChallengeLayer,
    x: Tensor,
    cache: Tensor,
    length: int,
    impl: str = "absorb",
    *,
    angles: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Put the new tokens behind what the cache holds, and return the layer's output for them.

    Parameters
    ----------
    layer
        The weights.
    x
        ``[B, 1, D]``.
    cache
        ``[B, capacity, R+Dr]``, of which the first ``length`` tokens are filled: latents and keys before the rotation.
        The new tokens are written behind them, in place.
    length
        Tokens that each sequence holds before.
    impl
        ``"naive"`` expands keys and values, ``"absorb"`` does not, ``"triton"`` does what absorb does by kernels, which
        rotate the keys as they read them.
    angles
        cos and sin ``[capacity, Dr/2]``, computed once for many steps; by default anew, by :func:`bfloat16_angles`.

    Returns
    -------
    Tensor
        ``[B, 1, D]``.

    Raises
    ------
    TypeError, ValueError
        Shapes, dtypes or devices that do not agree, or a full cache. Nothing has been written then.
    """
    if impl not in ("naive", "absorb", "triton"):
        raise ValueError(f"no implementation {impl!r}, expected naive, absorb or triton")
    rotate = apply_rope
    if impl == "triton":
        from . import kernels  # needs Triton, and PyTorch alone does not
        from .kernels.decode_rotating import rotating_latent_attention

        rotate = kernels.apply_rope
    q_nope, q_rope, context, angles = _project(layer, x, cache, length, angles, rotate)
    w_uk, w_uv = layer.up_projections
    if impl in ("naive", "absorb"):
        c_kv, keys = context.split((layer.kv_lora_rank, layer.qk_rope_head_dim), -1)
        rotated = apply_rope(keys, *angles, interleaved=False)
        out, _ = (naive if impl == "naive" else absorb)(q_nope, q_rope, c_kv, rotated, w_uk, w_uv)
    else:
        q_latent, scale = kernels.absorb_query(q_nope, w_uk), (q_nope.shape[3] + q_rope.shape[3]) ** -0.5
        found, _ = rotating_latent_attention(q_latent, q_rope, context, *angles, scale=scale)
        out = kernels.reconstruct_value(found, w_uv)
    return F.linear(out.flatten(2), layer.out)


def challenge_oracle(layer: ChallengeLayer, x: Tensor, cache: Tensor, length: int, *, chunk: int = 8) -> Tensor:
    """Return what :func:`challenge_decode` should, by expansion, in float64; ``cache`` gets the new tokens.

    Keys and values of ``chunk`` sequences at a time: those of 128 sequences of 6144 tokens would take 258 GB.
    """
    check_positive(chunk=chunk)
    _check(layer, x, cache, length)
    wide = ChallengeLayer(
        *(w.double() for w in (layer.q_down, layer.q_up, layer.kv_down, layer.kv_up, layer.out)),
        layer.heads, layer.qk_rope_head_dim, layer.v_head_dim,
    )  # fmt: skip
    w_uk, w_uv = wide.up_projections
    outs = []
    for start in range(0, len(x), chunk):
        rows = slice(start, start + chunk)
        context = cache[rows, : length + 1].double()
        q_nope, q_rope, context, angles = _project(wide, x[rows].double(), context, length)
        cache[rows, length] = context[:, length].to(cache.dtype)
        c_kv, keys = context.split((layer.kv_lora_rank, layer.qk_rope_head_dim), -1)
        keys = apply_rope(keys, *angles, interleaved=False)[:, :, None].expand(-1, -1, layer.heads, -1)
        k = torch.cat((torch.einsum("btr,hdr->bthd", c_kv, w_uk), keys), -1)
        v = torch.einsum("btr,hvr->bthv", c_kv, w_uv)
        out, _ = sdpa(torch.cat((q_nope, q_rope), -1), k, v)
        outs.append(F.linear(out.flatten(2), wide.out))
    return torch.cat(outs)


def _project(layer, x, cache, length, angles=None, rotate=apply_rope):
    """Write the new tokens; return the query's parts ``[B, 1, H, ...]``, the filled cache, and its keys' angles."""
    _check(layer, x, cache, length)
    widths = layer.qk_nope_head_dim, layer.qk_rope_head_dim
    if angles is None:
        angles = bfloat16_angles(torch.arange(length + 1, device=x.device), widths[1])
    elif any(each.shape != (cache.shape[1], widths[1] // 2) for each in angles):
        raise ValueError(
            f"angles have shapes {[list(each.shape) for each in angles]}, expected cos and sin of "
            f"[{cache.shape[1]}, {widths[1] // 2}], a row for each token that the cache has room for"
        )
    cos, sin = (each[: length + 1] for each in angles)
    q = F.linear(F.linear(x, layer.q_down), layer.q_up).unflatten(-1, (layer.heads, sum(widths)))
    cache[:, length] = F.linear(x, layer.kv_down)[:, 0]
    q_nope, q_rope = q.split(widths, -1)
    q_rope = rotate(q_rope, cos[length:], sin[length:], interleaved=False)
    return q_nope, q_rope, cache[:, : length + 1], (cos, sin)


def _check(layer, x, cache, length):
    width = layer.kv_lora_rank + layer.qk_rope_head_dim
    size = check_tensors(q_down=(layer.q_down, "_ D"), x=(x, "B 1 D"), cache=(cache, f"B capacity {width}"))
    if not isinstance(length, int) or not 0 <= length < size["capacity"]:
        raise ValueError(
            f"length is {length!r}, expected 0 to {size['capacity'] - 1}: the cache has room for {size['capacity']} "
            f"tokens, the new one included"
        )
