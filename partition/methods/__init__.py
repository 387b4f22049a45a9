"""Methods that give every node a part, behind one function."""

from partition.methods import external, multilevel, nodewise  # noqa: F401 - they register
from partition.methods.base import METHODS, Method, Problem, assign

__all__ = ["METHODS", "Method", "Problem", "assign"]
