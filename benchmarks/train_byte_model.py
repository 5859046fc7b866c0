"""Train the course's model: DeepSeek-V3's architecture over bytes, on the texts of Python's standard library.

The texts, from a Debian machine: documentation (.rst) and sources (.py, without tests) of one Python.

    apt-get download python3.11-doc libpython3.11-stdlib libpython3.11-minimal
    for each in *.deb; do dpkg-deb -x $each python; done
    PYTHONPATH=. python benchmarks/train_byte_model.py --pack python corpus.tar.xz

The training, on a GPU, and on a CPU as a rehearsal:

    PYTHONPATH=. python benchmarks/train_byte_model.py corpus.tar.xz --minutes 5
    PYTHONPATH=. python benchmarks/train_byte_model.py corpus.tar.xz --minutes 0.2 --width tiny --out /tmp/model

`--out` gets the folder `byte_model` and the record; without it they go to `mla_ref/` and `benchmarks/`. What has been
trained is saved every minute. `--evaluate` measures a model that is there.

Every text is its bytes with END before and behind. A hash of a file's name says whether the model is trained on it. The
loss is that of the next byte, and `MTP` times that of the byte after it, which the layer of multi-token prediction
gives. Experts are balanced by their bias, as DeepSeek-V3's are, without a loss for it. The clock sets the learning
rate.

The record: bits a byte on the files held out, by `mla_ref.models` in float32, each byte seen from those before it in a
window of `WINDOW`; the share of drafted bytes that greedy generation behind held-out texts takes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import os
import tarfile
import time
from pathlib import Path

import record
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import mla_ref
from mla_ref.drafting import generate_drafted
from mla_ref.models import Model, ModelConfig, generate, load

END = 0  # no text has this byte
WINDOW = 2048
HELD_OUT = 25  # one file in so many
MTP = 0.3
BALANCE = 1e-3  # DeepSeek-V3's speed of the bias, per step
PEAK, WARM_UP, DECAY = 3e-3, 300, 0.6  # learning rate, steps to it, and the share of the time in which it falls to 0
LEFT_OUT = ("pydoc_data", "encodings", "test", "tests", "idle_test")  # copies of the documentation, tables, tests

FULL = dict(
    hidden_size=192, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=64, kv_lora_rank=64,
    qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32, intermediate_size=384, moe_intermediate_size=64,
    n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1,
    max_position_embeddings=WINDOW,
)  # fmt: skip
WIDTHS = {
    "full": (FULL, 64, WINDOW),  # sequences a step, and their length
    "tiny": (FULL | dict(hidden_size=64, num_hidden_layers=2, intermediate_size=128, moe_intermediate_size=32), 8, 128),
}
FIXED = dict(
    architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", vocab_size=256, hidden_act="silu",
    rms_norm_eps=1e-6, rope_theta=10000.0, rope_interleave=True, attention_bias=False, tie_word_embeddings=False,
    n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.0, scoring_func="sigmoid",
    topk_method="noaux_tc", num_nextn_predict_layers=1, bos_token_id=END, eos_token_id=END, torch_dtype="bfloat16",
)  # fmt: skip


def pack(source: Path, archive: Path) -> None:
    """Write the texts below a folder to a .tar.xz, under their names in documentation and library."""
    texts = {}
    for path in sorted(source.rglob("*")):
        parts = path.parts
        if path.is_file() and not path.is_symlink() and not set(parts) & set(LEFT_OUT):
            if "_sources" in parts and path.name.endswith(".rst.txt"):
                texts["Doc/" + "/".join(parts[parts.index("_sources") + 1 :])[: -len(".txt")]] = path
            elif path.suffix == ".py" and "dist-packages" not in parts and "doc" not in parts:
                library = next(i for i, part in enumerate(parts) if part.startswith("python3"))
                texts["Lib/" + "/".join(parts[library + 1 :])] = path
    with tarfile.open(archive, "w:xz", preset=9) as file:
        for name, path in sorted(texts.items()):
            content = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))


def texts(archive: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the texts to train on and those held out, by name."""
    parts: tuple[dict[str, bytes], dict[str, bytes]] = {}, {}
    with tarfile.open(archive) as file:
        for entry in file:
            content = file.extractfile(entry).read().replace(bytes([END]), b"")
            if content:
                held_out = int(hashlib.sha256(entry.name.encode()).hexdigest(), 16) % HELD_OUT == 0
                parts[held_out][entry.name] = content
    return parts


