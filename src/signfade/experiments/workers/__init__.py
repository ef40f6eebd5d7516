"""Worker processes: many runs at once, or the devices of one large run shared out."""
