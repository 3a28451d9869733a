"""The command `hushflow`, also as `python -m hushflow`."""

from __future__ import annotations

import signal
import sys

from . import _hushflow


def main() -> None:
    """Runs the command with the arguments of the process, and exits with its status."""
    # As for a program without Python, SIGINT ends the process unless the command handles it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_hushflow.command(["hushflow", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
