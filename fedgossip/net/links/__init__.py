"""Links between peers that dial each other: connections, frames, queues."""
