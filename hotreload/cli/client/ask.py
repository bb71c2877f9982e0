"""`hotreload generate`: ask the model."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from hotreload.cli.args import add_client_verb, add_timeout
from hotreload.cli.client.which_daemon import WAIT_WORDS, check_ready, find_daemon, until_ready
from hotreload.client.synchronous import error_of
from hotreload.errors import HotReloadError, NotReady
from hotreload.picture.words import Fields


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = add_client_verb(verbs, "generate", run)
    parser.add_argument("prompt", metavar="PROMPT", help="what to ask")
    parser.add_argument(
        "--max-new-tokens", type=int, default=64, metavar="N", help="the longest answer (64)"
    )
    parser.add_argument("--stream", action="store_true", help="print the answer as it comes")
    parser.add_argument("--no-wait", action="store_true", help="exit 6 at once while it boots")
    add_timeout(parser, WAIT_WORDS)


def run(args: argparse.Namespace) -> int:
    """Print the model's answer."""
    daemon = find_daemon(args)
    params = {"temperature": 0.0, "max_new_tokens": args.max_new_tokens}
    wish: Fields = {"text": args.prompt, "sampling_params": params}

    def ask() -> Fields:
        if args.stream:
            chunks = daemon.stream("POST", "/generate", wish | {"stream": True})
            return _print_stream(chunks, args.json)
        answer: Fields = daemon.ask("POST", "/generate", wish).fields
        print(json.dumps(answer, indent=2) if args.json else answer["text"])
        return answer

    _check_end(_once_ready(daemon, args, ask))
    return 0


def _once_ready(daemon: Any, args: argparse.Namespace, ask: Callable[[], Fields]) -> Fields:
    """Send the request; first wait for a daemon that boots, unless an option forbids it."""
    try:
        if daemon.looks_apart:  # else the request would wait in the socket without any message
            check_ready(daemon)
        return ask()
    except NotReady:
        if args.no_wait:
            raise
    until_ready(daemon, args.timeout)
    return ask()


def _print_stream(chunks: Iterable[Fields], as_json: bool) -> Fields:
    last: Fields = {"text": ""}
    for chunk in chunks:
        if "error" in chunk:
            _end_line(as_json)
            raise error_of(chunk["error"].get("status", 503), chunk["error"])
        new = chunk["text"].removeprefix(last["text"])
        print(json.dumps(chunk) if as_json else new, end="\n" if as_json else "", flush=True)
        last = chunk
    _end_line(as_json)
    return last


def _end_line(as_json: bool) -> None:
    if not as_json:
        print(flush=True)


def _check_end(answer: Fields) -> None:
    end = answer.get("meta_info", {}).get("finish_reason") or {}
    if end.get("type") == "abort":
        sys.stdout.flush()
        raise HotReloadError(f"the answer was cut off: {end.get('message', 'aborted')}")
