"""Schemas of what comparisons add to answers."""

from hotreload.server.api_schema.schema_parts import (
    A_NUMBER,
    AN_INTEGER,
    MAYBE_INTEGER,
    MAYBE_TEXT,
    PLAIN_TEXT,
    Schema,
    a_list,
    an_object,
    either,
    ref_to,
)
from hotreload.server.feature_routes import FeatureRoutes, add_to_attempts

_SIGNS = ("empty", "endless", "repeating")
_COUNTS = ("questions", "tokens", "heard", "heard_tokens", *(f"live_{sign}" for sign in _SIGNS))
_MAYBE_NUMBER: Schema = {"type": ["number", "null"]}
_DIVERGENCES = (
    *("mean_kl", "p99_kl", "same_top", "noise_kl", "noise_same_top"),
    *("perplexity_ratio", "entropy", "live_entropy"),
    *("heard_kl", "heard_noise_kl", "heard_same_top", "heard_perplexity_ratio"),
)
COMPARE_SHAPES = FeatureRoutes(
    shapes={
        "Behaviour": an_object(
            dict.fromkeys(_COUNTS, AN_INTEGER),
            **dict.fromkeys(("agreement", "same_first", "seconds"), A_NUMBER),
            **dict.fromkeys(("length_ratio", *_DIVERGENCES), _MAYBE_NUMBER),
            **dict.fromkeys(("first_difference", *_SIGNS), MAYBE_INTEGER),
            worst=a_list(ref_to("BothAnswers")),
            right_answers=either(ref_to("RightAnswers"), {"type": "null"}),
        ),
        "BothAnswers": an_object(dict.fromkeys(("prompt", "live", "new", "why"), PLAIN_TEXT)),
        "RightAnswers": an_object(
            dict.fromkeys(("expected", "right", "live_right", "better", "worse"), AN_INTEGER),
            p_worse=A_NUMBER,
            smallest_drop=_MAYBE_NUMBER,
            lost=a_list(PLAIN_TEXT),
        ),
    },
    adds={
        **add_to_attempts(
            behaviour=either(ref_to("Behaviour"), {"type": "null"}), not_compared=MAYBE_TEXT
        ),
        "Status": {
            "heard": either(
                an_object(mirror=A_NUMBER, replay=AN_INTEGER, kept=AN_INTEGER, mirrored=AN_INTEGER),
                {"type": "null"},
            )
        },
    },
)
"""It adds no route."""
