"""Finds the daemon that a verb talks to: by options, the environment, then the usual settings."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hotreload.client.places import no_address
from hotreload.client.synchronous import Client
from hotreload.errors import ConfigError, Misused
from hotreload.facts.names import DEFAULT_CONFIG, DEFAULT_SOCKET


@dataclass(frozen=True, slots=True)
class NamedSocket:
    """A socket's path, and the option, variable or file that named it."""

    path: Path
    origin: str


def find_daemon(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Client:
    """Return the daemon at the address that is named, else the one on the socket.

    Options come first: a variable that a shell exports may name another daemon.
    """
    is_here = args.socket is not None or args.config is not None
    url, origin = args.url, "--url"
    if url is None and not is_here:
        url, origin = environ.get("HOTRELOAD_URL") or None, "$HOTRELOAD_URL"
    if url is None:
        if args.key_file is not None or args.ca_file is not None:
            raise Misused("--key-file and --ca-file go with --url; a socket needs no key")
        named = find_socket(args, environ)
        return Client(named.path, named_by=named.origin)
    if "://" not in url:
        raise no_address(url, origin)
    return Client(
        url,
        key_file=args.key_file or environ.get("HOTRELOAD_KEY_FILE") or None,
        ca_file=args.ca_file or environ.get("HOTRELOAD_CA_FILE") or None,
        named_by=origin,
    )


def find_socket(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> NamedSocket:
    """Return the daemon's socket: by the options, then the environment, then the usual settings."""
    if args.socket is not None:
        return NamedSocket(Path(args.socket), "--socket")
    named = _named_in_environ(environ)
    if args.config is not None:
        return _in_settings(Path(args.config)) or named or _by_default(args.config)
    if environ.get("HOTRELOAD_SOCKET"):
        return NamedSocket(Path(environ["HOTRELOAD_SOCKET"]), "$HOTRELOAD_SOCKET")
    file = environ.get("HOTRELOAD_CONFIG")
    if file is None and os.access(DEFAULT_CONFIG, os.R_OK):
        file = str(DEFAULT_CONFIG)
    in_file = _in_settings(Path(file)) if file else None  # raises if it cannot be read
    return named or in_file or _by_default(file)


def _by_default(file: str | None) -> NamedSocket:
    return NamedSocket(DEFAULT_SOCKET, f"the default; {file} names none" if file else "the default")


def _in_settings(file: Path) -> NamedSocket | None:
    from hotreload.settings.given import read_toml  # imported only if there is a file

    server = read_toml(file).get("server", {})
    path = server.get("socket") if isinstance(server, dict) else None
    if path is None:
        return None
    if not isinstance(path, str):
        raise ConfigError(f"{file}: [server] socket must be a path")
    return NamedSocket(
        file.absolute().parent / Path(path).expanduser(), f"[server] socket in {file}"
    )


def _named_in_environ(environ: Mapping[str, str]) -> NamedSocket | None:
    name = "HOTRELOAD__SERVER__SOCKET"
    return NamedSocket(Path(environ[name]), f"${name}") if environ.get(name) else None
