package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// diag is a socket of sock_diag(7). It stays open, because a netlink socket is of the namespace in which it
// was made, for good: who asks need not enter the namespace.
type diag struct {
	mu   sync.Mutex // guards what follows
	file int        // 0: none is open
	seq  uint32
}

// ListenerAt returns the TCP socket of the namespace that would take a connection to an address;
// found is false if there is none. It takes the same time whatever sockets there are.
func (ns *NS) ListenerAt(at netip.AddrPort) (s Socket, found bool, err error) {
	d := &ns.diag
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.file == 0 {
		err = ns.Do(func() (err error) {
			d.file, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
			return err
		})
	}
	var msg []byte
	if err == nil {
		msg, err = d.ask(at)
	}
	if errors.Is(err, unix.ENOENT) {
		return s, false, nil
	}
	if err == nil {
		s, err = parseSocket(unix.IPPROTO_TCP, msg)
	}
	if err != nil {
		d.close() // what it has still to say is no answer to the next question
		return s, false, fmt.Errorf("find listener at %s by sock_diag: %w", at, err)
	}
	return s, true, nil
}

// ask asks for one socket. The error is ENOENT if there is none. The caller holds d.mu.
func (d *diag) ask(at netip.AddrPort) ([]byte, error) {
	var request [unix.SizeofNlMsghdr + diagRequestSize]byte
	d.seq++
	binary.NativeEndian.PutUint32(request[:], uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(request[8:], d.seq)
	data := request[unix.SizeofNlMsghdr:]
	data[0], data[1] = unix.AF_INET6, unix.IPPROTO_TCP
	if at.Addr().Is4() {
		data[0] = unix.AF_INET
	}
	binary.BigEndian.PutUint16(data[8:], at.Port())
	copy(data[12:], at.Addr().AsSlice())
	copy(data[48:], []byte{255, 255, 255, 255, 255, 255, 255, 255}) // INET_DIAG_NOCOOKIE
	if err := unix.Sendto(d.file, request[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	answer := make([]byte, 4096)
	n, from, err := unix.Recvfrom(d.file, answer, unix.MSG_DONTWAIT) // the kernel has answered in sendto(2)
	if err != nil {
		return nil, err
	}
	return d.check(answer[:n], from)
}

// check returns what the kernel has answered to the last question.
func (d *diag) check(answer []byte, from unix.Sockaddr) ([]byte, error) {
	kernel, is := from.(*unix.SockaddrNetlink)
	if len(answer) < unix.SizeofNlMsghdr || !is || kernel.Pid != 0 || binary.NativeEndian.Uint32(answer[8:]) != d.seq {
		return nil, fmt.Errorf("%d bytes are no answer to question %d", len(answer), d.seq)
	}
	size := binary.NativeEndian.Uint32(answer)
	if size < unix.SizeofNlMsghdr || uint64(size) > uint64(len(answer)) {
		return nil, fmt.Errorf("an answer of %d bytes is cut short to %d", size, len(answer))
	}
	body := answer[unix.SizeofNlMsghdr:size]
	switch kind := binary.NativeEndian.Uint16(answer[4:]); {
	case kind == unix.SOCK_DIAG_BY_FAMILY:
		return body, nil
	case kind == unix.NLMSG_ERROR && len(body) >= 4:
		return nil, unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
	default:
		return nil, fmt.Errorf("an answer of type %d", kind)
	}
}

// close closes the socket, if there is one. The caller holds d.mu.
func (d *diag) close() {
	if d.file != 0 {
		unix.Close(d.file)
		d.file = 0
	}
}
