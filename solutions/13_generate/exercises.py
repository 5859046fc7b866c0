"""Lesson 13: generation. Drafts predicted, attention over pages, tokens chosen, prompts in chunks, drafts verified."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from autograder.judging.exercise import Arguments, Counted, Exercise, Mistake, Part, randn
from mla_ref.norm import rms_norm
from mla_ref.rope import apply_rope, rope_cos_sin

from ..drawing import FLOAT, as_given
from ..oracles import INF, altered, slips

# --- predict_drafting -------------------------------------------------------------------------------------------------

MOST = 8  # drafts that best_k may be


def _tokens(acceptance: float, k: int) -> float:
    return sum(acceptance**n for n in range(k + 1))


def _drafting(
    acceptance: float, k: int, step_us: float, draft_us: float, check: float, tokens: Callable = _tokens, more: int = 0
) -> dict[str, float]:
    """Return what drafts are worth. `best_k` is that of `more` drafts in a step than are checked."""
    speedup = lambda n, more=0: tokens(acceptance, n) * step_us / (check * step_us + (n + more) * draft_us)
    best = max(range(1, MOST + 1), key=lambda n: speedup(n, more))
    return {"tokens": tokens(acceptance, k), "speedup": speedup(k), "best_k": best}


_rate_slip = slips(_drafting)


def _rate(acceptance: float, k: int, step_us: float = 9000.0, draft_us: float = 300.0, check: float = 1.1) -> dict:
    return dict(acceptance=acceptance, k=k, step_us=step_us, draft_us=draft_us, check=check)


def _clear(r: Random, dear: bool = False) -> dict[str, float]:
    """Draw until the best k is better than its neighbours by more than rounding.

    Drafts that are `dear` have another best k if a step takes one more or fewer of them.
    """
    while True:
        step_us, draft_us = (r.uniform(20, 100), r.uniform(5, 20)) if dear else (r.uniform(20, 9000), r.uniform(1, 20))
        case = _rate(r.uniform(0.3, 0.95), r.randint(1, 6), step_us, draft_us, r.uniform(1, 1.5))
        rates = sorted(_drafting(**case | {"k": n})["speedup"] for n in range(1, MOST + 1))
        best = {_drafting(**case, more=more)["best_k"] for more in (-1, 0, 1)}
        if rates[-1] > rates[-2] * 1.001 and (len(best) == 3 or not dear):
            return case


DRAFTING = Exercise(
    name="predict_drafting",
    title="tokens per step and gain of drafting, predicted",
    parts=(
        Part(
            "some drafts are taken",
            2,
            visible=[_rate(0.6, 1), _rate(0.8, 3), _rate(0.85, 2, 50.0, 15.0, 1.2)],
            hidden=lambda r: [_clear(r), _clear(r), _clear(r, dear=True)],
        ),
        Part(
            "all or none are taken",
            1,
            visible=[_rate(1.0, 4), _rate(0.0, 3)],
            hidden=lambda r: [_rate(1.0, r.randint(1, 8), check=1.2), _rate(0.0, r.randint(2, 8))],
        ),
    ),
    inputs=as_given,
    oracle=_drafting,
    returns=("prediction",),
    mistakes=(
        _rate_slip(
            "drafts taken one by one",
            "tokens counts each draft with the same share, 1 + k·a: the n-th counts only if it and all before it "
            "are taken, which has the share a^n",
            tokens=lambda a, k: 1 + k * a,
        ),
        _rate_slip(
            "own token forgotten",
            "tokens lacks the one that the model adds itself: behind the drafts it took comes its own choice, always",
            tokens=lambda a, k: _tokens(a, k) - 1,
        ),
        Mistake(
            "drafts for nothing",
            "speedup leaves out the time of drafting, k · draft_us",
            lambda draft_us, **a: _drafting(**a, draft_us=0.0),
        ),
        Mistake(
            "check for nothing",
            "speedup takes a step over k + 1 tokens to be as fast as over one: it takes check times as long",
            lambda check, **a: _drafting(**a, check=1.0),
        ),
        *(
            _rate_slip(
                "drafts of the best k",
                f"best_k counts the time of one draft too {many} for each k: k drafts take k · draft_us",
                more=more,
            )
            for more, many in ((1, "many"), (-1, "few"))
        ),
        Mistake(
            "upside down",
            "speedup is upside down: it is the time of a token without drafts over that with drafts",
            altered(_drafting, lambda right: {"speedup": 1 / right["speedup"]}),
        ),
    ),
)

# --- attend_pages -----------------------------------------------------------------------------------------------------


def _page_step(
    g: torch.Generator,
    held: Sequence[int],
    lengths: Sequence[int],
    H: int = 2,
    page: int = 4,
    Dn: int = 12,
    Dr: int = 8,
    Dv: int = 10,
    R: int = 24,
    sharp: float = 1.0,
    level: float = 0.0,
    depth: float = 0.0,
) -> Arguments:
    """Return a chunk of tokens for sequences that hold some already. Pages that nobody holds have old tokens.

    All scores are near `level`, or fall by about `depth` with each place that a token stands further back.
    """
    B, S = len(held), max(*lengths, 1)
    per = -(-(max(held) + S) // page) + 1
    num = B * per + 3
    table = torch.randperm(num, generator=g)[: B * per].view(B, per).to(torch.int32)
    given = {"q_nope": randn(g, B, S, H, Dn, scale=sharp), "q_rope": randn(g, B, S, H, Dr, scale=sharp)}
    given |= {"c_kv": randn(g, B, S, R), "k_rope": randn(g, B, S, Dr)}
    given |= {"w_uk": randn(g, H, Dn, R, scale=R**-0.5), "w_uv": randn(g, H, Dv, R, scale=R**-0.5)}
    lens = {"seq_lens": torch.tensor(held), "lengths": torch.tensor(lengths)}
    pages = randn(g, num, page, R + Dr, scale=1.5)
    if level or depth:
        places = torch.arange(per * page, 0, -1)
        first = torch.ones(per * page) if level else -depth * places
        given["q_rope"][..., 0] = (level or 1.0) * (Dn + Dr) ** 0.5
        for b, start in enumerate(held):
            pages[table[b].long(), :, R] = first.view(per, page)
            given["k_rope"][b, :, 0] = first[start : start + S]
    return given | {"pages": pages, "table": table} | lens


def _paged(
    q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, pages, table, seq_lens, lengths,
    *, scale=None, last=None, first=None, every=False, early=False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sequence by sequence and token by token, naive. The keywords make the named mistakes.

    `last(held, n, S, s)` is the last position that token s sees; `first(held)` where the new tokens are written.
    The pages are read `early`: before that.
    """
    (B, S, _, Dn), Dr, Dv = q_nope.shape, q_rope.shape[-1], w_uv.shape[1]
    R, size, pages = c_kv.shape[-1], pages.shape[1], pages.clone()
    out = q_nope.new_zeros(B, S, q_nope.shape[2], Dv)
    scale = scale or (Dn + Dr) ** -0.5
    for b, (held, n) in enumerate(zip(seq_lens.tolist(), lengths.tolist(), strict=True)):
        start = held if first is None else first(held)
        read = table[b].long()
        before = pages[read].flatten(0, 1)
        for s in range(S if every else n):
            page, slot = divmod(start + s, size)
            pages[table[b, page], slot] = torch.cat((c_kv[b, s], k_rope[b, s]))
        context = before if early else pages[read].flatten(0, 1)
        for s in range(n):
            end = held + s if last is None else min(max(last(held, n, S, s), 0), len(context) - 1)
            c, key = context[: end + 1].split((R, Dr), -1)
            k = torch.einsum("tr,hdr->htd", c, w_uk)
            scores = (torch.einsum("hd,htd->ht", q_nope[b, s], k) + q_rope[b, s] @ key.T) * scale
            out[b, s] = torch.einsum("ht,tr,hvr->hv", scores.softmax(-1), c, w_uv)
    return out, pages


