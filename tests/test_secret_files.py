"""Files of secrets that break while the daemon runs: what they held counts on, and it is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from hotreload.errors import ConfigError
from hotreload.events import Event, TroubleTold
from hotreload.life import rereading
from hotreload.life.rereading import SecretFiles, secret_reads
from hotreload.settings.credentials import ADMIN_KEYS, KEYS, TOKEN
from hotreload.settings.load import load
from hotreload.settings.sections import Settings
from hotreload.sources.configured import token_of
from hotreload.troubles import SETTINGS_REFUSED, Trouble
from tests.waiting import Witness

KEY = "a-key-of-24-characters-1"


def settings(folder: Path) -> Settings:
    sets = ("source.kind=huggingface", "source.repo=a/b", f"source.token_file={folder / 'token'}")
    return load(None, [*sets, f"server.api_keys_file={folder / 'keys'}"], {}).settings


class Watched(Witness):
    """A file of keys and one of a token, and what is told of them."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.keys, self.token = folder / "keys", folder / "token"
        self.write()
        self.trouble = Trouble(SETTINGS_REFUSED, self.note)
        self.files = SecretFiles(secret_reads(settings(folder)), self.trouble)

    def write(self) -> None:
        self._replace(self.keys, f"{KEY}\n")
        self._replace(self.token, "hf_abc")

    def _replace(self, file: Path, text: str) -> None:
        """At once: a look in the middle of writing would find the file empty."""
        new = file.with_suffix(".new")
        new.write_text(text)
        new.replace(file)

    def note(self, event: Event) -> None:
        assert isinstance(event, TroubleTold)
        super().note(event)

    async def told(self, count: int) -> TroubleTold:
        self.files.look_again()
        await self.until(lambda: len(self.happened) == count)
        event = self.happened[-1]
        assert isinstance(event, TroubleTold)
        return event


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(rereading, "LOOK_AT_SECRETS_SECONDS", 0.01)
    watched = Watched(tmp_path)
    task = asyncio.create_task(watched.files.watch())
    yield watched
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("text", ["", "# nobody\n", "short", None])
async def test_keys_that_cannot_be_read_are_a_trouble_until_they_can(
    watched: Watched, text: str | None
) -> None:
    watched.keys.unlink() if text is None else watched.keys.write_text(text)
    began = await watched.told(1)
    assert began.message is not None
    assert began.message.startswith(f"{KEYS}: {watched.keys}: ")
    assert "what it held before counts" in began.todo
    watched.write()
    assert await watched.told(2) == TroubleTold(SETTINGS_REFUSED, None)


async def test_it_is_over_when_none_of_them_is_wrong(watched: Watched) -> None:
    watched.trouble.now("no TOML", "mend it", of="the settings")
    watched.token.write_text("")
    both = await watched.told(2)
    assert str(both.message).startswith(f"no TOML; {TOKEN}: ")
    watched.trouble.now(None, of="the settings")
    assert str((await watched.told(3)).message).startswith(TOKEN)
    watched.write()
    assert (await watched.told(4)).message is None


def test_the_token_is_read_anew_and_the_former_holds_while_it_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(ConfigError, match="cannot be read"):
        token_of(file)
    file.write_text("hf_first")
    token = token_of(file)
    file.write_text("hf_second")
    assert token() == "hf_second"
    file.unlink()
    assert token() == "hf_second"
    file.write_text("hf_third")
    assert token() == "hf_third"


def test_a_daemon_with_admin_keys_looks_at_their_file_too(tmp_path: Path) -> None:
    asked = load(None, [f"server.admin_keys_file={tmp_path / 'admin'}"], {}).settings
    (reads,) = secret_reads(asked).items()
    assert reads[0] == ADMIN_KEYS
    with pytest.raises(ConfigError, match="admin_keys_file"):
        reads[1]()


def test_a_daemon_without_such_files_looks_at_none() -> None:
    assert secret_reads(Settings()) == {}
