"""Notebooks as the place where each technique's code stands, once: what other notebooks and tests take from there."""

import ast
import builtins
import dis
import json
import linecache
import os
import sys
import types
from pathlib import Path

from labkit.handout import student
from labkit.states import Progress, progress_in

__all__ = ["load", "place", "progress", "student"]
FOLDER_VARIABLE = "LABKIT_NOTEBOOKS"
NOTEBOOK_PATTERN = "[0-9][0-9]_*.ipynb"
CONSTANT_PARTS = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List, ast.Dict, ast.Set),
    *(ast.operator, ast.unaryop, ast.expr_context),
)
RULE = "a strategy cell holds imports, definitions and constants only, so that loading it runs nothing"


def load(name, directory=None):
    """The functions, classes and constants of a notebook's cells tagged `strategy`, as a namespace.

    name       "03_data_parallel", its number "03", or a path; directory: where to look, else the folders of `folders()`
    The file counts as it was last saved. Nothing but those cells is run. FileNotFoundError names the notebooks there are;
    ValueError names the cell that holds something else or uses a name that no such cell defines.
    """
    path = find(name, directory)
    cells = strategy_cells(path)
    if not cells:
        raise ValueError(f"no cell of {path.name} has the tag `strategy`, so there is nothing to load from it")
    # This name can be imported nowhere, so cloudpickle sends by value what is defined under it.
    module = types.ModuleType(f"labkit_notebook_{path.stem.partition('_')[0]}")
    names, codes = set(), []
    for filename, source in cells:
        tree = parsed(source, filename)
        names |= {name for statement in tree.body for name in defined_by(statement, filename)}
        codes.append(compile(tree, filename, "exec", dont_inherit=True))
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    run(codes, module)
    for code in codes:
        refuse_unknown(code, set(vars(module)) | set(dir(builtins)))
    return types.SimpleNamespace(**{name: getattr(module, name) for name in sorted(names)})


def place(filename, line):
    """Where a line stands, as a learner finds it: "cell In[5], line 3", "03_x.ipynb, cell 7, line 3" or "file.py, line 3"."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    label = shell.compile.format_code_name(filename) if shell else None
    return f"cell {label[1]}, line {line}" if label else f"{os.path.basename(filename)}, line {line}"


def progress(directory=None):
    """The states of all exercises of the notebooks in a folder, as a table: checked in this kernel, or stored there."""
    if directory is not None:
        return progress_in(Path(directory))
    return next((found for folder in folders() if (found := progress_in(folder)).rows), Progress(()))


def find(name, directory=None):
    """The path of a notebook, given by name, number or path; FileNotFoundError names the ones there are."""
    given = Path(directory or "", name)
    if given.suffix == ".ipynb" and given.is_file():
        return given
    looked_in = [Path(directory)] if directory is not None else folders()
    stem = Path(name).name.removesuffix(".ipynb")
    for folder in looked_in:
        there = sorted(folder.glob(NOTEBOOK_PATTERN), key=lambda path: (len(path.name), path.name))
        for path in there:
            if path.stem == stem or (stem.isdigit() and path.name.startswith(f"{stem}_")):
                return path
    known = sorted({path.stem for folder in looked_in for path in folder.glob(NOTEBOOK_PATTERN)})
    there_are = f"there are {', '.join(known)}" if known else f"set {FOLDER_VARIABLE} to the folder that holds the notebooks"
    raise FileNotFoundError(f"no notebook {str(name)!r}; {there_are}")


def folders():
    """Where notebooks are looked for: LABKIT_NOTEBOOKS, here and upwards (also in `notebooks`), beside the package."""
    here = Path.cwd()
    upwards = [folder / sub for folder in (here, *here.parents) for sub in ("", "notebooks")]
    given = [Path(os.environ[FOLDER_VARIABLE])] if os.environ.get(FOLDER_VARIABLE) else []
    return [folder for folder in (*given, *upwards, Path(__file__).resolve().parents[1] / "notebooks") if folder.is_dir()]


def strategy_cells(path):
    """(file name for tracebacks, source) of each cell tagged `strategy`; cells count as in a run from top to bottom."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is not a notebook that can be read: {error}") from None
    sources = [(cell, "".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"]
    numbered = enumerate([pair for pair in sources if pair[1].strip()], 1)
    tagged = [(number, source) for number, (cell, source) in numbered if "strategy" in cell["metadata"].get("tags", [])]
    return [(f"{path.name}, cell {number}", source) for number, source in tagged]


def parsed(source, filename):
    try:
        return ast.parse(source, filename)
    except SyntaxError as error:
        raise ValueError(f"{filename}, line {error.lineno}: {error.msg}; {RULE}") from None


def defined_by(statement, filename):
    """The names that a definition or constant binds, none for an import; ValueError for any other statement."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return []
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [statement.name]
        case ast.Assign(targets=targets, value=value) if is_constant(value):
            return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value and is_constant(value):
            return [name]
    first_line = ast.unparse(statement).splitlines()[0]
    raise ValueError(f"{filename}, line {statement.lineno}: `{first_line}` does not belong here; {RULE}")


def run(codes, module):
    """Executes code as a module's own, which is known by its name only meanwhile: dataclasses look their module up."""
    sys.modules[module.__name__] = module
    try:
        for code in codes:
            exec(code, vars(module))
    finally:
        del sys.modules[module.__name__]


def is_constant(value):
    return all(isinstance(node, CONSTANT_PARTS) for node in ast.walk(value))


def refuse_unknown(code, known):
    """ValueError for a global name that a function reads and no strategy cell defines or imports."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL" and instruction.argval not in known:
            where = f"{code.co_filename}, in {code.co_name}"
            raise ValueError(f"{where}: `{instruction.argval}` is neither imported nor defined in a cell tagged `strategy`")
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            refuse_unknown(constant, known)
