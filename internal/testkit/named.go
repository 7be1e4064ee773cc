package testkit

import (
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/proc"
)

// Named returns the ids of the processes of a process group that have a name and have not ended.
// Who may read /proc finds those of other users too.
func Named(t TB, group int, name string) (list []int) {
	t.Helper()
	pids, err := proc.All()
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, pid := range pids {
		if of, err := unix.Getpgid(pid); err != nil || of != group {
			continue
		}
		if stat, err := proc.ReadStat(pid); err == nil && stat.Comm == name && !stat.Ended() {
			list = append(list, pid)
		}
	}
	return list
}
