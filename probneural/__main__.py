"""`python -m probneural`: the program."""

from __future__ import annotations

import sys

try:
    from probneural.command_line import main
except ImportError as error:  # the extra `cli` is not installed
    sys.exit(f"probneural: {error}")

if __name__ == "__main__":
    sys.exit(main())
