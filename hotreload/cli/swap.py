"""`hotreload swap`: one swap by library mode, on an engine of its own."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hotreload.cli.exits import FAILED, Misused
from hotreload.cli.repo import add_repo_options, cache_of, token_of

EXPLAINED = """\
Starts an engine with random weights on a model's config and tokenizer, checks a checkpoint as the
daemon does, swaps its weights in, and asks it once. No daemon, no socket. Model and checkpoint are
folders, or org/name@revision on a Hugging Face Hub.

Prints one JSON object a line: engine_ready_dummy, weights_swapped, generate_result; or
weights_swap_error, with a hint. Exits 0, or 1 after an error.

example:
  hotreload tiny ./model && hotreload tiny ./step-2 --say "served by step 2"
  hotreload swap --model ./model --checkpoint ./step-2 --device cpu \\
                 --engine-arg context_length=256"""


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "swap",
        help="swap a checkpoint into an engine of its own, and ask it once",
        description=EXPLAINED,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    folder = {"required": True, "metavar": "DIR|REPO"}
    parser.add_argument("--model", help="its config and tokenizer are used", **folder)
    parser.add_argument("--checkpoint", help="its weights are used", **folder)
    add_repo_options(parser)
    parser.add_argument("--prompt", help="what to ask (你是谁)")
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="the longest answer (32)")
    parser.add_argument("--device", choices=("auto", "cpu", "tpu"), help="where to run (auto)")
    parser.add_argument("--tp", type=_count, metavar="N", help="devices that share the weights (1)")
    parser.add_argument(
        "--dtype",
        choices=("auto", "bfloat16", "float16", "float32"),
        help="what the engine serves (auto: what the config says)",
    )
    parser.add_argument(
        "--cast",
        action="store_true",
        default=None,
        help="load the checkpoint although its dtype is not the engine's",
    )
    parser.add_argument(
        "--engine-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one of sglang-jax's server arguments; may be repeated",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Swap once, and print what happens as it happens."""
    import asyncio
    from contextlib import closing, redirect_stdout

    from hotreload.cli.bar import Bar, drawing
    from hotreload.cli.xla_log import keep_remarks_out

    keep_remarks_out(args.device or "auto")
    names = ("model", "checkpoint", "prompt", "max_new_tokens", "device", "tp", "dtype", "cast")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    out, engine_args = sys.stdout, _engine_args(args.engine_arg)
    fetching = {"cache": cache_of(args), "token": token_of(args)}
    with redirect_stdout(sys.stderr), closing(Bar()) as bar:  # stdout is for our objects alone
        given |= {"args": engine_args, **fetching, "publish": drawing(bar)}
        return asyncio.run(_swap(given, out))


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return count


def _engine_args(given: Sequence[str]) -> dict[str, Any]:
    pairs = [text.partition("=") for text in given]
    for (name, equals, _), text in zip(pairs, given, strict=True):
        if not (name.strip() and equals):
            raise Misused(f"--engine-arg {text}: write it as NAME=VALUE")
    return {name.strip(): _value(value.strip()) for name, _, value in pairs}


def _value(text: str) -> Any:
    """A TOML value, as in a settings file; anything else is plain text."""
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text


async def _swap(given: Mapping[str, Any], out: Any) -> int:
    from contextlib import aclosing

    from hotreload.engine.versions import imports_explained

    with imports_explained():
        from hotreload.library import swap_once

    # A stream that is not UTF-8 would escape other characters in a way that is not JSON.
    is_ascii = (out.encoding or "ascii").lower() != "utf-8"
    event: dict[str, Any] = {}
    async with aclosing(swap_once(**given)) as events:
        async for event in events:
            print(json.dumps(event, ensure_ascii=is_ascii), file=out, flush=True)
    return FAILED if event["event"] == "weights_swap_error" else 0
