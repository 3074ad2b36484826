"""Figures, the privacy report and the model card."""

from tacit.reports.writing import model_card, report

__all__ = ["model_card", "report"]
