"""The description of the routes by which other servers' clients load or name weights."""

from hotreload.server.api_schema.operation import (
    JSON_TYPE,
    Media,
    Operation,
    Operations,
    Parameter,
    for_administrators,
)
from hotreload.server.api_schema.schema_parts import ref_to
from hotreload.server.http.request_body import BOOLEAN
from hotreload.server.sglang import bodies

_UPDATED: Media = {JSON_TYPE: ref_to("Updated")}
_VERSION: Media = {JSON_TYPE: ref_to("Version")}
_NOT_DONE: Media = {JSON_TYPE: ref_to("NotDone")}
INCLUDE_DP = Parameter("include_dp", "query", BOOLEAN, "Count all engines; true.")

_VERSION_OPERATION = Operation(
    "SGLang's and vLLM's: the version of the weights that answer.", _VERSION, (503,)
)

ORDER_OPERATIONS: Operations = {
    ("GET", "/get_weight_version"): _VERSION_OPERATION,
    ("GET", "/weight_version"): _VERSION_OPERATION,
    ("GET", "/weight_info"): _VERSION_OPERATION,
    ("POST", "/update_weights_from_disk"): for_administrators(
        Operation(
            "SGLang's: make a checkpoint live; answer once it is live, or with the reason.",
            _UPDATED,
            body=bodies.UPDATE_FIELDS,
            required=("model_path",),
            others={400: _UPDATED},
        ),
        403,
    ),
    ("POST", "/update_weights"): for_administrators(
        Operation(
            "vLLM's: the same as /update_weights_from_disk.",
            _UPDATED,
            body=bodies.VLLM_UPDATE_FIELDS,
            required=("weight_dir",),
            others={400: _UPDATED},
        ),
        403,
    ),
    ("POST", "/update_weight_version"): for_administrators(
        Operation(
            "SGLang's and vLLM's: name the weights that answer.",
            _VERSION,
            body=bodies.NAME_FIELDS,
            required=("new_version",),
            others={400: _NOT_DONE},
        ),
        403,
    ),
    ("GET", "/get_world_size"): Operation(
        "vLLM's: the number of devices.",
        {JSON_TYPE: ref_to("WorldSize")},
        (503,),
        parameters=(INCLUDE_DP,),
    ),
    ("POST", "/reset_prefix_cache"): for_administrators(
        Operation(
            "vLLM's: drop cached prefixes that are not in use.", {JSON_TYPE: ref_to("Flushed")}
        ),
        403,
        503,
    ),
    ("POST", "/weight_checker"): for_administrators(
        Operation(
            "vLLM's: compute checksums, or compare them with a baseline.",
            {JSON_TYPE: ref_to("WeightsChecked")},
            body=bodies.VLLM_CHECK_FIELDS,
            others={400: {JSON_TYPE: ref_to("NotChecked")}},
            may_be_empty=True,
        ),
        403,
        503,
    ),
}
