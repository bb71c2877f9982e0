"""`python -m tests.words`: the command `hotreload`, which starts an engine of words."""

import sys
from unittest.mock import patch

from tests.words.absent import Absent

sys.meta_path.insert(0, Absent())

from hotreload.cli import main  # noqa: E402 (JAX must be absent by now)
from hotreload.engine.sglang import SglangEngine  # noqa: E402
from tests.words.engine import EngineOfWords  # noqa: E402

with patch.object(SglangEngine, "start", EngineOfWords.start):
    sys.exit(main())
