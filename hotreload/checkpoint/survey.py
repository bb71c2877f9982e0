"""Finds the files that make up a checkpoint, and says whether they are all there.

Cheap: looks at names, sizes, the index and the headers, and reads no weights.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotreload.checkpoint.file_reader import Changed, Identity, OpenFile, Readable, identity_of
from hotreload.checkpoint.findings import (
    SHOWN_OF_A_KIND,
    Finding,
    Unfit,
    changed_finding,
    limit_findings,
    not_regular,
    read_whole,
    shown_name,
    too_large,
    with_file,
)
from hotreload.checkpoint.in_memory import InMemory
from hotreload.checkpoint.known_names import (
    CONFIG,
    INDEX,
    LARGEST_INDEX,
    LARGEST_POINTER,
    MAX_SHARDS,
    SIDE_FILES,
    SINGLE,
    find_disguise,
    foreign_weights,
    largest,
)
from hotreload.checkpoint.safetensors import (
    Header,
    numbered_shards,
    parse_header,
    parse_weight_map,
    read_header,
    size_finding,
)
from hotreload.figures import size as size_words

NO_WEIGHTS = "no *.safetensors or index yet"

Roots = Path | Sequence[Path] | None
"""The folders a checkpoint and its files must lie in, links resolved; None allows any."""


@dataclass(frozen=True, slots=True)
class ServingFile:
    """A file the engine would load, as it was found; `path` has its links resolved."""

    name: str
    path: Path
    identity: Identity
    memory: InMemory | None = None
    """The tensors in memory that hold its bytes, if they lie on no disk."""

    def read_by[T](self, work: Callable[[Readable], T]) -> T:
        """Do the work on what holds the file; Unfit if it cannot be read, or is another one now."""

        def on_same(opened: Readable) -> T:
            if not opened.identity.is_written_like(self.identity):
                words = "it was replaced or written to since it was looked at"
                raise changed_finding(self.name, words)
            return work(opened)

        if self.memory is None:
            return with_file(self.path, self.name, on_same, was_regular=True)
        try:
            return on_same(self.memory.open())
        except Changed as how:
            raise changed_finding(self.name, str(how)) from how


@dataclass(frozen=True, slots=True)
class Survey:
    """One look at a folder. Equal `files` mean that no file was touched in between."""

    folder: Path
    files: tuple[ServingFile, ...]
    waiting_for: str | None
    """The part that is still missing, in words; None if the checkpoint is complete or past help."""
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    shards: tuple[str, ...]
    headers: Mapping[str, Header] = field(repr=False)
    weight_map: Mapping[str, str] | None = field(repr=False)

    @property
    def whole(self) -> bool:
        """Every shard's header was read, so names and shapes can be compared."""
        return bool(self.shards) and all(name in self.headers for name in self.shards)

    def header_of(self, file: ServingFile) -> Header | None:
        """Return the header to examine a shard by, if the file has the size that it states."""
        header = self.headers.get(file.name)
        is_whole = header is not None and header.file_size == file.identity.size
        return header if is_whole else None


NO_FILES = Survey(Path(), (), None, (), (), (), {}, None)


def survey(folder: Path, root: Roots = None) -> Survey:
    """Look at a folder as a checkpoint; never raises for what it finds there."""
    return _Surveyor(folder, root).survey()


def survey_memory(memory: InMemory) -> Survey:
    """Look at tensors in memory as a checkpoint of one file, and no side files."""
    headers: dict[str, Header] = {}
    findings: list[Finding] = []
    try:
        headers[memory.name] = parse_header(memory.header, memory.name)
    except Unfit as unfit:
        findings.append(unfit.finding)
    files = (ServingFile(memory.name, Path(), memory.identity, memory),)
    return Survey(Path(), files, None, tuple(findings), (), (memory.name,), headers, None)


