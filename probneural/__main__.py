"""`python -m probneural`: the program of the extra `cli`."""

from __future__ import annotations

import sys

from probneural.checks import missing


def main() -> int:
    """Run the program, or name the missing extra."""
    try:
        from probneural import command_line
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("probneural"):
            raise
        sys.stderr.write(f"probneural: {missing('the program', error, 'cli')}\n")
        return 1
    return command_line.main()


if __name__ == "__main__":
    sys.exit(main())
