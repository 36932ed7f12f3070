"""The user's own checkout of the PyPTO project's ``models/glm_v4_5``: checked by reading it, and recorded.

Nothing here imports the checkout, torch, or the rest of this package, and the imports are relative, so that
the command line can load this folder by itself. The record is one file in the user's configuration folder
(``XDG_CONFIG_HOME``, else ``~/.config``), outside any package: a reinstall keeps it, and nothing of the
checkout is copied.
"""

from .reading import LARGEST, Checkout, Kernel, changed, inspect
from .records import record, record_path, recorded, remove
from .signatures import ENTRIES, CheckoutError, Entry

__all__ = [
    "ENTRIES",
    "LARGEST",
    "Checkout",
    "CheckoutError",
    "Entry",
    "Kernel",
    "changed",
    "inspect",
    "record",
    "record_path",
    "recorded",
    "remove",
]
