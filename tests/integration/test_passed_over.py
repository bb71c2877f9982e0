"""A trainer that breaks its format is heard of everywhere, once, and across a restart."""

import os
from pathlib import Path

import httpx

from hotreload.cli.client.texts import status_text
from hotreload.tiny import write_tiny
from tests.integration.process import OF_WORDS, Process
from tests.integration.running import words
from tests.waiting import PATIENCE

WORDS = (
    "step_90 holds pytorch_model.bin, which hotreload does not read: save as safetensors "
    "(save_pretrained(folder, safe_serialization=True))"
)


def refused(process: Process) -> list[str]:
    return [each["reason"] for each in process.get("/status")["refused"]]


def gauge(process: Process) -> str:
    transport = httpx.HTTPTransport(uds=str(process.socket))
    with httpx.Client(transport=transport, base_url="http://x", timeout=PATIENCE) as client:
        page = client.get("/metrics").text
    return next(line for line in page.splitlines() if 'passed_over{reason="format"}' in line)


def bytes_read(process: Process) -> int:
    """How many bytes the daemon has asked the kernel for, from wherever these came."""
    lines = Path(f"/proc/{process.child.pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def test_what_its_header_condemns_is_refused_unread_and_holds_up_nobody(tmp_path: Path) -> None:
    process = Process(tmp_path, command=OF_WORDS)
    process.drop(1)
    with process.running():
        process.live("step_1")
        before, aside = bytes_read(process), tmp_path / "aside"
        write_tiny(aside, words(2), shards=2)
        file = sorted(aside.glob("*.safetensors"))[-1]
        sound = file.stat().st_size
        os.truncate(file, 50 * 10**9)
        aside.rename(process.checkpoints / "step_2")
        process.until(lambda: refused(process))
        (reason,) = refused(process)
        assert "bytes behind the last tensor" in reason
        process.drop(3)
        process.live("step_3")
        assert bytes_read(process) - before < 10**9
        asking = ("POST", "/admin/reload_weights", {"model_path": "step_2", "dry_run": True})
        assert process.daemon.ask(*asking).fields["outcome"] == "rejected"
        assert bytes_read(process) - before < 10**9
        os.truncate(process.checkpoints / "step_2" / file.name, sound)
        assert process.daemon.ask(*asking).fields["outcome"] == "passed"


def test_a_broken_format_is_told_and_refused_once_and_a_good_checkpoint_ends_it(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path, "source.patience=0.5", "source.rescan=0.5", command=OF_WORDS)
    process.drop(1)
    broken = process.checkpoints / "step_90"
    with process.running():
        process.live("step_1")
        broken.mkdir()
        for name in ("config.json", "pytorch_model.bin"):
            (broken / name).write_text("{}")
        process.until(lambda: refused(process))
        assert refused(process) == [f"format: {WORDS}"]
        status = process.get("/status")
        assert status["passed_over"] == [{"label": "step_90", "code": "format", "reason": WORDS}]
        assert status["label"] == "step_1"
        assert f"passed over   {WORDS}" in status_text(status)
        assert gauge(process).endswith(" 1.0")
        (attempt,) = [a for a in process.get("/history")["attempts"] if a["label"] == "step_90"]
        assert (attempt["outcome"], attempt["code"]) == ("rejected", "format")
        process.until(lambda: process.get("/status")["wanted_label"] == "step_1")
        assert process.stop() == 0
    with process.running():
        process.until(lambda: process.get("/status")["passed_over"])
        process.until(lambda: len(process.said("revision.wanted")) >= 5)
        labels = [each["label"] for each in process.get("/history")["attempts"]]
        assert labels.count("step_90") == 1
        assert len(process.said("source.passed_over")) == 2  # once a life
        process.drop(91)
        process.live("step_91")
        process.until(lambda: not process.get("/status")["passed_over"])
        assert gauge(process).endswith(" 0.0")
