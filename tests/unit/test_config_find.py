"""Where the configuration and the slot are, and what becomes of a file that cannot be read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.config import default_slot, find, load
from supervisor.config_find import SIZE_LIMIT, locate_slot
from supervisor.errors import ConfigError

ROOT = Path(__file__).parents[2]
SMALL = '[[groups.chat.launches]]\nrole = "chat"\nmodel = "smollm2-135m"\n'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own; the variables that steer the search are gone."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("QUEENRIGHT_CONFIG", "QUEENRIGHT_SLOT", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    return home


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_file_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "queenright.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())  # as some editors write it
    assert load(path).groups.keys() == {"chat"}


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "latin").write_bytes(b"# one\n# caf\xe9\n")
    (tmp_path / "large").write_bytes(b"#" * (SIZE_LIMIT + 1))
    (tmp_path / "unreadable").symlink_to("unreadable")  # a loop: root may read anything else
    for name, says in {
        "directory": "cannot be read: Is a directory",
        "fifo": "found a FIFO",
        "latin": "line 2: not UTF-8 (byte 0xe9)",
        "large": "larger than 1048576 bytes",
        "unreadable": "cannot be read: Too many levels of symbolic links",
        "missing": "cannot be read: No such file or directory",
        "fifo/x": "cannot be read: Not a directory",
        "a\0b": "cannot be read: embedded null byte",
        "/dev/null": "found a device",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(says)) as caught:
            load(tmp_path / name)
        assert str(tmp_path / name) in caught.value.what
        assert caught.value.next_step


# --- finding --------------------------------------------------------------------------------------------------------


def test_the_nearest_file_upwards_is_found(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (tmp_path / "queenright.toml").touch()
    assert find(deep) == tmp_path / "queenright.toml"
    (tmp_path / "a" / "queenright.toml").touch()
    assert find(deep) == tmp_path / "a" / "queenright.toml"
    (deep / "queenright.toml").mkdir()  # no regular file: passed over
    os.mkfifo(tmp_path / "a" / "b" / "queenright.toml")
    assert find(deep) == tmp_path / "a" / "queenright.toml"


def test_the_search_begins_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "queenright.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert find() == tmp_path / "queenright.toml"


def test_the_user_s_file_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "etc"))
    user = tmp_path / "etc" / "queenright" / "queenright.toml"
    user.parent.mkdir(parents=True)
    user.touch()
    assert find(tmp_path) == user
    (tmp_path / "queenright.toml").touch()
    assert find(tmp_path) == tmp_path / "queenright.toml"


def test_what_is_named_goes_before_what_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("queenright.toml", "variable.toml", "option.toml"):
        (tmp_path / name).touch()
    monkeypatch.setenv("QUEENRIGHT_CONFIG", str(tmp_path / "variable.toml"))
    assert find(tmp_path) == tmp_path / "variable.toml"
    assert find(tmp_path, tmp_path / "option.toml") == tmp_path / "option.toml"
    monkeypatch.setenv("QUEENRIGHT_CONFIG", "")  # as unset
    assert find(tmp_path) == tmp_path / "queenright.toml"


def test_what_is_named_and_not_there_is_not_replaced_by_what_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queenright.toml").touch()
    with pytest.raises(ConfigError, match=r"gone\.toml: .*--config names: No such file"):
        find(tmp_path, tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match="--config names a directory; expected a file"):
        find(tmp_path, tmp_path)
    with pytest.raises(ConfigError, match="File name too long"):
        find(tmp_path, tmp_path / ("x" * 5000))
    monkeypatch.setenv("QUEENRIGHT_CONFIG", str(tmp_path / "gone.toml"))
    with pytest.raises(ConfigError, match="QUEENRIGHT_CONFIG names: No such file"):
        find(tmp_path)
    monkeypatch.setenv("QUEENRIGHT_CONFIG", "  ")
    with pytest.raises(ConfigError, match="QUEENRIGHT_CONFIG: expected a path that is not empty"):
        find(tmp_path)


def test_where_there_is_none_the_error_says_where_it_looked(tmp_path: Path, home: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find(tmp_path)
    assert caught.value.what == (
        f"there is no configuration: no queenright.toml in {tmp_path} or above it and none in {home}/.config/queenright"
    )
    assert "queenright init" in caught.value.next_step


def test_a_working_directory_that_was_removed_is_no_obstacle(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match=re.escape(f"no queenright.toml in {home}/.config/queenright")):
        find()


def test_a_file_of_another_user_is_not_used_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "queenright.toml"
    path.touch()
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    if path.stat().st_uid == 0:  # root's files are everybody's to use: give this one to somebody
        os.chown(path, 4711, -1)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ConfigError, match="belongs to another user"):
        find(tmp_path)
    assert find(tmp_path, path) == path


# --- the slot -------------------------------------------------------------------------------------------------------


def test_the_slot_is_the_variable_s_then_the_file_s_then_the_user_s(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "queenright.toml"

    def both() -> Path:
        slow = default_slot(load(path) if path.exists() else None)
        assert locate_slot(tmp_path) == slow
        return slow

    assert both() == home / ".local/state/queenright/slot"
    path.write_text(SMALL)
    assert both() == home / ".local/state/queenright/slot"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert both() == tmp_path / "state/queenright/slot"
    path.write_text('[engine]\nslot = "mine"\n' + SMALL)
    assert both() == tmp_path / "mine"
    monkeypatch.setenv("QUEENRIGHT_SLOT", str(tmp_path / "theirs"))
    assert both() == tmp_path / "theirs"


def test_a_misspelt_key_does_not_hide_the_slot(tmp_path: Path) -> None:
    (tmp_path / "queenright.toml").write_text('[engine]\nslot = "mine"\nkeepwarm = 1\n')
    assert locate_slot(tmp_path) == tmp_path / "mine"


@pytest.mark.parametrize("text", ["[engine]\nslot = 1", '[engine]\nslot = ""', "[engine\n"])
def test_a_slot_that_cannot_be_known_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "queenright.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path / "queenright.toml"))):
        locate_slot(tmp_path)


@pytest.mark.process
def test_finding_the_slot_needs_no_library_but_platformdirs() -> None:
    script = (
        "import sys; from supervisor.config_find import locate_slot; locate_slot();"
        "print([n for n in ('attr', 'attrs', 'cattrs') if n in sys.modules]);"
        "import supervisor.config; print([n for n in ('cattrs', 'trio', 'httpx', 'rich') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]
