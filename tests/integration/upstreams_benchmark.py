"""Upstream's own benchmark, as it is shipped, asked of one server."""

import asyncio
import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE


async def benchmarked(folder: Path, url: str, backend: str, **options: Any) -> dict[str, Any]:
    """Return what the program tells of one run; it finds out the model's name by itself.

    Where that name is one of a folder in `folder`, its tokenizer is found there.
    """
    file = folder / f"{backend}.jsonl"
    file.unlink(missing_ok=True)
    wanted = {**options, "backend": backend, "output_file": file, "base_url": url}
    words = ((f"--{name.replace('_', '-')}", str(value)) for name, value in wanted.items())
    program = (sys.executable, "-m", "sgl_jax.bench_serving", "--output-details", "--disable-tqdm")
    ran = await asyncio.to_thread(
        subprocess.run,
        [*program, *chain.from_iterable(words)],
        check=False,
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PATIENCE,
    )
    assert ran.returncode == 0, ran.stdout.decode()
    told: dict[str, Any] = json.loads(file.read_text())
    return told
