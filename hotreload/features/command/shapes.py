"""Schemas of what a command adds to answers."""

from hotreload.server.api_schema.schema_parts import PLAIN_TEXT, a_list
from hotreload.server.feature_routes import FeatureRoutes, add_to_attempts

COMMAND_SHAPES = FeatureRoutes(adds=add_to_attempts(command_said=a_list(PLAIN_TEXT)))
"""It adds no route."""
