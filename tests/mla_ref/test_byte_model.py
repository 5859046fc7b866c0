"""The trained model: it writes what transformers writes with its weights, by every attention, and it has learned."""

import math

import pytest
import torch
import torch.nn.functional as F

from mla_ref.drafting import generate_drafted
from mla_ref.hardware import emulator
from mla_ref.models import BYTE_MODEL, decode, encode, generate, load_byte_model

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.xdist_group("byte model")  # what transformers writes with it is made once
DEVICE = "cpu" if emulator.active() else "cuda"
PROMPT = "class Queue:\n    def __init__(self, maxsize=0):\n"
FORMS = {"naive": ("naive", None), "absorb": ("absorb", None), "pages": ("absorb", 64), "prefix": ("prefix", 64)}
DECODERS = ("pointers", "tma")  # "hopper" leaves the model's widths to "tma"
UNSEEN = '''def read_lines(path):
    """Return the lines of a file as a list of strings, without the newline characters."""
    with open(path, encoding="utf-8") as file:
        return [line.rstrip("\\n") for line in file]
'''


@pytest.fixture(scope="module")
def model():
    return load_byte_model(device=DEVICE)


@pytest.fixture(scope="module")
def new(thorough):
    """How many bytes are written, beyond one page and one chunk."""
    return 1000 if thorough or DEVICE == "cuda" else 200


@pytest.fixture(scope="module")
def expected(new):
    """What transformers goes on with, likeliest bytes in float32."""
    theirs = transformers.DeepseekV3ForCausalLM.from_pretrained(BYTE_MODEL, dtype=torch.float32).to(DEVICE).eval()
    tokens = torch.tensor([encode(PROMPT)], device=DEVICE)
    with torch.no_grad():
        found = theirs.generate(
            tokens, attention_mask=torch.ones_like(tokens), do_sample=False, min_new_tokens=new, max_new_tokens=new,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    return found[0, tokens.shape[1] :].tolist()


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("form", FORMS)
def test_its_bytes_are_those_of_transformers(model, expected, new, form):
    impl, page_size = FORMS[form]
    prompt = encode(PROMPT)
    parts = {"prompts": [prompt]}
    if form == "prefix":  # two texts, so that there is something to share
        parts = {"prompts": [prompt[-5:]] * 2, "prefix": prompt[:-5]}
    found = generate(model, **parts, max_new_tokens=new, page_size=page_size, impl=impl, stop=())
    assert all(each == expected for each in found)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize("decoder", DECODERS)
def test_kernels_write_the_same(model, expected, new, decoder, page_size, monkeypatch):
    kernels = pytest.importorskip("mla_ref.kernels", reason="kernels need Triton")
    assert {*DECODERS, "hopper"} == set(kernels.DECODERS)
    monkeypatch.setattr(kernels, "FASTEST", decoder)
    new = 4 if DEVICE == "cpu" else new
    found = generate(model, [encode(PROMPT)], new, page_size=page_size, impl="triton", stop=())
    assert found[0] == expected[:new]


def test_drafts_are_mostly_taken_and_change_nothing(model, expected):
    found = generate_drafted(model, [encode(PROMPT)], 200, draft=1, stop=())
    assert found.tokens[0] == expected[:200]
    assert found.acceptance > 0.6
    assert found.steps < 140


def test_it_knows_python(model):
    tokens = torch.tensor([encode(UNSEEN)], device=DEVICE)
    with torch.no_grad():
        loss = F.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:]).item() / math.log(2)
    assert loss < 2, "bits a byte, of 8 where nothing is known"


def test_text_and_tokens():
    assert encode("é") == [0, 0xC3, 0xA9]
    assert decode(encode("import über\n")) == "import über\n"
    assert decode([0x61, 0xC3]) == "a�"


def test_the_model_is_small_and_comes_with_its_licence():
    assert sum(path.stat().st_size for path in BYTE_MODEL.iterdir()) < 6.1e6
    assert "PSF License" in (BYTE_MODEL / "README.md").read_text()
