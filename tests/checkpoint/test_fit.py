import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hotreload.checkpoint.check import Report, findings
from hotreload.checkpoint.config import _ALWAYS_STATED, _DEFAULTS, _DERIVED, differences
from hotreload.checkpoint.fit import Policy, read_served_model
from hotreload.checkpoint.known_names import SIDE_FILES
from hotreload.errors import CheckpointCorrupt
from hotreload.types import Served, TensorSpec
from tests.checkpoint.written import CONFIG, TOKENIZER, any_json, checkpoint, codes, some_tensors


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return read_served_model(checkpoint(tmp_path / "served"))


def judged(
    folder: Path, served: Served, tensors: dict[str, Any] | None = None, **policy: Any
) -> Report:
    return findings(checkpoint(folder, tensors), served, Policy(**policy))


def test_other_numbers_of_the_same_model_fit(tmp_path: Path, served: Served) -> None:
    report = judged(tmp_path / "new", served, some_tensors(7))
    assert report.fit
    assert report.tensors == served.tensors
    assert report.bytes == sum(tensor.nbytes for tensor in some_tensors().values())


def test_a_wrong_shape_names_expected_and_got(tmp_path: Path, served: Served) -> None:
    tensors = some_tensors()
    tensors["up"] = tensors["up"].T.copy()
    (finding,) = judged(tmp_path / "new", served, tensors).findings
    assert (finding.code, finding.expected, finding.got) == ("shape", "[64, 128]", "[128, 64]")
    assert (
        finding.message
        == "model.safetensors: tensor 'up' is [128, 64], the engine serves [64, 128]"
    )


def test_an_unknown_shape_is_not_compared(tmp_path: Path, served: Served) -> None:
    loose = Served({n: TensorSpec(None, s.dtype) for n, s in served.tensors.items()}, {}, {})
    tensors = {n: t.reshape(-1) for n, t in some_tensors().items()}
    assert judged(tmp_path / "new", loose, tensors).fit


def test_every_missing_and_every_extra_tensor_is_listed(tmp_path: Path, served: Served) -> None:
    tensors = {"embed": some_tensors()["embed"], "more": np.ones(3, np.float32)}
    found = judged(tmp_path / "new", served, tensors).findings
    assert {(f.code, f.tensor) for f in found} == {
        ("missing", "up"),
        ("missing", "norm"),
        ("extra", "more"),
    }


def test_extra_tensors_pass_by_pattern(tmp_path: Path, served: Served) -> None:
    tensors = {**some_tensors(), "vision.1.w": np.ones(3, np.float32)}
    assert codes(judged(tmp_path / "a", served, tensors).findings) == ["extra"]
    assert judged(tmp_path / "b", served, tensors, extra_tensors=("vision.*",)).fit


BUFFERS = {
    "lm_head.weight": np.ones(3, np.float32),
    "layers.0.rotary_emb.inv_freq": np.ones(3, np.float32),
}


def test_what_no_engine_loads_may_be_there_or_not(tmp_path: Path) -> None:
    tied = checkpoint(tmp_path / "tied")
    (tied / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    assert judged(tmp_path / "new", read_served_model(tied), some_tensors() | BUFFERS).fit


@pytest.mark.parametrize(("is_tied", "missing"), [(True, []), (False, ["lm_head.weight"])])
def test_tied_weights_may_be_left_out_also_where_the_served_folder_holds_them(
    tmp_path: Path, is_tied: bool, missing: list[str]
) -> None:
    folder = checkpoint(tmp_path / "served", some_tensors() | BUFFERS)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": is_tied}))
    served = read_served_model(folder)
    assert "lm_head.weight" in served.tensors
    assert judged(tmp_path / "with", served, some_tensors() | BUFFERS).fit
    found = judged(tmp_path / "without", served).findings
    assert [(each.code, each.tensor) for each in found] == [("missing", name) for name in missing]


@pytest.mark.parametrize(
    ("dtype", "policy", "fits"),
    [
        (np.float32, "reject", False),
        (np.float32, "cast", True),
        (np.float16, "cast", True),
        (np.int8, "cast", False),
        (np.int64, "cast", False),
        (ml_dtypes.float8_e4m3fn, "cast", False),
    ],
)
def test_another_dtype_passes_only_between_floats_and_by_policy(
    tmp_path: Path, served: Served, dtype: Any, policy: str, fits: bool
) -> None:
    tensors = {**some_tensors(), "norm": np.ones(64, dtype)}
    report = judged(tmp_path / "new", served, tensors, dtype_change=policy)
    assert codes(report.findings) == ([] if fits else ["dtype"])


@pytest.mark.parametrize(
    ("stated", "fields"),
    [
        ({"hidden_size": 128}, ["hidden_size"]),
        ({"rope_theta": 500000}, ["rope_theta"]),
        ({"rope_theta": 10000}, []),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 5e5}}, ["rope_theta"]),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}, []),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, ["rope_scaling"]),
        ({"rope_scaling": None}, []),
        ({"head_dim": 16, "num_key_value_heads": 4}, []),
        ({"head_dim": 32}, ["head_dim"]),
        ({"num_key_value_heads": 2}, ["num_key_value_heads"]),
        ({"tie_word_embeddings": True}, ["tie_word_embeddings"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config"]),
        ({"num_experts": 8}, ["num_experts"]),
        ({"layer_types": ["full_attention", "full_attention"]}, []),
        ({"layer_types": ["sliding_attention"]}, ["layer_types"]),
        ({"layer_types": 5}, ["layer_types"]),
        ({"use_sliding_window": False, "sliding_window": None}, []),
        ({"vocab_size": 17, "hidden_size": 65}, ["hidden_size", "vocab_size"]),
        ({"torch_dtype": "float32", "transformers_version": "9"}, []),
        ({"eos_token_id": [2, 1]}, []),
        ({"architectures": ["LlamaForCausalLM"]}, ["architectures"]),
    ],
)
def test_config_fields_a_swap_cannot_honour_are_findings(
    tmp_path: Path, served: Served, stated: dict[str, Any], fields: list[str]
) -> None:
    folder = checkpoint(tmp_path / "new")
    (folder / "config.json").write_text(json.dumps({**CONFIG, **stated}))
    found = findings(folder, served, Policy()).findings
    assert codes(found) == ["config_mismatch"] * len(fields)
    assert [f.message.split(": ")[1].split(" is ")[0] for f in found] == fields


