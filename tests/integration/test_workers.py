"""Workers as processes: what is promised to clients is promised through them, and one that dies or
hangs costs its own clients their answers, and nobody else anything."""

import array
import asyncio
import fcntl
import json
import os
import re
import resource
import signal
import socket
import termios
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import parse_headers
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import pytest

from tests.children import children_of, is_there, sockets_of, workers_below
from tests.features.gateway.scrape import read
from tests.integration.openai_clients import free_address
from tests.integration.process import OF_WORDS, Process
from tests.integration.running import client_of
from tests.waiting import PATIENCE, look_until

pytestmark = pytest.mark.timeout(180)

WORKERS = 2
"""Workers that the daemon has; the engine's process is none."""
FIRST_KEYS = {
    "api_keys_file": "a-key-of-24-characters-1",
    "admin_keys_file": "an-admin-key-of-24-chars-1",
}
SECOND_KEYS = {name: f"{key[:-1]}2" for name, key in FIRST_KEYS.items()}
"""The keys in each file, and those that take their places."""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One daemon for all that leaves it as it was."""
    process = asking_for_keys(tmp_path_factory.mktemp("workers"), WORKERS)
    with process.running():
        all_serve(process)
        yield process


def asking_for_keys(folder: Path, workers: int) -> Process:
    """A daemon that asks for keys over TCP."""
    for name, key in FIRST_KEYS.items():
        (folder / name).write_text(key)
    named = [f"server.{name}={folder / name}" for name in FIRST_KEYS]
    tcp = f"server.tcp={free_address()}"
    process = Process(folder, f"server.workers={workers}", tcp, *named, command=OF_WORDS)
    process.drop(1)
    return process


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Another one, without workers."""
    process = asking_for_keys(tmp_path_factory.mktemp("alone"), 0)
    with process.running():
        yield process


@pytest.fixture(params=["process", "alone"])
def either(request: pytest.FixtureRequest) -> Process:
    """Each of the two."""
    found: Process = request.getfixturevalue(request.param)
    return found


def all_serve(process: Process) -> None:
    process.until(lambda: workers_of(process)["serving"] == WORKERS)


def workers_of(process: Process) -> dict[str, int]:
    found: dict[str, int] = (process.get("/status") or {}).get("workers") or {"serving": 0}
    return found


def pids_of(process: Process) -> list[int]:
    return workers_below(process.child.pid)


def by_worker(process: Process, asking: httpx.Client) -> int:
    """Ask on this connection, and say which process has it then."""
    before = {pid: sockets_of(pid) for pid in pids_of(process)}
    asking.post("/generate", json={"text": "hi"}).raise_for_status()
    (has_it,) = (pid for pid, had in before.items() if sockets_of(pid) - had)
    return has_it


async def ask(process: Process, count: int = 1, **fields: Any) -> list[httpx.Response]:
    """Ask on so many connections at once."""
    async with client_of(process.socket) as client:
        asking = [client.post("/generate", json={"text": "hi", **fields}) for _ in range(count)]
        return await asyncio.gather(*asking)


async def test_each_has_clients_and_all_are_answered_and_counted(process: Process) -> None:
    before = requests_in(process)
    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(ask(process, 20)) for _ in range(2)]
    answers = [answer for each in asking for answer in each.result()]
    assert {answer.json()["text"] for answer in answers} == {"served by step 1"}
    process.until(lambda: requests_in(process) == before + 40)


def requests_in(process: Process) -> int:
    """How many requests to the model the metrics have counted as answered."""
    page = client_page(process)
    line = next(line for line in page.splitlines() if line.startswith(ANSWERED))
    return int(float(line.split()[-1]))


ANSWERED = 'hotreload_requests_total{code="200",route="/generate"}'


def client_page(process: Process) -> str:
    with client(process) as asking:
        return asking.get("/metrics").text


