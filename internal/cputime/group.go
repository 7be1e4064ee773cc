package cputime

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Group is the directory of a cgroup, in the hierarchy of cgroup v2, which counts CPU time
// where its cpu controller is not, too, or in that of the v1 controller cpuacct.
type Group string

// Elapsed is the CPU time that the processes of the group and of those below it have used
// since the group was made: to the microsecond (v2) or nanosecond (v1), brought up to date
// at each tick and switch. The error is an os.ErrProcessDone if there is no such group.
func (g Group) Elapsed() (time.Duration, error) {
	var buf [64]byte // the first line is enough, and the agent reads many groups
	if line, err := g.firstLine(buf[:], "cpu.stat"); err == nil {
		if value, is := bytes.CutPrefix(line, []byte("usage_usec ")); is {
			return g.parse(value, time.Microsecond)
		}
	}
	line, err := g.firstLine(buf[:], "cpuacct.usage")
	if err != nil {
		return 0, errors.Join(os.ErrProcessDone, err)
	}
	return g.parse(line, time.Nanosecond)
}

func (g Group) parse(value []byte, unit time.Duration) (time.Duration, error) {
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of %s: %w", string(g), err)
	}
	return time.Duration(n) * unit, nil
}

func (g Group) firstLine(buf []byte, name string) ([]byte, error) {
	path := string(g) + "/" + name
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil, &os.PathError{Op: "read", Path: path, Err: err}
	}
	line, _, _ := bytes.Cut(buf[:n], []byte("\n"))
	return line, nil
}
