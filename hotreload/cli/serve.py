"""`hotreload serve`: the daemon."""

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotreload.config import Settings

EXPLAINED = """\
Holds a sglang-jax engine, watches a folder for checkpoints, and makes each sound one live.

examples:
  hotreload serve --config /etc/hotreload/hotreload.toml
  hotreload serve --set engine.model=./model --set source.path=./checkpoints \\
                  --set server.socket=./hotreload.sock --set state.directory=./state

signals: SIGTERM or SIGINT stop in order (a second one at once), SIGHUP looks for a checkpoint now.
exit codes: 0 stopped, 70 the engine is lost (start it again), 78 a setting is wrong."""


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "serve",
        help="run the daemon",
        description=EXPLAINED,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, a TOML file")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="a setting; stands above the file and HOTRELOAD__SECTION__KEY",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until stopped; the exit code says why it ended."""
    # Late: client verbs are in the same parser, and must start quickly.
    import asyncio

    from hotreload import failpoints
    from hotreload.config import check_servable, config_file, load
    from hotreload.observe.log import configure

    settings = load(config_file(args.config, os.environ), args.set, os.environ).settings
    check_servable(settings)
    configure(settings.log.level, settings.log.format)
    _arm(os.environ.get(failpoints.VARIABLE, ""))
    return asyncio.run(_serve(settings))


def _arm(text: str) -> None:
    from hotreload import failpoints
    from hotreload.errors import ConfigError

    try:
        failpoints.arm(text)
    except ValueError as fault:
        raise ConfigError(f"{failpoints.VARIABLE}: {fault}") from fault
    if points := failpoints.armed():
        where = {"points": points, "unset": failpoints.VARIABLE}
        logging.getLogger("hotreload").critical("failpoints.armed: only for tests", extra=where)


async def _serve(settings: "Settings") -> int:
    from hotreload.core.threads import left_behind
    from hotreload.daemon import Daemon

    code = await Daemon(settings).run()
    if (work := left_behind()) is not None:
        # The end of the interpreter kills threads where they stand, and C++ below them aborts.
        logging.getLogger("hotreload").warning("daemon.left_behind", extra={"work": work})
        sys.stderr.flush()
        os._exit(code)
    return code
