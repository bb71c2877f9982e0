"""JSON schemas of the answers; `operations` says which route gives which."""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

PLAIN_TEXT: Schema = {"type": "string"}
MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_INTEGER: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_BOOLEAN: Schema = {"type": "boolean"}
_ANY_OBJECT: Schema = {"type": "object"}


def an_object(more: Mapping[str, Schema] | None = None, /, **properties: Schema) -> Schema:
    """An object that has all of these, and may have more."""
    known = {**properties, **(more or {})}
    return {"type": "object", "required": sorted(known), "properties": known}


def a_list(of: Schema) -> Schema:
    """A list of these."""
    return {"type": "array", "items": of}


def named(name: str) -> Schema:
    """One of SHAPES by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def either(*schemas: Schema) -> Schema:
    """Any of these."""
    return {"anyOf": list(schemas)}


MAYBE_INTEGER: Schema = {"type": ["integer", "null"]}
_STAMP = an_object(
    generation=_INTEGER, revision=PLAIN_TEXT, fingerprint=PLAIN_TEXT, weight_version=PLAIN_TEXT
)
_MODEL_STAMP = {"id": PLAIN_TEXT, "created": _INTEGER, "hotreload": named("Stamp")}
_USAGE = an_object(prompt_tokens=_INTEGER, completion_tokens=_INTEGER, total_tokens=_INTEGER)
_CHOICE = {"index": _INTEGER, "finish_reason": MAYBE_TEXT, "logprobs": {"type": ["object", "null"]}}
_ANSWERED = {
    "model": PLAIN_TEXT,
    "system_fingerprint": PLAIN_TEXT,
    "usage": named("Usage"),
    **_MODEL_STAMP,
}
_MESSAGE = an_object(role={"const": "assistant"}, content=MAYBE_TEXT, refusal=MAYBE_TEXT)
_TOOL_CALL = an_object(
    id=PLAIN_TEXT,
    type={"const": "function"},
    function=an_object(name=PLAIN_TEXT, arguments=PLAIN_TEXT),
)
_MESSAGE_OR_CALLS: Schema = {
    **_MESSAGE,
    "properties": {**_MESSAGE["properties"], "tool_calls": a_list(_TOOL_CALL)},
}
MAYBE_BY = either(named("By"), {"type": "null"})
_GATE = an_object(state={"enum": ["open", "holding", "sealed"]}, inside=_INTEGER, held=_INTEGER)
_LOADING: Mapping[str, Schema] = {
    "loader": {"enum": ["own", "upstream", None]},
    "loader_reason": MAYBE_TEXT,
    "leaves_staged": MAYBE_INTEGER,
    "leaves_shared": MAYBE_INTEGER,
    "bytes_read": MAYBE_INTEGER,
    "leaves_changed": MAYBE_INTEGER,
    "largest_change": {"type": ["number", "null"]},
    "most_changed": MAYBE_TEXT,
}
_ATTEMPT: Mapping[str, Schema] = {
    **_LOADING,
    "revision": PLAIN_TEXT,
    "label": MAYBE_TEXT,
    "outcome": PLAIN_TEXT,
    "reason": MAYBE_TEXT,
    "phases": _ANY_OBJECT,
    "pause_seconds": _NUMBER,
    "finished_at": PLAIN_TEXT,
    "generation": MAYBE_INTEGER,
    "weight_version": MAYBE_TEXT,
    "by": MAYBE_BY,
    "dry_run": _BOOLEAN,
    "unproven": MAYBE_TEXT,
    "bake": either(named("Bake"), {"type": "null"}),
    "behaviour": either(named("Behaviour"), {"type": "null"}),
}
_SIGNS = ("empty", "endless", "repeating")
_COUNTS = ("questions", "tokens", *_SIGNS, *(f"live_{sign}" for sign in _SIGNS))
_MAYBE_NUMBER: Schema = {"type": ["number", "null"]}
_DIVERGENCES = (
    *("mean_kl", "p99_kl", "same_top", "noise_kl", "noise_same_top"),
    *("perplexity_ratio", "entropy", "live_entropy"),
)
_SERVED: Mapping[str, Schema] = {
    "model_path": PLAIN_TEXT,
    "served_model_name": PLAIN_TEXT,
    "tokenizer_path": PLAIN_TEXT,
    "disaggregation_mode": {"const": "null"},
    **_STAMP["properties"],
}
_BUSY: Mapping[str, Schema] = {
    "dp_rank": _INTEGER,
    "num_running_reqs": _INTEGER,
    "num_waiting_reqs": _INTEGER,
}
_MODE: Schema = {"enum": ["overlap", "drain", None]}
_ANSWERING = a_list(an_object(generation=_INTEGER, requests=_INTEGER))

SHAPES: Mapping[str, Schema] = {
    "Problem": an_object(
        type=PLAIN_TEXT,
        title=PLAIN_TEXT,
        status=_INTEGER,
        detail=PLAIN_TEXT,
        code=PLAIN_TEXT,
        reasons=a_list(PLAIN_TEXT),
    ),
    "OpenAIError": an_object(
        error=an_object(message=PLAIN_TEXT, type=PLAIN_TEXT, param=MAYBE_TEXT, code=PLAIN_TEXT)
    ),
    "Stamp": _STAMP,
    "Usage": _USAGE,
    "Answer": an_object(text=PLAIN_TEXT, meta_info=named("Stamp")),
    "TextGeneration": an_object(generated_text=PLAIN_TEXT, hotreload=named("Stamp")),
    "Completion": an_object(
        _ANSWERED,
        object={"const": "text_completion"},
        choices=a_list(an_object(_CHOICE, text=PLAIN_TEXT)),
    ),
    "ChatCompletion": an_object(
        _ANSWERED,
        object={"const": "chat.completion"},
        choices=a_list(an_object(_CHOICE, message=_MESSAGE_OR_CALLS)),
    ),
    "Response": an_object(
        object={"const": "response"},
        id=PLAIN_TEXT,
        model=PLAIN_TEXT,
        created_at=_INTEGER,
        status={"enum": ["completed", "incomplete", "failed"]},
        error={"type": ["object", "null"]},
        incomplete_details={"type": ["object", "null"]},
        metadata=_ANY_OBJECT,
        output=a_list(an_object(id=PLAIN_TEXT, type={"enum": ["message", "function_call"]})),
        usage=an_object(input_tokens=_INTEGER, output_tokens=_INTEGER, total_tokens=_INTEGER),
        hotreload=named("Stamp"),
    ),
    "Model": an_object(_MODEL_STAMP, object={"const": "model"}, owned_by=PLAIN_TEXT),
    "ModelList": an_object(object={"const": "list"}, data=a_list(named("Model"))),
    "Status": an_object(
        state=PLAIN_TEXT,
        generation=MAYBE_INTEGER,
        revision=MAYBE_TEXT,
        label=MAYBE_TEXT,
        weight_version=MAYBE_TEXT,
        fingerprint=MAYBE_TEXT,
        live_since=MAYBE_TEXT,
        mode=_MODE,
        mode_reason=MAYBE_TEXT,
        answering=_ANSWERING,
        wanted=MAYBE_TEXT,
        waiting_for=MAYBE_TEXT,
        phase=MAYBE_TEXT,
        boot=either(named("Boot"), {"type": "null"}),
        last_attempt=either(named("Attempt"), {"type": "null"}),
        refused=a_list(_ANY_OBJECT),
        passed_over=a_list(an_object(label=PLAIN_TEXT, code=PLAIN_TEXT, reason=PLAIN_TEXT)),
        passed_over_total=_INTEGER,
        gate=_GATE,
        pause=either(named("Pause"), {"type": "null"}),
        pinned=_BOOLEAN,
        pin=MAYBE_BY,
        overruled=MAYBE_BY,
        loading=either(named("Loading"), {"type": "null"}),
        loader=an_object(trusted=_BOOLEAN, reason=MAYBE_TEXT),
        drifted={"type": ["object", "null"]},
        verified_at=MAYBE_TEXT,
        noise=_BOOLEAN,
        state_file=an_object(saved=_BOOLEAN, error=MAYBE_TEXT, since=MAYBE_TEXT),
        settings=an_object(read_at=MAYBE_TEXT, waiting=a_list(PLAIN_TEXT), error=MAYBE_TEXT),
        replicas=a_list(_ANY_OBJECT),
        rank=either(an_object(own=_INTEGER, of=_INTEGER, leader=PLAIN_TEXT), {"type": "null"}),
    ),
    "Boot": an_object(
        step=PLAIN_TEXT,
        doing=PLAIN_TEXT,
        revision=MAYBE_TEXT,
        label=MAYBE_TEXT,
        since=PLAIN_TEXT,
        step_since=PLAIN_TEXT,
        step_seconds=_NUMBER,
        usual_seconds={"type": ["number", "null"]},
        done=MAYBE_INTEGER,
        total=MAYBE_INTEGER,
        unit=MAYBE_TEXT,
    ),
    "Pause": an_object(
        since=PLAIN_TEXT,
        until=PLAIN_TEXT,
        limit=_NUMBER,
        mode=PLAIN_TEXT,
        running=PLAIN_TEXT,
        held=_INTEGER,
        by=named("By"),
    ),
    "Loading": an_object(_LOADING),
    "Attempt": an_object(_ATTEMPT),
    "Bake": an_object(
        outcome=PLAIN_TEXT,
        since=PLAIN_TEXT,
        until=PLAIN_TEXT,
        answers=_INTEGER,
        against=MAYBE_INTEGER,
        old_answers=_INTEGER,
        reason=MAYBE_TEXT,
        signals=a_list(_ANY_OBJECT),
    ),
    "Behaviour": an_object(
        dict.fromkeys(_COUNTS, _INTEGER),
        **dict.fromkeys(("agreement", "same_first", "length_ratio", "seconds"), _NUMBER),
        **dict.fromkeys(_DIVERGENCES, _MAYBE_NUMBER),
        first_difference=MAYBE_INTEGER,
        worst=a_list(PLAIN_TEXT),
    ),
    "PastAttempt": an_object(_ATTEMPT, replaced={"type": ["object", "null"]}),
    "By": an_object(
        verb=PLAIN_TEXT,
        uid=MAYBE_INTEGER,
        pid=MAYBE_INTEGER,
        at=PLAIN_TEXT,
        reason=PLAIN_TEXT,
    ),
    "History": an_object(attempts=a_list(named("PastAttempt")), pins=a_list(named("By"))),
    "Listing": an_object(
        checkpoints=a_list(named("Listed")),
        total=_INTEGER,
        states=_ANY_OBJECT,
        looked_at=MAYBE_TEXT,
        error=MAYBE_TEXT,
    ),
    "Listed": an_object(
        name=PLAIN_TEXT,
        state={
            "enum": [
                "live",
                "previous",
                "trying",
                "waiting",
                "refused",
                "older",
                "not a checkpoint",
            ]
        },
        why=MAYBE_TEXT,
        code=MAYBE_TEXT,
        since=MAYBE_TEXT,
        generation=MAYBE_INTEGER,
        step=MAYBE_INTEGER,
        epoch=MAYBE_INTEGER,
        bytes=MAYBE_INTEGER,
        written_at=MAYBE_TEXT,
        revision=MAYBE_TEXT,
        path=MAYBE_TEXT,
    ),
    "Leaves": an_object(leaves=_ANY_OBJECT, changed=a_list(PLAIN_TEXT)),
    "Change": an_object(ok=_BOOLEAN, outcome=MAYBE_TEXT),
    "Pinned": an_object(ok=_BOOLEAN, pinned=_BOOLEAN, generation=_INTEGER, daemon=_ANY_OBJECT),
    "Checksum": an_object(fingerprint=MAYBE_TEXT, generation=_INTEGER, changed=a_list(PLAIN_TEXT)),
    "ModelInfo": an_object(
        _SERVED,
        is_generation={"const": True},
        model_type=MAYBE_TEXT,
        architectures={"type": ["array", "null"], "items": PLAIN_TEXT},
    ),
    "ServerInfo": an_object(
        _SERVED,
        tp_size=_INTEGER,
        pp_size=_INTEGER,
        dp_size=_INTEGER,
        ep_size=_INTEGER,
        num_gpus=_INTEGER,
        version=MAYBE_TEXT,
        internal_states=a_list(_ANY_OBJECT),
    ),
    "LoadArray": a_list(
        an_object(_BUSY, num_reqs=_INTEGER, num_tokens=_INTEGER, num_pending_tokens=_INTEGER)
    ),
    "Loads": an_object(
        timestamp=PLAIN_TEXT,
        version=MAYBE_TEXT,
        loads=a_list(an_object(_BUSY, max_total_num_tokens=_INTEGER, token_usage=_NUMBER)),
    ),
    "FirstValues": a_list(either(_NUMBER, {"type": "array"}, {"type": "null"})),
    "Paused": an_object(
        status=PLAIN_TEXT, success=_BOOLEAN, mode=PLAIN_TEXT, mode_applied=PLAIN_TEXT
    ),
    "Continued": an_object(status=PLAIN_TEXT, success=_BOOLEAN, was_paused=_BOOLEAN),
    "IsPaused": an_object(is_paused=_BOOLEAN),
    "Checked": an_object(success=_BOOLEAN, message=PLAIN_TEXT),
    "Updated": an_object(
        success=_BOOLEAN, message=PLAIN_TEXT, num_paused_requests=_INTEGER, reason=MAYBE_TEXT
    ),
    "Version": an_object(
        weight_version=PLAIN_TEXT,
        generation=_INTEGER,
        revision=PLAIN_TEXT,
        fingerprint=PLAIN_TEXT,
        live_since=PLAIN_TEXT,
    ),
    "NotDone": an_object(
        success={"const": False}, message=PLAIN_TEXT, error=an_object(message=PLAIN_TEXT)
    ),
    "WorldSize": an_object(world_size=_INTEGER),
    "Flushed": an_object(success={"const": True}),
    "WeightsChecked": _ANY_OBJECT,
    "NotChecked": an_object(detail=PLAIN_TEXT, error=an_object(message=PLAIN_TEXT)),
    "Tokens": an_object(
        tokens={"type": "array"},
        count=either(_INTEGER, a_list(_INTEGER)),
        max_model_len=MAYBE_INTEGER,
        token_strs={"type": "null"},
    ),
    "Detokenized": an_object(
        text=either(PLAIN_TEXT, a_list(PLAIN_TEXT)), prompt=either(PLAIN_TEXT, a_list(PLAIN_TEXT))
    ),
    "ReloadStatus": an_object(
        state=PLAIN_TEXT,
        generation=MAYBE_INTEGER,
        mode=_MODE,
        answering=_ANSWERING,
        wanted=MAYBE_TEXT,
        waiting_for=MAYBE_TEXT,
        phase=MAYBE_TEXT,
        last_attempt=either(named("Attempt"), {"type": "null"}),
    ),
}
