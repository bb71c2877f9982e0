"""Every route to the model: the engine's own, Hugging Face's and OpenAI's."""

from functools import partial

from starlette.routing import BaseRoute, Route

from hotreload.server.answerer import Answerer, ModelRoute
from hotreload.server.generate import read_generate
from hotreload.server.http.problems import TEXT_GENERATION_PATH
from hotreload.server.hugging_face.text_generation import text_generation_route
from hotreload.server.openai.routes import DIALECTS, route_to_model

GENERATE_PATH = "/generate"
MODEL_PATHS = frozenset({GENERATE_PATH, TEXT_GENERATION_PATH, *DIALECTS})
"""The paths of these routes; each answers POST alone."""


def model_routes(answerer: Answerer, model: str) -> list[BaseRoute]:
    """Build the routes; `model` is the name by which clients know the model."""
    generate = partial(read_generate, limits=answerer.limits, model=model)
    return [
        Route(GENERATE_PATH, ModelRoute(answerer, generate), methods=["POST"]),
        text_generation_route(answerer),
        *(
            Route(path, route_to_model(path, answerer, model), methods=["POST"])
            for path in DIALECTS
        ),
    ]
