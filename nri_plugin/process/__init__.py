"""The parts that agent, exporter and extender share: event loop, logging, HTTP server."""
