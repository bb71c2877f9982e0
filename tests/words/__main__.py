"""`python -m tests.words`: the command `hotreload`, which starts an engine of words."""

import sys

from tests.words.absent import Absent

sys.meta_path.insert(0, Absent())

from hotreload.cli import main  # noqa: E402 (JAX must be absent by now)
from tests.words.engine import starting_engines_of_words  # noqa: E402

with starting_engines_of_words():
    sys.exit(main())
