"""What a configuration says, what is refused and in which words, and that no file whatever is a traceback."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import NOTHING, Factory, fields
from hypothesis import given
from hypothesis import strategies as st

from supervisor import budgets, config_check, config_rules
from supervisor.config import Config, EngineConfig, GatewayConfig, GroupConfig, LaunchConfig, parse
from supervisor.config_text import TEMPLATE
from supervisor.errors import ConfigError, ExitCode

HERE = Path("/srv/app/queenright.toml")
LAUNCH = '[[groups.chat.launches]]\nrole = "chat"\nmodel = "smollm2-135m"\n'
WHOLE = """\
[engine]
slot = "slot"
keep_warm = true
llama_server = "./bin/llama-server"
llama_swap = "built-in"
[groups.chat]
kind = "llama-swap"
environment = { CUDA_VISIBLE_DEVICES = "0" }
grace_s = 3
start_limit_s = 600.5
[[groups.chat.launches]]
role = "chat"
model = "../models/big.gguf"
context = 8192
sequences = 2
idle_ttl_s = 300
arguments = ["-ngl", "99"]
[groups.embed]
[[groups.embed.launches]]
role = "embed"
model = "minilm-l6"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def refused(text: str, path: Path = HERE) -> list[str]:
    """The lines of the refusal, without the file's name, which each must have."""
    with pytest.raises(ConfigError) as caught:
        parse(text, path)
    assert caught.value.exit_code is ExitCode.USAGE
    lines = caught.value.what.splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    return [line.removeprefix(f"{path}: ") for line in lines]


def only(text: str) -> str:
    """The refusal of a file with one thing wrong."""
    (line,) = refused(text)
    return line


# --- what a right file gives ----------------------------------------------------------------------------------------


def test_every_key_arrives_where_it_belongs() -> None:
    assert parse(WHOLE, HERE) == Config(
        path=HERE,
        engine=EngineConfig(
            slot=Path("/srv/app/slot"),
            keep_warm=True,
            llama_server=Path("/srv/app/bin/llama-server"),
            llama_swap="built-in",
        ),
        groups={
            "chat": GroupConfig(
                name="chat",
                kind="llama-swap",
                environment={"CUDA_VISIBLE_DEVICES": "0"},
                grace_s=3.0,
                start_limit_s=600.5,
                launches=(LaunchConfig("chat", "/srv/models/big.gguf", 8192, 2, 300, ("-ngl", "99")),),
            ),
            "embed": GroupConfig(name="embed", launches=(LaunchConfig("embed", "minilm-l6"),)),
        },
    )


def test_a_file_of_three_lines_gets_the_defaults() -> None:
    config = parse(LAUNCH, HERE)
    assert config.engine == EngineConfig()
    group = config.groups["chat"]
    assert (group.grace_s, group.start_limit_s) == (budgets.GROUP_GRACE, budgets.START_LIMIT)
    assert group.launches[0].context == 4096


def test_a_whole_number_does_for_a_float_and_becomes_one() -> None:
    grace = parse(WHOLE, HERE).groups["chat"].grace_s
    assert isinstance(grace, float)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("smollm2-135m", "smollm2-135m"),
        ("m.gguf", "/srv/app/m.gguf"),
        ("M.GGUF", "/srv/app/M.GGUF"),
        ("sub/m", "/srv/app/sub/m"),
        ("/abs/m.gguf", "/abs/m.gguf"),
        ("~/m.gguf", "{home}/m.gguf"),
    ],
)
def test_a_model_is_a_catalog_name_or_a_path(written: str, meant: str, home: Path) -> None:
    config = parse(LAUNCH.replace("smollm2-135m", written), HERE)
    launch = config.groups["chat"].launches[0]
    assert launch.model == meant.format(home=home)
    assert (launch.path is None) == (written == "smollm2-135m")


def test_the_path_of_the_file_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = parse(LAUNCH.replace("smollm2-135m", "./m"), Path("queenright.toml"))
    assert config.path == tmp_path / "queenright.toml"
    assert config.groups["chat"].launches[0].model == str(tmp_path / "m")


