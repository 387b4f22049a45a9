"""Costs of a partition in training: counted, forecast and compared with random parts."""

from partition.report.page import to_html
from partition.report.report import DEFAULTS, ForecastOptions, PartitionReport, Quality, report

__all__ = ["DEFAULTS", "ForecastOptions", "PartitionReport", "Quality", "report", "to_html"]
