// Package proc reads what the kernel tells of a process: /proc/PID/stat, status, statm and
// smaps_rollup.
//
// github.com/prometheus/procfs reads these files too. It takes 64 us for a stat, of which
// reading is 13, and the agent reads hundreds each second; and its status has no
// capabilities and no seccomp mode, which decide who may do what here.
//
// What is read by a number is of whichever process has it at that moment: open the process
// before (package pidfd), and ask after reading whether that one lives. It needs no
// privileges for processes of one's own; Linux 4.14 (smaps_rollup).
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Tick is the unit of times in /proc: USER_HZ, which is 100 on every architecture that Go
// runs on.
const Tick = 10 * time.Millisecond

// exiting is PF_EXITING of linux/sched.h.
const exiting = 0x4

// errStat says that a text is no /proc/PID/stat.
var errStat = errors.New("not the stat of a process")

// Stat is what is used of /proc/PID/stat.
type Stat struct {
	// Comm is the name, which is the process's own choice: anything of 15 bytes.
	Comm   string
	State  byte // as ps(1) shows it
	Parent int
	Flags  uint64
	// User and System are CPU time of all threads; the other two are those of children
	// that the process has waited for.
	User, System, ChildUser, ChildSystem time.Duration
	// Start is when it began, in ticks since the boot: another process that gets the
	// number has another.
	Start uint64
}

// Ended tells whether the process is a zombie, or is being reaped.
func (s *Stat) Ended() bool { return s.State == 'Z' || s.State == 'X' }

// Exiting tells whether the process has begun to end.
func (s *Stat) Exiting() bool { return s.Flags&exiting != 0 }

// CPU is the CPU time of the process and of its children that it has waited for.
func (s *Stat) CPU() time.Duration { return s.User + s.System + s.ChildUser + s.ChildSystem }

// All returns the ids of the processes that /proc shows. One may have ended by then.
func All() (pids []int, err error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// ReadStat reads the stat of a process.
func ReadStat(pid int) (Stat, error) {
	text, err := os.ReadFile(path(pid, "stat"))
	if err != nil {
		return Stat{}, err
	}
	s, err := ParseStat(text)
	if err != nil {
		return Stat{}, fmt.Errorf("read stat of process %d: %w", pid, err)
	}
	return s, nil
}

// ParseStat parses the text of a /proc/PID/stat up to field 22. The name in it may have
// brackets, spaces and newlines; the last bracket is the kernel's.
func ParseStat(text []byte) (Stat, error) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return Stat{}, errStat
	}
	s := Stat{Comm: string(text[open+1 : end])}
	field := 2 // counted from 1, as in proc(5)
	for rest := text[end+1:]; len(rest) > 0; {
		value, after, _ := bytes.Cut(bytes.TrimLeft(rest, " "), []byte{' '})
		rest = after
		field++
		if err := s.set(field, bytes.TrimSpace(value)); err != nil {
			return Stat{}, fmt.Errorf("%w: field %d: %w", errStat, field, err)
		}
		if field == 22 {
			return s, nil
		}
	}
	return Stat{}, fmt.Errorf("%w: it has %d fields", errStat, field)
}

// set takes the value of a field of proc(5).
func (s *Stat) set(field int, value []byte) (err error) {
	switch field {
	case 3:
		if len(value) != 1 {
			return fmt.Errorf("state %q", value)
		}
		s.State = value[0]
	case 4:
		var parent uint64
		parent, err = strconv.ParseUint(string(value), 10, 31)
		s.Parent = int(parent)
	case 9:
		s.Flags, err = strconv.ParseUint(string(value), 10, 64)
	case 14:
		s.User, err = ticks(value)
	case 15:
		s.System, err = ticks(value)
	case 16:
		s.ChildUser, err = ticks(value)
	case 17:
		s.ChildSystem, err = ticks(value)
	case 22:
		s.Start, err = strconv.ParseUint(string(value), 10, 64)
	}
	return err
}

func ticks(value []byte) (time.Duration, error) {
	n, err := strconv.ParseUint(string(value), 10, 64)
	if err == nil && n > 1<<60/uint64(Tick) {
		err = strconv.ErrRange
	}
	return time.Duration(n) * Tick, err
}

func path(pid int, file string) string { return "/proc/" + strconv.Itoa(pid) + "/" + file }

// Fields are the lines of a file such as /proc/PID/status: a key, a colon, and a value. The
// kernel escapes newlines in values.
type Fields string

// Status reads the status of a process, or of a thread by its own number.
func Status(pid int) (Fields, error) { return ReadFields(path(pid, "status")) }

// ReadFields reads a file of fields.
func ReadFields(file string) (Fields, error) {
	text, err := os.ReadFile(file)
	return Fields(text), err
}

// Get is the value of a field, and whether there is one. Of several, the first counts.
func (f Fields) Get(key string) (string, bool) {
	for line := range strings.Lines(string(f)) {
		if name, value, found := strings.Cut(line, ":"); found && name == key {
			return strings.TrimSpace(value), true
		}
	}
	return "", false
}

// Numbers are those of a field, such as Uid or NSpid. None is an error.
func (f Fields) Numbers(key string) ([]int, error) {
	value, _ := f.Get(key)
	var list []int
	for text := range strings.FieldsSeq(value) {
		n, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", key, err)
		}
		list = append(list, n)
	}
	if list == nil {
		return nil, fmt.Errorf("no number in field %s", key)
	}
	return list, nil
}

// Set is the value of a field of hexadecimal digits, such as CapEff.
func (f Fields) Set(key string) (uint64, error) {
	value, _ := f.Get(key)
	set, err := strconv.ParseUint(value, 16, 64)
	if err != nil {
		return 0, fmt.Errorf("field %s: %w", key, err)
	}
	return set, nil
}

// Bytes is the value of a field of memory, which the kernel shows in kB.
func (f Fields) Bytes(key string) (int64, error) {
	value, _ := f.Get(key)
	n, err := strconv.ParseInt(strings.TrimSuffix(value, " kB"), 10, 53)
	if err != nil {
		return 0, fmt.Errorf("field %s: %w", key, err)
	}
	return n << 10, nil
}

// PSS is the memory of a process in bytes, what several share divided among them. A process
// without memory, which is a kernel thread or a zombie, has an error.
func PSS(pid int) (int64, error) {
	fields, err := ReadFields(path(pid, "smaps_rollup"))
	if err != nil {
		return 0, err
	}
	n, err := fields.Bytes("Pss")
	if err != nil {
		return 0, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	return n, nil
}

// Resident is the memory of a process in bytes, as statm has it: what several share counts
// for each, and the kernel may be some pages late.
func Resident(pid int) (int64, error) {
	text, err := os.ReadFile(path(pid, "statm"))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, fmt.Errorf("memory of process %d: statm has %d fields", pid, len(fields))
	}
	pages, err := strconv.ParseInt(fields[1], 10, 48)
	if err != nil {
		return 0, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	return pages * int64(os.Getpagesize()), nil
}