def test_what_a_kind_alone_knows_is_left_to_it_as_it_stands() -> None:
    (group,) = parse('[groups.chat]\noptions = { a = { b = [1, 2.5, "x"] } }\n' + LAUNCH, HERE).groups.values()
    assert group.options == {"a": {"b": [1, 2.5, "x"]}}
    assert group.folder == Path("/srv/app")  # what paths in it are relative to
    assert only("[groups.chat]\noptions = 1\n" + LAUNCH) == (
        "groups.chat.options: expected a table, found the integer 1"
    )
    assert only('[groups.chat]\nfolder = "/x"\n' + LAUNCH).startswith("groups.chat.folder: unknown key; expected one")


def test_an_argument_may_look_like_a_value_that_is_ours() -> None:
    config = parse(LAUNCH + 'arguments = ["--override-kv", "x=int:4", "--metrics", "-ctk", "q8_0"]', HERE)
    assert len(config.groups["chat"].launches[0].arguments) == 5


def test_another_kind_of_group_may_have_any_argument() -> None:
    parse('[groups.chat]\nkind = "command"\n' + LAUNCH + 'arguments = ["-m", "some.module", "--port", "1"]', HERE)


# --- what is refused, and in which words ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "groups: missing; expected at least one [groups.NAME] table"),
        (
            "[groups]",
            "groups: expected at least one [groups.NAME] table (there is nothing to run), found an empty table",
        ),
        ("groups = 3", "groups: expected a table, [groups.NAME], found the integer 3"),
        ("engine = 3\n" + LAUNCH, "engine: expected a table, [engine], found the integer 3"),
        ("[groups.chat]", "groups.chat.launches: missing; expected at least one [[groups.NAME.launches]] table"),
        (
            "[groups.chat]\nlaunches = []",
            "groups.chat.launches: expected at least one [[groups.NAME.launches]] table, found an empty array",
        ),
        (
            '[groups.chat.launches]\nrole = "a"',
            "groups.chat.launches: expected at least one [[groups.NAME.launches]] table, found a table",
        ),
        (
            "[groups.chat]\nlaunches = [3]",
            "groups.chat.launches[0]: expected a table, [[groups.NAME.launches]], found the integer 3",
        ),
        ("[group.chat]\n" + LAUNCH, "group: unknown key; expected `groups`?"),
        ("zzz = 1\n" + LAUNCH, "zzz: unknown key; expected one of engine, groups, gateway"),
        ('path = "/x"\n' + LAUNCH, "path: unknown key; expected one of engine, groups, gateway"),
        (
            '[groups.chat]\nname = "x"\n' + LAUNCH,
            "groups.chat.name: unknown key; the group's name is the one in its heading",
        ),
        (LAUNCH + "contxt = 1", "groups.chat.launches[0].contxt: unknown key; expected `context`?"),
        ("[engine]\nkeepwarm = true\n" + LAUNCH, "engine.keepwarm: unknown key; expected `keep_warm`?"),
        (
            LAUNCH + '[groups."a b"]\nlaunches = [{role = "x", model = "y"}]',
            'groups."a b": expected a name of 1 to 32 characters a-z, 0-9 and -, the first not -, '
            'found the string "a b"',
        ),
    ],
)
def test_a_wrong_shape_is_refused(text: str, line: str) -> None:
    assert only(text) == line


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (
            "context",
            '"4096"',
            'expected a whole number from 1 to 10000000 (tokens per sequence), or "auto", found the string "4096"',
        ),
        ("context", "true", "found the boolean true"),
        ("context", "4096.0", "found the float 4096.0"),
        ("context", "0", "found the integer 0"),
        ("context", "10_000_001", "found the integer 10000001"),
        ("context", "0x" + "f" * 5000, "found an integer of more than 64 bits"),
        ("context", "2026-01-01", "found the date 2026-01-01"),
        ("sequences", "0", "expected a whole number from 1 to 64"),
        ("sequences", "65", "found the integer 65"),
        ("idle_ttl_s", "-1", "expected a whole number from 0 to 31536000 (seconds; 0 = never)"),
        ("arguments", '"-ngl 99"', 'expected an array of strings, found the string "-ngl 99"'),
        ("arguments", "{}", "expected an array of strings, found an empty table"),
        ("arguments[0]", "99", "expected a string without NUL, found the integer 99"),
        ("arguments[0]", r'"\u0000"', "expected a string without NUL"),
    ],
)
def test_a_wrong_value_of_a_launch_is_refused(key: str, value: str, says: str) -> None:
    name, _, item = key.partition("[")
    line = only(f"{LAUNCH}{name} = {'[' + value + ']' if item else value}")
    assert line.startswith(f"groups.chat.launches[0].{key}: expected ")
    assert says in line


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("grace_s", "0", "expected a number above 0 and below 3.5 (seconds), found the integer 0"),
        ("grace_s", "3.5", "found the float 3.5"),
        ("grace_s", "nan", "found the float nan"),
        ("grace_s", "true", "found the boolean true"),
        ("start_limit_s", "inf", "expected a number above 0 and at most 86400 (seconds)"),
        ("start_limit_s", "0x" + "f" * 5000, "found an integer of more than 64 bits"),
        ("start_limit_s", '"2 min"', 'found the string "2 min"'),
        ("kind", '"LLAMA"', "expected a name"),
        ("kind", "1", "expected a name"),
        ("environment", "[]", "expected a table of strings, found an empty array"),
        ("environment.A", "1", "expected a string without NUL, found the integer 1"),
        ("environment.A", r'"a\u0000"', "expected a string without NUL"),
        ('environment."a b"', '"1"', "expected a variable's name"),
        ("environment.QUEENRIGHT_X", '"1"', "expected no variable that begins with QUEENRIGHT_"),
    ],
)
def test_a_wrong_value_of_a_group_is_refused(key: str, value: str, says: str) -> None:
    line = only(f"[groups.chat]\n{key} = {value}\n{LAUNCH}")
    assert line.startswith(f"groups.chat.{key}: ")
    assert says in line


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("slot", '""', "expected a path, not empty"),
        ("slot", "1", "found the integer 1"),
        ("slot", r'"a\u0000b"', "expected a path"),
        ("slot", '"~nobody-has-this-name/x"', "expected a path"),
        ("keep_warm", '"yes"', 'expected true or false, found the string "yes"'),
        ("keep_warm", "1", "expected true or false, found the integer 1"),
        ("llama_server", '"llama-server"', "expected a path with a / in it"),
        ("llama_swap", '"builtin"', 'expected "built-in" or a path with a / in it'),
        ("llama_swap", "[]", "found an empty array"),
    ],
)
def test_a_wrong_value_of_the_engine_is_refused(key: str, value: str, says: str) -> None:
    line = only(f"[engine]\n{key} = {value}\n{LAUNCH}")
    assert line.startswith(f"engine.{key}: ")
    assert says in line


