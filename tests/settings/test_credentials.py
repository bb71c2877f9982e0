"""Secrets: from a file or a systemd credential, and never in a message."""

from pathlib import Path

import pytest

from hotreload.errors import ConfigError
from hotreload.server_limits import UNNAMED, KeyTerms
from hotreload.settings.credentials import read_join_secret, read_keys, read_secret

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


LONG = "0123456789abcdef" * 2


def test_the_secret_of_hosts_is_nobody_else_s(tmp_path: Path) -> None:
    file = tmp_path / "join"
    file.write_text(LONG)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=r"join_secret_file: .*: others may read it: chmod 600"):
        read_join_secret(file, {})
    file.chmod(0o600)
    assert read_join_secret(file, {}) == LONG
    file.chmod(0o640)
    assert read_join_secret(Path("/etc/join"), {"CREDENTIALS_DIRECTORY": str(tmp_path)}) == LONG


@pytest.mark.parametrize(("text", "why"), [("", "must hold one word"), ("short", "have 32 char")])
def test_a_secret_that_can_be_guessed_is_none(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "join").write_text(text)
    (tmp_path / "join").chmod(0o600)
    with pytest.raises(ConfigError, match=why):
        read_join_secret(tmp_path / "join", {})


KEYS = "[server] api_keys_file"
GOOD, OTHER = "a-key-of-24-characters-1", "a-key-of-24-characters-2"


def test_keys_stand_one_a_line_beside_comments(tmp_path: Path) -> None:
    text = f"# the evals team\n{GOOD}\n\n  {OTHER}\t# until June\r\n{GOOD}\n"
    (tmp_path / "keys").write_text(text)
    assert read_keys(tmp_path / "keys", KEYS, {}) == {GOOD: UNNAMED, OTHER: UNNAMED}


def test_a_name_stands_before_a_key_and_its_limits_after_it(tmp_path: Path) -> None:
    """Two keys of one name share its limits, so that one can take the other's place."""
    limits = "requests=8 tokens_per_minute=20000"
    (tmp_path / "keys").write_text(f"evals {GOOD} {limits} # until June\nevals {OTHER} {limits}\n")
    terms = KeyTerms("evals", requests=8, tokens_per_minute=20000)
    assert read_keys(tmp_path / "keys", KEYS, {}) == {GOOD: terms, OTHER: terms}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no key"),
        (b"# nothing but words\n\n", "holds no key"),
        (b"short\n", "line 1: is shorter than 16 characters"),
        (f"\n{GOOD} and {OTHER}".encode(), "line 2: must be one key"),
        (f"{GOOD}#ü".encode(), "line 1: must be one key"),
        (f"{GOOD} {OTHER}".encode(), "line 1: must be one key"),
        (f"{GOOD} evals".encode(), "line 1: must be one key"),
        (f"evals {GOOD} requests=0".encode(), "line 1: must be one key"),
        (f"evals {GOOD} request=8".encode(), "line 1: must be one key"),
        (f"evals {GOOD} requests=8 more".encode(), "line 1: must be one key"),
        (f"{GOOD} requests=8".encode(), "line 1: has limits and no name"),
        (f"a {GOOD} requests=8\na {OTHER}".encode(), "line 2: has other limits than an earlier"),
        (f"a {GOOD}\nb {GOOD}".encode(), "line 2: is an earlier key under another name"),
        (b"\xff\xfe", "cannot be read: it is not text"),
    ],
)
def test_what_is_no_file_of_keys_is_not_repeated(
    tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_keys(tmp_path / "keys", KEYS, {})
    assert words in str(caught.value)
    assert KEYS in str(caught.value)
    assert "a-key" not in str(caught.value)
