"""`python -m probneural`: the program."""

from __future__ import annotations

import sys

from probneural.command_line import main

if __name__ == "__main__":
    sys.exit(main())
