"""Messages between processes: codec, sockets, the four data verbs and the control channel."""
