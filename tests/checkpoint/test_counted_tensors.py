"""The fingerprint of files: which tensors it counts, and when files alone cannot tell it."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hotreload.checkpoint import content
from hotreload.checkpoint.check import Report, check_checkpoint, findings
from hotreload.checkpoint.fingerprint import TensorSum, fingerprint
from hotreload.checkpoint.fit import Policy, read_served_model
from hotreload.types import Revision
from tests.checkpoint.written import CONFIG, Tensors, checkpoint, some_tensors

ROTARY = "model.layers.0.self_attn.rotary_emb.inv_freq"


def written(folder: Path, tensors: Tensors, shards: int = 1, **stated: Any) -> Path:
    """A checkpoint whose config names the dtype of its tensors."""
    checkpoint(folder, tensors, shards=shards)
    config = {**CONFIG, "torch_dtype": "bfloat16", **stated}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def told(
    folder: Path, against: Path | None = None, policy: Policy | None = None, dtype: str = "auto"
) -> Report:
    served = read_served_model(against) if against else None
    return findings(folder, served, policy or Policy(), compute_in=dtype)


def of(tensors: Tensors) -> str:
    """The fingerprint of these tensors, each summed up by itself."""
    total, sums = TensorSum(), {}
    for name, tensor in tensors.items():
        total.update(tensor.tobytes())
        sums[name] = total.value
        total.reset()
    return fingerprint(sums)


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("piece", [16, content.BUFFER])
def test_it_is_that_of_the_tensors_however_they_are_spread_over_files(
    tmp_path: Path, shards: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "BUFFER", piece)
    tensors = some_tensors(7)
    backwards = dict(reversed(tensors.items()))
    folder = written(tmp_path / "new", backwards, shards)
    assert told(folder).fingerprint == of(tensors)
    assert told(folder, folder).fingerprint == of(tensors)


@pytest.mark.parametrize("is_compared", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_what_no_engine_loads_is_not_counted(tmp_path: Path, is_compared: bool, tied: bool) -> None:
    tensors = some_tensors()
    head = {**tensors, "lm_head.weight": tensors["embed"]}
    folder = written(tmp_path / "new", {**head, ROTARY: tensors["norm"]}, tie_word_embeddings=tied)
    report = told(folder, folder if is_compared else None)
    assert report.fingerprint == of(tensors if tied else head)


def test_what_may_be_there_beside_is_not_counted_and_what_is_served_is(tmp_path: Path) -> None:
    tensors = some_tensors()
    model = written(tmp_path / "model", tensors)
    folder = written(tmp_path / "new", {**tensors, "up.scale": tensors["norm"]})
    lax = Policy(extra_tensors=("up*",))
    assert told(folder, model, lax).fingerprint == of(tensors)
    without = {name: tensor for name, tensor in tensors.items() if name != "up"}
    assert told(folder, None, lax).fingerprint == of(without), "nobody says that it is served"


@pytest.mark.parametrize(
    ("stated", "dtype"),
    [
        ({}, "float32"),
        ({"torch_dtype": "float32"}, "auto"),
        ({"torch_dtype": None}, "auto"),
        ({"dtype": "float16"}, "auto"),
    ],
)
def test_what_is_cast_as_it_is_loaded_has_none(
    tmp_path: Path, stated: dict[str, Any], dtype: str
) -> None:
    folder = written(tmp_path / "new", some_tensors(), **stated)
    report = told(folder, dtype=dtype)
    assert (report.fit, report.fingerprint) == (True, None)
    assert "an engine casts 3 tensors to F" in str(report.notes)
    assert "'embed' of BF16 for one" in str(report.notes)


def test_the_setting_says_the_dtype_before_the_config_does(tmp_path: Path) -> None:
    folder = written(tmp_path / "new", some_tensors(), torch_dtype="float32")
    assert told(folder, dtype="bfloat16").fingerprint == of(some_tensors())


def test_a_cast_that_the_settings_let_pass_has_none(tmp_path: Path) -> None:
    model = written(tmp_path / "model", some_tensors())
    wide = {name: tensor.astype(np.float32) for name, tensor in some_tensors().items()}
    folder = written(tmp_path / "new", wide)
    report = told(folder, model, Policy(dtype_change="cast"))
    assert (report.fit, report.fingerprint) == (True, None)
    assert "casts 3 tensors to BF16" in str(report.notes)


def test_without_a_config_nobody_can_tell_but_by_the_model(tmp_path: Path) -> None:
    model = written(tmp_path / "model", some_tensors())
    folder = written(tmp_path / "new", some_tensors(3))
    (folder / "config.json").unlink()
    alone = told(folder)
    assert (alone.fit, alone.fingerprint) == (True, None)
    assert "--against" in str(alone.notes)
    assert told(folder, model).fingerprint == of(some_tensors(3))


def test_what_is_not_fit_has_none_and_no_excuse(tmp_path: Path) -> None:
    bad = {**some_tensors(), "up": np.full((64, 128), np.nan, ml_dtypes.bfloat16)}
    report = told(written(tmp_path / "new", bad))
    assert (report.fit, report.fingerprint, report.notes) == (False, None, ())


def test_nothing_is_summed_up_for_a_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine does it on its devices, and it would take longer than all other checks."""
    monkeypatch.setattr(TensorSum, "update", lambda *_: pytest.fail("somebody sums up"))
    folder = written(tmp_path / "new", some_tensors())
    served = read_served_model(folder)
    assert check_checkpoint(Revision("1"), folder, served=served, policy=Policy()).held
    assert findings(folder, served, Policy()).fingerprint is None
