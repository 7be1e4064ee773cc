package testkit

import (
	"errors"
	"net"
	"net/netip"
)

// AnswerDatagrams answers each datagram that a socket gets, until the socket is closed. What cannot
// be answered is lost: the client may be gone.
func AnswerDatagrams(c *net.UDPConn, answer func(from netip.AddrPort, data []byte) []byte) {
	buf := make([]byte, 65536)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = c.WriteToUDPAddrPort(answer(from, buf[:n]), from)
		}
	}
}

// Echo is the answer that says the same.
func Echo(_ netip.AddrPort, data []byte) []byte { return data }