_page_slip = slips(_paged)


def _drawn_pages(r: Random, **more: Any) -> dict[str, Any]:
    B = r.randint(2, 4)
    sizes = dict(H=r.randint(1, 4), page=r.choice([2, 4, 8]), Dn=r.choice([6, 20]), Dr=r.choice([2, 6]))
    return dict(held=[r.randint(0, 20) for _ in range(B)], Dv=r.choice([4, 14]), R=r.choice([16, 40])) | sizes | more


def _chunk(r: Random, S: int = 7) -> dict[str, Any]:
    case = _drawn_pages(r)
    lengths = [r.randint(1, S) for _ in case["held"]]
    lengths[r.randrange(len(lengths))] = S
    return case | dict(lengths=lengths)


def _one_each(r: Random) -> dict[str, Any]:
    case = _drawn_pages(r)
    return case | dict(lengths=[1] * len(case["held"]))


OTHERS = dict(H=3, page=2, Dn=6, Dr=4, Dv=14, R=16)

PAGES = Exercise(
    name="attend_pages",
    title="attention over pages, for a chunk of a ragged batch",
    parts=(
        Part(
            "one token each",
            1,
            visible=[
                dict(held=(5, 5), lengths=(1, 1)),
                dict(held=(0, 9, 4), lengths=(1, 1, 1)),
                dict(held=(6, 6), lengths=(1, 1), level=100.0),
            ],
            hidden=lambda r: [
                _one_each(r),
                dict(held=(7, 8, 3), lengths=(1, 1, 1), sharp=6.0),
                dict(held=(5, r.randint(6, 20)), lengths=(1, 1), level=r.choice([-120.0, 110.0])),
            ],
        ),
        Part(
            "a chunk of tokens",
            2,
            visible=[
                dict(held=(0, 0), lengths=(6, 6)),
                dict(held=(3, 8), lengths=(5, 5), sharp=4.0),
                dict(held=(2, 3), lengths=(3, 3), depth=1e10),
            ],
            hidden=lambda r: [
                _drawn_pages(r, held=(r.randint(1, 12), 0), lengths=(n := r.randint(2, 9), n)),
                dict(held=(4, 16), lengths=(4, 4), page=4),
            ],
        ),
        Part(
            "padding",
            1,
            visible=[dict(held=(2, 6, 0), lengths=(5, 2, 0)), dict(held=(0, 4), lengths=(1, 7), **OTHERS)],
            hidden=lambda r: [_chunk(r), _chunk(r, 12), dict(held=(9, 3), lengths=(0, r.randint(1, 5)))],
        ),
    ),
    inputs=_page_step,
    oracle=_paged,
    returns=("out", "pages"),
    like=(FLOAT, FLOAT),
    tolerance=2e-5,
    may_change=("pages",),
    mistakes=(
        Mistake(
            "scale of the latent",
            "the softmax scale is 1/√(R+Dr): expected 1/√(Dn+Dr), what the model was trained with",
            lambda c_kv, q_rope, **a: _paged(
                c_kv=c_kv, q_rope=q_rope, **a, scale=(c_kv.shape[-1] + q_rope.shape[-1]) ** -0.5
            ),
        ),
        _page_slip(
            "scale of the part without RoPE",
            "the softmax scale is 1/√Dn: expected 1/√(Dn+Dr), the RoPE part belongs to a query's width",
            lambda q_nope, **_: {"scale": q_nope.shape[-1] ** -0.5},
        ),
        _page_slip("no scale", "the scores are not scaled: expected times 1/√(Dn+Dr)", scale=1.0),
        _page_slip(
            "not itself",
            "a new token does not see itself: token s sees the positions up to seq_lens + s, its own included",
            last=lambda held, n, S, s: held + s - 1,
        ),
        _page_slip(
            "one too many",
            "a new token sees one position too many: token s sees the positions up to seq_lens + s, its own",
            last=lambda held, n, S, s: held + s + 1,
        ),
        _page_slip(
            "read before written",
            "the pages are read before the new tokens are written: a token attends to itself and to those of its chunk",
            early=True,
        ),
        _page_slip("RoPE part missing", "the scores lack q_rope · k_rope", lambda q_rope, **_: {"q_rope": 0 * q_rope}),
        _page_slip(
            "no mask",
            "no causal mask inside the chunk: a token sees those that come after it",
            last=lambda held, n, S, s: held + n - 1,
        ),
        _page_slip(
            "mask top-left",
            "new token s sees the positions up to s: it stands at seq_lens + s, behind what the sequence holds",
            last=lambda held, n, S, s: s,
        ),
        _page_slip(
            "mask by the padded chunk",
            "the causal mask counts from the end of the padded chunk: new token s of a sequence stands at seq_lens + "
            "s, whatever S is",
            last=lambda held, n, S, s: held + n - S + s,
        ),
        _page_slip(
            "written from position 0",
            "the new tokens are written from position 0 on: they belong behind the seq_lens that are there",
            first=lambda held: 0,
        ),
        _page_slip(
            "padding written",
            "padding is written to the pages: only the first lengths[b] tokens of sequence b are real",
            every=True,
        ),
    ),
)

