// Package config owns the configuration file of the node daemon, /etc/tsugiki/agent.toml: its
// keys, their checks, and errors with line and column.
//
// It reads one file and nothing else. It needs no privilege and no particular kernel. It does
// not parse rules: it keeps their texts and lines for agent/rules.
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

// Default paths of the file and of the agent's folders.
const (
	DefaultPath     = "/etc/tsugiki/agent.toml"
	DefaultRunDir   = "/run/tsugiki"
	DefaultStateDir = "/var/lib/tsugiki"
)

// sizeMax is the largest file that is read, in bytes.
const sizeMax = 1 << 20

// Config is the content of the file, with defaults for missing keys.
type Config struct {
	Path       string // of the file
	RunDir     string
	StateDir   string
	Log        Log
	Metrics    Metrics
	Runtime    Runtime
	Charge     Charge
	Kubernetes Kubernetes
	Allows     []Allow     // in the order of the file
	Containers []Container // in the order of the file
	Guests     []Guest     // in the order of the file
}

// Log configures the daemon's log.
type Log struct {
	Level  slog.Level
	Format string // text or json
}

// Metrics configures the daemon's HTTP server for metrics.
type Metrics struct {
	Listen string // ADDR:PORT; empty: there is no server
}

// Runtime configures the OCI runtime that tsugiki-runtime calls.
type Runtime struct {
	Path string // empty: runc or crun, the first one in PATH
}

// Charge configures how containers are charged for CPU time that other processes spend for them.
type Charge struct {
	Enabled   bool
	Placement bool
	Burst     bool
	Discovery bool
	Within    string // path of a cgroup; empty: containers in all cgroups
	Softirq   bool
	Shared    []Text // names of programs
}

// Kubernetes configures what containers of pods are given.
type Kubernetes struct {
	Grants bool // by tsugiki-kube alone
}

// Container has the rules of containers whose names Match.
type Container struct {
	Match                      string // a pattern of path.Match
	Mode                       string // auto, preload, seccomp; empty is auto
	Endpoints, Ingress, Egress []Text
	NameRules                  []Text // with Translate
	Translate                  bool
	IPv6                       string // with Translate: the source address; empty: the host's choice
	DNS                        []Text // with Translate: resolvers; none: those of /etc/resolv.conf
	Pool                       string // with Translate: of virtual addresses; empty: 198.18.0.0/15
	FTP, SIP                   string // with Translate: ports that are relayed; empty: 21, and none
	Line                       int
}

// Guest is a virtual machine to attach. Its rules are those of the first Container that matches its name.
type Guest struct {
	Name  string
	VSock string // as --vsock of tsugiki guest attach
	Line  int
}

// Allow limits what the annotations of some containers may ask for. The first entry with a
// container's engine and name applies. The zero value of any other field allows nothing, except
// where a default is given.
type Allow struct {
	Engines     []Text // some of Engines()
	Names       []Text // patterns of path.Match
	Annotations []Text // which annotations the agent follows: some of AnnotationKeys()
	// UnknownOrigin follows also annotations that may come from the image.
	UnknownOrigin bool
	Destinations  []Text // prefixes that rules may name
	Special       []Text // special destinations that rules may name: some of SpecialKinds()
	Addresses     []Text // prefixes of the host's addresses
	Ports         []Text // the host's, PORT or FIRST-LAST; nil: 1024-65535
	Types         []Text // of endpoints; nil: ipv4 and ipv6
	Nameable      bool   // whether programs may name endpoints
	Netns         []Text // patterns of names or paths
	Paths         []Text // patterns of paths of unix endpoints, or folders that end with a slash
	Resolvers     []Text // ADDR:PORT of resolvers that are asked for names
	Line          int
}

// Engines are the names of container engines.
func Engines() []string { return []string{"docker", "podman", "containerd", "nerdctl", "cri", "other"} }

// AnnotationKeys are the annotations that the agent can follow, without their prefix.
func AnnotationKeys() []string {
	return []string{"dns", "egress", "endpoints", "ftp", "ingress", "ipv6", "mode", "name", "name-rules", "sip", "translate"}
}

// SpecialKinds are the kinds of addresses that a rule covers only if it names them.
func SpecialKinds() []string {
	return []string{"broadcast", "link-local", "loopback", "multicast", "unspecified"}
}

// Text is an element of a list, such as a rule, with its line.
type Text struct {
	Text string
	Line int
}

// Error is an error in a file.
type Error struct {
	File   string
	Line   int // from 1; 0 if the error is not on one line
	Column int // from 1, in bytes: of the value or its key; 0 if the error is not at one column
	Err    error
}

func (e *Error) Error() string {
	switch {
	case e.Line == 0:
		return fmt.Sprintf("%s: %v", e.File, e.Err)
	case e.Column == 0:
		return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
	}
	return fmt.Sprintf("%s:%d:%d: %v", e.File, e.Line, e.Column, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Load reads a configuration file. An empty path is DefaultPath, which may be missing. The
// error of a wrong file joins an *Error for each mistake.
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

// For returns the first entry whose pattern matches the name of a container, or nil.
func (c *Config) For(name string) *Container {
	for i := range c.Containers {
		if ok, _ := path.Match(c.Containers[i].Match, name); ok {
			return &c.Containers[i]
		}
	}
	return nil
}

// AllowFor returns the first entry with a container's engine and with a pattern that matches the
// name that the engine gives the container, or nil.
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
