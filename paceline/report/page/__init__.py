"""The report: one HTML file that needs nothing else, not even a network."""

from paceline.report.page.write import write_report

__all__ = ["write_report"]