# --- choose_tokens ----------------------------------------------------------------------------------------------------


ROUNDED = 1e-6  # by which the sum of all shares may be above 1


def _chosen(
    logits, lengths, temperature=0.0, top_p=1.0, u=None,
    *, at=None, cut="crossing", total=True, order="tempered", beyond="kept",
):  # fmt: skip
    """Row by row, by counting. The keywords make the named mistakes."""
    found = []
    for b, n in enumerate(lengths.tolist()):
        row = logits[b, n - 1 if at is None else at]
        if temperature == 0:
            found.append(int(row.argmax()))
            continue
        shares = (row / temperature).softmax(-1).tolist()
        ranks = sorted(range(len(shares)), key=lambda t: -shares[t])
        by = shares if order == "tempered" else row.softmax(-1).tolist()
        kept, before = [], 0.0
        for token in ranks:
            if before >= top_p if cut == "crossing" else before + by[token] > top_p + ROUNDED:
                break
            kept.append(token)
            before += by[token]
        kept = kept or ranks[:1]
        left = float(u[b]) * (sum(shares[t] for t in kept) if total else 1.0)
        for token in kept:
            if left < shares[token]:
                break
            left -= shares[token]
        else:
            token = {"kept": token, "all": ranks[-1], "first": ranks[0]}[beyond]
        found.append(token)
    return torch.tensor(found)


