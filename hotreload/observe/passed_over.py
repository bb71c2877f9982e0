"""The folders that are passed over, logged once each."""

from collections import OrderedDict
from collections.abc import Iterator

from hotreload.events import FoldersPassedOver
from hotreload.json_fields import Fields, folder_fields

_REMEMBERED = 1000


class NewlyPassedOver:
    """Picks folders not logged yet: each is logged once per reason, however often it is seen."""

    def __init__(self) -> None:
        self._told = OrderedDict[tuple[str, str], None]()

    def of(self, event: FoldersPassedOver) -> Iterator[Fields]:
        """Yield the fields of a log line for each folder that is new."""
        for folder in event.folders:
            key = (folder.label, folder.reason.code)
            if key not in self._told:
                yield folder_fields(folder)
            self._told[key] = None
            self._told.move_to_end(key)
            if len(self._told) > _REMEMBERED:
                self._told.popitem(last=False)