async def test_a_gateway_reads_the_load_of_all_workers(either: Process) -> None:
    before = scrape(either)
    await ask(either, 20)
    moved = {name: value - before[name] for name, value in scrape(either).items()}
    assert moved["e2e_request_latency_seconds_count"] == 20
    assert moved["generation_tokens_total"] == 20 * len(["served", "by", "step", "1"])


def scrape(process: Process) -> dict[str, float]:
    """The page for gateways, over TCP."""
    tcp = next(each for each in process.sets if each.startswith("server.tcp=")).partition("=")[2]
    page = httpx.get(f"http://{tcp}/metrics", timeout=PATIENCE).text  # gateways have no key
    assert "hotreload_" not in page
    return read(page)


def client(process: Process) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(process.socket))
    return httpx.Client(transport=transport, base_url="http://localhost", timeout=PATIENCE)


def test_the_kernel_names_the_same_peer_whoever_has_the_connection(process: Process) -> None:
    with client(process) as asking:
        asking.post("/generate", json={"text": "hi"}).raise_for_status()
        pinned = asking.post("/admin/pin")
        assert (pinned.status_code, pinned.json()["ok"]) == (200, True)
        asking.post("/generate", json={"text": "hi"}).raise_for_status()
        assert asking.post("/admin/unpin").status_code == 200


@pytest.mark.parametrize("is_half_closed", [False, True])
def test_what_is_asked_at_once_and_read_late_is_answered_whole_and_in_order(
    either: Process, is_half_closed: bool
) -> None:
    with connect(either) as client:
        names = ["/openapi.json", "/generate"] * 7 + ["/openapi.json"]
        client.sendall(b"".join(map(request_to, names, range(len(names)))))
        if is_half_closed:
            client.shutdown(socket.SHUT_WR)
        look_until(lambda: unread(client) > HALF_A_SOCKET, str)  # more is there than it takes
        with client.makefile("rb") as reader:
            answers = [answer_in(reader) for _ in names]
    assert [name for name, _ in answers] == [f"{each}-{at}" for at, each in enumerate(names)]
    assert [fields.get("text", fields.get("openapi")) for _, fields in answers] == [
        "3.1.0" if each == "/openapi.json" else "served by step 1" for each in names
    ]


HALF_A_SOCKET = 2**16


@contextmanager
def connect(process: Process) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE)
        client.connect(str(process.socket))
        yield client


def request_to(path: str, number: int) -> bytes:
    body = b'{"text": "hi"}' if path == "/generate" else b""
    lines = [
        f"{'POST' if body else 'GET'} {path} HTTP/1.1",
        "Host: x",
        f"X-Request-Id: {path}-{number}",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def unread(client: socket.socket) -> int:
    """Bytes that have come, and that it has not read."""
    count = array.array("i", [0])
    fcntl.ioctl(client, termios.FIONREAD, count)
    return count[0]


def answer_in(reader: BinaryIO) -> tuple[str, dict[str, Any]]:
    """The name of the next answer, and its fields."""
    status = reader.readline()
    assert status == b"HTTP/1.1 200 OK\r\n", status
    headers = parse_headers(reader)
    return headers["x-request-id"], json.loads(reader.read(int(headers["content-length"])))


@pytest.mark.parametrize("path", ["/livez", "/generate"])
def test_out_of_descriptors_each_client_is_answered_or_hung_up_on_and_no_descriptor_is_lost(
    either: Process, path: str
) -> None:
    pids = [either.child.pid, *workers_below(either.child.pid)]
    before = [descriptors_of(pid) for pid in pids]
    with ExitStack() as stack:
        for pid, count in zip(pids, before, strict=True):
            stack.enter_context(limited_descriptors(pid, count + 3))
        clients = [stack.enter_context(connect(either)) for _ in range(20)]
        for client in clients:
            with suppress(OSError):  # it may have been hung up on
                client.sendall(request_to(path, 1))
        heard = {answer_or_end(client) for client in clients}
    assert heard <= {b"HTTP/1.1 200", b"HTTP/1.1 503", b""}
    assert len(heard) > 1
    either.until(
        lambda: all(descriptors_of(pid) <= was for pid, was in zip(pids, before, strict=True))
    )
    assert either.ask()["text"] == "served by step 1"
    assert "server.no_descriptor_left" in either.log.read_text()


def descriptors_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextmanager
def limited_descriptors(pid: int, most: int) -> Iterator[None]:
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE, None)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, usual[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)


