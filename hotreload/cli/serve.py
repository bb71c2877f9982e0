"""`hotreload serve`: runs the daemon."""

import argparse
import faulthandler
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotreload import __version__, failpoints
from hotreload.cli.args import add_set, add_verb, keep_remarks_out
from hotreload.errors import ConfigError
from hotreload.facts.heap import STARTING, collect_seldom, keep_what_is_there
from hotreload.facts.upstream import version_of

if TYPE_CHECKING:
    from hotreload.settings.load import Loaded, Settings


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "serve", run)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, a TOML file")
    add_set(parser)
    add_insecure_join(parser)


def add_insecure_join(parser: argparse.ArgumentParser) -> None:
    """Add --insecure-join, which is a setting."""
    parser.add_argument(
        "--insecure-join",
        action="append_const",
        const="engine.insecure_join=true",
        dest="set",
        default=[],
        help="let the hosts of one engine meet without a secret, where others reach them, too",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until stopped; return the exit code for the reason of the end."""
    collect_seldom(STARTING)  # before the imports, which make most of the objects that stay
    try:
        return _run(args)
    except ConfigError as fault:
        _refuse_clients(fault)
        raise
    finally:
        keep_what_is_there(STARTING)  # also after a start that failed


def _run(args: argparse.Namespace) -> int:
    import asyncio

    import uvloop

    from hotreload.features import FEATURES
    from hotreload.life.acceptance import read_settings
    from hotreload.observe.log import configure
    from hotreload.settings.load import config_file, load

    file = config_file(args.config, os.environ)
    loaded = load(file, args.set, os.environ, FEATURES)
    settings = loaded.settings
    configure(settings.log.level, settings.log.format)
    keep_remarks_out(settings.engine.device)
    logging.getLogger("hotreload").info("daemon.starting", extra=_start_facts(loaded, file))
    _write_stacks_on_abort()
    _arm(os.environ.get(failpoints.VARIABLE, ""))
    # A third of the time of asyncio's own loop goes into `send`, of a few bytes a token.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(
            _serve(settings, lambda: read_settings(file, args.set, os.environ, FEATURES).settings)
        )


def _start_facts(loaded: "Loaded", file: Path | None) -> dict[str, Any]:
    """Return the facts for the first log line: the version, addresses, and overridden settings."""
    settings = loaded.settings
    origins = {name: origin for name, origin in loaded.origins.items() if origin != "default"}
    in_file = f"file {file}"
    return {
        "version": __version__,
        "sglang_jax": version_of("sglang-jax"),
        "jax": version_of("jax"),
        "pid": os.getpid(),
        "socket": str(settings.server.socket),
        "tcp": settings.server.tcp,
        "metrics": settings.metrics.address,
        "state": str(settings.state.directory),
        "config": str(file.absolute()) if file else None,
        "overridden": {name: origin for name, origin in origins.items() if origin != in_file},
    }


def _refuse_clients(fault: ConfigError) -> None:
    """Refuse the clients in systemd's sockets: else they would start the daemon again."""
    if "LISTEN_FDS" not in os.environ:  # systemd passed none, or the daemon has them
        return
    from hotreload.server.http.server_sockets import refuse_clients, systemd_sockets

    with suppress(ConfigError):  # a second fault: the caller raises the first
        refuse_clients(systemd_sockets(), fault)


def _write_stacks_on_abort() -> None:
    """Write the stacks to stderr on SIGABRT: systemd's watchdog ends a hanging daemon with it."""
    with suppress(RuntimeError, OSError, ValueError):  # there may be no stderr
        faulthandler.enable()


def _arm(text: str) -> None:
    try:
        failpoints.arm(text)
    except ValueError as fault:
        raise ConfigError(f"{failpoints.VARIABLE}: {fault}") from fault
    if points := failpoints.list_armed():
        todo = f"unset {failpoints.VARIABLE}: failpoints are for tests alone"
        fields = {"points": points, "todo": todo}
        logging.getLogger("hotreload").critical("failpoints.armed", extra=fields)


async def _serve(settings: "Settings", read: "Callable[[], Settings]") -> int:
    from hotreload.engine.versions import imports_explained
    from hotreload.life.acceptance import check_at_start
    from hotreload.life.start.whereabouts import wait_for_state_mount
    from hotreload.threads import list_left_behind

    await wait_for_state_mount(settings.state.directory)
    settings = await check_at_start(settings)
    with imports_explained():
        from hotreload.daemon import Daemon

    code = await Daemon(settings, read).run()
    work = ", ".join(list_left_behind())
    if work:
        logging.getLogger("hotreload").warning("daemon.left_behind", extra={"work": work})
    if work or settings.engine.nnodes > 1:
        # A normal exit would kill threads in the middle of C++ code, which then aborts. On several
        # hosts JAX would also wait for hosts that are gone.
        sys.stderr.flush()
        os._exit(code)
    return code
