"""Reads the operator's own questions where a daemon is to go by the settings that name them."""

from pathlib import Path

from hotreload.behaviour.corpus import Corpus, UnfitCorpus, read_corpus
from hotreload.errors import ConfigError
from hotreload.settings.sections import Settings

SETTING = "[behaviour] corpus"
MOST_BYTES = 64 * 2**20
"""A file that is longer was not meant."""


def with_corpus(settings: Settings) -> Settings:
    """Return the settings with the questions that they name; ConfigError lists what is wrong."""
    behaviour = settings.behaviour
    if behaviour.corpus is None:
        return settings
    corpus = _read(behaviour.corpus.file)
    if behaviour.limits.min_accuracy is not None and not any(q.check for q in corpus.questions):
        words = "no line says which answer it expects, and [behaviour.limits] min_accuracy asks for"
        raise ConfigError(f"{SETTING}: {corpus.file}: {words} right ones; add answer to some")
    return settings.model_copy(
        update={"behaviour": behaviour.model_copy(update={"corpus": corpus})}
    )


def _read(file: Path) -> Corpus:
    try:
        size = file.stat().st_size
        if size > MOST_BYTES:
            raise ConfigError(f"{SETTING}: {file}: has {size} bytes, and {MOST_BYTES} are allowed")
        return read_corpus(file, file.read_bytes().decode("utf-8-sig"))
    except OSError as fault:
        raise ConfigError(f"{SETTING}: {file}: cannot be read: {fault.strerror}") from fault
    except UnicodeDecodeError as fault:
        raise ConfigError(f"{SETTING}: {file}: is not UTF-8 text; save it as such") from fault
    except UnfitCorpus as unfit:
        raise ConfigError.listing([f"{SETTING}: {each}" for each in unfit.faults]) from unfit
