package graft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/keeper"
)

// option is a socket option that a program may have set before its socket is moved. getsockopt(2)
// returns it in the form that setsockopt(2) takes.
type option struct {
	level, name int
	family      int // only for sockets of this family; 0: any
	typ         int // only for sockets of this type; 0: any
	size        int
	halve       bool   // the kernel doubles the value that it is given (socket(7))
	lock        uint32 // 0, or the bit of SO_BUF_LOCK that tells whether a program has set it
	// limited: without a capability on the host, the kernel accepts only some values. In a user
	// namespace of its own, the program may have set others.
	limited bool
	// early: without effect on an established connection of TCP, or refused there. It matters when a
	// socket is bound, listens or connects, or when it receives datagrams.
	early bool
}

// Options of linux/in6.h and linux/tcp.h.
const (
	ipv6Flowinfo     = 11
	ipv6FlowinfoSend = 33
	tcpRTOMaxMs      = 44
	tcpRTOMinUs      = 45
	tcpDelackMaxUs   = 46
)

// optionSizeMax is the size of the largest option.
const optionSizeMax = 32

// options are all options that can be read back, except the socket filter, see copyFilter; those that
// host sockets are refused (bpf/options.h); and those that need a capability on the host. Others,
// such as multicast memberships, are lost in a move. Sockets that are created in the right place
// are not moved. An option comes after those that change it, as SO_BUF_LOCK after SO_RCVBUF.
var options = []option{
	{level: unix.SOL_SOCKET, name: unix.SO_REUSEADDR, size: 4, early: true},
	{level: unix.SOL_SOCKET, name: unix.SO_REUSEPORT, size: 4, early: true},
	{level: unix.SOL_SOCKET, name: unix.SO_KEEPALIVE, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_DONTROUTE, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_BROADCAST, size: 4, early: true},
	{level: unix.SOL_SOCKET, name: unix.SO_OOBINLINE, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_SNDBUF, size: 4, halve: true, lock: unix.SOCK_SNDBUF_LOCK},
	{level: unix.SOL_SOCKET, name: unix.SO_RCVBUF, size: 4, halve: true, lock: unix.SOCK_RCVBUF_LOCK},
	{level: unix.SOL_SOCKET, name: unix.SO_BUF_LOCK, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_LINGER, size: 8},
	{level: unix.SOL_SOCKET, name: unix.SO_RCVLOWAT, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_RCVTIMEO, size: 16},
	{level: unix.SOL_SOCKET, name: unix.SO_SNDTIMEO, size: 16},
	{level: unix.SOL_SOCKET, name: unix.SO_PRIORITY, size: 4, limited: true},
	{level: unix.SOL_SOCKET, name: unix.SO_TIMESTAMP, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_TIMESTAMPNS, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_TIMESTAMP_NEW, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_TIMESTAMPNS_NEW, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_TIMESTAMPING, size: 8},
	{level: unix.SOL_SOCKET, name: unix.SO_TIMESTAMPING_NEW, size: 8},
	{level: unix.SOL_SOCKET, name: unix.SO_RXQ_OVFL, size: 4, early: true},
	{level: unix.SOL_SOCKET, name: unix.SO_INCOMING_CPU, size: 4, early: true},
	{level: unix.SOL_SOCKET, name: unix.SO_ZEROCOPY, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_BUSY_POLL, size: 4, limited: true},
	{level: unix.SOL_SOCKET, name: unix.SO_MAX_PACING_RATE, size: 8},
	{level: unix.SOL_SOCKET, name: unix.SO_NO_CHECK, size: 4, early: true},
	{level: unix.SOL_SOCKET, name: unix.SO_WIFI_STATUS, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_PEEK_OFF, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_LOCK_FILTER, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_SELECT_ERR_QUEUE, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_TXTIME, size: 8, limited: true},
	{level: unix.SOL_SOCKET, name: unix.SO_RESERVE_MEM, size: 4, early: true},
	{level: unix.SOL_SOCKET, name: unix.SO_TXREHASH, size: 4},
	{level: unix.SOL_SOCKET, name: unix.SO_RCVMARK, size: 4, limited: true, early: true},
	{level: unix.SOL_SOCKET, name: unix.SO_RCVPRIORITY, size: 4, early: true},

	{level: unix.SOL_IP, name: unix.IP_TOS, size: 4},
	{level: unix.SOL_IP, name: unix.IP_TTL, size: 4},
	{level: unix.SOL_IP, name: unix.IP_MTU_DISCOVER, size: 4},
	{level: unix.SOL_IP, name: unix.IP_RECVERR, size: 4},
	{level: unix.SOL_IP, name: unix.IP_PKTINFO, size: 4, early: true},
	{level: unix.SOL_IP, name: unix.IP_RECVTTL, size: 4, early: true},
	{level: unix.SOL_IP, name: unix.IP_RECVTOS, size: 4, early: true},
	{level: unix.SOL_IP, name: unix.IP_FREEBIND, size: 4, early: true},
	{level: unix.SOL_IP, name: unix.IP_BIND_ADDRESS_NO_PORT, size: 4, early: true},
	{level: unix.SOL_IP, name: unix.IP_MINTTL, size: 4},
	{level: unix.SOL_IP, name: unix.IP_MULTICAST_TTL, typ: unix.SOCK_DGRAM, size: 4},
	{level: unix.SOL_IP, name: unix.IP_MULTICAST_LOOP, typ: unix.SOCK_DGRAM, size: 4},
	{level: unix.SOL_IP, name: unix.IP_MULTICAST_ALL, typ: unix.SOCK_DGRAM, size: 4},
	{level: unix.SOL_IP, name: unix.IP_RECVORIGDSTADDR, size: 4, early: true},
	{level: unix.SOL_IP, name: unix.IP_RECVOPTS, size: 4, early: true},
	{level: unix.SOL_IP, name: unix.IP_RETOPTS, size: 4, early: true},
	{level: unix.SOL_IP, name: unix.IP_PASSSEC, size: 4, early: true},
	{level: unix.SOL_IP, name: unix.IP_CHECKSUM, size: 4, early: true},
	{level: unix.SOL_IP, name: unix.IP_RECVFRAGSIZE, typ: unix.SOCK_DGRAM, size: 4, early: true},
	{level: unix.SOL_IP, name: unix.IP_RECVERR_RFC4884, size: 4, early: true},

	{level: unix.SOL_IPV6, name: unix.IPV6_V6ONLY, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: unix.IPV6_UNICAST_HOPS, family: unix.AF_INET6, size: 4},
	{level: unix.SOL_IPV6, name: unix.IPV6_TCLASS, family: unix.AF_INET6, size: 4},
	{level: unix.SOL_IPV6, name: unix.IPV6_MTU_DISCOVER, family: unix.AF_INET6, size: 4},
	{level: unix.SOL_IPV6, name: unix.IPV6_RECVERR, family: unix.AF_INET6, size: 4},
	{level: unix.SOL_IPV6, name: unix.IPV6_RECVPKTINFO, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: unix.IPV6_RECVHOPLIMIT, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: unix.IPV6_RECVTCLASS, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: unix.IPV6_FREEBIND, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: unix.IPV6_2292HOPOPTS, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: unix.IPV6_2292HOPLIMIT, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: unix.IPV6_RECVHOPOPTS, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: unix.IPV6_RECVRTHDR, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: unix.IPV6_RECVDSTOPTS, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: unix.IPV6_RECVPATHMTU, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: unix.IPV6_RECVORIGDSTADDR, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: unix.IPV6_RECVFRAGSIZE, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: unix.IPV6_RECVERR_RFC4884, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: unix.IPV6_DONTFRAG, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: unix.IPV6_ADDR_PREFERENCES, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: ipv6Flowinfo, family: unix.AF_INET6, size: 4, early: true},
	{level: unix.SOL_IPV6, name: ipv6FlowinfoSend, family: unix.AF_INET6, size: 4},
	{level: unix.SOL_IPV6, name: unix.IPV6_AUTOFLOWLABEL, family: unix.AF_INET6, size: 4},
	{level: unix.SOL_IPV6, name: unix.IPV6_MINHOPCOUNT, family: unix.AF_INET6, size: 4},
	{level: unix.SOL_IPV6, name: unix.IPV6_MULTICAST_HOPS, family: unix.AF_INET6, typ: unix.SOCK_DGRAM, size: 4},
	{level: unix.SOL_IPV6, name: unix.IPV6_MULTICAST_LOOP, family: unix.AF_INET6, typ: unix.SOCK_DGRAM, size: 4},
	{level: unix.SOL_IPV6, name: unix.IPV6_MULTICAST_ALL, family: unix.AF_INET6, typ: unix.SOCK_DGRAM, size: 4},

	{level: unix.SOL_TCP, name: unix.TCP_NODELAY, typ: unix.SOCK_STREAM, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_CORK, typ: unix.SOCK_STREAM, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_MAXSEG, typ: unix.SOCK_STREAM, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_KEEPIDLE, typ: unix.SOCK_STREAM, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_KEEPINTVL, typ: unix.SOCK_STREAM, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_KEEPCNT, typ: unix.SOCK_STREAM, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_SYNCNT, typ: unix.SOCK_STREAM, size: 4, early: true},
	{level: unix.SOL_TCP, name: unix.TCP_LINGER2, typ: unix.SOCK_STREAM, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_DEFER_ACCEPT, typ: unix.SOCK_STREAM, size: 4, early: true},
	{level: unix.SOL_TCP, name: unix.TCP_WINDOW_CLAMP, typ: unix.SOCK_STREAM, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_QUICKACK, typ: unix.SOCK_STREAM, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_CONGESTION, typ: unix.SOCK_STREAM, size: 16, limited: true},
	{level: unix.SOL_TCP, name: unix.TCP_USER_TIMEOUT, typ: unix.SOCK_STREAM, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_NOTSENT_LOWAT, typ: unix.SOCK_STREAM, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_FASTOPEN, typ: unix.SOCK_STREAM, size: 4, early: true},
	{level: unix.SOL_TCP, name: unix.TCP_FASTOPEN_CONNECT, typ: unix.SOCK_STREAM, size: 4, early: true},
	{level: unix.SOL_TCP, name: unix.TCP_SAVE_SYN, typ: unix.SOCK_STREAM, size: 4, early: true},
	{level: unix.SOL_TCP, name: unix.TCP_FASTOPEN_KEY, typ: unix.SOCK_STREAM, size: 32, early: true},
	{level: unix.SOL_TCP, name: unix.TCP_FASTOPEN_NO_COOKIE, typ: unix.SOCK_STREAM, size: 4, early: true},
	{level: unix.SOL_TCP, name: unix.TCP_THIN_LINEAR_TIMEOUTS, typ: unix.SOCK_STREAM, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_INQ, typ: unix.SOCK_STREAM, size: 4},
	{level: unix.SOL_TCP, name: unix.TCP_TX_DELAY, typ: unix.SOCK_STREAM, size: 4},
	{level: unix.SOL_TCP, name: tcpRTOMaxMs, typ: unix.SOCK_STREAM, size: 4},
	{level: unix.SOL_TCP, name: tcpRTOMinUs, typ: unix.SOCK_STREAM, size: 4},
	{level: unix.SOL_TCP, name: tcpDelackMaxUs, typ: unix.SOCK_STREAM, size: 4},

	{level: unix.SOL_UDP, name: unix.UDP_SEGMENT, typ: unix.SOCK_DGRAM, size: 4},
	{level: unix.SOL_UDP, name: unix.UDP_GRO, typ: unix.SOCK_DGRAM, size: 4},
	{level: unix.SOL_UDP, name: unix.UDP_CORK, typ: unix.SOCK_DGRAM, size: 4},
	{level: unix.SOL_UDP, name: unix.UDP_NO_CHECK6_TX, typ: unix.SOCK_DGRAM, size: 4},
	{level: unix.SOL_UDP, name: unix.UDP_NO_CHECK6_RX, typ: unix.SOCK_DGRAM, size: 4},
}

