"""Imports of the learner's own files in a rank: always from the source as it is now.

Python trusts a cached .pyc whose source has the same size and the same second of change, so a helper file that is edited
and run again at once would come back old.
"""

import importlib.machinery as machinery
import os
import sys
import sysconfig


class _FromSource(machinery.SourceFileLoader):
    def get_code(self, fullname):
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def install(path, cwd):
    """Makes imports from the entries of `path` outside of Python's own folders ignore cached byte code."""
    sys.dont_write_bytecode = True
    own = {os.path.abspath(entry or cwd) for entry in path}
    for folder in (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()):
        own = {entry for entry in own if not entry.startswith(os.path.abspath(folder) + os.sep)}
    make_finder = machinery.FileFinder.path_hook(
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (_FromSource, machinery.SOURCE_SUFFIXES),
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    )

    def hook(entry):
        if os.path.abspath(entry) in own:
            return make_finder(entry)
        raise ImportError

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()