def _out_of_range(logits, lengths, temperature=0.0, top_p=1.0, u=None):
    """The first of shares that are all NaN, as sorting leaves them, if exp leaves float32."""
    right = _chosen(logits, lengths, temperature, top_p, u)
    powers = (logits[torch.arange(len(logits)), lengths - 1] / (temperature or 1.0)).float().exp()
    shares, order = (powers / powers.sum(-1, keepdim=True)).sort(-1, descending=True)
    return torch.where(shares.isnan().all(-1) & (temperature > 0), order[:, 0], right)


_choice_slip = slips(_chosen)
NEAR = 1e-3


def _choice(
    g: torch.Generator,
    lengths: Sequence[int],
    temperature: float = 0.0,
    top_p: float = 1.0,
    V: int = 20,
    sharp: float = 2.0,
    at: float = 0.0,
    bare: bool = False,
) -> Arguments:
    """Return logits of a ragged batch, drawn until no answer hangs on rounding; `bare` leaves out what has defaults."""
    B, S = len(lengths), max(lengths)
    logits = torch.empty(B, S, V)
    u = torch.empty(B)
    for b, n in enumerate(lengths):
        while True:
            logits[b] = randn(g, S, V, scale=sharp) + at
            u[b] = torch.rand((), generator=g).item()
            row = logits[b, n - 1].double() / (temperature or 1.0)
            shares = row.softmax(-1).sort(descending=True).values
            ends = shares.cumsum(-1)
            kept = ends[(ends - shares < top_p)]
            apart = (shares[0] - shares[1], (ends - top_p).abs().min() if top_p < 1 else 1.0)
            if min(*map(float, apart), float((kept / kept[-1] - u[b]).abs()[:-1].min()) if len(kept) > 1 else 1) > NEAR:
                break
    settings = {} if bare else {"temperature": float(temperature), "top_p": float(top_p), "u": u}
    return {"logits": logits, "lengths": torch.tensor(lengths), **settings}


CHOOSE = Exercise(
    name="choose_tokens",
    title="the next token: likeliest, or drawn",
    parts=(
        Part(
            "the likeliest",
            1,
            visible=[dict(lengths=(3, 3)), dict(lengths=(4, 1, 2), bare=True)],
            hidden=lambda r: [dict(lengths=[r.randint(1, 6) for _ in range(5)], V=r.randint(2, 300), at=50.0)],
        ),
        Part(
            "drawn",
            1,
            visible=[
                dict(lengths=(1,) * 6, temperature=1.0),
                dict(lengths=(2, 3, 1, 3), temperature=0.7, V=13),
                dict(lengths=(1,) * 16, temperature=1.5, V=3),
                dict(lengths=(2, 1) * 3, temperature=1.0, at=120.0),
            ],
            hidden=lambda r: [
                dict(lengths=[r.randint(1, 4) for _ in range(9)], temperature=r.uniform(0.4, 1.8)),
                dict(lengths=(1,) * 16, temperature=1.5, V=3),  # the least likely is drawn, too
                dict(lengths=(1,) * 8, temperature=r.uniform(0.6, 1.2), at=r.choice([-200.0, 150.0])),
            ],
        ),
        Part(
            "from the likeliest",
            2,
            visible=[
                dict(lengths=(1,) * 8, temperature=1.0, top_p=0.7),
                dict(lengths=(2, 1, 3) * 3, temperature=0.6, top_p=0.5),
                dict(lengths=(1,) * 4, temperature=1.0, top_p=0.2, sharp=6.0),
            ],
            hidden=lambda r: [
                dict(lengths=[r.randint(1, 4) for _ in range(12)], temperature=r.uniform(0.5, 1.5), top_p=0.6),
                dict(lengths=(1,) * 12, temperature=1.6, top_p=r.uniform(0.4, 0.9), at=-40.0),
            ],
        ),
    ),
    inputs=_choice,
    oracle=_chosen,
    returns=("tokens",),
    like=(torch.int64,),
    mistakes=(
        _choice_slip(
            "wrong position",
            "the logits are those of the last column: of sequence b they stand at lengths[b] − 1, behind is padding",
            at=-1,
        ),
        _choice_slip(
            "first position", "the logits are those of the first column: those at lengths[b] − 1 are asked for", at=0
        ),
        _choice_slip(
            "top-p drops a token",
            "the token that crosses top_p is left out: keep every token in front of which the shares add up to less "
            "than top_p; the first stays always",
            cut="before",
        ),
        *(
            _choice_slip(
                "shares not normalised",
                "u is held against shares that add up to less than 1: multiply it by the sum of those kept",
                total=False,
                beyond=beyond,
            )
            for beyond in ("kept", "all", "first")
        ),
        Mistake(
            "maximum not subtracted",
            "exp leaves float32 for numbers beyond 88, and below −104: use softmax, or subtract the maximum first",
            _out_of_range,
        ),
        _choice_slip(
            "top-p before the temperature",
            "the likeliest are picked by the shares at temperature 1: divide by the temperature first",
            order="plain",
        ),
        Mistake(
            "temperature multiplied",
            "the logits are multiplied by the temperature: divide",
            lambda temperature=0.0, **a: _chosen(**a, temperature=1 / temperature if temperature else 0.0),
        ),
        Mistake(
            "temperature ignored",
            "the temperature changes nothing: divide the logits by it, before the softmax",
            lambda temperature=0.0, **a: _chosen(**a, temperature=1.0 if temperature else 0.0),
        ),
    ),
)

