"""Runs the command line: `python -m core VERB`."""

import sys

from core.cli import main

if __name__ == "__main__":
    sys.exit(main())
