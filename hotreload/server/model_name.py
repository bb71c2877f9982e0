"""The name by which clients know the one model there is."""

from hotreload.errors import shown
from hotreload.server.http.problems import Refused

NO_NAME = frozenset({"", "default", "dummy", "tgi", "unknown"})
"""The model's name in requests of those who know no more than an address: SGLang's default, what
sglang-router and huggingface_hub's clients put in its place. Here they mean the one there is."""


def check_model(asked: str, model: str) -> None:
    """Refuse the name of another model, by every route in the same words."""
    if asked != model and asked not in NO_NAME:
        words = f"there is no model {shown(asked)} here; this server's model is {model!r}"
        raise Refused(404, "model_not_found", words, param="model")
