"""Writes small checkpoints and malformed safetensors files for the tests of the checks."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import xxhash
from hypothesis import strategies as st

Tensors = Mapping[str, np.ndarray[Any, Any]]
DTYPES: Mapping[Any, str] = {
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(ml_dtypes.float8_e5m2): "F8_E5M2",
    np.dtype(np.float16): "F16",
    np.dtype(np.float32): "F32",
    np.dtype(np.float64): "F64",
    np.dtype(np.int8): "I8",
    np.dtype(np.int64): "I64",
}
CONFIG: Mapping[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 16,
    "rope_theta": 10000.0,
}
TOKENIZER: Mapping[str, Any] = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    "added_tokens": [{"id": 3, "content": "<end>"}],
}


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def raw_file(header: object, data: bytes = b"") -> bytes:
    """A safetensors file of this header, JSON text or bytes, and this data."""
    if isinstance(header, str | bytes):
        text = header if isinstance(header, bytes) else header.encode()
    else:
        text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(shape: object, begin: object, end: object, dtype: object = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors(tensors: Tensors) -> bytes:
    """A sound file."""
    header: dict[str, Any] = {}
    data = b""
    for name, tensor in tensors.items():
        end = len(data) + tensor.nbytes
        header[name] = entry(list(tensor.shape), len(data), end, DTYPES[tensor.dtype])
        data += tensor.tobytes()
    return raw_file(header, data)


def some_tensors(seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    values = np.random.default_rng(seed)
    return {
        name: values.standard_normal(shape).astype(ml_dtypes.bfloat16)
        for name, shape in {"embed": (16, 64), "up": (64, 128), "norm": (64,)}.items()
    }


def checkpoint(folder: Path, tensors: Tensors | None = None, *, shards: int = 1) -> Path:
    """A sound checkpoint: config, tokenizer, weights, and an index when it is sharded."""
    tensors = some_tensors() if tensors is None else tensors
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors(tensors))
        return folder
    names = [f"model-{n + 1:05d}-of-{shards:05d}.safetensors" for n in range(shards)]
    for number, name in enumerate(names):
        part = dict(list(tensors.items())[number::shards])
        (folder / name).write_bytes(safetensors(part))
    weight_map = {tensor: names[n % shards] for n, tensor in enumerate(tensors)}
    write_index(folder, weight_map)
    return folder


def write_index(folder: Path, weight_map: object) -> None:
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def codes(findings: Iterable[Any]) -> list[str]:
    return [finding.code for finding in findings]


def digest_of_shard(held: bytes) -> str:
    """That of its head, and of each tensor: so they may be read in any order."""
    start = 8 + int.from_bytes(held[:8], "little")
    entries = json.loads(held[8:start]).items()
    places = sorted(each["data_offsets"] for name, each in entries if name != "__metadata__")
    parts = [held[:start], *(held[start + begin : start + end] for begin, end in places)]
    digests = [xxhash.xxh3_128_hexdigest(each) for each in parts]
    return digests[0] if not places else xxhash.xxh3_128_hexdigest("\n".join(digests).encode())
