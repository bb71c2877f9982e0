"""`hotreload swap` and `diff`: library mode, in processes of its own, on the real engine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import pytest

from hotreload.tiny import write_tiny
from tests.hub.local_hub import REPO, local_hub
from tests.integration.forked import would_import_the_same, zygote_of
from tests.integration.running import ENGINE_ARGS
from tests.integration.zygote import REAL
from tests.tiny.conversions import write_wrong
from tests.waiting import PATIENCE

pytestmark = pytest.mark.real_engine

ROOT = Path(__file__).parent.parent.parent
AS_A_DAEMONS = ENGINE_ARGS.strip("{}").split(",")
"""What an engine is told: as in daemons of tests, whose programs are kept."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swap")
    write_tiny(folder / "model", "served by step 1")
    return folder


def swap(folder: Path, checkpoint: str, *more: str) -> tuple[int, list[dict[str, Any]], str]:
    """The exit code, the objects on stdout, and stderr."""
    ran = hotreload(folder, "swap", "--model", "model", "--checkpoint", checkpoint, *more)
    return ran.returncode, [json.loads(line) for line in ran.stdout.splitlines()], ran.stderr


class Ran(NamedTuple):
    """How a command ended, and its words."""

    returncode: int
    stdout: str
    stderr: str


def hotreload(folder: Path, *words: str) -> Ran:
    """Run the command in the folder; forked, unless an import would find another world."""
    arguments = [*words, "--device", "cpu"]
    for arg in AS_A_DAEMONS:
        arguments += ["--engine-arg", arg]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    with TemporaryFile() as out, TemporaryFile() as err:
        if would_import_the_same():
            life = zygote_of(REAL).begin(REAL, arguments, environ, err, folder=folder, out=out)
            try:
                code = life.wait(PATIENCE)
            finally:
                life.kill()
        else:
            command = [sys.executable, "-m", REAL, *arguments]
            streams: dict[str, Any] = {"stdout": out, "stderr": err}
            code = subprocess.call(command, cwd=folder, env=environ, timeout=PATIENCE, **streams)
        ran = Ran(code, all_of(out), all_of(err))
    assert "Traceback" not in ran.stderr
    return ran


def all_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def test_a_checkpoint_takes_the_place_of_random_weights_and_answers(folder: Path) -> None:
    write_tiny(folder / "step_2", "served by step 2", shards=2)
    code, (ready, swapped, said), _ = swap(folder, "step_2")
    assert code == 0
    assert ready["event"] == "engine_ready_dummy"
    about = ("model_id", "device", "tp_size", "dp_size", "dtype", "load_format", "leaves")
    assert [ready[name] for name in about] == ["model", "cpu", 1, 1, "bfloat16", "dummy", 25]
    assert ready["engine_version"]
    assert ready["folders"]["checkpoint"] == "step_2"
    assert swapped["event"] == "weights_swapped"
    assert swapped["snapshot"] == str(folder / "step_2")
    assert swapped["leaves"] == 25
    assert swapped["fingerprint_before"] != swapped["fingerprint_after"]
    assert said["event"] == "generate_result"
    assert (said["prompt"], said["text"]) == ("你是谁", "served by step 2")
    assert said["raw"]["text"] == said["text"]
    assert said["sampling_params"] == {"temperature": 0, "max_new_tokens": 32}


def test_a_checkpoint_that_does_not_fit_is_refused_with_its_reason(folder: Path) -> None:
    write_tiny(folder / "bad", damage="wrong-shape")
    code, (ready, error), _ = swap(folder, "bad")
    assert (code, ready["event"]) == (1, "engine_ready_dummy")
    assert (error["event"], error["code"]) == ("weights_swap_error", "shape")
    assert "up_proj" in error["message"]
    assert "hotreload check bad --against model" in error["hint"]


def test_what_is_no_folder_is_told_before_an_engine_starts(folder: Path) -> None:
    code, (error,), _ = swap(folder, "nowhere")
    assert (code, error["event"], error["code"]) == (1, "weights_swap_error", "source")
    assert "nowhere" in error["message"]
    assert "name a folder that is there" in error["hint"]


