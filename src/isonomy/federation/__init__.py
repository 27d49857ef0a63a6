"""A real federation: `charter` is what participants agree to, `member` the participant's process,
`organiser` the server's, and `wire` the way between them.
"""
