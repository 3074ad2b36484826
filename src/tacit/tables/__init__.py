"""Private models from a table: a schema that is declared, an encoding without looking, and training."""
