"""The kind `attached`: what it makes of a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor import config, resolving
from supervisor.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.contract import GroupSpec

LAUNCH = '[[groups.theirs.launches]]\nrole = "theirs"\nmodel = "m"\n'


def spec_of(folder: Path, options: str, launch: str = LAUNCH) -> GroupSpec:
    text = f'[groups.theirs]\nkind = "attached"\n[groups.theirs.options]\n{options}\n{launch}'
    (group,) = resolving.resolve(config.parse(text, folder / "queenright.toml")).groups
    return group


def test_clients_go_to_the_server_itself_and_its_start_has_no_limit(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k")
    spec = spec_of(tmp_path, 'url = "http://gpu-box:8000"\nkey_file = "key"')
    assert (spec.url, spec.key_file, spec.is_outside) == ("http://gpu-box:8000", str(tmp_path / "key"), False)
    assert spec.start_limit_s > 31_536_000


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "options.url: expected http://HOST:PORT"),
        ('url = "http://gpu-box"', "options.url: expected http://HOST:PORT"),
        ('url = "https://gpu-box:1"', "options.url: expected http://HOST:PORT"),
        ('url = "http://gpu-box:1/v1"', "options.url: expected http://HOST:PORT"),
        ('url = "http://gpu-box:99999"', "options.url: expected http://HOST:PORT"),
        ('url = "http://b:1"\nhealth = "x"', "options.health: expected a path"),
        ('url = "http://b:1"\nkey_file = "none"', "options.key_file: there is no file"),
        ('url = "http://b:1"\nulr = "x"', "options.ulr: unknown key; expected `url`?"),
    ],
)
def test_what_is_wrong_is_said(options: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        spec_of(tmp_path, options)
    assert says in str(raised.value)


def test_what_it_cannot_do_to_somebody_elses_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not started by us"):
        spec_of(tmp_path, 'url = "http://b:1"', LAUNCH + "idle_ttl_s = 5\n")
