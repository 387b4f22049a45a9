"""What a partition costs training: counted, forecast and compared with random parts."""

from partition.report.build import RECIPE, Recipe, report
from partition.report.report import Quality, Report

__all__ = ["RECIPE", "Quality", "Recipe", "Report", "report"]
