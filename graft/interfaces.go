package graft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/keeper"
)

// tunDevice is /dev/net/tun, whose files answer SIOCGIFHWADDR too (linux/major.h).
var tunDevice = unix.Mkdev(10, 200)

// Interfaces calls ask with a file on which ioctl(2) tells about those network interfaces that the
// program may see through one of its descriptors. For a socket on the host's side, the file is a
// socket of the same kind in the container's own namespace. For other sockets and for tun devices,
// it is the program's own file. For all other files the error is ENOTTY.
//
// The program can put another file under the number at any time. Only the file that was duplicated
// here counts: ask is called with no other.
//
// The thread that runs ask has no capabilities. With our capabilities, the kernel would load a
// module for each name of a missing interface (dev_load).
//
// named says that the program asks for the name of an interface by its number. A server that a rule
// has bound gets numbers of the host's interfaces with its datagrams (IP_PKTINFO), so it gets their
// names.
func (e *Engine) Interfaces(p Program, number int, named bool, ask func(file int)) error {
	file, err := p.File(number)
	if err != nil {
		return err
	}
	defer unix.Close(file)
	about, err := e.begin().aboutInterfaces(file, named)
	if err != nil {
		return err
	}
	if about != file {
		defer unix.Close(about)
	}
	return withoutCapabilities(func() { ask(about) })
}

// aboutInterfaces returns the file that Interfaces asks instead of the program's.
func (e call) aboutInterfaces(file int, named bool) (int, error) {
	cookie, err := unix.GetsockoptUint64(file, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	switch {
	case errors.Is(err, unix.ENOTSOCK):
		return file, notTun(file)
	case err != nil:
		return -1, fmt.Errorf("inspect socket: %w", err)
	case cookie == e.Own.Cookie(), e.places[cookie] == nil, named && e.Enforcer.BoundByIngress(file):
		return file, nil
	}
	s, err := inspect(file)
	if err != nil {
		return -1, err
	}
	kind := keeper.Kind{Family: unix.AF_INET, Type: unix.SOCK_DGRAM, Protocol: unix.IPPROTO_UDP}
	if s.isIP() {
		kind = s.kind()
	}
	k, err := e.Own.Maker()
	if err != nil {
		return -1, err
	}
	return k.Socket(kind)
}

// notTun returns ENOTTY for files that are no tun devices.
func notTun(file int) error {
	var st unix.Stat_t
	if err := unix.Fstat(file, &st); err != nil {
		return fmt.Errorf("inspect file: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != tunDevice {
		return unix.ENOTTY
	}
	return nil
}
