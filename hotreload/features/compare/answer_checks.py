"""Kinds of checks of an answer; as a program of its own it marks answers right or wrong. Pure.

A regular expression may take for ever, and keeps all threads of its process from running until it
is through. Run as a script this imports nothing of ours: it reads checks and answers as JSON, and
writes a mark for each.
"""

import json
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

EACH_SECONDS, ALL_SECONDS = 0.1, 2.0
"""Processor time that one answer may take, and all together: a usual one takes microseconds."""

CHECK_KINDS: Mapping[str, Callable[[str, str], bool]] = {
    "answer": lambda text, answer: text.strip() == answer.strip(),
    "contains": lambda text, answer: text in answer,
    "matches": lambda text, answer: re.search(text, answer) is not None,
}
"""For each kind of check, when an answer is right."""


class _TooLong(Exception):
    pass


def marks_of(asked: Sequence[tuple[str, str, str]]) -> Iterator[bool | None]:
    """Mark answers: the kind of each check, its text, and the answer; None where there is no time.

    On the main thread alone, which receives signals: `re` looks for them while it matches.
    """
    signal.signal(signal.SIGVTALRM, _stop)
    for each in asked:
        yield _mark(*each) if time.process_time() < ALL_SECONDS else None


def _mark(kind: str, text: str, answer: str) -> bool | None:
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, EACH_SECONDS)
        found = CHECK_KINDS[kind](text, answer)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except (_TooLong, MemoryError, RecursionError):
        return None
    return found


def _stop(*received: object) -> None:
    raise _TooLong


def main() -> None:
    """Mark the answers on the input; where no signal helps the kernel ends this process."""
    most = int(10 * ALL_SECONDS)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    json.dump([*marks_of(json.load(sys.stdin))], sys.stdout)


if __name__ == "__main__":
    main()
