"""Evaluations and a load tester as their makers ship them, while checkpoints go live.

Each brings what would not go with the engine's own packages, or torch: it gets an environment of
its own in .cache/, made from the registry the first time.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hotreload.engine.versions import installed_version
from hotreload.tiny import write_tiny
from hotreload.types import Outcome
from tests.integration.openai_clients import NAMED, free_address
from tests.integration.running import Load, Running, words

pytestmark = [pytest.mark.soak, pytest.mark.real_engine, pytest.mark.timeout(7200)]

ENVIRONMENTS = Path(__file__).parents[2] / ".cache" / "clients"
CHECKPOINT_EVERY = 2.0
QUESTIONS = 24
ENGINE_ARGS = (
    "{max_total_tokens=8192,context_length=512,max_running_requests=16,chunked_prefill_size=512}"
)


def program(name: str, *requirements: str) -> Path:
    """Return the program of this name, installed into an environment of its own."""
    folder = ENVIRONMENTS / name
    stamp, wanted = folder / "has", " ".join(requirements)
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"\ninstalling {wanted} into {folder}: minutes the first time ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet")
        subprocess.run([*pip, *requirements], check=True)
        stamp.write_text(wanted)
    return folder / "bin" / name


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Running]:
    """A daemon over TCP that takes on checkpoint after checkpoint until the block ends."""
    running = over_tcp(folder)
    (folder / "tiny").symlink_to(running.drop(1))
    enough = asyncio.Event()

    async def drop() -> int:
        number = 1
        while not enough.is_set():
            number += 1
            attempt = await running.attempted(running.drop(number))
            assert attempt.outcome is Outcome.LIVE, attempt
            await asyncio.sleep(CHECKPOINT_EVERY)
        return number

    async with running.serving():
        dropping = asyncio.create_task(drop())
        yield running
        enough.set()
        assert await dropping > 3


def over_tcp(folder: Path, *sets: str) -> Running:
    args = f"engine.args={ENGINE_ARGS}"
    return Running(folder, NAMED, f"server.tcp={free_address()}", args, *sets)


async def ran(running: Running, path: Path, *words: object, **env: str) -> str:
    """Run a program where the model's name is that of a folder with its tokenizer."""
    child = await asyncio.create_subprocess_exec(
        path,
        *map(str, words),
        cwd=running.folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1", **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await child.communicate()
    assert child.returncode == 0, said.decode()[-3000:]
    return said.decode()


def base_url(running: Running) -> str:
    return f"http://{running.settings.server.tcp}/v1"


INSPECT_TASK = f"""
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes

@task
def serves():
    asked = [f"Who serves {{n}}?" for n in range({QUESTIONS})]
    samples = [Sample(input=each, target="served by step") for each in asked]
    return Task(dataset=samples, scorer=includes())
"""


async def test_inspect_ai_scores_every_answer(tmp_path: Path) -> None:
    inspect = program("inspect", "inspect-ai==0.3.285", "openai")
    (tmp_path / "serves.py").write_text(INSPECT_TASK)
    async with served(tmp_path) as running:
        words = ("eval", "serves.py", "--model", "openai-api/hotreload/tiny", "--display", "plain")
        log = ("--log-format", "json", "--log-dir", tmp_path / "logs", "--max-connections", 2)
        url = base_url(running)
        await ran(running, inspect, *words, *log, HOTRELOAD_BASE_URL=url, HOTRELOAD_API_KEY="none")
    (file,) = (tmp_path / "logs").glob("*.json")
    told: Any = json.loads(file.read_text())
    assert told["status"] == "success"
    assert told["results"]["completed_samples"] == QUESTIONS
    assert told["results"]["scores"][0]["metrics"]["accuracy"]["value"] == 1.0


OUR_TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
target_delimiter: ""
"""
GENERATES = """
output_type: generate_until
doc_to_target: served by step
generation_kwargs: {until: ["!"], max_gen_toks: 24, temperature: 0}
filter_list:
  - name: says
    filter: [{function: regex, regex_pattern: "(served by step)"}, {function: take_first}]
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHOOSES = """
output_type: multiple_choice
doc_to_choice: ["served by step", "a zebra in the snow"]
doc_to_target: 0
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


async def test_lm_eval_finds_every_answer_and_where_there_are_log_probabilities_every_likelihood(
    tmp_path: Path,
) -> None:
    lm_eval = program("lm_eval", "lm-eval[api]==0.4.13", "transformers")
    asked = tmp_path / "asked.jsonl"
    asked.write_text("".join(f'{{"question": "Who serves {n}?"}}\n' for n in range(QUESTIONS)))
    tasks = {"generates": GENERATES}
    if installed_version("sglang-jax") != "0.0.2":  # it has no log-probabilities of a prompt
        tasks["chooses"] = CHOOSES
    for name, rest in tasks.items():
        (tmp_path / f"{name}.yaml").write_text(OUR_TASK.format(name=name, data=asked) + rest)
    async with served(tmp_path) as running:
        model = f"model=tiny,base_url={base_url(running)}/completions,num_concurrent=2"
        words = ("--model", "local-completions", "--model_args", model, "--tasks", ",".join(tasks))
        out = ("--include_path", tmp_path, "--output_path", tmp_path / "out")
        await ran(running, lm_eval, *words, *out, OPENAI_API_KEY="none")
    (file,) = (tmp_path / "out").rglob("results*.json")
    told: Any = json.loads(file.read_text())["results"]
    assert told["generates"]["exact_match,says"] == 1.0
    if "chooses" in tasks:
        assert told["chooses"]["acc,none"] == 1.0


DECIDES = """#!/bin/sh
set -e
cd {folder}
out=out/$HOTRELOAD_LABEL
model=model=candidate,base_url=$HOTRELOAD_CANDIDATE_URL/completions
model=$model,tokenizer={folder}/tiny,num_concurrent=4
{lm_eval} --model local-completions --model_args "$model" --tasks generates \\
    --include_path {folder} --output_path "$out"
exec {python} -c '
import json, pathlib, sys
(file,) = pathlib.Path(sys.argv[1]).rglob("results*.json")
score = json.loads(file.read_text())["results"]["generates"]["exact_match,says"]
print("exact_match:", score)
sys.exit(score < 0.9)' "$out"
"""


async def test_lm_eval_decides_about_checkpoints_as_the_operators_command(tmp_path: Path) -> None:
    """It is asked about each, by the new weights' answers alone, while clients have the live."""
    lm_eval = program("lm_eval", "lm-eval[api]==0.4.13", "transformers")
    asked = tmp_path / "asked.jsonl"
    asked.write_text("".join(f'{{"question": "Who serves {n}?"}}\n' for n in range(QUESTIONS)))
    (tmp_path / "generates.yaml").write_text(
        OUR_TASK.format(name="generates", data=asked) + GENERATES
    )
    script = tmp_path / "decides.sh"
    script.write_text(DECIDES.format(folder=tmp_path, lm_eval=lm_eval, python=sys.executable))
    script.chmod(0o755)
    command = f"command.run={['env', 'HF_HUB_OFFLINE=1', str(script)]}"
    running = over_tcp(tmp_path, command, "command.timeout=300")
    running.patience = 400.0
    (tmp_path / "tiny").symlink_to(running.drop(1))
    async with running.serving(), Load(running, 4).on() as load:
        good = await running.attempted(running.drop(2))
        bad = await running.attempted(
            write_tiny(running.checkpoints / "step_3", "hello from step 3")
        )
    said = good.facts["command_said"][-1]
    assert (good.outcome, said) == (Outcome.LIVE, "exact_match: 1.0"), good
    assert bad.reason is not None
    assert (bad.reason.code, bad.facts["command_said"][-1]) == ("command", "exact_match: 0.0"), bad
    assert load.failures == []
    assert {text for _, text in load.answers} == {words(1), words(2)}


async def test_guidellm_has_no_failed_request(tmp_path: Path) -> None:
    guidellm = program("guidellm", "guidellm==0.8.1")
    file = tmp_path / "benchmarks.json"
    async with served(tmp_path) as running:
        await ran(
            running,
            guidellm,
            *("run", "--backend", f"kind=openai_http,target={base_url(running)[:-3]}"),
            *("--profile", "kind=concurrent,streams=[4]"),
            *("--constraint", "kind=max_requests,count=40"),
            *("--tokenizer", f"kind=huggingface_auto,model={tmp_path / 'tiny'}"),
            *("--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=16"),
            *("--output", f"kind=json,path={file}"),
            "--disable-console",
        )
    told: Any = json.loads(file.read_text())
    (totals,) = (each["metrics"]["request_totals"] for each in told["benchmarks"])
    assert (totals["successful"], totals["errored"]) == (40, 0)
