"""Figures, tables and pages of finished or running runs; reads run folders only, never imports agents."""

from rookery.report.page import write_report

__all__ = ["write_report"]
