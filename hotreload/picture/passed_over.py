"""The folders that the source passes over now."""

from collections.abc import Mapping

from hotreload.events import Event, FoldersPassedOver
from hotreload.json_fields import Fields, passed_over_fields
from hotreload.types import PassedOver


class PassedOverNow:
    """Knows them: all counted, the newest named."""

    def __init__(self) -> None:
        self._last = FoldersPassedOver((), {})

    def observe(self, event: Event) -> None:
        """Take in which folders are passed over from now on."""
        if isinstance(event, FoldersPassedOver):
            self._last = event

    @property
    def counts(self) -> Mapping[str, int]:
        """Their number, by the code of their reason."""
        return self._last.counts

    @property
    def newest(self) -> Mapping[str, PassedOver]:
        """The newest of them, by the code of its reason: they come newest first."""
        return {folder.reason.code: folder for folder in reversed(self._last.folders)}

    def fields(self) -> Fields:
        """Return them as /status shows them."""
        return passed_over_fields(self._last.folders, self._last.counts)
