package netns

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dumpTries is how often a list is asked for that changes all the time.
const dumpTries = 100

// Dump asks the kernel for a list again where it has changed while it was told (NLM_F_DUMP_INTR):
// others' links and routes come and go.
func Dump[T any](list func() ([]T, error)) (all []T, err error) {
	for range dumpTries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
