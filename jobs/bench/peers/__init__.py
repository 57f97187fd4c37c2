"""Scripts that run inside another project's virtual environment: they import that project and the standard library, nothing of ours.

Protocol, one JSON object a line. On stdout first {"ready": true, "versions": {name: version}}; then, for every line
{"prompts": [[token id]], "num_new": [count], "ends": bool} on stdin, {"token_ids": [[token id]], "seconds": float}.
A failure ends the process; whatever the libraries print goes to stderr.
"""
