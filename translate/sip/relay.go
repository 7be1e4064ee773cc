package sip

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"time"
)

// lastWords is how long one side may go on after the other has ended.
const lastWords = 2 * time.Minute

// chunk is how much is read at a time, in bytes.
const chunk = 4096

// addressesMax is for how many addresses of a peer's messages one connection asks V4.
const addressesMax = 64

// limited returns V4 for no more than addressesMax addresses. V4 may make a virtual address for each.
func limited(v4 func(netip.Addr) (netip.Addr, bool)) func(netip.Addr) (netip.Addr, bool) {
	asked := map[netip.Addr]struct{}{}
	return func(addr netip.Addr) (netip.Addr, bool) {
		if _, is := asked[addr]; !is && len(asked) >= addressesMax {
			return addr, false
		}
		asked[addr] = struct{}{}
		return v4(addr)
	}
}

// Relay carries a connection, until both sides have ended or one has failed. Then it closes both
// connections. The memory that it uses is bounded.
func Relay(program, peer net.Conn, c Config) error {
	pass := func(from, to net.Conn, s stream) error {
		buf := make([]byte, chunk)
		for {
			n, rerr := from.Read(buf)
			out, err := s.take(buf[:n])
			if err != nil {
				s.note(err, nil, nil)
			}
			if len(out) > 0 {
				_, werr := to.Write(out)
				err = errors.Join(err, werr)
			}
			if errors.Is(rerr, io.EOF) && err == nil {
				return endWriting(to)
			}
			if err = errors.Join(err, rerr); err != nil {
				return err
			}
		}
	}
	c.V4 = limited(c.V4)
	ended := make(chan error, 2)
	go func() { ended <- pass(program, peer, stream{side: side{Config: c, outwards: true}}) }()
	go func() { ended <- pass(peer, program, stream{side: side{Config: c}}) }()
	err := <-ended
	if err == nil {
		deadline := time.Now().Add(lastWords)
		err = errors.Join(program.SetDeadline(deadline), peer.SetDeadline(deadline))
	}
	if err != nil {
		err = errors.Join(err, program.Close(), peer.Close())
		<-ended
		return err
	}
	return errors.Join(<-ended, program.Close(), peer.Close())
}

// endWriting tells a peer that nothing more comes.
func endWriting(c net.Conn) error {
	if half, is := c.(interface{ CloseWrite() error }); is {
		return half.CloseWrite()
	}
	return c.Close()
}