// values are the values of a socket's options, in the order of options. The value of an option that
// the socket does not have is empty.
type values []string

// bufLock is the index of SO_BUF_LOCK in options.
var bufLock = slices.IndexFunc(options, func(o option) bool { return o.level == unix.SOL_SOCKET && o.name == unix.SO_BUF_LOCK })

// isSet tells whether a program has set an option, given the values of a new socket. The kernel goes on
// changing the size of a buffer that no program has set. It would not change that of a copy.
func (vs values) isSet(i int, defaults values) bool {
	switch lock := options[i].lock; {
	case vs[i] == "":
		return false
	case lock != 0 && vs[bufLock] != "":
		return native.Uint32([]byte(vs[bufLock]))&lock != 0
	default:
		return vs[i] != defaults[i]
	}
}

// values reads the options; those of a connection without the early ones.
func (s *socket) values(connection bool) values {
	var buf [optionSizeMax]byte
	vs := make(values, len(options))
	for i, o := range options {
		if (o.family != 0 && o.family != s.family) || (o.typ != 0 && o.typ != s.typ) || (connection && o.early) {
			continue
		}
		if n, err := getsockopt(s.file, o.level, o.name, buf[:o.size]); err == nil {
			vs[i] = string(buf[:n])
		}
	}
	return vs
}

