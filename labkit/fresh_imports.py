"""Imports of the learner's own files in a rank: always from the source as it is now.

Python trusts a cached .pyc whose source has the same size and the same second of change, so a helper file that is edited
and run again at once would come back old.
"""

import importlib.machinery as machinery
import os
import sys

from labkit.stacks import is_library


class _FromSource(machinery.SourceFileLoader):
    def get_code(self, fullname):
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def install():
    """Makes imports from everywhere but Python's own folders and installed packages ignore cached byte code."""
    sys.dont_write_bytecode = True
    make_finder = machinery.FileFinder.path_hook(
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (_FromSource, machinery.SOURCE_SUFFIXES),
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    )

    def hook(entry):
        if is_library(os.path.join(os.path.abspath(entry), "")):
            raise ImportError
        return make_finder(entry)

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()