class _Surveyor:
    """Collects what one look at a folder shows."""

    def __init__(self, folder: Path, root: Roots) -> None:
        self._folder = folder
        roots = [root] if isinstance(root, Path) else root
        self._roots = None if roots is None else [*map(os.path.realpath, roots)]
        self._files: list[ServingFile] = []
        self._waiting: list[str] = []
        self._findings: list[Finding] = []
        self._notes: list[str] = []
        self._headers: dict[str, Header] = {}

    def survey(self) -> Survey:
        weight_map = None
        shards: list[str] = []
        names = self._names()
        if names:
            index = self._read_index(names)
            if index is not None:
                weight_map, wrong = parse_weight_map(index, INDEX)
                self._findings += wrong
            shards = self._shards(names, weight_map)
            self._look_at(names, shards, "missing" if weight_map is None else "index")
        return Survey(
            self._folder,
            tuple(sorted(self._files, key=lambda file: file.name)),
            self._words(),
            limit_findings(self._findings),
            tuple(self._notes),
            tuple(shards),
            self._headers,
            weight_map,
        )

    def _words(self) -> str | None:
        if not self._waiting:
            return None
        more = len(self._waiting) - 1
        return self._waiting[0] + (f" (and {more} more)" if more else "")

    def _names(self) -> list[str]:
        try:
            self._folder = Path(os.path.realpath(self._folder))
            if not _inside(str(self._folder), self._roots):
                self._escape(self._folder.name, str(self._folder))
                return []
            names = sorted(os.listdir(self._folder))
        except OSError as error:
            self._wait("io", None, f"the folder cannot be read: {error.strerror}")
            return []
        if not names:
            self._wait("missing", None, NO_WEIGHTS)
        return names

    def _read_index(self, names: list[str]) -> Any:
        if INDEX not in names or not self._take(INDEX):
            return None
        try:
            return json.loads(read_whole(self._files[-1].path, INDEX, LARGEST_INDEX))
        except Unfit as unfit:
            self._blame(unfit, unfit.finding.message)
        except (ValueError, RecursionError):
            self._wait("index", INDEX, f"{INDEX}: not valid JSON")
        return None

    def _shards(self, names: list[str], weight_map: Mapping[str, str] | None) -> list[str]:
        present = [n for n in names if n.endswith(".safetensors") and not n.startswith(".")]
        wanted: set[str] | None
        if weight_map is not None:
            wanted, named_by = set(weight_map.values()), "the index"
        elif SINGLE in present:
            wanted, named_by = {SINGLE}, "the checkpoint"
        else:
            wanted, named_by = numbered_shards(present), "the checkpoint"
        if wanted is None or len(wanted) > MAX_SHARDS:
            speaks = "the index speaks" if weight_map is not None else "its shards' names speak"
            words = f"{speaks} of more than {MAX_SHARDS} shards, which are not read"
            self._findings.append(Finding("index", words))
            return []
        if not wanted and INDEX not in names:
            foreign = foreign_weights(names, is_meant=True)
            verdict = f"no *.safetensors; it {foreign.words}" if foreign else ""
            self._wait("format" if foreign else "missing", None, NO_WEIGHTS, verdict)
        self._note_strays([name for name in present if wanted and name not in wanted], named_by)
        return sorted(wanted)

    def _note_strays(self, strays: list[str], named_by: str) -> None:
        names = strays[:SHOWN_OF_A_KIND]
        self._notes += [f"{shown_name(name)}: not part of {named_by}, ignored" for name in names]
        if len(strays) > SHOWN_OF_A_KIND:
            self._notes.append(f"and {len(strays) - SHOWN_OF_A_KIND} more such files")

    def _look_at(self, names: list[str], shards: list[str], absent: str) -> None:
        for name in shards:
            if self._take(name, absent):
                self._look_at_header(self._files[-1])
        for name in (CONFIG, *SIDE_FILES):
            if name in names and self._take(name):
                self._look_at_side_file(self._files[-1])

    def _take(self, name: str, absent: str = "missing") -> bool:
        """Add the file, unless it is a trap; `absent` is the code when it is not there."""
        try:
            real = os.path.realpath(self._folder / name, strict=True)
            status = os.stat(real)
        except FileNotFoundError:
            by = "named by the index, " if absent == "index" else ""
            words = f"{shown_name(name)}: {by}not there"
            self._wait(absent, name, f"waiting for {shown_name(name)}", words)
            return False
        except OSError as error:
            self._wait("io", name, f"{shown_name(name)}: {error.strerror}")
            return False
        if not _inside(real, self._roots):
            self._escape(name, real)
            return False
        trap = not_regular(name, status)
        if trap is not None:
            self._findings.append(trap)
            return False
        self._files.append(ServingFile(name, Path(real), identity_of(status)))
        return True

    def _look_at_header(self, file: ServingFile) -> None:
        def work(opened: OpenFile) -> None:
            header = read_header(opened)
            self._headers[file.name] = header
            wrong = size_finding(header, opened)
            if wrong is not None:
                raise wrong

        try:
            with_file(file.path, file.name, work)
        except Unfit as unfit:
            self._blame(unfit, self._progress(file))

    def _progress(self, file: ServingFile) -> str:
        header, size = self._headers.get(file.name), size_words(file.identity.size)
        if header is None:
            return f"{shown_name(file.name)}: {size} written, no whole header yet"
        missing = header.file_size - file.identity.size
        if missing > 0 and size == size_words(header.file_size):
            return f"{shown_name(file.name)}: {size} written, {missing} bytes are missing"
        return f"{shown_name(file.name)}: {size} of {size_words(header.file_size)} written"

    def _look_at_side_file(self, file: ServingFile) -> None:
        if pointer := _pointer(file):
            self._findings.append(Finding("io", f"{file.name}: {pointer}", file.name))
        elif file.name.endswith(".json") and not _ends_like_json(file):
            self._wait(None, file.name, f"{file.name}: not written to its end")
        limit = largest(file.name)
        if file.identity.size > limit:
            self._findings.append(too_large(file.name, file.identity.size, limit))

    def _blame(self, unfit: Unfit, words: str) -> None:
        self._findings.append(unfit.finding)
        if unfit.unfinished or unfit.finding.code == "changed":
            self._waiting.append(words)

    def _escape(self, name: str, real: str) -> None:
        words = f"{shown_name(name)}: leads to {shown_name(real)}, outside of the allowed folders"
        self._findings.append(Finding("unsafe_path", words, name, got=real))

    def _wait(self, code: str | None, name: str | None, words: str, verdict: str = "") -> None:
        """Note a part that is still missing; if it never comes, the refusal's reason is `code`."""
        self._waiting.append(words)
        if code is not None:
            self._findings.append(Finding(code, verdict or words, name))


def _inside(real: str, roots: Sequence[str] | None) -> bool:
    return roots is None or any(Path(real).is_relative_to(root) for root in roots)


def _ends_like_json(file: ServingFile) -> bool:
    def work(opened: OpenFile) -> bytes:
        length = min(64, opened.identity.size)
        return opened.read(length, opened.identity.size - length)

    try:
        return with_file(file.path, file.name, work).rstrip().endswith((b"}", b"]"))
    except Unfit:
        return False


def _pointer(file: ServingFile) -> str | None:
    """Say what a small file really is, if it only has the name of another kind."""
    if file.identity.size > LARGEST_POINTER:
        return None
    with suppress(Unfit):
        return find_disguise(read_whole(file.path, file.name, LARGEST_POINTER))
    return None
