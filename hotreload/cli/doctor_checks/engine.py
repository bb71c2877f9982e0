"""`hotreload doctor`: is the engine one that hotreload is tested with, and what can it do?"""

import subprocess
import sys

from hotreload.cli.doctor_checks.advice import Advice, Facts
from hotreload.engine.versions import SUPPORTED, how_to_install, installed, why_untested

IMPORT = "from hotreload.engine import sglang; from sgl_jax.srt.entrypoints import engine"
IMPORT_SECONDS = 120.0


def check_engine(facts: Facts) -> Advice:
    """Is a supported release installed, beside a jax that it can be imported with?

    The import takes seconds and works for a tested pair of versions, so only others are tried.
    """
    untested = why_untested()
    engine = installed("sglang-jax")
    if untested is None:
        assert engine is not None, "or it would be untested"
        return Advice("ok", f"sglang-jax {engine} with jax {installed('jax')}: {_can(engine)}")
    fault = _import_fault() if engine is not None else "there is none to import"
    if fault:
        return Advice("fail", f"{untested}: {fault}", how_to_install())
    return Advice("warn", f"{untested}, and it can be imported", how_to_install())


def _can(engine: str) -> str:
    can = SUPPORTED[engine].can
    yes, no = ([name for name, has in can.items() if has is wanted] for wanted in (True, False))
    return f"can: {', '.join(yes) or 'what all can'}; cannot: {', '.join(no) or 'nothing'}"


def _import_fault() -> str | None:
    """What ends an import of the engine, in the words of its last line."""
    try:
        told = subprocess.run(
            [sys.executable, "-c", IMPORT],
            capture_output=True,
            text=True,
            timeout=IMPORT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its import does not end in {IMPORT_SECONDS:g} s"
    return (told.stderr.strip().splitlines() or ["it died"])[-1] if told.returncode else None
