"""`hotreload launch`: the daemon, by the command line of sglang-jax's own server."""

import argparse
import asyncio
import hashlib
import os
import sys
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from hotreload.checkpoint.digests import Digests
from hotreload.cli import serve
from hotreload.cli.args import add_verb, keep_remarks_out, show_download
from hotreload.cli.ops.check_config import as_lines
from hotreload.engine.upstream.command_line import read_command_line
from hotreload.engine.versions import imports_explained
from hotreload.errors import ConfigError
from hotreload.facts.files import hold_lock
from hotreload.facts.names import names_a_repo
from hotreload.features import FEATURES
from hotreload.life.saved.state_lock import LOCK, describe_user, user_of
from hotreload.settings.from_upstream import BY_DEFAULT, Launched, translate
from hotreload.settings.given import GivenValue, SettingPath, from_env, from_file
from hotreload.settings.load import Loaded, config_file, load
from hotreload.settings.tables import as_json
from hotreload.sources.huggingface import download


def add(verbs: Any) -> None:
    """Add the verb; its parser leaves unknown flags to upstream's."""
    parser = add_verb(verbs, "launch", run)
    parser.allow_abbrev = False  # a beginning may be that of a flag of upstream
    parser.set_defaults(further=[])
    parser.add_argument(
        "--model-path", "--model", metavar="MODEL", help="the model's folder, or its repo on a hub"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--watch", metavar="DIR", help="the folder where checkpoints appear")
    which.add_argument("--hub", metavar="ORG/NAME", help="the repo to follow, or ORG/NAME@BRANCH")
    parser.add_argument(
        "--probe",
        action="append",
        default=[],
        metavar="PROMPT[=>TEXT]",
        help="what new weights must answer, with this text in it; may be repeated",
    )
    parser.add_argument(
        "--hotreload-config", type=Path, metavar="FILE", help="further settings, a TOML file"
    )
    serve.add_insecure_join(parser)
    parser.add_argument(
        "--print-config", action="store_true", help="print the settings file that all this comes to"
    )


def run(args: argparse.Namespace) -> int:
    """Serve by the settings that the flags come to, or print these."""
    keep_remarks_out("auto")  # upstream's parser imports jax
    command = ["--model-path", args.model_path] if args.model_path is not None else []
    with imports_explained():
        given = read_command_line([*command, *args.further], "hotreload launch")
    launched = translate(given)
    file = config_file(args.hotreload_config, os.environ)
    sets = [*_values(args, launched, file), *args.set]
    loaded = load(file, sets, os.environ, FEATURES)
    state = loaded.settings.state.directory
    if loaded.origins.get("state.directory", "default") == "default":
        state = _state_of(loaded, launched)
        sets.append(GivenValue(("state", "directory"), str(state), BY_DEFAULT))
    if launched.api_key is not None:
        keys = state / "api-key"
        sets.append(GivenValue(("server", "api_keys_file"), str(keys), "--api-key"))
        if not args.print_config:
            _write_key(keys, launched.api_key)
    loaded = load(file, sets, os.environ, FEATURES)
    for note in (*launched.notes, *_about(loaded, launched.name)):
        print(f"hotreload: {note}", file=sys.stderr)
    if args.print_config:
        print(_as_toml(loaded))
        return 0
    return serve.run(argparse.Namespace(config=file, set=sets))


def _values(
    args: argparse.Namespace, launched: Launched, file: Path | None
) -> Iterator[GivenValue]:
    """Yield the values of the flags, and the defaults of all others."""
    told = {item.where for item in [*(from_file(file) if file else ()), *from_env(os.environ)]}
    values = [*launched.flags]
    values += _find_followed(args, launched, told)
    if args.probe:
        probes = [_probe(text) for text in args.probe]
        values.append(GivenValue(("probe",), probes, "--probe"))
    yield from values
    told |= {item.where for item in values}
    rank = next((item.value for item in values if item.where == ("engine", "node_rank")), 0)
    socket = _home(launched, rank) / "hotreload.sock"
    made = GivenValue(("server", "socket"), str(socket), BY_DEFAULT)
    yield from (item for item in (*launched.defaults, made) if item.where not in told)


def _home(launched: Launched, rank: int) -> Path:
    """Return the folder of the daemon on this port; each rank on a host has its own."""
    tcp = str(next(item.value for item in launched.defaults if item.where == ("server", "tcp")))
    home = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    return home / "hotreload" / (tcp.rpartition(":")[2] + (f"-{rank}" if rank else ""))


def _state_of(loaded: Loaded, launched: Launched) -> Path:
    """Return the state folder, one for each model and source.

    What was live last under another model, or in another folder, is nothing to start from.
    """
    model, source = launched.model, loaded.settings.source
    place = model if names_a_repo(model) else Path(model).expanduser().absolute()
    name = hashlib.sha256(f"{place}\n{source.repo or source.path}".encode()).hexdigest()[:8]
    return _home(launched, loaded.settings.engine.node_rank) / name


def _find_followed(
    args: argparse.Namespace, launched: Launched, told: Set[SettingPath]
) -> Iterator[GivenValue]:
    """Yield the model's place and the source's; a repo that is not followed is downloaded."""
    model, is_repo = launched.model, names_a_repo(launched.model)
    named = f"{model}@{launched.revision}" if launched.revision else model
    hub, origin = args.hub, "--hub"
    is_told = not told.isdisjoint({("source", "path"), ("source", "repo")})
    if is_repo and not (args.watch or args.hub or is_told):
        hub, origin = named, "--model-path"
    if hub is None and (args.watch or not is_told):
        origin = "--watch" if args.watch else "--model-path"
        yield GivenValue(("source", "path"), args.watch or model, origin)
    elif hub is not None:
        repo, _, revision = hub.partition("@")
        yield GivenValue(("source", "kind"), "huggingface", origin)
        yield GivenValue(("source", "repo"), repo, origin)
        if revision:
            yield GivenValue(("source", "revision"), revision, origin)
        if launched.downloads is not None:
            yield GivenValue(("source", "cache"), str(launched.downloads), "--download-dir")
    if not is_repo:
        yield GivenValue(("engine", "model"), model, "--model-path")
    elif hub is None or hub.partition("@")[0] != model:
        yield GivenValue(("engine", "model"), str(_download(named, launched)), "--model-path")


def _download(repo: str, launched: Launched) -> Path:
    with show_download(argparse.Namespace(cache=launched.downloads, token_file=None)) as options:
        return asyncio.run(download(repo, digests=Digests(), **options))


def _probe(text: str) -> dict[str, str]:
    prompt, arrow, contained = text.rpartition("=>")
    return {"prompt": prompt.strip(), "contains": contained.strip()} if arrow else {"prompt": text}


def _write_key(file: Path, key: str) -> None:
    """Write a key to a file that only its owner may read; ConfigError if that fails.

    The file of a daemon that runs is left alone: that daemon reads it again.
    """
    state = file.parent
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold_lock(state / LOCK, os.O_RDWR | os.O_CREAT):
            file.unlink(missing_ok=True)
            with open(file, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as written:
                written.write(f"{key}\n")
    except BlockingIOError:
        user = describe_user(user_of(state))
        raise ConfigError(
            f"{state} is in use by {user}; stop that one, or give another --port"
        ) from None
    except OSError as fault:
        raise ConfigError(f"--api-key: {file}: cannot be written: {fault.strerror}") from fault


def _about(loaded: Loaded, name: str) -> Iterator[str]:
    """Yield the differences from upstream's server."""
    settings = loaded.settings
    told = f"export HOTRELOAD_SOCKET={settings.server.socket}"
    page = f", or open http://{settings.server.tcp}/" if settings.server.tcp else ""
    yield f"follows {settings.source.name}; to look: `{told}`, then `hotreload status`{page}"
    if settings.model_name != name:
        yield f"clients call the model {settings.model_name!r}, and not {name!r}"
    if settings.server.tcp and settings.server.admin_keys_file is None:
        yield (
            f"the routes that change the server (/flush_cache, /pause_generation …) are closed on "
            f"{settings.server.tcp}, but not on the socket: [server] admin_keys_file opens them"
        )


def _as_toml(loaded: Loaded) -> str:
    """Return a settings file without the defaults."""
    kept = _but_defaults(as_json(loaded.settings), "", loaded)
    return "\n".join(as_lines(kept, loaded)).lstrip("\n")


def _but_defaults(table: dict[str, Any], above: str, loaded: Loaded) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        where = f"{above}{key}"
        if isinstance(value, dict):
            if inner := _but_defaults(value, f"{where}.", loaded):
                found[key] = inner
        elif loaded.origins.get(where, "default") != "default":
            found[key] = value
    if "probe" in found and not above:
        found["probe"] = [{k: v for k, v in row.items() if v is not None} for row in found["probe"]]
    return found
