"""Tells clients who they are, and asks such servers, with asyncio.

    net.py asyncio|uvloop serve PORT     HTTP over TCP, anything over UDP, on all IPv4 addresses
    net.py asyncio|uvloop fetch URL...   http://ADDR:PORT or udp://ADDR:PORT, all at once
"""

import asyncio
import sys
from urllib.parse import urlsplit


class Tell(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        self.transport.sendto(f"{addr[0]}\n".encode(), addr)


async def answer(reader, writer):
    try:
        await reader.readuntil(b"\r\n\r\n")
        body = f"{writer.get_extra_info('peername')[0]}\n"
        head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
        await writer.drain()
    except asyncio.IncompleteReadError:
        pass  # gone before it asked
    writer.close()


async def serve(port):
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Tell, local_addr=("0.0.0.0", port))
    server = await asyncio.start_server(answer, "0.0.0.0", port)
    await server.serve_forever()


class Ask(asyncio.DatagramProtocol):
    def __init__(self, answered):
        self.answered = answered

    def connection_made(self, transport):
        transport.sendto(b"hello")

    def datagram_received(self, data, addr):
        self.answered.set_result(data.decode())

    def error_received(self, exc):
        self.answered.set_exception(exc)


async def fetch(url):
    url = urlsplit(url)
    to = (url.hostname, url.port)
    if url.scheme == "udp":
        loop = asyncio.get_running_loop()
        answered = loop.create_future()
        transport, _ = await loop.create_datagram_endpoint(lambda: Ask(answered), remote_addr=to)
        answer = await answered
        transport.close()
        return answer
    reader, writer = await asyncio.open_connection(*to)
    writer.write(f"GET / HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    assert head.startswith("HTTP/1.1 200 "), head
    return body


async def fetch_all(urls):
    for answer in await asyncio.wait_for(asyncio.gather(*map(fetch, urls)), 5):
        sys.stdout.write(answer)


kind, what, *args = sys.argv[1:]
main = serve(int(args[0])) if what == "serve" else fetch_all(args)
if kind == "uvloop":
    import uvloop

    uvloop.install()
asyncio.run(main)
