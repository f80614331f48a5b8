"""How notebooks are compared by `pytest --nbval`."""

import os
import tempfile


def pytest_configure(config):
    """Give the kernels an empty IPython folder: nobody's start-up files take part."""
    folder = tempfile.TemporaryDirectory(prefix="labkit-ipython-")
    config.add_cleanup(folder.cleanup)
    os.environ["IPYTHONDIR"] = folder.name


def pytest_collectstart(collector):
    """Leave out of the comparison what new versions of libraries change without any fault: warnings and HTML."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("text/html", "stderr")
        # nbval runs cells without counting them, so a report calls each one In[1].
        collector.sanitize_patterns[r"cell In\[\d+\]"] = "cell In[N]"
