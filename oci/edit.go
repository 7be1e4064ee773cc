package oci

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/shim"
)

const (
	configFile = "config.json"
	// originalFile is the unedited config.json.
	originalFile = "config.json.tsugiki"
	// The folder of the library is mounted in /dev if /dev is a file system in memory that
	// the runtime makes, so that the container's files do not change. Otherwise /dev may be
	// the host's, and the folder is mounted in /run.
	libraryInDev = "/dev/tsugiki"
	libraryInRun = "/run/tsugiki/library"
)

// refuse returns an error if the container cannot be grafted.
func (s *spec) refuse() error {
	for _, kind := range []string{"windows", "vm"} {
		if _, is := s.all[kind]; is {
			return fmt.Errorf("a container of kind %q cannot be grafted", kind)
		}
	}
	for _, kind := range []string{"linux", "process"} {
		if _, is := s.all[kind]; !is {
			return fmt.Errorf("a container without %q cannot be grafted", kind)
		}
	}
	if s.isOurs(specs.NetworkNamespace, "net") {
		return errors.New("a container in the host's network namespace cannot be grafted; give it a network namespace, or no rules")
	}
	if s.isOurs(specs.UserNamespace, "user") {
		return refuseCaps(s.caps)
	}
	return nil
}

// refuseCaps returns an error for CAP_NET_ADMIN in the host's user namespace. With it a program
// could configure the host's interfaces through its host sockets (SIOCSIFADDR acts on the
// socket's namespace).
func refuseCaps(c *specs.LinuxCapabilities) error {
	if c == nil {
		return nil
	}
	for _, set := range [][]string{c.Bounding, c.Effective, c.Inheritable, c.Permitted, c.Ambient} {
		if slices.ContainsFunc(set, isNetAdmin) {
			return errNetAdmin
		}
	}
	return nil
}

var errNetAdmin = errors.New("a container with CAP_NET_ADMIN could configure the host's network and cannot be grafted; " +
	"run it without --privileged and --cap-add NET_ADMIN, or give it a user namespace")

func isNetAdmin(name string) bool { return isCap(name, "NET_ADMIN") || isCap(name, "ALL") }

func isNetRaw(name string) bool { return isCap(name, "NET_RAW") }

// isCap compares a name of a capability, with or without CAP_ and in any case.
func isCap(name, capability string) bool {
	return strings.TrimPrefix(strings.ToUpper(name), "CAP_") == capability
}

// netRaw is removed from grafted containers in the host's user namespace. With it a program
// marks its packets (SO_MARK), sets their priority and gives them source routes by control
// messages, which no hook of the kernel sees.
const netRaw = "CAP_NET_RAW"

// errNetRaw is the error for --cap CAP_NET_RAW of exec, which is not edited.
var errNetRaw = errors.New("with CAP_NET_RAW a program of a grafted container could get around its rules; leave out --cap " + netRaw)

// dropNetRaw removes netRaw from all sets of a process, and reports whether one had it.
func dropNetRaw(process object) (bool, error) {
	caps, err := process.child("capabilities", capabilitySets...)
	if err != nil {
		return false, err
	}
	dropped := false
	for _, name := range capabilitySets {
		var set []string
		if err := caps.get(name, &set); err != nil {
			return false, fmt.Errorf("capabilities: %w", err)
		}
		if !slices.ContainsFunc(set, isNetRaw) {
			continue
		}
		dropped = true
		if err := caps.set(name, slices.DeleteFunc(set, isNetRaw)); err != nil {
			return false, err
		}
	}
	if !dropped {
		return false, nil
	}
	return true, process.set("capabilities", caps)
}

var capabilitySets = []string{"bounding", "effective", "inheritable", "permitted", "ambient"}

// edit returns the config.json of a grafted container, and the path at which its programs load
// the library; empty if they do not load it.
func (s *spec) edit(r api.Registered) (config []byte, preload string, err error) {
	profile, err := Compose(s.seccomp, r)
	if err != nil {
		return nil, "", err
	}
	if err := s.linux.set("seccomp", profile); err != nil {
		return nil, "", err
	}
	if r.Library != "" {
		if preload, err = s.addLibrary(r.Library); err != nil {
			return nil, "", err
		}
	}
	if err := errors.Join(s.all.set("process", s.process), s.all.set("linux", s.linux)); err != nil {
		return nil, "", err
	}
	config, err = json.Marshal(s.all)
	return config, preload, err
}

func (s *spec) addLibrary(folder string) (preload string, err error) {
	m, preload := LibraryMount(folder, s.mounts)
	mount, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	var mounts []json.RawMessage
	if err := s.all.get("mounts", &mounts); err != nil {
		return "", err
	}
	return preload, errors.Join(s.all.set("mounts", append(mounts, mount)), addPreload(s.process, preload))
}

// addPreload adds the library to LD_PRELOAD of a process.
func addPreload(process object, preload string) error {
	var env []string
	if err := process.get("env", &env); err != nil {
		return err
	}
	return process.set("env", shim.Preload(env, preload))
}

// replaceConfig replaces a bundle's config.json and keeps the original.
func replaceConfig(bundle string, config []byte) error {
	path, original := filepath.Join(bundle, configFile), filepath.Join(bundle, originalFile)
	if err := os.Remove(original); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(path, original); err != nil {
		return err
	}
	return replaceFile(path, config)
}

// restoreConfig puts the original config.json back if the current one is the one that we wrote.
func restoreConfig(bundle, edited string) error {
	path, original := filepath.Join(bundle, configFile), filepath.Join(bundle, originalFile)
	data, err := readFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // the engine has removed the bundle
	case err != nil:
		return err
	case hash(data) == edited:
		err = os.Rename(original, path)
	default:
		err = os.Remove(original)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func hash(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

// replaceFile writes a new file and renames it to the path, with the owner and mode of the old
// file. It does not wait for the disk: after a loss of power there is no container of the bundle.
func replaceFile(path string, data []byte) (err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	err = errors.Join(err, f.Chown(int(st.Uid), int(st.Gid)), f.Chmod(fs.FileMode(st.Mode&0o777)), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
