"""Speculative decoding: multi-token prediction drafts tokens, and the model checks several in one step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from ._validate import check_positive
from .implementations import Implementation
from .models import Model, last_real, ragged, start


@dataclass(frozen=True)
class Drafted:
    """What :func:`generate_drafted` returns.

    Attributes
    ----------
    tokens
        The new tokens of each text.
    rounds
        How often tokens were drafted for a text and checked.
    accepted
        Of each place in a draft, how many of the ``rounds`` tokens there the model took.
    steps
        Calls of the model, each of all texts at once.
    """

    tokens: list[list[int]]
    rounds: int
    accepted: tuple[int, ...]
    steps: int

    @property
    def acceptance(self) -> float:
        """The share of drafted tokens that the model took."""
        return sum(self.accepted) / max(self.rounds * len(self.accepted), 1)


@torch.no_grad()
def generate_drafted(
    model: Model,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    draft: int = 1,
    prefix: Sequence[int] = (),
    page_size: int | None = None,
    stop: Collection[int] | None = None,
    impl: str | Implementation | None = None,
) -> Drafted:
    """Go on from prompts with the likeliest tokens, several in a step.

    The layer of multi-token prediction drafts tokens, each from the one before. The model computes the drafts of all
    texts in one call, takes those that it would have chosen itself, and adds its own next token. So the tokens are
    those of :func:`mla_ref.models.generate`, as far as rounding does not depend on the number of tokens in a call.

    Parameters
    ----------
    model
        With :attr:`mla_ref.models.Model.predictor`.
    draft
        Tokens drafted in a round.
    prompts, max_new_tokens, prefix, page_size, stop, impl
        As of :func:`mla_ref.models.generate`. Drafts do not see the prefix.

    Raises
    ------
    TypeError, ValueError
        As :func:`mla_ref.models.generate`, or a model without such a layer. Nothing has been computed then.

    References
    ----------
    Leviathan et al. 2023, arXiv:2211.17192; DeepSeek-V3, arXiv:2412.19437, section 2.2.
    """
    check_positive(draft=draft)
    attention = model.predictor.self_attn
    tokens, lengths, caches = start(
        model, prompts, max_new_tokens, prefix=prefix, page_size=page_size, impl=impl, room=draft
    )
    stop = set(model.config.stop if stop is None else stop)
    further = attention.make_cache(len(tokens), tokens.shape[1] + max_new_tokens + 2 * draft, page_size)
    found: list[list[int]] = [[] for _ in range(len(tokens))]
    accepted, rounds, steps = [0] * draft, 0, 1

    # What the model has computed is in its caches; `best` is its choice behind each of these tokens.
    hidden = model.hidden(tokens, caches, lengths=ragged(lengths, tokens), impl=impl)
    newest = model.lm_head(last_real(hidden, lengths)).argmax(-1)
    best = tokens.roll(-1, 1).scatter(1, lengths[:, None] - 1, newest[:, None])
    counts = [1] * len(found)  # of tokens in `best` that are new, at its end
    while True:
        ends = lengths.tolist()
        for b, row in enumerate(best.tolist()):
            for token in row[ends[b] - counts[b] : ends[b]]:
                if len(found[b]) < max_new_tokens and not (found[b] and found[b][-1] in stop):
                    found[b].append(token)
        going = [len(each) < max_new_tokens and each[-1] not in stop for each in found]
        if not any(going):
            return Drafted(found, rounds, tuple(accepted), steps)

        alive = torch.tensor(going, device=tokens.device)
        lengths = lengths * alive
        x = model.predict_further(hidden, best, further, lengths=ragged(lengths, best), impl=impl)
        kept, x = further.seq_lens, last_real(x, lengths)[:, None]
        tokens = [newest[:, None], model.lm_head(x).argmax(-1)]
        one = alive.long()
        for _ in range(draft - 1):
            x = model.predict_further(x, tokens[-1], further, lengths=ragged(one, x), impl=impl)
            tokens.append(model.lm_head(x).argmax(-1))
        further.truncate(kept)

        tokens = torch.cat(tokens, 1)
        before = caches[0].seq_lens
        hidden = model.hidden(tokens, caches, lengths=ragged(one * (draft + 1), tokens), impl=impl)
        best = model.lm_head(hidden).argmax(-1)
        agree = (best[:, :-1] == tokens[:, 1:]).long().cumprod(1) * one[:, None]
        lengths = (1 + agree.sum(1)) * one
        for cache in caches:
            cache.truncate(before + lengths)
        newest = last_real(best[..., None], lengths)[:, 0]
        counts = lengths.tolist()
        accepted = [old + new for old, new in zip(accepted, agree.sum(0).tolist(), strict=True)]
        rounds, steps = rounds + sum(going), steps + 1