def answer_or_end(client: socket.socket) -> bytes:
    """How the answer begins; nothing where there is none and the connection has ended."""
    try:
        return client.recv(12)
    except ConnectionError:
        return b""


def test_new_weights_answer_who_asks_a_worker(process: Process) -> None:
    with client(process) as asking:
        asking.post("/generate", json={"text": "hi"}).raise_for_status()
        process.drop(2)
        process.live("step_2")
        answer = asking.post("/generate", json={"text": "hi"})
        assert answer.json()["text"] == "served by step 2"
        assert answer.headers["x-hotreload-generation"] == "2"
        back = asking.post("/admin/rollback", json={})
        assert back.status_code == 200
        assert asking.post("/generate", json={"text": "hi"}).json()["text"] == "served by step 1"


def test_who_is_killed_is_replaced_and_the_others_answer_meanwhile(process: Process) -> None:
    lost = workers_of(process)["lost"]
    with client(process) as asking:
        killed = by_worker(process, asking)
        os.kill(killed, signal.SIGKILL)
        process.until(lambda: workers_of(process)["lost"] == lost + 1)
        for _ in range(5):  # one client of its own connects anew by the second
            assert asking.post("/generate", json={"text": "hi"}).status_code == 200
    all_serve(process)
    assert killed not in pids_of(process)
    assert "signal 9 ended it" in process.log.read_text()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_the_daemon_alone_says_when_one_goes(process: Process, how: signal.Signals) -> None:
    with client(process) as asking:
        its_own = by_worker(process, asking)
        os.kill(its_own, how)
        assert asking.post("/generate", json={"text": "hi"}).status_code == 200
        assert its_own in pids_of(process)


async def test_a_stop_loses_nobody_whom_a_worker_answers(tmp_path: Path) -> None:
    process = Process(tmp_path, f"server.workers={WORKERS}", command=OF_WORDS)
    process.drop(1)
    with process.running():
        all_serve(process)
        workers = pids_of(process)
        asking = asyncio.create_task(ask(process, 30))
        await asyncio.sleep(0)
        await asyncio.to_thread(process.until, lambda: requests_in(process) > 0)
        process.child.send_signal(signal.SIGTERM)
        answers = await asking
        assert await asyncio.to_thread(process.child.wait, PATIENCE) == 0
        late = [answer for answer in answers if answer.status_code != 200]  # came after the signal
        assert {(answer.status_code, answer.json()["code"]) for answer in late} <= {
            (503, "stopping")
        }
        assert len(late) < len(answers)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def test_a_daemon_that_is_killed_leaves_no_worker_and_nothing_of_a_command(tmp_path: Path) -> None:
    told = tmp_path / "told"
    begun = f"sleep 600 & timeout 600 sleep 599 & echo $$ $! $(jobs -p) >{told}.; mv {told}. {told}"
    command = ["bash", "-c", f"trap '' TERM; {begun}; wait"]
    process = Process(tmp_path, "server.workers=1", f"command.run={command}", command=OF_WORDS)
    process.drop(1)
    with process.running():
        process.until(lambda: workers_of(process)["serving"] == 1)
        process.drop(2)
        process.until(told.exists)
        left = {*map(int, told.read_text().split()), *children_of(process.child.pid)}
        assert len(left) >= 4
        process.child.kill()
        process.child.wait()
        look_until(lambda: not any(map(is_there, left)), str)


