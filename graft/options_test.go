package graft

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A program that has every capability in its own user namespace sets options there that
// it may not set on the host. A swap does not set them for it, though we may.
func TestCopiesNoPrivilege(t *testing.T) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(s)
	find := func(name int) option {
		i := slices.IndexFunc(options, func(o option) bool { return o.level == unix.SOL_SOCKET && o.name == name })
		return options[i]
	}
	value := func(v uint32) []byte { return native.AppendUint32(nil, v) }
	for _, tt := range []struct {
		name   int
		value  uint32
		want   error
		getsIt int
	}{
		{unix.SO_PRIORITY, 3, nil, 3},
		{unix.SO_PRIORITY, 15, unix.EPERM, 3},
	} {
		if err := find(tt.name).set(s, value(tt.value)); !errors.Is(err, tt.want) {
			t.Errorf("set option %d to %d: %v, want %v", tt.name, tt.value, err, tt.want)
		}
		if got, err := unix.GetsockoptInt(s, unix.SOL_SOCKET, tt.name); got != tt.getsIt || err != nil {
			t.Errorf("option %d is %d, %v; want %d", tt.name, got, err, tt.getsIt)
		}
	}
}
