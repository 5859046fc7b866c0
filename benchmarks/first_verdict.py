"""How long a student waits for the first verdict: from `make lab` to what `check` says in the notebook.

    python benchmarks/first_verdict.py        # needs Chromium, and the extra `dev` for Playwright

JupyterLab is started as `make lab` starts it, on files of its own for settings and kernels, a browser opens lesson 01,
runs the cell of imports, and then the first check, whose answer is still the starter. Seconds since the command, in
RUNS runs; the first finds what it reads on disk, unless it has been read before.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import record
from playwright.sync_api import Browser, Locator, sync_playwright

ROOT = Path(__file__).parents[1]
BROWSERS = "chromium", "chromium-browser", "google-chrome", "chrome"
NOTEBOOK, EXERCISE = "course/01_mha/01_mha.ipynb", "predict_cache_bytes"
RUNS, MOST_SECONDS = 3, 120


def main() -> None:
    """Measure; write the record."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        sys.exit("no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        runs = [waited(browser) for _ in range(RUNS)]
        browser.close()
    print(record.write("first_verdict", {"exercise": EXERCISE, "seconds": runs}, ("jupyterlab",)))


def waited(browser: Browser) -> dict[str, float]:
    """Return the seconds from the command to the server, to the notebook, and to the verdict."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token, before = secrets.token_hex(8), time.perf_counter()
    address = f"http://127.0.0.1:{port}/lab/tree/{NOTEBOOK}?reset&token={token}"
    command = [sys.executable, "-m", "jupyter", "lab", "--config=jupyter_server_config.py", "--no-browser"]
    command += [f"--ServerApp.port={port}", f"--IdentityProvider.token={token}", "--ServerApp.allow_root=True"]
    with tempfile.TemporaryDirectory() as home:
        own = dict.fromkeys(("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"), home)
        settings = Path(home, "settings", "@jupyterlab", "notebook-extension", "tracker.jupyterlab-settings")
        settings.parent.mkdir(parents=True)
        settings.write_text('{"windowingMode": "none"}')  # else cells that are out of sight are not in the page
        command.append(f"--LabApp.user_settings_dir={settings.parents[2]}")
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        server = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **own, "PATH": path}, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            while not answers(address):
                if server.poll() is not None or time.perf_counter() - before > MOST_SECONDS:
                    sys.exit("JupyterLab did not start: try `make lab`")
                time.sleep(0.1)
            seconds = {"server": time.perf_counter() - before}
            page = browser.new_page()
            page.set_default_timeout(1000 * MOST_SECONDS)
            page.goto(address)
            panel = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
            panel.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()
            seconds["notebook"] = time.perf_counter() - before
            for text in ("from autograder import check", f'check("{EXERCISE}")'):
                cell = panel.locator(".jp-CodeCell").filter(has_text=text).first
                run(page, cell)
            cell.locator(".jp-OutputArea").filter(has_text="there is no function").wait_for()
            seconds["verdict"] = time.perf_counter() - before
            page.close()
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(30)
    print(", ".join(f"{name} after {passed:.1f} s" for name, passed in seconds.items()), flush=True)
    return {name: round(passed, 1) for name, passed in seconds.items()}


def run(page: Any, cell: Locator) -> None:
    """Run a cell and wait until it is done."""
    prompt = cell.locator(".jp-InputPrompt")
    before = prompt.inner_text()
    while prompt.inner_text() == before:  # until the kernel is connected, JupyterLab forgets what it should run
        cell.locator(".cm-content").click()
        page.keyboard.press("Control+Enter")
        page.wait_for_timeout(300)
    prompt.filter(has_text=re.compile(r"\[\d+\]")).wait_for()


def answers(address: str) -> bool:
    """Return whether a server answers."""
    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return reply.status == 200
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    main()