@pytest.mark.parametrize("value", ['""', '"m x"', '"a\\nb"', "[]", '"~nobody-has-this-name/m"'])
def test_a_wrong_model_is_refused(value: str) -> None:
    line = only(LAUNCH.replace('"smollm2-135m"', value))
    assert line.startswith("groups.chat.launches[0].model: expected the name of a catalog model, or a path")


def test_a_pool_holds_at_least_one_whole_context() -> None:
    launch = parse(LAUNCH + "context = 512\nsequences = 4\npool = 512", HERE).groups["chat"].launches[0]
    assert (launch.context, launch.pool) == (512, 512)
    expected = "groups.chat.launches[0].pool: expected 0 or at least `context`, which is"
    assert only(LAUNCH + "pool = 4095") == f"{expected} 4096, found the integer 4095"
    assert parse(LAUNCH + "pool = 0", HERE).groups["chat"].launches[0].pool == 0


def test_the_least_context_is_at_most_the_context() -> None:
    launch = parse(LAUNCH + "context = 512\nleast_context = 512", HERE).groups["chat"].launches[0]
    assert (launch.context, launch.least_context) == (512, 512)
    key = "groups.chat.launches[0].least_context"
    expected = "expected at most `context`, which is"
    assert only(LAUNCH + "least_context = 4097") == f"{key}: {expected} 4096, found the integer 4097"
    assert only(LAUNCH + "context = 8\nleast_context = 9") == f"{key}: {expected} 8, found the integer 9"
    assert "a whole number from 0" in only(LAUNCH + "least_context = true")


