"""What is shown to people: figures and reports."""