# --- a model, and what it says ----------------------------------------------------------------------------------------


def _weights(g: torch.Generator, V: int, D: int, layers: int, H: int, Dn: int, Dr: int, Dv: int, R: int) -> Arguments:
    def matrix(*shape: int, gain: float = 1.0) -> Tensor:
        return randn(g, *shape, scale=gain * shape[-1] ** -0.5)

    each = lambda: {
        "norm": 1 + randn(g, D, scale=0.2),
        "w_q": matrix(H, Dn + Dr, D, gain=2.0),
        "w_dkv": matrix(R + Dr, D, gain=1.5),
        "kv_norm": 1 + randn(g, R, scale=0.2),
        "w_uk": matrix(H, Dn, R),
        "w_uv": matrix(H, Dv, R),
        "w_o": matrix(D, H * Dv, gain=2.0),
        "mlp_norm": 1 + randn(g, D, scale=0.2),
        "w_up": matrix(2 * D, D),
        "w_down": matrix(D, 2 * D),
    }
    embed, head = randn(g, V, D, scale=0.7), matrix(V, D, gain=2.0)
    return {"embed": embed, "layers": [each() for _ in range(layers)], "norm": 1 + randn(g, D, scale=0.2), "head": head}


def _logits(model: dict[str, Any], tokens: Sequence[int], positions: Sequence[int], last: int = 1) -> Tensor:
    """The model over one text at once, without a cache: logits [last, V] in float64."""
    x = model["embed"][list(tokens)].double()
    S = len(tokens)
    future = torch.ones(S, S, dtype=torch.bool).triu(1)
    for w in ({name: each.double() for name, each in layer.items()} for layer in model["layers"]):
        Dn, R = w["w_uk"].shape[1:]
        Dr = w["w_dkv"].shape[0] - R
        cos, sin = rope_cos_sin(torch.tensor(positions), Dr, dtype=torch.float64)
        h = rms_norm(x, w["norm"], 1e-6)
        q_nope, q_rope = torch.einsum("sd,hed->she", h, w["w_q"]).split((Dn, Dr), -1)
        c_kv, k_rope = (h @ w["w_dkv"].T).split((R, Dr), -1)
        q_rope, k_rope = (apply_rope(x[None], cos, sin)[0] for x in (q_rope, k_rope[:, None]))
        c_kv = rms_norm(c_kv, w["kv_norm"], 1e-6)
        scores = torch.einsum("she,her,tr->hst", q_nope, w["w_uk"], c_kv)
        scores = (scores + torch.einsum("she,te->hst", q_rope, k_rope[:, 0])) * (Dn + Dr) ** -0.5
        out = torch.einsum("hst,tr,hvr->shv", scores.masked_fill(future, -INF).softmax(-1), c_kv, w["w_uv"])
        x = x + out.flatten(1) @ w["w_o"].T
        h = rms_norm(x, w["mlp_norm"], 1e-6)
        x = x + torch.nn.functional.silu(h @ w["w_up"].T) @ w["w_down"].T
    return rms_norm(x[-last:], model["norm"].double(), 1e-6) @ model["head"].double().T


def _spoken(
    model: dict[str, Any],
    prompt: Sequence[int],
    new: int,
    stop: int | None = None,
    place: Callable[[int, int], int] = lambda n, prompt: n,
    behind: Sequence[int] = (),
    margins: list[float] | None = None,
) -> list[int]:
    """Go on from a prompt. Token n stands at `place(n, len(prompt))`; `behind` comes to the context with the first."""
    context, found = list(prompt), []
    while len(found) < new and (not found or found[-1] != stop):
        logits = _logits(model, context, [place(n, len(prompt)) for n in range(len(context))])[0]
        best = logits.topk(2).values
        if margins is not None:
            margins.append(float(best[0] - best[1]))
        if not found:
            context += behind
        found.append(int(logits.argmax()))
        context.append(found[-1])
    return found


