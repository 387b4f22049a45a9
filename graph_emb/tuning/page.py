"""The plots of a search in one HTML page without outside files."""

from __future__ import annotations

import base64
import html
import io
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna import Study

STYLE = "body{font-family:sans-serif;margin:2em;max-width:75em}pre{overflow-x:auto}img{max-width:100%}"


def page_text(study: Study, result: Any) -> str:
    """The page: value by trial, importance of settings, parallel coordinates, curves of trainings, the table.

    Args:
        study: Finished trials.
        result: The search, whose text is its table.
    """
    from optuna.visualization import matplotlib as plots

    best = result.best
    head = f"{len(result.trials)} trials, best {result.metric} {best.value:.4f} in trial {best.number}"
    drawn: list[tuple[str, Callable[..., Any]]] = [
        ("Value by trial", plots.plot_optimization_history),
        ("Importance of settings", plots.plot_param_importances),
        ("Settings of each trial", plots.plot_parallel_coordinate),
        ("Validation curves", plots.plot_intermediate_values),
    ]
    parts = [f"<h1>{html.escape(head)}</h1>"]
    for title, plot in drawn:
        image = _image(plot, study)
        if image is not None:
            parts.append(f'<h2>{title}</h2><img alt="{title}" src="data:image/png;base64,{image}">')
    parts.append(f"<h2>Trials</h2><pre>{html.escape(str(result))}</pre>")
    title = html.escape(head)
    return f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>{''.join(parts)}\n"


def _image(plot: Callable[..., Any], study: Study) -> str | None:
    """A plot as base64 PNG; None where the trials are too few or too alike for it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    if plot.__name__ == "plot_intermediate_values" and not any(t.intermediate_values for t in study.get_trials()):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the plots are marked as experimental
            plot(study)
            file = io.BytesIO()
            pyplot.gcf().savefig(file, format="png", dpi=90, bbox_inches="tight")
    except (ValueError, RuntimeError, ZeroDivisionError):
        return None
    finally:
        pyplot.close("all")
    return base64.b64encode(file.getvalue()).decode()
