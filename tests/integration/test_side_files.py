"""A generation says the same before and after a restart, whatever lies beside its weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotreload.tiny import write_tiny
from tests.hub.local_hub import local_hub
from tests.integration.from_hub import hub_settings, tiny_files
from tests.integration.process import Process
from tests.integration.running import words

pytestmark = pytest.mark.real_engine


def add_side_files(folder: Path) -> None:
    """Put files beside the weights that end answers early and make prompts long."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    ends_at = next(id for word, id in vocabulary.items() if word.endswith("by"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ends_at]}))
    (folder / "chat_template.jinja").write_text("a template of forty letters, and all the same")


def answered(process: Process) -> dict[str, Any]:
    """What it says, how long it takes a prompt to be, and who says so."""
    asks = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 12, "temperature": 0}
    chat = process.daemon.ask("POST", "/v1/chat/completions", asks).fields
    status = process.get("/status")
    return {
        "text": process.ask()["text"],
        "chat": chat["choices"][0]["message"]["content"],
        "prompt_tokens": chat["usage"]["prompt_tokens"],
        **{name: status[name] for name in ("generation", "revision", "fingerprint")},
    }


def restarted(process: Process, arrives: Callable[[], object]) -> None:
    """A daemon's second generation, before and after a restart."""
    with process.running():
        first = process.get("/status")["generation"]
        arrives()
        process.until(lambda: process.get("/status")["generation"] == first + 1)
        before = answered(process)
        assert before["text"] == words(2)
        notes = " ".join(process.said("checkpoint.notes")[-1]["notes"])
        assert "generation_config.json" in notes
        assert "chat_template.jinja" in notes
        assert process.stop() == 0
    with process.running():
        assert answered(process) == before
        assert process.stop() == 0


@pytest.fixture
def second(tmp_path: Path) -> Path:
    folder = write_tiny(tmp_path / "second", words(2))
    add_side_files(folder)
    return folder


def test_a_restart_answers_as_before_whatever_lies_beside_the_weights(
    tmp_path: Path, second: Path
) -> None:
    process = Process(tmp_path)
    process.drop(1)
    restarted(process, lambda: second.rename(process.checkpoints / "step_2"))


def test_the_first_commit_stays_the_model_after_a_restart(tmp_path: Path, second: Path) -> None:
    process = Process(tmp_path)
    with local_hub() as hub:
        process.sets = [*hub_settings(tmp_path, hub), "log.format=json"]
        hub.push(tiny_files(tmp_path / "made", 1))
        restarted(process, lambda: hub.push(second))