class Trained(nn.Module):
    """The losses of a :class:`Model`, computed in bfloat16 for many long sequences.

    The arithmetic is the model's, on its weights. All experts are one product, of which each token's weights keep two;
    attention is PyTorch's.
    """

    def __init__(self, model: Model, length: int, dtype: torch.dtype):
        super().__init__()
        self.net, self.dtype = model, dtype
        width, device = model.config.attention.qk_rope_head_dim, model.lm_head.weight.device
        angles = mla_ref.rope_cos_sin(torch.arange(length, device=device), width)
        for name, table in zip(("cos", "sin"), angles, strict=True):
            self.register_buffer(name, table[:, None], persistent=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return both losses, in nats a byte, and the tokens of each expert ``[layers, experts]``, of ``[B, S+2]``."""
        net, loads = self.net.model, []
        new = tokens.shape[1] - 2
        embedded = F.embedding(tokens[:, :-1], net.embed_tokens.weight).to(self.dtype)  # its gradient adds in float32
        x = embedded[:, :new]
        for layer in net.layers[:-1]:
            x = self.layer(layer, x, loads)
        x = self.norm(net.norm, x)
        main = self.loss(x, tokens[:, 1:-1])
        last = net.layers[-1]
        x = torch.cat((self.norm(last.enorm, embedded[:, 1:]), self.norm(last.hnorm, x)), -1)
        x = self.layer(last, self.linear(last.eh_proj, x), loads)
        return main, self.loss(self.norm(last.shared_head.norm, x), tokens[:, 2:]), torch.stack(loads)

    def loss(self, x, targets):
        return F.cross_entropy(self.linear(self.net.lm_head, x).float().flatten(0, 1), targets.flatten())

    def linear(self, module, x):
        return F.linear(x, module.weight.to(self.dtype))

    def norm(self, module, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + module.eps) * module.weight).to(self.dtype)

    def layer(self, layer, x, loads):
        x = x + self.attention(layer.self_attn, self.norm(layer.input_layernorm, x))
        y = self.norm(layer.post_attention_layernorm, x)
        if hasattr(layer.mlp, "experts"):
            return x + self.experts(layer.mlp, y, loads)
        return x + self.mlp(layer.mlp, y)

    def mlp(self, mlp, x):
        return self.linear(mlp.down_proj, F.silu(self.linear(mlp.gate_proj, x)) * self.linear(mlp.up_proj, x))

    def experts(self, moe, x, loads):
        gate, experts = moe.gate, moe.gate.experts
        scores = F.linear(x.float(), gate.weight).sigmoid()
        ranked = scores.detach() + gate.e_score_correction_bias
        better = (ranked[..., None, :] > ranked[..., None]).sum(-1)  # unlike topk, one fused kernel
        kept = (better < experts.per_token).float()
        loads.append(kept.sum((0, 1)))
        weights = scores * kept
        weights = (weights / (weights.sum(-1, keepdim=True) + 1e-20) * experts.scale).to(self.dtype)

        def joined(name, dim):
            return torch.cat([getattr(each, name).weight for each in moe.experts], dim).to(self.dtype)

        inner = F.silu(F.linear(x, joined("gate_proj", 0))) * F.linear(x, joined("up_proj", 0))
        inner = (inner.unflatten(-1, (experts.count, -1)) * weights[..., None]).flatten(-2)
        return F.linear(inner, joined("down_proj", 1)) + self.mlp(moe.shared_experts, x)

    def attention(self, mla, x):
        config = mla.config
        rope, nope, value = config.qk_rope_head_dim, config.qk_nope_head_dim, config.v_head_dim
        heads = config.num_attention_heads
        q = self.linear(mla.q_b_proj, self.norm(mla.q_a_layernorm, self.linear(mla.q_a_proj, x)))
        q_nope, q_rope = q.unflatten(-1, (heads, -1)).split((nope, rope), -1)
        latent, k_rope = self.linear(mla.kv_a_proj_with_mqa, x).split((config.kv_lora_rank, rope), -1)
        kv = self.linear(mla.kv_b_proj, self.norm(mla.kv_a_layernorm, latent)).unflatten(-1, (heads, -1))
        k_nope, v = kv.split((nope, value), -1)
        k_rope = self.rotate(k_rope[:, :, None]).expand(-1, -1, heads, -1)
        q = torch.cat((q_nope, self.rotate(q_rope)), -1).transpose(1, 2)
        k = torch.cat((k_nope, k_rope), -1).transpose(1, 2)
        v = F.pad(v, (0, nope + rope - value)).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=config.softmax_scale)
        return self.linear(mla.o_proj, out.transpose(1, 2)[..., :value].flatten(2))

    def rotate(self, x):
        a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2).to(self.dtype)


def initialise(model: Model) -> None:
    """Draw the weights: what is added to the residual stream is small at first."""
    depth = 2 * len(model.model.layers)
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            std = 0.3 if "embed" in name else 0.6 * weight.shape[1] ** -0.5
            nn.init.normal_(weight, std=std * depth**-0.5 if "o_proj" in name or "down_proj" in name else std)


def train(
    model: Model, content: bytes, minutes: float, batch: int, length: int, folder: Path, fields: dict, eager: bool
) -> dict:
    """Train for so many minutes behind the first step, and return what the record says of it."""
    device = model.lm_head.weight.device
    on_gpu = device.type == "cuda"
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)
    trained = Trained(model, length, torch.bfloat16 if on_gpu else torch.float32)
    if on_gpu:
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape
    losses = torch.compile(trained, dynamic=False) if on_gpu and not eager else trained
    matrices = [weight for weight in model.parameters() if weight.ndim == 2]
    norms = [weight for weight in model.parameters() if weight.ndim != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.95), fused=True)
    gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "experts")]
    biases = torch.stack([gate.e_score_correction_bias for gate in gates])
    offsets = torch.arange(length + 2, device=device)
    history, step, began, said, saved = [], 0, 0.0, 0.0, 0.0
    compiling = time.perf_counter()
    while True:
        passed = time.perf_counter() - began if began else 0.0
        share = passed / (60 * minutes)
        if share >= 1:
            break
        rate = PEAK * min((step + 1) / WARM_UP, 1.0, (1 - share) / DECAY)
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(data) - length - 2, (batch, 1), device=device)
        main, further, loads = losses(data[starts + offsets].long())
        (main + MTP * further).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        biases += BALANCE * (loads.mean(-1, keepdim=True) - loads).sign()
        for gate, bias in zip(gates, biases, strict=True):
            gate.e_score_correction_bias.copy_(bias)
        step += 1
        if step == 1:
            print(
                f"first step after {time.perf_counter() - compiling:.1f} s: {main.item():.3f} nats a byte", flush=True
            )
            began = said = saved = time.perf_counter()
        elif time.perf_counter() - said > 10 or step == 20:
            bits, bits_further = (each.item() / math.log(2) for each in (main, further))
            if not math.isfinite(bits):
                raise FloatingPointError(f"the loss of step {step} is {bits}: what was saved before stays")
            said = time.perf_counter()
            speed = (step - 1) * batch * length / (said - began)
            most = (loads.amax(-1) / loads.mean(-1)).max().item()
            history.append([step, round(said - began, 1), round(bits, 4), round(bits_further, 4)])
            print(
                f"{said - began:6.1f} s  step {step:6d}  {bits:.3f} bits a byte, the one after {bits_further:.3f}  "
                f"{speed / 1e6:.2f} MB/s  rate {rate:.1e}  fullest expert {most:.2f}",
                flush=True,
            )
            if said - saved > 60:
                save(model, fields, folder)
                saved = said
    save(model, fields, folder)
    seconds = time.perf_counter() - began
    return {
        "seconds": round(seconds, 1),
        "steps": step,
        "bytes_seen": step * batch * length,
        "bytes_per_s": round((step - 1) * batch * length / seconds),
        "history": {"columns": ["step", "s", "bits_a_byte", "bits_of_the_one_after"], "rows": history},
    }


def save(model: Model, fields: dict, folder: Path) -> None:
    """Write config.json and model.safetensors, bfloat16 but for the routers' biases."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {}
    for name, tensor in model.state_dict().items():
        narrow = torch.float32 if name.endswith("e_score_correction_bias") else torch.bfloat16
        state[name] = tensor.detach().to("cpu", narrow).contiguous()
    save_file(state, folder / "unfinished", metadata={"format": "pt"})
    (folder / "unfinished").chmod(0o644)
    os.replace(folder / "unfinished", folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")


@torch.no_grad()
def bits_a_byte(model: Model, files: list[bytes], batch: int = 8) -> float:
    """Return the mean over all bytes of the files, each seen from those before it in its window."""
    device, longest = model.lm_head.weight.device, model.config.attention.max_position_embeddings
    windows = []
    for content in files:
        tokens = [END, *content]
        windows += [tokens[at : at + longest + 1] for at in range(0, len(tokens) - 1, longest)]
    windows.sort(key=len)
    total, count = 0.0, 0
    for first in range(0, len(windows), batch):
        rows = windows[first : first + batch]
        width = max(map(len, rows))
        tokens = torch.tensor([row + [END] * (width - len(row)) for row in rows], device=device)
        logits = model(tokens[:, :-1], impl="naive")
        each = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view(len(rows), -1)
        real = torch.arange(width - 1, device=device) < torch.tensor([[len(row) - 1] for row in rows], device=device)
        total += each[real].double().sum().item()
        count += int(real.sum())
    return total / count / math.log(2)


def evaluate(folder: Path, held_out: dict[str, bytes], device: str, small: bool) -> dict:
    """Measure a saved model by :mod:`mla_ref.models`, in float32."""
    model = load(folder, device=device, dtype=torch.float32)
    kinds = {"documentation": ".rst", "sources": ".py"}
    files = {kind: [held_out[name] for name in sorted(held_out) if name.endswith(end)] for kind, end in kinds.items()}
    if small:
        files = {kind: [content[:3000] for content in each[:2]] for kind, each in files.items()}
    figures = {
        "held_out_files": {kind: len(each) for kind, each in files.items()},
        "held_out_bytes": {kind: sum(map(len, each)) for kind, each in files.items()},
        "bits_a_byte": {kind: round(bits_a_byte(model, each), 4) for kind, each in files.items()},
    }
    sizes = figures["held_out_bytes"]
    total = sum(figures["bits_a_byte"][kind] * sizes[kind] for kind in kinds) / sum(sizes.values())
    figures["bits_a_byte"]["all"] = round(total, 4)
    print(figures, flush=True)
    texts, start, new = (4, 64, 24) if small else (64, 512, 256)
    prompts = [list(each[:start]) for kind in kinds for each in files[kind] if len(each) >= start][:texts]
    plain = generate(model, prompts, new, stop=())
    rows = []
    for draft in (1, 2, 3):
        found = generate_drafted(model, prompts, new, draft=draft, stop=())
        same = sum(a == b for a, b in zip(found.tokens, plain, strict=True))
        rows.append(
            {"draft": draft, "acceptance": round(found.acceptance, 4), "same_texts": same, "steps": found.steps}
            | {"accepted_at_place": [round(each / found.rounds, 4) for each in found.accepted]}
        )
        print(rows[-1], flush=True)
    figures["drafting"] = {"texts": len(prompts), "prompt": start, "new": new, "rows": rows}
    for tokens, prompt in list(zip(plain, prompts, strict=True))[:: max(len(plain) // 3, 1)]:
        print("-" * 80, bytes(prompt[-160:]).decode(errors="replace"), sep="\n", end="|>")
        print(bytes(tokens).decode(errors="replace"), flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="corpus.tar.xz")
    parser.add_argument(
        "--pack", action="store_true", help="write the texts of the first path, a folder, to the second"
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--width", choices=WIDTHS, default="full")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--eager", action="store_true", help="without torch.compile: slower, if that fails")
    parser.add_argument("--evaluate", action="store_true", help="no training: measure the model that is there")
    options = parser.parse_args()
    if options.pack:
        return pack(*options.paths)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("MLA_BENCH_OUT", str(options.out))
    folder = (options.out or Path(mla_ref.__file__).parent) / "byte_model"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train_on, held_out = texts(options.paths[0])
    sizes, batch, length = WIDTHS[options.width]
    fields = FIXED | sizes
    config = ModelConfig.from_hf(fields)
    torch.manual_seed(0)
    model = Model(config, device=device)
    parameters = sum(weight.numel() for weight in model.parameters())
    content = bytes([END]).join([b"", *train_on.values(), b""])
    print(f"{parameters:,} parameters, {len(train_on)} files of {len(content):,} bytes, {len(held_out)} held out")
    figures = {"parameters": parameters, "files": len(train_on), "bytes": len(content)}
    if not options.evaluate:
        initialise(model)
        figures |= {"batch": batch, "length": length, "mtp_weight": MTP, "peak_rate": PEAK}
        figures |= train(model, content, options.minutes, batch, length, folder, fields, options.eager)
    figures["file_bytes"] = (folder / "model.safetensors").stat().st_size
    figures |= evaluate(folder, held_out, device, small=options.width == "tiny")
    print(record.write(f"byte_model_{record.gpu()}" if device == "cuda" else "byte_model", figures, ("safetensors",)))
    return None


if __name__ == "__main__":
    main()
