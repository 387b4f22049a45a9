"""First values of tables: ``graph_emb.initializers.Uniform(seed=0)`` and others."""

from graph_emb.formats.warm_start import FromFile
from graph_emb.table.initializers import FromArray, FromFunction, Initializer, Normal, Uniform, XavierUniform, Zeros

__all__ = ["FromArray", "FromFile", "FromFunction", "Initializer", "Normal", "Uniform", "XavierUniform", "Zeros"]
