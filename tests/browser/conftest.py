"""A real JupyterLab and a headless Chromium; without Chromium these tests are skipped, in CI they fail."""

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from lab import Lab, find_chromium

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
START_S = 90


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """The system's Chromium, with a new and empty profile."""
    path = find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = {"executable_path": path, "args": FLAGS, "viewport": {"width": 1200, "height": 900}}
        context = playwright.chromium.launch_persistent_context(tmp_path_factory.mktemp("profile"), **options)
        context.set_default_timeout(60_000)
        yield context
        context.close()


@pytest.fixture(scope="session")
def server(browser, tmp_path_factory):
    """A JupyterLab server of this environment on a free loopback port: (address, token, folder, process id)."""
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("notebooks")
    port, token = free_port(), secrets.token_hex(16)
    options = [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--ServerApp.ip=127.0.0.1", "--no-browser"]
    options += [f"--ServerApp.root_dir={folder}", "--ServerApp.allow_root=True"]
    options += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--LabApp.extension_manager=readonly"]
    with open(home / "log", "w+") as log:
        command = [sys.executable, "-m", "jupyterlab", *options]
        process = subprocess.Popen(command, cwd=folder, env=environment(home, token), stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}"
            wait_until_it_answers(f"{address}/api/status?token={token}", process, log)
            yield address, token, folder, process.pid
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture
def lab(browser, server):
    """Opens notebooks in JupyterLab, in a page of their own."""
    page = browser.new_page()
    opened = Lab(page, *server)
    yield opened
    opened.close()


def environment(home, token):
    """The caller's environment with Jupyter's folders replaced by new ones, so that nobody's settings take part."""
    settings = Path(home, "jupyterlab_settings_dir", "@jupyterlab", "apputils-extension")
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR")
    names += ("JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR")
    return {**os.environ, **{name: str(Path(home, name.lower())) for name in names}, "JUPYTER_TOKEN": token}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_it_answers(url, process, log):
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    log.seek(0)
    pytest.fail(f"JupyterLab did not start:\n{log.read()[-3000:]}")
