"""The smart transfer protocol: blocks in one archive over a WebSocket, files by URLs; both ends of it."""
