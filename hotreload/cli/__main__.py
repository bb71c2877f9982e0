"""`python -m hotreload.cli`: the command, if the package is not installed."""

import sys

from hotreload.cli import main

sys.exit(main())
