"""A daemon with TLS on its port: who asks, a renewed pair, a bad one, a stop."""

import signal
from pathlib import Path

import pytest

from hotreload.client import Client
from tests.authority import Authority
from tests.integration.openai_clients import free_address
from tests.integration.process import OF_WORDS, Process
from tests.integration.running import words
from tests.integration.test_workers import workers_of

BY_NIGHT = pytest.mark.at_night  # by day: test_beside_a_worker_the_engines_process_answers


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=BY_NIGHT)])
def test_a_daemon_speaks_tls_and_takes_a_renewed_pair(tmp_path: Path, workers: int) -> None:
    authority = Authority(tmp_path)
    authority.sign()
    address = free_address()
    tls = (f"server.tls_cert={authority.cert}", f"server.tls_key={authority.key}")
    sets = (f"server.workers={workers}", f"server.tcp={address}", *tls)
    process = Process(tmp_path, *sets, command=OF_WORDS)
    process.drop(1)
    with process.running():
        process.until(lambda: workers_of(process)["serving"] == workers)
        client = Client(f"https://{address}", ca_file=authority.ca)
        asked = {"text": "Who serves?", "sampling_params": {"max_new_tokens": 12}}
        for _ in range(2):
            assert client.ask("POST", "/generate", asked).fields["text"] == words(1)
            assert client.status()["generation"] == 1
        assert process.ask()["text"] == words(1)
        authority.sign()
        process.child.send_signal(signal.SIGHUP)
        process.until(lambda: process.said("tls.changed"))
        authority.cert.unlink()
        process.until(lambda: "tls_cert" in str(process.said("trouble.began")))
        assert client.status()["generation"] == 1
        assert process.stop() == 0
