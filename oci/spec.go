package oci

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// fileMax is the largest file of an engine that is read, in bytes.
const fileMax = 16 << 20

// object is a JSON object of which only some members are looked at: all others stay
// byte for byte what they are.
type object map[string]json.RawMessage

// parseObject reads an object. Go's decoder, which runtimes use, takes members whatever
// their case; with several of one name it would be theirs to choose.
func parseObject(data []byte, known ...string) (object, error) {
	var o object
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, err
	}
	if o == nil {
		return nil, errors.New("null is no object")
	}
	for name := range o {
		for _, k := range known {
			if name != k && strings.EqualFold(name, k) {
				return nil, fmt.Errorf("%q is written %q", k, name)
			}
		}
	}
	return o, nil
}

func (o object) get(name string, v any) error {
	data, is := o[name]
	if !is {
		return nil
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (o object) set(name string, v any) error {
	data, err := json.Marshal(v)
	if err == nil {
		o[name] = data
	}
	return err
}

// child is the object that a member is; an empty one if there is none.
func (o object) child(name string, known ...string) (object, error) {
	data, is := o[name]
	if !is || bytes.Equal(bytes.TrimSpace(data), []byte("null")) {
		return object{}, nil
	}
	c, err := parseObject(data, known...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

// spec is a bundle's config.json.
type spec struct {
	all, process, linux object
	// What of it matters.
	annotations map[string]string
	mounts      []specs.Mount
	hooks       specs.Hooks
	user        specs.User
	caps        *specs.LinuxCapabilities
	namespaces  []specs.LinuxNamespace
	uids, gids  []specs.LinuxIDMapping
	seccomp     *specs.LinuxSeccomp
}

func parseSpec(data []byte) (*spec, error) {
	s := &spec{}
	var err error
	if s.all, err = parseObject(data, "annotations", "mounts", "hooks", "process", "linux", "windows", "vm"); err != nil {
		return nil, err
	}
	if s.process, err = s.all.child("process", "user", "env", "capabilities"); err != nil {
		return nil, err
	}
	if s.linux, err = s.all.child("linux", "namespaces", "uidMappings", "gidMappings", "seccomp"); err != nil {
		return nil, err
	}
	err = errors.Join(
		s.all.get("annotations", &s.annotations), s.all.get("mounts", &s.mounts), s.all.get("hooks", &s.hooks),
		s.process.get("user", &s.user), s.process.get("capabilities", &s.caps),
		s.linux.get("namespaces", &s.namespaces),
		s.linux.get("uidMappings", &s.uids), s.linux.get("gidMappings", &s.gids),
	)
	if err != nil {
		return nil, err
	}
	// A member that is not known might refuse something.
	if profile, is := s.linux["seccomp"]; is {
		d := json.NewDecoder(bytes.NewReader(profile))
		d.DisallowUnknownFields()
		if err := d.Decode(&s.seccomp); err != nil {
			return nil, fmt.Errorf("linux.seccomp: %w", err)
		}
	}
	return s, nil
}

// namespace finds the namespace of a kind. With an empty path it is a new one.
func (s *spec) namespace(kind specs.LinuxNamespaceType) (path string, is bool) {
	i := slices.IndexFunc(s.namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
	if i < 0 {
		return "", false
	}
	return s.namespaces[i].Path, true
}

// isOurs tells whether a container's namespace is the one that we are in.
func (s *spec) isOurs(kind specs.LinuxNamespaceType, file string) bool {
	path, is := s.namespace(kind)
	if !is || path == "" {
		return !is
	}
	theirs, err := os.Stat(path)
	if err != nil {
		return false // the runtime will say so
	}
	ours, err := os.Stat("/proc/self/ns/" + file)
	return err == nil && os.SameFile(ours, theirs)
}

// ids are the host's ids of the first process.
func (s *spec) ids() (uid, gid int, err error) {
	uid, gid = int(s.user.UID), int(s.user.GID)
	if s.isOurs(specs.UserNamespace, "user") {
		return uid, gid, nil
	}
	if uid, err = mapped(s.user.UID, s.uids); err != nil {
		return 0, 0, fmt.Errorf("user %w", err)
	}
	if gid, err = mapped(s.user.GID, s.gids); err != nil {
		return 0, 0, fmt.Errorf("group %w", err)
	}
	return uid, gid, nil
}

// mapped is what an id is outside of a user namespace. One that another has made comes
// without mappings.
func mapped(id uint32, mappings []specs.LinuxIDMapping) (int, error) {
	for _, m := range mappings {
		if id >= m.ContainerID && uint64(id) < uint64(m.ContainerID)+uint64(m.Size) {
			return int(m.HostID) + int(id-m.ContainerID), nil
		}
	}
	if len(mappings) > 0 {
		return 0, fmt.Errorf("%d has no id outside of the container's user namespace", id)
	}
	return int(id), nil
}

// readFile reads a file of an engine. It does not wait for a writer, as a FIFO would
// have it do.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, cmp.Or(err, fmt.Errorf("%s is no regular file", path))
	}
	data, err := io.ReadAll(io.LimitReader(f, fileMax+1))
	if err == nil && len(data) > fileMax {
		err = fmt.Errorf("%s is larger than %d bytes", path, fileMax)
	}
	return data, err
}
