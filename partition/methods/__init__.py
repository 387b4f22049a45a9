"""Methods that give every node a part, behind one function."""

from partition.methods import (  # they register
    external,  # noqa: F401
    multilevel,  # noqa: F401
    nodewise,  # noqa: F401
)
from partition.methods.base import METHODS, Method, Problem, assign

__all__ = ["METHODS", "Method", "Problem", "assign"]
