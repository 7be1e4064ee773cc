package host

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/outsource/wire"
)

// The process has capabilities on the host, and the guest has none. So a guest sets only options
// that need none, and none that changes where packets go or what a call does to us.

// known is an option.
type known struct {
	level, name uint16
	size        int  // of its value
	read        bool // it cannot be set
}

var options = []known{
	{level: unix.SOL_SOCKET, name: unix.SO_KEEPALIVE, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_REUSEADDR, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_REUSEPORT, size: 4},
	{level: unix.SOL_IP, name: unix.IP_TOS, size: 4},
	{level: unix.SOL_IP, name: unix.IP_TTL, size: 4},
	{level: unix.SOL_IP, name: unix.IP_MTU_DISCOVER, size: 4},
	{level: unix.SOL_IP, name: unix.IP_MTU, size: 4, read: true},
	{level: unix.SOL_IPV6, name: unix.IPV6_V6ONLY, size: 4},
	{level: unix.SOL_IPV6, name: unix.IPV6_UNICAST_HOPS, size: 4},
	{level: unix.SOL_IPV6, name: unix.IPV6_TCLASS, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_NODELAY, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_MAXSEG, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_CORK, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_KEEPIDLE, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_KEEPINTVL, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_KEEPCNT, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_SYNCNT, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_DEFER_ACCEPT, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_INFO, size: wire.ValueMax, read: true},
	{level: unix.SOL_TCP, name: unix.TCP_QUICKACK, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_CONGESTION, size: 16, read: true},
	{level: unix.SOL_TCP, name: unix.TCP_USER_TIMEOUT, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_NOTSENT_LOWAT, size: 4},
}

// find returns what is known of an option.
func find(o wire.Option) (known, error) {
	i := slices.IndexFunc(options, func(k known) bool { return k.level == o.Level && k.name == o.Name })
	if i < 0 {
		return known{}, fmt.Errorf("option %d of level %d: %w", o.Name, o.Level, unix.ENOPROTOOPT)
	}
	return options[i], nil
}

// get reads the options of a socket.
func (h *handle) get(list []wire.Option) ([]wire.Option, error) {
	var values []wire.Option
	for _, o := range list {
		k, err := find(o)
		if err != nil {
			return nil, err
		}
		value := make([]byte, min(len(o.Value), k.size))
		n, err := h.option(unix.SYS_GETSOCKOPT, o, value)
		if err != nil {
			return nil, err
		}
		values = append(values, wire.Option{Level: o.Level, Name: o.Name, Value: value[:n]})
	}
	return values, nil
}

// set sets options of a socket, up to the first that the kernel refuses.
func (h *handle) set(list []wire.Option) error {
	for _, o := range list {
		k, err := find(o)
		if err == nil && (k.read || len(o.Value) != k.size) {
			err = unix.EINVAL
			if k.read {
				err = unix.EPERM
			}
		}
		if err == nil {
			_, err = h.option(unix.SYS_SETSOCKOPT, o, o.Value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// setKnown sets options that the program has set before the host knew of its socket. It leaves out what
// the host refuses, as graft does where it moves a socket.
func (h *handle) setKnown(list []wire.Option) {
	for _, o := range list {
		if err := h.set([]wire.Option{o}); err != nil {
			var errno unix.Errno
			if errors.As(err, &errno) {
				h.vm.Log.Debug("socket option of a guest is not set", "level", o.Level, "name", o.Name, "err", err)
			}
		}
	}
}

// option calls getsockopt(2) or setsockopt(2).
func (h *handle) option(call uintptr, o wire.Option, value []byte) (int, error) {
	file, err := h.dup() // a call may wait for the socket's lock
	if err != nil {
		return 0, err
	}
	defer unix.Close(file)
	size := uint32(len(value))
	if call == unix.SYS_SETSOCKOPT {
		_, _, errno := unix.Syscall6(call, uintptr(file), uintptr(o.Level), uintptr(o.Name), uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(size), 0)
		return 0, errnoOf(errno)
	}
	_, _, errno := unix.Syscall6(call, uintptr(file), uintptr(o.Level), uintptr(o.Name), uintptr(unsafe.Pointer(unsafe.SliceData(value))),
		uintptr(unsafe.Pointer(&size)), 0)
	return min(int(size), len(value)), errnoOf(errno)
}

func errnoOf(errno unix.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}
