"""Compiled loops over nodes and edges."""
