"""Serve the dashboard by Voilà: on this machine alone, behind a token."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nbformat

from autograder.course.course import VARIABLE, Course

LOOPBACK = "127.0.0.1"
PORT = 8866
TRIES = 50  # ports
EXTENSIONS = "@voila-dashboards/widgets-manager8", "@jupyter-widgets/jupyterlab-manager"
TEMPLATES = Path(__file__).parent / "share"
FORMGRADER = "http://localhost:8888"  # where `make lab` serves it


def serve(
    course: Course,
    folder: Path,
    told: Callable[[str], None],
    port: int | None = None,
    browser: bool = True,
    formgrader: str = FORMGRADER,
    ip: str = LOOPBACK,
) -> int:
    """Serve the dashboard of a classroom until it is interrupted or terminated; return the server's exit status.

    `told` gets the address with the token. A page without it is refused. Raises OSError if no port is free, and
    ModuleNotFoundError without Voilà.
    """
    import voila  # noqa: F401  which runs in a process of its own

    port, token = free_port(ip, port), secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory(prefix="mla-dashboard-") as place:
        (page := Path(place) / "dashboard.ipynb").write_text(nbformat.writes(notebook(folder, formgrader)))
        # The token goes by the environment: other people of this machine read arguments.
        paths = os.pathsep.join(filter(None, [str(TEMPLATES), os.environ.get("JUPYTER_PATH")]))
        variables = {
            **os.environ,
            "JUPYTER_TOKEN": token,
            "JUPYTER_PATH": paths,
            VARIABLE: str(course.root),
            "JUPYTER_RUNTIME_DIR": place,
        }
        root = str(Path(__file__).parents[2])
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        server = subprocess.Popen(command(page, ip, port, browser), env=variables)
        # Else the server would stay behind, or under nohup go.
        ends = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
        before = {each: signal.signal(each, signal.default_int_handler) for each in ends}
        try:
            if _answers(server, ip, port):
                told(f"http://{ip}:{port}/?token={token}")
            return server.wait()
        except KeyboardInterrupt:  # which the server gets too
            return 0
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
            server.terminate()
            server.wait()


def _answers(server: subprocess.Popen, ip: str, port: int) -> bool:
    """Wait until the server takes connections; return False if it ends before."""
    while server.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((ip, port)) == 0:
                return True
        time.sleep(0.1)
    return False


def command(page: Path, ip: str, port: int, browser: bool) -> list[str]:
    """Return the command that serves a notebook."""
    options = {
        "ip": ip,
        "port": port,
        "port_retries": 0,
    }
    found = [sys.executable, "-m", "voila", str(page), "--token", "--template=mla_dashboard"]
    found += [f"--Voila.{key}={value}" for key, value in options.items()]
    # A kernel is kept ready, so that the page is there at once; it sees by itself what is graded meanwhile.
    found += ["--preheat_kernel=True", "--pool_size=1", "--Application.log_level=ERROR"]
    # Of JupyterLab's extensions the widgets are needed, and each of the others is fetched before anything is shown.
    found += [f"--VoilaConfiguration.extension_allowlist={each}" for each in EXTENSIONS]
    if sys.platform == "linux":  # elsewhere the names of sockets may get too long
        found += ["--KernelManager.transport=ipc"]  # other people of this machine can listen to TCP
    return found if browser else [*found, "--no-browser"]


def notebook(folder: Path, formgrader: str) -> nbformat.NotebookNode:
    """Return the notebook that Voilà serves: one cell, which shows the dashboard."""
    arguments = ", ".join(json.dumps(each) for each in (str(folder), formgrader))
    cell = nbformat.v4.new_code_cell(f"from autograder.dashboard.app import show\n\nshow({arguments})")
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=[cell], metadata={"title": "Dashboard", "kernelspec": kernel})


def free_port(ip: str, wanted: int | None) -> int:
    """Return the port asked for, or the first free one from `PORT` on. Raises OSError if there is none."""
    for port in [wanted] if wanted else range(PORT, PORT + TRIES):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ip, port))
                return port
            except OSError as error:
                why = error
    if wanted:
        raise OSError(f"port {wanted} of {ip} is taken or not ours ({why.strerror}): give another one with --port")
    raise OSError(f"no port from {PORT} to {PORT + TRIES - 1} is free: give one with --port")
