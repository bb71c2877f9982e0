"""What a hub source wishes, and what it says while the hub does not answer."""

import asyncio
import base64
import errno
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils._http import reset_sessions

from hotreload import threads
from hotreload.errors import BadRequest, NothingOfThatName, SourceUnavailable
from hotreload.sources import huggingface
from hotreload.sources.hub import client
from tests.hub.local_hub import REPO, LocalHub, local_hub
from tests.sources.following import LONG, Follower, checkpoint, following, hub_source


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with local_hub() as made:
        yield made


async def test_each_new_head_is_wished_under_the_name_that_is_followed(
    hub: LocalHub, tmp_path: Path
) -> None:
    first = hub.push(checkpoint("one"))
    async with following(hub, tmp_path) as follow:
        await follow.wished_shas(first)
        second = hub.push(checkpoint("two"))
        await follow.wished_shas(first, second)
        assert {revision.label for revision in follow.wishes} == {f"{REPO}@main"}


async def test_an_older_commit_published_again_is_wished_again(
    hub: LocalHub, tmp_path: Path
) -> None:
    first = hub.push(checkpoint("one"))
    second = hub.push(checkpoint("two"))
    async with following(hub, tmp_path) as follow:
        await follow.wished_shas(second)
        hub.point("main", first)
        await follow.wished_shas(second, first)


async def test_whoever_follows_later_starts_with_what_is_wanted_now(
    hub: LocalHub, tmp_path: Path
) -> None:
    sha = hub.push(checkpoint("one"))
    source = hub_source(hub, tmp_path)
    for _ in range(2):  # the boot does, and then the reconciler
        async for revision in source.follow_newest():
            assert revision.id == sha
            break


async def test_a_look_is_one_request_without_a_body(hub: LocalHub, tmp_path: Path) -> None:
    hub.push(checkpoint("one"))
    async with following(hub, tmp_path, poll=LONG):
        assert [asked.line for asked in hub.asked] == [f"HEAD /{REPO}/resolve/main/config.json"]


async def test_a_repo_without_a_config_is_followed_all_the_same(
    hub: LocalHub, tmp_path: Path
) -> None:
    sha = hub.push({"model.safetensors": b""})
    async with following(hub, tmp_path) as follow:
        await follow.wished_shas(sha)


async def test_tags_and_branches_with_a_slash_can_be_followed(
    hub: LocalHub, tmp_path: Path
) -> None:
    sha = hub.push(checkpoint("one"), branch="refs/pr/1")
    async with following(hub, tmp_path, revision="refs/pr/1") as follow:
        await follow.wished_shas(sha)


async def test_waking_looks_at_once_and_says_what_woke_it(hub: LocalHub, tmp_path: Path) -> None:
    first = hub.push(checkpoint("one"))
    async with following(hub, tmp_path, poll=LONG) as follow:
        second = hub.push(checkpoint("two"))
        follow.source.wake("webhook")
        await follow.wished_shas(first, second)
        assert follow.looks("webhook") == 1


async def test_a_look_is_put_down_to_whoever_asked_for_it_first(
    hub: LocalHub, tmp_path: Path
) -> None:
    first = hub.push(checkpoint("one"))
    async with following(hub, tmp_path, poll=LONG) as follow:
        second = hub.push(checkpoint("two"))
        follow.source.wake("webhook")
        follow.source.wake("signal")
        await follow.wished_shas(first, second)
        assert (follow.looks("webhook"), follow.looks("signal")) == (1, 0)


# --- a hub that does not answer ----------------------------------------------------------

DENIALS = {
    "no token": (401, "", "the hub wants a token; set [source] token_file"),
    "a gated repo": (403, "GatedRepo", "accept its conditions with the token's account"),
    "a token without rights": (403, "", "the token may not read org/name"),
    "no such repo": (404, "RepoNotFound", "check [source] repo"),
    "no such branch": (404, "RevisionNotFound", "check [source] revision"),
}


