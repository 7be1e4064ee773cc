package afgraft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// The numbers and layouts of include/tsugiki/graft.h.

const (
	Family          = unix.AF_IPX
	Level           = 254
	nameMax         = 16
	AddressSize     = 2 + nameMax
	AddressMax      = 128 // struct sockaddr_storage: the kernel takes none longer
	transparentMax  = 128
	transparentHead = 12
	ResultSize      = 12
	IntSize         = 4
	delayedMax      = 128 // GRAFT_VALUE_MAX of bpf/policy.h
)

// The options at Level.
const (
	SoDelayed = iota + 1
	SoDelayedExecute
	SoDelayedResult
	SoTransparent
	NameTransparent
)

func IsAddress(b []byte) bool { return len(b) >= 2 && binary.NativeEndian.Uint16(b) == Family }

// ParseAddress reads the endpoint's name out of a struct sockaddr_gr.
func ParseAddress(b []byte) (string, bool) {
	if len(b) < AddressSize || !IsAddress(b) {
		return "", false
	}
	name := b[2:AddressSize]
	for i, c := range name {
		if c == 0 {
			return string(name[:i]), true
		}
	}
	return string(name), true
}

func Address(name string) []byte {
	b := make([]byte, AddressSize)
	binary.NativeEndian.PutUint16(b, Family)
	copy(b[2:], name)
	return b
}

// ParseTransparent reads a struct graft_sso_trans.
func ParseTransparent(b []byte) (level, name int, value []byte, ok bool) {
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

// AppendResult writes a struct graft_sso_result.
func AppendResult(b []byte, o Option) []byte {
	for _, n := range []int{o.Level, o.Name, o.Result} {
		b = binary.NativeEndian.AppendUint32(b, uint32(int32(n)))
	}
	return b
}

// ValueSize is how much there is to read of an option's value, or what is wrong
// with it.
func ValueSize(level, name, length int) (int, unix.Errno) {
	switch {
	case length < 0:
		return 0, unix.EINVAL
	case level != Level && length > delayedMax:
		return 0, unix.ENOBUFS
	case level != Level:
		return length, 0
	}
	switch name {
	case SoDelayed, NameTransparent:
		if length > IntSize {
			return 0, unix.EINVAL
		}
		return IntSize, 0
	case SoDelayedExecute:
		return 0, 0
	case SoTransparent:
		if length > transparentMax {
			return 0, unix.EINVAL
		}
		return length, 0
	}
	return 0, unix.ENOPROTOOPT
}

func IsOn(value []byte) bool { return int32(binary.NativeEndian.Uint32(value)) > 0 }
