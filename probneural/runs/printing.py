"""Reports as PDF files, printed by WeasyPrint or by a browser without a window."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from probneural.errors import FileError, UnsupportedError
from probneural.training import atomic

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
_SECONDS = 120
"""Time after which a program has failed."""


def printing_command(page: Path, pdf: Path) -> list[str]:
    """The command that prints an HTML file to a PDF file: of WeasyPrint if it is installed, else of a browser.

    Raises:
        UnsupportedError: If there is neither.
    """
    if importlib.util.find_spec("weasyprint") is not None:
        return [sys.executable, "-m", "weasyprint", str(page), str(pdf)]
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        expected, remedy = "WeasyPrint, or Chromium or Google Chrome on the PATH, to print a PDF", "pip install weasyprint"
        raise UnsupportedError(expected=expected, got="neither", remedy=f"{remedy}; or print report.html in another browser")
    return [browser, "--headless", "--no-pdf-header-footer", f"--print-to-pdf={pdf}", page.resolve().as_uri()]


def print_page(page: Path, pdf: Path) -> None:
    """Print an HTML file to a PDF file, which is replaced in one step.

    Raises:
        UnsupportedError: If there is no program that prints.
        FileError: If the program fails or writes nothing.
    """
    with atomic.replacing(pdf) as temporary:
        command = printing_command(page, temporary)
        try:
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS)
            if not temporary.stat().st_size:
                raise OSError("it wrote nothing")
        except (OSError, subprocess.SubprocessError) as error:
            got, remedy = f"{error} {getattr(error, 'stderr', None) or ''}", f"open {page} in a browser, and print it"
            raise FileError(expected=f"a PDF by {command[0]}", got=got.strip(), remedy=remedy) from error
