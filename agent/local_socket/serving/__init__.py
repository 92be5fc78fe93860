"""The answering side of the local socket: `server` reads requests, `handler` carries them out on the node's store.

A face of its own, because it loads the fact store: a program that only asks does not need it.
"""

from agent.local_socket.serving.handler import RequestHandler, open_store
from agent.local_socket.serving.server import serve
