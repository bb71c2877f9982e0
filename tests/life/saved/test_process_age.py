"""How old a process is, as it says itself."""

import subprocess
import sys
import time

from hotreload.life.start.first_switch import seconds_since_exec

SAYS = "from hotreload.life.start.first_switch import seconds_since_exec as s; print(s())"


def test_it_is_as_old_as_whoever_began_it_knows() -> None:
    began = time.monotonic()
    said = subprocess.run([sys.executable, "-c", SAYS], stdout=subprocess.PIPE, check=True).stdout
    tick = 0.02  # the kernel counts in hundredths
    assert 0 < float(said) <= time.monotonic() - began + tick


def test_it_only_grows() -> None:
    first = seconds_since_exec()
    assert 0 < first <= seconds_since_exec()
