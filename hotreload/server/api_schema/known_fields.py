"""Every field that SGLang, sglang-jax, vLLM and OpenAI know, by route.

A field is supported, or is accepted only with a value that asks for nothing, or is ignored.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, TypedDict

from hotreload.errors import BadRequest
from hotreload.json_fields import Fields
from hotreload.server.answerer import MIN_GENERATION
from hotreload.server.api_schema import kinds
from hotreload.server.api_schema.operation import check_kinds
from hotreload.server_limits import Limits

IdleValues = tuple[Any, ...]
"""Values of a field, beside null, by which a client asks for nothing."""


def names(text: str) -> frozenset[str]:
    """Return the names of fields in a text."""
    return frozenset(text.split())


EMPTY_VALUES: IdleValues = (False, 0, "", [], {})
"""The idle values of an unsupported field that IDLE_VALUES does not list."""
IDLE_VALUES: Mapping[str, IdleValues] = {
    # Unsupported, and 0 asks for something: the first of several, or none of a feature.
    **dict.fromkeys(
        names(
            """
            bootstrap_port bootstrap_room data_parallel_rank decode_tp_size dp_rank
            disagg_prefill_dp_rank max_thinking_tokens prompt_logprobs routed_dp_rank truncate
            truncate_prompt_tokens
            """
        ),
        (False, "", [], {}),
    ),
    # On by default: false would ask for something.
    **dict.fromkeys(names("add_generation_prompt include_reasoning"), (True,)),
    **dict.fromkeys(names("skip_special_tokens spaces_between_special_tokens"), (True,)),
    # Even an empty value asks for something.
    **dict.fromkeys(names("audio task thinking web_search_options"), ()),
    **dict.fromkeys(names("length_penalty stream_interval typical_p"), (1,)),
    **dict.fromkeys(names("beam_width best_of"), (*EMPTY_VALUES, 1)),
    # Without tools, these choices ask for nothing.
    **dict.fromkeys(names("function_call tool_choice"), (*EMPTY_VALUES, "none", "auto")),
    "add_special_tokens": (True,),
    "modalities": (*EMPTY_VALUES, ["text"]),
    "return_mm_kwargs": (True, False),
    "service_tier": ("", "auto", "default"),
    "thinking_token_budget": (-1,),
    "verbosity": ("", "medium"),
    # Supported by at least one route: any other value, even an empty one, asks for something.
    **dict.fromkeys(names("ebnf json_schema reasoning_effort regex structural_tag"), ("",)),
    **dict.fromkeys(names("return_logprob rid stop stop_token_ids token_ids_logprob"), ("", [])),
    **dict.fromkeys(names("chat_template_kwargs sampling_params stream_options"), ("", [], {})),
    **dict.fromkeys(names("top_k top_logprobs"), (0,)),
    "logprobs": (False,),
    "tools": EMPTY_VALUES,
    "response_format": ({}, {"type": "text"}),
}
IGNORED_FIELDS = names(
    """
    batch_size conversation_id custom_labels external_trace_header is_single log_metrics metadata
    parallel_tool_calls prediction prompt_cache_key prompt_cache_options prompt_cache_retention
    received_time request_id return_flat_raw_top_logprobs_b64 rid routing_key safety_identifier
    separate_reasoning session_id stream_reasoning user
    """
)
"""Fields that change no answer, whatever their value.

They name the client, give hints for scheduling, or set details of unsupported features. A route may
still support one of them.
"""


@dataclass(frozen=True, slots=True)
class KnownFields:
    """The fields of one object that clients of any known server may send."""

    supported: Mapping[str, kinds.Kind]
    unsupported: Set[str]
    """Fields that are not supported, and are accepted only with an idle value."""
    ignored: Set[str] = frozenset()
    within: str = ""
    """The prefix of a field's name in messages."""
    other_names: Mapping[str, str] = field(default_factory=dict)
    """Names in other APIs, or in another place, and the fields that they mean here."""
    own_idle: Mapping[str, IdleValues] = field(default_factory=dict)
    """Idle values in this object alone."""
    nested: Mapping[str, "KnownFields"] = field(default_factory=dict)
    """The fields of supported fields that hold an object, or a list of objects."""

    def idle_values(self, name: str) -> IdleValues:
        """Return the values of a field, beside null, that ask for nothing."""
        usual = EMPTY_VALUES if name in self.unsupported else ()
        return self.own_idle.get(name, IDLE_VALUES.get(name, usual))

    @property
    def accepted_kinds(self) -> Mapping[str, kinds.Kind]:
        """The supported fields and the ignored ones."""
        return {**dict.fromkeys(sorted(self.ignored), kinds.ANYTHING), **self.supported}

    @property
    def as_field_kind(self) -> kinds.Kind:
        """The kind of a field whose value is an object of these fields."""
        types = {name: kind.type for name, kind in self.supported.items()}
        title = self.within.rstrip(".").title().replace("_", "")
        made = TypedDict(title, types, total=False)  # type: ignore[misc]  # of a table
        return kinds.Kind("an object", made, Fields)

    def check(self, given: Fields, limits: Limits) -> Fields:
        """Return the fields that are not idle; BadRequest for a wrong or unsupported one."""
        wanted = {name: value for name, value in given.items() if not self._is_idle(name, value)}
        for name in sorted(wanted.keys() & self.unsupported):
            raise BadRequest(
                f"{self.within}{name}: this server does not have it; leave it out",
                code="unsupported_parameter",
                param=self.within + name,
            )
        if limits.unknown_fields == "ignore":
            wanted = {name: value for name, value in wanted.items() if name in self.supported}
        checked = check_kinds(wanted, self.supported, self.within, self.other_names)
        for name in checked.keys() & self.nested.keys():
            value, inner = checked[name], self.nested[name]
            is_list = isinstance(value, list)
            each = [inner.check(one, limits) for one in (value if is_list else [value])]
            checked[name] = each if is_list else each[0]
        return checked

    def _is_idle(self, name: str, value: Any) -> bool:
        if name in self.supported or name in self.unsupported:
            return is_idle(value, self.idle_values(name))
        return name in self.ignored


