"""Is this checkpoint fit to load? Pure functions over files.

`files.survey` says whether a folder is complete and `files.content_id` which bytes it holds;
`check.check_checkpoint` makes a Checkpoint of it, or says why not.
"""
