"""``python -m partition``."""

import sys

from partition.cli import main

if __name__ == "__main__":
    sys.exit(main())
