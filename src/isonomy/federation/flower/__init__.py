"""A real federation on Flower: the same algorithms, with every client on its own machine.

A phase is one message. `codec` turns a tree into bytes and back without pickle; `participant` is
the client's half and `engine` the server's, and between them is a `link`: in one process for
tests, or Flower's `Grid`. `robust.screen` looks at every reply before it counts. Only `grid`,
`server_app`, `client_app` and `keys` need Flower's packages, so all else works without them.
"""
