"""Objects that must not be copied: a copy would draw noise for the same steps."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from ._errors import ForkError


class Owned:
    """Refuses to be pickled or copied."""

    _instead: str
    """What to do instead."""

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"a {name} can't be pickled or copied: {self._instead}")


class Turns:
    """Lets threads take turns. Raises ForkError in a fork, whose work would be a copy, too."""

    def __init__(self, what: str) -> None:
        # A handler of a signal may interrupt a thread in its turn and take another one.
        self._lock, self._process, self._what = threading.RLock(), os.getpid(), what

    def next(self) -> AbstractContextManager[Any]:
        """Returns the lock to hold. What the thread that holds it does is whole for the others."""
        if self._process != os.getpid():
            raise ForkError(
                f"this process is a fork of the one that opened the {self._what}, and only that one may use it: "
                "open it after the fork, or start processes by spawn"
            )
        return self._lock
