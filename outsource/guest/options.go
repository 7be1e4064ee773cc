package guest

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/outsource/wire"
)

// getOption answers getsockopt(2).
func (s *supervisor) getOption(c *caller, k *kind) (answer, error) {
	level, option := c.number(1), c.number(2)
	word := func(v int) (answer, error) {
		return answer{}, c.give(binary.NativeEndian.AppendUint32(nil, uint32(v)), c.Args[3], c.Args[4], false)
	}
	if level == unix.SOL_SOCKET {
		switch option {
		case unix.SO_PROTOCOL:
			return word(unix.IPPROTO_TCP)
		case unix.SO_DOMAIN:
			own, _, err := s.names(k.handle)
			if err != nil {
				return carryOn, err
			}
			if own.Addr().Is4() {
				return word(unix.AF_INET)
			}
			return word(unix.AF_INET6)
		case unix.SO_ERROR:
			value, err := unix.GetsockoptInt(k.file, unix.SOL_SOCKET, unix.SO_ERROR)
			if err != nil {
				return carryOn, faultOf(err)
			}
			errno := unix.Errno(value)
			if value != 0 {
				if errno, err = s.errnoOf(k.handle, errno); err != nil {
					return carryOn, err
				}
			}
			return word(int(errno))
		}
	}
	var raw [4]byte
	if err := c.read(c.Args[4], raw[:]); err != nil {
		return carryOn, err
	}
	size := int(int32(binary.NativeEndian.Uint32(raw[:])))
	if size < 0 {
		return answer{errno: unix.EINVAL}, nil
	}
	reply, err := s.control.call(&wire.Message{Op: wire.Get, Handle: k.handle, Options: []wire.Option{{
		Level: uint16(level), Name: uint16(option), Value: make([]byte, min(size, wire.ValueMax)),
	}}})
	switch {
	case err != nil:
		return carryOn, faultOf(err)
	case reply.Errno != 0:
		return answer{errno: unix.Errno(reply.Errno)}, nil
	case len(reply.Options) != 1:
		return carryOn, errors.New("the host has not said an option")
	}
	return answer{}, c.give(reply.Options[0].Value, c.Args[3], c.Args[4], false)
}

// setOption answers setsockopt(2).
func (s *supervisor) setOption(c *caller, k *kind) (answer, error) {
	size := c.number(4)
	if size < 0 || size > wire.ValueMax {
		return answer{errno: unix.EINVAL}, nil
	}
	value := make([]byte, size)
	if err := c.read(c.Args[3], value); err != nil {
		return carryOn, err
	}
	reply, err := s.control.call(&wire.Message{Op: wire.Set, Handle: k.handle, Options: []wire.Option{{
		Level: uint16(c.number(1)), Name: uint16(c.number(2)), Value: value,
	}}})
	if err != nil {
		return carryOn, faultOf(err)
	}
	return answer{errno: unix.Errno(reply.Errno)}, nil
}

// carried are the options of a program's socket that the host's gets. All are ints.
var carried = []struct{ level, name, family int }{
	{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0},
	{unix.SOL_SOCKET, unix.SO_REUSEADDR, 0},
	{unix.SOL_SOCKET, unix.SO_REUSEPORT, 0},
	{unix.SOL_IP, unix.IP_TOS, unix.AF_INET},
	{unix.SOL_IPV6, unix.IPV6_V6ONLY, unix.AF_INET6},
	{unix.SOL_IPV6, unix.IPV6_TCLASS, unix.AF_INET6},
	{unix.SOL_TCP, unix.TCP_NODELAY, 0},
	{unix.SOL_TCP, unix.TCP_CORK, 0},
	{unix.SOL_TCP, unix.TCP_KEEPIDLE, 0},
	{unix.SOL_TCP, unix.TCP_KEEPINTVL, 0},
	{unix.SOL_TCP, unix.TCP_KEEPCNT, 0},
	{unix.SOL_TCP, unix.TCP_SYNCNT, 0},
	{unix.SOL_TCP, unix.TCP_DEFER_ACCEPT, 0},
	{unix.SOL_TCP, unix.TCP_USER_TIMEOUT, 0},
	{unix.SOL_TCP, unix.TCP_NOTSENT_LOWAT, 0},
}

// optionsOf returns the options that a program has set on a socket of the guest's: those that a new
// socket has not.
func optionsOf(k *kind) []wire.Option {
	if k.handle != 0 {
		return nil
	}
	fresh, err := unix.Socket(k.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return nil
	}
	defer unix.Close(fresh)
	var list []wire.Option
	for _, o := range carried {
		if o.family != 0 && o.family != k.family {
			continue
		}
		value, err := unix.GetsockoptInt(k.file, o.level, o.name)
		usual, uerr := unix.GetsockoptInt(fresh, o.level, o.name)
		if err == nil && uerr == nil && value != usual {
			list = append(list, wire.Option{Level: uint16(o.level), Name: uint16(o.name), Value: binary.NativeEndian.AppendUint32(nil, uint32(value))})
		}
	}
	return list
}
