"""`hotreload swap`: one swap by library mode, on an engine of its own."""

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import aclosing, redirect_stdout
from typing import Any

from hotreload.cli import FAILED
from hotreload.cli.args import (
    add_engine_options,
    add_repo_options,
    add_verb,
    engine_options_of,
    keep_remarks_out,
    show_download,
)
from hotreload.engine.versions import imports_explained


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "swap", run)
    folder: dict[str, Any] = {"required": True, "metavar": "DIR|REPO"}
    parser.add_argument("--model", help="its config and tokenizer are used", **folder)
    parser.add_argument("--checkpoint", help="its weights are used", **folder)
    add_repo_options(parser)
    parser.add_argument("--prompt", help="what to ask (你是谁)")
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="the longest answer (32)")
    add_engine_options(parser)
    parser.add_argument(
        "--cast",
        action="store_true",
        default=None,
        help="load the checkpoint although its dtype is not the engine's",
    )


def run(args: argparse.Namespace) -> int:
    """Swap once, and print each event as it happens."""
    keep_remarks_out(args.device or "auto")
    names = ("model", "checkpoint", "prompt", "max_new_tokens", "cast")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    out, engine_options = sys.stdout, engine_options_of(args)
    with redirect_stdout(sys.stderr), show_download(args) as fetching:  # only JSON goes to stdout
        return asyncio.run(_swap({**given, **engine_options, **fetching}, out))


async def _swap(given: Mapping[str, Any], out: Any) -> int:
    with imports_explained():
        from hotreload.library import swap_once

    # ASCII: another encoding than UTF-8 would escape characters in a way that is no JSON.
    is_ascii = (out.encoding or "ascii").lower() != "utf-8"
    event: dict[str, Any] = {}
    async with aclosing(swap_once(**given)) as events:
        async for event in events:
            print(json.dumps(event, ensure_ascii=is_ascii), file=out, flush=True)
    return FAILED if event["event"] == "weights_swap_error" else 0
