"""An attempt: its caller, what came of it, and the reasons of the kernel to refuse one.

The table of docs/reference.md is made of these reasons, and `hotreload explain` reads that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hotreload.types import LoadFacts, Outcome, Phase, Reason, Revision

START = "start"
"""The verb of what a start of the daemon tries."""
ROLLBACK = "rollback"
"""The verb of a rollback; of one that also pins, too."""


@dataclass(frozen=True, slots=True)
class By:
    """The caller of a change, with the time and the caller's reason."""

    verb: str
    """reload, rollback, perturb, version, pin or unpin; START for what a start tried, the name of a
    feature for what it did because of clients' answers."""
    uid: int | None
    pid: int | None
    at: float
    """Wall-clock seconds."""
    reason: str = ""
    address: str = ""
    """The caller's address over TCP, with an admin key: the kernel knows no user then."""
    route: str = ""
    """The route of another server's API that the caller used; empty for our own."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The findings of one judge on new weights."""

    name: str
    """The judge's; PROBE for the kernel's own."""
    outcome: str = "none"
    """A word of that judge's; `none` where it was not asked."""
    words: str = ""
    """The same for people."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The fields that it adds to the attempt's document; JSON has a word for each of them."""


PROBE = "probe"
NOT_PROBED = Evidence(PROBE, facts={"unproven": None})
"""`unproven` is the reason why a dry run could not ask the probes."""


def replace_evidence(evidence: tuple[Evidence, ...], new: Evidence) -> tuple[Evidence, ...]:
    """Put new evidence in the place of what has its name, else at the end."""
    if new.name not in [each.name for each in evidence]:
        return (*evidence, new)
    return tuple(new if each.name == new.name else each for each in evidence)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to make a revision live, and what came of it."""

    revision: Revision
    outcome: Outcome
    reason: Reason | None
    phases: Mapping[Phase, float]
    pause_seconds: float
    finished_at: float
    generation: int | None = None
    rolled_back: bool = False
    fingerprints: tuple[str, str] | None = None
    """Of what was live before and after it, if it went live."""
    by: By | None = None
    """The operator or feature that ordered it, or the start; None if the source wished it."""
    loading: LoadFacts | None = None
    """The way its weights were staged, if they were."""
    dry_run: bool = False
    """True if nothing was to go live or be refused whatever came of it."""
    version: str = ""
    """The version of the attempt's weights; empty if they got none and never answered."""
    evidence: tuple[Evidence, ...] = (NOT_PROBED,)
    """The findings of each judge; those of judges that are gone are kept."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """The fields that all evidence adds to its document."""
        return {name: fact for each in self.evidence for name, fact in each.facts.items()}

    def with_evidence(self, new: Evidence) -> "Attempt":
        """Return it with new evidence on its weights."""
        return replace(self, evidence=replace_evidence(self.evidence, new))

    @property
    def is_of_a_start(self) -> bool:
        """True if a start of the daemon tried it, before anything was live."""
        return self.by is not None and self.by.verb == START


@dataclass(frozen=True, slots=True)
class Refusal:
    """A revision that is not tried again until its bytes change or an operator forces it."""

    revision: Revision
    reason: Reason
    at: float
    probes: str = ""
    """A digest of the probes that it failed: by others it is asked once more."""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A folder that was probably meant as a checkpoint and is never tried, and why."""

    label: str
    reason: Reason


# --- reasons --------------------------------------------------------------------------------------

type ReasonWords = Mapping[str, tuple[str, str]]
"""The meaning of a code and what to do about it, by the code."""

REJECTIONS: ReasonWords = {
    "truncated": (
        "a file is shorter than its header says",
        "copy it again, then rename or mark it",
    ),
    "bad_header": (
        "a file is no sound safetensors file, or its header is over 16 MiB or 100,000 tensors",
        "write it again; look for a broken writer or disk",
    ),
    "index": (
        "the index cannot be read, names missing files, disagrees with the shards, or has over "
        "4096 shards",
        "write index and shards again, from one run",
    ),
    "duplicate": (
        "one tensor appears twice",
        "remove stray shards of another run",
    ),
    "missing": (
        "tensors or shards are not there",
        "find the rank that did not write; or it is of another model",
    ),
    "extra": (
        "it holds tensors the engine does not load",
        "if harmless, name them in `[checks] extra_tensors`",
    ),
    "shape": (
        "a tensor has another shape than the live one",
        "start a daemon with that model",
    ),
    "dtype": (
        "a tensor has another dtype than the live one",
        'save it in that dtype, or set `[checks] dtype_change = "cast"`',
    ),
    "config_mismatch": (
        "`config.json` differs in a field that new weights cannot change, or its sizes are not "
        "those of the weights",
        "if the model really changed, restart with it as `[engine] model`",
    ),
    "tokenizer_mismatch": (
        "it brings another vocabulary than the engine's",
        "if the model really changed, restart with it as `[engine] model`",
    ),
    "nonfinite": (
        "the weights hold NaN or Inf",
        "look at the training run: it has probably diverged",
    ),
    "zeros": (
        "every value of every tensor is zero",
        "look at how it was saved",
    ),
    "drift": (
        "a tensor's norm changed by more than `[checks] max_drift`",
        "look at the training run; if the change is meant, raise the factor",
    ),
    "digest": (
        "a file from the hub did not match its digest, three times",
        "look at the network and at proxies; else push again",
    ),
    "io": (
        "a file could not be read, is a Git LFS pointer, or is larger than such a file has "
        "reason to be",
        "look at the storage and the files' modes. It is tried again when the files change; "
        "else force it",
    ),
    "unsafe_path": (
        "a link or name leads out of the allowed folders, or a file is no regular file",
        "find out where it comes from. Allowed: `[source] path`, `[engine] model`",
    ),
    "incompatible": (
        "the engine's own loader failed on it, or its leaves cannot be placed",
        "read the message; if `hotreload check --against` finds nothing, report it",
    ),
    "probe": (
        "it answered a probe badly, or too late, before it answered any client",
        "read prompt and answer in the reason. Good answer: correct the `[[probe]]` and send "
        "SIGHUP; what is wanted is then tried again",
    ),
    "crashed": (
        "the process died twice while it tried this one",
        "look for the OOM killer and at the end of the log; then force it",
    ),
    "rolled_back": (
        "an operator rolled back from it",
        "nothing; to serve it again, force it",
    ),
    "nonfinite_answers": (
        "it made NaN of clients' prompts, and `[checks] on_nonfinite_answers` is `rollback`",
        "look at the training run; add a `[[probe]]` like that prompt",
    ),
    "internal": (
        "a fault of hotreload; the log has the traceback",
        "report it",
    ),
    "format": (
        "weights in a format that hotreload does not read: pickles, Orbax, DeepSpeed",
        "save as safetensors",
    ),
    "no_step": (
        "the newest files lie in a folder whose name has no step",
        "rename it `step_N`, or set `[source] order` or `pattern`; `hotreload reload NAME` "
        "takes it as it is",
    ),
    "stray": (
        "the watched folder itself holds newer weights, beside checkpoint folders",
        "move them into a folder of their own",
    ),
}
"""Metrics export each from the start at 0."""
