"""Every route: what it takes and what it may answer. The kinds of fields are those that bodies are
checked by, so what stands here of a request is what happens to it."""

from collections.abc import Mapping
from dataclasses import replace

from hotreload.server import admin
from hotreload.server.answerer import GENERATION_NUMBER, MIN_GENERATION_HEADER
from hotreload.server.api_schema import known_fields
from hotreload.server.api_schema.known_fields import KnownFields
from hotreload.server.api_schema.operation import (
    BY_SECRET,
    EVENT_STREAM_TYPE,
    HTML_TYPE,
    JSON_TYPE,
    TEXT_TYPE,
    TO_ALL,
    Media,
    Operation,
    Operations,
    Parameter,
    for_administrators,
)
from hotreload.server.api_schema.order_operations import ORDER_OPERATIONS
from hotreload.server.api_schema.schema_parts import PLAIN_TEXT, Schema, a_list, either, ref_to
from hotreload.server.http.request_body import BOOLEAN, STRING, Kind, whole_number
from hotreload.server.http.request_log import FINGERPRINT_HEADER, GENERATION_HEADER
from hotreload.server.hugging_face.text_generation_fields import TEXT_GENERATION
from hotreload.server.openai.response_fields import RESPONSES
from hotreload.server.request_headers import (
    NO_REPLAY_HEADER,
    SESSION_HEADERS,
    WEIGHT_VERSION_HEADER,
)
from hotreload.server.sglang import bodies
from hotreload.server.view_routes import MOST_LISTED


def _json(name: str) -> Media:
    return {JSON_TYPE: ref_to(name)}


MIN_GENERATION_PARAMETER = Parameter(
    MIN_GENERATION_HEADER,
    "header",
    GENERATION_NUMBER,
    "Wait for this generation or a later one; 409 when it does not come in time.",
)
EXACTLY_PARAMETERS = tuple(
    Parameter(name, "header", kind, "Be answered by exactly this one; 409 when it answers no more.")
    for name, kind in (
        (GENERATION_HEADER, GENERATION_NUMBER),
        (FINGERPRINT_HEADER, STRING),
        (WEIGHT_VERSION_HEADER, STRING),
    )
)
SESSION_PARAMETERS = tuple(
    Parameter(name, "header", STRING, "Be answered by what answered others of this name first.")
    for name in SESSION_HEADERS
)
NO_REPLAY_PARAMETER = Parameter(
    NO_REPLAY_HEADER, "header", STRING, "Be kept for no comparison of weights, whatever it says."
)
LEAVES_PARAMETER = Parameter("leaves", "query", BOOLEAN, "Name every leaf.")
MOST_PARAMETER = Parameter(
    "most", "query", whole_number(1, MOST_LISTED), "How many are shown; 100."
)
MOST_ATTEMPTS_PARAMETER = Parameter(
    "most", "query", MOST_PARAMETER.kind, "How many are shown; all."
)
REVISION_PARAMETER = Parameter(
    "revision", "query", STRING, "The one that is meant, by its id or label; what was wanted last."
)
MODEL_PARAMETER = Parameter("name", "path", STRING, "What [server] model_name says.")
FILE_PARAMETER = Parameter("name", "path", STRING, "A file of the page.")

INCLUDE_PARAMETER = Parameter(
    "include", "query", STRING, "core, memory, queues or all, and SGLang's others, by commas; all."
)
RANK_PARAMETER = Parameter(
    "dp_rank", "query", whole_number(0, 2**31 - 1), "The engine of this number alone."
)

ONE_OR_EACH = either(ref_to("Answer"), a_list(ref_to("Answer")))
REFUSALS_OF_ORDERS = (404, 408, 409, 503, 504)
CHANGED = (403, 404, 408, 409, 503, 504)
UNFIT = {422: _json("Change"), 202: _json("Change"), 409: _json("Change"), 503: _json("Change")}


def _asks(words: str, whole: Schema, known: KnownFields, *required: str) -> Operation:
    return Operation(
        words,
        {JSON_TYPE: whole, EVENT_STREAM_TYPE: PLAIN_TEXT},
        REFUSALS_OF_ORDERS,
        body=known.accepted_kinds,
        required=required,
        parameters=(
            MIN_GENERATION_PARAMETER,
            *EXACTLY_PARAMETERS,
            *SESSION_PARAMETERS,
            NO_REPLAY_PARAMETER,
        ),
    )


