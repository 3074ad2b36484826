"""Does one example influence another? Batch rules, and the comparison of the first batch with its parts."""
