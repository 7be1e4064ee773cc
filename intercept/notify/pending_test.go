package notify

import (
	"fmt"
	"testing"
)

// A thread takes its own signals, and the first thread those of the process, unless it blocks them.
func TestHasSignal(t *testing.T) {
	for _, tt := range []struct {
		tgid, pid            int
		own, shared, blocked uint64
		want                 bool
	}{
		{7, 7, 0, 0, 0, false},
		{7, 7, 1 << 16, 0, 0, true},
		{7, 7, 0, 1 << 16, 0, true},
		{7, 7, 1 << 16, 1 << 16, 1 << 16, false},
		{7, 7, 1 << 16, 1 << 14, 1 << 16, true},
		{7, 8, 1 << 16, 0, 0, true},
		{7, 8, 0, 1 << 16, 0, false},
	} {
		status := fmt.Sprintf("Name:\ta\tb\nTgid:\t%d\nPid:\t%d\nSigQ:\t1/2\nSigPnd:\t%016x\nShdPnd:\t%016x\nSigBlk:\t%016x\nSigIgn:\tffffffffffffffff\n",
			tt.tgid, tt.pid, tt.own, tt.shared, tt.blocked)
		if got := hasSignal([]byte(status)); got != tt.want {
			t.Errorf("%v of\n%s", got, status)
		}
	}
}
