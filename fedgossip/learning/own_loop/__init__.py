"""own_loop"""
