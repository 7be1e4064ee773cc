package guest

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// # Datagrams
//
// UDP sockets of programs stay the guest's, and sends and receives are not trapped. What has no other
// route leaves by a TUN device, as packets, and becomes frames for the host (package wire). The host sends
// frames, which become packets of the device. So it has the datagrams of all programs in the guest.
//
// One supervisor of the guest has the device: the one that has the lock on deviceFile. The others wait for
// the lock, and start their programs when the device is there. The device, its addresses and its routes end
// with the supervisor's process, which first waits until the last datagrams are with the host.
//
// connect(2) and bind(2) are trapped: the host says whether a rule covers the address. getsockname(2) of a
// connected socket is, too: the host says which name the peer sees.

const (
	deviceFile = "/dev/net/tun"
	deviceName = "tsugiki0"
)

// device has the guest's datagrams.
type device struct {
	file *os.File // the TUN device
	raw  syscall.RawConn
	own  []netip.Addr // of IPv4, and of IPv6 if there is one
	log  *slog.Logger

	flushed chan struct{} // has an entry when the sentinel of flush has come

	mu     sync.Mutex // guards what follows
	conn   *os.File   // to the host; nil: there is none
	failed time.Time  // when the host did not answer
}

// holder has the device while this supervisor does.
type holder struct {
	device atomic.Pointer[device]
}

// serve opens the device, and carries datagrams while this process lives. If another supervisor has it, this
// one waits for its turn.
func (h *holder) serve(own []netip.Addr, log *slog.Logger) error {
	if len(own) == 0 {
		return nil
	}
	fd, err := unix.Open(deviceFile, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("open %s: %w; load the module tun", deviceFile, err)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", deviceFile, err)
	}
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		turn := make(chan struct{})
		go func() {
			defer close(turn)
			h.takeOver(fd, own, log)
		}()
		awaitRoute(own[0], turn)
		return nil
	}
	if err == nil {
		err = h.carry(fd, own, log)
	}
	return err
}

// takeOver waits until the supervisor that has the device has ended, and then is the one that has it.
func (h *holder) takeOver(fd int, own []netip.Addr, log *slog.Logger) {
	err := unix.Flock(fd, unix.LOCK_EX)
	for errors.Is(err, unix.EINTR) {
		err = unix.Flock(fd, unix.LOCK_EX)
	}
	if err == nil {
		err = h.carry(fd, own, log)
	}
	if err != nil {
		log.Warn("UDP stays in the guest", "err", err)
	}
}

// routePatience bounds how long a program waits for the device that another supervisor makes. That one may be
// in another network namespace of the guest. It is a variable for tests.
var routePatience = 2 * time.Second

// awaitRoute waits until another supervisor has made the device, or has not, so that a program which is started
// at the same time does not find that its first datagrams have no route.
func awaitRoute(own netip.Addr, turn <-chan struct{}) {
	for end := time.Now().Add(routePatience); time.Now().Before(end) && !netns.DatagramsRouted(own); {
		select {
		case <-turn:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// hasDevice tells whether some supervisor of the guest has the device.
func hasDevice() bool {
	_, err := os.Stat("/sys/class/net/" + deviceName)
	return err == nil
}

// carry makes the device of an open file, and begins to carry datagrams. It owns the file.
func (h *holder) carry(fd int, own []netip.Addr, log *slog.Logger) error {
	if err := makeDevice(fd); err != nil {
		unix.Close(fd)
		return err
	}
	d := &device{file: os.NewFile(uintptr(fd), deviceFile), own: own, log: log, flushed: make(chan struct{}, 1)}
	var conn *os.File
	var err error
	if d.raw, err = d.file.SyscallConn(); err == nil {
		conn, _ = d.connect()
		err = netns.RouteDatagrams(deviceName, deviceMTU, own) // programs begin when they have the route
	}
	if err != nil {
		if conn != nil {
			d.drop(conn)
		}
		d.file.Close()
		return err
	}
	if conn != nil { // what the host has sent meanwhile waits there: the device was not up
		go d.carryIn(conn)
	}
	go d.carryOut()
	h.device.Store(d)
	return nil
}

// sentinel is an address that nobody has (of 192.0.0.0/24, RFC 6890). Datagrams to it go nowhere.
var sentinel = netip.MustParseAddrPort("192.0.0.11:9")

// flushPatience bounds how long the supervisor waits for the datagrams that a program has sent before it
// ended.
const flushPatience = time.Second

// flush waits until what has left by the device is with the host: a datagram of our own comes behind it.
func (h *holder) flush() {
	d := h.device.Load()
	if d == nil {
		return
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		if err = unix.BindToDevice(fd, deviceName); err == nil {
			err = unix.Sendto(fd, nil, unix.MSG_DONTWAIT, sockaddr.Of(sentinel))
		}
	}
	if err != nil {
		d.log.Debug("the last datagrams may be lost", "err", err)
		return
	}
	select {
	case <-d.flushed:
	case <-time.After(flushPatience):
	}
}

// makeDevice makes a TUN device whose packets have a struct virtio_net_hdr.
func makeDevice(fd int) error {
	request, err := unix.NewIfreq(deviceName)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("make a TUN device: %w; the first tsugiki guest run needs CAP_NET_ADMIN", err)
	}
	const checksum = 1 // TUN_F_CSUM: packets come without their checksums
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, checksum)
	}
	if err != nil {
		return fmt.Errorf("make a TUN device: %w", err)
	}
	return nil
}

