package enforce

import (
	"time"

	"github.com/tsugiki/tsugiki/charge/bandwidth"
)

// group has the methods of a container's cgroup that an account needs. bandwidth.Group documents
// them.
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

// freezer stops the processes of a group. bandwidth.Freezer documents the methods.
type freezer interface {
	File() string
	Texts() (thawed string, frozen []string)
	Private() bool
	Freeze() error
	Thaw() error
	Frozen() (bool, error)
	Close() error
}

// kernelGroup is a real cgroup.
type kernelGroup struct{ *bandwidth.Group }

func (g kernelGroup) Freezer() (freezer, error) {
	f, err := g.Group.Freezer()
	if err != nil {
		return nil, err // a nil *bandwidth.Freezer would make a non-nil interface
	}
	return f, nil
}

// watcher reports writes by others to freezers.
type watcher interface {
	add(file string, a *Account) error
	remove(file string, a *Account)
	// written returns the accounts to whose freezers others have written since the last call.
	written() ([]*Account, error)
	close() error
}
