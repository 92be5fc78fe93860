"""The syntax tree of a file of this project.

In Python 3.11 before 3.11.5, `ast.parse` raises SystemError ("AST constructor recursion depth mismatch") if another
parse happens meanwhile, as where the collector ends an object whose finaliser prints a traceback (CPython issue
106905). So nothing is collected during a parse.
"""

import ast
import gc


def syntax_tree(source: str, name: str = "<source>") -> ast.Module:
    """As `ast.parse`."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source, name)
    finally:
        if was_enabled:
            gc.enable()
