"""Search for settings by validation: trials in a journal that survives kills and that processes share."""