def is_idle(value: Any, idle: IdleValues = EMPTY_VALUES) -> bool:
    """True for null, an idle value, or a list of idle values that are no objects."""
    if value is None or any(_is_same(value, each) for each in idle):
        return True
    is_list = isinstance(value, list) and bool(value and idle)
    return is_list and all(each != {} and is_idle(each, idle) for each in value)


def _is_same(value: Any, other: Any) -> bool:
    """Compare as JSON does: false is not 0, and 1.0 is 1."""
    are_alike = type(value) is type(other) or (kinds.is_number(value) and kinds.is_number(other))
    return are_alike and bool(value == other)


# --- unsupported on every route --------------------------------------------------------------

_UNSUPPORTED = names(
    """
    bootstrap_host bootstrap_port bootstrap_room cache_salt custom_logit_processor
    data_parallel_rank disagg_prefill_dp_rank disagg_transfer_id dp_rank extra_key images_config
    lora_path max_dynamic_patch min_dynamic_patch mm_processor_kwargs modalities priority
    return_flat_raw_output_top_logprobs return_hidden_states return_prompt_token_ids
    return_routed_experts return_sampling_mask routed_dp_rank routed_experts_start_len
    sampling_logprobs_mode session_params use_audio_in_video video_config watermark
    """
)

# --- /generate -------------------------------------------------------------------------------

PROMPTS = ("text", "input_ids")
SAMPLING_PARAMS = KnownFields(
    supported={
        **dict.fromkeys(
            names(
                """
                ebnf frequency_penalty ignore_eos json_schema max_new_tokens min_new_tokens min_p
                no_stop_trim presence_penalty regex repetition_penalty sampling_seed
                skip_special_tokens spaces_between_special_tokens stop stop_token_ids
                structural_tag temperature top_k top_p
                """
            ),
            kinds.Kind("what the engine takes"),
        ),
        "n": kinds.CHOICES,
    },
    unsupported=names("beam_width custom_params logit_bias stop_regex stream_interval watermark"),
    within="sampling_params.",
    other_names={
        **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_length"), "max_new_tokens"),
        "min_tokens": "min_new_tokens",
        "seed": "sampling_seed",
        "stop_sequences": "stop",
    },
)
GENERATE = KnownFields(
    supported={
        "model": kinds.STRING,
        "rid": kinds.one_or_list("a string", str),
        "text": kinds.one_or_list("a string", str),
        "input_ids": kinds.IDS_OR_BATCH,
        "sampling_params": kinds.one_or_list("an object", dict),
        "stream": kinds.BOOLEAN,
        "return_logprob": kinds.one_or_list("a boolean", bool),
        "logprob_start_len": kinds.one_or_list("an integer", int),
        "top_logprobs_num": kinds.one_or_list("an integer", int),
        "token_ids_logprob": kinds.IDS_OR_BATCH,
        "return_text_in_logprobs": kinds.BOOLEAN,
        **MIN_GENERATION,
    },
    unsupported=_UNSUPPORTED
    | names(
        """
        audio_data background bootstrap_pair_key decode_tp_size encoder_urls http_worker_ipc
        image_data image_max_dynamic_patch input_embeds kv_hints lora_id max_thinking_tokens
        mm_content_hashes mm_hashes multi_item_delimiter_indices need_wait_for_mm_inputs no_logs
        num_items_assigned positional_embed_overrides require_reasoning return_bytes return_entropy
        return_flat_raw_top_logprobs return_indexer_topk return_output_logprob_only
        token_indices_to_pool video_data video_max_dynamic_patch
        """
    ),
    ignored=IGNORED_FIELDS,
    other_names={
        **dict.fromkeys(("prompt", "prompts", "inputs"), "text"),
        "max_tokens": "sampling_params.max_new_tokens",
        **{
            name: f"sampling_params.{name}"
            for name in ("max_new_tokens", "stop", "temperature", "top_k", "top_p")
        },
    },
    nested={"sampling_params": SAMPLING_PARAMS},
)

