"""What of a front end's environment an engine inherits: an allow-list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.environment import ALLOWED, SCRUBBED, clean

FOREIGN = [
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "OPENAI_API_KEY",
    "HF_TOKEN",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "VIRTUAL_ENV",
    "HTTP_PROXY",
    "http_proxy",
    "LLAMA_ARG_CTX_SIZE",
    "QUEENRIGHT_SLOT",
    "QUEENRIGHT_CONFIG",
    "QUEENRIGHT_GENERATION",
    "QUEENRIGHT_GENERATION_FD",
    "QUEENRIGHT_LLAMA_SERVER",
    "QUEENRIGHT_LLAMA_SWAP",
    "QUEENRIGHT_TRACEBACK",
    "NOTIFY_SOCKET",
    "SSH_AUTH_SOCK",
    "DBUS_SESSION_BUS_ADDRESS",
    "LC",
    "path",
    "",
]


@pytest.mark.parametrize("name", FOREIGN)
def test_what_belongs_to_one_front_end_stays_there(name: str) -> None:
    assert clean({name: "x", "HOME": "/home/u"}) == {"HOME": "/home/u"}


@pytest.mark.parametrize(
    "name", ["HOME", "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "USER", "XDG_RUNTIME_DIR", "TZ"]
)
def test_what_describes_user_and_machine_goes_on(name: str) -> None:
    assert clean({name: "x"}) == {name: "x"}


def test_what_speaks_to_one_process_alone_is_never_allowed() -> None:
    assert not ALLOWED & set(SCRUBBED)


@given(st.dictionaries(st.text(max_size=20) | st.sampled_from(sorted(ALLOWED)) | st.sampled_from(FOREIGN), st.text()))
def test_nothing_is_added_or_changed(environment: dict[str, str]) -> None:
    left = clean(environment)
    assert left.items() <= environment.items()
    assert {name for name in left if not name.startswith("LC_")} == set(environment) & ALLOWED
    assert clean(left) == left
