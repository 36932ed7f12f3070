"""The declaration of a recipe: what is replaced, where it may stand, how the guard is written.

A recipe is data. Everything that differs between releases is a `Form`; a new release is a new form, not new
machinery. Patterns and templates are Python text with holes: ``$name`` stands for any expression (the same
one wherever the name repeats) and ``...`` for any number of arguments, operands or statements. Keywords match
by name in any order. See `glm_pto.codemods.pattern`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from glm_pto.codemods.findings import Reached

if TYPE_CHECKING:
    from glm_pto.codemods.trees import Tree

#: The module that guards import and call, named as text: patcher and layer never import each other.
KERNELS = "glm_pto_kernels"

#: The scope of a form whose statements stand at the top level of the file, outside of every function.
MODULE = "<module>"


@dataclass(frozen=True)
class Form:
    """One shape that a site has upstream.

    ``file`` is relative to the package folder, ``scope`` the exact qualified name of the function that holds
    the statements, or `MODULE`. ``site`` is the pattern of one or more consecutive statements of one block;
    with ``rest`` the site runs on to the end of that block. ``within`` (test pattern, "body" or "else") ties
    the site to one arm of the innermost enclosing ``if``. ``where`` limits what a hole may hold, as source
    text. ``condition`` and ``branch`` are templates of the guard's test and of its body; ``$name`` is
    replaced by what the hole matched. A bare ``K`` names the operator layer. ``requires`` are (qualified
    scope, pattern) pairs of the same file that must match too: code that the branch replaces without standing
    in the site.
    ``releases`` is for people only.
    """

    name: str
    file: str
    scope: str
    site: str
    condition: str
    branch: str
    releases: str
    rest: bool = False
    within: tuple[str, str] | None = None
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    requires: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Place:
    """A spot of one package that upstream runs for the operator; exactly one of its forms fits a release.

    ``optional``: the place is a row of `status` only where its code exists (a second copy that some releases
    have). ``unless_package``: the place is not used in trees that hold that package too; a guard that an
    earlier apply left there is taken out. ``landmarks`` are texts that, all in one function
    elsewhere in the package, betray the computation: then the answer is "moved" and names it, else "absent".
    ``module``: one that nothing in the package may need but the guarded statements; an import of it, or a
    string that names it, anywhere in the package betrays the computation, too.
    """

    name: str
    package: str
    forms: tuple[Form, ...]
    reached: Callable[[Tree], Reached]
    optional: bool = False
    unless_package: str | None = None
    landmarks: tuple[str, ...] = ()
    module: str | None = None


@dataclass(frozen=True)
class Recipe:
    """One operator: its documentation, its switch and its places."""

    site: str
    function: str
    switch: str
    title: str
    why: str
    links: tuple[str, ...]
    drop_when: str
    places: tuple[Place, ...]
    #: The guide's misspelling of the switch, which stands in code that was pasted by hand.
    misspelt: tuple[str, ...] = ()
