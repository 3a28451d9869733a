"""Objects that must not be copied: a copy would draw noise for the same steps."""

from __future__ import annotations

from typing import NoReturn


class Owned:
    """Refuses to be pickled or copied."""

    _instead: str
    """What to do instead."""

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"a {name} can't be pickled or copied: {self._instead}")
