"""survival"""