def _changes(words: str, body: Mapping[str, Kind]) -> Operation:
    refusals = (*CHANGED, 422)  # a name that says nothing, beside checkpoints that are not fit
    change = Operation(words, _json("Change"), refusals, body=body, others=UNFIT, may_be_empty=True)
    return for_administrators(change)


def _pins(words: str) -> Operation:
    pin = Operation(words, _json("Pinned"), CHANGED, body=admin.PIN_FIELDS, may_be_empty=True)
    return for_administrators(pin)


def _guarded(operation: Operation) -> Operation:
    return for_administrators(operation, 403, 408, 503)


def _by(methods: tuple[str, ...], paths: tuple[str, ...], operation: Operation) -> Operations:
    return {(method, path): operation for method in methods for path in paths}


EITHER = ("GET", "POST")
SGLANG_OPERATIONS: Operations = {
    **_by(
        ("GET",),
        ("/model_info", "/get_model_info"),
        Operation("SGLang's: what answers.", _json("ModelInfo"), (503,)),
    ),
    **_by(
        ("GET",),
        ("/server_info", "/get_server_info"),
        Operation("SGLang's: how it is set up.", _json("ServerInfo"), (503,)),
    ),
    ("GET", "/get_load"): Operation(
        "SGLang's: how busy each engine is.", _json("LoadArray"), (503,)
    ),
    ("GET", "/v1/loads"): Operation(
        "SGLang's: the same in full.",
        _json("Loads"),
        (503,),
        parameters=(INCLUDE_PARAMETER, RANK_PARAMETER),
    ),
    ("GET", "/health_generate"): Operation("SGLang's: does it make a token?", {}, (503,)),
    **_by(
        EITHER,
        ("/flush_cache",),
        _guarded(
            Operation("SGLang's: forget cached prefixes that nobody uses.", {TEXT_TYPE: PLAIN_TEXT})
        ),
    ),
    ("POST", "/abort_request"): _guarded(
        Operation("SGLang's: end a request, or all.", {}, body=bodies.ABORT, may_be_empty=True)
    ),
    **_by(
        EITHER,
        ("/get_weights_by_name",),
        _guarded(
            Operation(
                "SGLang's: the first numbers of a leaf or a tensor.",
                _json("FirstValues"),
                body=bodies.BY_NAME,
                required=("name",),
                others={400: _json("OpenAIError")},
            )
        ),
    ),
    **_by(
        EITHER,
        ("/weights_checker",),
        _guarded(
            Operation(
                "SGLang's: checksums computed now, and whether they are those of a snapshot.",
                _json("Checked"),
                body=bodies.CHECK,
                others={400: _json("Checked")},
                may_be_empty=True,
            )
        ),
    ),
    **_by(
        ("POST",),
        ("/tokenize", "/v1/tokenize"),
        Operation(
            "SGLang's and vLLM's: the tokens of texts or of a chat.",
            _json("Tokens"),
            (408, 503),
            body=bodies.TOKENIZE,
            one_of=("prompt", "messages"),
        ),
    ),
    **_by(
        ("POST",),
        ("/detokenize", "/v1/detokenize"),
        Operation(
            "SGLang's and vLLM's: the texts of tokens.",
            _json("Detokenized"),
            (408, 503),
            body=bodies.DETOKENIZE,
            required=("tokens",),
        ),
    ),
}

