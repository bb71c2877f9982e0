"""`python -m hotreload.cli`: the command, where it is not installed."""

import sys

from hotreload.cli import main

sys.exit(main())
