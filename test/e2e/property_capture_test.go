package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A capture takes down every packet that passes any interface of a namespace, the loopback
// included, in one order. Whose socket a packet has left is in its mark: see marker.
type capture struct {
	file  *os.File
	links map[int]string
	ended chan struct{}

	mu     sync.Mutex // guards what follows
	frames []frame
	err    error
}

// frame is a packet as it passed an interface.
type frame struct {
	link     string
	outgoing bool
	mark     uint32
	protocol uint8 // of IP; 0 of what is no IP packet
	from, to netip.AddrPort
	via      []netip.Addr // of a source route
	flags    uint8        // of TCP
	whole    bool         // false of a fragment, or of what could not be read
	payload  string       // its beginning
}

const (
	tcpSYN = 0x02
	tcpACK = 0x10
)

// captureBuffer is the room for packets that wait to be read.
const captureBuffer = 64 << 20

// newCapture starts a capture, which ends with the test.
func newCapture(t *testing.T, ns *testkit.Namespace) *capture {
	t.Helper()
	c := &capture{links: map[int]string{}, ended: make(chan struct{})}
	err := ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		c.file = os.NewFile(uintptr(fd), "packets")
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVMARK, 1); err != nil {
			return fmt.Errorf("SO_RCVMARK: %w", err)
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer); err != nil {
			return fmt.Errorf("SO_RCVBUFFORCE: %w", err)
		}
		list, err := net.Interfaces()
		for _, l := range list {
			c.links[l.Index] = l.Name
		}
		if err != nil {
			return err
		}
		all := uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all})
	})
	if err != nil {
		if c.file != nil {
			c.file.Close()
		}
		if strings.HasPrefix(err.Error(), "SO_RCVMARK: "+unix.ENOPROTOOPT.Error()) {
			t.Skip("skip: needs packet sockets that tell marks (SO_RCVMARK, Linux 5.19)")
		}
		t.Fatalf("capture packets of %s: %v", ns.Name(), err)
	}
	go c.read()
	t.Cleanup(func() {
		c.file.Close()
		<-c.ended
	})
	return c
}

func (c *capture) read() {
	defer close(c.ended)
	raw, err := c.file.SyscallConn()
	if err != nil {
		return
	}
	data, control := make([]byte, 512), make([]byte, 128)
	_ = raw.Read(func(fd uintptr) bool { // until the file is closed
		for {
			n, oobn, _, from, err := unix.Recvmsg(int(fd), data, control, 0)
			switch err {
			case nil:
			case unix.EINTR:
				continue
			case unix.EAGAIN:
				return false
			default:
				c.mu.Lock()
				c.err = err
				c.mu.Unlock()
				return true
			}
			ll, _ := from.(*unix.SockaddrLinklayer)
			f := parsePacket(ll.Protocol>>8|ll.Protocol<<8, data[:n])
			f.link, f.outgoing = c.links[ll.Ifindex], ll.Pkttype == unix.PACKET_OUTGOING
			f.mark = markOf(control[:oobn])
			c.mu.Lock()
			c.frames = append(c.frames, f)
			c.mu.Unlock()
		}
	})
}

func markOf(control []byte) uint32 {
	messages, _ := unix.ParseSocketControlMessage(control)
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_MARK && len(m.Data) >= 4 {
			return binary.NativeEndian.Uint32(m.Data)
		}
	}
	return 0
}

// container is the number of the container whose host socket the packet has left; 0 of any
// other packet.
func (f frame) container() int {
	if f.mark&markMask != markMagic {
		return 0
	}
	return int(f.mark &^ markMask >> markShift)
}

// onLoopback tells whether a packet is of the loopback that its container has on the host.
func (f frame) onLoopback() bool {
	return f.link == "lo" && f.container() != 0 && f.mark&markOnLoopback != 0
}

// take waits until a packet whose payload begins so has passed, and returns what has until
// then since the last call.
func (c *capture) take(t *testing.T, sentinel string) []frame {
	t.Helper()
	deadline := time.Now().Add(testkit.Patience)
	for seen := 0; ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		for ; seen < len(c.frames); seen++ {
			if strings.HasPrefix(c.frames[seen].payload, sentinel) {
				taken := c.frames[:seen]
				c.frames = append([]frame(nil), c.frames[seen:]...)
				c.mu.Unlock()
				return taken
			}
		}
		err := c.err
		c.mu.Unlock()
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the packet %q was not captured: %v", sentinel, err)
		}
	}
}