type valuesKey struct {
	netns uint64
	kind  keeper.Kind
}

// defaultsAge is how long the values of a new socket are kept. Then the administrator may have changed
// sysctls, and what differs from the old ones would count as set by a program.
const defaultsAge = 10 * time.Second

type defaultValues struct {
	values
	read time.Time
}

// defaults returns the options of a new socket in the place of s. Many come from the sysctls of
// that namespace. After a move, these have to be the defaults of the new place.
func (e call) defaults(s *socket) (values, error) {
	key := valuesKey{s.netns, s.kind()}
	now := e.clock()
	if d, ok := e.defaultValues.Load(key); ok && now.Sub(d.(defaultValues).read) < defaultsAge {
		return d.(defaultValues).values, nil
	}
	place := e.places[s.netns]
	if place == nil {
		place = e.Own
	}
	k, err := place.Maker()
	if err != nil {
		return nil, err
	}
	file, err := k.Socket(key.kind)
	if err != nil {
		return nil, err
	}
	defer unix.Close(file)
	fresh := *s
	fresh.file = file
	vs := fresh.values(false)
	e.defaultValues.Store(key, defaultValues{vs, now})
	return vs, nil
}

// copyOptions sets on a connection of TCP the options that the program has set on its listener.
func (e call) copyOptions(listener *socket, connection int) error {
	return e.copyValues(listener, listener.values(true), connection)
}