@pytest.mark.parametrize(
    ("mine", "theirs", "same"), [([1, 2], [2, 1], True), (1, [1], True), (1, [1, 2], False)]
)
def test_stop_tokens_are_compared_as_a_set(
    tmp_path: Path, mine: object, theirs: object, same: bool
) -> None:
    folder = checkpoint(tmp_path / "served")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "eos_token_id": theirs}))
    served = read_served_model(folder)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "eos_token_id": mine}))
    assert findings(folder, served, Policy()).fit is same


_FIELDS = st.sampled_from((*_ALWAYS_STATED, *_DEFAULTS, *_DERIVED, "rope_parameters"))
_CONFIGS = st.dictionaries(_FIELDS, any_json)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(_CONFIGS, _CONFIGS)
def test_any_config_differs_from_any_other_or_not(
    mine: dict[str, Any], theirs: dict[str, Any]
) -> None:
    for each in differences(mine, theirs):
        assert each.expected != each.got or len(str(each.expected)) > 200, each.message

    assume("NaN" not in json.dumps(mine))  # which differs from itself
    assert list(differences(mine, mine)) == []


def test_a_config_in_deep_brackets_is_a_finding(tmp_path: Path, served: Served) -> None:
    folder = checkpoint(tmp_path / "new")
    for depth in (400, 900, 990, 5000, 100_000):
        (folder / "config.json").write_text('{"layer_types": ' + "[" * depth + "]" * depth + "}")
        assert codes(findings(folder, served, Policy()).findings) == ["config_mismatch"]


def test_weights_without_config_and_tokenizer_fit(tmp_path: Path, served: Served) -> None:
    folder = checkpoint(tmp_path / "new")
    (folder / "config.json").unlink()
    (folder / "tokenizer.json").unlink()
    assert findings(folder, served, Policy()).fit


def test_another_vocabulary_is_a_mismatch_and_another_layout_is_none(
    tmp_path: Path, served: Served
) -> None:
    folder = checkpoint(tmp_path / "new")
    model = {**TOKENIZER["model"], "merges": [["a", "b"]]}
    written = {"version": "2", "padding": None, **TOKENIZER, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(written, indent=3))
    assert findings(folder, served, Policy()).fit
    model["vocab"] = {"b": 0, "a": 1, "ab": 2}
    (folder / "tokenizer.json").write_text(json.dumps({**TOKENIZER, "model": model}))
    assert codes(findings(folder, served, Policy()).findings) == ["tokenizer_mismatch"]
    (folder / "tokenizer.json").write_text('{"not": "a tokenizer"}')
    assert codes(findings(folder, served, Policy()).findings) == ["tokenizer_mismatch"]


def test_other_tokenizer_settings_are_noted_and_kept_as_booted(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "new")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 1}')
    served = read_served_model(folder)
    (folder / "tokenizer_config.json").write_text('{ "model_max_length": 1 }')
    assert findings(folder, served, Policy()).notes == ()
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 2}')
    report = findings(folder, served, Policy())
    assert report.fit
    assert "tokenizer_config.json: differs from the one the engine was started with" in str(
        report.notes
    )


def test_each_side_file_the_model_lacks_is_noted(tmp_path: Path, served: Served) -> None:
    folder = checkpoint(tmp_path / "new")
    for name in SIDE_FILES:
        if name != "tokenizer.json":
            (folder / name).write_text("{}")
    report = findings(folder, served, Policy())
    assert report.fit
    assert [note.partition(":")[0] for note in report.notes] == [
        name for name in SIDE_FILES if name != "tokenizer.json"
    ]


def test_before_the_tensors_are_known_config_and_tokenizer_are_compared_all_the_same(
    tmp_path: Path, served: Served
) -> None:
    unknown = replace(served, tensors={})
    folder = checkpoint(tmp_path / "new", {"any": np.ones(3, np.float32)})
    assert findings(folder, unknown, Policy()).fit
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": 17}))
    (folder / "tokenizer.json").write_text('{"not": "a tokenizer"}')
    found = codes(findings(folder, unknown, Policy()).findings)
    assert found == ["config_mismatch", "tokenizer_mismatch"]


def test_a_folder_without_weights_serves_its_config_and_no_tensors(tmp_path: Path) -> None:
    (checkpoint(tmp_path / "new") / "model.safetensors").unlink()
    served = read_served_model(tmp_path / "new")
    assert (served.tensors, served.config["hidden_size"]) == ({}, 64)
    (tmp_path / "new" / "config.json").unlink()
    with pytest.raises(CheckpointCorrupt, match=r"no \*\.safetensors or index yet"):
        read_served_model(tmp_path / "new")


def test_a_folder_that_is_not_sound_cannot_be_what_is_served(tmp_path: Path) -> None:
    (checkpoint(tmp_path / "new") / "model.safetensors").write_bytes(b"short")
    with pytest.raises(CheckpointCorrupt, match=r"new: model\.safetensors: is 5 bytes") as caught:
        read_served_model(tmp_path / "new")
    assert caught.value.code == "truncated"
