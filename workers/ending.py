"""Ends a child that nobody else waits for."""

from __future__ import annotations

import subprocess


def end(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """SIGTERM; after `limit_s` seconds SIGKILL. It is reaped. One that has ended already is left alone."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
