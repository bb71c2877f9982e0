"""Posts how attempts ended to the receivers that [[notify]] names."""

from typing import TYPE_CHECKING

from hotreload.feature import Feature
from hotreload.features.notify.settings import NotifySettings

if TYPE_CHECKING:
    from hotreload.parts import FeatureParts, Given


def _begin(given: "Given") -> "FeatureParts":
    from hotreload.features.notify.receiver import EndNotices, NotifyReport, Receiver
    from hotreload.parts import FeatureParts

    settings, report = given.settings(), NotifyReport()
    wanted: tuple[NotifySettings, ...] = getattr(settings, "notify", ())
    receivers = [Receiver(each, report) for each in wanted]
    return FeatureParts(
        observe=EndNotices(receivers, settings.model_name).observe,
        report=report,
        tasks={f"notify receiver {n}": each.run for n, each in enumerate(receivers, 1)},
    )


NOTIFY_FEATURE = Feature(name="notify", settings=tuple[NotifySettings, ...], begin=_begin)
