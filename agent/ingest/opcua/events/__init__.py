"""Events and conditions of an OPC UA server, as messages: `event_source` receives them, the other modules decide."""
