"""Makes the source that the settings name."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from hotreload.checkpoint.digests import Digests
from hotreload.core.ledger import Ledger
from hotreload.core.ports import Source
from hotreload.events import Publish
from hotreload.settings.credentials import TOKEN, RenewedSecret, read_secret
from hotreload.settings.sections import Settings
from hotreload.sources.directory import DirectorySource
from hotreload.sources.hub.client import HubOptions, usual_token
from hotreload.sources.huggingface import HuggingFaceSource
from hotreload.sources.place import FolderOptions
from hotreload.sources.settings import FolderSettings, HubSettings, SourceSettings


def make_source(settings: Settings, publish: Publish, ledger: Ledger, digests: Digests) -> Source:
    """Make a source of the kind that is configured."""
    return SOURCES[settings.source.kind](settings, publish, ledger, digests)


def _folder(
    settings: Settings, publish: Publish, ledger: Ledger, digests: Digests
) -> DirectorySource:
    source = settings.source
    assert source.path is not None, "it was found missing before"
    options = FolderOptions(
        **_settings_of(FolderSettings, source),
        roots=settings.checkpoint_roots,
        reads_once=_reads_once(settings, ledger),
    )
    return DirectorySource(
        source.path,
        options,
        digests=digests,
        publish=publish,
        is_refused=lambda id: id in ledger.refused,
        generations=lambda: tuple(ledger.generations),
    )


def _hub(
    settings: Settings, publish: Publish, ledger: Ledger, digests: Digests
) -> HuggingFaceSource:
    source = settings.source
    assert source.repo is not None, "it was found missing before"
    model = settings.engine.model
    options = HubOptions(
        **_settings_of(HubSettings, source),
        token=token_of(source.token_file),
        reads_once=_reads_once(settings, ledger),
    )
    return HuggingFaceSource(
        source.repo,
        options,
        cache=settings.hub_cache,
        digests=digests,
        kept=lambda: ledger.worth_keeping,
        folders=[*([model] if model is not None else []), *settings.server.update_roots],
        publish=publish,
    )


def _settings_of(table: type[Any], source: SourceSettings) -> dict[str, Any]:
    """Return the settings of one kind of source."""
    return {each.name: getattr(source, each.name) for each in fields(table)}


def _reads_once(settings: Settings, ledger: Ledger) -> Callable[[], bool]:
    """Return a function: may staging be the first to read finished files?

    A start, other hosts and sglang-jax's loader must know the content before they load it.
    """
    is_once = settings.engine.nnodes == 1 and settings.engine.loader == "auto"
    return lambda: is_once and ledger.live is not None


SOURCES: dict[str, Callable[[Settings, Publish, Ledger, Digests], Source]] = {
    "directory": _folder,
    "huggingface": _hub,
}
"""One line a kind of source: its maker."""


def token_of(file: Path | None) -> Callable[[], str | None]:
    """Return what reads the token each time that it is needed: it may be renewed."""
    return usual_token if file is None else RenewedSecret(partial(read_secret, file, TOKEN))
