"""A fact has one home; this has two, as neither of them may know the other, and is compared here.

The server says of each field of a request which values it may have, for clients and for
`/openapi.json`. The engine checks fields itself, for a program may ask it without any server.
"""

from hotreload.engine.answering import requests, sampling_params
from hotreload.server.answerer import MIN_GENERATION
from hotreload.server.api_schema.known_fields import GENERATE, PROMPTS, SAMPLING_PARAMS


def test_the_engine_takes_the_fields_that_the_server_lets_through() -> None:
    made_by_the_server = {"messages", "template_args", "tools", "tool_choice"}
    made_by_the_server |= requests.OF_THE_SERVER
    for_the_server = {"model", *MIN_GENERATION}
    assert GENERATE.supported.keys() - for_the_server == requests.FIELDS - made_by_the_server
    assert set(PROMPTS) == requests.PROMPTS - made_by_the_server
    numbers = sampling_params.NUMBERS | sampling_params.INTEGERS | sampling_params.FLAGS
    lists = {"stop", "stop_token_ids"}
    assert SAMPLING_PARAMS.supported.keys() == numbers | lists | sampling_params.GRAMMARS.keys()
