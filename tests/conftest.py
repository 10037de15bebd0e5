"""What holds for every test: how hypothesis runs, what a test may leave behind, and what a run's summary names."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests import leak_check
from tests.leak_check import Watch
from tests.support import MEASURED, RAN, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

# No deadline: on a busy machine an example takes as long as it takes, and a time limit would make it a timed test.
settings.register_profile("dev", deadline=None)
# The same examples every time, so that a red run says something about the change; found falsifications print a blob
# to replay them with `@reproduce_failure`.
settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

STARTS = ((subprocess.Popen, "__init__"), (os, "fork"), (os, "forkpty"), (os, "posix_spawn"), (os, "posix_spawnp"))
"""Everything by which Python starts a process."""

PACKAGING = ROOT / "tests" / "packaging"
"""Its tests run pip to its end and nothing else: nobody looks for what they leave."""

os.environ.setdefault("QUEENRIGHT_ESTIMATOR", "none")
"""A plan asks a program for an estimate: in tests only where that is what they are about."""

_started: list[str] = []


def _noting(place: Any, name: str) -> Any:
    """That function, noting each call. An audit hook would do, too; but it is called for whatever happens, in the middle of a
    trace function's being set as well, and CPython refuses to have two set at once (seen with 16 threads under coverage)."""
    function = getattr(place, name)

    @functools.wraps(function)
    def noted(*args: Any, **options: Any) -> Any:
        _started.append(name)
        return function(*args, **options)

    return noted


for _place, _name in STARTS:
    setattr(_place, _name, _noting(_place, _name))


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test that starts processes, another process looks for what is left of it. A test that starts some and
    is not marked as one that does fails."""
    if not any(request.node.get_closest_marker(name) for name in ("process", "engine")):
        count = len(_started)
        yield
        is_exempt = PACKAGING in request.path.parents
        assert is_exempt or len(_started) == count, "this test starts processes: mark it `process`"
        return
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    watch = Watch()
    yield
    watch.close(folder)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what stood behind the tests: a run without a real llama-swap or llama-server proves less."""
    for what, which in sorted(RAN.items()):
        terminalreporter.write_line(f"{what} that ran: {', '.join(sorted(which))}")
    for case, figures in sorted(MEASURED.items()):
        terminalreporter.write_line(f"{case} measured: {'; '.join(figures)}")


def pytest_sessionstart() -> None:
    """Under nohup, or in the background of a script, some signals are ignored, and what a test starts would inherit that:
    a run that is to end by a hang-up would not. Tests mean signals as a user's shell has them."""
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionfinish() -> None:
    """Nobody looks any more."""
    leak_check.end()
