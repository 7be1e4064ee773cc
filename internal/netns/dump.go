package netns

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dumpTries is the number of requests for a list that changes all the time.
const dumpTries = 100

// Dump asks the kernel for a list again if the list has changed during the answer
// (NLM_F_DUMP_INTR), because links and routes of others come and go.
func Dump[T any](list func() ([]T, error)) (all []T, err error) {
	for range dumpTries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
