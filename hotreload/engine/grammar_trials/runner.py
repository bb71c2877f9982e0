"""Runs the program that tries grammars, and asks it about one grammar at a time."""

import json
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotreload.errors import NotServing

TRIAL_PROGRAM = Path(__file__).with_name("program.py")
WALL = 20.0
"""Times its processor seconds that a grammar may take by the clock, on a busy machine."""
BEGINNING = 15.0
"""Seconds that the program may need to build a large tokenizer."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a trial: the text to hand to llguidance, or why the grammar is refused."""

    grammar: str | None = None
    fault: str = ""
    is_slow: bool = False


class Trial:
    """A program that tries grammars; started for the first grammar, and again after it ended."""

    def __init__(self, setup: Mapping[str, Any], seconds: float) -> None:
        self._setup = {**setup, "seconds": seconds, "wall_seconds": WALL * seconds}
        self._lock = threading.Lock()
        self._program: subprocess.Popen[bytes] | None = None

    def judge(self, key: tuple[str, str]) -> Verdict:
        """Try a grammar and return the verdict; blocks."""
        with self._lock:
            try:
                return Verdict(**json.loads(self._ask(key)))
            except (OSError, ValueError) as fault:
                self._end()
                words = f"the program that tries grammars has ended ({type(fault).__name__})"
                raise NotServing(words, code="grammar_trial", retry_after=1) from fault

    def close(self) -> None:
        """End the program."""
        with self._lock:
            self._end()

    def _ask(self, key: tuple[str, str]) -> bytes:
        if self._program is None or self._program.poll() is not None:
            self._end()
            self._program = self._start_program()
        program = self._program
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(json.dumps(key).encode() + b"\n")
        program.stdin.flush()
        waiting = select.poll()
        waiting.register(program.stdout, select.POLLIN | select.POLLHUP)
        if not waiting.poll(1000 * (BEGINNING + self._setup["wall_seconds"])):
            raise TimeoutError
        return program.stdout.readline()

    def _start_program(self) -> "subprocess.Popen[bytes]":
        # Isolated: neither our modules nor the caller's folder are among what it imports.
        program = subprocess.Popen(
            [sys.executable, "-I", str(TRIAL_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert program.stdin is not None
        program.stdin.write(json.dumps(self._setup).encode() + b"\n")
        return program

    def _end(self) -> None:
        program, self._program = self._program, None
        if program is None:
            return
        program.kill()
        program.communicate()