# --- OpenAI's routes -------------------------------------------------------------------------

SAMPLING: Mapping[str, tuple[str, kinds.Kind]] = {
    "temperature": ("temperature", kinds.number(0, 100)),
    "top_p": ("top_p", kinds.TOP_P),
    "frequency_penalty": ("frequency_penalty", kinds.number(-2, 2)),
    "presence_penalty": ("presence_penalty", kinds.number(-2, 2)),
    "seed": ("sampling_seed", kinds.whole_number(-(2**63), 2**63 - 1)),
    "stop": ("stop", kinds.STOP),
    # Not in OpenAI's API, but the engine has them; clients send them in `extra_body`.
    "top_k": ("top_k", kinds.TOP_K),
    "min_p": ("min_p", kinds.number(0, 1)),
    "repetition_penalty": ("repetition_penalty", kinds.number(0, 2)),
    "min_tokens": ("min_new_tokens", kinds.TOKENS),
    "stop_token_ids": ("stop_token_ids", kinds.IDS),
    "ignore_eos": ("ignore_eos", kinds.BOOLEAN),
    "skip_special_tokens": ("skip_special_tokens", kinds.BOOLEAN),
    "regex": ("regex", kinds.STRING),
    "ebnf": ("ebnf", kinds.STRING),
}
"""The fields that go to the engine unchanged: the engine's name of each, and its kind."""
STREAM_OPTIONS = KnownFields(
    supported={"include_usage": kinds.BOOLEAN, "continuous_usage_stats": kinds.BOOLEAN},
    unsupported={"include_obfuscation"},
    within="stream_options.",
    own_idle=dict.fromkeys(("include_usage", "continuous_usage_stats"), (False,)),
)
_COMMON: Mapping[str, kinds.Kind] = {
    "model": kinds.STRING,
    "n": kinds.CHOICES,
    "max_tokens": kinds.TOKENS,
    "stream": kinds.BOOLEAN,
    "stream_options": STREAM_OPTIONS.as_field_kind,
    **{name: kind for name, (_, kind) in SAMPLING.items()},
    **MIN_GENERATION,
}
_OPENAI_UNSUPPORTED = _UNSUPPORTED | names(
    """
    add_generation_prompt add_special_tokens allowed_token_ids audio bad_words best_of
    chat_template continue_final_message custom_params documents echo ec_transfer_params
    function_call functions include_reasoning include_stop_str_in_output input_ids json_schema
    kv_transfer_params length_penalty logit_bias logprob_token_ids media_io_kwargs moderation
    no_stop_trim prompt_embeds prompt_logprobs reasoning_effort repetition_detection
    response_format return_cached_tokens_details return_input_ids_in_sglext return_meta_info
    return_mm_kwargs return_output_ids_in_sglext return_prompt_text return_spec_tokens_details
    return_token_ids return_token_offsets return_tokens_as_token_ids routed_experts_prompt_start
    service_tier spaces_between_special_tokens stop_regex store stream_interval structured_outputs
    suffix task thinking thinking_token_budget tool_choice tools truncate_prompt_tokens
    truncation_side use_beam_search verbosity vllm_xargs watermarking web_search_options
    """
)


def _openai(more: Mapping[str, kinds.Kind], own_idle: Mapping[str, IdleValues]) -> KnownFields:
    supported = {**_COMMON, **more}
    unsupported = _OPENAI_UNSUPPORTED - supported.keys()
    nested = {"stream_options": STREAM_OPTIONS}
    return KnownFields(supported, unsupported, IGNORED_FIELDS, own_idle=own_idle, nested=nested)


COMPLETION = _openai(
    {"prompt": kinds.PROMPT, "logprobs": kinds.whole_number(0, 20), "echo": kinds.BOOLEAN},
    {"echo": (False,)},
)
CHAT = _openai(
    {
        "messages": kinds.MESSAGES,
        "max_completion_tokens": kinds.TOKENS,
        "logprobs": kinds.BOOLEAN,
        "top_logprobs": kinds.whole_number(0, 20),
        "response_format": kinds.OBJECT,
        "reasoning_effort": kinds.STRING,
        "chat_template_kwargs": kinds.OBJECT,
        "tools": kinds.TOOLS,
        "tool_choice": kinds.TOOL_CHOICE,
        "parallel_tool_calls": kinds.BOOLEAN,
    },
    {
        "add_special_tokens": (False,),  # the template puts them in
        "tool_choice": (*EMPTY_VALUES, "auto"),
        "parallel_tool_calls": (True,),
    },
)
