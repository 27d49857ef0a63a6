"""A real federation on Flower: the same algorithms, with every client on its own machine.

An exchange is one message to each client and its reply. `codec` turns a tree into bytes and back
without pickle. `engine` is the server's side and `phase_runner` the client's; between them is a
`transport`: in one process for tests, or over Flower's nodes (`organiser_socket` with
`server_app`, or `project_apps`). `superlink` starts Flower's programs for the organiser; a
participant's `connection` keeps a `node` running, which fetches messages. Only `node`,
`server_app`, `project_apps` and `message_content` import Flower.
"""
