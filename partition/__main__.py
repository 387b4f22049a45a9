"""``python -m partition``."""

from partition.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
