# Prints what ioctl(2) tells of the interfaces of a socket's namespace, as programs ask
# for it: of the links that are named, and of a tap device that the user may attach to.
import array
import fcntl
import os
import socket
import struct
import sys

SIOCGIFNAME, SIOCGIFCONF, SIOCGIFHWADDR, SIOCGARP, SIOCETHTOOL = 0x8910, 0x8912, 0x8927, 0x8954, 0x8946
IFREQ = (0x8913, 0x8915, 0x8917, 0x8919, 0x891B, 0x891D, 0x8921, SIOCGIFHWADDR, 0x8933, 0x8942, 0x8961, 0x8970, 0x89D0)
# GSET, GDRVINFO, GLINK, GCHANNELS, GET_TS_INFO
FIXED = (0x01, 0x03, 0x0A, 0x3C, 0x41)
GPERMADDR, GSTRINGS, GSSET_INFO, GFEATURES, GLINKSETTINGS, SLINKSETTINGS = 0x20, 0x1B, 0x37, 0x3A, 0x4C, 0x4D
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 2, 0x1000


def tell(what, call):
    try:
        print(what, call())
    except OSError as e:
        print(what, os.strerror(e.errno))


def ifreq(s, request, link):
    return fcntl.ioctl(s, request, struct.pack("16s24x", link.encode())).hex()


def through(s, link, data):
    """ioctl with a pointer to data, which the kernel fills in."""
    data = array.array("B", data)
    fcntl.ioctl(s, SIOCETHTOOL, struct.pack("16sP16x", link.encode(), data.buffer_info()[0]))
    return data.tobytes().rstrip(b"\0").hex()


def conf(s, room):
    data = array.array("B", bytes(room))
    answer = fcntl.ioctl(s, SIOCGIFCONF, struct.pack("iP", room, data.buffer_info()[0] if room else 0))
    length = struct.unpack("iP", answer)[0]
    return length, data.tobytes()[: min(length, room)].hex()


def arp(s, link, address):
    pa = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
    return fcntl.ioctl(s, SIOCGARP, struct.pack("16s20x16x16s", pa, link.encode())).hex()


def tap(link):
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", link.encode(), IFF_TAP | IFF_NO_PI))
    return ifreq(fd, SIOCGIFHWADDR, "")


neighbour, device, links = sys.argv[1], sys.argv[2], sys.argv[3:]
for family in (socket.AF_INET, socket.AF_INET6):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        s = socket.socket(family, kind)
        for room in (0, 39, 40, 4096, 1 << 20):
            tell(f"SIOCGIFCONF {room}", lambda: conf(s, room))
        tell("SIOCGIFNAME", lambda: fcntl.ioctl(s, SIOCGIFNAME, struct.pack("16si20x", b"", 1)).hex())
        tell("EFAULT", lambda: fcntl.ioctl(s, SIOCGIFHWADDR, 16))
        for link in links:
            for request in IFREQ:
                tell(f"{link} {request:#x}", lambda: ifreq(s, request, link))
            for command in FIXED:
                tell(f"{link} ethtool {command:#x}", lambda: through(s, link, struct.pack("I252x", command)))
            for name, data in (
                ("address", struct.pack("II32x", GPERMADDR, 32)),
                ("strings", struct.pack("III20000x", GSTRINGS, 1, 0)),
                ("sets", struct.pack("IIQ64x", GSSET_INFO, 0, 0xFF)),
                ("features", struct.pack("II512x", GFEATURES, 3)),
                ("settings", struct.pack("I252x", GLINKSETTINGS)),
                ("nothing", struct.pack("I252x", 0x7777)),
                ("set settings", struct.pack("I252x", SLINKSETTINGS)),
            ):
                tell(f"{link} ethtool {name}", lambda: through(s, link, data))
            tell(f"{link} neighbour", lambda: arp(s, link, neighbour))
    tell("pipe", lambda: ifreq(os.pipe()[0], SIOCGIFHWADDR, "lo"))
    tell("no descriptor", lambda: ifreq(999, SIOCGIFHWADDR, "lo"))
if device:
    tell("tap", lambda: tap(device))
