"""many_nodes"""
