"""From a ledger to a guarantee."""
