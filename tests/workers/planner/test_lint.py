"""What a model's file says that its launch should heed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from attrs import evolve

from supervisor.config_shape import GroupConfig, LaunchConfig
from tests.workers.planner.test_foreseeing import gpu, survey
from workers import advising
from workers.engines import Binary, Kind, Origin
from workers.planner import lint
from workers.planner.model import Model

if TYPE_CHECKING:
    from workers.planner.lint import Hint

Named = Callable[[str], Model]

TOOLS = "{% if tools %}..{% endif %}"
REFUSING = (
    "{%- if reasoning_effort is defined and reasoning_effort not in ['none', 'high'] %}\n"
    "    {{- raise_exception('That cannot be.') }}\n{%- endif %}"
)


def said(model: Model, role: str = "chat", *arguments: str, jinja: bool | None = True) -> list[Hint]:
    return list(lint.hints(model, role, arguments, jinja=jinja))


def only(found: list[Hint], part: str) -> Hint:
    (one,) = [hint for hint in found if part in hint.sentence]
    return one


def test_experts_windows_and_states_are_properties_of_the_file(model: Named) -> None:
    found = said(model("gpt-oss-120b"))
    assert only(found, "128 routed experts, 4 a token: 96%").next_step == ""
    assert only(found, "18 of 36 layers slide over 128 tokens").next_step == ""
    assert only(said(model("qwen3-next")), "recurrent state").next_step == ""
    assert said(model("qwen3-4b")) == []


def test_heads_for_prediction_ahead_are_in_the_file_or_not(model: Named) -> None:
    plain = model("qwen3-4b")
    with_heads = evolve(plain, mtp_layers=1)
    asking = ("--spec-type", "none,draft-mtp")
    assert "1 layers for prediction ahead (MTP)" in only(said(with_heads), "MTP").text
    assert said(with_heads, "chat", *asking) == []
    assert "a property of the file" in only(said(plain, "chat", *asking), "MTP").text
    assert only(said(plain, "chat", *asking), "MTP").next_step
    assert said(plain, "chat", *asking, "--spec-draft-model", "/d.gguf") == []


def test_a_flag_for_sliding_layers_on_a_model_without_is_told(model: Named) -> None:
    assert "does nothing" in only(said(model("qwen3-4b"), "chat", "--swa-full"), "--swa-full").text
    assert not [hint for hint in said(model("gemma3-1b"), "chat", "--swa-full") if "nothing" in hint.text]


@pytest.mark.parametrize(
    ("arguments", "jinja", "warns"),
    [((), True, False), ((), False, True), (("--jinja",), False, False), (("--no-jinja",), True, True)],
)
def test_tools_need_jinja_by_what_the_build_does(
    model: Named, arguments: tuple[str, ...], jinja: bool, warns: bool
) -> None:
    found = said(evolve(model("qwen3-4b"), template=TOOLS), "chat", *arguments, jinja=jinja)
    assert [bool(hint.next_step) for hint in found] == ([True] if warns else [])


def test_where_nobody_knows_the_build_tools_are_a_fact(model: Named) -> None:
    assert only(said(evolve(model("qwen3-4b"), template=TOOLS), jinja=None), "--jinja").next_step == ""
    assert said(evolve(model("qwen3-4b"), template=TOOLS), "embed", "--pooling", "last", jinja=None) == []


def test_a_template_that_rejects_levels_of_reasoning(model: Named) -> None:
    refusing = evolve(model("qwen3-4b"), template=REFUSING)
    assert "it takes none, high" in only(said(refusing), "reasoning level").text
    by_its_words = "{{ raise_exception('reasoning_effort must be low or high') }}"
    assert only(said(evolve(refusing, template=by_its_words)), "reasoning level").next_step == ""
    other = "{% if messages[0].role == 'tool' %}{{ raise_exception('no user query') }}{% endif %}"
    assert said(evolve(refusing, template=other)) == []
    assert said(evolve(refusing, template=f"{{% if enable_thinking %}}<think>{{% endif %}}{other}")) == []


@pytest.mark.parametrize(
    ("arguments", "warns"),
    [
        (("--reasoning-effort", "medium"), True),
        (("--reasoning-effort", "high"), False),
        (("--reasoning-effort", "default"), False),
        (("--chat-template-kwargs", '{"reasoning_effort": "medium"}'), True),
        (("--chat-template-kwargs", '{"reasoning_effort"'), False),
    ],
)
def test_a_launch_that_asks_for_a_rejected_level_is_told(
    model: Named, arguments: tuple[str, ...], warns: bool
) -> None:  # fmt: skip
    (hint,) = said(evolve(model("qwen3-4b"), template=REFUSING), "chat", *arguments)
    assert bool(hint.next_step) is warns
    assert ("each request is refused" in hint.text) is warns


@pytest.mark.parametrize(
    ("pooling", "role", "arguments", "part"),
    [
        (1, "chat", (), "without --embeddings"),
        (1, "chat", ("--embeddings",), None),
        (1, "embed", (), None),
        (None, "embed", (), "names no pooling"),
        (None, "embed", ("--pooling", "mean"), None),
        (None, "rerank", (), "without a classifier head"),
        (1, "chat", ("--reranking",), "without a classifier head"),
        (4, "rerank", (), None),
        (None, "chat", (), None),
    ],
)
def test_a_model_is_used_for_what_it_was_made_for(
    model: Named, pooling: int | None, role: str, arguments: tuple[str, ...], part: str | None
) -> None:
    found = said(evolve(model("qwen3-4b"), pooling=pooling), role, *arguments)
    assert [hint.text for hint in found if part and part in hint.text] == [hint.text for hint in found]
    assert bool(found) is (part is not None)
    assert all(hint.next_step for hint in found)


# --- locked memory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("--mlock",), ("--load-mode", "mmap+mlock"), ("-lm", "mlock")])
def test_a_launch_that_locks_more_than_it_may(model: Named, arguments: tuple[str, ...]) -> None:
    hint = lint.unlockable(model("qwen3-4b"), arguments, 8 << 20)
    assert hint is not None
    assert "2.20 GiB" in hint.text
    assert "8 MiB" in hint.text
    assert "ulimit -l" in hint.next_step
    assert lint.unlockable(model("qwen3-4b"), arguments, 4 << 30) is None
    assert lint.unlockable(model("qwen3-4b"), arguments, None) is None


def test_who_locks_nothing_is_told_nothing(model: Named) -> None:
    for arguments in ((), ("--no-mmap",), ("--load-mode", "mmap"), ("--load-mode",)):
        assert lint.unlockable(model("qwen3-4b"), arguments, 0) is None


def test_who_has_the_capability_has_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.devices.host.memlock", lambda: 8 << 20)
    status = tmp_path / "status"
    status.write_text("Name:\tx\nCapEff:\t0000000000004000\n")
    assert advising.memlock(str(status)) is None
    status.write_text("Name:\tx\nCapEff:\t0000000000000000\n")
    assert advising.memlock(str(status)) == 8 << 20
    assert advising.memlock(str(tmp_path / "nowhere")) == 8 << 20


def test_ollama_11772_experts_beside_a_card_that_may_not_be_locked(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # 24 layers of 1,696,481,280 bytes stay in system memory at 32,768 tokens (test_decide): 37.92 GiB.
    group = GroupConfig("a", (LaunchConfig("chat", str(files["gpt-oss-120b"]), context=32_768),))
    monkeypatch.setattr(advising, "jinja_is_on", lambda server: True)
    monkeypatch.setattr("supervisor.devices.survey.survey", lambda: survey(96, gpu(24)))

    def warnings(limit: int | None) -> list[str]:
        monkeypatch.setattr(advising, "memlock", lambda: limit)
        server = Binary(Path("/nowhere/llama-server"), Origin.PATH, Kind.LLAMA_SERVER)
        return [advice.text for advice in advising.advise(group, server) if advice.next_step]

    (said,) = warnings(8 << 20)
    assert "37.92 GiB of its experts" in said
    assert "8 MiB" in said
    assert warnings(None) == warnings(64 << 30) == []
    monkeypatch.setattr("supervisor.devices.survey.survey", lambda: survey(96))
    assert warnings(8 << 20) == [], "nothing is locked without a card"
