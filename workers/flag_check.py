"""A launch's arguments against the --help of its llama-server: a flag that it does not take is exit status 1 after the
start, of which a log tells; here it is told before.

Flags drift between builds (b10434 takes --no-mmap, b11434 has --load-mode instead). Only a --help that is a llama-server's
is believed, and only one that the server itself prints is a reason to refuse: a wrapper may print anything, also its
server's, and take more than it prints.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALWAYS: Final = frozenset({"--model", "--ctx-size", "--parallel", "--port"})
"""What every llama-server's --help names."""

RENAMED: Final = dict.fromkeys(("--mlock", "--mmap", "--no-mmap", "--direct-io", "--no-direct-io"), "--load-mode")
"""What replaced a flag where no likeness tells it, so far as the build at hand has it."""

_FLAGS: Final = re.compile(r"(-{1,2}[A-Za-z][\w-]*)((?:,\s+-{1,2}[A-Za-z][\w-]*)*)( \S)?")
"""A line's flags, and whether one blank and a value's name come behind them; more blanks begin the description."""


@frozen
class Taken:
    """What a binary takes: all its flags, and those of them with a value."""

    flags: frozenset[str] = field(factory=frozenset)
    valued: frozenset[str] = field(factory=frozenset)

    @property
    def is_known(self) -> bool:
        """Whether this is a llama-server's."""
        return self.flags >= ALWAYS


def taken(text: str) -> Taken:
    """Read a --help."""
    flags: set[str] = set()
    valued: set[str] = set()
    for line in text.splitlines():
        if (found := _FLAGS.match(line)) is not None:
            names = {found[1], *re.findall(r"-{1,2}[A-Za-z][\w-]*", found[2])}
            flags |= names
            valued |= names if found[3] else set()
    return Taken(frozenset(flags), frozenset(valued))


def unknown(arguments: Sequence[str], known: Taken) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each flag of the arguments that the binary does not take, with what may have been meant; nothing where its --help is
    no llama-server's. A word behind a flag with a value is that value, whatever it begins with."""
    is_value = False
    for word in arguments if known.is_known else ():
        was_value, is_value = is_value, False
        if was_value or not re.match(r"--?[A-Za-z]", word):
            continue
        # Its parser takes `_` for `-` in long flags, and no `=`.
        name = word.replace("_", "-") if word.startswith("--") else word
        flag, equals, _ = name.partition("=")
        if equals and flag in known.flags:
            yield word, (f"{flag} {word.partition('=')[2]}",)
        elif name not in known.flags:
            yield word, _near(flag, known.flags)
        else:
            is_value = name in known.valued


def _near(flag: str, flags: frozenset[str]) -> tuple[str, ...]:
    found = [RENAMED[flag]] if RENAMED.get(flag) in flags else []
    long = sorted(one for one in flags if one.startswith("--"))
    return (*found, *(one for one in difflib.get_close_matches(flag, long, n=3, cutoff=0.7) if one not in found))


def doubt(arguments: Sequence[str], text: str, script: str) -> str:
    """What to say of a launch whose llama-server is a script that shows a llama-server's --help; "" where that has all of its
    flags."""
    for flag, near in unknown(arguments, taken(text)):
        meant = f" (did you mean {' or '.join(near)}?)" if near else ""
        return f"the --help that {script} shows does not know {flag}{meant}: a flag of that script's own, or the server will end of it"
    return ""


def said(arguments: Sequence[str], text: str) -> str:
    """`all` where a binary of this --help takes all of them; else the first that it does not, and on a second line what to
    do."""
    for flag, near in unknown(arguments, taken(text)):
        return f"{flag}\n" + (f"did you mean {' or '.join(near)}?" if near else "remove it, or use a build that has it")
    return "all"
