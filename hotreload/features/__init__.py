"""The features: each uses the kernel's interfaces, and goes when its folder and its line go."""

from hotreload.feature import Feature
from hotreload.features.bake import BAKE_FEATURE
from hotreload.features.command import COMMAND_FEATURE
from hotreload.features.compare import COMPARE_FEATURE
from hotreload.features.departure import DEPARTURE_FEATURE
from hotreload.features.gateway import GATEWAY_FEATURE
from hotreload.features.notify import NOTIFY_FEATURE
from hotreload.features.otel import OTEL_FEATURE
from hotreload.features.pause import PAUSE_FEATURE
from hotreload.features.sessions import SESSIONS_FEATURE

FEATURES: tuple[Feature, ...] = (
    DEPARTURE_FEATURE,
    PAUSE_FEATURE,
    SESSIONS_FEATURE,
    BAKE_FEATURE,
    COMPARE_FEATURE,
    COMMAND_FEATURE,
    GATEWAY_FEATURE,
    OTEL_FEATURE,
    NOTIFY_FEATURE,
)
"""The features of a daemon, in the order of judges, of fields in `/status`, and of metrics."""
