"""Runs `hotreload` in this process, at a terminal of no width that shows colours by their names."""

import asyncio
import contextlib
import io
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from unittest.mock import patch

from hotreload.cli import main
from hotreload.cli.client.show import COLOURS
from tests.golden.blanks import blanked

NAMES = {str(code): name for name, code in COLOURS.items()}
COLOURED = re.compile("\033\\[(\\d+)m(.*?)\033\\[0m", re.DOTALL)


class Terminal(io.StringIO):
    """What a verb writes to; somebody looks at it."""

    def isatty(self) -> bool:
        return True


def named_colours(text: str) -> str:
    """The text with each coloured piece as `{good:…}`."""
    return COLOURED.sub(lambda found: f"{{{NAMES[found[1]]}:{found[2]}}}", text)


def run(
    folder: Path,
    *words: str,
    colour: bool = False,
    environ: Mapping[str, str] | None = None,
) -> str:
    """What a verb prints, lines of stderr after `! `, and its exit code.

    The daemon's socket is that of a `World` in the folder.
    """
    kept = {name: value for name, value in os.environ.items() if "HOTRELOAD" not in name}
    given = {"COLUMNS": "100", "LINES": "40", "HOTRELOAD_SOCKET": str(folder / "hotreload.sock")}
    given |= environ or {}
    out, err = Terminal() if colour else io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as around:
        around.enter_context(patch.dict(os.environ, {**kept, **given}, clear=True))
        os.environ.pop("NO_COLOR", None)
        around.enter_context(contextlib.redirect_stdout(out))
        around.enter_context(contextlib.redirect_stderr(err))
        try:
            code = main([word.replace("DIR", str(folder)) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
    said = "".join(f"! {line}\n" for line in err.getvalue().splitlines())
    return blanked(named_colours(f"{out.getvalue()}{said}exit {code}"), folder)


async def asked(folder: Path, *words: str, **environ: str) -> str:
    """The same beside a server that runs in this loop."""
    return await asyncio.to_thread(partial(run, folder, *words, environ=environ))
