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

#: Per operator: the backend, why the original code computes instead, and why a chosen backend cannot.
CHOICES = """
import json
import glm_pto_kernels
from glm_pto_kernels import backends, switches
off = {name: switch for switch, name in switches.SWITCHES.items() if not getattr(glm_pto_kernels, switch)}
def native(name, choice):
    return f"switched off by {off[name]}" if name in off else choice.native
def fault(name, choice):
    if native(name, choice) is not None: return None
    try: backends.load(name)
    except Exception as error: return str(error) or repr(error)
print(json.dumps([[n, c.backend, native(n, c), fault(n, c)] for n, c in backends.CHOICES.items()]))
"""
