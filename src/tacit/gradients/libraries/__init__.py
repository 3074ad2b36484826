"""Other libraries' data-dependent code, replaced while the engine follows a pass."""
