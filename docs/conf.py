"""Sphinx settings: `make docs`."""

import graph_emb

project = "graph_emb"
author = "the graph_emb maintainers"
copyright = "the graph_emb maintainers"
version = release = graph_emb.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
nb_execution_mode = "off"  # `make tutorials` runs the notebooks; their outputs are kept
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "graph_emb"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]
