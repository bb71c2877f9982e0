"""What this process lacks says nothing about a checkpoint."""

import errno
import os
from pathlib import Path

import pytest

from hotreload.checkpoint.check import check_checkpoint
from hotreload.checkpoint.fit import Policy
from hotreload.errors import NotEnoughMemory
from hotreload.tiny import write_tiny
from hotreload.types import Revision


@pytest.mark.parametrize("fault", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_lack_of_our_own_is_tried_again_and_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    folder = write_tiny(tmp_path / "step_1")
    real = os.open

    def lacking(path, flags, *more, **names):  # type: ignore[no-untyped-def]
        if str(path).endswith(".safetensors"):
            raise OSError(fault, os.strerror(fault))
        return real(path, flags, *more, **names)

    monkeypatch.setattr(os, "open", lacking)
    with pytest.raises(NotEnoughMemory, match=r"model\.safetensors"):
        check_checkpoint(Revision("x"), folder, served=None, policy=Policy())
