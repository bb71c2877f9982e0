"""`python -m hotreload.launch_server`: `hotreload launch`, in the place of sglang-jax's server."""

import sys

from hotreload.cli import main

if __name__ == "__main__":
    sys.exit(main(["launch", *sys.argv[1:]]))
