"""Has each conversation answered by the weights that answered it first."""
