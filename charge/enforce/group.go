package enforce

import (
	"time"

	"github.com/tsugiki/tsugiki/charge/bandwidth"
)

// group is a container's cgroup, as far as an account needs it. What the methods do is
// said at bandwidth.Group.
type group interface {
	ID() uint64
	Root() bool
	Gone() bool
	OneHierarchy() bool
	Keep(bool) error

	Usage() (time.Duration, error)
	Throttled() (bandwidth.Throttling, error)
	Pressure() (bandwidth.Pressure, bool, error)

	Limit() (bandwidth.Limit, error)
	Quota() (bandwidth.Limit, error)
	QuotaText() (string, error)
	FormatQuota(time.Duration) string
	QuotaFile() string
	SetQuota(time.Duration) error
	Burst() (time.Duration, error)
	BurstFile() string
	SetBurst(time.Duration) error

	Freezer() (freezer, error)
}

// freezer holds the processes of a group. What the methods do is said at
// bandwidth.Freezer.
type freezer interface {
	File() string
	Texts() (thawed string, frozen []string)
	Private() bool
	Freeze() error
	Thaw() error
	Frozen() (bool, error)
	Close() error
}

// kernelGroup is a group of the kernel.
type kernelGroup struct{ *bandwidth.Group }

func (g kernelGroup) Freezer() (freezer, error) {
	f, err := g.Group.Freezer()
	if err != nil {
		return nil, err // not a freezer that is nil
	}
	return f, nil
}

// watcher tells who has written to freezers that are not ours alone.
type watcher interface {
	add(file string, a *Account) error
	remove(file string, a *Account)
	// written are the accounts to whose freezers others have written since the last
	// time.
	written() ([]*Account, error)
	close() error
}
