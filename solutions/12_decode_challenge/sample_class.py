"""The sample class of lesson 12."""

from autograder.course.sample import Submission, not_right, replace, rewrite, says, slow

BOTH = "rotate_halves(q_rope, cos[length], sin[length]), rotate_halves(keys, cos, sin)"
ANGLES = "challenge_angles(torch.arange(length + 1, device=x.device), Dr)"
ALL_ANGLES = "challenge_angles(torch.arange(cache.shape[1], device=x.device), Dr)"
QUERY = "rotate_halves(q_rope, cos[length], sin[length])"
WRITE = "cache[:, length] = (x @ kv_down.T)[:, 0]"
SEEN = "cache[:, : length + 1]"
SCALE = "(Dn + Dr) ** -0.5"
MIXED = """new = (x @ kv_down.T)[:, 0]
    cache[:, length] = torch.cat((normed(new[:, :R]), new[:, R:]), -1)"""
NORM = """
def normed(x):
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:]).to(x.dtype)


"""
AT_LEAST_0 = """
def weights_at_least_0(scores):
    powers = (scores - scores.amax(-1, keepdim=True).clamp(min=0.0)).exp()
    return powers / powers.sum(-1, keepdim=True)


"""
NEIGHBOURS = """
def neighbours(x, cos, sin):
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


"""
EXACT = """
def exact_angles(count, dim, device):
    pair = torch.arange(dim // 2, dtype=torch.float64, device=device)
    angles = torch.arange(count, device=device)[:, None] * 10000 ** (-pair / (dim // 2))
    return angles.cos().bfloat16(), angles.sin().bfloat16()


"""
TURNED = "(x * cos - y * sin).to(c_kv.dtype), (y * cos + x * sin).to(c_kv.dtype)"
HALVES = """        qk = tl.dot(q_first, tl.trans(first), qk)
        qk = tl.dot(q_second, tl.trans(second), qk) * scale
"""


def before(exercise, helper):
    """Return a patch that puts a helper in front of a function."""
    return replace(exercise, f"def {exercise}(", f"{helper}def {exercise}(")


def exact(exercise, angles, count):
    """Return patches that take exact angles."""
    return before(exercise, EXACT), replace(exercise, angles, f"exact_angles({count}, Dr, x.device)")


def normalised(exercise):
    """Return patches that normalise both latents."""
    return (
        before(exercise, NORM),
        replace(exercise, "x @ q_down.T @ q_up.T", "normed(x @ q_down.T) @ q_up.T"),
        replace(exercise, WRITE, MIXED),
    )


def interleaved(exercise):
    """Return patches that pair neighbours."""
    return before(exercise, NEIGHBOURS), replace(exercise, "rotate_halves(", "neighbours(")


def cached_rotated(exercise, angles):
    """Return a patch that rotates the new key before it is cached, and all of them when they are read."""
    turned = "cache[:, length, R:] = rotate_halves(cache[:, length, R:], cos[length], sin[length])"
    return replace(exercise, f"cos, sin = {angles}\n", f"cos, sin = {angles}\n    {turned}\n")


def not_written(exercise):
    """Return patches that write into a copy of the cache."""
    return (
        replace(exercise, WRITE, f"cache, kept = cache.clone(), cache\n    {WRITE}"),
        replace(exercise, "@ wo.T, cache", "@ wo.T, kept"),
    )


def previous(exercise):
    """Return a patch that rotates the query by the position before its own."""
    return replace(exercise, QUERY, "rotate_halves(q_rope, cos[max(length - 1, 0)], sin[max(length - 1, 0)])")


def unseen(exercise):
    """Return patches that attend to what was cached before."""
    return (
        replace(exercise, SEEN, "cache[:, : max(length, 1)]"),
        replace(
            exercise,
            "rotate_halves(keys, cos, sin)",
            "rotate_halves(keys, cos[: max(length, 1)], sin[: max(length, 1)])",
        ),
    )


SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "another style: loops, float32 for products, one form for all steps, a right kernel that is slow",
        patches=(
            rewrite(
                "challenge_bytes",
                """
def challenge_bytes(B, T, D, H, Rq, R, Dn, Dr, Dv, rate, bandwidth):
    words = {"cache_bytes": B * T * (R + Dr), "expanded_bytes": 0, "weight_bytes": 0}
    for width in (Dn, Dr, Dv):
        words["expanded_bytes"] += B * T * H * width
    for rows, columns in ((Rq, D), (H * (Dn + Dr), Rq), (R + Dr, D), (H * (Dn + Dv), R), (D, H * Dv)):
        words["weight_bytes"] += rows * columns
    macs = B * words["weight_bytes"] + B * T * H * (R + Dr) + B * T * H * R
    found = {name: 2 * count for name, count in words.items()}
    times = [(found["cache_bytes"] + found["weight_bytes"]) / bandwidth, 2 * macs / rate]
    return found | {"flops": 2 * macs, "floor_us": sorted(times)[-1] * 1e6}
""",
            ),
            rewrite(
                "challenge_angles",
                """
def challenge_angles(positions, dim):
    rounded = lambda x: x.to(torch.bfloat16).float()
    fractions = rounded(-torch.arange(dim // 2, device=positions.device) / (dim // 2))
    angles = rounded(rounded(positions).unsqueeze(1) * rounded(9984.0**fractions))
    return torch.cos(angles).bfloat16(), torch.sin(angles).bfloat16()
""",
            ),
            rewrite(
                "naive_step",
                """
def turned(x, cos, sin):
    half = x.shape[-1] // 2
    other = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * torch.cat((cos, cos), -1) + other * torch.cat((sin, sin), -1)


def naive_step(x, cache, length, q_down, q_up, kv_down, kv_up, wo, heads):
    linear = torch.nn.functional.linear
    B, R, v_width = x.shape[0], kv_up.shape[1], wo.shape[1] // heads
    key = kv_up.shape[0] // heads - v_width
    cache[:, length : length + 1, :] = linear(x, kv_down)
    q = linear(linear(x, q_down), q_up).view(B, heads, -1)
    filled = cache[:, : length + 1]
    up = linear(filled[..., :R], kv_up).view(B, length + 1, heads, -1)
    cos, sin = challenge_angles(torch.arange(length + 1), q.shape[-1] - key)
    keys = turned(filled[..., R:], cos, sin)
    rope = turned(q[..., key:], cos[-1], sin[-1])
    outs = []
    for head in range(heads):
        scores = (q[:, head, None, :key].float() @ up[:, :, head, :key].float().mT)
        scores = (scores + rope[:, head, None].float() @ keys.float().mT) / q.shape[-1] ** 0.5
        outs.append(scores.softmax(-1) @ up[:, :, head, key:].float())
    return linear(torch.cat(outs, -1).to(x.dtype), wo), cache
""",
            ),
            rewrite(
                "absorbed_step",
                """
def absorbed_step(x, cache, length, q_down, q_up, kv_down, kv_up, wo, heads):
    linear = torch.nn.functional.linear
    B, R, v_width = len(x), kv_up.size(1), wo.size(1) // heads
    cache[:, length] = linear(x[:, 0], kv_down)
    up = kv_up.view(heads, -1, R)
    key = up.size(1) - v_width
    q = linear(linear(x[:, 0], q_down), q_up).view(B, heads, -1)
    cos, sin = challenge_angles(torch.arange(length + 1, device=x.device), q.size(2) - key)
    rows = torch.cat((
        torch.bmm(q[..., :key].transpose(0, 1), up[:, :key]).transpose(0, 1),
        rotate_halves(q[..., key:], cos[length], sin[length]),
    ), -1)
    filled = cache[:, : length + 1]
    tokens = torch.cat((filled[..., :R], rotate_halves(filled[..., R:], cos, sin)), -1)
    weights = torch.softmax(torch.bmm(rows.float(), tokens.float().mT) / q.size(2) ** 0.5, -1)
    found = torch.bmm(weights.to(x.dtype), filled[..., :R])
    values = torch.bmm(found.transpose(0, 1), up[:, key:].mT)
    return linear(values.transpose(0, 1).reshape(B, 1, -1), wo), cache
""",
            ),
            rewrite(
                "rotating_decode",
                """
@triton.jit
def one_head(
    q_ptr, p_ptr, cache_ptr, cos_ptr, sin_ptr, out_ptr, scale, H, length, capacity,
    R: tl.constexpr, DR: tl.constexpr, BLOCK_T: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    b, r, d = row // H, tl.arange(0, R), tl.arange(0, DR // 2)
    q = tl.load(q_ptr + row * R + r).to(tl.float32)
    p1 = tl.load(p_ptr + row * DR + d).to(tl.float32)
    p2 = tl.load(p_ptr + row * DR + DR // 2 + d).to(tl.float32)
    peak, total, acc = float("-inf"), 0.0, tl.zeros([R], tl.float32)
    for start in range(0, length, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        seen = (t < length)[:, None]
        token = cache_ptr + (b * capacity + t)[:, None] * (R + DR)
        c = tl.load(token + r[None, :], mask=seen, other=0.0).to(tl.float32)
        x = tl.load(token + R + d[None, :], mask=seen, other=0.0).to(tl.float32)
        y = tl.load(token + R + DR // 2 + d[None, :], mask=seen, other=0.0).to(tl.float32)
        cos = tl.load(cos_ptr + t[:, None] * (DR // 2) + d[None, :], mask=seen, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + t[:, None] * (DR // 2) + d[None, :], mask=seen, other=0.0).to(tl.float32)
        turned = (x * cos - y * sin) * p1[None, :] + (y * cos + x * sin) * p2[None, :]
        scores = (tl.sum(c * q[None, :], axis=1) + tl.sum(turned, axis=1)) * scale
        scores = tl.where(t < length, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores))
        weights, kept = tl.exp(scores - new_peak), tl.exp(peak - new_peak)
        total = total * kept + tl.sum(weights)
        acc = acc * kept + tl.sum(c * weights[:, None], axis=0)
        peak = new_peak
    tl.store(out_ptr + row * R + r, acc / total)


def rotating_decode(q_latent, q_rope, cache, cos, sin, length, scale):
    (B, H, R), Dr = q_latent.shape, q_rope.shape[2]
    out = torch.empty_like(q_latent)
    block = 64 if R <= 64 else 16
    one_head[(B * H,)](
        q_latent, q_rope, cache, cos, sin, out, scale, H, length, cache.shape[1], R=R, DR=Dr, BLOCK_T=block
    )
    return out
""",
            ),
            rewrite(
                "challenge_step",
                """
def challenge_step(x, cache, length, q_down, q_up, kv_down, kv_up, wo, heads):
    linear = torch.nn.functional.linear
    B, R = len(x), kv_up.size(1)
    up = kv_up.view(heads, -1, R)
    key = up.size(1) - wo.size(1) // heads
    cache[:, length] = linear(x[:, 0], kv_down)
    q = linear(linear(x[:, 0], q_down), q_up).view(B, heads, -1)
    cos, sin = challenge_angles(torch.arange(cache.size(1), device=x.device), q.size(2) - key)
    latent = torch.bmm(q[..., :key].transpose(0, 1), up[:, :key]).transpose(0, 1).contiguous()
    rope = rotate_halves(q[..., key:], cos[length], sin[length]).contiguous()
    found = rotating_decode(latent, rope, cache, cos, sin, length + 1, q.size(2) ** -0.5)
    values = torch.bmm(found.transpose(0, 1), up[:, key:].mT)
    return linear(values.transpose(0, 1).reshape(B, 1, -1), wo), cache
""",
            ),
        ),
        expect=slow("rotating_decode"),
    ),
    # Wrong
    Submission(
        "eli",
        "words for bytes, exact angles, neighbours in pairs",
        patches=(
            replace("challenge_bytes", "cache = 2 * B", "cache = B"),
            replace("challenge_bytes", "2 * B * T * H * (Dn", "B * T * H * (Dn"),
            replace("challenge_bytes", '"weight_bytes": 2 * weights', '"weight_bytes": weights'),
            replace("challenge_bytes", "(2 * weights + cache)", "(weights + cache)"),
            rewrite(
                "challenge_angles",
                """
def challenge_angles(positions, dim):
    pair = torch.arange(dim // 2, dtype=torch.float64)
    angles = positions[:, None] * 10000 ** (-pair / (dim // 2))
    return angles.cos().bfloat16(), angles.sin().bfloat16()
""",
            ),
            *interleaved("naive_step"),
            *interleaved("absorbed_step"),
            replace("rotating_decode", "DR // 2 + offs_d[None, :], mask", "2 * offs_d[None, :] + 1, mask"),
            replace("rotating_decode", "DR + offs_d[None, :], mask", "DR + 2 * offs_d[None, :], mask"),
            replace("rotating_decode", "tokens + R + offs_d[None, :]", "tokens + R + 2 * offs_d[None, :]"),
            replace("challenge_step", SCALE, "(R + Dr) ** -0.5"),
        ),
        expect={
            **says("challenge_bytes", "the bytes are words"),
            **says("challenge_angles", "the angles are exact"),
            **says("naive_step", "the pairs are neighbours"),
            **says("absorbed_step", "the pairs are neighbours"),
            **not_right("rotating_decode", "the pairs are neighbours"),
            **says("challenge_step", "1/√576"),
        },
    ),
    Submission(
        "fay",
        "a cache a head, a product that is not rounded, exact angles in every step, keys turned backwards",
        patches=(
            replace("challenge_bytes", "cache = 2 * B * T", "cache = 2 * H * B * T"),
            replace("challenge_angles", "positions.to(torch.bfloat16)[:, None]", "positions[:, None].float()"),
            replace(
                "challenge_angles", "angles.cos(), angles.sin()", "angles.cos().bfloat16(), angles.sin().bfloat16()"
            ),
            *exact("naive_step", ANGLES, "length + 1"),
            *exact("absorbed_step", ANGLES, "length + 1"),
            replace(
                "rotating_decode", TURNED, TURNED.replace("x * cos - y", "x * cos + y").replace("cos + x", "cos - x")
            ),
            *exact("challenge_step", ALL_ANGLES, "cache.shape[1]"),
        ),
        expect={
            **says("challenge_bytes", "a cache for each head"),
            **says("challenge_angles", "a part of the angle is not rounded"),
            **says("naive_step", "the angles are exact", 2),
            **says("absorbed_step", "the angles are exact", 2),
            **not_right("rotating_decode", "the keys turn backwards"),
            **says("challenge_step", "the angles are exact", 2),
        },
    ),
    Submission(
        "gus",
        "no RoPE part in the expansion, frequencies of dim, the query a position too early, keys not turned",
        patches=(
            replace("challenge_bytes", "H * (Dn + Dr + Dv)", "H * (Dn + Dv)"),
            replace("challenge_angles", "(-pair / (dim // 2))", "(-pair / dim)"),
            previous("naive_step"),
            previous("absorbed_step"),
            replace("rotating_decode", TURNED, "x.to(c_kv.dtype), y.to(c_kv.dtype)"),
            previous("challenge_step"),
        ),
        expect={
            **says("challenge_bytes", "expanded_bytes lacks the keys' RoPE part"),
            **says("challenge_angles", "fall to 1/100 only"),
            **says("naive_step", "it stands at position length"),
            **says("absorbed_step", "it stands at position length"),
            **not_right("rotating_decode", "the keys are not rotated"),
            **says("challenge_step", "it stands at position length"),
        },
    ),
    Submission(
        "hana",
        "no output projection, cos for sin, a query that is not turned, another scale, no RoPE part",
        patches=(
            replace("challenge_bytes", " + H * Dv * D\n", "\n"),
            replace("challenge_angles", "angles.cos(), angles.sin()", "angles.sin(), angles.cos()"),
            replace("naive_step", BOTH, "q_rope, rotate_halves(keys, cos, sin)"),
            replace("absorbed_step", SCALE, "(R + Dr) ** -0.5"),
            replace("rotating_decode", HALVES, "        qk *= scale\n"),
            replace("challenge_step", "sin, length + 1,", "sin, min(length + 2, cache.shape[1]),"),
        ),
        expect={
            **says("challenge_bytes", "lack the output projection"),
            **says("challenge_angles", "cos and sin are swapped"),
            **says("naive_step", "the query's RoPE part is not rotated"),
            **says("absorbed_step", "1/√576"),
            **not_right("rotating_decode", "the scores lack the RoPE part"),
            **says("challenge_step", "a place more"),
        },
    ),
    Submission(
        "ida",
        "MACs, keys that are not turned, values first, the scale of the latent, a token written over",
        patches=(
            replace("challenge_bytes", "2 * B * weights + 2 * B * T", "B * weights + B * T"),
            replace(
                "challenge_angles",
                "10000 ** (-pair / (dim // 2))",
                "(10000 ** (-pair / (dim // 2)).float()).bfloat16()",
            ),
            replace("naive_step", BOTH, f"{QUERY}, keys"),
            replace("absorbed_step", "w_uk, w_uv =", "w_uv, w_uk ="),
            replace("absorbed_step", "split((Dn, Dv), 1)", "split((Dv, Dn), 1)"),
            replace("rotating_decode", "out, scale,", "out, (R + Dr) ** -0.5,"),
            replace("challenge_step", WRITE, WRITE.replace("length", "max(length - 1, 0)")),
        ),
        expect={
            **says("challenge_bytes", "in MACs"),
            **says("challenge_angles", "PyTorch takes 9984", 1),
            **says("naive_step", "the cached keys are not rotated"),
            **says("absorbed_step", "keys and values of kv_up are exchanged"),
            **not_right("rotating_decode", "1/√576"),
            **says("challenge_step", "written over the last one"),
        },
    ),
    Submission(
        "jan",
        "scores alone, keys turned before they are cached, a last token that is not seen",
        patches=(
            replace("challenge_bytes", "(2 * R + Dr)", "(R + Dr)"),
            cached_rotated("naive_step", ANGLES),
            cached_rotated("absorbed_step", ANGLES),
            replace("rotating_decode", "offs_n[None, :] < length", "offs_n[None, :] < tl.maximum(length - 1, 1)"),
            cached_rotated("challenge_step", ALL_ANGLES),
        ),
        expect={
            **says("challenge_bytes", "flops lacks the weighted sum"),
            **says("naive_step", "rotated before it is cached"),
            **says("absorbed_step", "rotated before it is cached"),
            **not_right("rotating_decode", "the last token is not seen"),
            **says("challenge_step", "rotated before it is cached"),
        },
    ),
    Submission(
        "kim",
        "memory alone, norms, all places of the cache",
        patches=(
            replace(
                "challenge_bytes",
                "max((2 * weights + cache) / bandwidth, flops / rate)",
                "(2 * weights + cache) / bandwidth",
            ),
            *normalised("naive_step"),
            *normalised("absorbed_step"),
            replace("rotating_decode", "out, scale, H, length,", "out, scale, H, capacity,"),
            *normalised("challenge_step"),
        ),
        expect={
            **says("challenge_bytes", "the time of the bytes alone"),
            **says("naive_step", "no norms"),
            **says("absorbed_step", "no norms"),
            **not_right("rotating_decode", "all places of the cache count"),
            **says("challenge_step", "no norms"),
        },
    ),
    Submission(
        "lea",
        "times added, a new token that is not seen, NaN behind the length",
        patches=(
            replace(
                "challenge_bytes",
                "max((2 * weights + cache) / bandwidth, flops / rate)",
                "((2 * weights + cache) / bandwidth + flops / rate)",
            ),
            *unseen("naive_step"),
            *unseen("absorbed_step"),
            replace("rotating_decode", "there = offs_n[:, None] < length", "there = offs_n[:, None] < capacity"),
            replace("challenge_step", "sin, length + 1,", "sin, max(length, 1),"),
        ),
        expect={
            **says("challenge_bytes", "adds the two times"),
            **says("naive_step", "the new token is not attended to"),
            **says("absorbed_step", "the new token is not attended to"),
            **not_right("rotating_decode", "0 · NaN is NaN", 3),
            **says("challenge_step", "the new token is not attended to"),
        },
    ),
    Submission(
        "max",
        "a copy of the cache, an out that is not divided",
        patches=(
            *not_written("naive_step"),
            *not_written("absorbed_step"),
            replace("rotating_decode", "acc / l_i[:, None]", "acc"),
            *not_written("challenge_step"),
        ),
        expect={
            **says("naive_step", "comes back without the new token"),
            **says("absorbed_step", "comes back without the new token"),
            **not_right("rotating_decode", "not divided by the sum"),
            **says("challenge_step", "comes back without the new token"),
        },
    ),
    Submission(
        "nora",
        "an accumulator that is not rescaled",
        patches=(replace("rotating_decode", "acc * alpha[:, None]", "acc"),),
        expect=not_right("rotating_decode", "acc is not multiplied", 1),
    ),
    Submission(
        "olaf",
        "maxima of at least 0, or of at least −10000",
        patches=(
            *(
                patch
                for exercise in ("naive_step", "absorbed_step")
                for patch in (
                    before(exercise, AT_LEAST_0),
                    replace(exercise, "scores.softmax(-1)", "weights_at_least_0(scores)"),
                )
            ),
            replace(
                "rotating_decode",
                'tl.full([BLOCK_H], float("-inf"), tl.float32)',
                "tl.full([BLOCK_H], -1e4, tl.float32)",
            ),
        ),
        expect={
            **says("naive_step", "subtract their maximum", 2),
            **says("absorbed_step", "subtract their maximum", 2),
            **not_right("rotating_decode", "so is the first maximum", 3),
        },
    ),
)
DEMO = ("ada", "eli", "lea")
