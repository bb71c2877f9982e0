"""The description of every route: its request and its answers.

Requests are described by the same kinds that check them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hotreload.json_fields import Fields, GenerationFields
from hotreload.picture.checkpoints import ListingFields
from hotreload.picture.documents import LeavesFields, ReloadStatusFields, StatusFields
from hotreload.picture.history import HistoryFields
from hotreload.picture.verdict import VerdictFields
from hotreload.server import admin
from hotreload.server.admin import ChangeFields, ChecksumFields, PinnedFields
from hotreload.server.answerer import (
    GENERATION_NUMBER,
    MIN_GENERATION_HEADER,
    NO_REPLAY_HEADER,
    SESSION_HEADERS,
    WEIGHT_VERSION_HEADER,
)
from hotreload.server.api_schema import known_fields
from hotreload.server.api_schema.known_fields import KnownFields
from hotreload.server.api_schema.operation import (
    BY_SECRET,
    TO_ALL,
    Operation,
    Operations,
    Parameter,
    for_administrators,
)
from hotreload.server.http.problems import OpenAIErrorFields
from hotreload.server.http.request_body import BOOLEAN, STRING, Kind, whole_number
from hotreload.server.http.request_log import FINGERPRINT_HEADER, GENERATION_HEADER
from hotreload.server.model_routes import AnswerFields
from hotreload.server.openai.answers import ChatCompletionFields, CompletionFields
from hotreload.server.openai.response_answers import ResponseFields
from hotreload.server.openai.response_requests import RESPONSES
from hotreload.server.openai.routes import ModelFields, ModelListFields
from hotreload.server.sglang import bodies
from hotreload.server.sglang.answers import (
    LoadsFields,
    ModelInfoFields,
    ServerInfoFields,
    ShortLoadFields,
)
from hotreload.server.sglang.not_served import NotDoneFields
from hotreload.server.sglang.routes import CheckedFields, DetokenizedFields, TokensFields
from hotreload.server.sglang.update_routes import (
    FlushedFields,
    NotCheckedFields,
    UpdatedFields,
    WorldSizeFields,
)
from hotreload.server.text_generation import TEXT_GENERATION, TextGenerationFields
from hotreload.server.view_routes import MOST_LISTED

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
INCLUDE_DP_PARAMETER = Parameter("include_dp", "query", BOOLEAN, "Count all engines; true.")
RANK_PARAMETER = Parameter(
    "dp_rank", "query", whole_number(0, 2**31 - 1), "The engine of this number alone."
)


MODEL_REFUSALS = (404, 408, 409, 503, 504)
CHANGE_REFUSALS = (403, 404, 408, 409, 503, 504)
HTML, TEXT, EVENTS = "text/html", "text/plain", "text/event-stream"


def _ask_model(words: str, answer: Any, known: KnownFields, *required: str) -> Operation:
    return Operation(
        words,
        answer,
        MODEL_REFUSALS,
        media=[EVENTS],
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
    return for_administrators(
        words,
        ChangeFields,
        (*CHANGE_REFUSALS, 422),  # 422 also for a name without a checkpoint
        body=body,
        others=dict.fromkeys((202, 409, 422, 503), ChangeFields),
        may_be_empty=True,
    )


def _pin(words: str) -> Operation:
    return for_administrators(
        words, PinnedFields, CHANGE_REFUSALS, body=admin.PIN_FIELDS, may_be_empty=True
    )


def _spread(operations: Operations) -> Operations:
    """Return the operations of several methods or paths one by one."""
    return {
        (method, path): operation
        for (methods, paths), operation in operations.items()
        for method in methods.split()
        for path in paths.split()
    }


_OTHER_SERVERS_OPERATIONS = _spread(
    {
        ("GET", "/model_info /get_model_info"): Operation(
            "SGLang's: the model and its weights.", ModelInfoFields, (503,)
        ),
        ("GET", "/server_info /get_server_info"): Operation(
            "SGLang's: the server's settings.", ServerInfoFields, (503,)
        ),
        ("GET", "/get_load"): Operation(
            "SGLang's: the load of each engine.", list[ShortLoadFields], (503,)
        ),
        ("GET", "/v1/loads"): Operation(
            "SGLang's: the full load report.",
            LoadsFields,
            (503,),
            parameters=(INCLUDE_PARAMETER, RANK_PARAMETER),
        ),
        ("GET", "/health_generate"): Operation("SGLang's: make one token.", None, (503,)),
        ("GET POST", "/flush_cache"): for_administrators(
            "SGLang's: drop cached prefixes that are not in use.", media=[TEXT]
        ),
        ("POST", "/abort_request"): for_administrators(
            "SGLang's: abort a request, or all.", body=bodies.ABORT_FIELDS, may_be_empty=True
        ),
        ("GET POST", "/get_weights_by_name"): for_administrators(
            "SGLang's: the first numbers of a leaf or a tensor.",
            list[float | list[Any] | None],
            body=bodies.WEIGHTS_BY_NAME_FIELDS,
            required=("name",),
            others={400: OpenAIErrorFields},
        ),
        ("GET POST", "/weights_checker"): for_administrators(
            "SGLang's: compute checksums, or compare them with a snapshot.",
            CheckedFields,
            body=bodies.CHECK_FIELDS,
            others={400: CheckedFields},
            may_be_empty=True,
        ),
        ("POST", "/tokenize /v1/tokenize"): Operation(
            "SGLang's and vLLM's: the tokens of texts or of a chat.",
            TokensFields,
            (408, 503),
            body=bodies.TOKENIZE_FIELDS,
            one_of=("prompt", "messages"),
        ),
        ("POST", "/detokenize /v1/detokenize"): Operation(
            "SGLang's and vLLM's: the texts of tokens.",
            DetokenizedFields,
            (408, 503),
            body=bodies.DETOKENIZE_FIELDS,
            required=("tokens",),
        ),
        ("GET", "/get_weight_version /weight_version /weight_info"): Operation(
            "SGLang's and vLLM's: the version of the weights that answer.",
            GenerationFields,
            (503,),
        ),
        ("POST", "/update_weights_from_disk"): for_administrators(
            "SGLang's: make a checkpoint live; answer once it is live, or with the reason.",
            UpdatedFields,
            (403,),
            body=bodies.UPDATE_FIELDS,
            required=("model_path",),
            others={400: UpdatedFields},
        ),
        ("POST", "/update_weights"): for_administrators(
            "vLLM's: the same as /update_weights_from_disk.",
            UpdatedFields,
            (403,),
            body=bodies.VLLM_UPDATE_FIELDS,
            required=("weight_dir",),
            others={400: UpdatedFields},
        ),
        ("POST", "/update_weight_version"): for_administrators(
            "SGLang's and vLLM's: name the weights that answer.",
            GenerationFields,
            (403,),
            body=bodies.NAME_FIELDS,
            required=("new_version",),
            others={400: NotDoneFields},
        ),
        ("GET", "/get_world_size"): Operation(
            "vLLM's: the number of devices.",
            WorldSizeFields,
            (503,),
            parameters=(INCLUDE_DP_PARAMETER,),
        ),
        ("POST", "/reset_prefix_cache"): for_administrators(
            "vLLM's: drop cached prefixes that are not in use.", FlushedFields, (403, 503)
        ),
        ("POST", "/weight_checker"): for_administrators(
            "vLLM's: compute checksums, or compare them with a baseline.",
            Fields,
            (403, 503),
            body=bodies.VLLM_CHECK_FIELDS,
            others={400: NotCheckedFields},
            may_be_empty=True,
        ),
        ("POST", "/v1/responses"): _ask_model(
            "OpenAI's responses, of text and without state.", ResponseFields, RESPONSES, "input"
        ),
    }
)
"""Operations of other servers' clients; most daemons never see a request for one."""
OPERATIONS: Operations = {
    **_OTHER_SERVERS_OPERATIONS,
    ("POST", "/generate"): replace(
        _ask_model(
            "Ask in the engine's own schema.",
            AnswerFields | list[AnswerFields],
            known_fields.GENERATE,
        ),
        one_of=known_fields.PROMPTS,
    ),
    ("POST", "/"): _ask_model(
        "Ask in the schema of huggingface_hub's client.",
        list[TextGenerationFields],
        TEXT_GENERATION,
        "inputs",
    ),
    ("POST", "/v1/completions"): _ask_model(
        "OpenAI's completions.", CompletionFields, known_fields.COMPLETION, "prompt"
    ),
    ("POST", "/v1/chat/completions"): _ask_model(
        "OpenAI's chat completions.", ChatCompletionFields, known_fields.CHAT, "messages"
    ),
    ("GET", "/v1/models"): Operation("The one model there is.", ModelListFields, (503,)),
    ("GET", "/v1/models/{name}"): Operation(
        "The model, by its name.", ModelFields, (404, 503), parameters=(MODEL_PARAMETER,)
    ),
    ("GET", "/livez"): Operation("Whether the process runs.", Fields, security=TO_ALL),
    ("GET", "/readyz"): Operation(
        "Whether requests are answered.", Fields, (503,), security=TO_ALL
    ),
    ("GET", "/health"): Operation("/readyz under sglang's name.", None, (503,), security=TO_ALL),
    ("GET", "/gate"): Operation(
        "Whether the last wanted revision is live and its bake is over.",
        VerdictFields,
        parameters=(REVISION_PARAMETER,),
        others={409: VerdictFields},
    ),
    ("GET", "/status"): Operation("What is live, wanted and under way.", StatusFields),
    ("GET", "/history"): Operation(
        "Attempts, newest first.", HistoryFields, parameters=(MOST_ATTEMPTS_PARAMETER,)
    ),
    ("GET", "/checkpoints"): Operation(
        "The checkpoints of the source, and why each is not live.",
        ListingFields,
        parameters=(MOST_PARAMETER,),
    ),
    ("GET", "/leaves"): Operation("Checksums of the live leaves.", LeavesFields),
    ("GET", "/events"): Operation("A stream of all events.", None, (403, 503), media=[EVENTS]),
    ("GET", "/metrics"): Operation("Prometheus metrics.", media=[TEXT]),
    ("GET", "/openapi.json"): Operation("This document.", Fields),
    ("GET", "/"): Operation("The status page.", media=[HTML]),
    ("GET", "/page/{name}"): Operation(
        "A file of the status page.",
        None,
        (404,),
        media=[HTML, "text/css", "text/javascript", "image/svg+xml"],
        parameters=(FILE_PARAMETER,),
    ),
    ("POST", "/webhook/huggingface"): Operation(
        "Look for a new checkpoint now, because the hub has one.",
        Fields,
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
        "The status of reloads.", ReloadStatusFields, (403, 503)
    ),
    ("GET", "/admin/weights_checksum"): for_administrators(
        "Compute checksums now.", ChecksumFields, (403, 503), parameters=(LEAVES_PARAMETER,)
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
