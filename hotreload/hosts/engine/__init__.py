"""What one engine in several processes needs of JAX and of upstream."""
