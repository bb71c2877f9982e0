"""Every route by which the model is asked, in whose words ever."""

from functools import partial

from starlette.routing import BaseRoute, Route

from hotreload.server.answerer import Answerer, ModelRoute
from hotreload.server.generate import read_generate
from hotreload.server.http.problems import TEXT_GENERATION_PATH
from hotreload.server.hugging_face.text_generation import text_generation_route
from hotreload.server.openai.routes import DIALECTS, route_to_model

GENERATE_PATH = "/generate"
MODEL_PATHS = frozenset({GENERATE_PATH, TEXT_GENERATION_PATH, *DIALECTS})
"""The paths that they answer, all of them by POST alone."""


def model_routes(answerer: Answerer, model: str) -> list[BaseRoute]:
    """Build them; the model is known by this one name."""
    generate = partial(read_generate, limits=answerer.limits, model=model)
    return [
        Route(GENERATE_PATH, ModelRoute(answerer, generate), methods=["POST"]),
        text_generation_route(answerer),
        *(
            Route(path, route_to_model(path, answerer, model), methods=["POST"])
            for path in DIALECTS
        ),
    ]
