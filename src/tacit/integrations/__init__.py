"""Adapters for other people's training loops and loggers. Each module needs its own extra, named in its first lines."""


def not_installed(package: str, extra: str) -> ValueError:
    """Return the error of a module whose package is missing."""
    return ValueError(f"{package} is not installed; write: pip install -c constraints.txt 'tacit[{extra}]'")
