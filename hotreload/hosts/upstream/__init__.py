"""What several hosts need of upstream and of JAX: joining, turns at once, and the wire between."""
