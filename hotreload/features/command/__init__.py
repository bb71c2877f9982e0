"""Has an operator's command decide about new weights, before they answer any request."""

from typing import TYPE_CHECKING

from hotreload.feature import Feature
from hotreload.features.command.evidence import BLANK, COMMAND
from hotreload.features.command.settings import CommandSettings

if TYPE_CHECKING:
    from hotreload.parts import FeatureParts, Given


def _begin(given: "Given") -> "FeatureParts":
    from hotreload.features.command.running import CommandRunner
    from hotreload.parts import FeatureParts

    return FeatureParts(judges=CommandRunner(given).judges)


COMMAND_FEATURE = Feature(
    name=COMMAND, settings=CommandSettings, blank=BLANK, reasons=(COMMAND,), begin=_begin
)
