"""A warden whose SIGKILL does not end the processes whose pids are in the file `stuck` beside its slot, as if they hung in
a driver. In a folder of its own, since a warden is known by its file's name.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import supervisor

HERE = Path(supervisor.__file__).with_name("warden.py")


def main() -> None:
    """As the real one, but for that."""
    spec = importlib.util.spec_from_file_location("real_warden", HERE)
    assert spec is not None
    assert spec.loader is not None
    warden: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(warden)
    kill_exact = warden.kill_exact
    stuck = Path(sys.argv[1]).with_name("stuck")

    def kill(pid: int, ticks: int, number: int) -> None:
        if not stuck.exists() or str(pid) not in stuck.read_text().split():
            kill_exact(pid, ticks, number)

    warden.kill_exact = kill
    warden.main()


if __name__ == "__main__":
    main()
