"""Every error a user or a front end can meet, as data.

One base class; each subclass carries its facts as fields, survives pickling, names what is wrong in one line and
says the next step. `queenright` prints `str(error)` and exits with `error.exit_code`: no traceback reaches a user.
"""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """What a command's exit status means. The same table stands in docs/reference/exit-codes.md."""

    OK = 0
    ERROR = 1
    USAGE = 2
    OWNED_ELSEWHERE = 3
    NO_ENGINE = 4
    FAILED_FOR_GOOD = 5
    DOES_NOT_FIT = 6


def system_words(error: OSError) -> str:
    """What the operating system said: `No space left on device (ENOSPC)`."""
    return f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, '?')})"


class QueenrightError(Exception):
    """Base of all our errors.

    `what` is one sentence that names the thing; `next_step` is what the operator can do about it, or "".
    """

    exit_code = ExitCode.ERROR

    def __init__(self, what: str, next_step: str = "") -> None:
        super().__init__(what, next_step)
        self.what = what
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.what}\n  {self.next_step}" if self.next_step else self.what

    def as_dict(self) -> dict[str, Any]:
        """The error for `--json`: class name, text, next step, exit code."""
        return {
            "error": type(self).__name__,
            "what": self.what,
            "next_step": self.next_step,
            "exit_code": int(self.exit_code),
        }


class UsageError(QueenrightError):
    """The command line asks for something that cannot be."""

    exit_code = ExitCode.USAGE


class ConfigError(QueenrightError):
    """The configuration file cannot be used as it stands. Nothing was started."""

    exit_code = ExitCode.USAGE


class SlotError(QueenrightError):
    """The slot directory cannot be used: not ours, a symlink, read-only, or on a filesystem without usable flock."""


class LockTimeoutError(QueenrightError):
    """A lock was not free within its budget."""


class OwnedElsewhereError(QueenrightError):
    """Another process owns what was asked for."""

    exit_code = ExitCode.OWNED_ELSEWHERE


class ServedElsewhereError(OwnedElsewhereError):
    """Another server has this data directory or scope. `holder` is what it says of itself (pid, program, since, url,
    data_dir), as far as it can be believed; None where nothing can."""

    def __init__(self, what: str, next_step: str = "", holder: dict[str, Any] | None = None) -> None:
        super().__init__(what, next_step)
        self.args = (what, next_step, holder)  # what pickling makes it of again
        self.holder = holder

    def as_dict(self) -> dict[str, Any]:
        """As of every error, and the holder where one is known."""
        return super().as_dict() | ({"holder": self.holder} if self.holder else {})


class HeldError(OwnedElsewhereError):
    """Somebody holds the slot empty: no engine is started there until it is released."""


class NoEngineError(QueenrightError):
    """There is no engine in the slot, and this command does not start one."""

    exit_code = ExitCode.NO_ENGINE


class UnkillableError(QueenrightError):
    """Something outlived SIGKILL, as a process does that hangs in a driver. `pids` are those that were seen. What they
    hold (a generation's lock, memory, a device) stays taken, and nothing is started beside them."""

    def __init__(self, what: str, next_step: str = "", pids: tuple[int, ...] = ()) -> None:
        super().__init__(what, next_step)
        self.args = (what, next_step, pids)  # what pickling makes it of again
        self.pids = pids

    def as_dict(self) -> dict[str, Any]:
        """As of every error, and the pids where some are known."""
        return super().as_dict() | ({"pids": list(self.pids)} if self.pids else {})


class EngineBinaryError(QueenrightError):
    """No usable engine binary: none found, missing, or not executable."""


class ModelError(QueenrightError):
    """A model cannot be used: missing, unreadable, empty, truncated, or not a GGUF file."""


class ModelPullError(QueenrightError):
    """A model could not be brought into the cache. What was there before is untouched."""


class PayloadError(QueenrightError):
    """A file that an engine needs could not be brought, checked or put aside. What was in place before still is."""


class DiskFullError(PayloadError):
    """There is no room for a file. What arrived of it is kept, and gone on with once there is."""


class WrongPayloadError(PayloadError):
    """A file that cannot be had as it is named: its source has another one, or none is named. Trying again is of no use."""


class EngineStartError(QueenrightError):
    """The engine did not start within its budget; the reason is the group's own last words."""


class ProxyLostError(EngineStartError):
    """The proxy of a group broke off while it was asked to load: it is dead or about to be, and its end says more."""


class KindError(EngineStartError):
    """A kind of engine has a bug, or is not there any more: one of its hands raised or gave what none may. It is contained to
    the groups of that kind."""


class FailedForGoodError(QueenrightError):
    """A group was given up on: it never became healthy, or its breaker is open."""

    exit_code = ExitCode.FAILED_FOR_GOOD

    @classmethod
    def of_group(cls, name: str, reason: str) -> FailedForGoodError:
        """For who waited for that group."""
        step = f"`queenright logs {name}` has more; once it is mended, `queenright retry {name}` starts it again"
        return cls(f"group {name} failed: {reason}", step)


class GatewayError(QueenrightError):
    """The gateway cannot listen. The engine goes on without it."""


class DoesNotFitError(QueenrightError):
    """A launch does not fit into the memory that is there. The message has the numbers, and what would fit."""

    exit_code = ExitCode.DOES_NOT_FIT


class RecordError(QueenrightError):
    """A record on disk does not parse, or is of a version that this program does not know."""


class InterruptedAnswerError(QueenrightError):
    """An answer was cut after its first byte had reached the caller: never replayed, never shown as complete."""


class LinkError(QueenrightError):
    """The link between warden and keeper broke a rule of its protocol."""
