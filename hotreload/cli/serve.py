"""`hotreload serve`: the daemon."""

import argparse
import os
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

    from hotreload.config import check_servable, config_file, load
    from hotreload.observe.log import configure

    settings = load(config_file(args.config, os.environ), args.set, os.environ).settings
    check_servable(settings)
    configure(settings.log.level, settings.log.format)
    return asyncio.run(_serve(settings))


async def _serve(settings: "Settings") -> int:
    from hotreload.daemon import Daemon

    return await Daemon(settings).run()
