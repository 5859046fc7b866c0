"""The softmax subtracts no maximum: scores beyond 88 make it NaN."""

EXERCISE = "attend_pages"
SPEED = False
EXPECT = "has NaN"

# The cell:
def attend_pages(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, pages, table, seq_lens, lengths):
    """Write a chunk of new tokens into pages, and attend from it to all that its texts hold then.

    q_nope, q_rope: [B, S, H, Dn], [B, S, H, Dr]; c_kv, k_rope: [B, S, R], [B, S, Dr];
    w_uk, w_uv: [H, Dn, R], [H, Dv, R]; pages: [num_pages, page_size, R+Dr], changed in place;
    table: [B, max_pages], int32; seq_lens, lengths: [B], int64.
    Returns out [B, S, H, Dv], zeros for padding, and pages. All floats are float32.

    The traps: where the chunk begins; what of it is padding; the scale.
    """
    (_, S, _, Dn), Dr, R, size = q_nope.shape, q_rope.shape[-1], c_kv.shape[-1], pages.shape[1]
    real = torch.arange(S) < lengths[:, None]
    position = seq_lens[:, None] + torch.arange(S)  # [B, S]
    text, place = real.nonzero(as_tuple=True)
    at = position[text, place]
    pages[table[text, at // size].long(), at % size] = torch.cat((c_kv, k_rope), -1)[text, place]

    held = pages[table.long()].flatten(1, 2)  # [B, T, R + Dr]
    query = torch.cat((torch.einsum("bshd,hdr->bshr", q_nope, w_uk), q_rope), -1)
    scores = torch.einsum("bshe,bte->bsht", query, held) * (Dn + Dr) ** -0.5
    hidden = torch.arange(held.shape[1]) > position[..., None]  # [B, S, T]
    weights = scores.masked_fill(hidden[:, :, None], -math.inf).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    out = torch.einsum("bsht,btr,hvr->bshv", weights, held[..., :R], w_uv)
    return out.masked_fill(~real[..., None, None], 0.0), pages
