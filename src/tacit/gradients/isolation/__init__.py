"""Modules that run one example at a time, and the plan that chooses them."""