def test_a_repo_is_downloaded_and_swapped_in_and_prompt_length_and_dtype_can_be_chosen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ("--cast", "--prompt", "Who?", "--max-new-tokens", "2")
    with local_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.token = "hf_verysecret"
        monkeypatch.setenv("HF_TOKEN", hub.token)
        hub.push(write_tiny(folder / "pushed", "served by step 5"), branch="v1")
        other = write_tiny(folder / "other", "policy 3", damage="wrong-dtype")
        sha = hub.push(other, branch="v2")
        code, (ready, swapped, said), stderr = swap(
            folder, f"{REPO}@v2", "--model", f"{REPO}@v1", "--cache", "cache", *chosen
        )
        assert code == 0
        assert ready["model_id"] == f"{REPO}@v1"
        assert Path(swapped["snapshot"]) == folder / "cache" / "org--name" / sha
        assert (said["prompt"], said["text"]) == ("Who?", "policy 3")
        assert hub.token not in json.dumps([ready, swapped, said]) + stderr


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"status": 401}, ("denied", "401: the hub wants a token", "--token-file")),
        (
            {"status": 503, "times": 99},
            ("source", "trouble of its own", "run the same command again"),
        ),
        ({"drop": True, "times": 99}, ("source", "the hub at http", "run the same command again")),
    ],
    ids=str,
)
def test_a_download_that_fails_is_an_error_with_a_hint(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: dict[str, Any],
    said: tuple[str, str, str],
) -> None:
    code, words, hint = said
    with local_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.fault(".", **fault)
        ended, (error,), _ = swap(folder, REPO, "--cache", "cache")
        assert (ended, error["event"], error["code"]) == (1, "weights_swap_error", code)
        assert words in error["message"]
        assert hint in error["hint"]


def test_an_engine_that_cannot_start_as_asked_is_an_error_with_a_hint(folder: Path) -> None:
    code, (error,), _ = swap(folder, "model", "--engine-arg", "frobs=3")
    assert (code, error["error"]) == (1, "ConfigError")
    assert "frobs" in error["message"]
    assert "--engine-arg" in error["hint"]


@pytest.mark.parametrize("more", [["--engine-arg", "frobs"], ["--tp", "0"]])
def test_what_cannot_be_read_is_misuse(folder: Path, more: list[str]) -> None:
    code, events, said = swap(folder, "model", *more)
    assert (code, events) == (2, [])
    assert more[0] in said


def test_two_checkpoints_are_compared_as_a_reload_compares_them(folder: Path) -> None:
    """What their answers say is the matter of `tests/features/compare` and of the contract."""
    write_tiny(folder / "tuned", steps=36)
    write_wrong(folder / "swapped", "swapped-k-v", steps=36)
    question = {"prompt": "river", "answer": "the long river went down into the ocean"}
    (folder / "prompts.jsonl").write_text(json.dumps(question))
    asked = ("--set", f"compare.corpus={folder}/prompts.jsonl")
    limits = ("--set", "compare.limits.min_agreement=0.9")
    ran = hotreload(folder, "diff", "tuned", "swapped", "--json", *asked, *limits)
    told = json.loads(ran.stdout)
    assert (ran.returncode, told["code"]) == (1, "behaviour"), ran.stderr
    assert told["live_fingerprint"] != told["new_fingerprint"]
    found = told["behaviour"]
    assert (found["questions"], found["noise_same_top"]) == (7, 1.0)
    assert (found["right_answers"]["live_right"], found["right_answers"]["right"]) == (1, 0)
    assert found["agreement"] < 0.5
    assert found["mean_kl"] > 1000 * found["noise_kl"]
    assert told["findings"][0].startswith("min_agreement: ")
    steps = ["starting an engine with tuned", "checking swapped", "loading swapped beside tuned"]
    assert [line for line in ran.stderr.splitlines() if line.endswith(" …")] == [
        f"{step} …" for step in (*steps, "asking both the same")
    ]
