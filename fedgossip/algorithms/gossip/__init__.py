"""gossip"""
