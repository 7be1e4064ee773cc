package oci

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// fileMax is the size of the largest file of an engine that is read, in bytes.
const fileMax = 16 << 20

// object is a JSON object. Members that this package does not edit keep their bytes.
type object map[string]json.RawMessage

// parseObject reads an object. It refuses a member whose name differs from a known one only in
// case: Go's decoder, which runtimes use, would accept either of them.
func parseObject(data []byte, known ...string) (object, error) {
	var o object
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, err
	}
	if o == nil {
		return nil, errors.New("null is not an object")
	}
	for name := range o {
		for _, k := range known {
			if name != k && strings.EqualFold(name, k) {
				return nil, fmt.Errorf("member %q is written %q", k, name)
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

// child returns the object of a member, or an empty object if the member is missing.
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
	// The members that this package uses.
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
	// An unknown member of a profile might refuse calls: composing would lose it.
	if profile, is := s.linux["seccomp"]; is {
		d := json.NewDecoder(bytes.NewReader(profile))
		d.DisallowUnknownFields()
		if err := d.Decode(&s.seccomp); err != nil {
			return nil, fmt.Errorf("linux.seccomp: %w", err)
		}
	}
	return s, nil
}

// namespace returns the path of a container's namespace. An empty path is a new namespace.
func (s *spec) namespace(kind specs.LinuxNamespaceType) (path string, is bool) {
	i := slices.IndexFunc(s.namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
	if i < 0 {
		return "", false
	}
	return s.namespaces[i].Path, true
}

// storage returns the folder and the driver of the storage in which an engine has made the container's
// root filesystem: that is ROOT/DRIVER/..., three levels deep. An empty root: it is elsewhere.
func (s *spec) storage() (root, driver string) {
	var rootfs struct{ Path string }
	if s.all.get("root", &rootfs) != nil || !filepath.IsAbs(rootfs.Path) {
		return "", ""
	}
	above := filepath.Join(rootfs.Path, "../..")
	return filepath.Dir(above), filepath.Base(above)
}

// isOurs reports whether a container's namespace is that of this process.
func (s *spec) isOurs(kind specs.LinuxNamespaceType, file string) bool {
	path, is := s.namespace(kind)
	if !is || path == "" {
		return !is
	}
	theirs, err := os.Stat(path)
	if err != nil {
		return false // the runtime reports the error
	}
	ours, err := os.Stat("/proc/self/ns/" + file)
	return err == nil && os.SameFile(ours, theirs)
}

// ids returns the user and group of the first process, as ids of the host.
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

// mapped returns the id outside of a user namespace. Without mappings, the spec names a user
// namespace that exists already, and the id is returned as it is.
func mapped(id uint32, mappings []specs.LinuxIDMapping) (int, error) {
	for _, m := range mappings {
		if id >= m.ContainerID && uint64(id) < uint64(m.ContainerID)+uint64(m.Size) {
			return int(m.HostID) + int(id-m.ContainerID), nil
		}
	}
	if len(mappings) > 0 {
		return 0, fmt.Errorf("%d is not mapped outside of the container's user namespace", id)
	}
	return int(id), nil
}

// readFile reads a regular file of an engine. It does not wait for the writer of a FIFO.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, cmp.Or(err, fmt.Errorf("%s is not a regular file", path))
	}
	data, err := io.ReadAll(io.LimitReader(f, fileMax+1))
	if err == nil && len(data) > fileMax {
		err = fmt.Errorf("%s is larger than %d bytes", path, fileMax)
	}
	return data, err
}
