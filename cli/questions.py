"""What `doctor` asks of the Python that runs the packages; each is answered on one line of JSON."""

from __future__ import annotations

#: Versions and places of packages.
PACKAGES = """
import json
from importlib import metadata
from importlib.util import find_spec
names = json.loads(sys.argv[1])
def version(name):
    try: return metadata.version(name)
    except metadata.PackageNotFoundError: return None
    except Exception as error: return f"version not readable ({error!r})"
def place(name):
    try: spec = find_spec(name)
    except Exception as error: return f"not to be found ({error!r})"
    return None if spec is None else (spec.origin or list(spec.submodule_search_locations or [""])[0])
print(json.dumps({"python": sys.version.split()[0], "executable": sys.executable,
                  "packages": {n: [version(n), place(n.replace("-", "_"))] for n in names}}))
"""

#: The operator layer's own decision for every operator, and why a kernel of the user's cannot be taken.
CHOICES = """
import json
from glm_pto_kernels import backends
def fault(name, choice):
    if choice.backend != "custom" or choice.native is not None: return None
    try: backends.load(name)
    except Exception as error: return str(error) or repr(error)
print(json.dumps([[name, c.backend, c.native, fault(name, c)] for name, c in backends.CHOICES.items()]))
"""
