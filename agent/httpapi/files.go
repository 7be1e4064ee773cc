package httpapi

import (
	"errors"
	"fmt"
	"log/slog"
	"net"

	"golang.org/x/sys/unix"
)

// A process of the same user may lower the limit of our open files (prlimit(2)): root in tsugiki run
// can. An agent that can open none hears nobody, and nobody starts another in its place. So it
// raises the limit again, or ends and leaves that to whoever starts it anew.

// FileLimit is how many files this process may have open, as it began.
type FileLimit struct{ unix.Rlimit }

// CurrentFileLimit is the limit as it is now.
func CurrentFileLimit() (l FileLimit, err error) {
	err = unix.Getrlimit(unix.RLIMIT_NOFILE, &l.Rlimit)
	return l, err
}

// restore raises the limit again if it is lower by now, and tells what it was.
func (l FileLimit) restore() (lowered bool, was uint64, err error) {
	now, err := CurrentFileLimit()
	if err != nil || now.Cur >= l.Cur {
		return false, now.Cur, err
	}
	err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: l.Cur, Max: max(now.Max, l.Cur)})
	if errors.Is(err, unix.EPERM) && now.Max > now.Cur { // without CAP_SYS_RESOURCE, what is left
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: now.Max, Max: now.Max})
	}
	return true, now.Cur, err
}

// guarded is a listener that does not stay without files.
type guarded struct {
	net.Listener
	limit FileLimit
	log   *slog.Logger
	fail  func(error) // it cannot have them again
}

// Accept returns other errors as they are.
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

// Guard makes a listener one that raises the limit of open files again if somebody has lowered it.
// If that fails, fail is told.
func Guard(l net.Listener, limit FileLimit, log *slog.Logger, fail func(error)) net.Listener {
	return &guarded{l, limit, log, fail}
}
