package config

import (
	"maps"
	"slices"
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

// Header is how a table is written, empty for no table.
func Header(table string) string {
	if _, several := arrays[table]; several {
		return "[[" + table + "]]"
	}
	if table == "" {
		return ""
	}
	return "[" + table + "]"
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
		"allow", "engines", "list", "",
		"Whose annotations: of containers of docker, podman, containerd, nerdctl, cri (Kubernetes), or other, for those of whom it is not known. It may not be left out.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Engines }, oneOf(Engines()...)),
	},
	{
		"allow", "names", "list", "",
		"And of these names: patterns as in match of [[container]]. A name is what the engine calls the container, with Kubernetes NAMESPACE.POD.CONTAINER. It may not be left out.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Names }, pattern),
	},
	{
		"allow", "annotations", "list", "",
		"Which annotations are heard: egress, endpoints, ingress, mode and name. Without it, none.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Annotations }, oneOf(AnnotationKeys()...)),
	},
	{
		"allow", "unknown_origin", "true or false", "false",
		"Whether annotations are heard of which it cannot be known whether the image brings them, or who starts the container.",
		flag(func(c *Config) *bool { return &lastAllow(c).UnknownOrigin }),
	},
	{
		"allow", "destinations", "list", "",
		"Prefixes: what egress rules may be for, each as a whole within one of these.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Destinations }, nonEmpty),
	},
	{
		"allow", "special", "list", "",
		"Kinds of destinations, and of the host's addresses, that no prefix of the other keys covers: broadcast, link-local, loopback, multicast and unspecified.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Special }, oneOf(SpecialKinds()...)),
	},
	{
		"allow", "addresses", "list", "",
		"The host's addresses, as prefixes, that rules and endpoints may use. 0.0.0.0/32 and ::/128 are for leaving the choice to the host.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Addresses }, nonEmpty),
	},
	{
		"allow", "ports", "list", "1024-65535",
		"The host's ports, PORT or FIRST-LAST, that ingress rules and endpoints may use.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Ports }, nonEmpty),
	},
	{
		"allow", "types", "list", "ipv4, ipv6",
		"Types of endpoints: ipv4, ipv6 and unix.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Types }, oneOf("ipv4", "ipv6", "unix")),
	},
	{
		"allow", "nameable", "true or false", "false",
		"Whether there may be endpoints that programs name themselves: through them they connect to all that is not special.",
		flag(func(c *Config) *bool { return &lastAllow(c).Nameable }),
	},
	{
		"allow", "netns", "list", "",
		"Network namespaces that endpoints may be in: patterns of names of ip-netns(8), or of paths.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Netns }, pattern),
	},
	{
		"allow", "paths", "list", "",
		"Paths that unix endpoints may have: patterns, or folders that end with a slash, for all below. No part of a path may be a symbolic link.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Paths }, pathPattern),
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

// arrays are the tables of which there may be several, with the number of those that
// there are.
var arrays = map[string]struct {
	add   func(c *Config, line int)
	count func(*Config) int
}{
	"allow": {
		func(c *Config, line int) { c.Allows = append(c.Allows, Allow{Line: line}) },
		func(c *Config) int { return len(c.Allows) },
	},
	"container": {
		func(c *Config, line int) { c.Containers = append(c.Containers, Container{Line: line}) },
		func(c *Config) int { return len(c.Containers) },
	},
}

func lastAllow(c *Config) *Allow { return &c.Allows[len(c.Allows)-1] }

func last(c *Config) *Container { return &c.Containers[len(c.Containers)-1] }

// tableNames are those that have one.
func tableNames() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(tables)), func(name string) bool { return name == "" })
}
