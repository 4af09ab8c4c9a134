"""What keys mean, read from the source where they are declared. Called by `realm config`."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize


def meanings(cls: type) -> dict[str, str]:
    """Field of a dataclass -> its meaning: the string after it, or the comment in its line. Fields without one are
    left out; a class that inherits them may say it, too."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # built in, or not in a file
            continue
        found |= _meanings(source)
    return found


def _meanings(source: str) -> dict[str, str]:
    (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    comments = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            found[node.target.id] = " ".join(after.value.value.split())
        elif comment := comments.get(node.end_lineno or node.lineno):
            found[node.target.id] = comment
    return found
