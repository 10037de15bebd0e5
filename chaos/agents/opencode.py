"""opencode (npm package `opencode-ai`) as the one who works: how it is configured and run, each time in a HOME of its own.

Tried with the version that is pinned here; another one is used as well, and named in the report. It reaches the engine as
any program does, by the gateway's URL (with a witness in between, who sees its requests), and what it costs an engine is what a real coding agent costs: a system prompt of
some ten thousand tokens, so the model's context has to be 16384 or more.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from chaos.agents import tasks
from chaos.agents.witness import standing_by

if TYPE_CHECKING:
    from pathlib import Path

    from chaos.agents.agent import Agent

PACKAGE: Final = "opencode-ai"
VERSION: Final = "1.18.33"
VARIABLE: Final = "QUEENRIGHT_OPENCODE"
"""Environment variable that names the program."""
WORK_LIMIT: Final = 1800.0  # budget: one task of a few files; a model that needs longer does not do it
GATEWAY_LIMIT: Final = 60.0  # budget: the gateway comes after the engine's own processes
POLL: Final = 0.05


def find() -> str:
    """The program: where the environment names it, else on PATH. "" where there is none."""
    return os.environ.get(VARIABLE, "").strip() or shutil.which("opencode") or ""


def version(program: str) -> str:
    """What it says of itself; "" where it does not run."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def configuration(url: str, model: str) -> dict[str, Any]:
    """Its configuration: our gateway as the only provider, nothing that asks, shares or brings itself up to date."""
    return {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["queenright"],
        "model": f"queenright/{model}",
        "small_model": f"queenright/{model}",
        "permission": {"edit": "allow", "bash": "deny", "webfetch": "deny"},
        "provider": {
            "queenright": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "queenright",
                "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
                "models": {model: {"name": model, "tool_call": True, "limit": {"context": 32768, "output": 2048}}},
            }
        },
    }


def work(agent: Agent, program: str, home: Path) -> None:
    """Have it do the task in its project. Raises RuntimeError."""
    with standing_by(_gateway(agent), partial(agent.say, "request")) as url:
        _work(agent, program, home, url)


def _work(agent: Agent, program: str, home: Path, url: str) -> None:
    file = home / "opencode.json"
    file.write_text(json.dumps(configuration(url, "chat")), encoding="utf-8")
    environment = os.environ | {
        "OPENCODE_CONFIG": str(file),
        "PWD": str(agent.project),  # it goes by this, and not by its working directory: it wrote into ours (1.18.33)
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    }
    log = home / "opencode.log"
    words = [program, "run", "--auto", "--format", "json", "--model", "queenright/chat", "--dir", str(agent.project)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*words, tasks.TASK],
            cwd=agent.project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            status = process.wait(WORK_LIMIT)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"opencode did not end within {WORK_LIMIT:g} s") from None
        finally:
            process.kill()
            process.wait()
    if status != 0:
        said = log.read_text(encoding="utf-8", errors="replace")[-400:]
        raise RuntimeError(f"opencode ended with {status}: {said}")


def _gateway(agent: Agent) -> str:
    deadline = time.monotonic() + GATEWAY_LIMIT
    while time.monotonic() < deadline:
        if url := (agent.engine.status()["gateway"] or {}).get("url"):
            return str(url)
        time.sleep(POLL)
    raise RuntimeError("the engine has no gateway, and opencode needs one: give the configuration a [gateway]")
