package graft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/keeper"
)

// tunDevice is /dev/net/tun, whose files answer SIOCGIFHWADDR too (linux/major.h).
var tunDevice = unix.Mkdev(10, 200)

// Interfaces calls ask with a file by which ioctl(2) tells of network interfaces what a
// program may know by one of its descriptors. For a socket on the host's side that is a
// socket of the same kind in the container's own namespace. For other sockets, and for
// tun devices, it is the program's own file. Other files are no sockets (ENOTTY).
//
// The program can put another file under the number at any time. What counts is the
// file that was duplicated here: ask is called with no other.
//
// The thread that runs ask has no capabilities. With ours, the kernel would load a module
// for each name of an interface that is not there (dev_load).
//
// named says that the name of an interface is asked for, by its number. A server that a
// rule has bound gets such numbers with its datagrams (IP_PKTINFO), and is told their names.
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

// aboutInterfaces returns the file that Interfaces asks in the place of a program's.
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

// notTun is ENOTTY for files that are no tun devices.
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
