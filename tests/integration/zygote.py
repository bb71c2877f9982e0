"""Imports all that a daemon needs, and forks itself for each life of one.

The imports take seconds, and are the same in every start. As long as there is no other thread and
no device, what runs after a fork is what would run after the imports. `forked` talks to it.
"""

import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

Main = Callable[[Sequence[str]], int]
MOST_BYTES = 1 << 17
REAL, OF_WORDS, OF_A_RANK = "hotreload.cli", "tests.words", "tests.hosts.keeping"
"""The command as it is installed, the one whose daemon has an engine of words, and a rank's."""
ENGINE_OF_A_RANK = "tests.hosts.engine_member"
"""A rank's part of an engine alone."""


def import_all(*, of_words: bool) -> None:
    """Import what a daemon imports before it looks for a device."""
    if of_words:
        main_of(OF_WORDS)  # first: it keeps JAX away
        import_module("hotreload.daemon")
        return
    import_module("hotreload.daemon")
    import_module("hotreload.engine.upstream.build")._ready_upstream()
    bridge = import_module("jax._src.xla_bridge")
    assert not bridge.backends_are_initialized(), "no device outlives a fork"
    main_of(REAL)


def main_of(command: str) -> Main:
    """What runs when the command is."""
    main: Main = import_module("tests.words.command" if command == OF_WORDS else command).main
    return main


def next_life(control: socket.socket) -> list[str] | None:
    """Fork for each request.

    In a life: its command and its arguments; here, when nobody asks any more: None.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a keeper that has ended is forgotten
    while True:
        request, files, *_ = socket.recv_fds(control, MOST_BYTES, 3)
        if not request:
            return None
        threads = list(Path("/proc/self/task").iterdir())
        assert len(threads) == 1, f"{len(threads)} threads: only one outlives a fork"
        if not os.fork():
            control.close()
            return _kept(json.loads(request), *files)
        for file in files:
            os.close(file)


def _kept(life: dict[str, Any], channel: int, out: int, err: int) -> list[str]:
    """In a life: what it runs. Its keeper, which the zygote forked, tells its pid and its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if pid := os.fork():
        os.write(channel, b"%d" % pid)
        _, status = os.waitpid(pid, 0)
        os.write(channel, b"%d" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    for ours, its in ((out, sys.stdout.fileno()), (err, sys.stderr.fileno())):
        os.dup2(ours, its)
        os.close(ours)
    # Those of the zygote know whether they were a file; a life's may be a terminal.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 (it stays open)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.close(channel)
    os.environ.clear()
    os.environ.update(life["environ"])
    os.chdir(life["folder"])
    return [life["command"], *life["arguments"]]


if __name__ == "__main__":
    import_all(of_words=sys.argv[1] == OF_WORDS)
    gc.collect()
    gc.freeze()  # no life looks for garbage in what was imported, nor copies it for that
    run = next_life(socket.socket(fileno=int(sys.argv[2])))
    if run is not None:
        sys.exit(main_of(run[0])(run[1:]))
