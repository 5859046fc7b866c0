"""What a beginner writes first, and what the check says of it: it names the mistake, and the place."""

from pathlib import Path

import pytest

from autograder.checking import CheckFailed, check
from autograder.course.course import Course
from autograder.course.lesson import without_marks
from autograder.isolation.worker import running

COURSE = Course.at(Path(__file__).parents[1])

SOFTMAX = ("torch.softmax(scores, dim=-1)", "scores.exp() / scores.exp().sum(-1, keepdim=True)")
ATTEMPTS = {
    "the count is not stored": ("KVCache", [("        self.used = total\n", "")], "the new length is not stored"),
    "the error is returned": ("KVCache", [("raise ValueError", "return ValueError")], "write raise in place of return"),
    "a method made an attribute": (
        "KVCache",
        [("    def length", "    @property\n    def length")],
        "the decorator above length makes it an attribute",
    ),
    "copies of what is filled, which one sequence is not": (
        "KVCache",
        [("self.k[:, :total], self.v[:, :total]", "self.k[:, :total].contiguous(), self.v[:, :total].contiguous()")],
        r"13,440 of them by `clone` in line \d+ .* \(at B=2,",
    ),
    "the new tokens are changed": (
        "CachedAttention",
        [("        q, k, v =", "        x += 1\n        q, k, v =")],
        "it changed an argument of forward in place",
    ),
    "the weights are changed": (
        "CachedAttention",
        [("        q, k, v =", "        self.w_o += 1\n        q, k, v =")],
        "it changed an argument of __init__ in place",
    ),
    "rows tried up to 1900": (
        "ridge_rows",
        [("    while True:", "    while m < 1900:")],
        "the number of rows is None",
    ),
    "bytes as a float": (
        "tensor_bytes",
        [("return ", "return 1.0 * ")],
        "this is the float 30.0, expected an int",
    ),
    "nothing is written, in no row": (
        "mla_decode_step",
        [("    c_cache[:, now] = c_new\n    k_cache[:, now] = k_new\n", "")],
        "come back without the new token",
    ),
    "a scale of 1/√(Dn+2Dr)": (
        "naive_mla_attention",
        [("q_nope.shape[-1] + q_rope", "q_nope.shape[-1] + 2 * q_rope")],
        "out has a relative error of",
    ),
    "a ratio rounded down": ("predict_latent_cache", [("expanded / latent", "expanded // latent")], "one, rounded: le"),
    "half precision": ("attention", [("return out, lse", "return out.half(), lse")], "which rounds as much"),
    "the time of one draft": (
        "predict_drafting",
        [("n * draft_us", "draft_us")],
        r"prediction\['best_k'\] is 8, which is not the right number",
    ),
    "a latent divided in 16 bits": ("quantize_cache", [(".float()", "")], "allowed 1e-06(?!; it is float8)"),
    "the cache beside the result": (
        "CachedAttention",
        [("return out.flatten(2) @ self.w_o.T", "return out.flatten(2) @ self.w_o.T, self.cache")],
        "it returns a value of type KVCache, expected y and nothing else",
    ),
    "a refusal that none asked for": (
        "KVCache",
        [("total > self.k.shape[1]", "total > self.k.shape[0]")],
        r"call 1 of append should not raise ValueError in line \d+ \(`raise ValueError\(f\"no room",
    ),
    "one axis too few": (
        "CachedAttention",
        [("        q, k, v = ", "        S, D = x.shape\n        q, k, v = ")],
        r"call 1 of forward should not raise ValueError in line \d+ \(`S, D = x.shape`\): too many values to unpack",
    ),
    "the cache is not used": (
        "CachedAttention",
        [
            ("        q, k, v = ", "        S, x = x.shape[1], self.all(x)\n        q, k, v = "),
            ("self.cache.append(k, v)", "k, v"),
            ("return out.flatten(2)", "return out[:, -S:].flatten(2)"),
            (
                "    def forward",
                "    def all(self, x):\n"
                "        self.seen = torch.cat((self.seen, x), 1) if hasattr(self, 'seen') else x\n"
                "        return self.seen\n\n"
                "    def forward",
            ),
        ],
        "the products of torch's operations take",
    ),
    "keys and values beside the cache": (
        "CachedAttention",
        [
            (
                "k_all, v_all = self.cache.append(k, v)",
                "held = getattr(self, 'held', (k[:, :0],) * 2)\n"
                "        k_all, v_all = self.held = [torch.cat(pair, 1) for pair in zip(held, (k, v))]",
            )
        ],
        "call 3 of forward should have raised ValueError",
    ),
    "a cache that is full, and nobody is told": (
        "CachedAttention",
        [
            (
                "k_all, v_all = self.cache.append(k, v)",
                "try:\n"
                "            k_all, v_all = self.cache.append(k, v)\n"
                "        except ValueError:\n"
                "            k_all, v_all = k, v",
            )
        ],
        "call 3 of forward should have raised ValueError",
    ),
    "tokens appended one by one": (
        "CachedAttention",
        [
            ("        k_all, v_all =", "        for t in range(x.shape[1]):\n            k_all, v_all ="),
            ("append(k, v)", "append(k[:, t : t + 1], v[:, t : t + 1])"),
        ],
        "append all of a call at once",
    ),
    "the lse beside the result": (
        "CachedAttention",
        [("out, _ =", "out, lse ="), ("return out.flatten(2) @ self.w_o.T", "return out.flatten(2) @ self.w_o.T, lse")],
        "call 1 of forward is a tuple, expected a tensor",
    ),
    "the weights overflow, lesson 01": ("attention", [SOFTMAX], "exp overflows"),
    "the weights overflow, lesson 02": ("naive_mla_attention", [SOFTMAX], "exp overflows"),
    "the weights overflow, lesson 03": ("latent_attention", [SOFTMAX], "exp overflows"),
    "the log-sum-exp overflows": (
        "latent_attention",
        [("torch.logsumexp(scores, dim=-1)", "scores.exp().sum(-1).log()")],
        "lse overflows",
    ),
    "the log-sum-exp of heads first": (
        "attention",
        [("torch.logsumexp(scores, dim=-1)", "torch.logsumexp(scores, dim=-1).transpose(1, 2)")],
        r"lse has shape \[1, 2, 1\], expected \[1, 1, 2\]",
    ),
    "the largest score for the log-sum-exp": (
        "latent_attention",
        [("torch.logsumexp(scores, dim=-1)", "scores.amax(-1)")],
        "lse is the largest score",
    ),
    "bytes counted in float32": (
        "tensor_bytes",
        [("math.prod(shape)", "int(torch.tensor(shape, dtype=torch.float32).prod())")],
        "is 16793604, which is not the right number",
    ),
    "times equal to the nanosecond": (
        "roofline_time",
        [("memory >= compute", "memory >= compute - 1e-9")],
        "this is the shorter of the two times",
    ),
    "rows without their results": (
        "ridge_rows",
        [('cost["bytes"],', 'cost["bytes"] - tensor_bytes((m, n), itemsize),')],
        "the bytes lack the results",
    ),
    "seconds rounded down": ("roofline_time", [("nbytes / bandwidth", "nbytes // bandwidth")], "seconds is 2"),
    "an axis of its own for the weight": (
        "rms_normalize",
        [("(y * weight)", "(y * weight[None])")],
        r"y has shape \[1, 24\], expected \[24\]",
    ),
    "a mask of 0 times −inf": (
        "latent_attention",
        [(".masked_fill(future[:, None, :], -math.inf)", " + future[:, None, :] * -math.inf")],
        "has NaN in 24 of 24 entries: NaN comes here from 0/0, inf/inf, 0 · inf or inf - inf",
    ),
    "float64 computed in float32": (
        "rms_normalize",
        [("x.to(torch.promote_types(x.dtype, torch.float32))", "x.float()"), ("(y * weight)", "(y * weight.float())")],
        "it is rounded to float32, which rounds as much",
    ),
    "float64 computed in part in float32": (
        "rms_normalize",
        [("x.to(torch.promote_types(x.dtype, torch.float32))", "x.float()")],
        "computed, in part, in float32, which rounds as much",
    ),
    "pairs turned in float32": (
        "rotate_pairs",
        [("x[..., 0::2], x[..., 1::2]", "x[..., 0::2].float(), x[..., 1::2].float()"), ("dim=-1)", "dim=-1).float()")],
        "rounds as much",
    ),
    "the mean of the squares in float16": (
        "rms_normalize",
        [("y.square().mean(-1, keepdim=True)", "y.square().mean(-1, keepdim=True).to(x.dtype)")],
        "the mean of the squares overflows float16",
    ),
    "eps of its own, lesson 02": ("rms_normalize", [("+ eps", "+ 1e-6")], "eps is 1e-06 whatever the call says"),
    "eps of its own, lesson 04": ("rms_norm", [("+ eps", "+ 1e-6")], "eps=1e-05"),
    "another eps for the latent": (
        "latent_kv",
        [("c_kv, norm_weight)", "c_kv, norm_weight, 1e-5)")],
        "c_kv has a relative",
    ),
    "a latent for every head": (
        "absorbed_mla_attention",
        [("    scale =", "    c_kv = c_kv[:, :, None].repeat(1, 1, w_uk.shape[0], 1)[:, :, 0]\n    scale =")],
        "torch's operations write",
    ),
    "the scale upside down": (
        "absorbed_mla_attention",
        [("1 / math.sqrt", "math.sqrt")],
        r"the softmax scale is √\(Dn",
    ),
    "the intensity of bfloat16": (
        "predict_decode_cost",
        [("flops / read}", "num_heads / num_kv_heads}")],
        "which holds for numbers of 2 bytes",
    ),
    "TF32 in a product": ("scaled_matmul", [(', input_precision="ieee"', "")], "multiplied in TF32"),
    "TF32 in scores": ("attention_score", [(', input_precision="ieee"', "")], "multiplied in TF32"),
    "a sum of products, of which Triton makes a tl.dot": (
        "scaled_matmul",
        [
            ('acc = tl.dot(x, y, acc, input_precision="ieee")', "acc += tl.sum(x[:, :, None] * y[None], axis=1)"),
            ("triton.next_power_of_2(size), 16), 128)", "16, 16), 16)"),
        ],
        "turns a tl.sum over a product of two blocks into a tl.dot",
    ),
    "a sum of products in 16 bits": (
        "latent_decode",
        [
            (
                "tl.dot(q_latent, tl.trans(c_kv))",
                "tl.sum(q_latent[:, :, None] * tl.trans(c_kv)[None], axis=1).to(tl.float32)",
            )
        ],
        r"tl.sum over a product of two blocks of 16 bits \(take tl.dot\)",
    ),
    "letters that Triton does not take": (
        "scale_add",
        [("scale_add_kernel", "núcleo")],
        "letters of English, digits and _ in a kernel's name",
    ),
    "a buffer of many axes": (
        "scale_add",
        [("out = torch.empty_like(x)", "out = torch.empty([1] * 20 + [*x.shape], dtype=x.dtype, device=x.device)")],
        "a tensor has 21 axes; at most 16",
    ),
    "no decorator": ("scale_add", [("@triton.jit\n", "")], "is @triton.jit missing"),
    "a mean": ("rms_norm", [("tl.sum(x * x) / D", "tl.mean(x * x)")], r"'mean': tl.sum\(x\) / n is the mean"),
    "NumPy in a kernel": ("scale_add", [("alpha * x", "np.exp(x)")], "a kernel has its functions from tl"),
    "one block of heads": ("apply_rope", [("triton.cdiv(H, block_h)", "1")], "no store wrote"),
    "512 columns, however many there are": ("scaled_matmul", [("(0, K, BLOCK_K)", "(0, 512, BLOCK_K)")], "K=1100"),
    "one block for the rotated part": (
        "attention_score",
        [
            (
                "k_rope_ptr + b * T * P, offs_m, offs_n, M, T, P, BLOCK_D",
                "k_rope_ptr + b * T * P, offs_m, offs_n, M, T, P, 256",
            ),
            ("start in range(0, D, BLOCK_D)", "start in range(0, D if BLOCK_D < 256 else 1, BLOCK_D)"),
        ],
        "Dr=270",
    ),
    "a whole prompt is not causal": (
        "masked_softmax",
        [("- (S - 1 - s)", "- (S - 1 - s) * (S < T)")],
        "S−1−s positions less",
    ),
    "twelve blocks at the most": (
        "long_softmax",
        [("range(0, seen, BLOCK_N)", "range(0, tl.minimum(seen, 12 * BLOCK_N), BLOCK_N)")],
        "T=70000",
    ),
    "weights of rows that see nothing are not stored": (
        "masked_softmax",
        [("mask=offs_n < T)", "mask=(offs_n < T) & (seen > 0))")],
        "no store wrote 128 of them",
    ),
    "heads before queries": ("masked_softmax", [("row // H % S", "row % S")], "taken for query n % S"),
    "a running maximum from 0": (
        "long_softmax",
        [('m_i, l_i = float("-inf"), 0.0', "m_i, l_i = 0.0, 0.0")],
        "a maximum that begins at 0",
    ),
    "a maximum of 0 or more": (
        "masked_softmax",
        [("m_i = tl.max(x)", "m_i = tl.maximum(tl.max(x), 0.0)")],
        "a maximum that begins at 0",
    ),
    "no warp for a short row": (
        "masked_softmax",
        [("min(max(block // 1024, 1), 16)", "block // 1024")],
        r"max\(1, n\) where n may come to 0",
    ),
    "a base-2 logarithm of the sum": (
        "latent_decode",
        [("m_i + tl.log(l_i)", "m_i + tl.log2(l_i)")],
        "a maximum that is natural",
    ),
    "a maximum from 0, latent_decode": (
        "latent_decode",
        [('tl.full([BLOCK_H], float("-inf"), tl.float32)', "tl.zeros([BLOCK_H], tl.float32)")],
        "let the maximum begin at −inf",
    ),
    "a maximum from 0, split_decode": (
        "split_decode",
        [('tl.full([BLOCK_H], float("-inf"), tl.float32)', "tl.zeros([BLOCK_H], tl.float32)")],
        "let the maximum begin at −inf",
    ),
    "a maximum from 0, folded_decode": (
        "folded_decode",
        [('tl.full([BLOCK_M], float("-inf"), tl.float32)', "tl.zeros([BLOCK_M], tl.float32)")],
        "let the maximum begin at −inf",
    ),
    "a maximum from 0, paged_decode": (
        "paged_decode",
        [('tl.full([BLOCK_H], float("-inf"), tl.float32)', "tl.zeros([BLOCK_H], tl.float32)")],
        "let the maximum begin at −inf",
    ),
    "an accumulator of 16 bits": (
        "latent_decode",
        [("c_kv, acc * alpha[:, None])", "c_kv, acc * alpha[:, None]).to(c_kv.dtype).to(tl.float32)")],
        "T=4500",
    ),
    "exp2 for exp": ("latent_decode", [("tl.exp(", "tl.exp2(")], "multiply the scores by log2"),
    "exp2 and log2 for exp and log": (
        "latent_decode",
        [("tl.exp(", "tl.exp2("), ("tl.log(", "tl.log2(")],
        "multiply the scores by log2",
    ),
    "the largest score for lse": ("latent_decode", [("m_i + tl.log(l_i)", "m_i")], "lse is the largest score"),
    "scores behind a split": (
        "split_decode",
        [("offs_n[None, :] < end, qk", "offs_n[None, :] < length, qk")],
        "set the scores of offs_n >= end",
    ),
    "scores are not masked in a split": (
        "split_decode",
        [('tl.where(offs_n[None, :] < end, qk, float("-inf"))', "qk")],
        "set the scores of offs_n >= end",
    ),
    "the sum's logarithm for lse": (
        "combine_splits",
        [("m_i + tl.log(l_i)", "tl.log(l_i)")],
        "add the maximum that was subtracted",
    ),
    "a finite lse for no split": (
        "combine_splits",
        [
            ('offs_p < P, other=float("-inf")', "offs_p < P, other=-1e30"),
            ("(weights > 0)[", "((weights > 0) & (offs_p < P))["),
        ],
        "lse should be -inf",
    ),
    "half of the scores are scaled": (
        "latent_decode",
        [("tl.dot(q_rope, tl.trans(k_rope), qk) * scale", "qk + tl.dot(q_rope, tl.trans(k_rope)) * scale")],
        "only q_rope · k_rope is multiplied",
    ),
    "the slot of the new token": (
        "token_offsets",
        [("position % page_size", "offs_s % page_size")],
        "the slot is s % page_size",
    ),
    "the same, in an update": (
        "paged_update",
        [("position % page_size", "offs_s % page_size")],
        "the slot is s % page_size",
    ),
    "padding that the loads left out is stored": (
        "paged_update",
        [
            ("c_kv, mask=real[:, None])", "c_kv, mask=(offs_s < S)[:, None])"),
            ("k_rope, mask=real[:, None])", "k_rope, mask=(offs_s < S)[:, None])"),
        ],
        "tokens behind lengths\\[b\\] are written as well",
    ),
    "reads of blocks that are full": (
        "predict_fold",
        [("q_len // factor", "-(-q_len * H // 128)")],
        "cache_reads counts blocks of 128 rows",
    ),
    "lengths of the context": (
        "token_offsets",
        [("real = offs_s <", "real = tl.load(starts_ptr + b) + offs_s <")],
        "lengths\\[b\\] is taken for the end of the context",
    ),
    "offsets on the page of a masked look-up": (
        "token_offsets",
        [("tl.where(real, offset, -1)", "offset")],
        "have an offset",
    ),
    "another error than the one asked for": (
        "BasicPagedCache",
        [("raise ValueError", "raise KeyError")],
        "a call that must be refused raises ValueError",
    ),
    "pages that free loses": (
        "BasicPagedCache",
        [("self.free_pages += self.tables.pop", "self.tables.pop")],
        "their pages stay taken for ever",
    ),
    "pages that a refused append loses, counted by tables": (
        "BasicPagedCache",
        [
            ("return len(self.c_kv) - len(self.free_pages)", "return sum(map(len, self.tables.values()))"),
            ("        if needed > len(self.free_pages):\n            raise ValueError(f", "        taken = []\n"),
            ('"{needed} pages needed, {len(self.free_pages)} free")\n', ""),
            (
                "        pages += [self.free_pages.pop() for _ in range(needed)]\n",
                "        for _ in range(needed):\n"
                "            if not self.free_pages:\n"
                "                raise ValueError\n"
                "            taken.append(self.free_pages.pop())\n"
                "        pages += taken\n",
            ),
        ],
        "an append that is refused kept pages that it had taken",
    ),
    "pages for the new tokens alone": (
        "BasicPagedCache",
        [("-(-(length + len(c_kv)) // self.page_size) - len(pages)", "-(-len(c_kv) // self.page_size)")],
        "append takes pages for its new tokens alone",
    ),
    "an entry left by a refusal": (
        "BasicPagedCache",
        [
            ("needed} pages needed, ", "self.tables.setdefault(sequence, [])}"),
            ("if not self.lengths.get(sequence)", "if sequence not in self.tables"),
            ("        needed =", "        if not len(c_kv):\n            return\n        needed ="),
            ("        del self.lengths[sequence]", "        self.lengths.pop(sequence, 0)"),
        ],
        "whose only append was refused",
    ),
    "bytes of tokens for those of pages": (
        "predict_pages",
        [('"page_bytes": slots', '"page_bytes": sum(lengths)')],
        "page_bytes are those of the tokens",
    ),
    "one wrong number of five": (
        "predict_splits",
        [("num_splits * partial if", "num_splits * partial // H if")],
        r"\['partial_bytes'\]: the partials lack H",
    ),
    "no more splits than tokens": (
        "predict_splits",
        [("    programs =", "    num_splits = min(num_splits, T)\n    programs =")],
        "splits that get no token are left out",
    ),
    "partials of blocks of 16 rows": (
        "predict_splits",
        [("2 * B * H * (512", "2 * B * -(-H // 16) * 16 * (512")],
        r"\['partial_bytes'\] is",
    ),
    "a factor of 16 at the most": (
        "predict_fold",
        [("range(1, q_len + 1)", "range(1, min(q_len, 16) + 1)")],
        r"\['factor'\] is 15",
    ),
    "a factor that fits, and reads rounded down": (
        "predict_fold",
        [("q_len % f == 0 and ", "")],
        r"\['factor'\]: factor is the most tokens that fit",
    ),
    "no prefix for one sequence": (
        "prefix_costs",
        [("stored = L +", "stored = (L if B > 1 else 0) +")],
        "which is not the right number",
    ),
    "a prefix without the new tokens": (
        "step_time",
        [("(B, S, T, L, **sizes)", "(B, S, T, min(L, T - S), **sizes)")],
        r"'seconds'\] is .*, which is not the right number",
    ),
    "one step for two parts that are naive": (
        "choose_forms",
        [
            (
                "shared_seconds + own_seconds}",
                "step_time(own, B, S, T, L, sizes, itemsize, rate, bandwidth)['seconds'] "
                "if shared == own == 'naive' else shared_seconds + own_seconds}",
            )
        ],
        r"'seconds'\] is .*, which is not the right number",
    ),
    "the best bandwidth of a table": (
        "read_measurements",
        [("naive_us, _ = rows[0]", "naive_us, _ = min(rows, key=lambda row: row[1])")],
        "naive_gb_per_s is the best of the table",
    ),
    "the best rate of a table": (
        "read_measurements",
        [("rows[-1]", "max(rows, key=lambda row: row[0] / row[2])")],
        "absorb_tflop_per_s is the best of the table",
    ),
    "words of two bytes": (
        "read_measurements",
        [("read = itemsize * ", "read = 2 * ")],
        "takes words of two bytes",
    ),
    "bytes of a fused kernel alone": (
        "predict_score_bytes",
        [('"score_fused_bytes": 5, "softmax_fused_bytes": 9', '"score_fused_bytes": 1, "softmax_fused_bytes": 2')],
        "the passes of the fused kernel alone",
    ),
    "numbers of float32 everywhere": (
        "predict_score_bytes",
        [("T * itemsize", "T * 4"), ("(R + Dr) * itemsize", "(R + Dr) * 4")],
        "numbers are counted at 4 bytes",
    ),
    "ratios for gains": (
        "predict_ablation",
        [("(total - each) - 1", "(total - each)")],
        r"\['gains'\]\[0\]: these are ratios",
    ),
    "pages of its own": (
        "attend_pages",
        [("    real =", "    pages = pages.clone()\n    real =")],
        "pages is returned as a tensor of its own",
    ),
    "a cache of its own": (
        "naive_step",
        [("    R, Dv =", "    cache = cache.clone()\n    R, Dv =")],
        "cache is returned as a tensor of its own",
    ),
    "whole prompts in one run": (
        "generate_texts",
        [("    B, longest =", "    chunk = max(map(len, prompts))\n    B, longest =")],
        "9 tokens of a text in one run, and there is memory for 4",
    ),
    "the rate of one device doubled": (
        "predict_crossovers",
        [("rate=376e12", "rate=2 * 376e12")],
        r"prediction\['ascend'\] is [\d.]+, which is not the right number",
    ),
    "all rates doubled": (
        "predict_crossovers",
        [("376e12", "752e12"), ("1979e12 / 2", "1979e12"), ("744e12", "1488e12")],
        "all three are twice as large",
    ),
    "slots by a page of 16": (
        "paged_gather",
        [("slot = offs_n % page_size", "slot = offs_n % 16")],
        "the slot is not position % page_size",
    ),
    "ended texts that go on": (
        "generate_texts",
        [("going.long(), cache", "torch.ones(B).long(), cache")],
        "texts that have ended go through the model 4 times more",
    ),
    "done texts that go on": (
        "verify_drafts",
        [
            ("going * (k + 1), cache", "torch.full_like(going, k + 1), cache"),
            ("(taken + 1) * going", "taken + 1"),
            ("new + k)", "new + 20 * k)"),
        ],
        "texts with all their tokens go through the model 2 times more",
    ),
    "chunks of the first context": (
        "chunked_prefill",
        [("int(context.max())", "int(context[0])")],
        r"part_lse has shape \[2, 7, 3\], expected \[3, 7, 3\]",
    ),
    "two of the products": (
        "which_clock",
        [("for each in products)", "for each in products[:2])")],
        "which is not the right number",
    ),
    "scores of a tree that overflow": (
        "tree_decode",
        [("scores.logsumexp(-1)", "scores.exp().sum(-1).log()")],
        "level=80",
    ),
    "a loop that stands still": ("ridge_rows", [("+= 1", "+= 0 * wait()")], r"in line \d+ \(`"),
}
IN_A_PART = {  # mistakes that a part tells in `check`, since it does so when graded
    "the maximum is not subtracted": (
        "merge_two",
        [("base = torch.maximum(lse_a, lse_b)\n", "base = torch.zeros_like(lse_a)\n")],
        "a part is empty, or both are",
    ),
    "every node with every query": (
        "tree_decode",
        [
            ("q[mine], keys)", "q, keys)"),
            ("node_lse[..., None]), values)", "node_lse[..., None]), values)[mine]"),
            ("part_lse[mine] = node_lse", "part_lse[mine] = node_lse[mine]"),
        ],
        "one level",
    ),
    "keys behind the sequence": (
        "ragged_prefill",
        [("seen = (first + offs_n)[None, :] < T\n", "seen = (first + offs_n)[None, :] >= 0\n")],
        "empty sequences, and queries that see nothing",
    ),
    "quotients in 16 bits": (
        "pack_fp8",
        [("v.to(tl.float32) * v_inverse", "(v.to(tl.float32) * v_inverse).to(v.dtype).to(tl.float32)")],
        "numbers beyond 448, and tiny ones",
    ),
    "the temperature behind the softmax": (
        "choose_tokens",
        [("(rows / temperature).softmax(-1)", "(rows.softmax(-1) ** (1 / temperature))")],
        "drawn",
    ),
    "first tokens from the last chunk": (
        "generate_texts",
        [("torch.where(lengths > 0, choose_tokens(logits, lengths), token)", "choose_tokens(logits, lengths)")],
        "texts that stop",
    ),
}
HELPER = "import time\n\n\ndef wait():\n    time.sleep(0.001)\n    return 0\n"  # a cell of the student's own


