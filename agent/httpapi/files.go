package httpapi

import (
	"errors"
	"fmt"
	"log/slog"
	"net"

	"golang.org/x/sys/unix"
)

// A process of the same user may lower the limit of our open files (prlimit(2)): root in tsugiki
// run can. An agent that can open no files accepts no connections, and nothing restarts an agent
// that still runs. So the agent raises the limit again, or ends, so that it can be started anew.

// FileLimit is the limit of open files with which this process began.
type FileLimit struct{ unix.Rlimit }

// CurrentFileLimit returns the present limit.
func CurrentFileLimit() (l FileLimit, err error) {
	err = unix.Getrlimit(unix.RLIMIT_NOFILE, &l.Rlimit)
	return l, err
}

// restore raises the limit again if it has been lowered, and returns the lowered limit.
func (l FileLimit) restore() (lowered bool, was uint64, err error) {
	now, err := CurrentFileLimit()
	if err != nil || now.Cur >= l.Cur {
		return false, now.Cur, err
	}
	err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: l.Cur, Max: max(now.Max, l.Cur)})
	if errors.Is(err, unix.EPERM) && now.Max > now.Cur { // without CAP_SYS_RESOURCE: up to the hard limit
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: now.Max, Max: now.Max})
	}
	return true, now.Cur, err
}

// guarded is a listener that raises the limit of open files when Accept meets the limit.
type guarded struct {
	net.Listener
	limit FileLimit
	log   *slog.Logger
	fail  func(error) // called if the limit cannot be raised
}

// Accept returns errors other than those of the limit unchanged.
func (g *guarded) Accept() (net.Conn, error) {
	for {
		conn, err := g.Listener.Accept()
		if !errors.Is(err, unix.EMFILE) {
			return conn, err
		}
		lowered, was, rerr := g.limit.restore()
		if !lowered {
			return conn, err
		}
		if rerr != nil {
			g.fail(fmt.Errorf("somebody has lowered the limit of open files to %d, and it cannot be raised again (%w); start the agent again", was, rerr))
			return conn, err
		}
		g.log.Warn("somebody had lowered the limit of open files; it is raised again", "limit", was)
	}
}

// Guard wraps a listener so that it raises the limit of open files again after a process has
// lowered the limit. If that fails, it calls fail.
func Guard(l net.Listener, limit FileLimit, log *slog.Logger, fail func(error)) net.Listener {
	return &guarded{l, limit, log, fail}
}
