"""Anyone's decode is held against float64 before it is timed: what passes, and what is said of the rest."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autograder.cli import app

ROOT = Path(__file__).parents[1]
PEERS = """
import torch
import mla_ref

def whole(q_latent, q_rope, c_kv, k_rope, block_table, *, scale, seq_lens, causal):
    pages = c_kv.as_strided((*c_kv.shape[:2], 576), c_kv.stride())
    parts = pages.split((512, 64), -1)
    return mla_ref.paged_latent_attention(q_latent, q_rope, *parts, block_table, scale=scale, seq_lens=seq_lens)[0]

def not_causal(**given):
    return mla_ref.paged_latent_attention(**given | {"causal": False})

def a_token_too_many(seq_lens, **given):
    return mla_ref.paged_latent_attention(seq_lens=torch.where(seq_lens > 0, seq_lens - 1, 0), **given)

def other_arguments(q, k_cache):
    return q
"""


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """A function that runs `mla-course bench` in a folder with a module of peers: exit status, and what was printed."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MLA_COURSE", str(ROOT))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "peers_of_mine.py").write_text(PEERS)
    import peers

    monkeypatch.setattr(peers, "CASES", 8)

    def run(*options):
        result = CliRunner().invoke(app, ["bench", *options])
        return result.exit_code, result.output

    return run


def test_a_right_peer_that_takes_pages_whole_and_returns_the_output_alone_agrees(bench):
    status, text = bench("--peer", "peers_of_mine:whole")
    assert status == 0 and "peers_of_mine:whole agrees with float64 in 8 cases" in text


@pytest.mark.parametrize("name", ["not_causal", "a_token_too_many", "other_arguments"])
def test_a_wrong_peer_is_named_with_the_case_and_not_timed(name, bench):
    status, text = bench("--peer", f"peers_of_mine:{name}", "--peer", "peers_of_mine:whole", "--json")
    found = json.loads(text)
    assert status == 1 and found["right"] == ["peers_of_mine:whole"]
    assert "seq_lens = [" in found["wrong"][f"peers_of_mine:{name}"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--peer", "peers_of_mine"), "expected MODULE:FUNCTION"),
        (("--peer", "no_such_module:decode"), "no_such_module cannot be imported"),
        (("--peer", "peers_of_mine:decode"), "peers_of_mine has no function decode"),
        (("--peer", "peers_of_mine:whole", "--size", "1,16,4096"), "expected B,S,H,T"),
        (("--peer", "peers_of_mine:whole", "--size", "1,1,16,100"), "T a multiple of 64"),
        (("--size", "1,1,16,4096"), "name it with --peer"),
    ],
)
def test_what_names_no_peer_is_a_sentence_and_status_2(options, said, bench):
    status, text = bench(*options)
    assert status == 2 and said in " ".join(text.replace("│", " ").split())
