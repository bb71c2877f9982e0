"""A checkpoint's bytes cost no memory: what the checks hold grows by its tensors alone."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from hotreload.checkpoint import content
from tests.checkpoint.large import fingerprint_it, look_at_headers, read_it_all, sparse

PIECE, TENSORS = 2**20, 3000
FOR_EACH_TENSOR = 4096
SCRATCH = 4 * 2**20
"""What a sum is computed in, and all else that does not depend on the checkpoint."""


@pytest.mark.parametrize("look", [look_at_headers, read_it_all, fingerprint_it])
def test_3000_tensors_in_50_files_are_looked_at_in_bounded_memory(
    tmp_path: Path, look: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "BUFFER", PIECE)
    folder = sparse(tmp_path / "large", shards=50, tensors=TENSORS, size=120 * 10**6)
    tracemalloc.start()
    try:
        look(folder)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < PIECE + TENSORS * FOR_EACH_TENSOR + SCRATCH
