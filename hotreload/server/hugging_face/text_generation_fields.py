"""The fields of a request by huggingface_hub's client; `text_generation` reads them."""

from hotreload.server.answerer import MIN_GENERATION
from hotreload.server.api_schema.field_kinds import STOP, TOKENS
from hotreload.server.api_schema.known_fields import SAMPLING, KnownFields
from hotreload.server.http.request_body import BOOLEAN, OBJECT, STRING

SAME = ("temperature", "top_p", "top_k", "repetition_penalty", "frequency_penalty", "seed")
"""Parameters with the same name and meaning as in OpenAI's API here."""
PARAMETERS = KnownFields(
    supported={
        **{name: SAMPLING[name][1] for name in SAME},
        "max_new_tokens": TOKENS,
        "stop": STOP,
        "do_sample": BOOLEAN,
        "grammar": OBJECT,
        "details": BOOLEAN,
        "return_full_text": BOOLEAN,
    },
    unsupported=frozenset(
        (
            "adapter_id",
            "best_of",
            "decoder_input_details",
            "top_n_tokens",
            "truncate",
            "typical_p",
            "watermark",
        )
    ),
    within="parameters.",
)
TEXT_GENERATION = KnownFields(
    supported={
        "inputs": STRING,
        "parameters": PARAMETERS.as_field_kind,
        "stream": BOOLEAN,
        **MIN_GENERATION,
    },
    unsupported=frozenset(),
)
