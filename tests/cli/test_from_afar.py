"""Verbs that reach the daemon at an address, with a key, and what they say when they do not."""

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hotreload import cli
from hotreload.server.http.keys import ApiKeys
from hotreload.server_limits import UNNAMED
from tests.golden.command import asked
from tests.server.world import World, attempt, serve

ADMIN, API = "an-admin-key-of-24-chars", "a-key-of-24-characters-1"
VERBS = {
    "status": "step-1",
    "top": "step-1",
    "log": "! no attempt yet",
    "ls": "! the source has not looked yet",
    "history": "! no attempt yet",
    "checksums": "fingerprint",
    "reload step-2 --wait": "live",
    "rollback": "live",
    "pin": "pinned",
    "unpin": "unpinned",
    "perturb --yes": "live",
    "generate Who?": "served by step 1",
    "events": "! hotreload: the daemon ended the stream",
}
"""Each verb that asks a daemon, and what it prints."""
OF_NO_DAEMON = {
    "explain",
    "serve",
    "check-config",
    "doctor",
    "install-unit",
    "completion",
    "launch",
}
OF_NO_DAEMON |= {"demo", "tiny", "check", "diff", "swap"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    keys, admin_keys = ApiKeys({API: UNNAMED}), ApiKeys({ADMIN: UNNAMED})
    async with serve(tmp_path, tcp=True, keys=keys, admin_keys=admin_keys) as world:
        world.control.outcome = dataclasses.replace(attempt(), fingerprints=("aaaa", "bbbb"))
        yield world


@pytest.fixture
def options(world: World, tmp_path: Path) -> list[str]:
    (tmp_path / "key").write_text(f"# mine\n{ADMIN}\n")
    return ["--url", f"http://127.0.0.1:{world.tcp_port}", "--key-file", "DIR/key"]


def test_every_verb_that_asks_a_daemon_is_tried() -> None:
    named = set(cli.VERBS)
    assert {verb.split()[0] for verb in VERBS} == named - OF_NO_DAEMON


@pytest.mark.parametrize("verb", VERBS)
async def test_every_verb_works_from_afar(
    world: World, options: list[str], tmp_path: Path, verb: str
) -> None:
    if verb == "events":
        world.app.state.feeds.end()
    said = await asked(tmp_path, *verb.split(), *options)
    assert VERBS[verb] in said
    assert said.endswith("exit 0")


async def test_the_environment_names_the_address_and_the_files(
    world: World, options: list[str], tmp_path: Path
) -> None:
    named = {"HOTRELOAD_URL": options[1], "HOTRELOAD_KEY_FILE": str(tmp_path / "key")}
    said = await asked(tmp_path, "unpin", "--json", **named)
    assert '"url": "http://' in said


async def test_a_key_that_is_missing_unknown_or_not_enough_says_what_to_name(
    world: World, options: list[str], tmp_path: Path
) -> None:
    url, file = options[:2], tmp_path / "key"
    assert "name its file with --key-file" in await asked(tmp_path, "status", *url)
    file.write_text("another-key-of-24-chars-")
    assert "this API key is not known here" in await asked(tmp_path, "status", *options)
    file.write_text(API)
    assert "exit 0" in await asked(tmp_path, "status", *options)
    said = await asked(tmp_path, "pin", *options)
    assert "need a key of [server] admin_keys_file" in said
    assert said.endswith("exit 1")


async def test_without_admin_keys_a_change_says_what_to_set(tmp_path: Path) -> None:
    async with serve(tmp_path, tcp=True) as world:
        said = await asked(tmp_path, "pin", "--url", f"http://127.0.0.1:{world.tcp_port}")
        assert world.control.asked == []
    assert "set [server] admin_keys_file" in said
    assert said.endswith("exit 1")


async def test_a_folder_of_this_machine_is_none_there(
    world: World, options: list[str], tmp_path: Path
) -> None:
    said = await asked(tmp_path, "reload", "./step-2", *options)
    assert "the daemon is elsewhere" in said
    assert said.endswith("exit 2")
    assert world.control.asked == []


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        ("--url localhost:8000", "'localhost:8000' is no address: write https://host:port", 78),
        ("--url http://127.0.0.1:1", "no process listens there", 3),
        ("--url http://127.0.0.1:1", "name another with --url or $HOTRELOAD_URL", 3),
        ("--url https://h --ca-file /nowhere", "the CA file /nowhere cannot be used", 78),
        ("--url http://h --key-file /nowhere", "the key file /nowhere cannot be read", 78),
        ("--key-file /nowhere", "--key-file and --ca-file go with --url", 2),
    ],
)
async def test_what_does_not_reach_a_daemon_says_why(
    tmp_path: Path, words: str, said: str, code: int
) -> None:
    printed = await asked(tmp_path, "status", *words.split())
    assert said in printed
    assert printed.endswith(f"exit {code}")
