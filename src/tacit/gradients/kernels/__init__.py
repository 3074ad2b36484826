"""The Python side of the compiled loops, and their plain counterparts."""