@pytest.mark.parametrize("case", DENIALS)
async def test_what_somebody_must_change_is_said_and_asked_again_seldom(
    hub: LocalHub, tmp_path: Path, case: str
) -> None:
    status, code, words = DENIALS[case]
    sha = hub.push(checkpoint("one"))
    fault = hub.fault("HEAD", status=status, code=code, times=1000)
    async with following(hub, tmp_path) as follow:
        await follow.waits_for(words)
        assert f"{REPO}@main: {status}: " in str(follow.error)
        assert "asks again in 5 min, or at once after SIGHUP" in str(follow.waiting)
        assert hub.count("HEAD") == 1
        fault.times = 0  # somebody has changed it
        follow.source.wake("signal")
        await follow.wished_shas(sha)
        assert follow.waiting is None


async def test_what_passes_is_asked_again_by_itself(hub: LocalHub, tmp_path: Path) -> None:
    sha = hub.push(checkpoint("one"))
    hub.fault("HEAD", status=503, times=1)
    hub.fault("HEAD", drop=True, times=1)
    async with following(hub, tmp_path) as follow:
        await follow.wished_shas(sha)
        first, second, *_ = follow.errors
        assert "503: the hub has trouble of its own" in str(first)
        assert "cannot be read" in str(second) or "broke off" in str(second)
        assert follow.waiting is None


@pytest.mark.parametrize(
    "headers", [{"Retry-After": "7200"}, {"RateLimit": '"api";r=0;t=7200'}], ids=str
)
async def test_a_hub_that_wants_silence_gets_it_whoever_asks(
    hub: LocalHub, tmp_path: Path, headers: dict[str, str]
) -> None:
    hub.push(checkpoint("one"))
    hub.fault("HEAD", status=429, headers=headers)
    async with following(hub, tmp_path) as follow:
        await follow.waits_for("429: the hub is rate-limiting us for 7200 s")
        follow.source.wake("signal")
        with pytest.raises(SourceUnavailable, match=r"rate-limiting us for 7.* s more") as caught:
            await follow.source.resolve(None)
        assert caught.value.code == "rate_limited"
        assert caught.value.retry_after is not None
        assert caught.value.retry_after >= 7199
        assert hub.count("HEAD") == 1


async def test_silence_that_an_operator_is_told_of_holds_for_the_source_too(
    hub: LocalHub, tmp_path: Path
) -> None:
    sha = hub.push(checkpoint("one"))
    async with following(hub, tmp_path, poll=LONG) as follow:
        await follow.wished_shas(sha)
        hub.fault("HEAD", status=429, headers={"Retry-After": "7200"})
        with pytest.raises(SourceUnavailable, match="429"):
            await follow.source.resolve("v1")
        asked = hub.count("HEAD")
        with pytest.raises(SourceUnavailable, match="rate-limiting us for 7"):
            await follow.source.fetch(follow.wishes[0])
        assert len(hub.asked) == asked


async def test_an_answer_that_says_none_is_left_counts_as_asking_for_silence(
    hub: LocalHub, tmp_path: Path
) -> None:
    sha = hub.push(checkpoint("one"))
    hub.headers["RateLimit"] = '"resolvers";r=0;t=300'
    async with following(hub, tmp_path) as follow:
        await follow.wished_shas(sha)
        with pytest.raises(SourceUnavailable, match="rate-limiting us"):
            await follow.source.resolve(None)
        assert hub.count("HEAD") == 1


