"""Schemas of what a bake adds to answers."""

from hotreload.server.api_schema.schema_parts import (
    AN_INTEGER,
    ANY_OBJECT,
    MAYBE_INTEGER,
    MAYBE_TEXT,
    PLAIN_TEXT,
    a_list,
    an_object,
    either,
    ref_to,
)
from hotreload.server.feature_routes import FeatureRoutes, add_to_attempts

MAYBE_BAKE = either(ref_to("Bake"), {"type": "null"})
BAKE_SHAPES = FeatureRoutes(
    shapes={
        "Bake": an_object(
            outcome=PLAIN_TEXT,
            since=PLAIN_TEXT,
            until=PLAIN_TEXT,
            answers=AN_INTEGER,
            against=MAYBE_INTEGER,
            old_answers=AN_INTEGER,
            reason=MAYBE_TEXT,
            signals=a_list(ANY_OBJECT),
        ),
    },
    adds={**add_to_attempts(bake=MAYBE_BAKE), "Verdict": {"bake": MAYBE_BAKE}},
)
"""It adds no route."""
