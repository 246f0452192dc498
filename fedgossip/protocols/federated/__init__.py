"""A coordinator and its clients: invitations, updates, their aggregation, in the clear or by a secure sum."""
