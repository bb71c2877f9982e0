"""JSON schemas of the answers; `operations` assigns them to the routes."""

from collections.abc import Mapping

from hotreload.server.api_schema.schema_parts import (
    A_BOOLEAN,
    A_NUMBER,
    AN_INTEGER,
    ANY_OBJECT,
    MAYBE_INTEGER,
    MAYBE_TEXT,
    PLAIN_TEXT,
    Schema,
    a_list,
    an_object,
    either,
    ref_to,
)

_STAMP = an_object(
    generation=AN_INTEGER, revision=PLAIN_TEXT, fingerprint=PLAIN_TEXT, weight_version=PLAIN_TEXT
)
_MODEL_STAMP = {"id": PLAIN_TEXT, "created": AN_INTEGER, "hotreload": ref_to("Stamp")}
_USAGE = an_object(prompt_tokens=AN_INTEGER, completion_tokens=AN_INTEGER, total_tokens=AN_INTEGER)
_CHOICE = {
    "index": AN_INTEGER,
    "finish_reason": MAYBE_TEXT,
    "logprobs": {"type": ["object", "null"]},
}
_ANSWERED = {
    "model": PLAIN_TEXT,
    "system_fingerprint": PLAIN_TEXT,
    "usage": ref_to("Usage"),
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
MAYBE_BY = either(ref_to("By"), {"type": "null"})
_GATE = an_object(state={"enum": ["open", "holding", "sealed"]}, inside=AN_INTEGER, held=AN_INTEGER)
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
    "phases": ANY_OBJECT,
    "pause_seconds": A_NUMBER,
    "finished_at": PLAIN_TEXT,
    "generation": MAYBE_INTEGER,
    "weight_version": MAYBE_TEXT,
    "by": MAYBE_BY,
    "dry_run": A_BOOLEAN,
    "unproven": MAYBE_TEXT,
}
_SERVED: Mapping[str, Schema] = {
    "model_path": PLAIN_TEXT,
    "served_model_name": PLAIN_TEXT,
    "tokenizer_path": PLAIN_TEXT,
    "disaggregation_mode": {"const": "null"},
    **_STAMP["properties"],
}
_BUSY: Mapping[str, Schema] = {
    "dp_rank": AN_INTEGER,
    "num_running_reqs": AN_INTEGER,
    "num_waiting_reqs": AN_INTEGER,
}
_MODE: Schema = {"enum": ["overlap", "drain", None]}
_ANSWERING = a_list(an_object(generation=AN_INTEGER, requests=AN_INTEGER))

