"""Compares a checkpoint's names, shapes, dtypes, config and tokenizer with the served model.

A swap of leaves changes numbers and nothing else: whatever the running engine took from its
config or tokenizer at the start must be the same here.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import xxhash

from hotreload.checkpoint.config import contradictions, differences
from hotreload.checkpoint.findings import (
    Finding,
    Findings,
    Unfit,
    most_telling,
    quote,
    read_whole,
    shown_name,
)
from hotreload.checkpoint.known_names import (
    CASTABLE,
    CONFIG,
    SIDE_FILES,
    computed_dtype,
    ignorable_names,
    largest,
    matches,
)
from hotreload.checkpoint.safetensors import StoredTensor
from hotreload.checkpoint.settings import CheckSettings
from hotreload.checkpoint.survey import Survey, survey
from hotreload.errors import CheckpointCorrupt
from hotreload.types import Served, TensorSpec

_VOCABULARY = frozenset(
    {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json"}
)


@dataclass(frozen=True, slots=True)
class Policy(CheckSettings):
    """The misfits that the operator lets pass."""

    missing: Literal["reject", "live"] = "reject"
    """`live` lets a part of the tensors pass: the others stay as they are live."""


@dataclass(frozen=True, slots=True)
class Located:
    """A tensor and the file that holds it."""

    file: str
    tensor: StoredTensor


def tensors_by_name(survey: Survey) -> tuple[dict[str, Located], tuple[Finding, ...]]:
    """Return every tensor by its name; a name in two files is a finding."""
    found: dict[str, Located] = {}
    findings = Findings()
    for file, header in survey.headers.items():
        for tensor in header.tensors:
            first = found.setdefault(tensor.name, Located(file, tensor))
            if first.file != file:
                words = f"tensor {quote(tensor.name)} stands in {shown_name(first.file)} too"
                message = f"{shown_name(file)}: {words}"
                findings.add(Finding("duplicate", message, file, tensor.name))
    return found, findings.all()


def specs(found: Mapping[str, Located]) -> dict[str, TensorSpec]:
    """Return the shape and dtype of each tensor."""
    return {n: TensorSpec(held.tensor.shape, held.tensor.dtype) for n, held in found.items()}


def index_findings(survey: Survey, found: Mapping[str, Located]) -> Iterator[Finding]:
    """Tensors that the index places in a file that does not hold them."""
    for name, file in (survey.weight_map or {}).items():
        held = found.get(name)
        if file in survey.headers and (held is None or held.file != file):
            got = f"in {held.file}" if held else "nowhere"
            message = f"{shown_name(file)}: the index places tensor {quote(name)} here, it is {got}"
            yield Finding("index", message, file, name, file, got)


def tensor_findings(
    found: Mapping[str, Located], served: Served, policy: Policy
) -> Iterator[Finding]:
    """Findings that keep these tensors from taking the place of the served ones."""
    ignorable = (*served.ignorable, *policy.extra_tensors)
    for name, spec in served.tensors.items():
        held = found.get(name)
        if held is not None:
            yield from _compare_shape_and_dtype(held, spec, policy)
        elif policy.missing == "reject" and not matches(name, served.ignorable):
            shape = "" if spec.shape is None else f"{list(spec.shape)} "
            expected = f"{shape}{spec.dtype}"

            message = f"tensor {quote(name)} is missing, the engine serves {expected}"
            yield Finding("missing", message, None, name, expected)
    for name, held in found.items():
        if name not in served.tensors and not matches(name, ignorable):
            words = f"tensor {quote(name)} is not used by the engine; to allow it, set"
            message = f"{shown_name(held.file)}: {words} [checks] extra_tensors"
            yield Finding("extra", message, held.file, name)


def _compare_shape_and_dtype(held: Located, spec: TensorSpec, policy: Policy) -> Iterator[Finding]:
    tensor, where = held.tensor, f"{shown_name(held.file)}: tensor {quote(held.tensor.name)}"
    if spec.shape is not None and tensor.shape != tuple(spec.shape):
        got, due = str(list(tensor.shape)), str(list(spec.shape))
        message = f"{where} is {got}, the engine serves {due}"
        yield Finding("shape", message, held.file, tensor.name, due, got)
    castable = tensor.dtype in CASTABLE and spec.dtype in CASTABLE
    if tensor.dtype != spec.dtype and not (castable and policy.dtype_change == "cast"):
        advice = '; [checks] dtype_change = "cast" allows it' if castable else ""
        message = f"{where} is {tensor.dtype}, the engine serves {spec.dtype}{advice}"
        yield Finding("dtype", message, held.file, tensor.name, spec.dtype, tensor.dtype)


def config_findings(survey: Survey, served: Served) -> list[Finding]:
    """Fields of config.json that the running engine cannot take over. No config, no findings."""
    try:
        return list(differences(read_config(survey) or {}, served.config))
    except Unfit as unfit:
        return [unfit.finding]
    except RecursionError:
        return [Finding("config_mismatch", f"{CONFIG}: is nested too deep", CONFIG)]


def read_config(survey: Survey) -> dict[str, Any] | None:
    """Read the checkpoint's config.json; None if it has none, Unfit if it is no JSON object."""
    raw = _read(survey, CONFIG)
    if raw is None:
        return None
    try:
        stated = json.loads(raw)
    except (ValueError, RecursionError):
        stated = None
    if not isinstance(stated, dict):
        raise Unfit(Finding("config_mismatch", f"{CONFIG}: is no JSON object", CONFIG))
    return stated


