"""A program that tries grammars: one that crashes, hangs or needs too much memory ends only this.

A grammar is a program that a client sends, and llguidance limits neither its time nor its memory
nor its stack: `minItems: 10000000` takes gigabytes, three thousand rules in a row overflow the
stack. Run as a script, the program imports no module of ours. Its first line of input describes
the tokenizer and the limits; each further line is a grammar to try.
"""

import json
import os
import random
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

STACK = 64 << 20
"""A rule that leads to another takes a few kilobytes of the stack, so a long chain of them fits."""
ROOM = 256 << 20
"""The memory one grammar may take, beside its stack."""
TRIED_STEPS = 8
"""Tokens that are followed, to find a grammar that no text can begin."""
STEP_SECONDS = 0.1
"""The scheduler waits for each step of a grammar, and everybody for the scheduler."""

NO_TEXT = "no text fits it"

PARSER_LIMITS: Mapping[str, int] = {
    "initial_lexer_fuel": 100_000,
    "step_lexer_fuel": 20_000,
    "max_lexer_states": 5_000,
    "step_max_items": 10_000,
    "max_grammar_size": 100_000,
}
"""A tenth of llguidance's own limits. With those the worst step took 2.6 s and 250 MB, with these
it takes a tenth of a second; real schemas of hundreds of fields still pass."""

TrialSetup = Mapping[str, Any]


def serialize(setup: TrialSetup, kind: str, text: str) -> str:
    """The grammar as the engine's own backend hands it to llguidance."""
    from llguidance import (  # type: ignore[import-not-found, unused-ignore]
        LLMatcher,
        grammar_from,
    )

    grammar: str
    if kind == "json":
        grammar = LLMatcher.grammar_from_json_schema(text, defaults=setup["json"])
    elif kind == "structural_tag":
        grammar = _of_tags(text)
    else:
        grammar = grammar_from(kind, text)
    return grammar


def _of_tags(text: str) -> str:
    from llguidance import StructTag

    wanted = json.loads(text)
    grammar: str = StructTag.to_grammar(
        [
            StructTag(
                begin=each["begin"],
                grammar=each["schema"],
                end=each["end"],
                trigger=wanted["triggers"][0],
            )
            for each in wanted["structures"]
        ]
    )
    return grammar


def matcher_of(tokenizer: Any, grammar: str) -> Any:
    """Make a matcher of a serialized grammar, within the limits."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(**PARSER_LIMITS, verbose_errors=False)
    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


def fault_of(matcher: Any) -> str:
    """Say in one line why a matcher fails; empty when it does not."""
    words = " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
    return NO_TEXT if words == "NoExtensionBias" else words


def _judge(tokenizer: Any, setup: TrialSetup, kind: str, text: str) -> dict[str, str]:
    try:
        grammar = serialize(setup, kind, text)
        if fault := _follow(matcher_of(tokenizer, grammar)):
            return {"fault": fault}
    except RecursionError:
        return {"fault": "nested too deeply"}
    except (KeyError, IndexError, TypeError, AttributeError) as fault:
        return {"fault": f"not of the form it must have ({type(fault).__name__}: {fault})"}
    except MemoryError:
        return {"fault": "takes too much memory"}
    except Exception as fault:
        return {"fault": str(fault) or type(fault).__name__}
    return {"grammar": grammar}


def _follow(matcher: Any) -> str:
    """Follow a grammar for a few tokens; return why that fails, or an empty string."""
    chance = random.Random(0)
    for _ in range(TRIED_STEPS):
        if matcher.is_error() or matcher.is_stopped():
            break
        began = time.thread_time()
        allowed: bytes = matcher.compute_logit_bias()
        if matcher.is_error():
            break
        token = _any_of(allowed, chance)
        if token < 0:
            return NO_TEXT
        matcher.consume_token(token)
        if (seconds := time.thread_time() - began) > STEP_SECONDS:
            return f"one step of it takes {seconds:.2f} s, it may take {STEP_SECONDS:g} s"
    return fault_of(matcher)


def _any_of(allowed: bytes, chance: random.Random) -> int:
    one = max(allowed)
    if not one:
        return -1
    found = allowed.find(one, chance.randrange(len(allowed)))
    return found if found >= 0 else allowed.find(one)


_STACK_SIZE = threading.Lock()


@contextmanager
def deep_stack() -> Iterator[None]:
    """Give a large stack to each thread that is started in this context."""
    with _STACK_SIZE:
        before = threading.stack_size(STACK)
        try:
            yield
        finally:
            threading.stack_size(before)


def in_deep_thread(work: Callable[[], object]) -> None:
    """Run the work on a thread with a large stack, and wait for its end."""
    thread = threading.Thread(target=work, name="hotreload-grammar", daemon=True)
    with deep_stack():
        thread.start()
    thread.join()


def _try(tokenizer: Any, setup: TrialSetup, kind: str, text: str) -> bytes:
    """Judge a grammar in a fork, which is killed when it takes too long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _judge_and_exit(writing, tokenizer, setup, kind, text)
    os.close(writing)
    verdict = _read(reading, time.monotonic() + setup["wall_seconds"])
    os.close(reading)
    if verdict is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if verdict and os.waitstatus_to_exitcode(status) == 0:
        return verdict
    return json.dumps(_death(os.waitstatus_to_exitcode(status), setup)).encode()


def _death(code: int, setup: TrialSetup) -> dict[str, Any]:
    if code in (-signal.SIGPROF, -signal.SIGKILL, -signal.SIGXCPU):
        words = f"takes longer than {setup['seconds']:g} s to compile"
        return {"fault": words, "is_slow": True}
    if code == -signal.SIGSEGV:
        return {"fault": "nested too deeply"}
    return {"fault": f"takes more than {ROOM >> 20} MB to compile"}


def _judge_and_exit(
    writing: int, tokenizer: Any, setup: TrialSetup, kind: str, text: str
) -> NoReturn:
    code = 1
    try:
        _limit_resources(setup["seconds"])
        verdict: list[dict[str, str]] = []
        in_deep_thread(lambda: verdict.append(_judge(tokenizer, setup, kind, text)))
        with os.fdopen(writing, "wb") as out:
            out.write(json.dumps(verdict[0]).encode())
        code = 0
    finally:
        os._exit(code)


def _limit_resources(seconds: float) -> None:
    with open("/proc/self/statm") as statm:
        has = int(statm.read().split()[0]) * resource.getpagesize()
    most = has + STACK + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # native code reports its death there
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _read(reading: int, until: float) -> bytes | None:
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return None
        part = os.read(reading, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)


def main() -> None:
    """Judge grammars until the daemon closes the input."""
    from llguidance import LLTokenizer

    setup = json.loads(sys.stdin.buffer.readline())
    tokenizer = LLTokenizer(setup["tokenizer"], n_vocab=setup["vocabulary"], eos_token=setup["eos"])
    del setup["tokenizer"]
    for line in sys.stdin.buffer:
        kind, text = json.loads(line)
        sys.stdout.buffer.write(_try(tokenizer, setup, kind, text) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
