"""The page at /, used in a real browser: `make browser` fetches what it takes; without that it is skipped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.serve.server_process import HOST, ROOT, ServerProcess

MODULES = ROOT / ".browser"
CHROMIUM, NODE = shutil.which("chromium"), shutil.which("node")
KEY = "secret-key"
EMOJI = "😀"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and NODE and (MODULES / "node_modules/playwright-core").is_dir()),
        reason="needs chromium, node and playwright-core; make browser fetches them",
    ),
]


def test_the_page_chats_stops_and_tells(tmp_path: Path) -> None:
    shots = Path(os.environ.get("BROWSER_SHOTS") or tmp_path)
    with ServerProcess("--api-key", KEY, "--max-length", "2048", key=KEY) as server:
        url = f"http://{HOST}:{server.port}"
        script = [str(NODE), str(Path(__file__).with_name("browser.mjs"))]
        command = [*script, str(MODULES), str(CHROMIUM), f"{url}/", KEY, str(shots)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr
        saw = json.loads(done.stdout)
        assert saw["problems"] == []
        assert saw["model"] == server.model

        assert saw["grew"] > 0
        assert saw["rateWhileRunning"].endswith(" tokens/s") and float(saw["rateWhileRunning"].split()[0]) > 0
        assert saw["stopped"].startswith(" 101 102 103") and saw["stopped"] == saw["stoppedLater"]
        assert saw["stoppedNote"].endswith("stopped") and "tokens/s" in saw["stoppedNote"]

        assert saw["mine"] == 'it\'s a line\nand <b>"$HOME"</b> 3'
        assert saw["whole"] == " three two one"
        assert saw["wholeNote"].startswith("4 tokens · ") and "first after" in saw["wholeNote"]
        assert saw["emoji"].strip(EMOJI) == "" and len(saw["emoji"]) >= 2
        assert "2048" in saw["error"] and saw["givenBack"] == 3000
        assert saw["left"] == 0
        if shutil.which("curl"):
            check_the_curl_line(saw["curl"])


def check_the_curl_line(line: str) -> None:
    """It is what one pastes into a shell: the same request, with the key from the environment."""
    assert KEY not in line and "\\\n" in line
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=20, env=os.environ | {"PLAIT_API_KEY": KEY}
    )
    events = [json.loads(event[6:]) for event in done.stdout.splitlines() if event.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == " three two one"
    assert "data: [DONE]" in done.stdout
