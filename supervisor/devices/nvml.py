"""Asking NVML, from outside: in a process of its own, with a limit. Nothing of NVML is ever loaded into ours.

A call into a wedged driver cannot be taken back, from a thread least of all; and each question begins with an
initialisation and ends with a shutdown, so nothing keeps a card awake between them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from supervisor import budgets
from supervisor.devices.nvml_child import NO_LIBRARY

CHILD = Path(__file__).resolve().parent / "nvml_child.py"
NO_PYNVML = "NO_PYNVML"
SILENT = "SILENT"
BROKEN = "BROKEN"
"""Beside NVML's own errors: its Python library is missing; there was no answer in time; the answer was none."""


_absent: dict[str, float] = {}
"""Until when no library is looked for (monotonic, in seconds), by the path that it is looked for in: where there is no
driver, each group of an engine would pay for a process that finds that out."""


def ask(limit: float = budgets.NVML_LIMIT) -> dict[str, Any]:
    """What NVML says (nvml_child.py), or `{"error": NAME}`. Blocks for up to `limit` seconds, some 0.05 where there is
    no driver, and not at all where that was found out just now; never raises."""
    places = os.environ.get("LD_LIBRARY_PATH", "")
    if time.monotonic() < _absent.get(places, 0.0):
        return {"error": NO_LIBRARY, "text": "there was none a moment ago"}
    answer = _ask(limit)
    if answer.get("error") == NO_LIBRARY:
        _absent[places] = time.monotonic() + budgets.NVML_ABSENT
    return answer


def _ask(limit: float) -> dict[str, Any]:
    found = find_spec("pynvml")
    if found is None or found.origin is None:
        return {"error": NO_PYNVML}
    words = [sys.executable, "-I", "-S", str(CHILD), str(Path(found.origin).parent)]
    try:
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        return {"error": BROKEN, "text": str(error)}
    try:
        said, words_of_it = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=budgets.NVML_END)
        return {"error": SILENT, "text": f"it gave no answer within {limit:g} s"}
    try:
        answer = json.loads(said)
    except ValueError:
        last = words_of_it.decode(errors="replace").strip().splitlines()[-1:] or [f"exit status {child.returncode}"]
        return {"error": BROKEN, "text": last[0]}
    return answer if isinstance(answer, dict) else {"error": BROKEN, "text": "it answered something else"}
