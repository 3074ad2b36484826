"""The papers' networks, as plain modules that return logits, and how the papers prepare their inputs.

`tacit.models.abadi` has those of Abadi et al. 2016, `tacit.models.shokri` those of Shokri & Shmatikov 2015.
"""

from tacit.models import abadi, shokri

__all__ = ["abadi", "shokri"]
