"""invites"""
