"""The page of a run, ``report.html``, and pages that put runs side by side: self-contained, for any browser."""
