"""Files of secrets that break while the daemon runs: what they held counts on, and it is told."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hotreload.errors import ConfigError
from hotreload.events import Event, TroubleNews
from hotreload.features import FEATURES
from hotreload.life import live_settings
from hotreload.life.from_settings import token_of
from hotreload.life.live_settings import SecretFiles
from hotreload.settings.credentials import ADMIN_KEYS, KEYS, TOKEN
from hotreload.settings.load import load
from hotreload.settings.sections import Settings
from hotreload.troubles import SETTINGS_REFUSED, Trouble
from tests.waiting import PATIENCE, Witness, turn_until

KEY, OTHER = "a-key-of-24-characters-1", "a-key-of-24-characters-2"
FILES = {"api": "keys", "admin": "admin"}


def settings(folder: Path) -> Settings:
    sets = ("source.kind=huggingface", "source.repo=a/b", f"source.token_file={folder / 'token'}")
    keys = [f"server.{name}_keys_file={folder / file}" for name, file in FILES.items()]
    return load(None, [*sets, *keys], {}, FEATURES).settings


class Watched(Witness):
    """Two files of keys and one of a token, and what is told of them."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.keys, self.admin, self.token = (folder / name for name in (*FILES.values(), "token"))
        self.write()
        self.trouble = Trouble(SETTINGS_REFUSED, self.note)
        self.files = SecretFiles(settings(folder), self.trouble)
        self.changes = 0

    def write(self, key: str = KEY) -> None:
        self.keys.write_text(f"{key}\n")
        self.admin.write_text(f"{key}\n")
        self.token.write_text("hf_abc")

    def count(self) -> None:
        self.changes += 1
        self.look_again()

    def admits(self, key: str) -> list[bool]:
        """By an API key, and by an admin key."""
        return [self.files.keys[name].name_of(key) is not None for name in (KEYS, ADMIN_KEYS)]

    def note(self, event: Event) -> None:
        assert isinstance(event, TroubleNews)
        super().note(event)

    async def told(self, count: int) -> TroubleNews:
        self.files.look_again()
        await self.until(lambda: len(self.happened) == count)
        event = self.happened[-1]
        assert isinstance(event, TroubleNews)
        return event


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    for seconds in ("LOOK_AT_SECRETS_SECONDS", "SETTLE_SECONDS"):
        monkeypatch.setattr(live_settings, seconds, 0.01)
    watched = Watched(tmp_path)
    task = asyncio.create_task(watched.files.watch(watched.count))
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
    assert "what it held when it was last read counts" in began.todo
    assert watched.admits(KEY) == [True, True]
    watched.write()
    assert await watched.told(2) == TroubleNews(SETTINGS_REFUSED, None)


@pytest.mark.parametrize("half", ["", KEY[:-1]])
async def test_a_file_that_is_seen_half_written_changes_nothing(
    watched: Watched, half: str
) -> None:
    looks, read = list[str](), watched.files._reads[KEYS]

    def look() -> Any:
        text = half if len(looks) == 1 else KEY
        looks.append(text)
        watched.keys.write_text(text)
        return read()

    watched.files._reads[KEYS] = look
    await turn_until(lambda: len(looks) >= 5)
    assert (watched.happened, watched.changes) == ([], 0)
    assert watched.admits(KEY) == [True, True]


async def test_it_is_over_when_none_of_them_is_wrong(watched: Watched) -> None:
    watched.trouble.set("no TOML", "mend it", of="the settings")
    watched.token.write_text("")
    both = await watched.told(2)
    assert str(both.message).startswith(f"no TOML; {TOKEN}: ")
    watched.trouble.set(None, of="the settings")
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


async def test_keys_that_change_count_at_once_and_the_former_no_more(watched: Watched) -> None:
    watched.write(OTHER)
    await watched.until(lambda: watched.changes == 2)
    assert (watched.admits(KEY), watched.admits(OTHER)) == ([False, False], [True, True])
    watched.keys.write_text("")
    await watched.told(1)
    assert (watched.admits(KEY), watched.admits(OTHER)) == ([False, False], [True, True])


async def test_a_file_that_hangs_is_told_and_holds_up_no_other(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    comes_back = threading.Event()
    monkeypatch.setattr(live_settings, "REREAD_SECONDS", 0.01)
    read = watched.files._reads[KEYS]
    watched.files._reads[KEYS] = lambda: (comes_back.wait(PATIENCE), read())[1]
    try:
        assert "is its disk there?" in str((await watched.told(1)).message)
        watched.write(OTHER)
        await watched.until(lambda: watched.changes == 1)
        assert (watched.admits(KEY), watched.admits(OTHER)) == ([True, False], [False, True])
    finally:
        comes_back.set()
    await watched.until(lambda: watched.changes == 2)
    assert watched.admits(KEY) == [False, False]


@pytest.mark.parametrize("which", FILES)
def test_without_keys_that_were_asked_for_nothing_begins(tmp_path: Path, which: str) -> None:
    asked = load(None, [f"server.{which}_keys_file={tmp_path / 'gone'}"], {}, FEATURES).settings
    with pytest.raises(ConfigError, match=f"{which}_keys_file"):
        SecretFiles(asked, Trouble(SETTINGS_REFUSED, lambda event: None))


async def test_a_daemon_without_such_files_looks_at_none() -> None:
    files = SecretFiles(Settings(), Trouble(SETTINGS_REFUSED, lambda event: None))
    await files.watch(lambda: None)
    assert files.keys == {}
