"""What a student sees of the trained model with functions of theirs in it."""

import pytest
import torch

import mla_ref
from mla_ref import playground

PROMPT = "class Cache:\n    "


def attention(*operands, scale=None):
    return mla_ref.naive(*operands, scale=scale)


def decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
    queries = (x[:, None].float() for x in (q_latent, q_rope))
    out, lse = mla_ref.latent_attention(*queries, c_kv.float(), k_rope.float(), scale=scale, seq_lens=seq_lens)
    return out[:, 0].half(), lse[:, 0]


def paged_decode(q_latent, q_rope, c_pages, k_pages, table, seq_lens, scale):
    rows = (pages[table.long()].flatten(1, 2) for pages in (c_pages, k_pages))
    return decode(q_latent, q_rope, *rows, seq_lens, scale)


def rope(q_rope, k_rope, cos, sin):
    return mla_ref.apply_rope_qk(q_rope, k_rope, cos, sin, True)


def no_rope(q_rope, k_rope, cos, sin):
    return q_rope.clone(), k_rope.clone()


def layer(h, weights, c_cache, k_cache, position, cos, sin):
    now, w = slice(position, position + 1), weights
    c_q = mla_ref.rms_norm(h @ w["w_dq"].T, w["q_norm"])
    q = torch.einsum("bsr,hdr->bshd", c_q, w["w_uq"])
    nope = w["w_uk"].shape[1]
    c_new, k_new = (h @ w["w_dkv"].T).split((len(w["kv_norm"]), k_cache.shape[-1]), -1)
    q_rope, k_new = mla_ref.apply_rope_qk(q[..., nope:], k_new, cos[now], sin[now], True)
    c_cache[:, now], k_cache[:, now] = mla_ref.rms_norm(c_new, w["kv_norm"]), k_new
    held = c_cache[:, : position + 1], k_cache[:, : position + 1]
    out, _ = mla_ref.absorb(q[..., :nope], q_rope, *held, w["w_uk"], w["w_uv"])
    return out.flatten(2) @ w["w_o"].T, c_cache, k_cache


def pages(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, pool, table, seq_lens, lengths):
    rows = pool[table.long()].flatten(1, 2)
    start, new = int(seq_lens), int(lengths)
    rows[:, start : start + new] = torch.cat((c_kv, k_rope), -1)
    pool[table[0].long()] = rows.view(-1, *pool.shape[1:])
    held = rows[:, : start + new].split((c_kv.shape[-1], k_rope.shape[-1]), -1)
    return mla_ref.absorb(q_nope, q_rope, *held, w_uk, w_uv)[0], pool


RIGHT = {
    "layer": layer,
    "attention": attention,
    "norm": mla_ref.rms_norm,
    "rope": rope,
    "decode": decode,
    "paged_decode": paged_decode,
    "pages": pages,
}


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("place", RIGHT)
def test_a_right_function_writes_the_same_text(place, capsys):
    playground.write(PROMPT, new=12, **{place: RIGHT[place]})
    assert capsys.readouterr().out.endswith("the same text\n")


def test_a_wrong_function_writes_another_text_and_leaves_the_model_as_it_was(capsys):
    model = mla_ref.models.load_byte_model()
    playground.write(PROMPT, new=12, model=model, rope=no_rope)
    assert "another text from character" in capsys.readouterr().out
    wrong_scale = lambda *operands: mla_ref.naive(*operands, scale=1.0)
    playground.write(PROMPT, new=12, model=model, attention=wrong_scale)
    assert "another text from character" in capsys.readouterr().out
    playground.write(PROMPT, new=12, model=model, attention=attention)
    assert capsys.readouterr().out.endswith("the same text\n")


def test_a_function_that_is_not_written_yet_and_one_that_raises_are_a_sentence(capsys):
    def unwritten(*_):
        raise NotImplementedError

    playground.write(PROMPT, new=4, norm=unwritten)
    assert "not written yet" in capsys.readouterr().out
    playground.write(PROMPT, new=4, norm=lambda x, weight, eps: x @ weight[:3])
    assert "RuntimeError, " in capsys.readouterr().out
    with pytest.raises(TypeError, match="no place for norms, expected layer, attention, norm"):
        playground.write(PROMPT, norms=mla_ref.rms_norm)


def test_drafts_write_the_same_text_in_fewer_steps(capsys):
    playground.draft(PROMPT, new=16, most=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["k = 1", "k = 2"]
    assert all(line.endswith("; the same text") for line in lines)