def attempt(name, changes):
    """Run the right solution with changes, below what it needs, and check it."""
    lesson, exercise = COURSE.locate(name)
    plan, namespace = COURSE.lesson(lesson), {"__name__": "__main__", "check": check}
    running.run_cell("helper", HELPER, namespace)
    for cell in (*plan.setup, *plan.references(exercise.needs)):
        running.run_cell(cell.name, cell.source, namespace)
    source = without_marks(plan.solutions[name])
    for before, after in changes:
        assert before in source, source
        source = source.replace(before, after)
    running.run_cell(name, source, namespace)
    exec(f"check({name!r})", namespace)


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("attempted", ATTEMPTS)
def test_it_is_named(attempted, monkeypatch, capsys):
    monkeypatch.setenv("MLA_COURSE", str(COURSE.root))
    name, changes, says = ATTEMPTS[attempted]
    with pytest.raises(CheckFailed, match=says):
        attempt(name, changes)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("attempted", IN_A_PART)
def test_a_part_tells_it(attempted, monkeypatch, capsys):
    monkeypatch.setenv("MLA_COURSE", str(COURSE.root))
    name, changes, part = IN_A_PART[attempted]
    with pytest.raises(CheckFailed):
        attempt(name, changes)
    assert f"{part}: 0/" in capsys.readouterr().out


def test_no_wrong_break_even_is_taken_for_another_mistake(monkeypatch, capsys):
    """2R without its 2, and 2R less Dr, are told as what they are."""
    monkeypatch.setenv("MLA_COURSE", str(COURSE.root))
    with pytest.raises(CheckFailed, match="2R together"):
        attempt("break_even_queries", [("2 * R", "R")])
    assert "wrong sign" not in capsys.readouterr().out
    with pytest.raises(CheckFailed, match="so Dr cancels"):
        attempt("break_even_queries", [("2 * R", "2 * R - Dr")])
    assert "wrong sign" not in capsys.readouterr().out
