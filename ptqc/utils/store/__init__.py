"""The store of measurements: entries by content, arrays mapped into memory, locks and clearing."""
