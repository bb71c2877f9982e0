"""The command `hotreload`, whose daemon has an engine of words. To be imported before JAX is."""

import sys
from collections.abc import Sequence

from tests.words.absent import Absent

sys.meta_path.insert(0, Absent())

from hotreload import cli  # noqa: E402 (JAX must be absent by now)
from tests.words.engine import starting_engines_of_words  # noqa: E402


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb."""
    with starting_engines_of_words():
        return cli.main(argv)