@pytest.mark.parametrize("role", ["", "Chat", "a/b", "x" * 33])
def test_a_wrong_role_is_refused(role: str) -> None:
    assert only(LAUNCH.replace('"chat"', f'"{role}"')).startswith("groups.chat.launches[0].role: expected a name")


@pytest.mark.parametrize("flag", sorted(config_rules.OWNED))
def test_an_argument_that_is_ours_is_refused_with_what_to_do_instead(flag: str) -> None:
    line = only(f'{LAUNCH}arguments = ["--metrics", "{flag}", "1"]')
    assert line == (
        "groups.chat.launches[0].arguments[1]: expected an argument that is not ours to give, "
        f"found {flag}: {config_rules.OWNED[flag]}"
    )


@pytest.mark.parametrize("spelling", ["--ctx_size", "--ctx-size=1"])
def test_other_spellings_of_an_argument_that_is_ours_are_refused(spelling: str) -> None:
    assert "set `context` instead" in only(f'{LAUNCH}arguments = ["{spelling}"]')


def test_a_role_is_there_once_in_the_whole_engine() -> None:
    line = only(LAUNCH + '[[groups.b.launches]]\nrole = "chat"\nmodel = "other"\n')
    assert line == (
        'groups.b.launches[0].role: expected a role of its own, found the string "chat", '
        "which groups.chat.launches[0] has already"
    )


def test_all_problems_are_told_at_once() -> None:
    text = """\
[engine]
keep_wram = true
slot = ""
[groups.Chat]
grace_s = "2"
[[groups.Chat.launches]]
role = "chat"
contxt = 1
arguments = ["-c", 7]
[[groups.Chat.launches]]
role = "chat"
model = "m"
sequences = 0
[groups.empty]
"""
    keys = [line.split(": ")[0] for line in refused(text)]
    assert sorted(keys) == sorted(
        [
            "engine.keep_wram",
            "engine.slot",
            "groups.Chat",
            "groups.Chat.grace_s",
            "groups.Chat.launches[0].arguments[0]",
            "groups.Chat.launches[0].arguments[1]",
            "groups.Chat.launches[0].contxt",
            "groups.Chat.launches[0].model",
            "groups.Chat.launches[1].role",
            "groups.Chat.launches[1].sequences",
            "groups.empty.launches",
        ]
    )


def test_nothing_that_a_terminal_would_act_upon_reaches_the_message() -> None:
    (line,) = refused(r'"\u001b[2J\n" = 1' + "\n" + LAUNCH)
    assert line.startswith(r'"\u001b[2J\n": unknown key')


def test_a_bug_of_ours_is_not_dressed_up_as_a_fault_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(base: Path, each: Any) -> dict[type, dict[str, config_rules.Rule]]:
        rules = config_rules.rules_of(base, each)
        rules[LaunchConfig]["context"] = config_rules.Rule("", lambda value: value.no_such_thing)
        return rules

    monkeypatch.setattr(config_check, "rules_of", broken)
    with pytest.raises(AttributeError):
        parse(LAUNCH + "context = 1", HERE)


# --- TOML ----------------------------------------------------------------------------------------------------------


def test_a_slip_in_the_toml_is_told_with_line_and_column() -> None:
    assert re.match(
        r"line 2, column 9: not valid TOML: \S", only("[engine]\nslot = x\n").replace("column 8", "column 9")
    )


def test_a_toml_that_ends_too_early_says_so() -> None:
    assert only('[engine]\nslot = """abc').startswith("end of file: not valid TOML: ")


@pytest.mark.parametrize(
    "text", ["a = " + "9" * 5000, "a = " + "[" * 100_000, "[a]\n[a]", "a = 1\na = 2", "a = 2026-13-01"]
)
def test_whatever_the_parser_stumbles_over_is_a_refusal(text: str) -> None:
    refused(text)


# --- text, docs and code say the same -------------------------------------------------------------------------------


