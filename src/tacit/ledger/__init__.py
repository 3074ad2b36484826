"""The privacy ledger: what was done to the records, written down before anything is released."""
