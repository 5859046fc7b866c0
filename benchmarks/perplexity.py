"""What INT4 in W_UK and W_UV costs in quality: bits a byte of the trained model on texts that it never saw.

    PYTHONPATH=. python benchmarks/perplexity.py corpus.tar.xz

The archive is that of `train_byte_model.py`, of which the files held out are read, in the order of a hash of their
names, until there are `SIZE` bytes. The weights of every layer are quantised by `mla_ref.quantize_int4` and expanded
again; all is computed in float32. No group is longer than the width that a product sums over, which is 32 in W_UK:
"64" is groups of 64 in W_UV and of 32 in W_UK.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import record
import torch
from train_byte_model import bits_a_byte, texts

from mla_ref import quantize_int4
from mla_ref.models import Model, load_byte_model

SIZE = 100_000
GROUPS = (32, 64)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main(archive: Path) -> None:
    """Measure; write the record."""
    held_out = texts(archive)[1]
    print(record.write("perplexity", figures(excerpt(held_out, SIZE)), ("safetensors",)))


def excerpt(held_out: dict[str, bytes], size: int) -> list[bytes]:
    """Return files until they have `size` bytes together; the last one is cut."""
    chosen, left = [], size
    for name in sorted(held_out, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if left:
            chosen.append(held_out[name][:left])
            left -= len(chosen[-1])
    return chosen


def figures(files: list[bytes]) -> dict[str, Any]:
    """Return bits a byte without and with INT4."""
    rows: list[dict[str, Any]] = [
        {"weights": "as trained", "bits_a_byte": round(bits_a_byte(load_byte_model(device=DEVICE), files), 5)}
    ]
    print(rows[0], flush=True)
    for group in GROUPS:
        model = load_byte_model(device=DEVICE)
        used = {"group": group, **quantise(model, group)}
        bits = bits_a_byte(model, files)
        rows.append({"weights": "INT4", **used, "bits_a_byte": round(bits, 5)})
        print(rows[-1], flush=True)
    return {"files": len(files), "bytes": sum(map(len, files)), "rows": rows}


@torch.no_grad()
def quantise(model: Model, group: int) -> dict[str, Any]:
    """Put INT4's values in the place of W_UK and W_UV of every layer, and return groups and relative error of both."""
    found = {}
    for name, axis in (("w_uk", 1), ("w_uv", 2)):
        weights = [getattr(layer.self_attn, name) for layer in model.model.layers]
        fitting = min(group, weights[0].shape[axis])
        quantized = [quantize_int4(weight, axis=axis, group=fitting).dequantize() for weight in weights]
        off = sum((new - weight).square().sum() for new, weight in zip(quantized, weights, strict=True))
        error = (off / sum(weight.square().sum() for weight in weights)).sqrt().item()
        found |= {f"{name}_group": fitting, f"{name}_relative_error": round(error, 4)}
        for weight, new in zip(weights, quantized, strict=True):
            weight.copy_(new)
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("one argument is expected, the archive that train_byte_model.py --pack writes")
    main(Path(sys.argv[1]))
