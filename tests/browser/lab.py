"""What a learner does in JupyterLab, in the words of the tests: open a notebook, run a cell, look, press Stop."""

import hashlib
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from labkit import process_table
from labkit.publish import neutral

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BUSY = "[*]:"
KERNEL_S = 60


def find_chromium():
    """The path of the system's Chromium; where there is none the test is skipped, in CI it fails."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None and os.environ.get("CI") == "true":
        pytest.fail("Chromium is missing, and in CI these tests may not be skipped: install the package `chromium`")
    if path is None:
        pytest.skip("Chromium is not installed")
    return path


class Lab:
    """One page of JupyterLab that shows one notebook."""

    def __init__(self, page, address, token, folder, server_pid):
        self.page, self.folder, self.server_pid = page, folder, server_pid
        self._address, self._token = address, token

    def open(self, name, *sources):
        """Shows a new notebook with these code cells."""
        self.show(name, neutral(new_notebook(cells=[new_code_cell(source) for source in sources])))

    def show(self, name, notebook):
        """Stores a notebook in the server's folder and shows it; returns once its kernel is ready."""
        nbformat.write(notebook, self.folder / f"{name}.ipynb")
        self.page.goto(f"{self._address}/doc/tree/{name}.ipynb?token={self._token}")
        self.page.locator(".jp-CodeCell").first.wait_for()
        deadline = time.monotonic() + KERNEL_S
        while not any(kernel["connections"] and kernel["execution_state"] == "idle" for kernel in self._kernels()):
            assert time.monotonic() < deadline, "no kernel is ready"
            self.page.wait_for_timeout(100)
        # A cell that is started before the page knows of its kernel is forgotten without a word (tried).
        self.page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').wait_for()

    def cell(self, number):
        """The cell with this place among all cells, as a locator."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(number)

    def start(self, number):
        """Runs a cell as a learner does, and doesn't wait for it."""
        self.cell(number).locator(".cm-content").click()
        self.page.keyboard.press("Shift+Enter")

    def run(self, number, *, within_s=60):
        """Runs a cell to its end and returns the text of its output."""
        self.start(number)
        self.wait(number, within_s=within_s)
        return self.text(number)

    def wait(self, number, *, within_s=60):
        """Returns once the cell has been run."""
        prompt = self.cell(number).locator(".jp-InputPrompt").first
        self.page.wait_for_function(
            "prompt => /\\[\\d+\\]/.test(prompt.textContent)", arg=prompt.element_handle(), timeout=1000 * within_s
        )

    def busy(self, number):
        return self.cell(number).locator(".jp-InputPrompt").first.inner_text() == BUSY

    def text(self, number):
        """What can be read below the cell."""
        return self.cell(number).locator(".jp-Cell-outputWrapper").inner_text()

    def frame(self, number):
        """A hash of the picture below the cell; None where there is none."""
        pictures = self.cell(number).locator(".jp-OutputArea img")
        return hashlib.sha256(pictures.first.get_attribute("src").encode()).hexdigest() if pictures.count() else None

    def frames(self, number, *, count, within_s):
        """The different pictures that are seen below the cell until there are `count`, or the cell is no longer busy."""
        seen, deadline = [], time.monotonic() + within_s
        while len(seen) < count and time.monotonic() < deadline:
            frame = self.frame(number)
            if not self.busy(number):
                break
            if frame and frame not in seen:
                seen.append(frame)
            self.page.wait_for_timeout(50)
        return seen

    def stop(self):
        """Presses the toolbar's Stop."""
        self.page.locator('[data-command="notebook:interrupt-kernel"]').first.click()

    def ranks(self):
        """The process ids of all ranks of all kernels of the server: the children of labkit's fork servers."""
        kernels = process_table.children(self.server_pid)
        servers = [pid for kernel in kernels for pid in process_table.children(kernel) if "labkit.server" in command_line(pid)]
        return [rank for server in servers for rank in process_table.children(server)]

    def close(self):
        """Ends every kernel of the server and closes the page."""
        self.page.close()
        for kernel in self._kernels():
            self._call("DELETE", f"/api/kernels/{kernel['id']}").close()

    def _kernels(self):
        try:
            return json.load(self._call("GET", "/api/kernels"))
        except urllib.error.HTTPError:  # the server's answer while a kernel is about to start (tried)
            return []

    def _call(self, method, path):
        headers = {"Authorization": f"token {self._token}"}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return opener.open(urllib.request.Request(self._address + path, method=method, headers=headers), timeout=20)


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
