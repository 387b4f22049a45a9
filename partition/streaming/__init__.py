"""Partitions of edge files that do not fit into memory; ``partition.build(..., memory="2GB")`` comes here."""
