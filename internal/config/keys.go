package config

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/pelletier/go-toml/v2/unstable"
)

// Key is a key of the file.
type Key struct {
	Table   string // empty: of none
	Name    string
	Kind    string // what its value is
	Default string // empty: there is none, or it is an empty list
	Text    string // what it says
	set     setter
}

// setter takes the value of a key into a Config, and says what is wrong with it.
type setter func(*Config, value) []Error

// Keys are all that there are. Those of container are there once for each of
// them.
func Keys() []Key { return keys }

var keys = []Key{
	{
		"", "run_dir", "directory", DefaultRunDir,
		"What is known of running containers, and the sockets at which the agent and they are reached.",
		text(func(c *Config) *string { return &c.RunDir }, absolute),
	},
	{
		"", "state_dir", "directory", DefaultStateDir,
		"What has to outlive the agent.",
		text(func(c *Config) *string { return &c.StateDir }, absolute),
	},
	{"log", "level", "debug, info, warn or error", "info", "The least of what is logged.", logLevel},
	{
		"log", "format", "text or json", "text",
		"How a line of the log is written.",
		text(func(c *Config) *string { return &c.Log.Format }, oneOf("text", "json")),
	},
	{
		"metrics", "listen", "ADDR:PORT", "",
		"Where Prometheus reads metrics over HTTP, and anybody else who can reach it. Without it, nowhere.",
		text(func(c *Config) *string { return &c.Metrics.Listen }, addrPort),
	},
	{
		"runtime", "path", "file", "",
		"The OCI runtime by which tsugiki-runtime makes containers. Without it, runc or crun, whichever is found first.",
		text(func(c *Config) *string { return &c.Runtime.Path }, absolute),
	},
	{
		"charge", "enabled", "true or false", "true",
		"Whether CPU time that others spend for a container is taken from its CPU quota.",
		flag(func(c *Config) *bool { return &c.Charge.Enabled }),
	},
	{
		"charge", "placement", "true or false", "true",
		"Whether processes that work for one container are moved under its quota where that can be done: it is exact. Else quotas are lowered.",
		flag(func(c *Config) *bool { return &c.Charge.Placement }),
	},
	{
		"charge", "burst", "true or false", "false",
		"Whether containers without debts may use later what they could not use of their quota (cfs_burst), one period's at most: while others ran ahead of theirs. The kernel then refuses to lower their quota: docker update --cpus fails, if it does not come after let-go.",
		flag(func(c *Config) *bool { return &c.Charge.Burst }),
	},
	{
		"charge", "discovery", "true or false", "true",
		"Whether containers, and the shims, loggers and conmons that work for them, are found by themselves.",
		flag(func(c *Config) *bool { return &c.Charge.Discovery }),
	},
	{
		"charge", "within", "path", "",
		"The cgroup in or below which containers are looked for, as in /docker or /kubepods.slice: its path in the hierarchy of the cpu controller. Without it, all are.",
		text(func(c *Config) *string { return &c.Charge.Within }, absolute),
	},
	{
		"charge", "softirq", "true or false", "false",
		"Whether the receiving of packets is charged, which costs some tenths of a microsecond for each packet of the machine.",
		flag(func(c *Config) *bool { return &c.Charge.Softirq }),
	},
	{
		"charge", "shared", "list", "",
		"Names of programs that work for many containers, such as dockerd: their time is divided by the containers' files that they read and write. It costs some tens of nanoseconds for each system call of the machine while such a program serves a container that has a quota.",
		texts(func(c *Config) *[]Text { return &c.Charge.Shared }),
	},
	{
		"container", "match", "pattern", "",
		"Which containers, by name: * is any letters, ? is one, [a-z] one of these. It may not be left out.",
		text(func(c *Config) *string { return &last(c).Match }, pattern),
	},
	{
		"container", "mode", "auto, preload or seccomp", "auto",
		"How calls are intercepted, as --mode of tsugiki run.",
		text(func(c *Config) *string { return &last(c).Mode }, oneOf("auto", "preload", "seccomp")),
	},
	{
		"container", "endpoints", "list", "",
		"Endpoints that rules, or programs, name: each as --endpoint of tsugiki run.",
		texts(func(c *Config) *[]Text { return &last(c).Endpoints }),
	},
	{
		"container", "ingress", "list", "",
		"Rules for what is bound: each as -i of tsugiki run.",
		texts(func(c *Config) *[]Text { return &last(c).Ingress }),
	},
	{
		"container", "egress", "list", "",
		"Rules for what is connected to: each as -e of tsugiki run.",
		texts(func(c *Config) *[]Text { return &last(c).Egress }),
	},
}

