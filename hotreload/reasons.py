"""Reasons of the kernel to refuse a checkpoint: what each means, and what to do.

The table of docs/reference.md is made of them, and `hotreload explain` reads that.
"""

from collections.abc import Mapping

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
