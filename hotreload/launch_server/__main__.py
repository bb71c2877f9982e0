"""`hotreload launch`, by the name of upstream's module."""

import sys

from hotreload.cli import main

sys.exit(main(["launch", *sys.argv[1:]]))
