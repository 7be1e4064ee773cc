// Package config owns the configuration of the node daemon: what
// /etc/tsugiki/agent.toml may hold, and saying where it is wrong.
//
// It reads one file and nothing else; it needs no privilege and no particular
// kernel. How rules are written is not its own: it keeps their texts, with their
// lines, for who can read them.
package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"slices"
)

// Where things are, unless the configuration says otherwise.
const (
	DefaultPath     = "/etc/tsugiki/agent.toml"
	DefaultRunDir   = "/run/tsugiki"
	DefaultStateDir = "/var/lib/tsugiki"
)

// sizeMax is the largest file that is read, in bytes.
const sizeMax = 1 << 20

// Config is what the file says, with defaults for the rest.
type Config struct {
	Path       string // of the file
	RunDir     string
	StateDir   string
	Log        Log
	Metrics    Metrics
	Runtime    Runtime
	Charge     Charge
	Allows     []Allow     // in the order of the file
	Containers []Container // in the order of the file
}

// Log says what the daemon logs, and how.
type Log struct {
	Level  slog.Level
	Format string // text or json
}

// Metrics says where the daemon's metrics are read.
type Metrics struct {
	Listen string // ADDR:PORT; empty: nowhere
}

// Runtime says which OCI runtime makes containers.
type Runtime struct {
	Path string // empty: the first one that is found
}

// Charge says how CPU time that others spend for containers is charged to them.
type Charge struct {
	Enabled   bool
	Placement bool
	Burst     bool
	Discovery bool
	Within    string // path of a cgroup; empty: all
	Softirq   bool
	Shared    []Text // names of programs
}

// Container is what containers are given whose names Match.
type Container struct {
	Match                      string // a pattern of path.Match
	Mode                       string // auto, preload, seccomp; empty is auto
	Endpoints, Ingress, Egress []Text
	Line                       int
}

// Allow is what the annotations of some containers may ask for. The first one counts
// whose Engines and Names have a container; the zero value of each other field allows
// nothing, where no default is named.
type Allow struct {
	Engines     []Text // some of Engines()
	Names       []Text // patterns of path.Match
	Annotations []Text // which are heard: some of AnnotationKeys()
	// UnknownOrigin hears also those of which it is not known whether the image
	// brings them.
	UnknownOrigin bool
	Destinations  []Text // prefixes that rules may name
	Special       []Text // and some of SpecialKinds()
	Addresses     []Text // prefixes of the host's addresses
	Ports         []Text // the host's, PORT or FIRST-LAST; nil: 1024-65535
	Types         []Text // of endpoints; nil: ipv4 and ipv6
	Nameable      bool   // whether programs may name endpoints
	Netns         []Text // patterns of names or paths
	Paths         []Text // patterns of paths of unix endpoints, or folders that end with a slash
	Line          int
}

// Engines are the names of container engines.
func Engines() []string { return []string{"docker", "podman", "containerd", "nerdctl", "cri", "other"} }

// AnnotationKeys are the annotations that can be heard, without their prefix.
func AnnotationKeys() []string { return []string{"egress", "endpoints", "ingress", "mode", "name"} }

// SpecialKinds are the kinds of destinations that no wider rule covers.
func SpecialKinds() []string {
	return []string{"broadcast", "link-local", "loopback", "multicast", "unspecified"}
}

// Text is a rule or an endpoint as it is written, and its line.
type Text struct {
	Text string
	Line int
}

// Error is something wrong in a file.
type Error struct {
	File string
	Line int // 0: of the whole file
	Err  error
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Load reads a configuration; an empty path is DefaultPath, where none need be. If
// something in it is wrong, the error joins an Error for each fault.
func Load(file string) (*Config, error) {
	optional := file == ""
	if optional {
		file = DefaultPath
	}
	data, err := read(file)
	if optional && errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return parse(file, data)
}

func read(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, sizeMax+1))
	if err == nil && len(data) > sizeMax {
		err = fmt.Errorf("%s is larger than %d bytes", file, sizeMax)
	}
	return data, err
}

// For returns what a container of a name is given: the first entry that matches,
// or nil.
func (c *Config) For(name string) *Container {
	for i := range c.Containers {
		if ok, _ := path.Match(c.Containers[i].Match, name); ok {
			return &c.Containers[i]
		}
	}
	return nil
}

// AllowFor is what the annotations of a container may ask for, by its engine and by the
// name that the engine gives it: the first entry that has both, or nil.
func (c *Config) AllowFor(engine, name string) *Allow {
	for i := range c.Allows {
		a := &c.Allows[i]
		if matchesOne(a.Engines, engine) && matchesOne(a.Names, name) {
			return a
		}
	}
	return nil
}

func matchesOne(patterns []Text, name string) bool {
	return slices.ContainsFunc(patterns, func(p Text) bool {
		ok, _ := path.Match(p.Text, name)
		return ok
	})
}
