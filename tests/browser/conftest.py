"""A browser, and what it looks at. Where there is no Chromium, the tests say what to install.

`MLA_SCREENSHOTS=FOLDER` has the tests leave a picture of what they looked at.
"""

import contextlib
import functools
import http.server
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
WIDTHS = 1280, 800
NAMES = "chromium", "chromium-browser", "google-chrome", "chrome"


def pytest_collection_modifyitems(items):
    """One worker has them all: they share a browser and servers."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(scope="session")
def browser():
    """Chromium, without a window."""
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'mla-course[dev]'")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def new_page(browser, shoot, request):
    """Open a page of that width, in a session of its own. Its `asked` lists the addresses that it has asked for."""
    opened = []

    def open_page(width=1280, theme="light", height=900):
        session = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
        session.set_default_timeout(60_000)
        opened.append(session)
        page = session.new_page()
        page.asked = []
        page.on("request", lambda request: page.asked.append(request.url))
        return page

    yield open_page
    for session in opened:
        if request.session.testsfailed:
            for page in session.pages:
                shoot(page, f"failed_{request.node.name}")
        session.close()


@pytest.fixture(scope="session")
def serious():
    """Return what axe-core finds on a page, or in a part of it by its selector, that is serious or critical."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install 'mla-course[dev]'").Axe()

    def found(page, part=None):
        result = axe.run(page, context=part and {"include": [part]})
        return [
            f"{each['impact']} {each['id']}: {node['target']} {node['failureSummary']}"
            for each in result.response["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    return found


@pytest.fixture(scope="session")
def shoot():
    """Leave a picture of a page, where `MLA_SCREENSHOTS` names a folder for them."""
    folder = os.environ.get("MLA_SCREENSHOTS")

    def taken(page, name):
        if folder:
            page.screenshot(path=Path(folder) / f"{name}_{page.viewport_size['width']}.png")

    return taken


@pytest.fixture(scope="session")
def served():
    """Serve a folder's files on this machine; return the address."""
    servers = []

    def serve(folder):
        handler = functools.partial(Quiet, directory=str(folder))
        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield serve
    for server in servers:
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Says nothing on the terminal."""

    def log_message(self, *args):
        pass


def free_port():
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(url, process, log, seconds=90):
    """Return once a server answers at `url`; fail with what it said if it ends, or takes too long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"nothing answers at {url}:\n{log.read_text()}")


@contextlib.contextmanager
def dashboard(room, *options):
    """Serve the dashboard of a classroom; give its address, token and all, as `mla-course dashboard` prints it."""
    command = [sys.executable, "-m", "autograder.cli", "dashboard", "--no-browser", "--classroom", str(room), *options]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as server:
        try:
            told = iter(server.stderr.readline, "")
            found = next((match[0] for line in told if (match := re.search(r"http://\S+token=\S+", line))), None)
            assert found, "the dashboard ended before it had an address"
            for _ in range(120):
                with contextlib.suppress(urllib.error.URLError):
                    urllib.request.urlopen(found, timeout=60).close()
                    break
                time.sleep(0.5)
            else:
                pytest.fail(f"nothing answers at {found}")
            yield found
        finally:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(30)
            left = server.poll() is None or _any_of(server.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            assert not left, "a process of the dashboard went on when it was told to end"


def _any_of(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    """A copy of what `make lab` shows, so that no test changes a notebook of the repository."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("solutions", "course"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    (folder / "benchmarks").mkdir()
    for path in (*ROOT.glob("*_config.py"), *ROOT.glob("benchmarks/*.json")):
        shutil.copy(path, folder / path.relative_to(ROOT))
    return folder


@pytest.fixture(scope="session")
def lab(checkout, tmp_path_factory):
    """JupyterLab as `make lab` starts it; return a function from a path to its address."""
    home = tmp_path_factory.mktemp("home")
    settings = {
        "notebook-extension/tracker": '{"windowingMode": "none"}',  # else cells come and go
        "apputils-extension/notification": '{"fetchNews": "false"}',
    }
    for name, text in settings.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    port, token, log = free_port(), secrets.token_hex(), home / "log"
    environment = {key: value for key, value in os.environ.items() if key not in ("MLA_COURSE", "MLA_CLASSROOM")}
    environment |= {"JUPYTER_CONFIG_DIR": str(home), "JUPYTER_RUNTIME_DIR": str(home), "IPYTHONDIR": str(home)}
    command = [
        *(sys.executable, "-m", "jupyterlab", "--config=jupyter_server_config.py", "--no-browser", "--allow-root"),
        *(f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}"),
        *(f"--LabApp.user_settings_dir={home / 'settings'}", f"--LabApp.workspaces_dir={home / 'workspaces'}"),
    ]
    with open(log, "w") as said:
        process = subprocess.Popen(command, cwd=checkout, env=environment, stdout=said, stderr=said)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(f"{address}/api/status?token={token}", process, log)
        yield lambda path="": f"{address}/{path}{'&' if '?' in path else '?'}token={token}"
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it ends its kernels first
            process.wait(60)
        process.kill()
        process.wait()
