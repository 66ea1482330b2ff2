"""ttrpc without I/O: frames and envelopes (`frame`), and the client and server end of a connection (`connection`)."""