// tables are the setters of the keys, by table.
var tables = func() map[string]map[string]setter {
	tables := map[string]map[string]setter{}
	for _, k := range keys {
		if tables[k.Table] == nil {
			tables[k.Table] = map[string]setter{}
		}
		tables[k.Table][k.Name] = k.set
	}
	return tables
}()

func last(c *Config) *Container { return &c.Containers[len(c.Containers)-1] }

// tableNames are those that have one.
func tableNames() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(tables)), func(name string) bool { return name == "" })
}

// value is a value, and where it is.
type value struct {
	node   *unstable.Node
	line   int // of its key
	lineOf func(n *unstable.Node, otherwise int) int
}

// kinds are what values can be.
var kinds = map[unstable.Kind]string{
	unstable.String: "a string", unstable.Bool: "a boolean", unstable.Integer: "an integer", unstable.Float: "a number",
	unstable.Array: "an array", unstable.InlineTable: "a table", unstable.LocalDate: "a date", unstable.LocalTime: "a time",
	unstable.LocalDateTime: "a date", unstable.DateTime: "a date",
}

// text takes a string that a check allows.
func text(field func(*Config) *string, check func(string) error) setter {
	return func(c *Config, v value) []Error {
		if v.node.Kind != unstable.String {
			return []Error{{Line: v.line, Err: fmt.Errorf("has to be a string, not %s", kinds[v.node.Kind])}}
		}
		s := string(v.node.Data)
		if err := check(s); err != nil {
			return []Error{{Line: v.line, Err: fmt.Errorf("%q %w", s, err)}}
		}
		*field(c) = s
		return nil
	}
}

// flag takes a boolean.
func flag(field func(*Config) *bool) setter {
	return func(c *Config, v value) []Error {
		if v.node.Kind != unstable.Bool {
			return []Error{{Line: v.line, Err: fmt.Errorf("has to be true or false, not %s", kinds[v.node.Kind])}}
		}
		*field(c) = string(v.node.Data) == "true"
		return nil
	}
}

// texts takes an array of strings.
func texts(field func(*Config) *[]Text) setter {
	return func(c *Config, v value) (errs []Error) {
		if v.node.Kind != unstable.Array {
			return []Error{{Line: v.line, Err: fmt.Errorf("has to be an array of strings, not %s", kinds[v.node.Kind])}}
		}
		for it := v.node.Children(); it.Next(); {
			n := it.Node()
			line := v.lineOf(n, v.line)
			if n.Kind != unstable.String {
				errs = append(errs, Error{Line: line, Err: fmt.Errorf("has to be an array of strings; in it is %s", kinds[n.Kind])})
				continue
			}
			*field(c) = append(*field(c), Text{string(n.Data), line})
		}
		return errs
	}
}

var levels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

func logLevel(c *Config, v value) []Error {
	var name string
	errs := text(func(*Config) *string { return &name }, oneOf("debug", "info", "warn", "error"))(c, v)
	if errs == nil {
		c.Log.Level = levels[name]
	}
	return errs
}

func oneOf(names ...string) func(string) error {
	return func(s string) error {
		if !slices.Contains(names, s) {
			return fmt.Errorf("is unknown; there are %s", list(names))
		}
		return nil
	}
}

func absolute(s string) error {
	switch {
	case !filepath.IsAbs(s):
		return errors.New("is no absolute path; it has to start with a slash")
	case strings.ContainsFunc(s, unicode.IsControl):
		return errors.New("has a control character in it")
	}
	return nil
}

// addrPort allows nothing, or where to listen.
func addrPort(s string) error {
	if s == "" {
		return nil
	}
	if a, err := netip.ParseAddrPort(s); err != nil || a.Port() == 0 {
		return errors.New("is not ADDR:PORT, an IP address (IPv6 in brackets) and a port of 1 to 65535")
	}
	return nil
}

func pattern(s string) error {
	if s == "" {
		return errors.New("matches nothing; * is for all containers")
	}
	if _, err := path.Match(s, ""); err != nil {
		return errors.New("is no pattern; * is any letters, ? one, [a-z] one of these, and \\ takes their meaning from them")
	}
	return nil
}
