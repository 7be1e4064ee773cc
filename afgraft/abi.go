package afgraft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// The numbers of AF_GRAFT sockets: include/tsugiki/graft.h.
const (
	// Family is AF_GRAFT, the number of IPX, which Linux no longer has.
	Family = unix.AF_IPX
	// Level is IPPROTO_GRAFT, the level of the options below.
	Level = 254
)

// The layouts of that header.
const (
	nameMax         = 16
	addressSize     = 2 + nameMax
	addressMax      = 128 // struct sockaddr_storage: the kernel takes none longer
	transparentMax  = 128
	transparentHead = 12
	resultSize      = 12
	intSize         = 4
	delayedMax      = 128 // GRAFT_VALUE_MAX of bpf/policy.h
)

// The options at Level.
const (
	soDelayed = iota + 1
	soDelayedExecute
	soDelayedResult
	soTransparent
	nameTransparent
)

// IsAddress tells whether bytes begin as a struct sockaddr_gr does.
func IsAddress(b []byte) bool { return len(b) >= 2 && binary.NativeEndian.Uint16(b) == Family }

// parseAddress reads the endpoint's name out of a struct sockaddr_gr.
func parseAddress(b []byte) (string, bool) {
	if len(b) < addressSize || !IsAddress(b) {
		return "", false
	}
	name := b[2:addressSize]
	for i, c := range name {
		if c == 0 {
			return string(name[:i]), true
		}
	}
	return string(name), true
}

// readMax is what the gate reads of an address: BOARD_ADDRESS_MAX of policy/c/board.h.
const readMax = 28

// ParseBind reads the name of the endpoint that bind(2) of an AF_GRAFT socket has for its
// address, of which the gate has read the beginning. The errno says what is wrong with it.
func ParseBind(read []byte, length int) (name string, errno unix.Errno) {
	if length < addressSize || length > addressMax {
		return "", unix.EINVAL
	}
	name, whole := parseAddress(read)
	if !whole || len(read) < min(length, readMax) {
		return "", unix.EFAULT
	}
	return name, 0
}

// address writes a struct sockaddr_gr.
func address(name string) []byte {
	b := make([]byte, addressSize)
	binary.NativeEndian.PutUint16(b, Family)
	copy(b[2:], name)
	return b
}

// parseTransparent reads a struct graft_sso_trans.
func parseTransparent(b []byte) (level, name int, value []byte, ok bool) {
	if len(b) < transparentHead || len(b) > transparentMax {
		return 0, 0, nil, false
	}
	e := binary.NativeEndian
	size := e.Uint32(b[8:])
	if uint64(size) > uint64(len(b)-transparentHead) {
		return 0, 0, nil, false
	}
	return int(int32(e.Uint32(b))), int(int32(e.Uint32(b[4:]))), b[transparentHead : transparentHead+size], true
}

// appendResult writes a struct graft_sso_result.
func appendResult(b []byte, o Option) []byte {
	for _, n := range []int{o.Level, o.Name, o.Result} {
		b = binary.NativeEndian.AppendUint32(b, uint32(int32(n)))
	}
	return b
}

// valueSize is how much there is to read of an option's value, or what is wrong
// with it.
func valueSize(level, name, length int) (int, unix.Errno) {
	switch {
	case length < 0:
		return 0, unix.EINVAL
	case level != Level && length > delayedMax:
		return 0, unix.ENOBUFS
	case level != Level:
		return length, 0
	}
	switch name {
	case soDelayed, nameTransparent:
		if length > intSize {
			return 0, unix.EINVAL
		}
		return intSize, 0
	case soDelayedExecute:
		return 0, 0
	case soTransparent:
		if length > transparentMax {
			return 0, unix.EINVAL
		}
		return length, 0
	}
	return 0, unix.ENOPROTOOPT
}

// isOn reads an int that switches something.
func isOn(value []byte) bool { return int32(binary.NativeEndian.Uint32(value)) > 0 }