def _table(rows: Sequence[Sequence[int]], new: int) -> Tensor:
    return torch.tensor([[*row, *[-1] * (new - len(row))] for row in rows])


SIZES = dict(V=24, D=24, layers=2, H=2, Dn=8, Dr=8, Dv=8, R=16)


Talk = tuple[dict[str, Any], list[list[int]], list[list[int]]]
_TALKS: dict[Any, tuple[Talk, Tensor]] = {}  # by the state that they were drawn from: a class is judged on the same


def _talking(g: torch.Generator, lengths: Sequence[int], new: int) -> Talk:
    """Draw a model and prompts until no choice hangs on rounding. Return what it says as well."""
    key = g.get_state().numpy().tobytes(), tuple(lengths), new
    if key not in _TALKS:
        found = _draw_talk(g, lengths, new)
        _TALKS[key] = found, g.get_state()
    found, after = _TALKS[key]
    g.set_state(after)
    return copy.deepcopy(found)


def _draw_talk(g: torch.Generator, lengths: Sequence[int], new: int) -> Talk:
    while True:
        model = _weights(g, **SIZES)
        prompts = [torch.randint(1, SIZES["V"], (n,), generator=g).tolist() for n in lengths]
        margins: list[float] = []
        said = [_spoken(model, prompt, new, margins=margins) for prompt in prompts]
        if min(margins) > 2e-3 and all(len(set(each)) > min(new, 6) // 2 for each in said):
            return model, prompts, said


# --- generate_texts ---------------------------------------------------------------------------------------------------


def _texts(g: torch.Generator, lengths: Sequence[int], new: int, chunk: int, stops: int | None = None) -> Arguments:
    """Return a model and prompts. `stops` is the number of the token at which the first text ends."""
    model, prompts, said = _talking(g, lengths, new)
    stop = said[0][stops] if stops is not None else -1
    left = len(lengths) * (-(-max(lengths) // chunk) * chunk + new)
    return {
        "model": model | {"most": chunk, "left": left},
        "prompts": prompts,
        "new": new,
        "chunk": chunk,
        "stop": stop,
    }


def _written(edit: Callable[[list[list[int]], int], Any] | None = None, **how: Any) -> Callable[..., Tensor]:
    """Return an oracle. `edit(rows, stop)` changes what comes of it; `how` are keywords of `_spoken`."""

    def oracle(model, prompts, new, chunk, stop):
        longest = max(map(len, prompts))
        rows = []
        for prompt in prompts:
            padding = [0] * (longest - len(prompt))
            settings = {name: each(chunk, padding) for name, each in how.items()}
            start = [*prompt, *padding] if settings.pop("padded", False) else prompt
            rows.append(_spoken(model, start, new, settings.pop("stop", stop), **settings))
        return _table(edit(rows, stop) if edit else rows, new)

    return oracle


def _goes_on(calls: list[list[int]], needed: list[int], last: int) -> int:
    """Return in how many of the `last` calls texts are run beyond those that each needs, in whatever order they are."""
    calls = calls[max(len(calls) - last, 0) :]
    if any(len(each) != len(needed) for each in calls):
        return 0  # a batch of those that go on, or a text alone
    ran = sorted(sum(n > 0 for n in each) for each in zip(*calls, strict=True))
    return sum(max(n - most, 0) for n, most in zip(ran, sorted(needed), strict=False))


def _run_anew(calls: list[list[int]], found: Tensor, model: dict[str, Any], **_: Any) -> str | None:
    """Return what is wrong with the tokens that went through the model, also where its limits were left out."""
    if (longest := max(map(max, filter(None, calls)), default=0)) > model["most"]:
        return f"{longest} tokens of a text in one run, and there is memory for {model['most']}"
    if (tokens := sum(map(sum, calls))) > model["left"]:
        return f"the runs take {tokens} tokens, more than the texts have: each goes through the model once"
    new = (found >= 0).sum(1).tolist()
    if more := _goes_on(calls, new, max(new) - 1):
        return f"texts that have ended go through the model {more} times more: each gets length 0 in further runs"
    return None


TEXTS = Exercise(
    name="generate_texts",
    title="a batch of prompts, in chunks, then token by token",
    parts=(
        Part(
            "prompts of one length, at once",
            2,
            visible=[
                dict(lengths=(5,), new=6, chunk=8),
                dict(lengths=(6, 6), new=6, chunk=6),
                dict(lengths=(4,), new=44, chunk=8),  # more than a cache has to spare
            ],
            hidden=lambda r: [dict(lengths=(r.randint(2, 9),) * 3, new=7, chunk=12)],
        ),
        Part(
            "lengths of their own, in chunks",
            3,
            visible=[dict(lengths=(9, 4, 7), new=6, chunk=4), dict(lengths=(1, 6), new=5, chunk=1)],
            hidden=lambda r: [
                dict(lengths=(r.randint(1, 4), r.randint(9, 13), r.randint(5, 8)), new=7, chunk=r.randint(2, 5)),
                dict(lengths=(8, 4, 12), new=5, chunk=4),
            ],
        ),
        Part(
            "texts that stop",
            1,
            visible=[dict(lengths=(5, 7), new=8, chunk=8, stops=2), dict(lengths=(5, 2, 7), new=6, chunk=3, stops=0)],
            hidden=lambda r: [
                dict(lengths=(6, 3, 8), new=8, chunk=5, stops=r.randint(1, 4)),
                dict(lengths=(5,), new=9, chunk=8, stops=r.randint(1, 4)),  # nobody goes on
            ],
        ),
    ),
    inputs=_texts,
    oracle=_written(),
    returns=("tokens",),
    like=(torch.int64,),
    needs=("attend_pages", "choose_tokens"),
    may_change=("model",),
    counted=Counted("model", "run", "lengths", _run_anew),
    mistakes=(
        Mistake(
            "positions restart",
            'the new tokens stand at positions 0, 1, 2, …: they go on behind the prompt, at cache["seq_lens"]',
            _written(place=lambda *_: lambda n, prompt: n if n < prompt else n - prompt),
        ),
        Mistake(
            "positions restart in every chunk",
            "the positions of every chunk begin at 0: those of the chunk from start on begin at start",
            _written(place=lambda chunk, _: lambda n, prompt: n % chunk if n < prompt else n),
        ),
        Mistake(
            "one position too far",
            "the new tokens stand one position too far: the first one stands at the length of the prompt",
            _written(place=lambda *_: lambda n, prompt: n if n < prompt else n + 1),
        ),
        Mistake(
            "positions of the longest",
            "the new tokens of every text stand behind the longest prompt: each text's own go on where its prompt "
            'ended, at cache["seq_lens"]',
            _written(place=lambda _, padding: lambda n, prompt: n if n < prompt else n + len(padding)),
        ),
        Mistake(
            "padding attended to",
            "padding counts as tokens of the prompt: give the run the lengths that are real",
            _written(padded=lambda *_: True),
        ),
        Mistake(
            "padding attended to",
            "padding is in the cache, and the new tokens attend to it: give the run the lengths that are real",
            _written(behind=lambda _, padding: padding),
        ),
        Mistake(
            "stop ignored",
            "a text goes on behind the token that stops it: from there on its row holds −1",
            _written(stop=lambda *_: None),
        ),
        Mistake(
            "stop left out",
            "the token that stops a text is missing: it is the last one of its row, and −1 follows",
            _written(lambda rows, stop: [[t for t in row if t != stop] for row in rows]),
        ),
    ),
)

# --- verify_drafts ----------------------------------------------------------------------------------------------------


def _drafts(g: torch.Generator, lengths: Sequence[int], new: int, k: int, right: float) -> Arguments:
    """Return guesses [B, new, k] behind each new token, of which a share `right` is what the model will say."""
    V = SIZES["V"]
    model, prompts, said = _talking(g, lengths, new + k)
    guesses = torch.zeros(len(lengths), new, k, dtype=torch.int64)
    for b, row in enumerate(said):
        for n in range(new):
            for i in range(k):
                hit = torch.rand((), generator=g).item() < right
                other = int(torch.randint(1, V, (), generator=g))
                guesses[b, n, i] = row[n + 1 + i] if hit else (row[n + 1 + i] + other) % V
    return {"model": model, "prompts": prompts, "new": new, "guesses": guesses}


def _verified(
    model, prompts, new, guesses, *, count: Callable[[list[bool]], int] | None = None, extra: int = 0,
    cut: bool = True, own: bool = True, rounds: Callable[[int], int] = lambda calls: calls, one_each: bool = False,
) -> tuple[Tensor, int]:  # fmt: skip
    """Return the greedy tokens, and the calls of the model. The keywords make the named mistakes.

    A context is a list of tokens with their positions, so what a cache would still hold can stay in it.
    """
    calls = 1
    state = []
    for prompt in prompts:
        context = [(token, n) for n, token in enumerate(prompt)]
        state.append((context, [_next(model, context)]))
    while any(len(found) < new for _, found in state):
        calls += 1
        for b, (context, found) in enumerate(state):
            if len(found) >= new:
                continue
            drafts = [] if one_each else guesses[b, len(found) - 1].tolist()
            start, places = len(context), range(len(context), len(context) + len(drafts) + 1)
            context += zip((found[-1], *drafts), places, strict=True)
            tokens, positions = zip(*context, strict=True)
            best = _logits(model, tokens, positions, len(drafts) + 1).argmax(-1).tolist()
            hits = [a == d for a, d in zip(best, drafts, strict=False)]
            taken = _run(hits) if count is None else count(hits)
            if extra and taken < len(drafts):
                found += drafts[: taken + 1]
                del context[start + taken + 1 :]
                continue
            found += best[: taken + 1] if own or not taken else best[:taken]
            if cut:
                del context[start + (taken + 1 if own or not taken else taken) :]
    return _table([found[:new] for _, found in state], new), rounds(calls)


def _next(model, context):
    tokens, positions = zip(*context, strict=True)
    return int(_logits(model, tokens, positions)[0].argmax())


def _run(hits: list[bool]) -> int:
    """How many are right before the first that is not."""
    return hits.index(False) if False in hits else len(hits)


def _rounds(row: list[int], guesses: list[list[int]]) -> int:
    """Return how many rounds a text takes, from its tokens."""
    rounds, n = 0, 1
    while n < len(row):
        n += _run([a == d for a, d in zip(row[n:], guesses[n - 1], strict=False)]) + 1
        rounds += 1
    return rounds


def _miscounted(
    calls: list[list[int]], result: tuple[Tensor, int], prompts: list, guesses: Tensor, **_: Any
) -> str | None:
    """Return what is wrong with calls that were not told, as many as there are texts for each that was, or needless."""
    said = int(result[1])
    if len(calls) > said * len(prompts):
        return f"calls is {said}, and run was called {len(calls)} times"
    needed = [_rounds(*each) for each in zip(result[0].tolist(), guesses.tolist(), strict=True)]
    if more := _goes_on(calls, needed, max(needed)):
        return f"texts with all their tokens go through the model {more} times more: their length is then 0"
    return None


_draft_slip = slips(_verified)

VERIFY = Exercise(
    name="verify_drafts",
    title="several drafted tokens verified in a step",
    parts=(
        Part(
            "several drafts",
            2,
            visible=[dict(lengths=(7, 3), new=10, k=3, right=0.6), dict(lengths=(6,), new=9, k=2, right=0.7)],
            hidden=lambda r: [
                dict(lengths=(r.randint(1, 9), r.randint(1, 9)), new=11, k=r.randint(2, 4), right=0.6),
                dict(lengths=(7, 2, 4), new=9, k=3, right=0.7),
            ],
        ),
        Part(
            "one draft",
            2,
            visible=[dict(lengths=(5,), new=8, k=1, right=0.6), dict(lengths=(4, 4), new=7, k=1, right=0.5)],
            hidden=lambda r: [dict(lengths=(r.randint(2, 8), 5), new=9, k=1, right=0.5)],
        ),
        Part(
            "all right, or none",
            1,
            visible=[
                dict(lengths=(5,), new=8, k=3, right=1.0),
                dict(lengths=(4, 6), new=5, k=2, right=0.0),
                dict(lengths=(5,), new=45, k=4, right=1.0),  # more than a cache has to spare
            ],
            hidden=lambda r: [
                dict(lengths=(3, 5), new=r.randint(6, 9), k=4, right=1.0),
                dict(lengths=(2,), new=1, k=2, right=0.5),
            ],
        ),
    ),
    inputs=_drafts,
    oracle=_verified,
    returns=("tokens", "calls"),
    like=(torch.int64,),
    needs=("attend_pages", "choose_tokens"),
    counted=Counted("model", "run", "lengths", _miscounted),
    mistakes=(
        _draft_slip(
            "cache not cut back",
            'what was computed for refused drafts stays in the cache: set cache["seq_lens"] back to what it was, and '
            "the tokens taken",
            cut=False,
        ),
        _draft_slip(
            "one too many",
            "the first draft that the model does not choose is taken as well: in its place comes the model's choice",
            extra=1,
        ),
        _draft_slip(
            "drafts behind a wrong one",
            "drafts are counted that stand behind a refused one: they were computed behind a token that is not there",
            count=sum,
        ),
        _draft_slip(
            "own token lost",
            "the model's own token behind the drafts is dropped: it comes with the same call, take it too",
            own=False,
        ),
        _draft_slip(
            "one token a call",
            "the tokens are right, and each took a call of its own: give the run the drafts behind the last token",
            one_each=True,
        ),
        _draft_slip(
            "prompt not counted",
            "calls leaves out the one over the prompts",
            rounds=lambda calls: calls - 1,
        ),
    ),
)

EXERCISES = (DRAFTING, PAGES, CHOOSE, TEXTS, VERIFY)