// copyAllOptions sets on a new socket the options that the program has set on s.
func (e call) copyAllOptions(s *socket, to int) error { return e.copyValues(s, s.values(false), to) }

// copyValues leaves out an option that the new place refuses: on a host socket, the program could not
// have set it either.
func (e call) copyValues(s *socket, vs values, to int) error {
	defaults, err := e.defaults(s)
	if err != nil {
		return fmt.Errorf("find default socket options: %w", err)
	}
	if err := copyFilter(s.file, to); err != nil { // before SO_LOCK_FILTER
		return err
	}
	for i, v := range vs {
		if !vs.isSet(i, defaults) {
			continue
		}
		o, value := options[i], []byte(v)
		if o.halve {
			native.PutUint32(value, native.Uint32(value)/2)
		}
		if err := o.set(to, value); err != nil {
			e.Log.Debug("socket option not copied", "level", o.level, "name", o.name, "err", err)
		}
	}
	return nil
}

// set sets the option as the program could.
func (o option) set(file int, value []byte) (err error) {
	if !o.limited {
		return setsockopt(file, o.level, o.name, value)
	}
	gone := withoutCapabilities(func() { err = setsockopt(file, o.level, o.name, value) })
	return errors.Join(gone, err)
}

var native = binary.NativeEndian

// copyFilter copies a classic BPF filter (SO_ATTACH_FILTER). An eBPF filter cannot be read back,
// and is lost. A connection that was given back and is taken again may have a locked filter already.
func copyFilter(from, to int) error {
	if locked, err := unix.GetsockoptInt(to, unix.SOL_SOCKET, unix.SO_LOCK_FILTER); err == nil && locked != 0 {
		return nil
	}
	blocks, err := getFilter(from, nil)
	if err != nil || blocks == 0 {
		return nil //nolint:nilerr // EACCES says that it is an eBPF one
	}
	code := make([]unix.SockFilter, blocks)
	if _, err := getFilter(from, code); err != nil {
		return fmt.Errorf("read socket filter of %d instructions: %w", blocks, err)
	}
	prog := unix.SockFprog{Len: uint16(blocks), Filter: &code[0]}
	if err := unix.SetsockoptSockFprog(to, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog); err != nil {
		return fmt.Errorf("attach socket filter: %w", err)
	}
	return nil
}

// getFilter calls getsockopt(SO_GET_FILTER), whose length counts instructions.
func getFilter(file int, code []unix.SockFilter) (int, error) {
	var first *unix.SockFilter
	if len(code) > 0 {
		first = &code[0]
	}
	size := uint32(len(code))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(file), unix.SOL_SOCKET, unix.SO_GET_FILTER,
		uintptr(unsafe.Pointer(first)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(size), nil
}

// getsockopt and setsockopt take the lock of a program's socket, which the program may hold for as
// long as it likes. So Go's runtime has to know that they may wait: with RawSyscall, all of this
// process would wait.
func getsockopt(file, level, name int, value []byte) (int, error) {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(file), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(size), nil
}

func setsockopt(file, level, name int, value []byte) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(file), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(len(value)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