def side_file_findings(survey: Survey, served: Served) -> tuple[list[Finding], list[str]]:
    """Findings for another vocabulary, notes for other settings: the engine keeps its own."""
    findings: list[Finding] = []
    notes: list[str] = []
    for name, digest in side_file_digests(survey).items():
        booted = served.side_files.get(name)
        words = f"{name}: differs from the one the engine was started with"
        if booted == digest:
            continue
        if booted is None:
            notes.append(f"{name}: the engine was started without one and goes on without it")
        elif name in _VOCABULARY:
            findings.append(Finding("tokenizer_mismatch", words, name, None, booted, digest))
        else:
            notes.append(f"{words} and keeps")
    return findings, notes


def side_file_digests(survey: Survey) -> dict[str, str]:
    """Digest each side file; the digest of a JSON file ignores its layout.

    config.json has none: its fields are compared one by one.
    """
    digests: dict[str, str] = {}
    for name in SIDE_FILES:
        try:
            raw = _read(survey, name)
        except Unfit:
            raw = b"unreadable"  # equal to no tokenizer; its file has a finding of its own
        if raw is not None:
            digests[name] = xxhash.xxh3_128_hexdigest(_canonical(name, raw))
    return digests


def _canonical(name: str, raw: bytes) -> bytes:
    if not name.endswith(".json"):
        return raw
    try:
        content = json.loads(raw)
        content = _vocabulary(content) if name == "tokenizer.json" else content
        return json.dumps(content, sort_keys=True).encode()
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return raw


def _vocabulary(tokenizer: dict[str, Any]) -> list[Any]:
    """Return the part that maps text to ids; merges as 'a b', which may be stored ['a', 'b']."""
    model = tokenizer["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges") or []]
    added = sorted((token["id"], token["content"]) for token in tokenizer.get("added_tokens") or [])
    return [model["vocab"], merges, added]


def _read(survey: Survey, name: str) -> bytes | None:
    file = next((file for file in survey.files if file.name == name), None)
    if file is None or file.identity.size > largest(name):  # the survey has a finding about that
        return None
    return read_whole(file.path, name, largest(name))


def read_alone(
    looked: Survey, tensors: Mapping[str, TensorSpec]
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Read the config.json, and find what contradicts it in the tensors beside it."""
    try:
        stated = read_config(looked) or {}
    except Unfit as unfit:
        return {}, (unfit.finding,)
    return stated, tuple(contradictions(stated, tensors)) if looked.whole else ()


def read_served_model(folder: Path) -> Served:
    """Return what an engine started from this folder serves; CheckpointCorrupt if it is damaged.

    A folder with a config and no weights (an engine may start with random ones) has no tensors.
    """
    looked = survey(folder)
    found, duplicates = tensors_by_name(looked)
    wrong = [*looked.findings, *duplicates]
    if not looked.shards and any(file.name == CONFIG for file in looked.files):
        wrong = [finding for finding in wrong if finding.code not in ("missing", "format")]
    tensors = specs(found)
    stated, contradicted = read_alone(looked, tensors)
    wrong += contradicted
    if wrong:
        finding = most_telling(wrong)
        raise CheckpointCorrupt(f"{folder.name}: {finding.message}", code=finding.code)
    return Served(tensors, stated, side_file_digests(looked), never_loaded(stated))


def never_loaded(stated: Mapping[str, Any]) -> frozenset[str]:
    """List patterns of names that a checkpoint may hold or lack: no engine loads them."""
    return ignorable_names(tied=bool(stated.get("tie_word_embeddings")))


# --- the tensors that a fingerprint counts --------------------------------------------------------
# A fingerprint is of the values as an engine serves them. Without a cast these are the file's.

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class CountedTensors:
    """The names of the tensors that count; none if that is unknown, and then the reason."""

    names: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()


def find_counted(
    looked: Survey,
    found: Mapping[str, Located],
    served: Served | None,
    policy: Policy,
    compute_in: str,
) -> CountedTensors:
    """Find the tensors that an engine loads, if it serves them without a cast."""
    stated = served.config if served is not None else _config_or_none(looked)
    if not stated:
        without = f"without a {CONFIG} nobody knows what an engine makes of the tensors"
        return _unknown(f"{without}: name the model with --against")
    never, needed = never_loaded(stated), served.tensors if served is not None else {}
    loaded = (name for name in found if not matches(name, never))
    names = frozenset(n for n in loaded if n in needed or not matches(n, policy.extra_tensors))
    # An engine gives this dtype to floats.
    named = compute_in if compute_in != AUTO else stated.get("dtype") or stated.get("torch_dtype")
    dtype = computed_dtype(named)
    cast = sorted(name for name in names if found[name].tensor.dtype != dtype)
    if not cast:
        return CountedTensors(names)
    first = f"{quote(cast[0])} of {found[cast[0]].tensor.dtype}"
    return _unknown(f"an engine casts {len(cast)} tensors to {dtype}, {first} for one")


def _config_or_none(looked: Survey) -> Mapping[str, Any] | None:
    try:
        return read_config(looked)
    except Unfit:  # it changed since it was compared: reading it all finds that
        return None


def _unknown(why: str) -> CountedTensors:
    return CountedTensors(unknown=(f"no fingerprint can be told of the files: {why}",))
