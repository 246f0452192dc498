"""What a machine was told, on file: `files` writes and reads it, `events` takes apart what is written."""
