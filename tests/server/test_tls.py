"""TLS on the TCP port, with a CA made here: clients, what they are told, a pair that changes."""

import asyncio
import http.client
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hotreload.cli.ops import machine
from hotreload.cli.ops.doctor_checks.advice import Facts
from hotreload.cli.ops.doctor_checks.places import check_tls
from hotreload.client import AsyncClient, Client
from hotreload.errors import ConfigError, HotReloadError, Unreachable
from hotreload.events import Event, TroubleNews
from hotreload.features import FEATURES
from hotreload.life import live_settings
from hotreload.life.live_settings import SecretFiles
from hotreload.server.http.keys import ApiKeys
from hotreload.server.http.server_sockets import TlsPair
from hotreload.server_limits import UNNAMED
from hotreload.settings.load import load
from hotreload.troubles import SETTINGS_REFUSED, Trouble
from tests.authority import Authority, openssl
from tests.golden.command import asked
from tests.server.world import World, attempt, serve
from tests.waiting import turn_until

ADMIN = "an-admin-key-of-24-chars"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def pair(authority: Authority) -> TlsPair:
    authority.sign()
    return TlsPair(authority.cert, authority.key)


@pytest.fixture
async def world(tmp_path: Path, pair: TlsPair) -> AsyncIterator[World]:
    async with serve(tmp_path, tcp=True, tls=pair, admin_keys=ApiKeys({ADMIN: UNNAMED})) as world:
        world.control.outcome = attempt()
        yield world


def url_of(world: World, scheme: str = "https") -> str:
    return f"{scheme}://127.0.0.1:{world.tcp_port}"


async def test_a_client_and_a_verb_speak_tls_and_the_socket_does_not(
    world: World, authority: Authority, tmp_path: Path
) -> None:
    client = AsyncClient(url_of(world), key=ADMIN, ca_file=authority.ca)
    assert (await client.status())["generation"] == 1
    assert (await client.reload("step-2")).fields["outcome"] == "live"
    assert (await AsyncClient(world.path).status())["generation"] == 1
    (tmp_path / "key").write_text(ADMIN)
    named = ("--url", url_of(world), "--key-file", "DIR/key", "--ca-file", str(authority.ca))
    assert "served by step 1" in await asked(tmp_path, "generate", "Who?", "--stream", *named)
    assert "pinned" in await asked(tmp_path, "pin", *named)


async def test_who_does_not_trust_it_or_takes_the_wrong_scheme_learns_what_to_write(
    world: World, authority: Authority, tmp_path: Path
) -> None:
    said = await asked(tmp_path, "status", "--url", url_of(world))
    assert "its certificate is not trusted" in said
    assert "name the file of its CA with --ca-file" in said
    assert said.endswith("exit 3")
    named = f"https://localhost:{world.tcp_port}"
    with pytest.raises(Unreachable, match="is for another name"):
        await AsyncClient(named, ca_file=authority.ca).status()
    with pytest.raises(Unreachable, match=r"if it has \[server\] tls_cert, write https://"):
        await AsyncClient(url_of(world, "http")).status()
    with pytest.raises(HotReloadError, match="name its file with --key-file"):
        await AsyncClient(url_of(world), ca_file=authority.ca).pin()


async def test_https_to_a_port_without_tls_says_so(tmp_path: Path) -> None:
    async with serve(tmp_path, tcp=True) as world:
        with pytest.raises(Unreachable, match=r"it answers without TLS .*write http://"):
            await AsyncClient(url_of(world)).status()


def serial_at(world: World, authority: Authority) -> str:
    """The serial number of the certificate that a new client sees."""
    context = ssl.create_default_context(cafile=authority.ca)
    asking = http.client.HTTPSConnection("127.0.0.1", world.tcp_port, context=context)
    asking.connect()
    found = asking.sock.getpeercert() or {}
    asking.close()
    return str(found["serialNumber"])


async def test_a_renewed_pair_counts_for_new_clients_and_drops_none(
    world: World, authority: Authority, pair: TlsPair
) -> None:
    kept = http.client.HTTPSConnection(
        "127.0.0.1", world.tcp_port, context=ssl.create_default_context(cafile=authority.ca)
    )

    def ask() -> int:
        kept.request("GET", "/status")
        answer = kept.getresponse()
        answer.read()
        return answer.status

    assert await asyncio.to_thread(ask) == 200
    assert (connected := kept.sock) is not None
    before = await asyncio.to_thread(serial_at, world, authority)
    authority.sign()
    pair.read_again()
    after = await asyncio.to_thread(serial_at, world, authority)
    assert after != before
    authority.key.unlink()
    authority.key.write_text("rubbish")
    with pytest.raises(ConfigError, match="are no certificate and key in PEM"):
        pair.read_again()
    assert await asyncio.to_thread(serial_at, world, authority) == after
    assert await asyncio.to_thread(ask) == 200
    assert kept.sock is connected
    kept.close()