def uncommented(text: str) -> str:
    """The template with every key in force."""
    return re.sub(r"^# ([a-z_]+ = )", r"\1", text, flags=re.MULTILINE)


def keys_of(cls: type) -> dict[str, Any]:
    """The keys of a class and their defaults."""
    given = {GroupConfig: {"name", "folder"}, GatewayConfig: {"is_named"}}.get(cls, set())
    return {
        field.name: field.default.factory() if isinstance(field.default, Factory) else field.default  # type: ignore[arg-type]
        for field in fields(cls)
        if field.name not in given
    }


def test_the_template_loads_as_it_is() -> None:
    config = parse(TEMPLATE, HERE)
    models = {launch.role: launch.model for group in config.groups.values() for launch in group.launches}
    assert models == {"chat": "smollm2-135m", "embed": "minilm-l6"}
    assert config.engine == EngineConfig()
    assert config.groups["chat"] == GroupConfig("chat", (LaunchConfig("chat", "smollm2-135m"),))


def test_the_template_names_every_key_with_its_default() -> None:
    import tomllib

    text = uncommented(TEMPLATE)
    parse(text, HERE)
    tree = tomllib.loads(text)
    group = tree["groups"]["chat"]
    for cls, table in (
        (EngineConfig, tree["engine"]),
        (GatewayConfig, tree["gateway"]),
        (GroupConfig, group),
        (LaunchConfig, group["launches"][0]),
    ):
        keys = keys_of(cls)
        assert table.keys() == keys.keys()
        for key, default in keys.items():
            if default not in (NOTHING, None, {}):  # those have an example
                assert table[key] == (list(default) if isinstance(default, tuple) else default), key


def test_the_reference_names_every_key_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/configuration.md").read_text()
    sections = dict(re.findall(r"^## `([^`]+)`\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL))
    for cls, heading in (
        (EngineConfig, "[engine]"),
        (GatewayConfig, "[gateway]"),
        (GroupConfig, "[groups.NAME]"),
        (LaunchConfig, "[[groups.NAME.launches]]"),
    ):
        rows = re.findall(r"^\| `(\w+)` \| .*? \| (\S+) \| ", sections[heading], flags=re.MULTILINE)
        written = {key: default.strip("`") for key, default in rows}
        words = {NOTHING: "required", None: "unset", (): "[]"}
        assert written == {
            key: "{}" if default == {} else words[default] if default in words else json.dumps(default)
            for key, default in keys_of(cls).items()
        }
    for flag in config_rules.OWNED:
        assert f"`{flag}`" in sections["[[groups.NAME.launches]]"]
    assert f"below {config_rules.GRACE_BELOW:g}" in sections["[groups.NAME]"]
    assert f"at most {config_rules.START_LIMIT_MOST}" in sections["[groups.NAME]"]
    for bound in (config_rules.CONTEXT_MOST, config_rules.SEQUENCES_MOST, config_rules.IDLE_TTL_MOST):
        assert f" to {bound} " in sections["[[groups.NAME.launches]]"]


def test_every_key_has_a_rule() -> None:
    rules = config_rules.rules_of(Path("/"), lambda _, __: [])
    for cls in (EngineConfig, GatewayConfig, GroupConfig, LaunchConfig):
        assert rules[cls].keys() == {field.name for field in fields(cls)} - {"launches"}


@pytest.mark.parametrize("listen", ["0.0.0.0:11411", "192.168.1.5:80", "[::]:11411", "box.lan:11411"])
def test_beyond_loopback_the_gateway_takes_a_key(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"gateway\.listen: .*set `api_key_file` as well") as raised:
        parse(f'[gateway]\nlisten = "{listen}"\n{LAUNCH}', HERE)
    assert len(raised.value.what.splitlines()) == 1
    config = parse(f'[gateway]\nlisten = "{listen}"\napi_key_file = "keys"\n{LAUNCH}', HERE)
    assert config.gateway.api_key_file == HERE.parent / "keys"
    for local in ("127.0.0.1:0", "localhost:11411", "[::1]:11411", "127.1.2.3:5"):
        assert parse(f'[gateway]\nlisten = "{local}"\n{LAUNCH}', HERE).gateway.api_key_file is None
    parse(f'[gateway]\nenabled = false\nlisten = "{listen}"\n{LAUNCH}', HERE)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('origins = ["http://localhost:3000/"]', "origins[0]: expected SCHEME://HOST"),
        ('origins = ["*"]', "origins[0]: expected SCHEME://HOST"),
        ('hosts = ["engine.lan:80"]', "hosts[0]: expected a host's name or address, without a port"),
        ("body_limit_mb = 513", "body_limit_mb: expected a whole number from 1 to 512 (MiB)"),
        ('api_key_file = ""', "api_key_file: expected a path, not empty"),
    ],
)
def test_what_the_gateway_lets_in_is_checked(line: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"gateway.{says}")):
        parse(f"[gateway]\n{line}\n{LAUNCH}", HERE)


