"""Secrets: from a file or a systemd credential, and never in a message."""

from pathlib import Path

import pytest

from hotreload.errors import ConfigError
from hotreload.settings.credentials import read_secret

SETTING = "[source] token_file"


def test_a_secret_is_what_the_file_holds_without_the_end_of_its_line(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_abc\n")
    assert read_secret(tmp_path / "token", SETTING, {}) == "hf_abc"


def test_a_systemd_credential_of_its_name_goes_first(tmp_path: Path) -> None:
    for folder, text in (("etc", "old"), ("run", "new")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "token").write_text(text)
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path / "run")}
    assert read_secret(tmp_path / "etc" / "token", SETTING, environ) == "new"
    (tmp_path / "run" / "token").unlink()
    assert read_secret(tmp_path / "etc" / "token", SETTING, environ) == "old"


def test_a_file_that_is_not_there_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[source\] token_file: .*/gone: cannot be read: No s"):
        read_secret(tmp_path / "gone", SETTING, {})


@pytest.mark.parametrize("content", [b"", b"\n", b"hf_a hf_b", b"hf_a\nhf_b", b"\xff\xfe", "hf_ü"])
def test_what_is_no_secret_is_not_repeated(tmp_path: Path, content: bytes | str) -> None:
    data = content.encode() if isinstance(content, str) else content
    (tmp_path / "token").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_secret(tmp_path / "token", SETTING, {})
    assert "hf_" not in str(caught.value)
    assert caught.value.__cause__ is None
