"""A real federation over a network.

`charter` is the document that participants agree to, `organiser` the server's process,
`participant` a participant's process, `sessions` the organiser's connections to participants, and
`flower/` the transport.
"""
