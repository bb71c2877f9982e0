"""Tensors in memory as a checkpoint of one file, which is read where a file would be."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from hotreload.checkpoint.arrays.in_memory import InMemory, OpenedMemory
from hotreload.checkpoint.file_findings import changed_finding, with_file
from hotreload.checkpoint.file_reader import Changed, Readable
from hotreload.checkpoint.findings import Finding, Unfit, quote
from hotreload.checkpoint.safetensors import Header, parse_header
from hotreload.checkpoint.survey import ServingFile, Survey


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


def with_serving[T](file: ServingFile, work: Callable[[Readable], T]) -> T:
    """Do the work on what holds the file; Unfit when it cannot be read, or is another one now."""

    def on_same(opened: Readable) -> T:
        _require_same(opened, file)
        return work(opened)

    if file.memory is not None:
        return _with_memory(file.memory, on_same)
    return with_file(file.path, file.name, on_same, was_regular=True)


def in_given_names(findings: Iterable[Finding], memory: InMemory) -> tuple[Finding, ...]:
    """Add to each finding the name that the caller gave its tensor."""
    return tuple(
        replace(each, message=f"{each.message} (it was given as {quote(memory.called[name])})")
        if (name := each.tensor or "") in memory.called
        else each
        for each in findings
    )


def _require_same(opened: Readable, file: ServingFile) -> None:
    """Unfit `changed` when the open file is not the one the survey saw, or was written to."""
    if not opened.identity.is_written_like(file.identity):
        raise changed_finding(file.name, "it was replaced or written to since it was looked at")


def _with_memory[T](memory: InMemory, work: Callable[[OpenedMemory], T]) -> T:
    """Do the work on tensors in memory; Unfit when one of them cannot be read any more."""
    try:
        return work(memory.open())
    except Changed as how:
        raise changed_finding(memory.name, str(how)) from how
