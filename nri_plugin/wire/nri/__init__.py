"""The NRI protocol, plugin side: mux, messages, session. Knows nothing of allocations.

`session.PluginSession` is a plugin without I/O: it takes bytes, gives events (`events`), takes answers and
gives bytes. Pods and containers are plain values (`messages`). A plugin that sets a variable of every container:

    from nri_plugin.wire.nri import events
    from nri_plugin.wire.nri.session import PluginSession

    def answer(event):
        if isinstance(event, events.CreateContainer):
            return events.CreateContainerResponse(env={"HINTS": "/etc/hints"})
        return events.empty_response(event)

    session = PluginSession("hints", "20", events.EventMask.CREATE_CONTAINER)
    session.register(clock())
    sock.sendall(session.data_to_send())
    while data := sock.recv(65536):
        for request in session.receive_data(data, clock()):
            if isinstance(request, events.Request):
                if problem := session.respond(request.call, answer(request.event), clock()):
                    print(problem)  # too long or too late
        sock.sendall(session.data_to_send())
"""
