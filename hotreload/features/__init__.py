"""Capabilities beside the kernel: each uses its doors, and goes when its folder goes."""

from hotreload.core.feature import Feature
from hotreload.features.bake.settings import BakeSettings
from hotreload.features.command.settings import CommandSettings
from hotreload.features.compare.settings import CompareSettings
from hotreload.features.pause.settings import PauseSettings
from hotreload.features.sessions.settings import SessionsSettings

FEATURES = (
    Feature("pause", PauseSettings),
    Feature("sessions", SessionsSettings),
    Feature("bake", BakeSettings),
    Feature("compare", CompareSettings),
    Feature("command", CommandSettings),
)
"""All there are, in the order in which they judge, hear and are shown."""
