"""Gossip on directed graphs: shares of mass that are sent, received, and never counted twice."""
