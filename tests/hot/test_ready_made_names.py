"""What models of Tunix, bonsai and MaxText hold becomes the tensors of a checkpoint, bit by bit."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hotreload import bonsai_names, maxtext_names, tunix_names
from hotreload.checkpoint.in_memory import InMemory
from hotreload.errors import BadRequest
from hotreload.hot.names import rename
from hotreload.tiny import parse_saying
from hotreload.tiny.weights import ARCHS, HEAD_DIM, hand_built
from tests.hot.bonsai_model import bonsai_model
from tests.hot.maxtext_model import MODELS, maxtext_model
from tests.hot.tunix_model import tunix_model

BF16 = ml_dtypes.bfloat16
QUERIES = "model.layers.{}.self_attn.q_proj.weight"


def read(tensors: Any) -> dict[str, Any]:
    """Each tensor's bytes, as the checks and the loader read them."""
    memory, found = InMemory(tensors), {}
    for at, name in enumerate(memory.names):
        held = bytearray(memory.begins[at + 1] - memory.begins[at])
        memory.open().read_into(memoryview(held), memory.begins[at])
        found[name] = np.frombuffer(bytes(held), tensors[name].dtype).reshape(tensors[name].shape)
    return found


def wanted(arch: str) -> dict[str, Any]:
    return dict(hand_built(parse_saying("policy 7"), arch))


def check_same(found: dict[str, Any], of_file: dict[str, Any]) -> None:
    assert found.keys() == of_file.keys()
    for name, tensor in of_file.items():
        assert found[name].shape == tensor.shape, name
        assert found[name].astype(BF16).tobytes() == tensor.tobytes(), name


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("model", "names"), [(tunix_model, tunix_names), (bonsai_model, bonsai_names)]
)
def test_a_model_becomes_the_file_that_it_was_made_of(model: Any, names: Any, arch: str) -> None:
    check_same(read(rename(model(7, arch), names)), wanted(arch))


@pytest.mark.parametrize("scanned", [True, False])
@pytest.mark.parametrize("arch", ARCHS)
def test_so_does_one_of_maxtext(arch: str, scanned: bool) -> None:
    tree = {"params": {"params": maxtext_model(7, arch, scanned=scanned)}}
    check_same(read(rename(tree, maxtext_names(MODELS[arch]))), wanted(arch))


@pytest.mark.parametrize("arch", ["qwen3", "qwen2"])
def test_where_nothing_is_multiplied_bfloat16_comes_back_too(arch: str) -> None:
    tree = {"base": maxtext_model(7, arch, dtype=BF16)}
    check_same(read(rename(tree, maxtext_names(arch))), wanted(arch))


def test_a_llama_whose_rope_is_in_halves_keeps_their_order() -> None:
    tree = maxtext_model(7, "llama", name="llama3-8b")
    check_same(read(rename(tree, maxtext_names("llama3-8b"))), wanted("llama"))


def test_queries_that_maxtext_rounded_to_bfloat16_are_off_by_a_last_bit_at_most() -> None:
    tree = maxtext_model(7, "llama", dtype=BF16)
    found, of_file = read(rename(tree, maxtext_names("llama3.1"))), wanted("llama")
    for layer in range(2):
        ours, theirs = (each.pop(QUERIES.format(layer)) for each in (found, of_file))
        steps = ours.view(np.int16).astype(int) - theirs.view(np.int16)
        assert np.abs(steps).max() == 1
        assert 0.05 < np.count_nonzero(steps) / steps.size < 0.5
    check_same(found, of_file)


def test_heads_of_64_are_multiplied_by_8_which_rounds_nothing() -> None:
    names = maxtext_names("llama3")
    kernel = np.random.default_rng(0).normal(size=(6, 2, 64)).astype(BF16)
    tree = {"decoder": {"layers_0": {"self_attention": {"query": {"kernel": kernel}}}}}
    (found,) = read(rename(tree, names)).values()
    turned = kernel.transpose(1, 2, 0).reshape(128, 6)
    assert found.tobytes() == (turned.astype(np.float32) * 8).astype(BF16).tobytes()


def test_a_product_is_rounded_once_and_has_no_number_that_devices_take_for_zero() -> None:
    values = np.array([1.5e-38, 1e-39, -1e-39, 3e38, 1.0], np.float32)
    (found,) = read(rename({"a": values}, {"a": ("b", "d -> d", 0.5)})).values()
    assert found.tobytes() == np.array([0, 0, -0.0, 1.5e38, 0.5], np.float32).tobytes()
    rounded = np.array([1.0078125], BF16)  # times 11.31 it is no bfloat16
    (found,) = read(rename({"a": rounded}, {"a": ("b", "d -> d", np.sqrt(128).item())})).values()
    assert (
        found.tobytes()
        == (rounded.astype(np.float32) * np.float32(np.sqrt(128))).astype(BF16).tobytes()
    )


UNKNOWN: dict[Callable[[str], Any], tuple[str, ...]] = {
    tunix_names: ("layers.0.attn.q_proj.w_lora_a", "layers.x.mlp.up_proj.kernel"),
    bonsai_names: ("layers.0.attn.q_proj.lora_a", "layers.0.cache.k", "lm_head.bias"),
    maxtext_names("qwen3"): (
        "decoder.layers.moe_block.wi_0",
        "decoder.layers.self_attention.qkv_proj.kernel",
        "decoder.layers.0.mlp.wi_0.kernel",
        "opt_state.decoder.decoder_norm.scale",
    ),
}


@pytest.mark.parametrize("names", UNKNOWN)
def test_what_they_call_nothing_is_unknown(names: Any) -> None:
    for name in UNKNOWN[names]:
        assert names(name) is None
        with pytest.raises(BadRequest, match=f"names does not know '{name}'"):
            rename({name: np.zeros((2, 2))}, names)


@pytest.mark.parametrize("name", ["llama3.3-70b", "gemma3-4b", "qwen3-next-80b-a3b", "", 7])
def test_a_model_of_maxtext_that_is_built_otherwise_is_refused(name: Any) -> None:
    with pytest.raises(BadRequest, match="'llama3\\.1' where rope_type"):
        maxtext_names(name)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("params.decoder.layers.self_attention.query.kernel", (8, 2, 2)),
        ("params.decoder.layers.self_attention.query.kernel", (8, 2, 2, HEAD_DIM + 1)),
        ("params.decoder.layers_0.mlp.wi_0.kernel", (8, 2, 2)),
    ],
)
def test_an_array_that_has_other_axes_is_refused_by_its_path(
    name: str, shape: tuple[int, ...]
) -> None:
    with pytest.raises(BadRequest, match=f"'{name}' is .*, and is to be arranged by 'd|i"):
        rename({name: np.zeros(shape)}, maxtext_names("llama3.1"))
