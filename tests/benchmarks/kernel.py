"""Runs code in a real notebook kernel, where live figures are drawn, and returns the value of its last expression."""

import ast
import sys

import nbformat
from nbclient import NotebookClient


def run_in_kernel(code):
    """Executes `code` as a cell; its last expression must be a Python literal when printed."""
    *before, last = code.rsplit(";", 1)
    source = "\n".join([*";".join(before).split(";"), f"print('VALUE', repr({last.strip()}))"])
    cell = nbformat.v4.new_code_cell("\n".join(line.strip() for line in source.splitlines()))
    notebook = nbformat.v4.new_notebook(cells=[cell])
    kernel = NotebookClient(notebook, timeout=600, kernel_name="python3")
    kernel.create_kernel_manager()
    kernel.km.kernel_spec.argv[0] = sys.executable
    kernel.execute()
    text = "".join(output.get("text", "") for output in cell.outputs)
    return ast.literal_eval(text.split("VALUE ", 1)[1])