async def test_beside_a_worker_the_engines_process_answers(
    tmp_path: Path, pair: TlsPair, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.server.world.BY_A_WORKER", True)
    async with serve(tmp_path, tcp=True, tls=pair) as world:
        named = ("--url", url_of(world), "--ca-file", str(authority.ca))
        assert "served by step 1" in await asked(tmp_path, "generate", "Who?", *named)
        assert world.worker is not None
        assert world.worker.handed == 0
        assert "served by step 1" in await asked(tmp_path, "generate", "Who?")
        assert world.worker.handed == 1


async def test_a_stop_waits_for_no_idle_client(
    world: World, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    kept = http.client.HTTPSConnection(
        "127.0.0.1", world.tcp_port, context=ssl.create_default_context(cafile=authority.ca)
    )
    await asyncio.to_thread(kept.connect)
    world.server.stop()
    await world.until(lambda: not world.connections)
    assert "server.cut_off" not in caplog.text
    kept.close()


async def test_a_stop_waits_for_a_client_that_has_not_read_all_of_its_answer(
    world: World, authority: Authority
) -> None:
    world.engine.words = ["x" * 12_000_000]  # more than the kernel keeps for a client
    world.server.linger_seconds = 0.0
    kept = http.client.HTTPSConnection(
        "127.0.0.1", world.tcp_port, context=ssl.create_default_context(cafile=authority.ca)
    )
    await asyncio.to_thread(kept.request, "POST", "/generate", json.dumps({"text": "Who?"}))
    await world.until(lambda: ("/generate", 200) in world.metrics.finished)
    world.server.stop()
    await asyncio.sleep(0.2)
    answer = await asyncio.to_thread(lambda: json.loads(kept.getresponse().read()))
    assert len(answer["text"]) == 12_000_000
    kept.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("missing", "cannot be read: No such file"),
        ("another", "is not the key of"),
        ("rubbish", "are no certificate and key in PEM"),
        ("encrypted", "is encrypted: write it without a password"),
    ],
)
def test_a_bad_pair_is_refused_with_words(
    authority: Authority, tmp_path: Path, words: str, said: str
) -> None:
    authority.sign()
    key = tmp_path / "key"
    match words:
        case "another":
            openssl(tmp_path, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "key")
        case "rubbish":
            key.write_text("rubbish")
        case "encrypted":
            openssl(tmp_path, "pkcs8", "-topk8", "-in", str(authority.key), "-passout", "pass:word",
                    "-out", "key")  # fmt: skip
    with pytest.raises(ConfigError, match=said) as fault:
        TlsPair(authority.cert, key)
    assert "[server] tls_cert, tls_key" in str(fault.value)


def test_a_client_reads_its_ca_at_once(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("rubbish")
    with pytest.raises(ConfigError, match=r"the CA file .* cannot be used"):
        Client("https://host", ca_file=tmp_path / "ca")


async def test_what_is_wrong_with_a_pair_is_a_trouble_until_it_is_mended(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    authority.sign()
    for seconds in ("LOOK_AT_SECRETS_SECONDS", "SETTLE_SECONDS"):
        monkeypatch.setattr(live_settings, seconds, 0.01)
    sets = [f"server.tls_cert={authority.cert}", f"server.tls_key={authority.key}"]
    news: list[Event] = []
    settings = load(None, sets, {}, FEATURES).settings
    files = SecretFiles(settings, Trouble(SETTINGS_REFUSED, news.append))
    watching = asyncio.create_task(files.watch(lambda: None))
    authority.cert.unlink()
    await turn_until(lambda: len(news) == 1)
    assert "[server] tls_cert, tls_key" in str(news[0])
    with caplog.at_level("INFO", "hotreload.server"):
        authority.sign()
        await turn_until(lambda: len(news) == 2 and bool(caplog.records))
    assert news[1] == TroubleNews(SETTINGS_REFUSED, None)
    assert caplog.records[-1].getMessage() == "tls.changed"
    watching.cancel()


def test_doctor_looks_at_the_pair(authority: Authority) -> None:
    authority.sign()
    sets = [f"server.tls_cert={authority.cert}", f"server.tls_key={authority.key}"]
    user = machine.user_called(None)
    assert user is not None
    facts = Facts(load(None, sets, {}, FEATURES).settings, user, ())
    assert check_tls(facts).verdict == "ok"
    authority.key.chmod(0o644)
    assert check_tls(facts).verdict == "warn"
    authority.cert.unlink()
    assert check_tls(facts).verdict == "fail"
