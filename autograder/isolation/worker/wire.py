"""Messages between the judge and a worker: a JSON tree and the raw bytes of its tensors.

A message is `magic, header length, payload length, header, payload`. In the header's JSON a tensor stands as
`{"$tensor": index}` and a tuple as `{"$tuple": [...]}`; the payload holds the tensors' bytes in that order. Decoding
runs no code from the message, so a reply from a hostile process can be wrong but not dangerous.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from typing import Any

import numpy as np
import torch

from autograder.isolation.worker.trees import PLAIN

MAGIC = b"MLA\x01"
PREFIX = struct.Struct("<4sIQ")
MAX_HEADER = 16 << 20
MAX_TENSORS = 4096
MAX_DIMS = 8
MAX_DEPTH = 64  # of what lies in one another: who works on it goes as deep, from wherever they stand

_NAMES = "float64 float32 float16 bfloat16 float8_e4m3fn int64 int32 int16 int8 uint8 bool"
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES.split()}


class WireError(ValueError):
    """A value that cannot be sent, or bytes that are not a message."""


def encode(value: Any) -> bytes:
    """Return the message for `value`: tensors, arrays, numbers, strings, None, and lists, tuples and dicts of them.

    Raises WireError for anything else, naming its type, and for what `decode` would not take.
    """
    tensors: list[torch.Tensor] = []
    tree = _pack(value, tensors)
    if len(tensors) > MAX_TENSORS:
        raise WireError(f"more than {MAX_TENSORS} tensors")
    specs = [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in tensors]
    header = json.dumps({"tree": tree, "tensors": specs}, separators=(",", ":")).encode()
    if len(header) > MAX_HEADER:
        raise WireError(f"more than {MAX_HEADER >> 20} MiB of text and numbers")
    payload = b"".join(_raw(t) for t in tensors)
    return PREFIX.pack(MAGIC, len(header), len(payload)) + header + payload


def refusal(error: WireError, result: Any) -> str:
    """Return what `encode` said of a message with a function's result, and of which entry where that is a dict."""
    for key, value in result.items() if isinstance(result, dict) else ():
        try:
            encode(value)
        except WireError as found:
            return f"{found} as its entry {str(key)[:40]!r}"
    return str(error)


def _pack(value: Any, tensors: list[torch.Tensor], depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise WireError(f"more than {MAX_DEPTH} values in one another")
    if type(value) in PLAIN:  # nearly all there is
        return value
    if isinstance(value, np.ndarray | np.generic):
        value = torch.from_numpy(np.array(value))
    if isinstance(value, torch.Tensor):
        if str(value.dtype).removeprefix("torch.") not in DTYPES:
            raise WireError(f"a tensor of dtype {value.dtype}")
        tensors.append(value.detach().cpu().contiguous())
        return {"$tensor": len(tensors) - 1}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return {"$tuple": [_pack(v, tensors, depth + 1) for v in value]}
    if isinstance(value, list):
        return [_pack(v, tensors, depth + 1) for v in value]
    if isinstance(value, dict):
        if not all(isinstance(k, str) for k in value):
            raise WireError("a dict with keys of other types than str")
        return {k: _pack(v, tensors, depth + 1) for k, v in value.items()}
    raise WireError(f"a value of type {type(value).__name__}")


def _raw(tensor: torch.Tensor) -> bytes:
    return bytes_of(tensor).numpy().tobytes() if tensor.numel() else b""


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor's elements, in order. A single one is contiguous whatever its stride."""
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def message_size(data: bytes | bytearray | memoryview) -> int | None:
    """Return the length of the message that starts `data`, or None while its prefix is incomplete.

    Raises WireError if no message can start so.
    """
    if len(data) < PREFIX.size:
        return None
    magic, header, payload = PREFIX.unpack_from(data)
    if magic != MAGIC or header > MAX_HEADER:
        raise WireError("not a message: wrong magic number or header length")
    return PREFIX.size + header + payload


def header_size(data: bytes | bytearray | memoryview) -> int:
    """Return the length of the JSON in the message that starts `data`."""
    return PREFIX.unpack_from(data)[1]


def receive(sock: socket.socket) -> Any:
    """Return the next message of a socket, or None at its end."""
    data = bytearray()
    while (size := message_size(data)) is None or len(data) < size:
        chunk = sock.recv(min(1 << 20, (size or PREFIX.size) - len(data)))
        if not chunk:
            return None
        data += chunk
    return decode(data)


def decode(data: bytes | bytearray | memoryview) -> Any:
    """Return the value of the message `data`, which must be exactly one message. Tensors own their memory.

    Raises WireError for anything malformed.
    """
    data = memoryview(data)
    if message_size(data) != len(data):
        raise WireError(f"a message of {len(data)} bytes does not have the length it states")
    end = PREFIX.size + header_size(data)
    try:
        header = json.loads(bytes(data[PREFIX.size : end]))
        tensors = _tensors(header["tensors"], data[end:])
        return _unpack(header["tree"], tensors)
    except WireError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError) as error:
        raise WireError(f"malformed message: {error!r}") from None


def _tensors(specs: Any, payload: memoryview) -> list[torch.Tensor]:
    if not isinstance(specs, list) or len(specs) > MAX_TENSORS:
        raise WireError("malformed message: the list of tensors")
    tensors, offset = [], 0
    for name, shape in specs:
        dtype = DTYPES[name]
        if len(shape) > MAX_DIMS or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
            raise WireError(f"malformed message: shape {shape}")
        size = math.prod(shape) * dtype.itemsize
        if size > len(payload) - offset:
            raise WireError("malformed message: fewer bytes than its tensors need")
        raw = bytearray(payload[offset : offset + size])
        offset += size
        if dtype is torch.bool and size and np.frombuffer(raw, np.uint8).max() > 1:
            raise WireError("malformed message: a bool tensor with other values than 0 and 1")
        empty = math.prod(shape) == 0
        tensors.append(torch.empty(shape, dtype=dtype) if empty else torch.frombuffer(raw, dtype=dtype).view(shape))
    if offset != len(payload):
        raise WireError("malformed message: more bytes than its tensors need")
    return tensors


def _unpack(tree: Any, tensors: list[torch.Tensor], depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise WireError(f"malformed message: more than {MAX_DEPTH} values in one another")
    if isinstance(tree, list):
        return [_unpack(v, tensors, depth + 1) for v in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.keys() == {"$tensor"}:
        index = tree["$tensor"]
        if type(index) is not int or not 0 <= index < len(tensors):
            raise WireError(f"malformed message: no tensor {index!r}")
        return tensors[index]
    if tree.keys() == {"$tuple"}:
        return tuple(_unpack(v, tensors, depth + 1) for v in tree["$tuple"])
    return {k: _unpack(v, tensors, depth + 1) for k, v in tree.items()}
