"""`make test`, `test-long` and `coverage`: the tests of a tier in two halves at once, since most wait for what they start.

    python .ci/halves.py short|long|coverage [ARGUMENTS FOR PYTEST...]

From the top of a clone. The first half is seen as it runs, the second when both are over, and last what they come to.
With arguments all runs as one. The exit status is pytest's, of the first half whose status is not 0.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, NamedTuple
from xml.etree import ElementTree

PYTEST = (sys.executable, "-m", "pytest", "-q")
FAILED = 1


class Tier(NamedTuple):
    """How pytest is told of it, the folders that are its first half, and whether coverage is measured."""

    words: tuple[str, ...]
    first: tuple[str, ...]
    measured: bool


TIERS = {
    "short": Tier(("-m", "not long"), ("tests/engine", "tests/cases"), measured=False),
    "coverage": Tier(("-m", "not long"), ("tests/engine", "tests/cases"), measured=True),
    "long": Tier(("-m", "long"), ("tests/cases",), measured=False),
}


class Half:
    """One of the two, running; `log` takes what it says, else the terminal does."""

    def __init__(self, tier: Tier, folder: Path, name: str, log: IO[str] | None = None) -> None:
        self.receipt = folder / f"{name}.xml"
        self.data = Path(f".coverage.{name}").absolute()
        which = tier.first if name == "first" else tuple(f"--ignore={path}" for path in tier.first)
        cover = ("--cov", "--cov-report=") if tier.measured else ()
        self.process = subprocess.Popen(
            [*PYTEST, *tier.words, *cover, f"--junit-xml={self.receipt}", *which],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | {"COVERAGE_FILE": str(self.data)},
        )

    def counts(self) -> tuple[int, int, int]:
        """Tests, of which failed, of which skipped; 0 for one that ended before it could say so."""
        if not self.receipt.exists():
            return 0, 0, 0
        (suite,) = ElementTree.parse(self.receipt).getroot()  # noqa: S314 - pytest wrote it just now
        tests, failures, errors, skipped = (int(suite.get(it, 0)) for it in ("tests", "failures", "errors", "skipped"))
        return tests, failures + errors, skipped


def run(tier: Tier) -> int:
    """Both halves; the exit status."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory() as name, (Path(name) / "log").open("w+") as log:
        halves = [Half(tier, Path(name), "first"), Half(tier, Path(name), "second", log)]
        try:
            statuses = wait(halves)
        finally:
            for half in halves:
                half.process.terminate()
            log.seek(0)  # also where something ends us before that half is over: it may be what hangs
            print(f"\n--- all but {' and '.join(tier.first)}\n{log.read()}", flush=True)
        tests, failed, skipped = (sum(each) for each in zip(*(half.counts() for half in halves), strict=True))
    if tier.measured:
        report([half.data for half in halves if half.data.exists()])
    status = next((status for status in statuses if status), 0)
    verdict = f", exit {' and '.join(map(str, statuses))}" if status else ""
    took = f"{time.monotonic() - began:.0f} s"
    print(f"both halves: {tests} tests, {failed} failed, {skipped} skipped{verdict}, in {took}")
    return status if status >= 0 else FAILED


def wait(halves: list[Half]) -> list[int]:
    """Their exit statuses. A Ctrl-C is told to all of us by the terminal: they end, and say what they have."""
    first, second = (half.process for half in halves)
    try:
        first.wait()
        if second.poll() is None:
            print("\n--- the second half still runs", flush=True)
        return [first.returncode, second.wait()]
    except KeyboardInterrupt:
        return [first.wait(), second.wait()]


def report(data: list[Path]) -> None:
    """What either of them covered."""
    coverage = (sys.executable, "-m", "coverage")
    subprocess.run([*coverage, "combine", "--quiet", *map(str, data)], check=False)
    subprocess.run([*coverage, "report"], check=False)


def main(argv: list[str]) -> int:
    tier, arguments = TIERS[argv[0]], argv[1:]
    if arguments:
        cover = ("--cov", "--cov-report=term") if tier.measured else ()
        os.execv(PYTEST[0], [*PYTEST, *tier.words, *cover, *arguments])
    return run(tier)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
