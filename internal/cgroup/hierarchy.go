package cgroup

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/mounts"
)

// Hierarchy is where a hierarchy of cgroups is mounted.
type Hierarchy struct {
	Mount string // its directory; empty: it is mounted nowhere
	Root  string // the group that is at the mount
	Dev   uint64 // of the mount, as stat(2) has it
}

// Hierarchies are the mounted hierarchies. If one has several mounts, the mount of the whole tree
// counts.
type Hierarchies struct {
	V2 Hierarchy
	V1 map[string]Hierarchy // by controller, or "name=NAME"
}

// Find reads where hierarchies are mounted from a file such as mounts.Self.
func Find(mountinfo string) (*Hierarchies, error) {
	list, err := mounts.Read(mountinfo, mounts.Of("cgroup"))
	if err != nil {
		return nil, err
	}
	all := &Hierarchies{V1: map[string]Hierarchy{}}
	for _, m := range list {
		// Not of the list's text, which would stay as long as any part of it is used.
		h := Hierarchy{strings.Clone(m.Mountpoint), strings.Clone(m.Root), unix.Mkdev(uint32(m.Major), uint32(m.Minor))}
		switch m.FSType {
		case "cgroup2":
			all.V2 = all.V2.or(h)
		case "cgroup":
			for _, c := range strings.Split(m.VFSOptions, ",") {
				if !isOption(c) {
					all.V1[strings.Clone(c)] = all.V1[c].or(h)
				}
			}
		}
	}
	return all, nil
}

// isOption tells whether a word among the options of a v1 hierarchy is no controller.
func isOption(word string) bool {
	return strings.HasPrefix(word, "release_agent=") ||
		slices.Contains([]string{"rw", "ro", "xattr", "noprefix", "clone_children", "cpuset_v2_mode", "favordynmods"}, word)
}

// or is the other mount of the hierarchy if that is the first, or the first of the whole
// tree.
func (h Hierarchy) or(other Hierarchy) Hierarchy {
	if h.Mount == "" || h.Root != "/" && other.Root == "/" {
		return other
	}
	return h
}

// Mounted is where the v2 hierarchy is mounted.
func Mounted() (string, error) {
	all, err := Find(mounts.Self)
	if err == nil && all.V2.Mount == "" {
		err = ErrNoV2
	}
	if err != nil {
		return "", err
	}
	return all.V2.Mount, nil
}

// Controllers are where the v1 hierarchies are mounted, by controller or "name=NAME". There
// are none where all is v2.
func Controllers() (map[string]string, error) {
	all, err := Find(mounts.Self)
	if err != nil {
		return nil, err
	}
	found := make(map[string]string, len(all.V1))
	for c, h := range all.V1 {
		found[c] = h.Mount
	}
	return found, nil
}