def test_limits_that_are_read_again_hold_in_workers(tmp_path: Path) -> None:
    process = Process(tmp_path, f"server.workers={WORKERS}", command=OF_WORDS)
    process.config.write_text("[server.limits]\nbatch = 2\n")
    process.drop(1)
    with process.running(), client(process) as asking:
        all_serve(process)
        assert asking.post("/generate", json={"text": ["a", "b"]}).status_code == 200
        process.config.write_text("[server.limits]\nbatch = 1\n")
        process.child.send_signal(signal.SIGHUP)
        process.until(lambda: "settings.read" in process.log.read_text())
        process.until(lambda: asking.post("/generate", json={"text": ["a", "b"]}).is_error)
        assert asking.post("/generate", json={"text": ["a", "b"]}).json()["code"] == "batch_too_big"


# --- keys -----------------------------------------------------------------------------------------


@pytest.fixture
def with_keys(either: Process) -> Iterator[Process]:
    """Each of the two; afterwards the first keys count again."""
    yield either
    put_keys(either, FIRST_KEYS)


def put_keys(process: Process, keys: dict[str, str]) -> None:
    """Have other keys stand in the files, at once, and wait until a worker goes by them."""
    for name, key in keys.items():
        new = process.folder / "new"
        new.write_text(key)
        new.replace(process.folder / name)
        process.until(lambda key=key: code_by(process, key, "/generate") == 200)


def code_by(process: Process, key: str, path: str) -> int:
    """What is answered to a key over TCP: at /generate by a worker, else by the daemon itself."""
    tcp = next(each for each in process.sets if each.startswith("server.tcp=")).partition("=")[2]
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=f"http://{tcp}", headers=headers, timeout=PATIENCE) as asking:
        return asking.post(path, json={"text": "hi"} if path == "/generate" else {}).status_code


ASKED = ("/generate", "/tokenize", "/admin/pin")


def test_a_key_that_was_taken_out_stays_out_while_its_file_cannot_be_read(
    with_keys: Process,
) -> None:
    process = with_keys
    put_keys(process, SECOND_KEYS)
    api, admin = (process.folder / name for name in FIRST_KEYS)
    api.write_text("")
    admin.unlink()
    process.until(lambda: troubles_naming(process, api, admin))
    if workers := pids_of(process):  # another takes its place, and cannot read them either
        os.kill(workers[0], signal.SIGKILL)
        process.until(lambda: workers[0] not in pids_of(process))
        all_serve(process)
    codes = {
        key: [code_by(process, key, path) for path in ASKED]
        for key in (*FIRST_KEYS.values(), *SECOND_KEYS.values())
    }
    assert list(codes.values()) == [[401] * 3, [401] * 3, [200, 400, 401], [200, 400, 200]]


def test_limits_of_a_key_hold_for_all_workers_together(process: Process) -> None:
    """By a name: its second key has used what the first one has."""
    first, second = (each["api_keys_file"] for each in (FIRST_KEYS, SECOND_KEYS))
    limits = "requests=2 tokens_per_minute=3"
    file = process.folder / "api_keys_file"
    try:
        file.write_text(f"evals {first} {limits}\nevals {second} {limits}\n")
        process.until(lambda: code_by(process, second, "/generate") == 429)
        codes = [code_by(process, key, "/generate") for key in (first, second) * WORKERS]
        assert codes == [429] * 2 * WORKERS
        assert code_by(process, FIRST_KEYS["admin_keys_file"], "/generate") == 200
        series = r'key_refused_total{key="evals",limit="tokens_per_minute"} (.*)'
        counted = re.search(series, client_page(process))
        assert counted is not None
        assert float(counted[1]) >= 1 + len(codes)
    finally:
        put_keys(process, FIRST_KEYS)


def troubles_naming(process: Process, *files: Path) -> bool:
    troubles = process.get("/status")["troubles"]
    said = " ".join(each["message"] for each in troubles if each["code"] == "settings_refused")
    return all(str(file) in said for file in files)
