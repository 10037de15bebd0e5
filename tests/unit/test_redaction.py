"""What is taken out of a bundle, and what stays readable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.checks import Finding, lifetime_of, space_of
from supervisor.redaction import REMOVED, scrub, text_without, values_in

TREE = {
    "engine": {"slot": "/s", "keep_warm": True},
    "groups": {
        "chat": {
            "environment": {"HF_TOKEN": "hf_abcdefgh", "CUDA_VISIBLE_DEVICES": "0", "OPAQUE": "0123456789abcdef0"},
            "arguments": ["--api-key", "sesame-open", "-c", "4096", "--hf-token=other-secret", "--threads", "2"],
        }
    },
    "apiKeys": ["client-key", "generation-key"],
    "env": ["HF_TOKEN=hf_abcdefgh", "A=1"],
    "max_tokens": 7,
}


def test_secrets_go_by_name_and_environment_tables_as_a_whole() -> None:
    chat = scrub(TREE)["groups"]["chat"]
    assert chat["environment"] == {"HF_TOKEN": REMOVED, "CUDA_VISIBLE_DEVICES": REMOVED, "OPAQUE": REMOVED}
    assert chat["arguments"] == ["--api-key", REMOVED, "-c", "4096", f"--hf-token={REMOVED}", "--threads", "2"]
    assert scrub(TREE)["apiKeys"] == REMOVED
    assert scrub(TREE)["env"] == [f"HF_TOKEN={REMOVED}", f"A={REMOVED}"]
    assert scrub(TREE)["engine"] == TREE["engine"]
    assert scrub(TREE)["max_tokens"] == 7


def test_what_is_worth_looking_for_elsewhere() -> None:
    assert {"hf_abcdefgh", "0123456789abcdef0", "sesame-open", "other-secret"} <= set(values_in(TREE))
    assert "0" not in set(values_in(TREE))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("it said sesame-open twice: sesame-open", f"it said {REMOVED} twice: {REMOVED}"),
        ("curl -H 'Authorization: Bearer abc.def' x", f"curl -H 'Authorization: Bearer {REMOVED} x"),
        ("llama-server --api-key hunter2 -c 1", f"llama-server --api-key {REMOVED} -c 1"),
        ("llama-server --api-key-file /s/x.keys -c 1", "llama-server --api-key-file /s/x.keys -c 1"),
        ("predicted 12 tokens at 3 tokens per second", "predicted 12 tokens at 3 tokens per second"),
    ],
)
def test_text_loses_values_options_and_headers(text: str, left: str) -> None:
    assert text_without(text, ["sesame-open", "c"]) == left


@pytest.mark.parametrize(
    ("path", "lingers", "finding"),
    [
        ("/system.slice/webapp.service", True, Finding.WARNING),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/tmux.service", True, Finding.WARNING),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/queenright-01ab.scope", True, Finding.OK),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/queenright-01ab.scope", False, Finding.WARNING),
        ("/user.slice/user-1000.slice/session-3.scope", False, Finding.WARNING),
        ("/user.slice/user-1000.slice/session-3.scope", True, Finding.OK),
        ("/init.scope", False, Finding.OK),
        ("/", False, Finding.OK),
        ("", False, Finding.OK),
    ],
)
def test_what_ends_an_engine_with_its_starter_is_told_by_its_control_group(
    path: str, lingers: bool, finding: Finding
) -> None:
    assert lifetime_of(path, "somebody", lingers=lingers).finding is finding


PLAIN = st.one_of(st.none(), st.integers(), st.text(), st.sampled_from(["--api-key", "--token=x", "env", "key"]))
DATA = st.recursive(PLAIN, lambda more: st.one_of(st.lists(more), st.dictionaries(st.text(), more)))


@given(DATA, st.text())
def test_whatever_is_in_a_file_it_can_be_scrubbed(tree: object, text: str) -> None:
    scrub(tree)
    text_without(text, values_in(tree))


@pytest.mark.parametrize(
    ("blocks", "inodes", "finding", "missing"),
    [
        (1, 1, Finding.OK, ""),
        (1, None, Finding.OK, ""),
        (0, 1, Finding.WARNING, "no space left"),
        (1, 0, Finding.WARNING, "no inode left"),
    ],
)
def test_a_filesystem_that_takes_no_file_is_named(
    blocks: int, inodes: int | None, finding: Finding, missing: str
) -> None:
    check = space_of("/slot", blocks=blocks, inodes=inodes)
    assert check.finding is finding
    assert missing in check.text
