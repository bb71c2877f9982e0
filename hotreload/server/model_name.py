"""The model's name in requests."""

from hotreload.errors import shown
from hotreload.server.http.problems import Refused

NO_NAME = frozenset({"", "default", "dummy", "tgi", "unknown"})
"""Names that clients send when they know no name: SGLang's default, and the placeholders of
sglang-router and huggingface_hub. They mean the one model there is.
"""


def check_model(asked: str, model: str) -> None:
    """Raise Refused with 404 if a request names another model."""
    if asked != model and asked not in NO_NAME:
        words = f"there is no model {shown(asked)} here; this server's model is {model!r}"
        raise Refused(404, "model_not_found", words, param="model")
