"""The description of every route: its request and its answers.

Requests are described by the same kinds that check them.
"""

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
    "Wait for this generation or a later one; 409 if it does not come in time.",
)
EXACTLY_PARAMETERS = tuple(
    Parameter(name, "header", kind, "Answer by exactly these weights; 409 if they are gone.")
    for name, kind in (
        (GENERATION_HEADER, GENERATION_NUMBER),
        (FINGERPRINT_HEADER, STRING),
        (WEIGHT_VERSION_HEADER, STRING),
    )
)
SESSION_PARAMETERS = tuple(
    Parameter(name, "header", STRING, "Answer by the weights of this conversation's first answer.")
    for name in SESSION_HEADERS
)
NO_REPLAY_PARAMETER = Parameter(
    NO_REPLAY_HEADER, "header", STRING, "Do not keep this request; any value."
)
LEAVES_PARAMETER = Parameter("leaves", "query", BOOLEAN, "Name every leaf.")
MOST_PARAMETER = Parameter("most", "query", whole_number(1, MOST_LISTED), "The most entries; 100.")
MOST_ATTEMPTS_PARAMETER = Parameter("most", "query", MOST_PARAMETER.kind, "The most entries; all.")
REVISION_PARAMETER = Parameter(
    "revision", "query", STRING, "A revision, by its id or label; the last wanted one."
)
MODEL_PARAMETER = Parameter("name", "path", STRING, "The name in [server] model_name.")
FILE_PARAMETER = Parameter("name", "path", STRING, "A file of the status page.")

INCLUDE_PARAMETER = Parameter(
    "include", "query", STRING, "Sections, separated by commas: core, memory, queues, all; all."
)
RANK_PARAMETER = Parameter(
    "dp_rank", "query", whole_number(0, 2**31 - 1), "The engine of this number alone."
)

ANSWER_OR_LIST = either(ref_to("Answer"), a_list(ref_to("Answer")))
MODEL_REFUSALS = (404, 408, 409, 503, 504)
CHANGE_REFUSALS = (403, 404, 408, 409, 503, 504)
CHANGE_ANSWERS = dict.fromkeys((202, 409, 422, 503), _json("Change"))


def _ask_model(words: str, whole: Schema, known: KnownFields, *required: str) -> Operation:
    return Operation(
        words,
        {JSON_TYPE: whole, EVENT_STREAM_TYPE: PLAIN_TEXT},
        MODEL_REFUSALS,
        body=known.accepted_kinds,
        required=required,
        parameters=(
            MIN_GENERATION_PARAMETER,
            *EXACTLY_PARAMETERS,
            *SESSION_PARAMETERS,
            NO_REPLAY_PARAMETER,
        ),
    )


def _change(words: str, body: Mapping[str, Kind]) -> Operation:
    refusals = (*CHANGE_REFUSALS, 422)  # 422 also for a name without a checkpoint
    operation = Operation(
        words, _json("Change"), refusals, body=body, others=CHANGE_ANSWERS, may_be_empty=True
    )
    return for_administrators(operation)


def _pin(words: str) -> Operation:
    operation = Operation(
        words, _json("Pinned"), CHANGE_REFUSALS, body=admin.PIN_FIELDS, may_be_empty=True
    )
    return for_administrators(operation)


def _for_administrators(operation: Operation) -> Operation:
    return for_administrators(operation, 403, 408, 503)


def _same(methods: tuple[str, ...], paths: tuple[str, ...], operation: Operation) -> Operations:
    return {(method, path): operation for method in methods for path in paths}


EITHER = ("GET", "POST")
SGLANG_OPERATIONS: Operations = {
    **_same(
        ("GET",),
        ("/model_info", "/get_model_info"),
        Operation("SGLang's: the model and its weights.", _json("ModelInfo"), (503,)),
    ),
    **_same(
        ("GET",),
        ("/server_info", "/get_server_info"),
        Operation("SGLang's: the server's settings.", _json("ServerInfo"), (503,)),
    ),
    ("GET", "/get_load"): Operation(
        "SGLang's: the load of each engine.", _json("LoadArray"), (503,)
    ),
    ("GET", "/v1/loads"): Operation(
        "SGLang's: the full load report.",
        _json("Loads"),
        (503,),
        parameters=(INCLUDE_PARAMETER, RANK_PARAMETER),
    ),
    ("GET", "/health_generate"): Operation("SGLang's: make one token.", {}, (503,)),
    **_same(
        EITHER,
        ("/flush_cache",),
        _for_administrators(
            Operation(
                "SGLang's: drop cached prefixes that are not in use.", {TEXT_TYPE: PLAIN_TEXT}
            )
        ),
    ),
    ("POST", "/abort_request"): _for_administrators(
        Operation(
            "SGLang's: abort a request, or all.", {}, body=bodies.ABORT_FIELDS, may_be_empty=True
        )
    ),
    **_same(
        EITHER,
        ("/get_weights_by_name",),
        _for_administrators(
            Operation(
                "SGLang's: the first numbers of a leaf or a tensor.",
                _json("FirstValues"),
                body=bodies.WEIGHTS_BY_NAME_FIELDS,
                required=("name",),
                others={400: _json("OpenAIError")},
            )
        ),
    ),
    **_same(
        EITHER,
        ("/weights_checker",),
        _for_administrators(
            Operation(
                "SGLang's: compute checksums, or compare them with a snapshot.",
                _json("Checked"),
                body=bodies.CHECK_FIELDS,
                others={400: _json("Checked")},
                may_be_empty=True,
            )
        ),
    ),
    **_same(
        ("POST",),
        ("/tokenize", "/v1/tokenize"),
        Operation(
            "SGLang's and vLLM's: the tokens of texts or of a chat.",
            _json("Tokens"),
            (408, 503),
            body=bodies.TOKENIZE_FIELDS,
            one_of=("prompt", "messages"),
        ),
    ),
    **_same(
        ("POST",),
        ("/detokenize", "/v1/detokenize"),
        Operation(
            "SGLang's and vLLM's: the texts of tokens.",
            _json("Detokenized"),
            (408, 503),
            body=bodies.DETOKENIZE_FIELDS,
            required=("tokens",),
        ),
    ),
}

