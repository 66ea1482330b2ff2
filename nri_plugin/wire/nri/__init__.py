"""The NRI protocol, plugin side: mux, messages, session. Knows nothing of allocations.

`session.PluginSession` is a plugin without I/O: it takes bytes, gives events (`events`), takes answers and
gives bytes. Pods and containers are plain values (`messages`, `spec`). An answer to `CreateContainer` holds an
`events.Adjustment`. A plugin that adds a mount and a limit to every container, and says so:

    from nri_plugin.wire.nri import events, spec
    from nri_plugin.wire.nri.events import Adjustment, removed
    from nri_plugin.wire.nri.messages import EventMask, Resources
    from nri_plugin.wire.nri.session import PluginSession

    WANTED = Adjustment(
        mounts=(spec.MountSpec("/etc/hints", "bind", "/var/lib/hints", ("bind", "ro")),),
        env={removed("HINTS"): "", "HINTS": "/etc/hints"},  # replaces what an earlier plugin set
        resources=Resources(pids_limit=512),
    )

    def answer(event):
        if isinstance(event, events.Configure):
            return events.ConfigureResponse()
        if isinstance(event, events.CreateContainer):
            return events.CreateContainerResponse(adjustment=WANTED)
        return events.ACKNOWLEDGED

    session = PluginSession("hints", "20", EventMask.CREATE_CONTAINER)
    session.register(clock())
    sock.sendall(session.data_to_send())
    while data := sock.recv(65536):
        for request in session.receive_data(data, clock()):
            if isinstance(request, events.Request):
                if warning := session.respond(request.call, answer(request.event), clock()):
                    print(warning)  # too long, too late, or more than this runtime's release knows
        sock.sendall(session.data_to_send())

A session made with `details=True` also reads the fields that placement never needs: `Container.details`, `Pod.details`.
"""
