"""`hotreload serve`: the daemon."""

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotreload.config import Settings
    from hotreload.errors import ConfigError

EXPLAINED = """\
Holds a sglang-jax engine, follows a folder of checkpoints or a revision on a hub ([source] kind),
and makes each sound one live.

examples:
  hotreload serve --config /etc/hotreload/hotreload.toml
  hotreload serve --set engine.model=./model --set source.path=./checkpoints \\
                  --set server.socket=./hotreload.sock --set state.directory=./state
  hotreload serve --set source.kind=huggingface --set source.repo=org/name

files:
  /etc/hotreload/hotreload.toml      settings, if --config and $HOTRELOAD_CONFIG name no others
  /run/hotreload/hotreload.sock      the socket ([server] socket)
  /var/lib/hotreload/                what survives a restart, and private copies ([state])
environment:
  HOTRELOAD__SECTION__KEY            a setting; `hotreload check-config` shows what comes of it
  JAX_PLATFORMS, JAX_COMPILATION_CACHE_DIR    as everywhere with JAX
The log goes to stderr.

signals: SIGTERM or SIGINT stop in order (a second one at once), SIGHUP looks for a checkpoint now.
exit codes: 0 stopped, 69 no accelerator, 70 the engine is lost (start it again), 78 a setting is
wrong."""


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
    from hotreload.errors import ConfigError

    try:
        return _run(args)
    except ConfigError as fault:
        _turn_away(fault)
        raise


def _run(args: argparse.Namespace) -> int:
    # Late: client verbs are in the same parser, and must start quickly.
    import asyncio

    from hotreload import failpoints
    from hotreload.config import check_servable, config_file, load
    from hotreload.observe.log import configure

    settings = load(config_file(args.config, os.environ), args.set, os.environ).settings
    check_servable(settings)
    configure(settings.log.level, settings.log.format)
    _tell_where_it_hangs()
    _arm(os.environ.get(failpoints.VARIABLE, ""))
    return asyncio.run(_serve(settings))


def _turn_away(fault: "ConfigError") -> None:
    """Whoever waits in a socket of systemd's would start us again, to no other end."""
    if "LISTEN_FDS" not in os.environ:  # none was passed, or they are in the daemon's hands
        return
    from contextlib import suppress

    from hotreload.errors import ConfigError
    from hotreload.server.activation import take_over
    from hotreload.server.sockets import turn_away

    with suppress(ConfigError):  # a second fault, and the first one is told
        turn_away(take_over(), fault)


def _tell_where_it_hangs() -> None:
    """systemd's watchdog ends what hangs by SIGABRT: the stacks are to be in the journal."""
    import faulthandler
    from contextlib import suppress

    with suppress(RuntimeError, OSError, ValueError):  # without a stderr there is nowhere to tell
        faulthandler.enable()


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
    from hotreload.core.threads import all_left_behind
    from hotreload.daemon import Daemon

    code = await Daemon(settings).run()
    if work := ", ".join(all_left_behind()):
        # The end of the interpreter kills threads where they stand, and C++ below them aborts.
        logging.getLogger("hotreload").warning("daemon.left_behind", extra={"work": work})
        sys.stderr.flush()
        os._exit(code)
    return code