_OTHER_SERVERS_OPERATIONS: Operations = {
    **SGLANG_OPERATIONS,
    **ORDER_OPERATIONS,
    ("POST", "/v1/responses"): _ask_model(
        "OpenAI's responses, of text and without state.", ref_to("Response"), RESPONSES, "input"
    ),
}
"""Operations of other servers' clients; most daemons never see a request for one."""
OPERATIONS: Operations = {
    **_OTHER_SERVERS_OPERATIONS,
    ("POST", "/generate"): replace(
        _ask_model("Ask in the engine's own schema.", ANSWER_OR_LIST, known_fields.GENERATE),
        one_of=known_fields.PROMPTS,
    ),
    ("POST", "/"): _ask_model(
        "Ask in the schema of huggingface_hub's client.",
        a_list(ref_to("TextGeneration")),
        TEXT_GENERATION,
        "inputs",
    ),
    ("POST", "/v1/completions"): _ask_model(
        "OpenAI's completions.", ref_to("Completion"), known_fields.COMPLETION, "prompt"
    ),
    ("POST", "/v1/chat/completions"): _ask_model(
        "OpenAI's chat completions.", ref_to("ChatCompletion"), known_fields.CHAT, "messages"
    ),
    ("GET", "/v1/models"): Operation("The one model there is.", _json("ModelList"), (503,)),
    ("GET", "/v1/models/{name}"): Operation(
        "The model, by its name.", _json("Model"), (404, 503), parameters=(MODEL_PARAMETER,)
    ),
    ("GET", "/livez"): Operation(
        "Whether the process runs.", {JSON_TYPE: {"type": "object"}}, security=TO_ALL
    ),
    ("GET", "/readyz"): Operation(
        "Whether requests are answered.", {JSON_TYPE: {"type": "object"}}, (503,), security=TO_ALL
    ),
    ("GET", "/health"): Operation("/readyz under sglang's name.", {}, (503,), security=TO_ALL),
    ("GET", "/gate"): Operation(
        "Whether the last wanted revision is live and its bake is over.",
        _json("Verdict"),
        parameters=(REVISION_PARAMETER,),
        others={409: _json("Verdict")},
    ),
    ("GET", "/status"): Operation("What is live, wanted and under way.", _json("Status")),
    ("GET", "/history"): Operation(
        "Attempts, newest first.", _json("History"), parameters=(MOST_ATTEMPTS_PARAMETER,)
    ),
    ("GET", "/checkpoints"): Operation(
        "The checkpoints of the source, and why each is not live.",
        _json("Listing"),
        parameters=(MOST_PARAMETER,),
    ),
    ("GET", "/leaves"): Operation("Checksums of the live leaves.", _json("Leaves")),
    ("GET", "/events"): Operation(
        "A stream of all events.", {EVENT_STREAM_TYPE: PLAIN_TEXT}, (403, 503)
    ),
    ("GET", "/metrics"): Operation("Prometheus metrics.", {TEXT_TYPE: PLAIN_TEXT}),
    ("GET", "/openapi.json"): Operation("This document.", {JSON_TYPE: {"type": "object"}}),
    ("GET", "/"): Operation("The status page.", {HTML_TYPE: PLAIN_TEXT}),
    ("GET", "/page/{name}"): Operation(
        "A file of the status page.",
        dict.fromkeys((HTML_TYPE, "text/css", "text/javascript", "image/svg+xml"), PLAIN_TEXT),
        (404,),
        parameters=(FILE_PARAMETER,),
    ),
    ("POST", "/webhook/huggingface"): Operation(
        "Look for a new checkpoint now, because the hub has one.",
        {JSON_TYPE: {"type": "object"}},
        (401, 403, 404),
        success=202,
        security=BY_SECRET,
    ),
    ("POST", "/admin/reload_weights"): _change("Make a revision live.", admin.RELOAD_FIELDS),
    ("POST", "/admin/rollback"): _change("Go back to a generation.", admin.ROLLBACK_FIELDS),
    ("POST", "/admin/perturb_weights"): _change("Add noise to leaves.", admin.PERTURB_FIELDS),
    ("POST", "/admin/pin"): _pin("Pin the live weights."),
    ("POST", "/admin/unpin"): _pin("Follow the source again."),
    ("GET", "/admin/reload_status"): for_administrators(
        Operation("The status of reloads.", _json("ReloadStatus"), (403, 503))
    ),
    ("GET", "/admin/weights_checksum"): for_administrators(
        Operation(
            "Compute checksums now.", _json("Checksum"), (403, 503), parameters=(LEAVES_PARAMETER,)
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
