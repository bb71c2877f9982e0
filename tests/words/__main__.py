"""`python -m tests.words`: the command in a process of its own."""

import sys

from tests.words.command import main

sys.exit(main())
