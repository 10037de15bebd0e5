"""A keeper whose kinds have bugs: a hand that raises what no hand may.

python -P buggy_keeper.py SLOT KIND:HAND,KIND:HAND [OPTION...]
"""

from __future__ import annotations

import sys
from typing import Any

from supervisor import keeper, kinds

BUGS = dict(word.split(":") for word in sys.argv[2].split(","))


class Buggy:
    """The kind, with one bug."""

    def __init__(self, kind: Any, hand: str) -> None:
        for name in dir(kind):
            if not name.startswith("_"):
                setattr(self, name, getattr(kind, name))

        def quick(*_: Any) -> None:
            raise ZeroDivisionError("division by zero")

        async def slow(*_: Any) -> None:
            quick()

        setattr(self, hand, quick if hand in ("command", "port_names", "plan") else slow)


def find(name: str, real: Any = kinds.find) -> Any:
    return Buggy(real(name), BUGS[name]) if name in BUGS else real(name)


if __name__ == "__main__":
    del sys.argv[2:3]
    kinds.find = find  # type: ignore[assignment]  # a function in place of one that remembers
    sys.exit(keeper.main())
