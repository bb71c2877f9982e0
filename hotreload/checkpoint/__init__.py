"""A checkpoint's files: what they are called, how they are read, and whether they are fit to load.

`survey` says whether a folder is complete, `digests.content_id` which bytes it holds, and
`check.check_checkpoint` makes a Checkpoint of it, or says why not. Pure functions over files.
"""
