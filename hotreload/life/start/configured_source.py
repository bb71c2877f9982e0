"""Makes the source that the settings name."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from hotreload.checkpoint.digests import Digests
from hotreload.core.decision import list_worth_keeping
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
    source, engine = settings.source, settings.engine
    # A start, other hosts and sglang-jax's loader must know the content before they load it.
    is_once = engine.nnodes == 1 and engine.loader == "auto"

    def reads_once() -> bool:
        """Return True if staging may be the first to read finished files."""
        return is_once and ledger.live is not None

    if source.kind == "huggingface":
        assert source.repo is not None, "it was found missing before"
        token = token_of(source.token_file)
        return HuggingFaceSource(
            source.repo,
            HubOptions(**_settings_of(HubSettings, source), token=token, reads_once=reads_once),
            cache=settings.hub_cache,
            digests=digests,
            kept=lambda: list_worth_keeping(ledger),
            folders=[*([engine.model] if engine.model else []), *settings.server.update_roots],
            publish=publish,
        )
    assert source.path is not None, "it was found missing before"
    roots = settings.checkpoint_roots
    return DirectorySource(
        source.path,
        FolderOptions(**_settings_of(FolderSettings, source), roots=roots, reads_once=reads_once),
        digests=digests,
        publish=publish,
        is_refused=lambda id: id in ledger.refused,
        generations=lambda: tuple(ledger.generations),
    )


def _settings_of(table: type[Any], source: SourceSettings) -> dict[str, Any]:
    """Return the settings of one kind of source."""
    return {each.name: getattr(source, each.name) for each in fields(table)}


def token_of(file: Path | None) -> Callable[[], str | None]:
    """Return what reads the token each time that it is needed: it may be renewed."""
    return usual_token if file is None else RenewedSecret(partial(read_secret, file, TOKEN))
