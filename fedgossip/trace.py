"""What a machine was told."""
