package discover

import (
	"bytes"
	"strings"

	procfile "github.com/tsugiki/tsugiki/internal/sys/proc"
)

const (
	hexSize = 64
	idMax   = 128
)

// stat is what is used of /proc/PID/stat.
type stat struct {
	comm  string
	ppid  int
	start uint64
	ended bool // a zombie
}

// parseStat reads what is used of /proc/PID/stat.
func parseStat(text []byte) (stat, bool) {
	s, err := procfile.ParseStat(text)
	return stat{s.Comm, s.Parent, s.Start, s.Ended()}, err == nil
}

// groups are the paths of a process in the cgroup hierarchies.
type groups struct {
	cpu    string   // where the cpu controller is, or the only hierarchy
	others []string // in the kernel's order
}

// parseGroups reads /proc/PID/cgroup.
func parseGroups(text []byte) groups {
	var g groups
	unified := ""
	for line := range bytes.Lines(text) {
		parts := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(parts) != 3 || !strings.HasPrefix(parts[2], "/") {
			continue
		}
		isCPU := false
		for _, c := range strings.Split(parts[1], ",") {
			isCPU = isCPU || c == "cpu"
		}
		switch {
		case isCPU:
			g.cpu = parts[2]
		case parts[0] == "0":
			unified = parts[2]
		default:
			g.others = append(g.others, parts[2])
		}
	}
	if g.cpu == "" {
		g.cpu = unified
	} else if unified != "" {
		g.others = append(g.others, unified)
	}
	return g
}

// idIn finds which container a group is of: that of the topmost directory
// called by a container's id, for below it the container may have made directories of its
// own. Engines' ids are 64 hexadecimal digits; containerd's own may be anything, and
// are known from the shim.
func idIn(path, shimID string) string {
	for part := range strings.SplitSeq(path, "/") {
		if part == "" {
			continue
		}
		if part == shimID {
			return shimID
		}
		name := strings.TrimSuffix(part, ".scope")
		// docker-ID, cri-containerd-ID, libpod-ID; conmon's own is libpod-conmon-ID.
		if i := strings.LastIndexByte(name, '-'); i >= 0 && !strings.HasSuffix(name[:i], "conmon") {
			name = name[i+1:]
		}
		if name == shimID && name != "" || isHex(name) {
			return name
		}
	}
	return ""
}

func isHex(s string) bool {
	if len(s) != hexSize {
		return false
	}
	return strings.Trim(s, "0123456789abcdef") == ""
}

// argument finds the value of a flag, "-id" or "-c", in /proc/PID/cmdline.
func argument(cmdline []byte, flag string) string {
	args := strings.Split(string(cmdline), "\x00")
	for i := 1; i+1 < len(args); i++ {
		if args[i] == flag {
			return validID(args[i+1])
		}
	}
	return ""
}

// loggedID finds the container of a logging driver, which containerd starts with it in
// /proc/PID/environ.
func loggedID(environ []byte) string {
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		if value, found := bytes.CutPrefix(v, []byte("CONTAINER_ID=")); found {
			return validID(string(value))
		}
	}
	return ""
}

// validID returns an id if it can be one of a container.
func validID(id string) string {
	if id == "" || len(id) > idMax || id[0] == '.' || id[0] == '-' {
		return ""
	}
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '.', c == '-':
		default:
			return ""
		}
	}
	return id
}
