"""A phone: SIP and media over UDP, of one family. It fails on any address of the other family.

sipphone.py OWN SIP_PORT MEDIA_PORT STEP..., each step a word or two in one argument:
    register HOST     registers its contact at HOST
    registrar         takes one registration
    call HOST         calls HOST; of "contact", who has registered
    answer            answers a call
    talk, listen      sends media to where the other side's session description says, and gets an
                      answer from there; or the other side begins
    hang-up, ended    ends the call; or the other side does
"""
import ipaddress
import re
import select
import socket
import sys
import time

own, sip_port, media_port = ipaddress.ip_address(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
family = socket.AF_INET if own.version == 4 else socket.AF_INET6
here = f"{own}" if own.version == 4 else f"[{own}]"
PATIENCE = 50
AGAIN = 0.5


def bound(port):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.bind(("0.0.0.0" if own.version == 4 else str(own), port))
    return s


sip, media = bound(sip_port), bound(media_port)
registered = dialog = None
sequence = 0


def fail(*what):
    print(*what, file=sys.stderr)
    sys.exit(1)


class Message:
    def __init__(self, text, peer):
        self.text, self.peer = text, peer
        head, _, self.body = text.partition("\r\n\r\n")
        lines = head.split("\r\n")
        self.start, self.headers = lines[0], [line.partition(": ")[::2] for line in lines[1:]]
        checked = "\r\n".join(line for line in text.split("\r\n") if not line.startswith("Call-ID"))
        other = r"\[[0-9a-f]*:[0-9a-f:]*\]|IP6|received=[0-9a-f]*:" if own.version == 4 else r"\b\d+\.\d+\.\d+\.\d+|IP4"
        found = re.search(other, checked)
        if found:
            fail("a message names", found.group(), text)
        length = self.get("Content-Length")
        if int(length) != len(self.body):
            fail("a body has", len(self.body), "bytes:", text)

    def get(self, name):
        for key, value in self.headers:
            if key == name:
                return value
        fail("no", name, "in", self.text)

    def media(self):
        addr = re.search(r"^c=IN IP[46] (\S+)", self.body, re.M).group(1)
        return addr, int(re.search(r"^m=audio (\d+) ", self.body, re.M).group(1))


def receive(seconds):
    """Returns the next message, or None."""
    if not select.select([sip], [], [], seconds)[0]:
        return None
    data, peer = sip.recvfrom(65535)
    return Message(data.decode(), peer)


def send(start, headers, body, to):
    lines = [start] + [f"{k}: {v}" for k, v in headers]
    if body:
        lines.append("Content-Type: application/sdp")
    lines.append(f"Content-Length: {len(body)}")
    sip.sendto(("\r\n".join(lines) + "\r\n\r\n" + body).encode(), to)


def description():
    kind = f"IP{own.version}"
    return f"v=0\r\no=- 1 1 IN {kind} {own}\r\ns=-\r\nc=IN {kind} {own}\r\nt=0 0\r\nm=audio {media_port} RTP/AVP 0\r\n"


def ask(method, uri, to, call, body=""):
    """Sends a request until there is a response, and checks that the response is its own."""
    global sequence
    if method != "ACK":
        sequence += 1
    via = f"SIP/2.0/UDP {here}:{sip_port};branch=z9hG4bK{own.version}{sequence}"
    contact = f"<sip:phone@{here}:{sip_port}>"
    headers = [("Via", via), ("From", f"<sip:phone@{here}>;tag=1"), ("To", f"<{uri}>"), ("Call-ID", call), ("CSeq", f"{sequence} {method}"), ("Contact", contact)]
    end, provisional = time.monotonic() + PATIENCE, False
    while time.monotonic() < end:
        if not provisional:
            send(f"{method} {uri} SIP/2.0", headers, body, to)
        if method == "ACK":
            return None
        m = receive(AGAIN)
        if m is None or not m.start.startswith("SIP/2.0 "):
            continue
        if m.start.startswith("SIP/2.0 1"):
            provisional = True
            continue
        if m.get("CSeq") != f"{sequence} {method}":
            continue  # to an earlier copy of another request
        if m.start != "SIP/2.0 200 OK" or m.get("Via") != via or m.get("From") != f"<sip:phone@{here}>;tag=1" or m.peer[:2] != to:
            fail(method, "to", to, "is answered by", m.peer, m.text)
        return m
    fail("no response to", method)


def wait(method, again=""):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        m = receive(AGAIN)
        if m and m.start.startswith(method + " "):
            return m
        if m and again:
            respond(m, again)  # to a copy of the request before
    fail("no", method)


def respond(m, body=""):
    headers = [(k, v) for k, v in m.headers if k in ("Via", "From", "To", "Call-ID", "CSeq")]
    headers.append(("Contact", m.get("Contact") if m.start.startswith("REGISTER") else f"<sip:phone@{here}:{sip_port}>"))
    send("SIP/2.0 200 OK", headers, body, m.peer)


def exchange(to, begins):
    """Media of one side comes to the other, and back, each from where its session description says."""
    mine, others = (f"media {v}".encode() for v in (own.version, 10 - own.version))
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if begins:
            media.sendto(mine, to)
        if not select.select([media], [], [], AGAIN)[0]:
            continue
        data, peer = media.recvfrom(1000)
        if peer[:2] != to or data not in (mine, others):
            fail("media", data, "from", peer, "want", to)
        if not begins and data == others:
            media.sendto(data, to)
        if data == (mine if begins else others):
            return
    fail("no media from", to)


for step in sys.argv[4:]:
    step, _, arg = step.partition(" ")
    if step == "register":
        arg = socket.getaddrinfo(arg, 5060, family, socket.SOCK_DGRAM)[0][4][:2]
        m = ask("REGISTER", f"sip:{arg[0]}" if own.version == 4 else f"sip:[{arg[0]}]", arg, "registration")
        if m.get("Contact") != f"<sip:phone@{here}:{sip_port}>":
            fail("registered is", m.text)
    elif step == "registrar":
        m = wait("REGISTER")
        registered = m.get("Contact").strip("<>")
        respond(m)
    elif step == "call":
        if arg == "contact":
            addr, port = re.search(r"@\[([^]]+)\]:(\d+)", registered).groups()
            uri, to = registered, (addr, int(port))
        else:
            to = socket.getaddrinfo(arg, 5060, family, socket.SOCK_DGRAM)[0][4][:2]
            uri = f"sip:phone@{to[0]}:5060" if own.version == 4 else f"sip:phone@[{to[0]}]:5060"
        call = f"call-{own.version}"
        m = ask("INVITE", uri, to, call, description())
        ask("ACK", uri, to, call)
        dialog, other = (uri, to, call), m.media()
    elif step == "answer":
        m = wait("INVITE")
        if f"@{here}:{sip_port}" not in m.start:
            fail("called is", m.start)
        dialog, other = (m.get("Contact").strip("<>"), m.peer[:2], m.get("Call-ID")), m.media()
        respond(m, description())
        wait("ACK", description())
    elif step in ("talk", "listen"):
        exchange(other, step == "talk")
    elif step == "hang-up":
        ask("BYE", *dialog)
    elif step == "ended":
        respond(wait("BYE"))
    else:
        fail("no step", step)
    print(step)