# --- whatever is in the file ----------------------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["", "chat", "built-in", "~", "/x", "--port", "QUEENRIGHT_X", 1, 2.5, True])
)
KEYS = st.text(max_size=8) | st.sampled_from(
    [field.name for cls in (Config, EngineConfig, GatewayConfig, GroupConfig, LaunchConfig) for field in fields(cls)]
    + ["chat", "a"]
)
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))


def as_toml(value: Any) -> str:
    """A value as inline TOML. None, which TOML has not, becomes a date, which JSON has not."""
    match value:
        case None:
            return "1979-05-27T07:32:00Z"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return "[" + ", ".join(map(as_toml, value)) + "]"
    return "{" + ", ".join(f"{as_toml(k)} = {as_toml(v)}" for k, v in value.items()) + "}"


def loads_or_refuses(text: str) -> Config | None:
    """The configuration, or None where it is refused in our words; any other exception goes through."""
    try:
        return parse(text, HERE)
    except ConfigError as error:
        lines = error.what.split("\n")
        assert all(line.startswith(f"{HERE}: ") for line in lines)
        assert all(line.isprintable() for line in lines)
        return None


@given(data=st.data())
def test_a_valid_file_with_one_value_changed_loads_or_is_refused(data: st.DataObject) -> None:
    import tomllib

    tree = tomllib.loads(WHOLE)
    place: Any = tree
    while True:
        steps = list(place) if isinstance(place, dict) else list(range(len(place)))
        step = data.draw(st.sampled_from(steps))
        if not (isinstance(place[step], dict | list) and place[step]) or data.draw(st.booleans()):
            break
        place = place[step]
    match data.draw(st.sampled_from(["change", "remove", "rename"])):
        case "change":
            place[step] = data.draw(TREES)
        case "remove":
            del place[step]
        case _ if isinstance(place, dict):
            place[data.draw(KEYS)] = place.pop(step)
    loads_or_refuses("\n".join(f"{as_toml(key)} = {as_toml(value)}" for key, value in tree.items()))


@given(tree=st.dictionaries(KEYS, TREES, max_size=5))
def test_any_toml_at_all_loads_or_is_refused(tree: dict[str, Any]) -> None:
    loads_or_refuses("\n".join(f"{as_toml(key)} = {as_toml(value)}" for key, value in tree.items()))


@given(
    place=st.integers(0, len(WHOLE)),
    length=st.integers(0, 12),
    put=st.text(max_size=6) | st.text(alphabet='[]{}="\n#.\\', max_size=6),
)
def test_a_valid_text_cut_and_pasted_loads_or_is_refused(place: int, length: int, put: str) -> None:
    loads_or_refuses(WHOLE[:place] + put + WHOLE[place + length :])


@pytest.mark.parametrize("key", ["context", "sequences"])
def test_auto_is_decided_later(key: str) -> None:
    (launch,) = parse(f'{LAUNCH}{key} = "auto"\n', HERE).groups["chat"].launches
    assert getattr(launch, key) == 0
    with pytest.raises(ConfigError, match=r"pool: expected 0 where `context` or `sequences` is .auto."):
        parse(f'{LAUNCH}{key} = "auto"\npool = 8192\n', HERE)
    with pytest.raises(ConfigError, match="`plan` is false"):
        parse(f'[groups.chat]\nplan = false\n{LAUNCH}{key} = "auto"\n', HERE)