// lost is how many packets the kernel had no room for since the last call.
func (c *capture) lost(t *testing.T) int {
	t.Helper()
	raw, err := c.file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var stats *unix.TpacketStats
	cerr := raw.Control(func(fd uintptr) {
		stats, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
	})
	if cerr != nil || err != nil {
		t.Fatalf("count lost packets: %v %v", cerr, err)
	}
	return int(stats.Drops)
}

// parsePacket reads what begins with an IP header. What it cannot read is not whole.
func parsePacket(ethertype uint16, b []byte) frame {
	switch {
	case ethertype == unix.ETH_P_IP && len(b) >= 20:
		return parseIP4(b)
	case ethertype == unix.ETH_P_IPV6 && len(b) >= 40:
		return parseIP6(b)
	}
	return frame{}
}

func parseIP4(b []byte) frame {
	f := frame{protocol: b[9]}
	from, to := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	f.from, f.to = netip.AddrPortFrom(from, 0), netip.AddrPortFrom(to, 0)
	size := int(b[0]&0xf) * 4
	if size < 20 || size > len(b) {
		return f
	}
	if !f.route4(b[20:size]) || binary.BigEndian.Uint16(b[6:])&0x3fff != 0 { // a fragment
		return f
	}
	return f.transport(b[size:])
}

// route4 reads the addresses of source routes, and tells whether all options can be read.
func (f *frame) route4(options []byte) bool {
	for len(options) > 0 {
		switch kind := options[0]; {
		case kind == 0:
			return true
		case kind == 1:
			options = options[1:]
			continue
		case len(options) < 2 || options[1] < 2 || int(options[1]) > len(options):
			return false
		case kind == 131 || kind == 137: // loose and strict source route
			for rest := options[min(3, int(options[1])):options[1]]; len(rest) >= 4; rest = rest[4:] {
				f.via = append(f.via, netip.AddrFrom4([4]byte(rest)))
			}
		}
		options = options[options[1]:]
	}
	return true
}

func parseIP6(b []byte) frame {
	f := frame{protocol: b[6]}
	from, to := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	f.from, f.to = netip.AddrPortFrom(from, 0), netip.AddrPortFrom(to, 0)
	for b = b[40:]; ; {
		switch f.protocol {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_DSTOPTS, unix.IPPROTO_ROUTING:
		case unix.IPPROTO_FRAGMENT:
			return f
		default:
			return f.transport(b)
		}
		if len(b) < 8 || len(b) < 8+8*int(b[1]) {
			return f
		}
		size := 8 + 8*int(b[1])
		if f.protocol == unix.IPPROTO_ROUTING {
			f.via = append(f.via, to)
			for rest := b[8:size]; len(rest) >= 16; rest = rest[16:] {
				f.via = append(f.via, netip.AddrFrom16([16]byte(rest)))
			}
		}
		f.protocol, b = b[0], b[size:]
	}
}

// transport reads ports, flags and the beginning of the payload.
func (f frame) transport(b []byte) frame {
	var header int
	switch {
	case f.protocol == unix.IPPROTO_UDP && len(b) >= 8, f.protocol == unix.IPPROTO_UDPLITE && len(b) >= 8:
		header = 8
	case f.protocol == unix.IPPROTO_TCP && len(b) >= 20:
		header, f.flags = int(b[12]>>4)*4, b[13]
	default:
		f.whole = f.protocol == unix.IPPROTO_ICMP || f.protocol == unix.IPPROTO_ICMPV6
		return f
	}
	f.from = netip.AddrPortFrom(f.from.Addr(), binary.BigEndian.Uint16(b))
	f.to = netip.AddrPortFrom(f.to.Addr(), binary.BigEndian.Uint16(b[2:]))
	f.whole = true
	if header <= len(b) {
		f.payload = string(b[header:min(len(b), header+64)])
	}
	return f
}

func (f frame) String() string {
	how := "into"
	if f.outgoing {
		how = "out of"
	}
	return fmt.Sprintf("protocol %d from %v to %v, %s %s, flags %#x, %q", f.protocol, f.from, f.to, how, f.link, f.flags, f.payload)
}
