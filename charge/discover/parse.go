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

// stat has the fields of /proc/PID/stat that the scanner uses.
type stat struct {
	comm  string
	ppid  int
	start uint64
	ended bool // the process is a zombie
}

// parseStat parses /proc/PID/stat.
func parseStat(text []byte) (stat, bool) {
	s, err := procfile.ParseStat(text)
	return stat{s.Comm, s.Parent, s.Start, s.Ended()}, err == nil
}

// groups has the paths of a process in the cgroup hierarchies.
type groups struct {
	cpu    string   // in the hierarchy of the cpu controller, or the only one
	others []string // in the other hierarchies, in the kernel's order
}

// parseGroups parses /proc/PID/cgroup.
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

// idIn returns the id of the container that a group belongs to. It is the topmost directory of the
// path with the name of a container's id: below that one, the container may have made directories
// of its own. The ids of engines are 64 hexadecimal digits. containerd's own ids can be any text,
// so they must equal the shim's id.
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

// argument returns the value of a flag such as "-id" or "-c" in /proc/PID/cmdline.
func argument(cmdline []byte, flag string) string {
	args := strings.Split(string(cmdline), "\x00")
	for i := 1; i+1 < len(args); i++ {
		if args[i] == flag {
			return validID(args[i+1])
		}
	}
	return ""
}

// loggedID returns the id of a logging driver's container. containerd puts it into the driver's
// environment, /proc/PID/environ.
func loggedID(environ []byte) string {
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		if value, found := bytes.CutPrefix(v, []byte("CONTAINER_ID=")); found {
			return validID(string(value))
		}
	}
	return ""
}

// validID returns an id that a container can have, and "" for any other text.
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