_OTHER_SERVERS_OPERATIONS: Operations = {
    **SGLANG_OPERATIONS,
    **ORDER_OPERATIONS,
    ("POST", "/v1/responses"): _asks(
        "OpenAI's responses, of text and without state.", ref_to("Response"), RESPONSES, "input"
    ),
}
"""Operations of other servers' clients; most daemons never see a request for one."""
OPERATIONS: Operations = {
    **_OTHER_SERVERS_OPERATIONS,
    ("POST", "/generate"): replace(
        _asks("Ask in the engine's own schema.", ONE_OR_EACH, known_fields.GENERATE),
        one_of=known_fields.PROMPTS,
    ),
    ("POST", "/"): _asks(
        "Ask as huggingface_hub's client does.",
        a_list(ref_to("TextGeneration")),
        TEXT_GENERATION,
        "inputs",
    ),
    ("POST", "/v1/completions"): _asks(
        "OpenAI's completions.", ref_to("Completion"), known_fields.COMPLETION, "prompt"
    ),
    ("POST", "/v1/chat/completions"): _asks(
        "OpenAI's chat completions.", ref_to("ChatCompletion"), known_fields.CHAT, "messages"
    ),
    ("GET", "/v1/models"): Operation("The one model there is.", _json("ModelList"), (503,)),
    ("GET", "/v1/models/{name}"): Operation(
        "The model, by its name.", _json("Model"), (404, 503), parameters=(MODEL_PARAMETER,)
    ),
    ("GET", "/livez"): Operation(
        "Is the process there?", {JSON_TYPE: {"type": "object"}}, security=TO_ALL
    ),
    ("GET", "/readyz"): Operation(
        "Are requests answered?", {JSON_TYPE: {"type": "object"}}, (503,), security=TO_ALL
    ),
    ("GET", "/health"): Operation("The same, as sglang asks it.", {}, (503,), security=TO_ALL),
    ("GET", "/gate"): Operation(
        "Is what was wanted last live for good?",
        _json("Verdict"),
        parameters=(REVISION_PARAMETER,),
        others={409: _json("Verdict")},
    ),
    ("GET", "/status"): Operation("What is live, wanted and under way.", _json("Status")),
    ("GET", "/history"): Operation(
        "Attempts, newest first.", _json("History"), parameters=(MOST_ATTEMPTS_PARAMETER,)
    ),
    ("GET", "/checkpoints"): Operation(
        "What the source sees, and why each is not live.",
        _json("Listing"),
        parameters=(MOST_PARAMETER,),
    ),
    ("GET", "/leaves"): Operation("Checksums of the live leaves.", _json("Leaves")),
    ("GET", "/events"): Operation(
        "Every event as it happens.", {EVENT_STREAM_TYPE: PLAIN_TEXT}, (403, 503)
    ),
    ("GET", "/metrics"): Operation("Prometheus metrics.", {TEXT_TYPE: PLAIN_TEXT}),
    ("GET", "/openapi.json"): Operation("This document.", {JSON_TYPE: {"type": "object"}}),
    ("GET", "/"): Operation("The status page.", {HTML_TYPE: PLAIN_TEXT}),
    ("GET", "/page/{name}"): Operation(
        "A file of it.",
        dict.fromkeys((HTML_TYPE, "text/css", "text/javascript", "image/svg+xml"), PLAIN_TEXT),
        (404,),
        parameters=(FILE_PARAMETER,),
    ),
    ("POST", "/webhook/huggingface"): Operation(
        "The hub says that something is new.",
        {JSON_TYPE: {"type": "object"}},
        (401, 403, 404),
        success=202,
        security=BY_SECRET,
    ),
    ("POST", "/admin/reload_weights"): _changes("Make a revision live.", admin.RELOAD_FIELDS),
    ("POST", "/admin/rollback"): _changes("Go back to a generation.", admin.ROLLBACK_FIELDS),
    ("POST", "/admin/perturb_weights"): _changes("Add noise to leaves.", admin.PERTURB_FIELDS),
    ("POST", "/admin/pin"): _pins("Hold what is live against the source."),
    ("POST", "/admin/unpin"): _pins("Follow the source again."),
    ("GET", "/admin/reload_status"): for_administrators(
        Operation("What of the status is about reloading.", _json("ReloadStatus"), (403, 503))
    ),
    ("GET", "/admin/weights_checksum"): for_administrators(
        Operation(
            "Checksums computed now.", _json("Checksum"), (403, 503), parameters=(LEAVES_PARAMETER,)
        )
    ),
}

_COUNTED_AS_OTHER = {"/openapi.json", "/page/{name}", "/v1/models/{name}"}
COUNTED_ONCE_ASKED = frozenset(path for _, path in _OTHER_SERVERS_OPERATIONS)
"""Paths whose requests metrics count from the first: no alert counts them."""
COUNTED_FROM_THE_START = tuple(
    dict.fromkeys(
        path
        for _, path in OPERATIONS
        if path not in COUNTED_ONCE_ASKED and path not in _COUNTED_AS_OTHER
    )
)
"""Paths whose requests metrics count, and show as 0 before there is one."""
