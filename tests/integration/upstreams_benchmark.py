"""Upstream's own benchmark, as it is shipped, asked of one server."""

import asyncio
import json
import os
import sys
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
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sgl_jax.bench_serving", "--output-details", "--disable-tqdm"),
        *(w for name, value in wanted.items() for w in (f"--{name.replace('_', '-')}", str(value))),
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(program.communicate(), PATIENCE)
    assert program.returncode == 0, said.decode()
    told: dict[str, Any] = json.loads(file.read_text())
    return told