SHAPES: Mapping[str, Schema] = {
    "Problem": an_object(
        type=PLAIN_TEXT,
        title=PLAIN_TEXT,
        status=AN_INTEGER,
        detail=PLAIN_TEXT,
        code=PLAIN_TEXT,
        reasons=a_list(PLAIN_TEXT),
    ),
    "OpenAIError": an_object(
        error=an_object(message=PLAIN_TEXT, type=PLAIN_TEXT, param=MAYBE_TEXT, code=PLAIN_TEXT)
    ),
    "Stamp": _STAMP,
    "Usage": _USAGE,
    "Answer": an_object(text=PLAIN_TEXT, meta_info=ref_to("Stamp")),
    "TextGeneration": an_object(generated_text=PLAIN_TEXT, hotreload=ref_to("Stamp")),
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
        created_at=AN_INTEGER,
        status={"enum": ["completed", "incomplete", "failed"]},
        error={"type": ["object", "null"]},
        incomplete_details={"type": ["object", "null"]},
        metadata=ANY_OBJECT,
        output=a_list(an_object(id=PLAIN_TEXT, type={"enum": ["message", "function_call"]})),
        usage=an_object(input_tokens=AN_INTEGER, output_tokens=AN_INTEGER, total_tokens=AN_INTEGER),
        hotreload=ref_to("Stamp"),
    ),
    "Model": an_object(_MODEL_STAMP, object={"const": "model"}, owned_by=PLAIN_TEXT),
    "ModelList": an_object(object={"const": "list"}, data=a_list(ref_to("Model"))),
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
        boot=either(ref_to("Boot"), {"type": "null"}),
        last_attempt=either(ref_to("Attempt"), {"type": "null"}),
        refused=a_list(ANY_OBJECT),
        passed_over=a_list(an_object(label=PLAIN_TEXT, code=PLAIN_TEXT, reason=PLAIN_TEXT)),
        passed_over_total=AN_INTEGER,
        gate=_GATE,
        pinned=A_BOOLEAN,
        pin=MAYBE_BY,
        overruled=MAYBE_BY,
        loading=either(ref_to("Loading"), {"type": "null"}),
        loader=an_object(trusted=A_BOOLEAN, reason=MAYBE_TEXT),
        drifted={"type": ["object", "null"]},
        verified_at=MAYBE_TEXT,
        noise=A_BOOLEAN,
        state_file=an_object(saved=A_BOOLEAN, error=MAYBE_TEXT, since=MAYBE_TEXT),
        settings=an_object(read_at=MAYBE_TEXT, waiting=a_list(PLAIN_TEXT), error=MAYBE_TEXT),
        replicas=a_list(ANY_OBJECT),
        rank=either(an_object(own=AN_INTEGER, of=AN_INTEGER, leader=PLAIN_TEXT), {"type": "null"}),
    ),
    "Boot": an_object(
        step=PLAIN_TEXT,
        doing=PLAIN_TEXT,
        revision=MAYBE_TEXT,
        label=MAYBE_TEXT,
        since=PLAIN_TEXT,
        step_since=PLAIN_TEXT,
        step_seconds=A_NUMBER,
        usual_seconds={"type": ["number", "null"]},
        done=MAYBE_INTEGER,
        total=MAYBE_INTEGER,
        unit=MAYBE_TEXT,
    ),
    "Loading": an_object(_LOADING),
    "Attempt": an_object(_ATTEMPT),
    "Verdict": an_object(
        {"pass": A_BOOLEAN},
        verdict=PLAIN_TEXT,
        why=PLAIN_TEXT,
        wanted=MAYBE_TEXT,
        wanted_label=MAYBE_TEXT,
        live=either(ANY_OBJECT, {"type": "null"}),
        attempt=either(ref_to("PastAttempt"), {"type": "null"}),
    ),
    "PastAttempt": an_object(_ATTEMPT, replaced={"type": ["object", "null"]}),
    "By": an_object(
        verb=PLAIN_TEXT,
        uid=MAYBE_INTEGER,
        pid=MAYBE_INTEGER,
        at=PLAIN_TEXT,
        reason=PLAIN_TEXT,
    ),
    "History": an_object(attempts=a_list(ref_to("PastAttempt")), pins=a_list(ref_to("By"))),
    "Listing": an_object(
        checkpoints=a_list(ref_to("Listed")),
        total=AN_INTEGER,
        states=ANY_OBJECT,
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
    "Leaves": an_object(leaves=ANY_OBJECT, changed=a_list(PLAIN_TEXT)),
    "Change": an_object(ok=A_BOOLEAN, outcome=MAYBE_TEXT),
    "Pinned": an_object(ok=A_BOOLEAN, pinned=A_BOOLEAN, generation=AN_INTEGER, daemon=ANY_OBJECT),
    "Checksum": an_object(
        fingerprint=MAYBE_TEXT, generation=AN_INTEGER, changed=a_list(PLAIN_TEXT)
    ),
    "ModelInfo": an_object(
        _SERVED,
        is_generation={"const": True},
        model_type=MAYBE_TEXT,
        architectures={"type": ["array", "null"], "items": PLAIN_TEXT},
    ),
    "ServerInfo": an_object(
        _SERVED,
        tp_size=AN_INTEGER,
        pp_size=AN_INTEGER,
        dp_size=AN_INTEGER,
        ep_size=AN_INTEGER,
        num_gpus=AN_INTEGER,
        version=MAYBE_TEXT,
        internal_states=a_list(ANY_OBJECT),
    ),
    "LoadArray": a_list(
        an_object(_BUSY, num_reqs=AN_INTEGER, num_tokens=AN_INTEGER, num_pending_tokens=AN_INTEGER)
    ),
    "Loads": an_object(
        timestamp=PLAIN_TEXT,
        version=MAYBE_TEXT,
        loads=a_list(an_object(_BUSY, max_total_num_tokens=AN_INTEGER, token_usage=A_NUMBER)),
    ),
    "FirstValues": a_list(either(A_NUMBER, {"type": "array"}, {"type": "null"})),
    "Checked": an_object(success=A_BOOLEAN, message=PLAIN_TEXT),
    "Updated": an_object(
        success=A_BOOLEAN, message=PLAIN_TEXT, num_paused_requests=AN_INTEGER, reason=MAYBE_TEXT
    ),
    "Version": an_object(
        weight_version=PLAIN_TEXT,
        generation=AN_INTEGER,
        revision=PLAIN_TEXT,
        fingerprint=PLAIN_TEXT,
        live_since=PLAIN_TEXT,
    ),
    "NotDone": an_object(
        success={"const": False}, message=PLAIN_TEXT, error=an_object(message=PLAIN_TEXT)
    ),
    "WorldSize": an_object(world_size=AN_INTEGER),
    "Flushed": an_object(success={"const": True}),
    "WeightsChecked": ANY_OBJECT,
    "NotChecked": an_object(detail=PLAIN_TEXT, error=an_object(message=PLAIN_TEXT)),
    "Tokens": an_object(
        tokens={"type": "array"},
        count=either(AN_INTEGER, a_list(AN_INTEGER)),
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
        last_attempt=either(ref_to("Attempt"), {"type": "null"}),
    ),
}
