"""Posts how attempts ended to the receivers that [[notify]] names."""

from hotreload.feature import Feature, FeatureParts, Given
from hotreload.features.notify.settings import NotifySettings


def _begin(given: Given) -> FeatureParts:
    from hotreload.features.notify.receiver import EndNotices, NotifyReport, Receiver

    settings, report = given.settings(), NotifyReport()
    wanted: tuple[NotifySettings, ...] = getattr(settings, "notify", ())
    receivers = [Receiver(each, report) for each in wanted]
    return FeatureParts(
        observe=EndNotices(receivers, settings.model_name).observe,
        report=report,
        tasks={f"notify receiver {n}": each.run for n, each in enumerate(receivers, 1)},
    )


NOTIFY_FEATURE = Feature(name="notify", settings=tuple[NotifySettings, ...], begin=_begin)