async def test_a_name_that_is_not_known_and_a_port_where_nobody_listens_are_told_apart(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(SourceUnavailable, match=r"connection refused"):
            await hub_source(hub, tmp_path, endpoint=address).resolve(None)

    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(SourceUnavailable, match=r"hub\.invalid cannot be found.*DNS"):
        await hub_source(hub, tmp_path, endpoint="http://hub.invalid").resolve(None)


async def test_a_hub_that_takes_connections_and_answers_nothing_is_said_to(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "HEAD_SECONDS", 0.1)
    hub.push(checkpoint("one"))
    hub.fault("HEAD", silent=True)
    with pytest.raises(SourceUnavailable, match=r"the hub at http.* does not answer in time") as no:
        await hub_source(hub, tmp_path).resolve(None)
    assert (no.value.code, no.value.retry_after) == ("source", huggingface.SOON)


async def test_a_hub_that_drips_holds_up_no_later_look_and_nobody_for_ever(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "ANSWER_WITHIN", 0.2)
    monkeypatch.setattr(threads, "LEAVE_AFTER", 0.02)
    sha = hub.push(checkpoint("one"))
    fault = hub.fault("HEAD", drip=True)
    async with following(hub, tmp_path) as follow:
        await follow.waits_for("the hub does not answer in time: nothing for 0.2 s; the daemon")
        await follow.wished_shas(sha)
        assert follow.waiting is None
        assert threads.left_behind() is None
    fault.release.set()
    while threads.list_left_behind():  # noqa: ASYNC110 - a thread ends, no event tells
        await asyncio.sleep(0)


async def test_who_asks_behind_one_that_gets_no_answer_is_told_in_time(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "ANSWER_WITHIN", 0.2)
    hub.push(checkpoint("one"))
    source = hub_source(hub, tmp_path)
    async with source._asking:
        with pytest.raises(SourceUnavailable, match="does not answer in time"):
            await source.resolve(None)
    assert hub.asked == []


async def test_a_start_while_the_hub_wants_silence_goes_on_when_that_is_over(
    hub: LocalHub, tmp_path: Path
) -> None:
    sha = hub.push(checkpoint("one"))
    hub.fault("HEAD", status=429, headers={"Retry-After": "1"})
    follow = Follower(hub, tmp_path)
    with pytest.raises(SourceUnavailable, match="429"):
        await follow.source.resolve(None)
    running = asyncio.create_task(follow.run())
    await follow.wished_shas(sha)  # and not in five minutes, as if it were denied
    assert "rate-limiting us for 1 s more; the daemon asks again by itself" in repr(follow.happened)
    assert hub.count("HEAD") == 2
    await follow.source.close()
    await running


async def test_silence_is_kept_by_those_who_stood_in_line_when_it_was_asked_for(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.push(checkpoint("one"))
    hub.fault("HEAD", status=429, headers={"Retry-After": "7200"})
    source = hub_source(hub, tmp_path)
    asks = await asyncio.gather(*(source.resolve(None) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(ask, SourceUnavailable) for ask in asks)
    assert [getattr(ask, "code", None) for ask in asks] == ["rate_limited"] * 3
    assert hub.count("HEAD") == 1


async def test_an_answer_that_an_operator_gets_ends_a_long_wait_for_the_next_look(
    hub: LocalHub, tmp_path: Path
) -> None:
    sha = hub.push(checkpoint("one"))
    fault = hub.fault("HEAD", status=401, times=1000)
    async with following(hub, tmp_path, poll=LONG) as follow:
        await follow.waits_for("401")
        with pytest.raises(SourceUnavailable, match="401") as denied:
            await follow.source.resolve(None)
        assert denied.value.retry_after is None
        fault.times = 0
        await follow.source.resolve(None)
        await follow.wished_shas(sha)
        assert (follow.waiting, follow.looks("request")) == (None, 1)
        await follow.source.resolve(None)  # all is well: nobody need look again
        assert not follow.source._woken.is_set()


@pytest.mark.parametrize("headers", [{}, {"X-Repo-Commit": "../../etc"}], ids=str)
async def test_what_is_no_hub_is_said_to_be_none(
    hub: LocalHub, tmp_path: Path, headers: dict[str, str]
) -> None:
    hub.push(checkpoint("one"))
    hub.fault("HEAD", status=200, headers=headers)
    with pytest.raises(SourceUnavailable, match=r"is not a hub; check \[source\] endpoint"):
        await hub_source(hub, tmp_path).resolve(None)


async def test_a_client_library_that_is_set_offline_says_which_variable(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    reset_sessions()
    try:
        with pytest.raises(SourceUnavailable, match="HF_HUB_OFFLINE is set; unset it"):
            await hub_source(hub, tmp_path).resolve(None)
    finally:
        reset_sessions()


async def test_a_listing_that_says_none_is_left_counts_as_asking_for_silence(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.push(checkpoint("one"))
    source = hub_source(hub, tmp_path)
    revision = await source.resolve(None)
    hub.headers["RateLimit"] = '"api";r=0;t=300'
    await source.fetch(revision)
    with pytest.raises(SourceUnavailable, match="rate-limiting us for 3"):
        await source.resolve(None)


# --- without the hub ---------------------------------------------------------------------


async def test_offline_at_the_start_the_last_head_is_wished_if_it_lies_here_verified(
    hub: LocalHub, tmp_path: Path
) -> None:
    sha = hub.push(checkpoint("one"))
    async with following(hub, tmp_path) as follow:
        await follow.wished_shas(sha)
        await follow.source.fetch(follow.wishes[0])
    hub.fault(".", drop=True, times=10_000)
    async with following(hub, tmp_path) as follow:
        await follow.wished_shas(sha)
        assert follow.error is not None
        folder = await follow.source.fetch(follow.wishes[0])
        assert (folder / "model.safetensors").is_file()


async def test_offline_at_the_start_what_was_never_verified_is_not_wished(
    hub: LocalHub, tmp_path: Path
) -> None:
    sha = hub.push(checkpoint("one"))
    async with following(hub, tmp_path) as follow:
        await follow.wished_shas(sha)
    fault = hub.fault(".", drop=True, times=3)
    async with following(hub, tmp_path) as follow:
        await follow.wished_shas(sha)
        assert fault.times == 0, "it was wished before the hub answered again"


# --- names an operator gives ---------------------------------------------------------------


async def test_an_operator_names_a_branch_a_commit_or_both_with_the_repo(
    hub: LocalHub, tmp_path: Path
) -> None:
    first = hub.push(checkpoint("one"))
    hub.point("v1", first)
    second = hub.push(checkpoint("two"))
    source = hub_source(hub, tmp_path)
    named = {name: await source.resolve(name) for name in (None, "v1", first, f"{REPO}@v1")}
    assert [revision.id for revision in named.values()] == [second, first, first, first]
    labels = [revision.label for revision in named.values()]
    assert labels == [f"{REPO}@{name}" for name in ("main", "v1", first[:12], "v1")]
    with pytest.raises(SourceUnavailable, match="has no such branch, tag or commit"):
        await source.resolve("nonsense")
    for elsewhere in ("other/name@main", "/etc", REPO):
        with pytest.raises(BadRequest, match=REPO):
            await source.resolve(elsewhere)


async def test_a_commit_that_lies_here_needs_no_hub(hub: LocalHub, tmp_path: Path) -> None:
    hub.push(checkpoint("one"))
    source = hub_source(hub, tmp_path)
    revision = await source.resolve(None)
    folder = await source.fetch(revision)
    hub.fault(".", drop=True, times=10_000)
    assert await source.resolve(revision.id) == revision
    assert await source.resolve(str(folder)) == revision
    assert await source.fetch(revision) == folder


async def test_the_models_folder_can_be_gone_back_to(hub: LocalHub, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name, data in checkpoint("the model").items():
        (model / name).write_bytes(data)
    source = hub_source(hub, tmp_path / "cache", folders=[model])
    revision = await source.resolve(str(model))
    assert revision.label == "model"
    assert await source.fetch(revision) == model
    assert source.content_of(revision) == revision.id


async def test_a_trainers_folder_is_taken_where_folders_are_allowed_and_no_other(
    hub: LocalHub, tmp_path: Path
) -> None:
    theirs, elsewhere = tmp_path / "runs" / "step_7", tmp_path / "elsewhere"
    for folder in (theirs, elsewhere):
        folder.mkdir(parents=True)
        for name, data in checkpoint("step 7").items():
            (folder / name).write_bytes(data)
    (tmp_path / "runs" / "link").symlink_to(elsewhere)
    source = hub_source(hub, tmp_path / "cache", folders=[tmp_path / "runs"])
    revision = await source.resolve(str(theirs))
    assert (revision.label, await source.fetch(revision)) == ("step_7", theirs)
    for place in (elsewhere, tmp_path / "runs" / "link", tmp_path / "runs" / ".." / "elsewhere"):
        with pytest.raises(BadRequest, match=r"\[server\] update_roots allows more"):
            await source.resolve(str(place))
    with pytest.raises(NothingOfThatName):
        await source.resolve(str(tmp_path / "runs" / "gone"))


# --- the token -----------------------------------------------------------------------------


async def test_the_token_goes_to_the_hub_and_nowhere_else(
    hub: LocalHub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    hub.push(checkpoint("one"))
    hub.token = "hf_verysecret"
    tokens = iter(["hf_wrongsecret", "hf_verysecret", "hf_verysecret", "hf_verysecret"])
    async with following(hub, tmp_path, token=lambda: next(tokens)) as follow:
        await follow.waits_for("401")
        follow.source.wake()  # the file has been renewed, and is read anew
        await follow.until(lambda: bool(follow.wishes))
        assert hub.asked[-1].token == "Bearer hf_verysecret"
        assert "secret" not in repr(follow.happened) + caplog.text


@pytest.fixture
def netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's passwords, for every host there is."""
    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login somebody password else\n")
    file.chmod(0o600)
    monkeypatch.setenv("NETRC", str(file))


@pytest.mark.usefixtures("netrc")
@pytest.mark.parametrize(("token", "shown"), [("hf_ours", "Bearer hf_ours"), (None, None)])
async def test_passwords_in_a_netrc_are_shown_to_nobody(
    hub: LocalHub, tmp_path: Path, token: str | None, shown: str | None
) -> None:
    hub.push(checkpoint("one"))
    with local_hub() as hub.cdn:
        hub.cdn.commits = hub.commits
        source = hub_source(hub, tmp_path, token=lambda: token)
        await source.fetch(await source.resolve(None))
        assert {asked.token for asked in hub.asked} == {shown}
        assert {asked.token for asked in hub.cdn.asked} == {None}


async def test_the_token_is_not_shown_to_whom_the_hub_sends_us(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.token = "hf_ours"
    hub.push(checkpoint("one"))
    with local_hub() as hub.cdn:  # the same host, and another port
        hub.cdn.commits = hub.commits
        source = hub_source(hub, tmp_path, token=lambda: "hf_ours")
        folder = await source.fetch(await source.resolve(None))
        assert (folder / "model.safetensors").read_bytes() == checkpoint("one")["model.safetensors"]
        (came,) = hub.cdn.asked
    assert came.line.startswith("GET /cdn/")
    assert not re.search("authorization|hf_ours", came.headers, re.IGNORECASE)
    assert hub.asked[-1].token == "Bearer hf_ours"


@pytest.mark.usefixtures("netrc")
async def test_a_user_in_the_variable_logs_in(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha = hub.push(checkpoint("one"))
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("://", "://us:p%40ss@"))
    assert (await hub_source(hub, tmp_path, endpoint=None).resolve(None)).id == sha
    assert hub.asked[-1].token == "Basic " + base64.b64encode(b"us:p@ss").decode()


async def test_a_proxy_that_the_environment_names_is_used(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha = hub.push(checkpoint("one"))
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", hub.url)
    source = hub_source(hub, tmp_path, endpoint="http://hub.invalid")
    assert (await source.resolve(None)).id == sha


def test_a_token_that_cannot_be_read_is_none_and_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    why: Exception = PermissionError(errno.EACCES, "Permission denied")

    def unreadable() -> str:
        raise why

    monkeypatch.setattr("huggingface_hub.get_token", unreadable)
    client._warn_once.cache_clear()
    assert [client.usual_token() for _ in range(3)] == [None] * 3
    assert [getattr(record, "why", None) for record in caplog.records] == ["Permission denied"]
    why = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    assert client.usual_token() is None


async def test_a_password_in_the_variable_is_not_said(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://somebody:password@127.0.0.1:9/hub")
    with pytest.raises(SourceUnavailable, match=r"the hub at http://127\.0\.0\.1:9/hub cannot"):
        await hub_source(hub, tmp_path, endpoint=None).resolve(None)
