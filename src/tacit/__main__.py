"""``python -m tacit``: the ``tacit`` command of the Python that runs it."""

from tacit.cli import main

if __name__ == "__main__":
    main()