// retryAfter is how long datagrams are lost when the host has not answered.
const retryAfter = time.Second

// dialDatagrams is a variable for tests.
var dialDatagrams = func() (int, error) { return dial(wire.DatagramPort, helloPatience) }

// connect returns the connection to the host; nil if there is none. It makes it if there was none: then the caller
// calls carryIn.
func (d *device) connect() (conn *os.File, made bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil || time.Since(d.failed) < retryAfter {
		return d.conn, false
	}
	fd, err := dialDatagrams()
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		d.failed = time.Now()
		d.log.Debug("datagrams are lost", "err", err)
		return nil, false
	}
	d.conn = os.NewFile(uintptr(fd), "datagrams")
	return d.conn, true
}

// drop ends a connection.
func (d *device) drop(conn *os.File) {
	conn.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn == conn {
		d.conn = nil
	}
}

// carryOut sends the host what leaves the guest.
func (d *device) carryOut() {
	packet := make([]byte, virtioSize+deviceMTU+1)
	frames := make([]byte, 0, 256<<10)
	const room = wire.DatagramMax + 64
	var parts fragments
	for {
		frames = frames[:0]
		last := false
		var rerr error
		err := d.raw.Read(func(fd uintptr) bool {
			for cap(frames)-len(frames) >= room {
				n, err := unix.Read(int(fd), packet)
				if errors.Is(err, unix.EINTR) {
					continue
				}
				if err != nil {
					if !errors.Is(err, unix.EAGAIN) {
						rerr = err
					}
					break
				}
				if m, is := parts.parse(packet[:n]); is && m.Peer == sentinel {
					last = true
				} else if is {
					if frames, err = m.Append(frames); err != nil {
						d.log.Debug("a datagram is dropped", "err", err)
					}
				}
			}
			return len(frames) > 0 || last || rerr != nil
		})
		if err = errors.Join(err, rerr); err != nil {
			d.log.Error("datagrams stay in the guest", "err", err)
			return
		}
		conn, made := d.connect()
		if made {
			go d.carryIn(conn)
		}
		if conn != nil && len(frames) > 0 {
			if _, err := conn.Write(frames); err != nil {
				d.drop(conn)
			}
		}
		if last {
			select {
			case d.flushed <- struct{}{}:
			default:
			}
		}
	}
}

// carryIn gives the guest's kernel what the host sends, until the connection ends.
func (d *device) carryIn(conn *os.File) {
	defer d.drop(conn)
	frames := wire.NewDatagramReader(conn)
	head := make([]byte, 0, headMax)
	for {
		m, err := wire.ReadDatagram(frames)
		if err != nil {
			d.log.Debug("the host's datagrams have ended", "err", err)
			return
		}
		head = build(head[:0], d.own, m)
		if len(head) == 0 {
			continue
		}
		err = d.raw.Write(func(fd uintptr) bool {
			_, err = unix.Writev(int(fd), [][]byte{head, m.Bytes})
			return true
		})
		if err != nil {
			d.log.Debug("a datagram is lost", "err", err)
		}
	}
}
